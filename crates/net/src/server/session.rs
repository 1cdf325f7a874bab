//! The server's memory of a client across connections: its running and finished requests. So a retry is not
//! executed again.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of stored answers per client; each answer counts slightly more than its length.
const MOST_BYTES: usize = 128 << 10;
const BYTES_OF_AN_ENTRY: usize = 32;

/// Number of remembered clients without a connection. It is several times the number of connections
/// (`listening.rs`), which may all break and reconnect at once.
const MOST_IDLE: usize = 4096;
/// Bytes of stored answers of all these clients.
const MOST_IDLE_BYTES: usize = 64 << 20;
/// Time for which they are remembered, in nanoseconds.
pub const IDLE_NS: u64 = 600 * 1_000_000_000;

/// The action for an incoming request.
#[derive(Debug, PartialEq, Eq)]
pub enum Begin {
    /// Execute it: the request is new.
    Run,
    /// Do nothing: the request is running, and its answer goes to this sender too.
    Running,
    /// Send this answer again: the request is done.
    Done(Arc<Vec<u8>>),
    /// Refuse it: the request may have been executed, and its answer is no longer stored.
    Late,
}

/// One client with all its connections. `W` waits for an answer.
#[derive(Debug)]
pub struct Session<W> {
    /// A number that differs from all other clients of the server.
    pub number: u64,
    state: Mutex<State<W>>,
}

#[derive(Debug)]
struct State<W> {
    /// Requests with lower numbers are no longer executed.
    floor: u64,
    running: HashMap<u64, Vec<W>>,
    done: BTreeMap<u64, Arc<Vec<u8>>>,
    done_bytes: usize,
    connections: usize,
    /// When its last connection ended.
    idle_since_ns: u64,
}

impl<W> Session<W> {
    fn new(number: u64) -> Self {
        let state = State {
            floor: 0,
            running: HashMap::new(),
            done: BTreeMap::new(),
            done_bytes: 0,
            connections: 0,
            idle_since_ns: 0,
        };
        Self { number, state: Mutex::new(state) }
    }

    fn lock(&self) -> MutexGuard<'_, State<W>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers an incoming request. The client will not retry requests before `settled`.
    pub fn begin(&self, request: u64, settled: u64, waiting: W) -> Begin {
        let mut state = self.lock();
        state.settle(settled);
        if let Some(answer) = state.done.get(&request) {
            return Begin::Done(answer.clone());
        }
        if let Some(others) = state.running.get_mut(&request) {
            others.push(waiting);
            return Begin::Running;
        }
        // It comes from a connection that the client dropped long ago, and must not undo later changes.
        if request < state.floor {
            return Begin::Late;
        }
        state.running.insert(request, vec![]);
        Begin::Run
    }

    /// Records the answer of a request. Returns the others that wait for it.
    pub fn finish(&self, request: u64, answer: Arc<Vec<u8>>) -> Vec<W> {
        let mut state = self.lock();
        let waiting = state.running.remove(&request).unwrap_or_default();
        if request >= state.floor {
            state.done_bytes += answer.len() + BYTES_OF_AN_ENTRY;
            state.done.insert(request, answer);
        }
        while state.done_bytes > MOST_BYTES
            && let Some((&oldest, _)) = state.done.first_key_value()
        {
            state.settle(oldest + 1);
        }
        waiting
    }
}

impl<W> State<W> {
    fn settle(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
        while let Some(first) = self.done.first_entry()
            && *first.key() < self.floor
        {
            self.done_bytes -= first.remove().len() + BYTES_OF_AN_ENTRY;
        }
    }
}

/// All clients, by identity. Times are nanoseconds of a monotonic clock.
#[derive(Debug)]
pub struct Sessions<K, W>(Mutex<All<K, W>>);

#[derive(Debug)]
struct All<K, W> {
    next_number: u64,
    sessions: HashMap<K, Arc<Session<W>>>,
}

impl<K, W> Default for Sessions<K, W> {
    fn default() -> Self {
        Self(Mutex::new(All { next_number: 0, sessions: HashMap::new() }))
    }
}

impl<K: Hash + Eq + Clone, W> Sessions<K, W> {
    fn lock(&self) -> MutexGuard<'_, All<K, W>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of remembered clients.
    pub fn count(&self) -> usize {
        self.lock().sessions.len()
    }

    /// The clients that are connected.
    pub fn connected(&self) -> Vec<K> {
        let all = self.lock();
        let connected = all.sessions.iter().filter(|(_, session)| session.lock().connections > 0);
        connected.map(|(key, _)| key.clone()).collect()
    }

    /// Adds a connection of a client.
    pub fn enter(&self, key: K, now_ns: u64) -> Arc<Session<W>> {
        let mut all = self.lock();
        let number = all.next_number;
        all.next_number += 1;
        let session = all.sessions.entry(key).or_insert_with(|| Arc::new(Session::new(number))).clone();
        session.lock().connections += 1;
        all.forget(now_ns);
        session
    }

    /// Forgets clients that left long ago.
    pub fn forget(&self, now_ns: u64) {
        self.lock().forget(now_ns);
    }

    /// Removes a connection of a client.
    pub fn leave(&self, session: &Session<W>, now_ns: u64) {
        // Hold the lock of all sessions, so that no thread sees a half-updated client.
        let _all = self.lock();
        let mut state = session.lock();
        state.connections -= 1;
        state.idle_since_ns = now_ns;
    }
}

