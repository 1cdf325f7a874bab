//! Memory for the bytes of requests, reused.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outcore_core::{Buffer, Gather, Result};
use outcore_memory::Region;

/// The longest read or write that the kernel sends, in bytes.
pub(crate) const MOST_BYTES: usize = 1 << 20;
/// Buffers that are kept while nobody uses them, at most.
const MOST_IDLE: usize = 32;

/// Buffers of `MOST_BYTES` bytes.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Region>>);

impl Buffers {
    fn take(&self) -> Result<Region> {
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| Region::allocate(MOST_BYTES), Ok)
    }

    fn give_back(&self, buffer: Region) {
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(buffer);
        }
    }

    /// Calls `work` with a buffer of `bytes` bytes.
    pub fn with<T>(&self, bytes: usize, work: impl FnOnce(Region) -> Result<T>) -> Result<T> {
        if bytes > MOST_BYTES {
            return work(Region::allocate(bytes)?);
        }
        let whole = self.take()?;
        let done = work(whole.part(0, bytes));
        self.give_back(whole);
        done
    }
}

/// Lends a limited number of buffers.
pub(crate) struct Lender {
    buffers: Arc<Buffers>,
    lent: AtomicUsize,
    most: usize,
}

impl Lender {
    /// Lends at most `most` buffers at the same time.
    pub fn new(buffers: Arc<Buffers>, most: usize) -> Arc<Self> {
        Arc::new(Self { buffers, lent: AtomicUsize::new(0), most })
    }

    /// A buffer, unless all are lent or the system has no memory.
    pub fn lend(self: &Arc<Self>) -> Option<Lent> {
        let before = self.lent.fetch_add(1, Ordering::AcqRel);
        // From here on, dropping it ends the loan.
        let mut lent = Lent { whole: Region::empty(), lender: self.clone() };
        if before >= self.most {
            return None;
        }
        lent.whole = self.buffers.take().ok()?;
        Some(lent)
    }
}

/// A buffer, lent until it is dropped. Its bytes may then be in use by a request that has not ended, so it is not reused
/// unless it is given back.
pub(crate) struct Lent {
    whole: Region,
    lender: Arc<Lender>,
}

impl Lent {
    /// A part of the buffer.
    pub fn part(&self, at: usize, bytes: usize) -> Region {
        self.whole.part(at, bytes)
    }

    pub fn copy_in(&mut self, at: usize, bytes: &[u8]) {
        self.whole.copy_in(at, bytes);
    }

    /// Gives the memory back for reuse, so that the buffer has none any more. No request may use it.
    pub fn give_back(&mut self) {
        let whole = std::mem::replace(&mut self.whole, Region::empty());
        self.lender.buffers.give_back(whole);
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        self.lender.lent.fetch_sub(1, Ordering::AcqRel);
    }
}
