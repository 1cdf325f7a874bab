//! What was done when: the spans that reports and timelines are made from.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::Clock;

/// Spans beyond this are counted, not kept.
const MAX_SPANS: usize = 1 << 20;

/// What a span of time was spent on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpanKind {
    /// The disk read.
    Read,
    /// The disk wrote.
    Write,
    /// The disk made writes durable.
    Sync,
    /// Arithmetic.
    Compute,
    /// The caller waited for the disk.
    Wait,
}

impl SpanKind {
    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Compute => "compute",
            Self::Wait => "wait",
        }
    }
}

/// One span. Times are nanoseconds of the trace's clock; `offset` and `bytes` are those of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// What.
    pub kind: SpanKind,
    /// Which array: the number its file was given when it joined the trace.
    pub array: u32,
    /// From.
    pub start_ns: u64,
    /// To.
    pub end_ns: u64,
    /// First byte in its shard file.
    pub offset: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Spans of one long call. Cloning shares it.
#[derive(Clone)]
pub struct Trace {
    clock: Arc<dyn Clock>,
    spans: Arc<Mutex<(Vec<Span>, u64)>>,
}

impl Trace {
    /// An empty trace on `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, spans: Arc::default() }
    }

    /// Now, on the trace's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Span>, u64)> {
        self.spans.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a span.
    pub fn record(&self, span: Span) {
        let mut spans = self.lock();
        if spans.0.len() < MAX_SPANS {
            spans.0.push(span);
        } else {
            spans.1 += 1;
        }
    }

    /// The spans so far, in the order of their ends, and how many more were not kept.
    pub fn spans(&self) -> (Vec<Span>, u64) {
        self.lock().clone()
    }
}
