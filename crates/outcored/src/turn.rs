//! Whether this manager is the active one of those that share a database: it holds the lease, and renews it.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::{Error, ErrorKind, Result};
use outcore_server::store::{BEAT, PostgresLease, VALID};

/// Time that requests wait for a database that does not confirm the lease, before they fail.
const PATIENCE: Duration = Duration::from_secs(10);

/// The lease as requests see it.
pub(crate) struct Turn {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    /// When the last renewal began that succeeded, and the last one that failed.
    renewed: Instant,
    failed: Option<Instant>,
    /// Whether another manager has the lease.
    is_lost: bool,
    /// Whether the manager stops.
    is_over: bool,
}

impl Turn {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns once no other manager can be active at this moment. The error has the kind `closed` if another one has the
    /// lease.
    pub(crate) fn check(&self) -> Result<()> {
        let asked = Instant::now();
        let mut state = self.lock();
        loop {
            if state.is_lost {
                let text = "need the lease of the active manager, have lost it to another one; this one ends";
                return Err(Error::new(ErrorKind::Closed, text));
            }
            if state.renewed.elapsed() < VALID {
                return Ok(());
            }
            // A process that was suspended must ask before it knows.
            let has_asked = state.failed.is_some_and(|began| began >= asked);
            if has_asked && state.renewed.elapsed() > VALID + PATIENCE {
                return Err(Error::new(
                    ErrorKind::Io,
                    "need the lease of the active manager, have a database that does not answer; start it (its log \
                     says whether its disk was full), or see whether the network works",
                ));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// A lease with the thread that renews it. Dropping it gives the lease back.
pub struct Heart {
    fence: i64,
    turn: Arc<Turn>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Heart {
    pub(crate) fn start(lease: PostgresLease) -> Result<Self> {
        let fence = lease.fence();
        let state = State { renewed: lease.taken(), failed: None, is_lost: false, is_over: false };
        let turn = Arc::new(Turn { state: Mutex::new(state), changed: Condvar::new() });
        let beating = turn.clone();
        let thread = thread::Builder::new().name("outcore-lease".to_owned());
        let thread = thread.spawn(move || beat(&beating, lease)).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
        })?;
        Ok(Self { fence, turn, thread: Some(thread) })
    }

    /// The number of the lease.
    pub(crate) fn fence(&self) -> i64 {
        self.fence
    }

    pub(crate) fn turn(&self) -> Arc<Turn> {
        self.turn.clone()
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        self.turn.lock().is_over = true;
        self.turn.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

fn beat(turn: &Turn, mut lease: PostgresLease) {
    let mut state = turn.lock();
    while !state.is_over {
        drop(state);
        let began = Instant::now();
        // Requests say after a while that the database does not answer.
        let beaten = lease.beat();
        state = turn.lock();
        match beaten {
            Ok(true) => state.renewed = began,
            Ok(false) => state.is_lost = true,
            Err(_) => state.failed = Some(began),
        }
        turn.changed.notify_all();
        if state.is_lost {
            return;
        }
        let until = Instant::now() + BEAT;
        while !state.is_over && Instant::now() < until {
            let left = until.saturating_duration_since(Instant::now());
            state = turn.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
    drop(state);
    lease.give_back();
}
