//! Leases of mounts, and the locks on files that they hold.
//!
//! Locks are in the memory of the manager. A mount renews its lease; without that, its locks end after the term of
//! the lease. After a restart of the manager, mounts have as long to reclaim their locks before it grants others.
//! Only a clock that never jumps counts here.

use std::collections::HashMap;

use outcore_core::{Error, ErrorKind, FileLock, FileLocks, Handle, LockKind, LockWish, ManagerReply, Result};

use super::access::{READ, WRITE, allows, require};
use super::record::{self, Node};
use super::walk::not_found;
use super::{Manager, Now, User, keys};
use crate::store::{Store, Write};

/// Seconds after which a lease ends that its mount has not renewed, by default.
pub const LEASE_S: u64 = 10;
/// Leases of one user, at most.
pub const MAX_LEASES: usize = 1000;
/// Locks of one lease, at most.
pub const MAX_LOCKS: usize = 10_000;

/// A lease.
#[derive(Debug)]
struct Lease {
    uid: u32,
    /// The last request, by the clock that never jumps.
    seen_ns: u64,
    locks: usize,
}

/// All leases and locks.
#[derive(Debug)]
pub(super) struct Leases {
    term_s: u64,
    leases: HashMap<u128, Lease>,
    files: HashMap<Handle, FileLocks>,
    /// The record in the store, if this run has written it: the term of leases, if mounts may hold locks.
    noted: Option<Option<u64>>,
    /// Term of the leases of the previous run of the manager, in seconds; 0 if it had none.
    earlier_s: u64,
    /// The time of the first request, by the clock that never jumps.
    began_ns: Option<u64>,
}

impl Leases {
    /// The leases of a manager that starts from a store.
    pub(super) fn load<S: Store>(store: &S, term_s: u64) -> Result<Self> {
        let found = store.get(keys::LEASES)?;
        let earlier_s = found.as_ref().map_or(Ok(0), |found| record::read(keys::LEASES, &found.value))?;
        let (leases, files) = (HashMap::new(), HashMap::new());
        Ok(Self { term_s, leases, files, noted: None, earlier_s, began_ns: None })
    }

    /// Records the time of a request: the first one begins the time in which mounts reclaim their locks.
    pub(super) fn began(&mut self, now: Now) {
        self.began_ns.get_or_insert(now.running_ns);
    }

    /// Records that the store may have lost what this run wrote.
    pub(super) fn forget_note(&mut self) {
        self.noted = None;
    }

    /// Ends the leases that were not renewed.
    fn expire(&mut self, now_ns: u64) {
        let (before, term_ns) = (self.leases.len(), nanoseconds(self.term_s));
        self.leases.retain(|_, lease| now_ns.saturating_sub(lease.seen_ns) <= term_ns);
        if self.leases.len() < before {
            self.drop_others();
        }
    }

    /// Drops the locks of leases that have ended.
    fn drop_others(&mut self) {
        let leases = &self.leases;
        self.files.retain(|_, locks| {
            locks.keep(|owner| leases.contains_key(&owner.lease));
            !locks.is_empty()
        });
    }

    /// Whether mounts may still reclaim locks of an earlier run.
    fn is_reclaiming(&self, now_ns: u64) -> bool {
        let since_ns = now_ns.saturating_sub(self.began_ns.unwrap_or(now_ns));
        self.earlier_s > 0 && since_ns <= nanoseconds(self.earlier_s)
    }

    fn lease(&mut self, number: u128, who: &User, now_ns: u64) -> Result<&mut Lease> {
        let found = self.leases.get_mut(&number).filter(|found| found.uid == who.uid);
        let found = found.ok_or_else(|| {
            Error::new(
                ErrorKind::Lost,
                format!("need a lease for locks, have none of number {number:x}; renew it"),
            )
        })?;
        found.seen_ns = now_ns;
        Ok(found)
    }

    /// The lock of another owner that excludes this one.
    fn conflict(&self, wish: &LockWish) -> Option<FileLock> {
        self.files.get(&wish.handle)?.conflict(&wish.lock()?)
    }

    /// Takes or removes a lock. Returns the lock that excludes it, if any.
    fn set(&mut self, wish: &LockWish, who: &User, now_ns: u64) -> Result<Option<FileLock>> {
        let is_reclaiming = self.is_reclaiming(now_ns);
        let lease = self.lease(wish.owner.lease, who, now_ns)?;
        let all = lease.locks;
        if wish.kind != LockKind::None && wish.reclaims != is_reclaiming {
            return Err(if is_reclaiming { still_reclaiming() } else { too_late() });
        }
        let locks = self.files.entry(wish.handle).or_default();
        let before = locks.len();
        // A change adds at most two locks.
        let earlier = (all + 2 > MAX_LOCKS).then(|| locks.clone());
        let conflict = match wish.lock() {
            Some(lock) => locks.take(lock),
            None => {
                locks.unlock(wish.owner, wish.start, wish.end);
                None
            }
        };
        // All locks that changed are of this lease.
        let after = locks.len();
        let are_too_many = after > before && all + after - before > MAX_LOCKS;
        if let Some(earlier) = earlier.filter(|_| are_too_many) {
            *locks = earlier;
        }
        if locks.is_empty() {
            self.files.remove(&wish.handle);
        }
        if are_too_many {
            return Err(Error::invalid(format!(
                "need at most {MAX_LOCKS} locks of one mount, have as many; release some"
            )));
        }
        let lease = self.lease(wish.owner.lease, who, now_ns)?;
        lease.locks = lease.locks + after - before;
        Ok(conflict)
    }
}

