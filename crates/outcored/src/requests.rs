//! Counts of requests: kind, outcome, latency, and the number in progress. Requests that succeed take no lock.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use outcore_core::{Error, IoRequest, ManagerRequest};

use crate::exposition::Page;
use crate::histogram::Histogram;

/// The outcome of a successful request.
const DONE: &str = "ok";

/// The counts of one kind of requests.
#[derive(Debug, Default)]
struct OfKind {
    done: AtomicU64,
    latency: Histogram,
}

/// The counts of a server's requests.
#[derive(Debug)]
pub(crate) struct Requests {
    names: &'static [&'static str],
    kinds: Vec<OfKind>,
    /// Number of failed requests, by kind and kind of error.
    failed: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    in_work: AtomicU64,
    bytes_in: AtomicU64,
    bytes_out: AtomicU64,
}

/// A request in progress.
#[derive(Debug)]
pub(crate) struct Begun {
    kind: usize,
    at: Instant,
}

impl Requests {
    /// No requests of the kinds with these names.
    pub(crate) fn new(names: &'static [&'static str]) -> Self {
        Self {
            names,
            kinds: names.iter().map(|_| OfKind::default()).collect(),
            failed: Mutex::default(),
            in_work: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
        }
    }

    /// Counts the begin of a request, given the place of its kind among the names.
    pub(crate) fn begin(&self, kind: usize) -> Begun {
        self.in_work.fetch_add(1, Ordering::Relaxed);
        Begun { kind, at: Instant::now() }
    }

    /// Counts the end of a request. `bytes_in` and `bytes_out` of payload count if there is no error.
    pub(crate) fn end(&self, begun: &Begun, error: Option<&Error>, bytes_in: u64, bytes_out: u64) {
        let of_kind = &self.kinds[begun.kind];
        of_kind.latency.add(begun.at.elapsed());
        self.in_work.fetch_sub(1, Ordering::Relaxed);
        match error {
            None => {
                of_kind.done.fetch_add(1, Ordering::Relaxed);
                self.bytes_in.fetch_add(bytes_in, Ordering::Relaxed);
                self.bytes_out.fetch_add(bytes_out, Ordering::Relaxed);
            }
            Some(error) => {
                let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
                *failed.entry((self.names[begun.kind], error.kind.name())).or_default() += 1;
            }
        }
    }

    pub(crate) fn describe(&self, page: &mut Page) {
        let each = || self.names.iter().zip(&self.kinds);
        let name = "outcore_requests_total";
        page.metric(name, "counter", "Requests answered, by kind, and ok or the kind of error.");
        for (kind, of_kind) in each() {
            let done = of_kind.done.load(Ordering::Relaxed);
            if done > 0 {
                page.value(name, &[("kind", kind), ("outcome", DONE)], done);
            }
        }
        for ((kind, outcome), count) in &*self.failed.lock().unwrap_or_else(PoisonError::into_inner) {
            page.value(name, &[("kind", kind), ("outcome", outcome)], count);
        }
        let name = "outcore_request_seconds";
        page.metric(name, "histogram", "Time from when a request had come in to its answer.");
        for (kind, of_kind) in each().filter(|(_, of_kind)| of_kind.latency.count() > 0) {
            of_kind.latency.describe(page, name, ("kind", kind));
        }
        let in_work = self.in_work.load(Ordering::Relaxed);
        page.single("outcore_requests_in_work", "gauge", "Requests that have no answer yet.", in_work);
        let name = "outcore_payload_bytes_total";
        page.metric(name, "counter", "Bytes of files written (in) and read (out).");
        page.value(name, &[("direction", "in")], self.bytes_in.load(Ordering::Relaxed));
        page.value(name, &[("direction", "out")], self.bytes_out.load(Ordering::Relaxed));
    }
}

/// Numbers the variants of requests: their names in order, and the place of a request's name.
macro_rules! kinds {
    ($names:ident, $place:ident, $request:ident: $($variant:ident $name:literal)*) => {
        #[doc = concat!("Names of the kinds of `", stringify!($request), "`.")]
        pub(crate) const $names: &[&str] = &[$($name),*];

        #[doc = concat!("The place of the name of a request in [`", stringify!($names), "`].")]
        pub(crate) fn $place(request: &$request) -> usize {
            enum Place {
                $($variant),*
            }
            match request {
                $($request::$variant { .. } => Place::$variant as usize),*
            }
        }
    };
}

kinds! { IO_KINDS, kind_of_io, IoRequest:
    Read "read"
    Write "write"
    Sync "sync"
    Length "length"
    SetLength "set_length"
    Reserve "reserve"
    Remove "remove"
    Status "status"
    Scrub "scrub"
    DataFiles "data_files"
    Inspect "inspect"
    Cut "cut"
    Lengths "lengths"
    Join "join"
    Await "await"
    Give "give"
    Take "take"
    Abandon "abandon"
    Metrics "metrics"
    Spans "spans"
}

kinds! { MANAGER_KINDS, kind_of_manager, ManagerRequest:
    Servers "servers"
    Open "open"
    Create "create"
    Renew "renew"
    Time "time"
    Wrote "wrote"
    Touch "touch"
    Stat "stat"
    List "list"
    MakeDirectory "make_directory"
    MakeLink "make_link"
    Remove "remove"
    Orphans "orphans"
    Rename "rename"
    Move "move"
    Replace "replace"
    SetAttributes "set_attributes"
    SetDefaultLayout "set_default_layout"
    GetExtended "get_extended"
    SetExtended "set_extended"
    AddServer "add_server"
    NewServer "new_server"
    Retire "retire"
    Files "files"
    Know "know"
    Paths "paths"
    Check "check"
    Look "look"
    BeginCut "begin_cut"
    EndCut "end_cut"
    Describe "describe"
    RenewLease "renew_lease"
    EndLease "end_lease"
    SetLock "set_lock"
    TestLock "test_lock"
    Find "find"
    Mend "mend"
}
