//! The last transfers of an I/O server, for traces, and a disk that records its own.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use outcore_core::{
    Alignment, Clock, Completion, Disk, DiskSize, Due, FileId, OnDone, OpenMode, Operation, Request, Result,
    ServerSpan, ServerSpans,
};
use outcore_disk::{LocalDisk, MonotonicClock, clocks};
use outcore_memory::Region;

use crate::exposition::Page;
use crate::histogram::Histogram;
use crate::requests::IO_KINDS;

/// Spans that a server keeps: 1.3 MB.
const MOST_SPANS: usize = 1 << 15;

/// Operations of the disk, whose spans have the first names. Those of requests follow.
const OPERATIONS: [&str; 3] = ["disk_read", "disk_write", "disk_sync"];

/// The last spans, and the latencies of the disk.
#[derive(Debug)]
pub(crate) struct Recorder {
    kept: Mutex<Kept>,
    latencies: [Histogram; OPERATIONS.len()],
}

#[derive(Debug)]
struct Kept {
    spans: VecDeque<ServerSpan>,
    /// End of the latest span that was dropped, or the start of the recorder.
    complete_after_ns: u64,
}

impl Recorder {
    pub(crate) fn new() -> Self {
        let kept = Kept { spans: VecDeque::new(), complete_after_ns: MonotonicClock.now_ns() };
        Self { kept: Mutex::new(kept), latencies: Default::default() }
    }

    fn add(&self, span: ServerSpan) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.spans.len() == MOST_SPANS
            && let Some(oldest) = kept.spans.pop_front()
        {
            kept.complete_after_ns = kept.complete_after_ns.max(oldest.end_ns);
        }
        kept.spans.push_back(span);
    }

    /// Records an answered request, given the place of its kind in [`IO_KINDS`].
    pub(crate) fn request(&self, kind: usize, (start_ns, end_ns): (u64, u64), bytes: u64) {
        let name = (OPERATIONS.len() + kind) as u8;
        self.add(ServerSpan { name, start_ns, end_ns, offset: 0, bytes });
    }

    fn transfer(&self, operation: Operation, offset: u64, completion: &Completion<Region>) {
        let name = match operation {
            Operation::Read => 0,
            Operation::Write => 1,
            Operation::Sync => 2,
        };
        let (start_ns, end_ns) = (completion.started_ns, completion.finished_ns);
        self.latencies[usize::from(name)].add(Duration::from_nanos(end_ns.saturating_sub(start_ns)));
        let bytes = completion.result.as_ref().map_or(0, |moved| *moved as u64);
        self.add(ServerSpan { name, start_ns, end_ns, offset, bytes });
    }

    /// The kept spans.
    pub(crate) fn spans(&self) -> ServerSpans {
        let kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let spans = kept.spans.iter().copied().collect();
        let complete_after_ns = kept.complete_after_ns;
        drop(kept);
        let (now_ns, unix_ns) = clocks();
        ServerSpans {
            now_ns,
            unix_ns,
            complete_after_ns,
            names: OPERATIONS.iter().chain(IO_KINDS).map(ToString::to_string).collect(),
            spans,
        }
    }

    pub(crate) fn describe(&self, page: &mut Page) {
        let name = "outcore_disk_seconds";
        page.metric(name, "histogram", "Time of one operation of the disk, without its wait in the queue.");
        for (operation, latency) in OPERATIONS.iter().zip(&self.latencies) {
            let operation = operation.trim_start_matches("disk_");
            latency.describe(page, name, ("operation", operation));
        }
    }
}

/// A disk that records each transfer.
pub(crate) struct WatchedDisk {
    pub(crate) disk: LocalDisk,
    pub(crate) recorder: Arc<Recorder>,
}

impl WatchedDisk {
    fn watched(&self, request: &Request<Region>, done: OnDone<Region>) -> OnDone<Region> {
        let (operation, offset, recorder) = (request.operation, request.offset, self.recorder.clone());
        Box::new(move |completion| {
            recorder.transfer(operation, offset, &completion);
            done(completion);
        })
    }
}

impl Disk for WatchedDisk {
    type Buffer = Region;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        self.disk.open(path, mode)
    }

    fn close(&self, file: FileId) {
        self.disk.close(file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        self.disk.length(file)
    }

    fn submit(&self, request: Request<Region>, done: OnDone<Region>) {
        let done = self.watched(&request, done);
        self.disk.submit(request, done);
    }

    fn submit_all(&self, requests: Vec<Due<Region>>) {
        let watched = |(request, done)| {
            let done = self.watched(&request, done);
            (request, done)
        };
        self.disk.submit_all(requests.into_iter().map(watched).collect());
    }

    fn alignment(&self, file: FileId) -> Alignment {
        self.disk.alignment(file)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.disk.free_bytes()
    }

    fn size(&self) -> Result<DiskSize> {
        self.disk.size()
    }

    fn allocated_bytes(&self, file: FileId) -> Result<u64> {
        self.disk.allocated_bytes(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_spans_are_kept_and_the_reply_says_since_when() {
        let recorder = Recorder::new();
        let begin = recorder.spans().complete_after_ns;
        for i in 1..=MOST_SPANS as u64 {
            recorder.request(0, (begin + i, begin + i), 7);
        }
        let all = recorder.spans();
        assert_eq!((all.spans.len(), all.complete_after_ns), (MOST_SPANS, begin));
        recorder.request(1, (begin, u64::MAX), 7);
        let later = recorder.spans();
        assert_eq!(
            (later.spans.len(), later.complete_after_ns),
            (MOST_SPANS, begin + 1),
            "the oldest one is gone"
        );
        let names =
            [later.spans[0], later.spans[MOST_SPANS - 1]].map(|s| later.names[usize::from(s.name)].as_str());
        assert_eq!(names, ["read", "write"]);
    }
}
