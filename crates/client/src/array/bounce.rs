//! A few aligned buffers for transfers whose memory the disk cannot use directly.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};

use outcore_core::Result;
use outcore_memory::{Arena, Block};

type Waiting = Box<dyn FnOnce(Result<Arc<Block>>) + Send>;

/// At most `most` buffers of one size from an arena. If none is free, a request waits in a queue, without a
/// thread.
///
/// The pool keeps its buffers, since its arena is usually one call's budget. If many pools share the arena (see
/// [`Arena::short_lived`]), the pool frees its buffers as soon as no request waits.
pub(crate) struct BouncePool(Arc<Shared>);

struct Shared {
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
    /// Threads inside [`Shared::serve`]. If such a thread releases a buffer, the outer loop hands it out. So
    /// a long queue of requests that fail immediately does not become a deep stack.
    serving: Vec<ThreadId>,
}

impl BouncePool {
    pub(crate) fn new(arena: Arena, buffer_bytes: usize, most: usize) -> Self {
        Self(Arc::new(Shared { arena, buffer_bytes, most: most.max(1), state: Mutex::default() }))
    }

    /// Calls `then` with a buffer, immediately or when one is released. Calls it with an error if no buffer
    /// can exist.
    pub(crate) fn acquire(&self, then: Waiting) {
        self.0.state().waiting.push_back(then);
        self.0.serve();
    }

    pub(crate) fn release(&self, block: Arc<Block>) {
        self.0.state().free.push(block);
        self.0.serve();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Hands buffers to waiting requests until either run out.
    fn serve(self: &Arc<Self>) {
        let this_thread = thread::current().id();
        loop {
            let mut state = self.state();
            if state.serving.contains(&this_thread) {
                return;
            }
            if state.waiting.is_empty() {
                if self.arena.is_short_lived() {
                    let idle = std::mem::take(&mut state.free);
                    state.made -= idle.len();
                    drop(state);
                }
                return;
            }
            let Some(buffer) = self.buffer(&mut state) else { return };
            let Some(then) = state.waiting.pop_front() else { return };
            state.serving.push(this_thread);
            drop(state);
            then(buffer);
            self.state().serving.retain(|&thread| thread != this_thread);
        }
    }

    /// A buffer, or the reason why none can exist. `None` means that a buffer will be released later.
    fn buffer(self: &Arc<Self>, state: &mut State) -> Option<Result<Arc<Block>>> {
        if let Some(block) = state.free.pop() {
            return Some(Ok(block));
        }
        if state.made == self.most {
            return None;
        }
        let again = Arc::downgrade(self);
        let retry = move || {
            if let Some(pool) = again.upgrade() {
                pool.serve();
            }
        };
        match self.arena.allocate_or_wait(self.buffer_bytes, Box::new(retry))? {
            Ok(block) => {
                state.made += 1;
                Some(Ok(Arc::new(block)))
            }
            Err(error) => (state.made == 0).then_some(Err(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::ErrorKind;
    use std::sync::mpsc;

    const BYTES: usize = 4096;

    /// Requests a buffer. The receiver gets it when it is available.
    fn ask(pool: &BouncePool) -> mpsc::Receiver<Result<Arc<Block>>> {
        let (sender, receiver) = mpsc::channel();
        pool.acquire(Box::new(move |block| drop(sender.send(block))));
        receiver
    }

    #[test]
    fn buffers_go_round() {
        let pool = BouncePool::new(Arena::new(8 * BYTES), BYTES, 2);
        let (first, second, third) = (ask(&pool), ask(&pool), ask(&pool));
        let held = first.try_recv().unwrap().unwrap();
        assert!(second.try_recv().is_ok());
        assert!(third.try_recv().is_err(), "only two are made");
        pool.release(held);
        assert!(third.try_recv().is_ok());
    }

    #[test]
    fn no_memory_at_all_is_an_error_and_little_memory_is_not() {
        let pool = BouncePool::new(Arena::new(BYTES - 1), BYTES, 2);
        assert_eq!(ask(&pool).try_recv().unwrap().err().unwrap().kind, ErrorKind::Budget);
        let pool = BouncePool::new(Arena::new(BYTES), BYTES, 2);
        let held = ask(&pool).try_recv().unwrap().unwrap();
        let next = ask(&pool);
        assert!(next.try_recv().is_err());
        pool.release(held);
        assert!(next.try_recv().is_ok());
    }

    #[test]
    fn pools_share_a_short_lived_arena() {
        let arena = Arena::short_lived(BYTES);
        let pools: Vec<BouncePool> = (0..3).map(|_| BouncePool::new(arena.clone(), BYTES, 2)).collect();
        let held = ask(&pools[0]).try_recv().unwrap().unwrap();
        let waiting: Vec<_> = pools[1..].iter().map(ask).collect();
        assert!(waiting.iter().all(|w| w.try_recv().is_err()));
        pools[0].release(held);
        let held = waiting[0].try_recv().unwrap().unwrap();
        pools[1].release(held);
        pools[2].release(waiting[1].try_recv().unwrap().unwrap());
        assert_eq!(arena.used_bytes(), 0, "idle pools keep nothing");
        let large = BouncePool::new(arena, BYTES + 1, 1);
        assert_eq!(ask(&large).try_recv().unwrap().err().unwrap().kind, ErrorKind::Budget);
    }

    #[test]
    fn a_long_line_is_no_deep_stack() {
        let pool = Arc::new(BouncePool::new(Arena::new(BYTES), BYTES, 1));
        let held = ask(&pool).try_recv().unwrap().unwrap();
        let (sender, receiver) = mpsc::channel();
        for _ in 0..200_000 {
            let (again, sender) = (pool.clone(), sender.clone());
            pool.acquire(Box::new(move |block| {
                again.release(block.unwrap());
                let _ = sender.send(());
            }));
        }
        pool.release(held);
        assert_eq!(receiver.try_iter().count(), 200_000);
    }
}
