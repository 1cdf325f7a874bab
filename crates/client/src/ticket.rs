//! A handle of background work.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outcore_core::{Error, ErrorKind, Result};

/// Background work, which is done when all its parts are. Clones share it.
#[derive(Clone)]
pub struct Ticket(Arc<Shared>);

struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

struct State {
    parts: usize,
    error: Option<Error>,
    then: Vec<Box<dyn FnOnce() + Send>>,
}

impl Ticket {
    /// A ticket for `parts` parts. Without parts it is done at once.
    pub(crate) fn new(parts: usize) -> Self {
        let state = State { parts, error: None, then: Vec::new() };
        Self(Arc::new(Shared { state: Mutex::new(state), wake: Condvar::new() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Splits one unfinished part into `parts` parts.
    pub(crate) fn split_part(&self, parts: usize) {
        self.state().parts += parts.max(1) - 1;
    }

    pub(crate) fn part_done(&self, result: Result<()>) {
        let mut state = self.state();
        state.parts -= 1;
        if let Err(error) = result {
            // A loss of writes is reported only once, so it replaces errors that may be temporary.
            if state.error.is_none() || error.kind == ErrorKind::Lost {
                state.error = Some(error);
            }
        }
        if state.parts == 0 {
            let then = std::mem::take(&mut state.then);
            drop(state);
            self.0.wake.notify_all();
            for call in then {
                call();
            }
        }
    }

    /// Calls `call` once the work is done; immediately if it is. It must not block.
    pub fn then(&self, call: Box<dyn FnOnce() + Send>) {
        let mut state = self.state();
        if state.parts > 0 {
            state.then.push(call);
        } else {
            drop(state);
            call();
        }
    }

    /// Whether two tickets are for the same work.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether the work is done, successfully or not.
    pub fn is_done(&self) -> bool {
        self.state().parts == 0
    }

    /// The outcome, or `None` if the work is not done after `at_most`.
    pub fn wait(&self, at_most: Duration) -> Option<Result<()>> {
        let end = Instant::now() + at_most;
        let mut state = self.state();
        while state.parts > 0 {
            let left = end.checked_duration_since(Instant::now())?;
            (state, _) = self.0.wake.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner);
        }
        Some(state.error.clone().map_or(Ok(()), Err))
    }

    /// Waits for the outcome. A request to a server ends, since the client fails it if the server does not answer in time.
    pub fn finish(&self) -> Result<()> {
        let mut state = self.state();
        while state.parts > 0 {
            state = self.0.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.error.clone().map_or(Ok(()), Err)
    }
}

/// Calls `start` once every ticket is done.
pub(crate) fn after(tickets: &[Ticket], start: impl FnOnce() + Send + 'static) {
    if tickets.is_empty() {
        return start();
    }
    let left = Arc::new(AtomicUsize::new(tickets.len()));
    let start = Arc::new(Mutex::new(Some(start)));
    for ticket in tickets {
        let (left, start) = (left.clone(), start.clone());
        ticket.then(Box::new(move || {
            if left.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some(start) = start.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                start();
            }
        }));
    }
}
