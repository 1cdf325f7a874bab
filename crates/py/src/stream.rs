//! Scheduled streams, and the trace of a long call.

use std::sync::Arc;
use std::time::Duration;

use numpy::{PyArray1, PyArray2, PyArrayMethods};
use outcore_client::{Span, SpanKind};
use outcore_core::Error;
use outcore_disk::{MonotonicClock, clocks};
use pyo3::prelude::*;

use crate::array_file::ArrayFile;
use crate::error::{OrRaise, raise};
use crate::memory::{Arena, Buffer};

/// Maximum wait before the interpreter checks for signals.
const SIGNAL_INTERVAL: Duration = Duration::from_millis(50);

/// Spans of one long call.
#[pyclass(frozen, module = "outcore._core")]
pub struct Trace(pub outcore_client::Trace);

#[pymethods]
impl Trace {
    #[new]
    fn new() -> Self {
        Self(outcore_client::Trace::new(Arc::new(MonotonicClock)))
    }

    /// The same moment by the clock of all traces of this machine, and in nanoseconds since 1970.
    #[staticmethod]
    fn clocks() -> (u64, u64) {
        clocks()
    }

    /// The current time of the trace's clock, in nanoseconds.
    fn now_ns(&self) -> u64 {
        self.0.now_ns()
    }

    /// Adds a span from `start_ns` until now.
    fn record(&self, py: Python<'_>, kind: &str, start_ns: u64) -> PyResult<()> {
        let Some(kind) = SpanKind::ALL.into_iter().find(|k| k.name() == kind) else {
            return Err(raise(py, &Error::invalid(format!("there is no span kind {kind:?}"))));
        };
        self.0.record(Span { kind, array: u32::MAX, start_ns, end_ns: self.0.now_ns(), offset: 0, bytes: 0 });
        Ok(())
    }

    /// The names of the kinds, in the order of their numbers in `spans`.
    #[staticmethod]
    fn kinds() -> Vec<&'static str> {
        SpanKind::ALL.iter().map(|kind| kind.name()).collect()
    }

    /// A row (kind, array, start_ns, end_ns, offset, bytes) for each span.
    fn spans<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyArray2<u64>>> {
        let spans = self.0.spans();
        let flat: Vec<u64> = spans
            .iter()
            .flat_map(|s| [s.kind as u64, u64::from(s.array), s.start_ns, s.end_ns, s.offset, s.bytes])
            .collect();
        PyArray1::from_vec(py, flat).reshape([spans.len(), 6])
    }

    /// Nanoseconds in which the disk worked (overlaps count once), and in which the caller waited for it.
    fn totals(&self) -> (u64, u64) {
        let totals = self.0.totals();
        (totals.disk_ns, totals.wait_ns)
    }
}

/// One block of a stream: its memory, first index, shape, and strides in bytes.
type Block = (Buffer, Vec<u64>, Vec<u64>, Vec<i64>);

/// Blocks of an array in a known order, read ahead.
#[pyclass(frozen, module = "outcore._core")]
pub struct Stream(outcore_client::Stream);

#[pymethods]
impl Stream {
    #[new]
    #[pyo3(signature = (file, arena, memory_bytes, least_bytes = 0))]
    fn new(file: &ArrayFile, arena: &Arena, memory_bytes: usize, least_bytes: usize) -> Self {
        Self(outcore_client::Stream::new(file.0.clone(), arena.0.clone(), memory_bytes, least_bytes))
    }

    /// Appends blocks, each a pair (first index, shape), to the schedule.
    fn extend(&self, py: Python<'_>, boxes: Vec<(Vec<u64>, Vec<u64>)>) -> PyResult<()> {
        py.detach(|| self.0.extend(boxes)).or_raise(py)
    }

    /// Appends whole chunks, as they are on disk, given by their coordinates.
    fn extend_chunks(&self, py: Python<'_>, chunks: Vec<Vec<u64>>) -> PyResult<()> {
        py.detach(|| self.0.extend_chunks(chunks)).or_raise(py)
    }

    /// Number of blocks that the caller has not taken yet.
    fn remaining(&self) -> usize {
        self.0.remaining()
    }

    /// The next block: (buffer, first index, shape, strides in bytes).
    fn next(&self, py: Python<'_>) -> PyResult<Block> {
        loop {
            if let Some(block) = py.detach(|| self.0.next(SIGNAL_INTERVAL)).or_raise(py)? {
                let (start, count, strides) =
                    (block.start.clone(), block.count.clone(), block.strides.clone());
                let buffer = Buffer { block: block.block.clone(), _lease: Some(block) };
                return Ok((buffer, start, count, strides));
            }
            py.check_signals()?;
        }
    }
}
