//! The line of requests that wait for the manager. While the disk makes one commit durable, the manager works on the next
//! ones, as they come; when the disk is done, these are one commit, and it goes on with that.
//!
//! Who brings a request to a manager that does nothing does it itself, since waking another thread would take longer; and
//! commits it, if no sync is under way. What came meanwhile is left to threads that stand by, so that whoever brought a
//! request can bring the next.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use outcore_core::{Error, ErrorKind, ManagerReply, Result};
use outcore_net::OnReply;
use outcore_server::manager::{Asked, Manager, Now, Withheld};
use outcore_server::store::{Log, Store};

/// Requests that become durable together.
const MOST_AT_ONCE: usize = 256;

/// Requests that wait; who brings more waits with them.
const MOST_WAITING: usize = 1024;

/// Threads that make durable what was done: one syncs while the other tells who waited for the sync before.
const SYNCING: usize = 2;

/// Who is to be told what.
type Answers = Vec<(OnReply, ManagerReply)>;

/// A manager, and who waits for it.
pub(crate) struct Line<S> {
    manager: Mutex<Manager<S>>,
    log: Arc<dyn Log>,
    state: Mutex<State>,
    /// For the thread that stands by.
    left: Condvar,
    /// For who waits to get into the line.
    shorter: Condvar,
    durable: Mutex<Durable>,
    /// For the threads that sync.
    unsynced: Condvar,
    /// Called when a sync has failed.
    on_failure: OnceLock<fn(&Error)>,
}

/// What is to be done after some requests were.
enum Next {
    /// These are told.
    Tell(Answers),
    /// What was committed is synced.
    Sync,
    /// Who syncs now sees to it.
    Wait,
}

/// What is done and not told.
#[derive(Default)]
struct Durable {
    withheld: Withheld<Answers>,
    is_over: bool,
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

impl<S: Store> Line<S> {
    pub(crate) fn new(manager: Manager<S>) -> Self {
        Self {
            log: manager.log(),
            manager: Mutex::new(manager),
            state: Mutex::default(),
            left: Condvar::new(),
            shorter: Condvar::new(),
            durable: Mutex::default(),
            unsynced: Condvar::new(),
            on_failure: OnceLock::new(),
        }
    }

    /// Has this called when the disk has refused to make something durable; then every request fails.
    pub(crate) fn on_failure(&self, call: fn(&Error)) {
        // Set once, by who made this.
        let _ = self.on_failure.set(call);
    }

