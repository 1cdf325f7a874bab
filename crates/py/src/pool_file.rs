//! Files of a pool, and the bytes of a request.

use std::sync::Arc;

use numpy::{PyArrayDescrMethods, PyReadonlyArray1, PyUntypedArray, PyUntypedArrayMethods};
use outcore_client::{Memory, PoolVolume};
use outcore_core::{Error, FileId, Level, Link, Nested, Operation, Volume};
use outcore_memory::{Region, Segment};
use pyo3::prelude::*;

use crate::array_file::Ticket;
use crate::error::{OrRaise, raise};
use crate::memory::memory_of;

/// A client of a pool, over any link.
pub type Client = PoolVolume<dyn Link<Buffer = Region>>;

/// (first byte, bytes of a run, (count, step in bytes) of each stride, outermost first).
type Part = (u64, u64, Vec<(u64, u64)>);

/// Bytes of a file, in the order of a request.
#[pyclass(frozen, module = "outcore._core")]
pub struct Regions(outcore_core::Regions);

#[pymethods]
impl Regions {
    #[staticmethod]
    fn contiguous(py: Python<'_>, offset: u64, nbytes: u64) -> PyResult<Self> {
        outcore_core::Regions::contiguous(offset, nbytes).or_raise(py).map(Self)
    }

    #[staticmethod]
    fn strided(
        py: Python<'_>,
        location: u64,
        first: u64,
        group: u64,
        count: u64,
        stride: u64,
        last: u64,
    ) -> PyResult<Self> {
        outcore_core::Regions::strided(location, first, group, count, stride, last).or_raise(py).map(Self)
    }

    #[staticmethod]
    fn nested(py: Python<'_>, parts: Vec<Part>) -> PyResult<Self> {
        let level = |(count, step_bytes)| Level { count, step_bytes };
        let part = |(offset, run_bytes, levels): Part| Nested {
            offset,
            run_bytes,
            levels: levels.into_iter().map(level).collect(),
        };
        outcore_core::Regions::new(parts.into_iter().map(part).collect()).or_raise(py).map(Self)
    }

    /// Runs of bytes, given by their first bytes and lengths.
    #[staticmethod]
    fn list(
        py: Python<'_>,
        offsets: PyReadonlyArray1<'_, u64>,
        lengths: PyReadonlyArray1<'_, u64>,
    ) -> PyResult<Self> {
        let (offsets, lengths) = (offsets.as_array(), lengths.as_array());
        if offsets.len() != lengths.len() {
            let (need, have) = (offsets.len(), lengths.len());
            return Err(raise(py, &Error::invalid(format!("need {need} lengths of regions, have {have}"))));
        }
        let part = |(&offset, &run_bytes)| Nested { offset, run_bytes, levels: vec![] };
        outcore_core::Regions::new(offsets.iter().zip(lengths.iter()).map(part).collect())
            .or_raise(py)
            .map(Self)
    }

    #[getter]
    fn nbytes(&self) -> u64 {
        self.0.total_bytes()
    }

    /// The byte after the last one.
    #[getter]
    fn end(&self) -> u64 {
        self.0.end()
    }

    /// (first byte, length) of each run, in the order of the request.
    fn runs(&self) -> Vec<(u64, u64)> {
        self.0.runs().map(|run| (run.offset, run.length)).collect()
    }
}

/// An open file of a pool.
#[pyclass(frozen, module = "outcore._core")]
pub struct PoolFile {
    pub pool: Arc<Client>,
    pub file: FileId,
}

impl PoolFile {
    pub fn new(pool: Arc<Client>, file: FileId) -> Self {
        Self { pool, file }
    }

    fn submit(
        &self,
        py: Python<'_>,
        operation: Operation,
        regions: &Regions,
        arrays: &[Bound<'_, PyUntypedArray>],
    ) -> PyResult<Ticket> {
        let memories = arrays.iter().map(|array| {
            let item = array.dtype().itemsize();
            Ok((memory_of(array, item as u64)?, array.shape().to_vec(), item))
        });
        let memories = memories.collect::<PyResult<Vec<_>>>()?;
        let submitted = py.detach(|| {
            let parts = memories.into_iter().map(|(memory, shape, item)| region_of(memory, &shape, item));
            let buffer = Region::joined(parts.collect::<outcore_core::Result<_>>()?);
            Ok(self.pool.submit_regions(self.file, operation, regions.0.clone(), buffer))
        });
        submitted.or_raise(py).map(Ticket)
    }
}

#[pymethods]
impl PoolFile {
    /// Starts reading regions into all of `targets`, in order. They fill the elements in C order, for any
    /// strides.
    fn submit_read(
        &self,
        py: Python<'_>,
        regions: &Regions,
        targets: Vec<Bound<'_, PyUntypedArray>>,
    ) -> PyResult<Ticket> {
        self.submit(py, Operation::Read, regions, &targets)
    }

    /// Starts writing all of `sources`, in order, to regions.
    fn submit_write(
        &self,
        py: Python<'_>,
        regions: &Regions,
        sources: Vec<Bound<'_, PyUntypedArray>>,
    ) -> PyResult<Ticket> {
        self.submit(py, Operation::Write, regions, &sources)
    }

    /// Starts a sync of all writes, once `after` are done.
    #[pyo3(signature = (after = vec![]))]
    fn submit_sync(&self, py: Python<'_>, after: Vec<Bound<'_, Ticket>>) -> Ticket {
        let after: Vec<_> = after.iter().map(|ticket| ticket.get().0.clone()).collect();
        Ticket(py.detach(|| self.pool.submit_sync_after(self.file, &after)))
    }

    fn length(&self, py: Python<'_>) -> PyResult<u64> {
        py.detach(|| self.pool.length(self.file)).or_raise(py)
    }

    fn set_length(&self, py: Python<'_>, length: u64) -> PyResult<()> {
        py.detach(|| self.pool.set_length(self.file, length)).or_raise(py)
    }

    fn close(&self, py: Python<'_>) {
        py.detach(|| self.pool.close(self.file));
    }

    /// The handle of the file, as in `Pool.handle`.
    #[getter]
    fn handle(&self, py: Python<'_>) -> PyResult<u64> {
        self.pool.handle(self.file).or_raise(py).map(|handle| handle.0)
    }
}

impl Drop for PoolFile {
    fn drop(&mut self) {
        self.pool.close(self.file);
    }
}

/// The bytes of an array in C order, as runs of its memory.
fn region_of(memory: Memory, shape: &[usize], item: usize) -> outcore_core::Result<Region> {
    let (mut run, mut outer) = (item, shape.len());
    while outer > 0 && (shape[outer - 1] == 1 || memory.strides[outer - 1] == run as i64) {
        run *= shape[outer - 1];
        outer -= 1;
    }
    let runs: usize = shape[..outer].iter().product();
    if run == 0 || runs == 0 {
        return Ok(Region::empty());
    }
    let mut at = vec![0_usize; outer];
    let mut segments = Vec::with_capacity(runs);
    let mut offset = memory.origin as i64;
    loop {
        segments.push(Segment { offset: offset as usize, bytes: run });
        let mut dim = outer;
        loop {
            if dim == 0 {
                return Region::new(memory.block, segments);
            }
            dim -= 1;
            at[dim] += 1;
            offset += memory.strides[dim];
            if at[dim] < shape[dim] {
                break;
            }
            offset -= memory.strides[dim] * shape[dim] as i64;
            at[dim] = 0;
        }
    }
}
