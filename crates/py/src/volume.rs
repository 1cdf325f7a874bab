//! Volumes.

use std::sync::Arc;

use outcore_client::LocalVolume;
use outcore_memory::Region;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::OrRaise;

/// A namespace of files: here, a plain directory.
#[pyclass(frozen, module = "outcore._core")]
pub struct Volume(pub Arc<dyn outcore_core::Volume<Buffer = Region>>);

#[pymethods]
impl Volume {
    #[new]
    #[pyo3(signature = (root, threads = outcore_disk::DEFAULT_THREADS))]
    fn new(py: Python<'_>, root: &str, threads: usize) -> PyResult<Self> {
        let volume: LocalVolume = py.detach(|| LocalVolume::open_directory(root, threads)).or_raise(py)?;
        Ok(Self(Arc::new(volume)))
    }

    fn read_small<'py>(&self, py: Python<'py>, path: &str) -> PyResult<Bound<'py, PyBytes>> {
        let bytes = py.detach(|| self.0.read_small(path)).or_raise(py)?;
        Ok(PyBytes::new(py, &bytes))
    }

    fn replace_small(&self, py: Python<'_>, path: &str, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.replace_small(path, data)).or_raise(py)
    }

    fn append_small(&self, py: Python<'_>, path: &str, data: &[u8]) -> PyResult<()> {
        py.detach(|| self.0.append_small(path, data)).or_raise(py)
    }

    /// (name, is_directory, length) of each entry, sorted by name.
    fn list(&self, py: Python<'_>, path: &str) -> PyResult<Vec<(String, bool, u64)>> {
        let entries = py.detach(|| self.0.list(path)).or_raise(py)?;
        Ok(entries.into_iter().map(|e| (e.name, e.is_directory, e.length)).collect())
    }

    fn exists(&self, py: Python<'_>, path: &str) -> PyResult<bool> {
        py.detach(|| self.0.exists(path)).or_raise(py)
    }

    fn remove(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        py.detach(|| self.0.remove(path)).or_raise(py)
    }

    fn remove_soon(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        py.detach(|| self.0.remove_soon(path)).or_raise(py)
    }

    fn rename(&self, py: Python<'_>, old: &str, new: &str) -> PyResult<()> {
        py.detach(|| self.0.rename(old, new)).or_raise(py)
    }

    /// The time of the last write to a file, in nanoseconds since 1970.
    fn modified_ns(&self, py: Python<'_>, path: &str) -> PyResult<u64> {
        py.detach(|| self.0.modified_ns(path)).or_raise(py)
    }

    /// Returns once all writes to a file survive power loss.
    fn settle(&self, py: Python<'_>, path: &str) -> PyResult<()> {
        py.detach(|| self.0.settle(path)).or_raise(py)
    }

    /// Alignment in bytes for large objects in a file, such as chunks.
    #[getter]
    fn slot_align_bytes(&self) -> u64 {
        self.0.slot_align_bytes()
    }

    fn free_bytes(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.0.free_bytes()).or_raise(py)
    }
}