    fn durable(&self) -> MutexGuard<'_, Durable> {
        self.durable.lock().unwrap_or_else(PoisonError::into_inner)
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
            let hand_over = HandOver { state: &self.state, left: &self.left };
            let next = self.serve(false);
            // The next requests are done while this commit is made durable.
            drop(hand_over);
            self.go_on(next);
        }
    }

    /// Does what waits, and commits it if the disk does nothing; who stands by leaves that to others, and does what comes.
    fn serve(&self, stands_by: bool) -> Next {
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        let mut state = self.lock();
        let count = state.waiting.len().min(MOST_AT_ONCE);
        let (requests, dones): (Vec<_>, Vec<_>) = state.waiting.drain(..count).unzip();
        if state.outside > 0 {
            self.shorter.notify_all();
        }
        drop(state);
        let (replies, is_change) = manager.begin_many(now(), requests);
        let mut durable = self.durable();
        // Before another can look at what was done.
        match durable.withheld.done(is_change, dones.into_iter().zip(replies).collect()) {
            Some(answers) => Next::Tell(answers),
            None if !durable.withheld.needs_sync() => Next::Wait,
            None if stands_by => {
                self.unsynced.notify_one();
                Next::Wait
            }
            None => commit(&mut manager, &mut durable),
        }
    }

    /// Makes durable what was committed, and tells who waited for that. What was done meanwhile is left to another thread.
    fn sync(&self) {
        let ended = self.log.sync();
        let mut durable = self.durable();
        let answers = match &ended {
            Ok(()) => durable.withheld.synced(),
            Err(_) => durable.withheld.failed(),
        };
        if durable.withheld.needs_sync() {
            self.unsynced.notify_one();
        }
        drop(durable);
        for answers in answers {
            match &ended {
                Ok(()) => tell(answers),
                Err(error) => tell(failed(answers, error)),
            }
        }
        if let (Err(error), Some(call)) = (&ended, self.on_failure.get()) {
            call(error);
        }
    }

    fn go_on(&self, next: Next) {
        match next {
            Next::Tell(answers) => tell(answers),
            Next::Sync => self.sync(),
            Next::Wait => {}
        }
    }

    /// Commits and syncs what was done while others synced.
    fn commit_and_sync(&self) {
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        let mut durable = self.durable();
        // Who served meanwhile may be at it.
        let next =
            if durable.withheld.needs_sync() { commit(&mut manager, &mut durable) } else { Next::Wait };
        drop((durable, manager));
        self.go_on(next);
    }

    /// Syncs what others left, until the line is over.
    fn keep_durable(&self) {
        let mut durable = self.durable();
        loop {
            if durable.withheld.needs_sync() {
                drop(durable);
                // As below.
                let _ = catch_unwind(AssertUnwindSafe(|| self.commit_and_sync()));
                durable = self.durable();
            } else if durable.is_over {
                return;
            } else {
                durable = self.unsynced.wait(durable).unwrap_or_else(PoisonError::into_inner);
            }
        }
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
            let _ = catch_unwind(AssertUnwindSafe(|| self.go_on(self.serve(true))));
            state = self.lock();
        }
    }
}

/// Commits what was done, of which a sync begins then.
fn commit<S: Store>(manager: &mut Manager<S>, durable: &mut Durable) -> Next {
    match manager.commit_many() {
        Ok(()) => {
            durable.withheld.begin_sync();
            Next::Sync
        }
        Err(error) => Next::Tell(failed(durable.withheld.failed().into_iter().flatten().collect(), &error)),
    }
}

/// All of it failed.
fn failed(answers: Answers, error: &Error) -> Answers {
    answers.into_iter().map(|(done, _)| (done, ManagerReply::Failed(error.clone()))).collect()
}

fn tell(answers: Answers) {
    for (done, reply) in answers {
        done(reply);
    }
}

/// Sees to it that somebody serves the line, however who did ended.
struct HandOver<'a> {
    state: &'a Mutex<State>,
    left: &'a Condvar,
}

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.waiting.is_empty() {
            state.is_served = false;
        } else {
            state.is_left = true;
            self.left.notify_one();
        }
    }
}

/// The threads that stand by, until this is dropped.
pub(crate) struct Standby<S: Store> {
    line: Arc<Line<S>>,
    threads: Vec<thread::JoinHandle<()>>,
}

impl<S: Store + Send + 'static> Standby<S> {
    pub(crate) fn start(line: Arc<Line<S>>) -> Result<Self> {
        let mut standby = Self { line, threads: vec![] };
        standby.spawn("outcore-manager", Line::stand_by)?;
        for _ in 0..SYNCING {
            standby.spawn("outcore-sync", Line::keep_durable)?;
        }
        Ok(standby)
    }

    pub(crate) fn line(&self) -> &Line<S> {
        &self.line
    }

    fn spawn(&mut self, name: &str, serve: fn(&Line<S>)) -> Result<()> {
        let line = self.line.clone();
        let thread = thread::Builder::new().name(name.to_owned());
        let thread = thread.spawn(move || serve(&line)).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
        })?;
        self.threads.push(thread);
        Ok(())
    }
}

