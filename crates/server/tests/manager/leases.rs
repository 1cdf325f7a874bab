//! Leases of mounts, and their locks on files.

use outcore_core::{
    ErrorKind, FileLock, Handle, LockKind, LockOwner, LockWish, ManagerReply, ManagerRequest, Result,
};
use outcore_server::manager::{Config, LEASE_S, MAX_LEASES, MAX_LOCKS, Manager, ROOT, User};
use outcore_server::store::MemoryStore;

use crate::pool::*;

const LEASE_NS: u64 = LEASE_S * SECOND_NS;

struct Locking {
    store: MemoryStore,
    manager: Manager<MemoryStore>,
    now_ns: u64,
    file: Handle,
}

fn locking() -> Locking {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 1);
    let file = opened(ask(&mut manager, &root(), create_as("f", 0o600)).unwrap()).inode.handle;
    Locking { store, manager, now_ns: SECOND_NS, file }
}

impl Locking {
    fn ask(&mut self, who: &User, request: ManagerRequest) -> Result<ManagerReply> {
        ask_at(&mut self.manager, self.now_ns, who, request)
    }

    fn renew(&mut self, lease: u128) -> bool {
        match self.ask(&root(), ManagerRequest::RenewLease { lease }).unwrap() {
            ManagerReply::Lease { seconds: LEASE_S, is_new } => is_new,
            reply => panic!("{reply:?}"),
        }
    }

    fn wish(&self, lease: u128, kind: LockKind, start: u64, end: u64) -> LockWish {
        LockWish { start, end, kind, ..lock(self.file, lease) }
    }

    fn set(&mut self, wish: LockWish) -> Result<Option<FileLock>> {
        match self.ask(&root(), ManagerRequest::SetLock { wish })? {
            ManagerReply::Locked(excluded) => Ok(excluded),
            reply => panic!("{reply:?}"),
        }
    }

    /// Sets a lock of the first mount.
    fn change(&mut self, kind: LockKind, start: u64, end: u64) -> Result<Option<FileLock>> {
        self.set(self.wish(1, kind, start, end))
    }

    /// Whether a lock on the first ten bytes is granted.
    fn takes(&mut self, lease: u128, kind: LockKind) -> bool {
        let wish = self.wish(lease, kind, 0, 9);
        self.set(wish).unwrap().is_none()
    }

    fn restart(&mut self) {
        self.manager = open(self.store.clone());
    }
}

#[test]
fn locks_of_two_mounts_exclude_each_other() {
    let mut pool = locking();
    assert!(pool.renew(1));
    assert!(pool.renew(2));
    assert!(pool.takes(1, LockKind::Shared));
    assert!(pool.takes(2, LockKind::Shared));
    assert!(!pool.takes(2, LockKind::Exclusive));
    assert!(pool.takes(1, LockKind::None));
    assert!(pool.takes(2, LockKind::Exclusive));
    let wish = pool.wish(1, LockKind::Shared, 5, 20);
    let held = FileLock { owner: lock(pool.file, 2).owner, process: 9, start: 0, end: 9, exclusive: true };
    assert_eq!(pool.set(wish), Ok(Some(held)));
    let tested = pool.ask(&root(), ManagerRequest::TestLock { wish });
    assert_eq!(tested, Ok(ManagerReply::Locked(Some(held))));
    let other = pool.wish(1, LockKind::Shared, 10, 20);
    assert_eq!(pool.ask(&root(), ManagerRequest::TestLock { wish: other }), Ok(ManagerReply::Locked(None)));
    pool.ask(&root(), ManagerRequest::EndLease { lease: 2 }).unwrap();
    assert!(pool.takes(1, LockKind::Exclusive));
}

#[test]
fn locks_end_with_a_lease_that_is_not_renewed() {
    let mut pool = locking();
    pool.renew(1);
    assert!(pool.takes(1, LockKind::Exclusive));
    for _ in 0..5 {
        pool.now_ns += LEASE_NS;
        assert!(!pool.renew(1));
        pool.renew(2);
        assert!(!pool.takes(2, LockKind::Shared));
    }
    pool.now_ns += LEASE_NS + 1;
    pool.renew(2);
    assert!(pool.takes(2, LockKind::Shared));
    // The first mount learns that its locks are gone, and cannot restore them.
    let wish = pool.wish(1, LockKind::Exclusive, 0, 9);
    assert_eq!(kind(pool.set(wish)), ErrorKind::Lost);
    assert!(pool.renew(1));
    assert_eq!(kind(pool.set(LockWish { reclaims: true, ..wish })), ErrorKind::Lost);
}

