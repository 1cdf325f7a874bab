//! A few aligned buffers for transfers whose memory is not fit for the disk.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::Result;
use outcore_memory::{Arena, Block};

type Waiting = Box<dyn FnOnce(Result<Arc<Block>>) + Send>;

/// Buffers of one size from an arena, at most so many; who finds none waits in line, without a thread.
pub(crate) struct BouncePool {
    arena: Arena,
    buffer_bytes: usize,
    most: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Vec<Arc<Block>>,
    made: usize,
    waiting: VecDeque<Waiting>,
}

impl BouncePool {
    pub(crate) fn new(arena: Arena, buffer_bytes: usize, most: usize) -> Self {
        Self { arena, buffer_bytes, most: most.max(1), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `then` with a buffer, now or when one comes back; with an error if there can be none at all.
    pub(crate) fn acquire(&self, then: Waiting) {
        let mut state = self.state();
        let outcome: Result<Arc<Block>> = if let Some(block) = state.free.pop() {
            Ok(block)
        } else {
            let fresh =
                if state.made < self.most { Some(self.arena.allocate(self.buffer_bytes)) } else { None };
            match fresh {
                Some(Ok(block)) => {
                    state.made += 1;
                    Ok(Arc::new(block))
                }
                Some(Err(error)) if state.made == 0 => Err(error),
                _ => {
                    state.waiting.push_back(then);
                    return;
                }
            }
        };
        drop(state);
        then(outcome);
    }

    pub(crate) fn release(&self, block: Arc<Block>) {
        let mut state = self.state();
        match state.waiting.pop_front() {
            Some(then) => {
                drop(state);
                then(Ok(block));
            }
            None => state.free.push(block),
        }
    }
}
