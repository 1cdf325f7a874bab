//! The queue of requests to the manager. Requests that arrive during one commit's wait for the disk are executed
//! together in the next commit.
//!
//! A thread that brings a request to an idle manager executes it itself, because waking another thread would take
//! longer. A standby thread executes the requests that arrived meanwhile, so that the first thread can bring its
//! next request.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outcore_core::{Error, ErrorKind, ManagerReply, Result};
use outcore_net::OnReply;
use outcore_server::manager::{Asked, Manager, Now};
use outcore_server::store::{Log, Store};

use crate::turn::Turn;

/// Requests that become durable together, at most.
const MOST_AT_ONCE: usize = 256;

/// Queued requests, at most. Threads with more requests wait.
const MOST_WAITING: usize = 1024;

/// Replies, each with its receiver.
type Answers = Vec<(OnReply, ManagerReply)>;

/// A manager, and its queue.
pub(crate) struct Line<S> {
    manager: Mutex<Manager<S>>,
    log: Arc<dyn Log>,
    /// Whether this manager is the active one; `None` if there is no other.
    turn: Option<Arc<Turn>>,
    state: Mutex<State>,
    /// Wakes the standby thread.
    left: Condvar,
    /// Wakes threads that wait for a place in the queue.
    shorter: Condvar,
    /// The error of a failed sync. The state of the disk is then unknown, so every later request fails.
    failure: OnceLock<Error>,
    /// Called after a failed sync.
    on_failure: OnceLock<fn(&Error)>,
    /// Number of durable commits.
    commits: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Asked, OnReply)>,
    /// Whether a thread serves the queue, or is about to.
    is_served: bool,
    /// Whether that thread is the standby thread.
    is_left: bool,
    is_over: bool,
    /// Number of threads that wait for a place in the queue.
    outside: usize,
}

impl<S: Store> Line<S> {
    pub(crate) fn new(manager: Manager<S>, turn: Option<Arc<Turn>>) -> Self {
        Self {
            log: manager.log(),
            turn,
            manager: Mutex::new(manager),
            state: Mutex::default(),
            left: Condvar::new(),
            shorter: Condvar::new(),
            failure: OnceLock::new(),
            on_failure: OnceLock::new(),
            commits: AtomicU64::new(0),
        }
    }

    /// Sets a function to call when a sync fails; every request fails from then on.
    pub(crate) fn on_failure(&self, call: fn(&Error)) {
        // The creator sets it once.
        let _ = self.on_failure.set(call);
    }

