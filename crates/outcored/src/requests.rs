//! Counts of requests: kind, outcome, latency, and the number in progress.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outcore_core::{Error, IoRequest, ManagerRequest};

use crate::exposition::Page;

/// Upper bounds of a histogram's buckets in seconds, as numbers and as text.
const BOUNDS_S: [(f64, &str); 14] = [
    (0.0001, "0.0001"),
    (0.0003, "0.0003"),
    (0.001, "0.001"),
    (0.003, "0.003"),
    (0.01, "0.01"),
    (0.03, "0.03"),
    (0.1, "0.1"),
    (0.3, "0.3"),
    (1.0, "1"),
    (3.0, "3"),
    (10.0, "10"),
    (30.0, "30"),
    (100.0, "100"),
    (f64::INFINITY, "+Inf"),
];

/// The outcome of a successful request.
const DONE: &str = "ok";

#[derive(Debug, Default)]
struct Latency {
    buckets: [u64; BOUNDS_S.len()],
    sum: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    outcomes: BTreeMap<(&'static str, &'static str), u64>,
    latencies: BTreeMap<&'static str, Latency>,
    in_work: u64,
    bytes_in: u64,
    bytes_out: u64,
}

/// The counts of a server's requests.
#[derive(Debug, Default)]
pub(crate) struct Requests(Mutex<Counts>);

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Begun {
    kind: &'static str,
    at: Instant,
}

impl Requests {
    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, kind: &'static str) -> Begun {
        self.lock().in_work += 1;
        Begun { kind, at: Instant::now() }
    }

    /// Counts the end of a request. `bytes_in` and `bytes_out` of payload count if there is no error.
    pub(crate) fn end(&self, begun: &Begun, error: Option<&Error>, bytes_in: u64, bytes_out: u64) {
        let took = begun.at.elapsed();
        let mut counts = self.lock();
        counts.in_work -= 1;
        let outcome = error.map_or(DONE, |error| error.kind.name());
        *counts.outcomes.entry((begun.kind, outcome)).or_default() += 1;
        if error.is_none() {
            counts.bytes_in += bytes_in;
            counts.bytes_out += bytes_out;
        }
        let latency = counts.latencies.entry(begun.kind).or_default();
        latency.sum += took;
        let bucket = BOUNDS_S.iter().position(|(bound, _)| took.as_secs_f64() <= *bound);
        latency.buckets[bucket.unwrap_or(BOUNDS_S.len() - 1)] += 1;
    }

    pub(crate) fn describe(&self, page: &mut Page) {
        let counts = self.lock();
        let name = "outcore_requests_total";
        page.metric(name, "counter", "Requests answered, by kind, and ok or the kind of error.");
        for ((kind, outcome), count) in &counts.outcomes {
            page.value(name, &[("kind", kind), ("outcome", outcome)], count);
        }
        let name = "outcore_request_seconds";
        page.metric(name, "histogram", "Time from when a request had come in to its answer.");
        for (kind, latency) in &counts.latencies {
            let mut total = 0;
            for (count, (_, bound)) in latency.buckets.iter().zip(BOUNDS_S) {
                total += count;
                page.value(&format!("{name}_bucket"), &[("kind", kind), ("le", bound)], total);
            }
            page.value(&format!("{name}_sum"), &[("kind", kind)], latency.sum.as_secs_f64());
            page.value(&format!("{name}_count"), &[("kind", kind)], total);
        }
        page.single("outcore_requests_in_work", "gauge", "Requests that have no answer yet.", counts.in_work);
        let name = "outcore_payload_bytes_total";
        page.metric(name, "counter", "Bytes of files written (in) and read (out).");
        page.value(name, &[("direction", "in")], counts.bytes_in);
        page.value(name, &[("direction", "out")], counts.bytes_out);
    }
}

/// The name of a request to an I/O server.
pub(crate) fn kind_of_io(request: &IoRequest) -> &'static str {
    match request {
        IoRequest::Read { .. } => "read",
        IoRequest::Write { .. } => "write",
        IoRequest::Sync { .. } => "sync",
        IoRequest::Length { .. } => "length",
        IoRequest::SetLength { .. } => "set_length",
        IoRequest::Reserve { .. } => "reserve",
        IoRequest::Remove { .. } => "remove",
        IoRequest::Status => "status",
        IoRequest::Scrub { .. } => "scrub",
        IoRequest::DataFiles { .. } => "data_files",
        IoRequest::Inspect { .. } => "inspect",
        IoRequest::Cut { .. } => "cut",
        IoRequest::Lengths { .. } => "lengths",
        IoRequest::Join { .. } => "join",
        IoRequest::Await { .. } => "await",
        IoRequest::Give { .. } => "give",
        IoRequest::Take { .. } => "take",
        IoRequest::Abandon { .. } => "abandon",
    }
}

/// The name of a request to the manager.
pub(crate) fn kind_of_manager(request: &ManagerRequest) -> &'static str {
    match request {
        ManagerRequest::Servers => "servers",
        ManagerRequest::Open { .. } => "open",
        ManagerRequest::Create { .. } => "create",
        ManagerRequest::Renew { .. } => "renew",
        ManagerRequest::Time => "time",
        ManagerRequest::Wrote { .. } => "wrote",
        ManagerRequest::Touch { .. } => "touch",
        ManagerRequest::Stat { .. } => "stat",
        ManagerRequest::List { .. } => "list",
        ManagerRequest::MakeDirectory { .. } => "make_directory",
        ManagerRequest::MakeLink { .. } => "make_link",
        ManagerRequest::Remove { .. } => "remove",
        ManagerRequest::Orphans { .. } => "orphans",
        ManagerRequest::Rename { .. } => "rename",
        ManagerRequest::Move { .. } => "move",
        ManagerRequest::Replace { .. } => "replace",
        ManagerRequest::SetAttributes { .. } => "set_attributes",
        ManagerRequest::SetDefaultLayout { .. } => "set_default_layout",
        ManagerRequest::GetExtended { .. } => "get_extended",
        ManagerRequest::SetExtended { .. } => "set_extended",
        ManagerRequest::AddServer { .. } => "add_server",
        ManagerRequest::NewServer => "new_server",
        ManagerRequest::Retire { .. } => "retire",
        ManagerRequest::Files { .. } => "files",
        ManagerRequest::Know { .. } => "know",
        ManagerRequest::Paths { .. } => "paths",
        ManagerRequest::Check { .. } => "check",
        ManagerRequest::Look { .. } => "look",
        ManagerRequest::BeginCut { .. } => "begin_cut",
        ManagerRequest::EndCut { .. } => "end_cut",
        ManagerRequest::Describe { .. } => "describe",
        ManagerRequest::RenewLease { .. } => "renew_lease",
        ManagerRequest::EndLease { .. } => "end_lease",
        ManagerRequest::SetLock { .. } => "set_lock",
        ManagerRequest::TestLock { .. } => "test_lock",
        ManagerRequest::Find { .. } => "find",
        ManagerRequest::Mend { .. } => "mend",
    }
}
