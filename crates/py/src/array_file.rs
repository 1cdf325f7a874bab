//! Array files: the grid, boxes in the background, tickets.

use std::sync::Arc;
use std::time::{Duration, Instant};

use numpy::{PyArray1, PyArrayMethods, PyUntypedArray, PyUntypedArrayMethods};
use outcore_client::{Memory, MemoryUse};
use outcore_core::{BoxRequest, ChunkGrid, ChunkOrder, Error, GridSpec, Hints, Operation, StorageOrder};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::error::{OrRaise, raise};
use crate::memory::{Arena, memory_of};
use crate::stream::Trace;
use crate::volume::Volume;

/// Maximum wait before the interpreter checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// The layout of an array on disk.
#[pyclass(frozen, module = "outcore._core")]
pub struct Grid(pub ChunkGrid);

#[pymethods]
impl Grid {
    #[new]
    #[pyo3(signature = (
        shape, chunk, item_bytes, order, chunk_order, slot_align_bytes, column_places = None, growing = false,
        block_chunks = None
    ))]
    #[expect(clippy::too_many_arguments, reason = "keywords at the calls from Python")]
    fn new(
        py: Python<'_>,
        shape: Vec<u64>,
        chunk: Vec<u64>,
        item_bytes: u64,
        order: &str,
        chunk_order: &str,
        slot_align_bytes: u64,
        column_places: Option<Vec<u64>>,
        growing: bool,
        block_chunks: Option<Vec<u64>>,
    ) -> PyResult<Self> {
        let storage = match order {
            "C" => Ok(StorageOrder::C),
            "F" => Ok(StorageOrder::F),
            _ => Err(Error::invalid(format!("order must be \"C\" or \"F\", have {order:?}"))),
        };
        let grid = storage.and_then(|storage| {
            let chunk_order = ChunkOrder::from_name(chunk_order, block_chunks)?;
            ChunkGrid::new(GridSpec {
                shape,
                chunk,
                item_bytes,
                storage,
                chunk_order,
                slot_align_bytes,
                column_places,
                growing,
            })
        });
        Ok(Self(grid.or_raise(py)?))
    }

    /// The layout of the transpose, in the same files.
    fn transposed(&self) -> Self {
        Self(self.0.transposed())
    }

    #[getter]
    fn counts(&self) -> Vec<u64> {
        self.0.counts().to_vec()
    }

    #[getter]
    fn shard_shape(&self) -> Vec<u64> {
        self.0.shard_chunks().iter().zip(&self.0.spec().chunk).map(|(n, c)| n * c).collect()
    }

    #[getter]
    fn slot_bytes(&self) -> u64 {
        self.0.slot_bytes()
    }

    /// Distance in bytes between neighbouring blocks of chunks, if the chunks are in blocks.
    #[getter]
    fn block_bytes(&self) -> Option<u64> {
        self.0.block_bytes()
    }

    #[getter]
    fn stripe_unit_bytes(&self) -> u64 {
        self.0.stripe_unit_bytes()
    }

    /// Number of stripe units that are striped over the servers, if the tail of the file lies on the last
    /// one.
    #[getter]
    fn round_units(&self) -> Option<u64> {
        self.0.round_units()
    }

    #[getter]
    fn shard_bytes(&self) -> u64 {
        self.0.shard_bytes()
    }

    #[getter]
    fn shards(&self) -> u64 {
        self.0.shards()
    }

    fn shard_key(&self, shard: u64) -> String {
        self.0.shard_key(shard)
    }

    /// (shard number, first byte) of a chunk.
    fn locate(&self, py: Python<'_>, chunk: Vec<u64>) -> PyResult<(u64, u64)> {
        if chunk.len() != self.0.dims() || chunk.iter().zip(self.0.counts()).any(|(c, n)| c >= n) {
            return Err(raise(
                py,
                &Error::invalid(format!("there is no chunk {chunk:?} in {:?}", self.0.counts())),
            ));
        }
        let slot = self.0.locate(&chunk);
        Ok((slot.shard, slot.offset))
    }

    fn index<'py>(&self, py: Python<'py>) -> Bound<'py, PyBytes> {
        PyBytes::new(py, &self.0.index())
    }
}

/// A handle of background work.
#[pyclass(frozen, module = "outcore._core")]
pub struct Ticket(pub outcore_client::Ticket);

