//! The budget: one arena for every buffer of a call.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::{Error, ErrorKind, Result};

use crate::block::{ALIGN_BYTES, Block, Mapping};

/// A memory budget. Clones share it.
#[derive(Clone)]
pub struct Arena(Arc<Shared>);

pub(crate) struct Shared {
    budget: usize,
    short_lived: bool,
    state: Mutex<State>,
}

/// Callback that runs when memory has been returned.
pub type Waiter = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    /// Bytes in use.
    used: usize,
    /// Peak of the bytes in use, kept mappings included.
    peak: usize,
    /// Returned mappings, kept for the next request of the same size. They count against the budget.
    kept: Vec<Mapping>,
    kept_bytes: usize,
    waiters: Vec<Waiter>,
}

impl Arena {
    /// An arena with at most `budget_bytes` in use at any time.
    pub fn new(budget_bytes: usize) -> Self {
        Self(Arc::new(Shared { budget: budget_bytes, short_lived: false, state: Mutex::default() }))
    }

    /// An arena for many users, each of which returns its memory without waiting for the others. So a user
    /// may wait for memory.
    pub fn short_lived(budget_bytes: usize) -> Self {
        Self(Arc::new(Shared { budget: budget_bytes, short_lived: true, state: Mutex::default() }))
    }

    /// Whether the arena was created by [`Arena::short_lived`].
    pub fn is_short_lived(&self) -> bool {
        self.0.short_lived
    }

    /// A block of `bytes` bytes, aligned to [`ALIGN_BYTES`]. The account counts whole pages. The content is
    /// arbitrary.
    pub fn allocate(&self, bytes: usize) -> Result<Block> {
        self.take(self.0.state(), bytes)
    }

    /// Like [`Arena::allocate`]. If a short-lived arena has too little free memory now, it returns `None`,
    /// and calls `waiter` once when some memory has been returned.
    pub fn allocate_or_wait(&self, bytes: usize, waiter: Waiter) -> Option<Result<Block>> {
        let mut state = self.0.state();
        let size = bytes.max(1).next_multiple_of(ALIGN_BYTES);
        if self.0.short_lived && size <= self.0.budget && size > self.0.budget - state.used {
            state.waiters.push(waiter);
            return None;
        }
        Some(self.take(state, bytes))
    }

    fn take(&self, mut state: MutexGuard<'_, State>, bytes: usize) -> Result<Block> {
        let size = bytes.max(1).next_multiple_of(ALIGN_BYTES);
        if size > self.0.budget - state.used.min(self.0.budget) {
            return Err(Error::new(
                ErrorKind::Budget,
                format!(
                    "need {size} bytes of memory for a buffer; {} of the budget of {} bytes are in use; \
                     raise memory=, or let go of blocks that are no longer needed",
                    state.used, self.0.budget
                ),
            ));
        }
        let mapping = match state.kept.iter().position(|kept| kept.bytes() == size) {
            Some(index) => {
                state.kept_bytes -= size;
                state.kept.swap_remove(index)
            }
            None => {
                while state.used + state.kept_bytes + size > self.0.budget {
                    let Some(kept) = state.kept.pop() else { break };
                    state.kept_bytes -= kept.bytes();
                }
                Mapping::new(size)?
            }
        };
        state.used += size;
        state.peak = state.peak.max(state.used + state.kept_bytes);
        drop(state);
        Ok(Block::owned(mapping, bytes, Arc::downgrade(&self.0)))
    }

    /// The budget in bytes.
    pub fn budget_bytes(&self) -> usize {
        self.0.budget
    }

    /// Bytes in use now.
    pub fn used_bytes(&self) -> usize {
        self.0.state().used
    }

    /// Peak of the bytes held.
    pub fn peak_bytes(&self) -> usize {
        self.0.state().peak
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn give_back(&self, mapping: Mapping) {
        let mut state = self.state();
        state.used -= mapping.bytes();
        state.kept_bytes += mapping.bytes();
        state.kept.push(mapping);
        let waiters = std::mem::take(&mut state.waiters);
        drop(state);
        for call in waiters {
            call();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_than_the_budget_is_refused_and_room_comes_back() {
        let arena = Arena::new(10 * ALIGN_BYTES);
        let first = arena.allocate(6 * ALIGN_BYTES).unwrap();
        let error = arena.allocate(5 * ALIGN_BYTES).err().unwrap();
        assert_eq!(error.kind, ErrorKind::Budget);
        assert!(error.message.contains("20480 bytes") && error.message.contains("40960"), "{error}");
        drop(first);
        let again = arena.allocate(10 * ALIGN_BYTES).unwrap();
        assert_eq!(again.as_ptr() as usize % ALIGN_BYTES, 0);
        assert_eq!((arena.used_bytes(), arena.peak_bytes()), (10 * ALIGN_BYTES, 10 * ALIGN_BYTES));
    }

    #[test]
    fn a_block_outlives_its_arena() {
        let arena = Arena::new(ALIGN_BYTES);
        let block = arena.allocate(1).unwrap();
        drop(arena);
        // SAFETY: the block is alive and one byte long.
        unsafe { block.as_ptr().write(7) };
        assert_eq!(block.len(), 1);
    }
}
