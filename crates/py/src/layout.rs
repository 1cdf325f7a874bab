//! Where the bytes of a striped file lie, as Python asks it.

use pyo3::prelude::*;

use crate::error::OrRaise;

/// How a file is cut into stripe units, which go round its servers; see [`outcore_core::Stripes`].
#[pyclass(frozen, module = "outcore._core")]
pub struct Stripes(pub outcore_core::Stripes);

#[pymethods]
impl Stripes {
    #[new]
    #[pyo3(signature = (unit_bytes, count, round_units = None))]
    fn new(py: Python<'_>, unit_bytes: u64, count: u64, round_units: Option<u64>) -> PyResult<Self> {
        let stripes = outcore_core::Stripes::new(unit_bytes, count);
        stripes.and_then(|all| all.with_round_units(round_units)).or_raise(py).map(Self)
    }

    /// The entry that holds a byte of the file, and where in its data file.
    fn locate(&self, offset: u64) -> (u64, u64) {
        self.0.locate(offset)
    }

    /// The byte of the file at a byte of an entry's data file; `None`: there can be none.
    fn offset_of(&self, entry: u64, local: u64) -> Option<u64> {
        self.0.offset_of(entry, local)
    }

    /// Length of the data file of an entry, for a file of so many bytes.
    fn local_length(&self, entry: u64, length: u64) -> u64 {
        self.0.local_length(entry, length)
    }

    /// The least length of a file whose entry has a data file of so many bytes; `None`: there can be none.
    fn length_from(&self, entry: u64, local_length: u64) -> Option<u64> {
        self.0.length_from(entry, local_length)
    }
}