fn nanoseconds(seconds: u64) -> u64 {
    seconds.saturating_mul(1_000_000_000)
}

fn still_reclaiming() -> Error {
    Error::new(
        ErrorKind::Busy,
        "need the locks from before the manager's start first, have mounts that may reclaim them; try again in some seconds",
    )
}

fn too_late() -> Error {
    Error::new(
        ErrorKind::Lost,
        "need a lock that the manager can restore, have one that others may have taken; take a new one",
    )
}

impl<S: Store> Manager<S> {
    /// Records in the store whether locks may be held, so that the next run lets mounts reclaim them. While mounts reclaim
    /// those of an earlier run, its term counts, too: after another restart, they may need as long again.
    fn note_leases(&mut self, now: Now, are_there: bool) -> Result<()> {
        let earlier_s = if self.leases.is_reclaiming(now.running_ns) { self.leases.earlier_s } else { 0 };
        let wanted = are_there.then(|| self.leases.term_s.max(earlier_s));
        if self.leases.noted != Some(wanted) {
            let value = wanted.map(|seconds| record::write(&seconds));
            // Without a guard, the store always makes the commit.
            let _ = self.store.commit(&[], &[Write { key: keys::LEASES.to_vec(), value }])?;
            self.leases.noted = Some(wanted);
        }
        Ok(())
    }

    /// Takes or renews a lease. The answer says whether it has no locks: then its mount reclaims those that it believes in.
    /// A lease that is new in this answer is no sign of that, since the answer may be lost.
    pub(super) fn renew_lease(&mut self, now: Now, who: &User, number: u128) -> Result<ManagerReply> {
        let seconds = self.leases.term_s;
        self.leases.expire(now.running_ns);
        let of_others = self.leases.leases.get(&number).filter(|lease| lease.uid != who.uid);
        if of_others.is_some() {
            return Err(Error::new(
                ErrorKind::Denied,
                format!("need a lease of user {}, have that of another; take a random number", who.uid),
            ));
        }
        self.note_leases(now, true)?;
        if let Ok(lease) = self.leases.lease(number, who, now.running_ns) {
            return Ok(ManagerReply::Lease { seconds, is_new: lease.locks == 0 });
        }
        if self.leases.leases.values().filter(|lease| lease.uid == who.uid).count() >= MAX_LEASES {
            return Err(Error::invalid(format!(
                "need at most {MAX_LEASES} leases of one user, have as many; unmount some"
            )));
        }
        let lease = Lease { uid: who.uid, seen_ns: now.running_ns, locks: 0 };
        self.leases.leases.insert(number, lease);
        Ok(ManagerReply::Lease { seconds, is_new: true })
    }

    /// Ends a lease, and with it its locks.
    pub(super) fn end_lease(&mut self, now: Now, who: &User, number: u128) -> Result<ManagerReply> {
        self.leases.expire(now.running_ns);
        self.leases.lease(number, who, now.running_ns)?;
        self.leases.leases.remove(&number);
        self.leases.drop_others();
        if self.leases.leases.is_empty() && !self.leases.is_reclaiming(now.running_ns) {
            self.note_leases(now, false)?;
        }
        Ok(ManagerReply::Done)
    }

    /// Takes or removes a lock.
    pub(super) fn set_lock(&mut self, now: Now, who: &User, wish: &LockWish) -> Result<ManagerReply> {
        // The owner had the right when it took the lock.
        self.check_wish(now, who, wish, !wish.reclaims)?;
        self.leases.set(wish, who, now.running_ns).map(ManagerReply::Locked)
    }

    /// Returns the lock that excludes another one. While mounts reclaim locks, nobody knows whether there is none.
    pub(super) fn test_lock(&mut self, now: Now, who: &User, wish: &LockWish) -> Result<ManagerReply> {
        self.check_wish(now, who, wish, true)?;
        match self.leases.conflict(wish) {
            None if self.leases.is_reclaiming(now.running_ns) => Err(still_reclaiming()),
            conflict => Ok(ManagerReply::Locked(conflict)),
        }
    }

    /// Refuses a wish for no range; and, with `needs_right`, for a lock on a file or directory that the user can neither read
    /// nor write. Ends old leases.
    fn check_wish(&mut self, now: Now, who: &User, wish: &LockWish, needs_right: bool) -> Result<()> {
        self.leases.expire(now.running_ns);
        if wish.start > wish.end {
            return Err(Error::invalid(format!(
                "need a range with its last byte at or behind its first, have {} to {}; exchange them",
                wish.start, wish.end
            )));
        }
        if wish.kind == LockKind::None {
            return Ok(());
        }
        self.view(now, who, |step| {
            let path = format!("the file or directory {}", wish.handle.0);
            let node = step.look::<Node>(&keys::inode(wish.handle))?.ok_or_else(|| not_found(&path))?;
            if !needs_right {
                return Ok(());
            }
            if allows(&node.inode, who, WRITE) { Ok(()) } else { require(&node.inode, who, READ, &path) }
        })
    }
}