#[pymethods]
impl Ticket {
    /// Whether the work is done, successfully or not.
    fn done(&self) -> bool {
        self.0.is_done()
    }

    /// Waits for the end; raises the error of the work.
    fn wait(&self, py: Python<'_>) -> PyResult<()> {
        self.wait_until(py, None).map(|_| ())
    }

    /// Waits for the end like [`Ticket::wait`], but at most `seconds`. Returns whether the work has ended.
    fn wait_for(&self, py: Python<'_>, seconds: f64) -> PyResult<bool> {
        // A time beyond the range of the clock means no limit.
        let time = Duration::try_from_secs_f64(seconds.max(0.0)).ok();
        self.wait_until(py, time.and_then(|time| Instant::now().checked_add(time)))
    }
}

impl Ticket {
    fn wait_until(&self, py: Python<'_>, until: Option<Instant>) -> PyResult<bool> {
        loop {
            let left = until.map_or(SIGNAL_INTERVAL, |until| until.saturating_duration_since(Instant::now()));
            if let Some(outcome) = py.detach(|| self.0.wait(left.min(SIGNAL_INTERVAL))) {
                return outcome.or_raise(py).map(|()| true);
            }
            py.check_signals()?;
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

/// An array's shard files, open.
#[pyclass(frozen, module = "outcore._core")]
pub struct ArrayFile(pub Arc<outcore_client::ArrayFile>);

#[pymethods]
impl ArrayFile {
    /// Creates the shard files of a new array, each striped over at most `stripe_count` servers, by default
    /// in units of chunks. `base` is the first server, by its place in the pool's order.
    #[staticmethod]
    #[expect(clippy::too_many_arguments, reason = "keywords at the calls from Python")]
    #[pyo3(signature = (volume, path, grid, reserve, stripe_count = None, stripe_unit_bytes = None, base = None))]
    fn create(
        py: Python<'_>,
        volume: &Volume,
        path: &str,
        grid: &Grid,
        reserve: bool,
        stripe_count: Option<u64>,
        stripe_unit_bytes: Option<u64>,
        base: Option<u64>,
    ) -> PyResult<()> {
        let hints = Hints { stripe_unit_bytes, stripe_count, base, ..Hints::default() };
        py.detach(|| outcore_client::ArrayFile::create(&volume.0, path, &grid.0, reserve, hints)).or_raise(py)
    }

    /// Gives existing shard files another layout: a new length and index.
    #[staticmethod]
    fn adopt(py: Python<'_>, volume: &Volume, path: &str, grid: &Grid) -> PyResult<()> {
        py.detach(|| outcore_client::ArrayFile::adopt(&volume.0, path, &grid.0)).or_raise(py)
    }

    #[new]
    #[pyo3(signature = (volume, path, grid, writable, arena, bounce_bytes, trace = None, trace_number = 0))]
    #[expect(clippy::too_many_arguments, reason = "keywords at the one call from Python")]
    fn new(
        py: Python<'_>,
        volume: &Volume,
        path: &str,
        grid: &Grid,
        writable: bool,
        arena: &Arena,
        bounce_bytes: usize,
        trace: Option<&Trace>,
        trace_number: u32,
    ) -> PyResult<Self> {
        let memory = MemoryUse { arena: arena.0.clone(), bounce_bytes };
        let trace = trace.map(|trace| (trace.0.clone(), trace_number));
        let (volume, grid) = (volume.0.clone(), grid.0.clone());
        let file = py
            .detach(|| outcore_client::ArrayFile::open(volume, path, grid, writable, memory, trace))
            .or_raise(py)?;
        Ok(Self(Arc::new(file)))
    }

    /// Starts reading a box into all of `target`. The box begins at `start` and has the given `step`.
    fn submit_read(
        &self,
        py: Python<'_>,
        start: Vec<u64>,
        step: Vec<u64>,
        target: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<Ticket> {
        self.submit(py, Operation::Read, start, step, target)
    }

    /// Reads a box like [`ArrayFile::submit_read`], and returns when it is done. Cached pages are copied from
    /// the page cache.
    fn read(
        &self,
        py: Python<'_>,
        start: Vec<u64>,
        step: Vec<u64>,
        target: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let (request, memory) = self.request(start, step, target)?;
        Self::unless_stopped(py, |go_on| Ok(vec![self.0.read_mapped(&request, memory, go_on)?]))
    }

    /// Writes a box like [`ArrayFile::submit_write`], and returns when it is done. Short runs cost least this
    /// way.
    fn write(
        &self,
        py: Python<'_>,
        start: Vec<u64>,
        step: Vec<u64>,
        source: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<()> {
        let (request, memory) = self.request(start, step, source)?;
        Self::unless_stopped(py, |go_on| self.0.write_short(&request, memory, go_on))
    }

    /// Starts reading some rows of a two-dimensional array, from column `first_column`, into the rows of
    /// `target`. Adjacent rows are read as one box.
    fn submit_read_rows(
        &self,
        py: Python<'_>,
        rows: &Bound<'_, PyArray1<i64>>,
        first_column: u64,
        target: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<Ticket> {
        let rows = rows.try_readonly()?;
        let rows = rows.as_slice()?;
        let [height, width] = *target.shape() else {
            let have = target.ndim();
            return Err(raise(py, &Error::invalid(format!("need a target of two dimensions, have {have}"))));
        };
        if rows.len() != height {
            let have = rows.len();
            return Err(raise(py, &Error::invalid(format!("need {height} row numbers, have {have}"))));
        }
        if let Some(row) = rows.iter().find(|row| **row < 0) {
            return Err(raise(py, &Error::invalid(format!("there is no row {row}"))));
        }
        let memory = memory_of(target, self.0.grid().spec().item_bytes)?;
        let rows: Vec<u64> = rows.iter().map(|&row| row as u64).collect();
        let width = width as u64;
        py.detach(|| self.0.submit_rows(&rows, first_column, width, &memory)).or_raise(py).map(Ticket)
    }

    /// Starts writing all of `source` to a box. The box begins at `start` and has the given `step`.
    fn submit_write(
        &self,
        py: Python<'_>,
        start: Vec<u64>,
        step: Vec<u64>,
        source: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<Ticket> {
        self.submit(py, Operation::Write, start, step, source)
    }

    /// Starts a sync of all writes.
    fn submit_sync(&self, py: Python<'_>) -> Ticket {
        Ticket(py.detach(|| self.0.submit_sync()))
    }

    /// (longest gap in bytes that a read includes, block size of the disk in bytes).
    #[getter]
    fn read_granularity(&self) -> (u64, u64) {
        self.0.read_granularity()
    }

    /// (bytes read, bytes written, read requests, write requests) so far.
    fn counters(&self) -> (u64, u64, u64, u64) {
        let c = self.0.counters();
        (c.bytes_read, c.bytes_written, c.reads, c.writes)
    }
}

impl ArrayFile {
    /// Does some work without the interpreter lock, then waits for its tickets. A signal stops the work.
    fn unless_stopped(
        py: Python<'_>,
        work: impl FnOnce(&mut dyn FnMut() -> bool) -> outcore_core::Result<Vec<outcore_client::Ticket>> + Send,
    ) -> PyResult<()> {
        let mut stopped = Ok(());
        let tickets = py.detach(|| {
            work(&mut || {
                stopped = Python::attach(|py| py.check_signals());
                stopped.is_ok()
            })
        });
        stopped?;
        tickets.or_raise(py)?.into_iter().try_for_each(|ticket| Ticket(ticket).wait(py))
    }

    fn submit(
        &self,
        py: Python<'_>,
        operation: Operation,
        start: Vec<u64>,
        step: Vec<u64>,
        array: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<Ticket> {
        let (request, memory) = self.request(start, step, array)?;
        py.detach(|| self.0.submit(operation, &request, memory)).or_raise(py).map(Ticket)
    }

    /// The box at `start` with the given `step`, and `array` as its memory.
    fn request(
        &self,
        start: Vec<u64>,
        step: Vec<u64>,
        array: &Bound<'_, PyUntypedArray>,
    ) -> PyResult<(BoxRequest, Memory)> {
        let count: Vec<u64> = array.shape().iter().map(|&n| n as u64).collect();
        let memory = memory_of(array, self.0.grid().spec().item_bytes)?;
        Ok((BoxRequest { start, count, step, memory_strides: memory.strides.clone() }, memory))
    }
}