    /// Number of commits that made requests durable.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Number of requests that wait for the next commit.
    pub(crate) fn waiting(&self) -> usize {
        let state = self.lock();
        state.waiting.len() + state.outside
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Executes a request. This thread or another one calls `done`; if the manager panics, `done` is dropped
    /// without a call.
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
            let answers = self.serve();
            // The standby thread starts the next commit while this thread sends the replies.
            drop(hand_over);
            tell(answers);
        }
    }

    /// Executes the queued requests in one commit. Returns the replies and their receivers.
    fn serve(&self) -> Answers {
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let count = state.waiting.len().min(MOST_AT_ONCE);
        let (requests, dones): (Vec<_>, Vec<_>) = state.waiting.drain(..count).unzip();
        if state.outside > 0 {
            self.shorter.notify_all();
        }
        drop(state);
        if let Err(error) = self.check_turn() {
            return dones.into_iter().map(|done| (done, ManagerReply::Failed(error.clone()))).collect();
        }
        let mut execute = |requests| {
            let (replies, is_change) = manager.begin_many(now(), requests);
            let committed = if is_change { manager.commit_many() } else { Ok(()) };
            (replies, is_change, committed)
        };
        let again = requests.clone();
        let mut executed = execute(requests);
        if executed.2.as_ref().is_err_and(|error| error.kind == ErrorKind::Busy) {
            // The store has made nothing of it, for example because its database has restarted.
            executed = execute(again);
        }
        let (replies, is_change, committed) = executed;
        if is_change && committed.is_ok() {
            match self.log.sync() {
                Ok(()) => drop(self.commits.fetch_add(1, Ordering::Relaxed)),
                Err(error) => self.fail(error),
            }
        }
        let failed = |reply: &ManagerReply| match reply {
            ManagerReply::Failed(error) if error.kind == ErrorKind::Closed => Some(error.clone()),
            _ => None,
        };
        let closed = committed.as_ref().err().filter(|error| error.kind == ErrorKind::Closed).cloned();
        if let Some(error) = closed.or_else(|| replies.iter().find_map(failed)) {
            self.fail(error);
        }
        // Clients may learn of durable records. Others, which the manager only remembers, may be wrong by now.
        let certain = if is_change { Ok(()) } else { self.check_turn() };
        let error = committed.and(certain).err().or_else(|| self.failure.get().cloned());
        let reply = |reply| error.clone().map_or(reply, ManagerReply::Failed);
        dones.into_iter().zip(replies.into_iter().map(reply)).collect()
    }

    /// Makes all requests fail from now on.
    fn fail(&self, error: Error) {
        let failure = self.failure.get_or_init(|| error);
        if let Some(call) = self.on_failure.get() {
            call(failure);
        }
    }

    /// Waits until this is certainly the active manager.
    fn check_turn(&self) -> Result<()> {
        let checked = self.turn.as_ref().map_or(Ok(()), |turn| turn.check());
        if let Err(error) = &checked
            && error.kind == ErrorKind::Closed
        {
            self.fail(error.clone());
        }
        checked
    }

    /// Serves the requests that other threads left in the queue, until the queue is closed.
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
            // The panic has printed its own message. Its requests were dropped, and their callers are informed.
            let _ = catch_unwind(AssertUnwindSafe(|| tell(self.serve())));
            state = self.lock();
        }
    }
}

fn tell(answers: Answers) {
    for (done, reply) in answers {
        done(reply);
    }
}

/// Passes the queue to the standby thread if requests remain, even after a panic.
struct HandOver<'a, S: Store>(&'a Line<S>);

impl<S: Store> Drop for HandOver<'_, S> {
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

/// The standby thread, which ends when this value is dropped.
pub(crate) struct Standby<S: Store> {
    line: Arc<Line<S>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl<S: Store + Send + 'static> Standby<S> {
    pub(crate) fn start(line: Arc<Line<S>>) -> Result<Self> {
        let serving = line.clone();
        let thread = thread::Builder::new().name("outcore-manager".to_owned());
        let thread = thread.spawn(move || serving.stand_by()).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
        })?;
        Ok(Self { line, thread: Some(thread) })
    }

    pub(crate) fn line(&self) -> &Line<S> {
        &self.line
    }
}

impl<S: Store> Drop for Standby<S> {
    fn drop(&mut self) {
        self.line.lock().is_over = true;
        self.line.left.notify_all();
        self.line.shorter.notify_all();
        if let Some(thread) = self.thread.take() {
            // The thread does not panic.
            let _ = thread.join();
        }
    }
}

