//! Who takes the answers that come over a channel whose callers wait: one of them for all, so that an answer wakes who
//! waits for it and nobody else. A thread stands by, and takes those that no caller would.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use outcore_core::{Error, ErrorKind, Result};

use crate::client::call::Reply;
use crate::client::peer::closed;

/// Which of those who could take answers does.
#[derive(Default)]
pub(crate) struct Reader {
    state: Mutex<State>,
    /// For the thread that stands by.
    wake: Condvar,
}

#[derive(Default)]
struct State {
    is_taken: bool,
    /// Callers to whom the part may go; some have their answers by now.
    waiting: VecDeque<Arc<Claim>>,
    is_over: bool,
    was_useful: bool,
    /// Why no more answers come.
    error: Option<Error>,
}

impl Reader {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a caller is to take answers now. If not, the part may come to it later.
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

    /// Who took answers takes no more: a caller who waits does, or the thread that stands by if it `is_needed`.
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

    /// The thread that stands by looks whether it is needed.
    pub(crate) fn look_again(&self) {
        // Under the lock, so that it does not miss this if it has just looked.
        if !self.lock().is_taken {
            self.wake.notify_one();
        }
    }

    /// Waits until the thread that stands by is to take answers. False at the end, when nobody takes any.
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

    /// Notes that there was an answer, or why there are no more.
    pub(crate) fn note(&self, taken: &Result<bool>) {
        let mut state = self.lock();
        match taken {
            Ok(is_answer) => state.was_useful |= is_answer,
            Err(error) => _ = state.error.get_or_insert_with(|| error.clone()),
        }
    }

    /// Whether there was an answer, and why there are no more.
    pub(crate) fn ended(&self) -> (bool, Error) {
        let state = self.lock();
        let lost = || Error::new(ErrorKind::Io, "the connection was lost");
        (state.was_useful, state.error.clone().unwrap_or_else(lost))
    }
}

/// What a caller who waits is given.
pub(crate) enum Given {
    Answer(Result<Reply>),
    /// To take answers, for itself and others.
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

    /// Has the caller take answers. False if it has its own.
    fn pass(&self) -> bool {
        let mut state = self.lock();
        if !state.is_settled {
            state.has_part = true;
            self.tell(&state);
        }
        !state.is_settled
    }

    /// Waits for the answer, or for the part of who takes answers, which comes first.
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
        // Who takes its own answer is awake.
        if state.is_waited_for {
            self.wake.notify_one();
        }
    }
}

/// Settles a claim, however a call ends.
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