impl<S: Store> Drop for Standby<S> {
    fn drop(&mut self) {
        self.line.lock().is_over = true;
        self.line.left.notify_all();
        self.line.shorter.notify_all();
        self.line.durable().is_over = true;
        self.line.unsynced.notify_all();
        for thread in self.threads.drain(..) {
            // They do not panic.
            let _ = thread.join();
        }
    }
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Now { unix_ns: since.map_or(0, |since| since.as_nanos() as u64) }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};
    use std::time::Duration;

    use super::*;
    use outcore_core::{Hints, ManagerRequest, ServerAddress, ServerId};
    use outcore_server::grants::Key;
    use outcore_server::manager::{Config, User};
    use outcore_server::store::{Guard, MemoryStore, Outcome, Versioned, Write};

    const LONG: Duration = Duration::from_secs(60);

    /// A store whose syncs end when they are told how.
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
            let line = Arc::new(Line::new(manager));
            let standby = Standby::start(line.clone()).unwrap();
            Self { line, disk, end, _standby: standby }
        }

        /// Brings a request, from a thread of its own.
        fn ask(&self, request: ManagerRequest) -> Receiver<ManagerReply> {
            let (sender, reply) = channel();
            let line = self.line.clone();
            let who = User { uid: 0, gids: vec![0], is_root: true };
            let done = Box::new(move |reply| drop(sender.send(reply)));
            thread::spawn(move || line.answer(Asked { who, origin: None, request }, done));
            reply
        }

        /// Waits until something is so that others do.
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

        /// Batches that were done and are not durable.
        fn withheld(&self) -> usize {
            self.line.durable().withheld.waiting()
        }
    }

    fn create(path: &str) -> ManagerRequest {
        ManagerRequest::Create { path: path.into(), hints: Hints::default(), mode: 0o644 }
    }

    fn stat(path: &str) -> ManagerRequest {
        ManagerRequest::Stat { path: path.into() }
    }

    #[test]
    fn while_one_commit_becomes_durable_the_next_is_done_and_nobody_is_told_too_early() {
        let pool = Pool::new();
        let nothing = pool.ask(stat("a")).recv_timeout(LONG).unwrap();
        assert!(matches!(nothing, ManagerReply::Failed(_)), "a read waits for no sync: {nothing:?}");
        let first = pool.ask(create("a"));
        pool.until(|pool| pool.begun() == 1);
        let read = pool.ask(stat("a"));
        pool.until(|pool| pool.withheld() == 2);
        let second = pool.ask(create("b"));
        pool.until(|pool| pool.withheld() == 3);
        let later = pool.ask(stat("a"));
        pool.until(|pool| pool.withheld() == 4);
        assert!([&first, &read, &second, &later].iter().all(|reply| reply.try_recv().is_err()));
        pool.end.send(Ok(())).unwrap();
        assert!(matches!(first.recv_timeout(LONG).unwrap(), ManagerReply::Opened(_)));
        assert!(matches!(read.recv_timeout(LONG).unwrap(), ManagerReply::Inode(_)));
        // A thread that stands by syncs the second, which began after the first sync had.
        pool.until(|pool| pool.begun() == 2);
        assert!(second.try_recv().is_err() && later.try_recv().is_err());
        pool.end.send(Ok(())).unwrap();
        assert!(matches!(second.recv_timeout(LONG).unwrap(), ManagerReply::Opened(_)));
        assert!(matches!(later.recv_timeout(LONG).unwrap(), ManagerReply::Inode(_)));
        assert_eq!(pool.begun(), 2, "one sync for all that was done meanwhile");
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
        let second = pool.ask(create("b"));
        pool.until(|pool| pool.withheld() == 2);
        let refused = || Err(Error::new(ErrorKind::Io, "the disk refused"));
        pool.end.send(refused()).unwrap();
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
        // The store would refuse; even one that does not is not believed.
        let read = pool.ask(stat("a"));
        pool.until(|pool| pool.begun() == 2);
        pool.end.send(refused()).unwrap();
        failed(read);
    }
}