#[test]
fn a_restarted_manager_lets_mounts_reclaim_their_locks_first() {
    let mut pool = locking();
    pool.renew(1);
    assert!(pool.takes(1, LockKind::Exclusive));
    pool.restart();
    pool.renew(2);
    let other = pool.wish(2, LockKind::Exclusive, 0, 9);
    assert_eq!(kind(pool.set(other)), ErrorKind::Busy);
    let test = ManagerRequest::TestLock { wish: other };
    assert_eq!(kind(pool.ask(&root(), test.clone())), ErrorKind::Busy, "nobody knows yet");
    pool.now_ns += LEASE_NS;
    assert!(pool.renew(1));
    let reclaimed = LockWish { reclaims: true, ..pool.wish(1, LockKind::Exclusive, 0, 9) };
    assert_eq!(pool.set(reclaimed), Ok(None));
    assert!(matches!(pool.ask(&root(), test), Ok(ManagerReply::Locked(Some(_)))));
    pool.now_ns += 1;
    pool.renew(2);
    assert!(pool.set(other).unwrap().is_some());
    // A second restart, after which the first mount does not return.
    pool.restart();
    pool.renew(2);
    assert_eq!(kind(pool.set(other)), ErrorKind::Busy);
    pool.now_ns += LEASE_NS;
    pool.renew(2);
    pool.now_ns += 1;
    assert_eq!(pool.set(other), Ok(None));
    assert_eq!(kind(pool.set(LockWish { reclaims: true, ..other })), ErrorKind::Lost);
}

#[test]
fn a_mount_learns_of_a_restart_even_if_the_first_answer_was_lost() {
    let mut pool = locking();
    pool.renew(1);
    assert!(pool.takes(1, LockKind::Exclusive));
    pool.restart();
    assert!(pool.renew(1));
    assert!(pool.renew(1), "the manager still has no locks of this lease");
    let reclaimed = LockWish { reclaims: true, ..pool.wish(1, LockKind::Exclusive, 0, 9) };
    assert_eq!(pool.set(reclaimed), Ok(None));
    assert!(!pool.renew(1));
}

#[test]
fn a_manager_without_leases_before_its_restart_grants_locks_at_once() {
    let mut pool = locking();
    pool.restart();
    pool.renew(1);
    assert!(pool.takes(1, LockKind::Exclusive));
    pool.ask(&root(), ManagerRequest::EndLease { lease: 1 }).unwrap();
    pool.restart();
    pool.renew(1);
    assert!(pool.takes(1, LockKind::Exclusive));
}

#[test]
fn mounts_reclaim_locks_for_the_term_of_the_earlier_run() {
    let mut pool = locking();
    pool.renew(1);
    assert!(pool.takes(1, LockKind::Exclusive));
    let short = Config { lease_s: 1, ..Config::new(POOL) };
    pool.manager = Manager::open(pool.store.clone(), key(), short).unwrap();
    pool.ask(&root(), ManagerRequest::Time).unwrap();
    pool.now_ns += LEASE_NS;
    let renewed = pool.ask(&root(), ManagerRequest::RenewLease { lease: 1 });
    assert_eq!(renewed, Ok(ManagerReply::Lease { seconds: 1, is_new: true }));
    let reclaimed = LockWish { reclaims: true, ..pool.wish(1, LockKind::Exclusive, 0, 9) };
    assert_eq!(pool.set(reclaimed), Ok(None));
    pool.now_ns += 1;
    assert!(pool.takes(1, LockKind::Exclusive));
}