impl<K: Hash + Eq + Clone, W> All<K, W> {
    fn forget(&mut self, now_ns: u64) {
        let mut idle: Vec<(u64, usize, K)> = Vec::new();
        for (key, session) in &self.sessions {
            let state = session.lock();
            if state.connections == 0 && state.running.is_empty() {
                idle.push((state.idle_since_ns, state.done_bytes, key.clone()));
            }
        }
        idle.sort_by_key(|(since_ns, ..)| *since_ns);
        let mut left = idle.len();
        let mut left_bytes: usize = idle.iter().map(|(_, bytes, _)| bytes).sum();
        for (since_ns, bytes, key) in idle {
            let is_old = now_ns.saturating_sub(since_ns) > IDLE_NS;
            if !is_old && left <= MOST_IDLE && left_bytes <= MOST_IDLE_BYTES {
                break;
            }
            self.sessions.remove(&key);
            left -= 1;
            left_bytes -= bytes;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(bytes: usize) -> Arc<Vec<u8>> {
        Arc::new(vec![1; bytes])
    }

    #[test]
    fn what_is_sent_again_is_done_once() {
        let session = Session::new(0);
        assert_eq!(session.begin(5, 5, "a"), Begin::Run);
        assert_eq!(session.begin(5, 5, "b"), Begin::Running);
        assert_eq!(session.finish(5, answer(3)), ["b"]);
        assert_eq!(session.begin(5, 5, "c"), Begin::Done(answer(3)));
        assert_eq!(session.begin(6, 6, "c"), Begin::Run, "and then 5 is settled");
        assert_eq!(session.begin(5, 0, "a"), Begin::Late, "from a connection that was given up");
        assert_eq!(session.finish(6, answer(3)), [""; 0]);
    }

    #[test]
    fn the_memory_of_answers_is_bounded() {
        let session = Session::new(0);
        for request in 1..10_000 {
            assert_eq!(session.begin(request, 1, ()), Begin::Run);
            session.finish(request, answer(100));
        }
        let kept = session.lock().done.len();
        assert!(kept < MOST_BYTES / 100 && kept > 100, "{kept}");
        assert_eq!(session.begin(1, 1, ()), Begin::Late);
        assert_eq!(session.begin(9_999, 1, ()), Begin::Done(answer(100)));
        session.begin(10_000, 1, ());
        session.finish(10_000, answer(MOST_BYTES));
        let state = session.lock();
        assert_eq!((state.done.len(), state.done_bytes), (0, 0));
    }

    #[test]
    fn clients_that_left_are_forgotten_in_time() {
        let sessions = Sessions::<usize, ()>::default();
        let stays = sessions.enter(0, 0);
        assert_eq!(stays.begin(1, 1, ()), Begin::Run);
        sessions.leave(&stays, 0);
        for client in 1..2 * MOST_IDLE {
            let session = sessions.enter(client, 0);
            sessions.leave(&session, 0);
        }
        assert!(sessions.count() <= MOST_IDLE + 2);
        assert_eq!(sessions.enter(0, 0).number, stays.number, "what it asked for is still being done");
    }

    #[test]
    fn all_clients_may_lose_their_connections_at_once() {
        // As many clients as a server accepts. While they are away, as many others connect and leave.
        let sessions = Sessions::<usize, ()>::default();
        let all: Vec<_> = (0..1024).map(|client| sessions.enter(client, 0)).collect();
        for session in &all {
            session.begin(7, 7, ());
            session.finish(7, answer(20));
        }
        all.iter().for_each(|session| sessions.leave(session, 1));
        for other in 1024..2048 {
            let session = sessions.enter(other, 2);
            sessions.leave(&session, 3);
        }
        for client in 0..1024 {
            assert_eq!(sessions.enter(client, 4).begin(7, 7, ()), Begin::Done(answer(20)), "client {client}");
        }
    }

    #[test]
    fn the_memory_of_clients_that_left_is_bounded() {
        let sessions = Sessions::<usize, ()>::default();
        for client in 0..1000 {
            let session = sessions.enter(client, client as u64);
            session.begin(1, 1, ());
            session.finish(1, answer(MOST_BYTES - BYTES_OF_AN_ENTRY));
            sessions.leave(&session, client as u64);
        }
        sessions.forget(1000);
        assert_eq!(sessions.count(), MOST_IDLE_BYTES / MOST_BYTES);
        let (first, last) = (sessions.enter(0, 1000), sessions.enter(999, 1000));
        assert_eq!(first.begin(1, 1, ()), Begin::Run, "the one that left first is not remembered");
        assert_eq!(last.begin(1, 1, ()), Begin::Done(answer(MOST_BYTES - BYTES_OF_AN_ENTRY)));
    }

    #[test]
    fn clients_that_left_are_forgotten_though_nobody_else_comes() {
        let sessions = Sessions::<usize, ()>::default();
        let (goes, works, stays) = (sessions.enter(0, 5), sessions.enter(1, 5), sessions.enter(2, 5));
        assert_eq!(works.begin(1, 1, ()), Begin::Run);
        sessions.leave(&goes, 10);
        sessions.leave(&works, 10);
        sessions.forget(10 + IDLE_NS);
        assert_eq!(sessions.count(), 3);
        sessions.forget(11 + IDLE_NS);
        assert_eq!(sessions.count(), 2);
        works.finish(1, answer(1));
        sessions.forget(12 + IDLE_NS);
        assert_eq!(sessions.count(), 1);
        sessions.leave(&stays, 12 + IDLE_NS);
        sessions.forget(12 + 2 * IDLE_NS);
        assert_eq!(sessions.count(), 1);
    }
}
