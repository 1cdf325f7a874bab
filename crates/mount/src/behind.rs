//! Write-behind: writes to a file are gathered here until large requests carry them to the servers.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use outcore_client::Ticket;
use outcore_core::{Error, FileId, Operation, Result};

use crate::Client;
use crate::buffers::{Lender, Lent};
use crate::gathered::{Extents, Gathered};
use crate::new_files::NewFile;

/// Requests of a file that the servers have not answered yet, at most.
const MOST_SENDING: usize = 4;

/// The bytes of a file that is open in this mount, as all its descriptors see them.
pub(crate) struct Body {
    pending: Mutex<Pending>,
    /// End of the writes that have not reached the servers yet, in bytes; 0 if there are none.
    end: AtomicU64,
    /// Increases with each change of the bytes through this mount.
    version: AtomicU64,
    /// The count of its pending writes.
    failures: Arc<AtomicU64>,
    /// Held while bytes are appended.
    pub appending: Mutex<()>,
    /// Its attributes, if this mount has created it.
    pub new: NewFile,
}

impl Default for Body {
    fn default() -> Self {
        let pending = Pending::default();
        let failures = pending.failures.clone();
        let (end, version) = (AtomicU64::new(0), AtomicU64::new(0));
        let (appending, new) = (Mutex::default(), NewFile::default());
        Self { pending: Mutex::new(pending), end, version, failures, appending, new }
    }
}

#[derive(Default)]
struct Pending {
    gathered: Option<Gathered>,
    /// The first of the gathered writes, and an open file to send them through.
    begun: Option<(Instant, FileId)>,
    /// Requests that the servers may not have answered yet. They concern different bytes.
    sending: VecDeque<Sending>,
    /// Number of requests that failed. Shared, so that it can be read while somebody waits for a server.
    failures: Arc<AtomicU64>,
    error: Option<Error>,
}

struct Sending {
    ticket: Ticket,
    memory: Lent,
    extents: Extents,
}

impl Body {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of changes so far.
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Records that the bytes change.
    pub fn changes(&self) {
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// End of the writes that have not reached the servers yet, in bytes; 0 if there are none.
    pub fn pending_end(&self) -> u64 {
        self.end.load(Ordering::Acquire)
    }

    /// Gathers a write to `file`. Returns `false` if there is no memory for it: then the caller must settle and write
    /// all of it. `began` is called when nothing was pending before.
    pub fn gather(
        &self,
        client: &Client,
        memory: &Arc<Lender>,
        file: FileId,
        (offset, data): (u64, &[u8]),
        began: impl FnOnce(),
    ) -> bool {
        let mut pending = self.pending();
        if pending.is_settled() {
            began();
        }
        self.end.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
        let mut done = 0;
        while done < data.len() {
            let Some(gathered) = pending.gathered(memory) else { return false };
            done += gathered.add(offset + done as u64, &data[done..]);
            let is_full = gathered.is_full();
            pending.begun.get_or_insert((Instant::now(), file));
            if is_full {
                pending.send(client);
            }
        }
        // Last: a reader who sees this version must also see that there is something to settle.
        self.changes();
        true
    }

    /// Returns once the servers have answered all gathered writes.
    pub fn settle(&self, client: &Client) {
        if self.pending_end() == 0 {
            return;
        }
        let mut pending = self.pending();
        pending.send(client);
        while pending.wait() {}
        self.settled(&pending);
    }

    /// Sends writes that were gathered `age` ago, and waits for nothing. Returns whether some are still pending.
    pub fn send_older(&self, client: &Client, age: Duration) -> bool {
        let mut pending = match self.pending.try_lock() {
            Ok(pending) => pending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody sends them now.
            Err(TryLockError::WouldBlock) => return true,
        };
        while pending.sending.front().is_some_and(|first| first.ticket.is_done()) {
            pending.wait();
        }
        if pending.sending.is_empty() && pending.begun.is_some_and(|(begun, _)| begun.elapsed() >= age) {
            pending.send(client);
        }
        self.settled(&pending);
        !pending.is_settled()
    }

    fn settled(&self, pending: &Pending) {
        if pending.is_settled() {
            self.end.store(0, Ordering::Release);
        }
    }

    /// The number of failed requests. Does not wait.
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Acquire)
    }

    /// The last error, unless a descriptor has `reported` it.
    pub fn report(&self, reported: &AtomicU64) -> Result<()> {
        let pending = self.pending();
        let failures = self.failures();
        let is_new = reported.fetch_max(failures, Ordering::AcqRel) < failures;
        pending.error.clone().filter(|_| is_new).map_or(Ok(()), Err)
    }
}

impl Pending {
    fn is_settled(&self) -> bool {
        self.begun.is_none() && self.sending.is_empty()
    }

    /// Waits for the oldest request. Returns whether there is one.
    fn wait(&mut self) -> bool {
        let Some(Sending { ticket, mut memory, .. }) = self.sending.pop_front() else { return false };
        self.ended(ticket.finish());
        memory.give_back();
        true
    }

    fn ended(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.error = Some(error);
            self.failures.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The gathered writes, unless there is no memory for any.
    fn gathered(&mut self, memory: &Arc<Lender>) -> Option<&mut Gathered> {
        while self.gathered.is_none() {
            if self.sending.len() < MOST_SENDING
                && let Some(memory) = memory.lend()
            {
                self.gathered = Some(Gathered::new(memory));
            } else if !self.wait() {
                return None;
            }
        }
        self.gathered.as_mut()
    }

    /// Sends the gathered writes, after earlier requests for the same bytes.
    fn send(&mut self, client: &Client) {
        let (Some((_, file)), Some(gathered)) = (self.begun.take(), self.gathered.take()) else { return };
        let request = match gathered.request() {
            Ok(request) => request,
            Err(error) => return self.ended(Err(error)),
        };
        while self.sending.iter().any(|earlier| earlier.extents.overlap(&request.extents)) {
            self.wait();
        }
        let ticket = client.submit_regions(file, Operation::Write, request.regions, request.bytes);
        let (memory, extents) = (gathered.into_memory(), request.extents);
        self.sending.push_back(Sending { ticket, memory, extents });
    }
}