#[test]
fn a_shorter_term_counts_only_once_all_locks_are_reclaimed() {
    let mut pool = locking();
    pool.renew(1);
    assert!(pool.takes(1, LockKind::Exclusive));
    let short = || Config { lease_s: 1, ..Config::new(POOL) };
    let renew = |lease| ManagerRequest::RenewLease { lease };
    for _ in 0..2 {
        pool.manager = Manager::open(pool.store.clone(), key(), short()).unwrap();
        pool.ask(&root(), renew(2)).unwrap();
    }
    pool.now_ns += LEASE_NS;
    for lease in [1, 2] {
        pool.ask(&root(), renew(lease)).unwrap();
    }
    let other = pool.wish(2, LockKind::Exclusive, 0, 9);
    assert_eq!(kind(pool.set(other)), ErrorKind::Busy);
    let reclaimed = LockWish { reclaims: true, ..pool.wish(1, LockKind::Exclusive, 0, 9) };
    assert_eq!(pool.set(reclaimed), Ok(None));
    // Then the shorter term counts.
    pool.now_ns += 1;
    pool.ask(&root(), renew(1)).unwrap();
    pool.manager = Manager::open(pool.store.clone(), key(), short()).unwrap();
    pool.ask(&root(), renew(2)).unwrap();
    assert_eq!(kind(pool.set(other)), ErrorKind::Busy);
    pool.now_ns += SECOND_NS + 1;
    pool.ask(&root(), renew(2)).unwrap();
    assert_eq!(pool.set(other), Ok(None));
}

#[test]
fn locks_need_a_lease_of_their_user_and_the_right_to_read() {
    let mut pool = locking();
    let wish = pool.wish(1, LockKind::Shared, 0, 9);
    assert_eq!(kind(pool.set(wish)), ErrorKind::Lost, "no lease");
    pool.renew(1);
    let (stranger, lease) = (user(5, &[]), 1);
    assert_eq!(kind(pool.ask(&stranger, ManagerRequest::RenewLease { lease })), ErrorKind::Denied);
    assert_eq!(kind(pool.ask(&stranger, ManagerRequest::EndLease { lease })), ErrorKind::Lost);
    pool.ask(&stranger, ManagerRequest::RenewLease { lease: 5 }).unwrap();
    let own = pool.wish(5, LockKind::Shared, 0, 9);
    assert_eq!(kind(pool.ask(&stranger, ManagerRequest::SetLock { wish: own })), ErrorKind::Denied);
    assert_eq!(kind(pool.set(LockWish { start: 9, end: 8, ..wish })), ErrorKind::Invalid);
    assert_eq!(kind(pool.set(LockWish { handle: Handle(999), ..wish })), ErrorKind::NotFound);
    for number in 0..MAX_LOCKS as u64 {
        assert_eq!(pool.set(LockWish { start: 2 * number, end: 2 * number, ..wish }), Ok(None));
    }
    let next = 2 * MAX_LOCKS as u64;
    let unlocked = LockWish { kind: LockKind::None, end: u64::MAX, ..wish };
    assert_eq!(kind(pool.set(LockWish { start: next, end: next, ..wish })), ErrorKind::Invalid);
    assert_eq!(pool.set(unlocked), Ok(None));
    assert_eq!(pool.set(LockWish { start: next, end: next, ..wish }), Ok(None));
}

#[test]
fn a_file_that_a_user_may_only_write_can_be_locked() {
    let mut pool = locking();
    let path = "g".to_owned();
    let file = opened(pool.ask(&root(), create_as("g", 0o602)).unwrap()).inode.handle;
    let writer = user(5, &[]);
    pool.ask(&writer, ManagerRequest::RenewLease { lease: 5 }).unwrap();
    let wish = LockWish { handle: file, ..pool.wish(5, LockKind::Exclusive, 0, 9) };
    assert_eq!(pool.ask(&writer, ManagerRequest::SetLock { wish }), Ok(ManagerReply::Locked(None)));
    pool.ask(&root(), ManagerRequest::Remove { path, recursive: false }).unwrap();
    assert_eq!(kind(pool.ask(&writer, ManagerRequest::SetLock { wish })), ErrorKind::NotFound);
}

