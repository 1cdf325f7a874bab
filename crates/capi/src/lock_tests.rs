//! Locks while answers of the manager are lost, and across its restarts.

use std::collections::VecDeque;
use std::sync::Mutex;

use outcore_core::{Hints, IoRequest, Link, ManagerReply, ManagerRequest, OnAnswer, ServerAddress, ServerId};
use outcore_memory::Region;
use outcore_server::grants::Key;
use outcore_server::manager::{Config, Manager, Now, User};
use outcore_server::store::MemoryStore;

use super::*;
use crate::pool::Client;

/// So long that the thread never renews a lease in a test.
const TERM_S: u64 = 1_000_000;

/// The end of a request for a lease or lock.
#[derive(Clone, Copy, Debug)]
enum Fate {
    Answered,
    Unsent,
    Unanswered,
}
use Fate::{Answered, Unanswered, Unsent};

/// A link to a manager. The next requests for leases and locks have these fates, later ones are answered.
struct Unreliable {
    store: MemoryStore,
    manager: Mutex<Manager<MemoryStore>>,
    now_s: Mutex<u64>,
    fates: Mutex<VecDeque<Fate>>,
}

fn manager(store: &MemoryStore) -> Manager<MemoryStore> {
    Manager::open(store.clone(), Key::new([3; 32]), Config { lease_s: TERM_S, ..Config::new(5) }).unwrap()
}

impl Link for Unreliable {
    type Buffer = Region;

    fn io(&self, _: ServerId, request: IoRequest, _: Region, _: OnAnswer<Region>) {
        panic!("{request:?}")
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        let is_of_locks =
            matches!(request, ManagerRequest::SetLock { .. } | ManagerRequest::RenewLease { .. });
        let fate = is_of_locks.then(|| self.fates.lock().unwrap().pop_front()).flatten();
        let failed = Err(Error::new(ErrorKind::Io, "no answer"));
        if matches!(fate, Some(Unsent)) {
            return failed;
        }
        let ns = *self.now_s.lock().unwrap() * 1_000_000_000;
        let who = User { uid: 0, gids: vec![0], is_root: true };
        let reply = self.manager.lock().unwrap().handle(Now { unix_ns: ns, running_ns: ns }, &who, request);
        if matches!(fate, Some(Unanswered)) { failed } else { Ok(reply) }
    }
}

struct Rig {
    link: Arc<Unreliable>,
    client: Arc<Client>,
    signs: Arc<Signs>,
    file: FileId,
}

impl Rig {
    fn new() -> Self {
        let store = MemoryStore::new();
        let mut first = manager(&store);
        first.add_server(ServerAddress { id: ServerId(0), addresses: vec![] }).unwrap();
        let (manager, now_s) = (Mutex::new(first), Mutex::new(1));
        let link = Arc::new(Unreliable { store, manager, now_s, fates: Mutex::default() });
        let any: Arc<dyn Link<Buffer = Region>> = link.clone();
        let client = Arc::new(Client::new(any, Arc::new(|| 1)).unwrap());
        let file = client.create_as("f", Hints::default(), 0o644).unwrap();
        Self { link, signs: Arc::new(Signs::new(client.clone())), client, file }
    }

    fn lock(&self) -> Result<u64> {
        self.signs.lock(self.file, 10, 5, LockKind::Exclusive)
    }

    /// Restarts the manager, which then waits for locks from before.
    fn restart(&self) {
        *self.link.manager.lock().unwrap() = manager(&self.link.store);
        // Its first request begins that time.
        self.client.stat("f").unwrap();
    }

    fn pass(&self, seconds: u64) {
        *self.link.now_s.lock().unwrap() += seconds;
    }

    fn fails(&self, fates: &[Fate]) {
        *self.link.fates.lock().unwrap() = fates.iter().copied().collect();
    }

    fn unlock(&self, lock: u64) -> Option<ErrorKind> {
        let done = self.signs.unlock(self.file, lock);
        assert!(self.link.fates.lock().unwrap().is_empty(), "all requests were made");
        done.err().map(|error| error.kind)
    }

    /// Whether the manager has any lock on the bytes.
    fn is_locked(&self) -> bool {
        let owner = LockOwner { lease: 0, family: LockFamily::Fcntl, number: 0 };
        let (handle, kind) = (self.client.handle(self.file).unwrap(), LockKind::Exclusive);
        let wish = LockWish { handle, owner, process: 0, start: 0, end: 100, kind, reclaims: false };
        match self.client.test_lock(wish) {
            Ok(held) => held.is_some(),
            // It has none, and waits for locks from before.
            Err(error) if error.kind == ErrorKind::Busy => false,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn an_unlock_that_failed_can_be_repeated() {
    let cases: [(bool, &[Fate]); 5] = [
        (false, &[Unsent]),
        (false, &[Unanswered]),
        // After a restart the process renews its lease, gets the lock back, and removes it.
        (true, &[Answered, Unsent]),
        (true, &[Answered, Answered, Unanswered]),
        (true, &[Answered, Answered, Answered, Unanswered]),
    ];
    for (restarts, fates) in cases {
        let rig = Rig::new();
        let lock = rig.lock().unwrap();
        assert!(rig.is_locked());
        if restarts {
            rig.restart();
        }
        rig.fails(fates);
        assert_eq!(rig.unlock(lock), Some(ErrorKind::Io), "{fates:?}");
        assert_eq!(rig.unlock(lock), None, "{fates:?}");
        assert!(!rig.is_locked(), "{fates:?}");
        assert_eq!(rig.unlock(lock), Some(ErrorKind::Invalid), "{fates:?}");
    }
}

#[test]
fn a_lock_that_has_ended_is_not_kept() {
    let rig = Rig::new();
    let lock = rig.lock().unwrap();
    rig.restart();
    rig.pass(TERM_S - 10);
    // The thread of the process gets the lock back, and does not learn that.
    rig.signs.renew(&mut rig.signs.given()).unwrap();
    rig.fails(&[Unanswered]);
    let wish = rig.signs.given()[&(Some(rig.file), lock)].wish;
    assert_eq!(rig.signs.reclaim(wish).unwrap_err().kind, ErrorKind::Io);
    rig.pass(20);
    assert!(rig.is_locked());
    assert_eq!(rig.unlock(lock), Some(ErrorKind::Lost));
    assert!(!rig.is_locked());
}

#[test]
fn only_locks_that_the_manager_may_have_are_kept() {
    let rig = Rig::new();
    rig.signs.unlock(rig.file, rig.lock().unwrap()).unwrap();
    let kept = || rig.signs.given().values().filter(|sign| sign.state == State::Withdrawn).count();
    rig.restart();
    for _ in 0..2 {
        // First the process learns that it has no lease.
        assert_eq!(rig.lock().unwrap_err().kind, ErrorKind::Busy);
        assert_eq!(kept(), 0);
    }
    // Now it grants locks again.
    rig.pass(TERM_S + 1);
    rig.signs.renew(&mut rig.signs.given()).unwrap();
    for (fate, count) in [(Unsent, 1), (Unanswered, 2)] {
        rig.fails(&[fate]);
        assert_eq!(rig.lock().unwrap_err().kind, ErrorKind::Io);
        assert_eq!(kept(), count);
    }
}
