//! Write-behind: small writes to a file are gathered here until a large request carries them to the servers.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use outcore_client::Ticket;
use outcore_core::{Buffer, Error, FileId, Gather, Operation, Result};
use outcore_memory::Region;

use crate::Client;
use crate::gathered::Gathered;
use crate::new_files::NewFile;

/// Bytes of gathered writes that go to the servers in one request. Longer writes are not gathered.
pub(crate) const REQUEST_BYTES: usize = 1 << 20;
/// Runs of gathered writes in one request, at most.
const REQUEST_RUNS: usize = 1024;
/// Files with gathered writes at the same time, at most. Each has up to two requests in memory.
const MOST_FILES: usize = 64;

/// Counts the users of a limited amount of memory.
#[derive(Clone, Default)]
pub(crate) struct Slots(Arc<AtomicUsize>);

/// A part of that memory, until it is dropped.
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Slots {
    /// A slot, if fewer than the maximum number are in use.
    pub fn take(&self) -> Option<Slot> {
        let before = self.0.fetch_add(1, Ordering::AcqRel);
        let slot = Slot(self.0.clone());
        (before < MOST_FILES).then_some(slot)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

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
    gathered: Gathered,
    /// The first of the gathered writes, and an open file to send them through.
    begun: Option<(Instant, FileId)>,
    /// The previous request, which the servers have not answered yet.
    sending: Option<Ticket>,
    slot: Option<Slot>,
    /// Number of requests that failed. Shared, so that it can be read while somebody waits for a server.
    failures: Arc<AtomicU64>,
    error: Option<Error>,
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

    /// Gathers a small write to `file`. Returns `false` if there is no memory for it: then the caller must settle and
    /// write. `began` is called when nothing was pending before.
    pub fn gather(
        &self,
        client: &Client,
        slots: &Slots,
        file: FileId,
        (offset, data): (u64, &[u8]),
        began: impl FnOnce(),
    ) -> bool {
        let mut pending = self.pending();
        if pending.slot.is_none() {
            pending.slot = slots.take();
            if pending.slot.is_none() {
                return false;
            }
            began();
        }
        if pending.gathered.bytes() + data.len() > REQUEST_BYTES {
            pending.wait();
            pending.send(client);
        }
        pending.gathered.add(offset, data);
        pending.begun.get_or_insert((Instant::now(), file));
        self.end.fetch_max(offset + data.len() as u64, Ordering::AcqRel);
        // Last: a reader who sees this version must also see that there is something to settle.
        self.changes();
        if pending.gathered.bytes() >= REQUEST_BYTES || pending.gathered.runs() >= REQUEST_RUNS {
            pending.wait();
            pending.send(client);
        }
        true
    }

    /// Returns once the servers have answered all gathered writes.
    pub fn settle(&self, client: &Client) {
        if self.pending_end() == 0 {
            return;
        }
        let mut pending = self.pending();
        pending.wait();
        pending.send(client);
        pending.wait();
        self.settled(&mut pending);
    }

    /// Sends writes that were gathered `age` ago, and waits for nothing. Returns whether some are still pending.
    pub fn send_older(&self, client: &Client, age: Duration) -> bool {
        let mut pending = match self.pending.try_lock() {
            Ok(pending) => pending,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // Somebody sends them now.
            Err(TryLockError::WouldBlock) => return true,
        };
        if pending.sending.as_ref().is_some_and(Ticket::is_done) {
            pending.wait();
        }
        if pending.sending.is_none() && pending.begun.is_some_and(|(begun, _)| begun.elapsed() >= age) {
            pending.send(client);
        }
        self.settled(&mut pending);
        pending.slot.is_some()
    }

    fn settled(&self, pending: &mut Pending) {
        if pending.begun.is_none() && pending.sending.is_none() {
            pending.slot = None;
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
    /// Waits for the previous request.
    fn wait(&mut self) {
        if let Some(sending) = self.sending.take() {
            self.ended(sending.finish());
        }
    }

    fn ended(&mut self, result: Result<()>) {
        if let Err(error) = result {
            self.error = Some(error);
            self.failures.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Sends the gathered writes. The previous request must have ended: it may concern the same bytes.
    fn send(&mut self, client: &Client) {
        let Some((_, file)) = self.begun.take() else { return };
        let sending = self.gathered.take().and_then(|(regions, runs)| {
            let mut buffer = Region::allocate(regions.total_bytes() as usize)?;
            let mut at = 0;
            for run in runs {
                buffer.copy_in(at, &run);
                at += run.len();
            }
            Ok(client.submit_regions(file, Operation::Write, regions, buffer))
        });
        match sending {
            Ok(ticket) => self.sending = Some(ticket),
            Err(error) => self.ended(Err(error)),
        }
    }
}
