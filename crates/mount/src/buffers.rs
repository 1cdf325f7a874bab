//! Memory for the bytes of requests, reused.

use std::sync::{Mutex, PoisonError};

use outcore_core::{Gather, Result};
use outcore_memory::Region;

/// The longest read or write that the kernel sends, in bytes.
pub(crate) const MOST_BYTES: usize = 1 << 20;

/// Idle buffers.
#[derive(Default)]
pub(crate) struct Buffers(Mutex<Vec<Region>>);

impl Buffers {
    /// Calls `work` with a buffer of `bytes` bytes.
    pub fn with<T>(&self, bytes: usize, work: impl FnOnce(Region) -> Result<T>) -> Result<T> {
        if bytes > MOST_BYTES {
            return work(Region::allocate(bytes)?);
        }
        let idle = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let whole = idle.map_or_else(|| Region::allocate(MOST_BYTES), Ok)?;
        let done = work(whole.part(0, bytes));
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(whole);
        done
    }
}
