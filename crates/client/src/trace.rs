//! The trace of a call: the time spans from which reports and timelines are made.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::Clock;

/// At this number of spans, neighbours are merged, so that a trace is bounded however long the call is.
const MAX_SPANS: usize = 1 << 17;

/// The use of a time span.
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
    /// Every kind, in the order of its declaration.
    pub const ALL: [Self; 5] = [Self::Read, Self::Write, Self::Sync, Self::Compute, Self::Wait];

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

    /// Whether this is work of the disk.
    const fn is_disk(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Sync)
    }
}

/// One span. Times are nanoseconds of the trace's clock; `offset` and `bytes` belong to the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The kind.
    pub kind: SpanKind,
    /// The array: the number of its file in this trace.
    pub array: u32,
    /// Start.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// First byte of the transfer in its shard file.
    pub offset: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// Sums over all spans ever recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Time in which the disk worked. Overlaps count once.
    pub disk_ns: u64,
    /// Time in which the caller waited for the disk.
    pub wait_ns: u64,
}

#[derive(Default)]
struct State {
    spans: Vec<Span>,
    totals: Totals,
    /// Disk time is counted up to here. Transfers are recorded when they end. If one started earlier, only
    /// the rest of its time counts.
    disk_until_ns: u64,
}

/// The spans of one long call. Clones share them.
#[derive(Clone)]
pub struct Trace {
    clock: Arc<dyn Clock>,
    state: Arc<Mutex<State>>,
}

impl Trace {
    /// An empty trace on `clock`.
    pub fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, state: Arc::default() }
    }

    /// The current time of the trace's clock.
    pub fn now_ns(&self) -> u64 {
        self.clock.now_ns()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a span.
    pub fn record(&self, span: Span) {
        self.record_all(std::iter::once(span));
    }

    /// Adds several spans.
    pub(crate) fn record_all(&self, spans: impl Iterator<Item = Span>) {
        let mut state = self.lock();
        for span in spans {
            if span.kind.is_disk() {
                let from = span.start_ns.max(state.disk_until_ns);
                state.totals.disk_ns += span.end_ns.saturating_sub(from);
                state.disk_until_ns = state.disk_until_ns.max(span.end_ns);
            } else if span.kind == SpanKind::Wait {
                state.totals.wait_ns += span.end_ns.saturating_sub(span.start_ns);
            }
            state.spans.push(span);
            if state.spans.len() >= MAX_SPANS {
                join_neighbours(&mut state.spans);
            }
        }
    }

    /// The spans, in the order of their ends. In a very long call, neighbours are merged.
    pub fn spans(&self) -> Vec<Span> {
        self.lock().spans.clone()
    }

    /// Sums over all spans.
    pub fn totals(&self) -> Totals {
        self.lock().totals
    }
}

/// Merges each span with the next of the same kind and array, so that about half of them remain.
fn join_neighbours(spans: &mut Vec<Span>) {
    let mut open = HashMap::new();
    let mut joined: Vec<Span> = Vec::with_capacity(spans.len() / 2 + SpanKind::ALL.len());
    for span in spans.iter() {
        let like = (span.kind as usize, span.array);
        match open.remove(&like) {
            None => {
                open.insert(like, joined.len());
                joined.push(*span);
            }
            Some(index) => {
                let first: &mut Span = &mut joined[index];
                first.start_ns = first.start_ns.min(span.start_ns);
                first.end_ns = first.end_ns.max(span.end_ns);
                first.bytes += span.bytes;
            }
        }
    }
    *spans = joined;
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Stopped;

    impl Clock for Stopped {
        fn now_ns(&self) -> u64 {
            0
        }
    }

    fn span(kind: SpanKind, start_ns: u64, end_ns: u64) -> Span {
        Span { kind, array: 0, start_ns, end_ns, offset: 0, bytes: 1 }
    }

    #[test]
    fn overlapping_disk_time_counts_once_and_waits_add_up() {
        let trace = Trace::new(Arc::new(Stopped));
        for (kind, start, end) in [
            (SpanKind::Read, 0, 10),
            (SpanKind::Write, 5, 12),
            (SpanKind::Compute, 0, 100),
            (SpanKind::Wait, 8, 12),
            (SpanKind::Read, 20, 30),
            (SpanKind::Wait, 25, 30),
        ] {
            trace.record(span(kind, start, end));
        }
        assert_eq!(trace.totals(), Totals { disk_ns: 22, wait_ns: 9 });
        assert_eq!(trace.spans().len(), 6);
    }

    #[test]
    fn a_long_trace_stays_small_and_loses_no_bytes_or_time() {
        let trace = Trace::new(Arc::new(Stopped));
        let many = MAX_SPANS as u64 * 5;
        for i in 0..many {
            let kind = if i % 3 == 0 { SpanKind::Wait } else { SpanKind::Read };
            trace.record(span(kind, i * 10, i * 10 + 10));
        }
        let spans = trace.spans();
        assert!(spans.len() < MAX_SPANS);
        assert_eq!(spans.iter().map(|s| s.bytes).sum::<u64>(), many);
        assert_eq!(spans.iter().map(|s| s.end_ns).max(), Some(many * 10));
        assert_eq!(spans.iter().map(|s| s.start_ns).min(), Some(0));
        let totals = trace.totals();
        assert_eq!(totals.disk_ns + totals.wait_ns, many * 10);
    }

    #[test]
    fn spans_of_two_arrays_are_not_joined() {
        let trace = Trace::new(Arc::new(Stopped));
        let many = MAX_SPANS as u64 * 2;
        for i in 0..many {
            let (array, bytes) = if i % 4 == 0 { (1, 7) } else { (2, 1) };
            trace.record(Span { array, bytes, ..span(SpanKind::Read, i, i + 1) });
        }
        let spans = trace.spans();
        let bytes_of = |array| spans.iter().filter(|s| s.array == array).map(|s| s.bytes).sum::<u64>();
        assert!(spans.len() < MAX_SPANS);
        assert_eq!((bytes_of(1), bytes_of(2)), (many / 4 * 7, many * 3 / 4));
    }
}