#[test]
fn a_directory_can_be_locked_by_the_rights_of_files() {
    let mut pool = locking();
    let user = user(5, &[]);
    pool.ask(&user, ManagerRequest::RenewLease { lease: 5 }).unwrap();
    let wish = LockWish { handle: ROOT, ..pool.wish(5, LockKind::Exclusive, 1 << 63, 1 << 63) };
    assert_eq!(pool.ask(&user, ManagerRequest::SetLock { wish }), Ok(ManagerReply::Locked(None)));
    let other = LockWish { owner: LockOwner { lease: 0, ..wish.owner }, ..wish };
    let ManagerReply::Locked(Some(found)) =
        pool.ask(&user, ManagerRequest::TestLock { wish: other }).unwrap()
    else {
        panic!("the lock is not there")
    };
    assert_eq!(found.owner, wish.owner);
    pool.ask(&root(), make_directory("private", 0o700)).unwrap();
    let private = inode(pool.ask(&root(), stat("private")).unwrap()).handle;
    let wish = LockWish { handle: private, ..wish };
    assert_eq!(kind(pool.ask(&user, ManagerRequest::SetLock { wish })), ErrorKind::Denied);
}

#[test]
fn a_lock_can_be_reclaimed_without_the_right_that_it_needed() {
    let mut pool = locking();
    let owner = user(5, &[]);
    let change = |mode| ManagerRequest::SetAttributes {
        path: "f".into(),
        mode: Some(mode),
        owner: None,
        group: None,
        modified_ns: None,
    };
    pool.ask(&root(), change(0o604)).unwrap();
    pool.ask(&owner, ManagerRequest::RenewLease { lease: 5 }).unwrap();
    let wish = pool.wish(5, LockKind::Exclusive, 0, 9);
    assert_eq!(pool.ask(&owner, ManagerRequest::SetLock { wish }), Ok(ManagerReply::Locked(None)));
    pool.ask(&root(), change(0o600)).unwrap();
    pool.restart();
    pool.ask(&owner, ManagerRequest::RenewLease { lease: 5 }).unwrap();
    let wish = LockWish { reclaims: true, ..wish };
    assert_eq!(kind(pool.ask(&owner, ManagerRequest::TestLock { wish })), ErrorKind::Denied);
    assert_eq!(pool.ask(&owner, ManagerRequest::SetLock { wish }), Ok(ManagerReply::Locked(None)));
}

#[test]
fn no_change_leaves_more_locks_than_the_limit() {
    let mut pool = locking();
    pool.renew(1);
    // The first lock has three bytes, the others one each.
    assert_eq!(pool.change(LockKind::Exclusive, 0, 2), Ok(None));
    for number in 2..MAX_LOCKS as u64 {
        assert_eq!(pool.change(LockKind::Exclusive, 2 * number, 2 * number), Ok(None));
    }
    // A lock in the middle of another one makes three.
    assert_eq!(kind(pool.change(LockKind::Shared, 1, 1)), ErrorKind::Invalid);
    let far = 2 * MAX_LOCKS as u64;
    assert_eq!(pool.change(LockKind::Exclusive, far, far), Ok(None));
    assert_eq!(kind(pool.change(LockKind::None, 1, 1)), ErrorKind::Invalid);
    // Nothing has changed.
    let held = FileLock { owner: lock(pool.file, 1).owner, process: 9, start: 0, end: 2, exclusive: true };
    for byte in [0, 1, 2] {
        let wish = pool.wish(2, LockKind::Shared, byte, byte);
        let tested = pool.ask(&root(), ManagerRequest::TestLock { wish });
        assert_eq!(tested, Ok(ManagerReply::Locked(Some(held))));
    }
    // The same number of locks, or fewer, is no matter of the limit.
    assert_eq!(pool.change(LockKind::Shared, 4, 4), Ok(None));
    assert_eq!(pool.change(LockKind::None, 0, 0), Ok(None));
    assert_eq!(pool.change(LockKind::None, 4, 4), Ok(None));
    assert_eq!(pool.change(LockKind::Exclusive, far + 2, far + 2), Ok(None));
}

#[test]
fn a_user_has_a_limited_number_of_leases() {
    let mut pool = locking();
    for lease in 0..MAX_LEASES as u128 {
        assert!(pool.renew(lease));
    }
    let next = ManagerRequest::RenewLease { lease: MAX_LEASES as u128 };
    assert_eq!(kind(pool.ask(&root(), next.clone())), ErrorKind::Invalid);
    pool.ask(&user(5, &[]), next.clone()).unwrap();
    pool.now_ns += LEASE_NS + 1;
    pool.ask(&root(), next).unwrap();
}
