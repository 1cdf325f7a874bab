//! The metrics of an I/O server: its queues, repairs, collectives and disk.

use std::sync::mpsc::channel;
use std::sync::{Arc, Weak};
use std::time::Duration;

use outcore_core::{IoReply, IoRequest, IoStatus};
use outcore_memory::Region;
use outcore_server::io_server::{CollectiveState, Queues, Runner, ServerState};

use crate::exposition::Page;
use crate::metrics::{Metrics, describe_queues};
use crate::recorder::{Recorder, WatchedDisk};

/// Time limit for the server's status and state.
const PATIENCE: Duration = Duration::from_secs(2);

/// The status of a server; `None` if it does not answer in time.
pub(crate) fn status_of(runner: &Runner<WatchedDisk>) -> Option<IoStatus> {
    let (sender, receiver) = channel();
    runner.call(IoRequest::Status, Region::empty(), Box::new(move |answer| drop(sender.send(answer.reply))));
    match receiver.recv_timeout(PATIENCE) {
        Ok(IoReply::Status(status)) => Some(status),
        _ => None,
    }
}

/// The state of a server; `None` if it does not answer in time.
fn state_of(runner: &Runner<WatchedDisk>) -> Option<ServerState> {
    let (sender, receiver) = channel();
    runner.look(move |state| drop(sender.send(state)));
    receiver.recv_timeout(PATIENCE).ok()
}

/// The metrics of an I/O server.
pub(crate) struct IoMetrics {
    pub(crate) common: Metrics,
    pub(crate) runner: Weak<Runner<WatchedDisk>>,
    pub(crate) recorder: Arc<Recorder>,
}

impl IoMetrics {
    /// The page. Metrics of the server's thread and disk are on it only if they answer in time. Prometheus would keep
    /// each collective for ever, so only the pool's own page gets them.
    pub(crate) fn text(&self, with_collectives: bool) -> String {
        let mut page = self.common.page();
        self.recorder.describe(&mut page);
        let Some(runner) = self.runner.upgrade() else { return page.into_text() };
        let help = "Reads and writes of a part of a block of a data file.";
        page.single("outcore_unaligned_requests_total", "counter", help, runner.unaligned());
        if let Some(state) = state_of(&runner) {
            describe_state(&mut page, &state);
            if with_collectives {
                describe_collectives(&mut page, &state.collectives);
            }
        }
        if let Some(status) = status_of(&runner) {
            describe_disk(&mut page, &status);
        }
        page.into_text()
    }
}

fn describe_state(page: &mut Page, state: &ServerState) {
    let Queues { calls, pieces, disk, names } = state.queues;
    describe_queues(page, &[("calls", calls), ("pieces", pieces), ("disk", disk), ("names", names)]);
    let repair = state.repair;
    for (name, value, help) in [
        (
            "outcore_damaged_blocks",
            repair.damaged_blocks,
            "Blocks with a wrong checksum that nobody has overwritten since.",
        ),
        ("outcore_repaired_blocks_total", repair.repaired_blocks, "Damaged blocks that a write replaced."),
        ("outcore_lost_files", repair.lost_files, "Files of which the disk may have lost writes."),
        (
            "outcore_log_noted_files",
            repair.noted_files,
            "Files with regions to examine if the server crashed now.",
        ),
        (
            "outcore_scrubbed_bytes_total",
            repair.scrubbed_bytes,
            "Bytes that scrubs compared with their checksums.",
        ),
        ("outcore_scrubs_total", repair.scrubs, "Scrubs that reached the last file."),
        ("outcore_collectives", state.collectives.len() as u64, "Collectives in flight."),
    ] {
        let kind = if name.ends_with("_total") { "counter" } else { "gauge" };
        page.single(name, kind, help, value);
    }
}

fn describe_collectives(page: &mut Page, collectives: &[CollectiveState]) {
    let name = "outcore_collective_progress";
    page.metric(name, "gauge", "The part of the rounds that have begun; 1 when all data are transferred.");
    for each in collectives {
        let (id, handle) = (format!("{:032x}", each.id), each.handle.0.to_string());
        let (ranks, joined) = (each.ranks.to_string(), each.joined.to_string());
        let progress = if each.is_done { 1.0 } else { each.begun as f64 / each.rounds.max(1) as f64 };
        let labels = [
            ("collective", id.as_str()),
            ("handle", &handle),
            ("verb", if each.is_write { "write" } else { "read" }),
            ("ranks", &ranks),
            ("joined", &joined),
        ];
        page.value(name, &labels, progress.min(1.0));
    }
}

fn describe_disk(page: &mut Page, status: &IoStatus) {
    page.single("outcore_disk_free_bytes", "gauge", "Bytes that can still be written.", status.free_bytes);
    let help = "Bytes that the server read from the memory of processes on its machine, without a socket.";
    page.single("outcore_direct_bytes_total", "counter", help, status.direct_bytes);
    let help = "Blocks whose checksum was found wrong.";
    page.single("outcore_damaged_blocks_total", "counter", help, status.damaged_blocks);
    let help =
        "Files whose checksums the server checked again because they were being written when it ended.";
    page.single("outcore_log_replayed_files", "gauge", help, status.noted_files);
    let help = "1 if the disk takes writes; 0 if it is too full for the log, or read-only.";
    page.single("outcore_writable", "gauge", help, u8::from(status.is_writable));
}
