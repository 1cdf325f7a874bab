//! Selects the thread that receives the answers of a channel whose callers wait. One waiting caller receives
//! for all, so that an answer wakes only its own caller. A standby thread receives answers when no caller
//! does.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use outcore_core::{Error, ErrorKind, Result};

use crate::client::call::{Reply, closed};

/// The reader role of a channel: at most one thread has it.
#[derive(Default)]
pub(crate) struct Reader {
    state: Mutex<State>,
    /// Wakes the standby thread.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    is_taken: bool,
    /// Callers that may get the reader role. Some may have their answers already.
    waiting: VecDeque<Arc<Claim>>,
    is_over: bool,
    was_useful: bool,
    /// The reason why no more answers come.
    error: Option<Error>,
}

impl Reader {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the reader role for a caller. Returns false if another thread has it; the caller may get it
    /// later.
    pub(crate) fn enter(&self, claim: &Arc<Claim>) -> bool {
        let mut state = self.lock();
        if state.is_over {
            return false;
        }
        if !std::mem::replace(&mut state.is_taken, true) {
            return true;
        }
        state.waiting.retain(|other| !other.is_settled());
        state.waiting.push_back(claim.clone());
        false
    }

    /// Releases the reader role. It goes to a waiting caller, or to the standby thread if that `is_needed`.
    pub(crate) fn leave(&self, is_needed: impl FnOnce() -> bool) {
        let mut state = self.lock();
        while let Some(next) = state.waiting.pop_front() {
            if next.pass() {
                return;
            }
        }
        state.is_taken = false;
        if is_needed() {
            self.wake.notify_one();
        }
    }

    /// Makes the standby thread check whether it is needed.
    pub(crate) fn look_again(&self) {
        // Take the lock, so that the thread does not miss this between its check and its wait.
        if !self.lock().is_taken {
            self.wake.notify_one();
        }
    }

    /// Waits until the standby thread must receive answers. Returns false at the end, when no thread has the
    /// role.
    pub(crate) fn stand_by(&self, is_dead: impl Fn() -> bool, is_needed: impl Fn() -> bool) -> bool {
        let mut state = self.lock();
        loop {
            if !state.is_taken {
                if is_dead() {
                    state.is_over = true;
                    return false;
                }
                if is_needed() {
                    state.is_taken = true;
                    return true;
                }
            }
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Records that there was an answer, or the reason for the end.
    pub(crate) fn note(&self, taken: &Result<bool>) {
        let mut state = self.lock();
        match taken {
            Ok(is_answer) => state.was_useful |= is_answer,
            Err(error) => _ = state.error.get_or_insert_with(|| error.clone()),
        }
    }

    /// Whether there was an answer, and the reason for the end.
    pub(crate) fn ended(&self) -> (bool, Error) {
        let state = self.lock();
        let lost = || Error::new(ErrorKind::Io, "the connection was lost");
        (state.was_useful, state.error.clone().unwrap_or_else(lost))
    }
}

/// The result of a caller's wait.
pub(crate) enum Given {
    Answer(Result<Reply>),
    /// The reader role: the caller must receive answers, for itself and others.
    Part,
}

/// A caller's claim to an answer.
#[derive(Default)]
pub(crate) struct Claim {
    state: Mutex<Claimed>,
    wake: Condvar,
}

#[derive(Default)]
struct Claimed {
    answer: Option<Result<Reply>>,
    is_settled: bool,
    has_part: bool,
    is_waited_for: bool,
}

impl Claim {
    fn lock(&self) -> MutexGuard<'_, Claimed> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn is_settled(&self) -> bool {
        self.lock().is_settled
    }

    fn settle(&self, answer: Result<Reply>) {
        let mut state = self.lock();
        if !state.is_settled {
            state.is_settled = true;
            state.answer = Some(answer);
            self.tell(&state);
        }
    }

    /// Gives the reader role to the caller. Returns false if the caller has its answer.
    fn pass(&self) -> bool {
        let mut state = self.lock();
        if !state.is_settled {
            state.has_part = true;
            self.tell(&state);
        }
        !state.is_settled
    }

    /// Waits for the answer or the reader role, whichever comes first.
    pub(crate) fn wait(&self) -> Given {
        let mut state = self.lock();
        loop {
            if std::mem::take(&mut state.has_part) {
                return Given::Part;
            }
            if let Some(answer) = state.answer.take() {
                return Given::Answer(answer);
            }
            state.is_waited_for = true;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn tell(&self, state: &Claimed) {
        // A caller that receives its own answer is awake.
        if state.is_waited_for {
            self.wake.notify_one();
        }
    }
}

/// Settles a claim when a call ends, in any way.
pub(crate) struct Settles(pub(crate) Arc<Claim>);

impl Settles {
    pub(crate) fn with(self, answer: Result<Reply>) {
        self.0.settle(answer);
    }
}

impl Drop for Settles {
    fn drop(&mut self) {
        self.0.settle(Err(closed()));
    }
}
