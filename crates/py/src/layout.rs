//! The place of each byte of a striped file, for Python.

use pyo3::prelude::*;

use crate::error::OrRaise;

/// The division of a file into stripe units, in round-robin order over its servers; see
/// [`outcore_core::Stripes`].
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

    /// The entry that holds a byte of the file, and the byte's offset in its data file.
    fn locate(&self, offset: u64) -> (u64, u64) {
        self.0.locate(offset)
    }

    /// The offset in the file of a byte of an entry's data file; `None` if there is none.
    fn offset_of(&self, entry: u64, local: u64) -> Option<u64> {
        self.0.offset_of(entry, local)
    }

    /// Length of an entry's data file, for a file of `length` bytes.
    fn local_length(&self, entry: u64, length: u64) -> u64 {
        self.0.local_length(entry, length)
    }

    /// The smallest length of a file whose entry has a data file of `local_length` bytes; `None` if no file
    /// has one.
    fn length_from(&self, entry: u64, local_length: u64) -> Option<u64> {
        self.0.length_from(entry, local_length)
    }
}
