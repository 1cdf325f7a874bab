//! The line of requests that wait for the manager: what comes in while the disk works on one commit is done together, in
//! the next one.
//!
//! Who brings a request to a manager that does nothing does it itself, since waking another thread would take longer. What
//! came meanwhile is left to a thread that stands by, so that whoever brought a request can bring the next.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use outcore_core::{Error, ErrorKind, ManagerReply, Result};
use outcore_net::OnReply;
use outcore_server::manager::{Asked, Manager, Now};
use outcore_server::store::SqliteStore;

/// Requests that become durable together.
const MOST_AT_ONCE: usize = 256;

/// Requests that wait; who brings more waits with them.
const MOST_WAITING: usize = 1024;

/// A manager, and who waits for it.
pub(crate) struct Line {
    manager: Mutex<Manager<SqliteStore>>,
    state: Mutex<State>,
    /// For the thread that stands by.
    left: Condvar,
    /// For who waits to get into the line.
    shorter: Condvar,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Asked, OnReply)>,
    /// Somebody serves it, or will.
    is_served: bool,
    /// That is the thread that stands by.
    is_left: bool,
    is_over: bool,
    /// Who waits to get into the line.
    outside: usize,
}

impl Line {
    pub(crate) fn new(manager: Manager<SqliteStore>) -> Self {
        let (left, shorter) = (Condvar::new(), Condvar::new());
        Self { manager: Mutex::new(manager), state: Mutex::default(), left, shorter }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has a request done. `done` is called from here or from elsewhere; dropped without, if the manager failed badly.
    pub(crate) fn answer(&self, asked: Asked, done: OnReply) {
        let mut state = self.lock();
        while state.waiting.len() >= MOST_WAITING && !state.is_over {
            state.outside += 1;
            state = self.shorter.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.outside -= 1;
        }
        state.waiting.push_back((asked, done));
        let is_mine = !std::mem::replace(&mut state.is_served, true);
        drop(state);
        if is_mine {
            let hand_over = HandOver(self);
            let done = self.serve();
            // The next commit begins while these are told.
            drop(hand_over);
            tell(done);
        }
    }

    /// Does what waits in one commit; returns who is to be told what.
    fn serve(&self) -> Vec<(OnReply, ManagerReply)> {
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let count = state.waiting.len().min(MOST_AT_ONCE);
        let (requests, dones): (Vec<_>, Vec<_>) = state.waiting.drain(..count).unzip();
        if state.outside > 0 {
            self.shorter.notify_all();
        }
        drop(state);
        let replies = manager.handle_many(now(), requests);
        dones.into_iter().zip(replies).collect()
    }

    /// Serves what others left, until the line is over.
    fn stand_by(&self) {
        let mut state = self.lock();
        while !state.is_over {
            if !state.is_left {
                state = self.left.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            if state.waiting.is_empty() {
                (state.is_left, state.is_served) = (false, false);
                continue;
            }
            drop(state);
            // The panic said itself why; those who wait are told that their requests were dropped.
            let _ = catch_unwind(AssertUnwindSafe(|| tell(self.serve())));
            state = self.lock();
        }
    }
}

fn tell(done: Vec<(OnReply, ManagerReply)>) {
    for (done, reply) in done {
        done(reply);
    }
}

/// Sees to it that somebody serves the line, however who did ended.
struct HandOver<'a>(&'a Line);

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        if state.waiting.is_empty() {
            state.is_served = false;
        } else {
            state.is_left = true;
            self.0.left.notify_one();
        }
    }
}

/// The thread that stands by, until this is dropped.
pub(crate) struct Standby {
    line: Arc<Line>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Standby {
    pub(crate) fn start(line: Arc<Line>) -> Result<Self> {
        let serving = line.clone();
        let thread = thread::Builder::new().name("outcore-manager".to_owned());
        let thread = thread.spawn(move || serving.stand_by()).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
        })?;
        Ok(Self { line, thread: Some(thread) })
    }
}

impl Drop for Standby {
    fn drop(&mut self) {
        self.line.lock().is_over = true;
        self.line.left.notify_all();
        self.line.shorter.notify_all();
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Now { unix_ns: since.map_or(0, |since| since.as_nanos() as u64) }
}