/// Where the clock of this process that never jumps begins.
static BEGAN: OnceLock<Instant> = OnceLock::new();

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ns = |since: Duration| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let running = BEGAN.get_or_init(Instant::now).elapsed();
    Now { unix_ns: since.map_or(0, ns), running_ns: ns(running) }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use outcore_core::{Hints, ManagerRequest, Origin, ServerAddress, ServerId};
    use outcore_server::grants::Key;
    use outcore_server::manager::{Config, User};
    use outcore_server::store::{Guard, MemoryStore, Outcome, SqliteStore, Versioned, Write};

    const LONG: Duration = Duration::from_secs(60);

    /// A store whose syncs end only when the test says how.
    struct Slow {
        store: MemoryStore,
        disk: Arc<SlowDisk>,
    }

    struct SlowDisk {
        begun: AtomicUsize,
        ends: Mutex<Receiver<Result<()>>>,
    }

    impl Log for SlowDisk {
        fn sync(&self) -> Result<()> {
            self.begun.fetch_add(1, Ordering::SeqCst);
            self.ends.lock().unwrap().recv_timeout(LONG).expect("a sync that is told how to end")
        }
    }

    impl Store for Slow {
        fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
            self.store.get(key)
        }

        fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
            self.store.range(from, until, most)
        }

        fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
            self.store.commit(guards, writes)
        }

        fn log(&self) -> Arc<dyn Log> {
            self.disk.clone()
        }
    }

    struct Pool {
        line: Arc<Line<Slow>>,
        disk: Arc<SlowDisk>,
        end: std::sync::mpsc::Sender<Result<()>>,
        _standby: Standby<Slow>,
    }

    impl Pool {
        fn new() -> Self {
            let (end, ends) = channel();
            let disk = Arc::new(SlowDisk { begun: AtomicUsize::new(0), ends: Mutex::new(ends) });
            let store = Slow { store: MemoryStore::new(), disk: disk.clone() };
            let mut manager = Manager::open(store, Key::new([1; 32]), Config::new(1)).unwrap();
            manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] }).unwrap();
            let line = Arc::new(Line::new(manager, None));
            let standby = Standby::start(line.clone()).unwrap();
            Self { line, disk, end, _standby: standby }
        }

        /// Sends a request from a separate thread.
        fn ask(&self, request: ManagerRequest) -> Receiver<ManagerReply> {
            let (sender, reply) = channel();
            let line = self.line.clone();
            let who = User { uid: 0, gids: vec![0], is_root: true };
            let done = Box::new(move |reply| drop(sender.send(reply)));
            thread::spawn(move || line.answer(Asked { who, origin: None, request }, done));
            reply
        }

        /// Waits until a condition holds that other threads bring about.
        fn until(&self, is_so: impl Fn(&Self) -> bool) {
            let begin = std::time::Instant::now();
            while !is_so(self) {
                assert!(begin.elapsed() < LONG, "it does not come");
                thread::yield_now();
            }
        }

        fn begun(&self) -> usize {
            self.disk.begun.load(Ordering::SeqCst)
        }

        fn waiting(&self) -> usize {
            self.line.lock().waiting.len()
        }
    }

    fn create(path: &str) -> ManagerRequest {
        ManagerRequest::Create { path: path.into(), hints: Hints::default(), mode: 0o644 }
    }

    fn stat(path: &str) -> ManagerRequest {
        ManagerRequest::Stat { path: path.into() }
    }

    #[test]
    fn nobody_is_told_before_the_disk_and_what_comes_meanwhile_is_one_commit() {
        let pool = Pool::new();
        let nothing = pool.ask(stat("a")).recv_timeout(LONG).unwrap();
        assert!(matches!(nothing, ManagerReply::Failed(_)), "a read waits for no sync: {nothing:?}");
        let first = pool.ask(create("a"));
        pool.until(|pool| pool.begun() == 1);
        let later = [stat("a"), create("b"), create("c")].map(|request| pool.ask(request));
        pool.until(|pool| pool.waiting() == 3);
        assert!(first.try_recv().is_err() && later.iter().all(|reply| reply.try_recv().is_err()));
        pool.end.send(Ok(())).unwrap();
        assert!(matches!(first.recv_timeout(LONG).unwrap(), ManagerReply::Opened(_)));
        pool.until(|pool| pool.begun() == 2);
        assert!(later.iter().all(|reply| reply.try_recv().is_err()), "the read is of the same commit");
        pool.end.send(Ok(())).unwrap();
        let later = later.map(|reply| reply.recv_timeout(LONG).unwrap());
        assert!(
            matches!(later, [ManagerReply::Inode(_), ManagerReply::Opened(_), ManagerReply::Opened(_)]),
            "{later:?}"
        );
        assert_eq!(pool.begun(), 2, "one sync for all that came meanwhile");
        assert_eq!(pool.line.commits(), 2);
    }

    #[test]
    fn a_sync_that_fails_is_told_to_all_who_wait_and_nothing_is_told_as_done_any_more() {
        static FAILURES: AtomicUsize = AtomicUsize::new(0);
        let pool = Pool::new();
        pool.line.on_failure(|_| {
            FAILURES.fetch_add(1, Ordering::SeqCst);
        });
        let first = pool.ask(create("a"));
        pool.until(|pool| pool.begun() == 1);
        let second = pool.ask(stat("a"));
        pool.until(|pool| pool.waiting() == 1);
        pool.end.send(Err(Error::new(ErrorKind::Io, "the disk refused"))).unwrap();
        let failed = |reply: Receiver<ManagerReply>| {
            let reply = reply.recv_timeout(LONG).unwrap();
            assert!(
                matches!(&reply, ManagerReply::Failed(error) if error.kind == ErrorKind::Io),
                "{reply:?}"
            );
        };
        failed(first);
        failed(second);
        pool.until(|_| FAILURES.load(Ordering::SeqCst) == 1);
        // The store would refuse; the queue refuses even if a store does not.
        failed(pool.ask(stat("a")));
        assert_eq!(pool.line.commits(), 0);
    }

    /// A store that loses some groups at their end, as one in a database that restarts.
    struct Loses {
        store: Option<SqliteStore>,
        path: PathBuf,
        losses: Arc<AtomicUsize>,
    }

    impl Loses {
        fn store(&mut self) -> &mut SqliteStore {
            self.store.as_mut().unwrap()
        }
    }

    impl Store for Loses {
        fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
            self.store.as_ref().unwrap().get(key)
        }

        fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
            self.store.as_ref().unwrap().range(from, until, most)
        }

        fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
            self.store().commit(guards, writes)
        }

        fn begin_group(&mut self) -> Result<()> {
            self.store().begin_group()
        }

        fn end_group_unsynced(&mut self) -> Result<()> {
            let left = self.losses.load(Ordering::SeqCst);
            if left == 0 {
                return self.store().end_group_unsynced();
            }
            self.losses.store(left - 1, Ordering::SeqCst);
            // The end of the connection undoes the group.
            self.store = None;
            self.store = Some(SqliteStore::open(&self.path)?);
            Err(Error::new(ErrorKind::Busy, "the group is lost"))
        }
    }

    #[test]
    fn a_group_that_the_store_loses_is_executed_once_more() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("metadata");
        let losses = Arc::new(AtomicUsize::new(0));
        let store = Loses { store: Some(SqliteStore::open(&path).unwrap()), path, losses: losses.clone() };
        let mut manager = Manager::open(store, Key::new([1; 32]), Config::new(1)).unwrap();
        manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] }).unwrap();
        let line = Line::new(manager, None);
        let ask = |number: u64, request| {
            let (sender, reply) = channel();
            let who = User { uid: 0, gids: vec![0], is_root: true };
            let origin = Some(Origin { client: 1, number });
            line.answer(Asked { who, origin, request }, Box::new(move |reply| drop(sender.send(reply))));
            reply.recv_timeout(LONG).unwrap()
        };
        for (number, lost) in [(0, 0), (1, 1), (2, 2), (3, 0)] {
            losses.store(lost, Ordering::SeqCst);
            let name = format!("d{number}");
            let make = ManagerRequest::MakeDirectory { path: name.clone(), mode: 0o755 };
            let made = ask(number, make.clone());
            let is_made = !matches!(ask(100, stat(&name)), ManagerReply::Failed(_));
            assert_eq!(is_made, lost < 2, "{name}: {made:?}");
            assert_eq!(matches!(made, ManagerReply::Done), is_made, "{name}: {made:?}");
            // The client repeats it: done once.
            assert_eq!(ask(number, make), ManagerReply::Done);
        }
        // The notes from before the lost groups are known again.
        let again = ManagerRequest::MakeDirectory { path: "d0".into(), mode: 0o755 };
        assert_eq!(ask(0, again), ManagerReply::Done);
    }
}
