//! Locks on ranges of a file, with the rules of fcntl(2) and flock(2).

use crate::Handle;

/// The call that takes a lock. Locks of different families never exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LockFamily {
    /// fcntl(2): ranges of bytes.
    Fcntl,
    /// flock(2): whole files.
    Flock,
}

/// An owner of locks: a process that uses a mount, or an open file there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockOwner {
    /// The lease of the mount.
    pub lease: u128,
    /// The call that takes the locks.
    pub family: LockFamily,
    /// The number of the owner within the mount.
    pub number: u64,
}

/// A lock on a range of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileLock {
    /// The owner.
    pub owner: LockOwner,
    /// The process that took it, for people.
    pub process: u32,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// Whether it excludes all others; a shared lock excludes only exclusive ones.
    pub exclusive: bool,
}

/// The kind of a lock that a client wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// No lock: those of the owner in the range are removed.
    None,
    /// A lock beside other shared ones.
    Shared,
    /// A lock beside no other.
    Exclusive,
}

/// A request for a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LockWish {
    /// The file.
    pub handle: Handle,
    /// The owner.
    pub owner: LockOwner,
    /// The process, for people.
    pub process: u32,
    /// The first byte.
    pub start: u64,
    /// The last byte.
    pub end: u64,
    /// The kind.
    pub kind: LockKind,
    /// Whether the owner held this lock before a restart of the manager.
    pub reclaims: bool,
}

impl LockWish {
    /// The lock; `None` if locks are to be removed.
    pub fn lock(&self) -> Option<FileLock> {
        let Self { owner, process, start, end, kind, .. } = *self;
        let exclusive = kind == LockKind::Exclusive;
        (kind != LockKind::None).then_some(FileLock { owner, process, start, end, exclusive })
    }
}

impl FileLock {
    fn meets(&self, start: u64, end: u64) -> bool {
        self.start <= end && start <= self.end
    }

    /// The kind of this lock.
    pub fn kind(&self) -> LockKind {
        if self.exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }
}

/// The locks on a file. Those of one owner never overlap, and those of one owner and kind never touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLocks(Vec<FileLock>);

impl FileLocks {
    /// Whether there are no locks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The locks, by owner and range.
    pub fn all(&self) -> &[FileLock] {
        &self.0
    }

    /// The number of locks of a lease.
    pub fn count(&self, lease: u128) -> usize {
        self.0.iter().filter(|held| held.owner.lease == lease).count()
    }

    /// Whether an owner has a lock that meets a range.
    pub fn has(&self, owner: LockOwner, start: u64, end: u64) -> bool {
        self.0.iter().any(|held| held.owner == owner && held.meets(start, end))
    }

    /// The ranges without a lock of an owner, by first and last byte.
    pub fn gaps(&self, owner: LockOwner) -> Vec<(u64, u64)> {
        let (mut next, mut gaps) = (Some(0), vec![]);
        for held in self.0.iter().filter(|held| held.owner == owner) {
            gaps.extend(next.filter(|next| *next < held.start).map(|next| (next, held.start - 1)));
            next = held.end.checked_add(1);
        }
        gaps.extend(next.map(|next| (next, u64::MAX)));
        gaps
    }

    /// The first lock that excludes `wanted`, by its range.
    pub fn conflict(&self, wanted: &FileLock) -> Option<FileLock> {
        let excludes = |held: &&FileLock| {
            held.owner != wanted.owner
                && held.owner.family == wanted.owner.family
                && held.meets(wanted.start, wanted.end)
                && (held.exclusive || wanted.exclusive)
        };
        self.0.iter().filter(excludes).min_by_key(|held| held.start).copied()
    }

    /// Takes a lock, in the place of those of its owner in its range, unless another owner's lock excludes it. Returns
    /// that one. A call of flock(2) that fails also removes the owner's lock, as in Linux: otherwise, two owners of shared locks
    /// who ask for exclusive ones would wait for ever.
    pub fn take(&mut self, wanted: FileLock) -> Option<FileLock> {
        let conflict = self.conflict(&wanted);
        if conflict.is_none() {
            self.set(wanted);
        } else if wanted.owner.family == LockFamily::Flock {
            self.unlock(wanted.owner, 0, u64::MAX);
        }
        conflict
    }

    /// Adds a lock that nothing excludes, in the place of those of its owner in its range.
    pub fn set(&mut self, wanted: FileLock) {
        self.unlock(wanted.owner, wanted.start, wanted.end);
        let mut whole = wanted;
        self.0.retain(|held| {
            let is_alike = held.owner == whole.owner && held.exclusive == whole.exclusive;
            let touches = held.end.checked_add(1) == Some(wanted.start)
                || wanted.end.checked_add(1) == Some(held.start);
            if is_alike && touches {
                whole.start = whole.start.min(held.start);
                whole.end = whole.end.max(held.end);
            }
            !(is_alike && touches)
        });
        let at = self.0.partition_point(|held| (held.owner, held.start) < (whole.owner, whole.start));
        self.0.insert(at, whole);
    }

    /// Removes the locks of an owner in a range, and returns the removed parts; a lock that is longer is divided.
    pub fn unlock(&mut self, owner: LockOwner, start: u64, end: u64) -> Vec<FileLock> {
        let mut left = Vec::with_capacity(self.0.len() + 1);
        let mut removed = vec![];
        for held in self.0.drain(..) {
            if held.owner != owner || !held.meets(start, end) {
                left.push(held);
                continue;
            }
            removed.push(FileLock { start: held.start.max(start), end: held.end.min(end), ..held });
            if held.start < start {
                left.push(FileLock { end: start - 1, ..held });
            }
            if held.end > end {
                left.push(FileLock { start: end + 1, ..held });
            }
        }
        self.0 = left;
        removed
    }

    /// Keeps the locks of some owners only.
    pub fn keep(&mut self, mut is_kept: impl FnMut(LockOwner) -> bool) {
        self.0.retain(|held| is_kept(held.owner));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OWNERS: u64 = 3;
    const BYTES: u64 = 12;

    /// The lock of each owner on each byte: `None`, or whether it is exclusive.
    type Model = [[Option<bool>; BYTES as usize]; OWNERS as usize];

    fn owner(number: u64) -> LockOwner {
        LockOwner { lease: 7, family: LockFamily::Fcntl, number }
    }

    proptest! {
        #[test]
        fn locks_are_those_of_single_bytes(
            steps in prop::collection::vec(
                (0..OWNERS, 0..BYTES, 0..BYTES, prop::option::of(any::<bool>())), 1..60),
            is_at_end in any::<bool>(),
        ) {
            let at = |byte| if is_at_end { u64::MAX - (BYTES - 1 - byte) } else { byte };
            let (mut locks, mut model) = (FileLocks::default(), Model::default());
            for (who, one, other, kind) in steps {
                let (from, to) = (one.min(other), one.max(other));
                let bytes = from as usize..=to as usize;
                let Some(exclusive) = kind else {
                    locks.unlock(owner(who), at(from), at(to));
                    model[who as usize][bytes].fill(None);
                    continue;
                };
                let wanted =
                    FileLock { owner: owner(who), process: 1, start: at(from), end: at(to), exclusive };
                let others = (0..OWNERS).filter(|other| *other != who);
                let excluded = others.flat_map(|other| &model[other as usize][bytes.clone()]).any(
                    |held| held.is_some_and(|held| held || exclusive));
                prop_assert_eq!(locks.take(wanted).is_some(), excluded);
                if !excluded {
                    model[who as usize][bytes].fill(Some(exclusive));
                }
                for who in 0..OWNERS {
                    let of_owner: Vec<_> = locks.all().iter().filter(|l| l.owner == owner(who)).collect();
                    for byte in 0..BYTES {
                        let held: Vec<_> = of_owner.iter().filter(|l| l.meets(at(byte), at(byte))).collect();
                        prop_assert!(held.len() <= 1);
                        prop_assert_eq!(held.first().map(|l| l.exclusive), model[who as usize][byte as usize]);
                    }
                    for pair in of_owner.windows(2) {
                        let touch = pair[0].end + 1 == pair[1].start;
                        prop_assert!(!(touch && pair[0].exclusive == pair[1].exclusive), "they are one");
                    }
                    let in_gap = |byte| locks.gaps(owner(who)).iter().any(|gap| gap.0 <= byte && byte <= gap.1);
                    for byte in 0..BYTES {
                        prop_assert_eq!(in_gap(at(byte)), model[who as usize][byte as usize].is_none());
                    }
                }
            }
        }
    }

    fn lock(owner: LockOwner, exclusive: bool) -> FileLock {
        FileLock { owner, process: 1, start: 0, end: u64::MAX, exclusive }
    }

    #[test]
    fn families_are_independent() {
        let mut locks = FileLocks::default();
        let other = LockOwner { family: LockFamily::Flock, ..owner(2) };
        assert_eq!(locks.take(lock(owner(1), true)), None);
        assert_eq!(locks.take(lock(other, true)), None);
        assert_eq!(locks.take(lock(owner(3), false)), Some(lock(owner(1), true)));
        assert_eq!(locks.all().len(), 2);
    }

    #[test]
    fn a_conversion_by_flock_in_vain_loses_the_lock() {
        let flock = |number| LockOwner { family: LockFamily::Flock, ..owner(number) };
        for (of, kept) in [(flock as fn(u64) -> LockOwner, false), (owner, true)] {
            let mut locks = FileLocks::default();
            assert_eq!(locks.take(lock(of(1), false)), None);
            assert_eq!(locks.take(lock(of(2), false)), None);
            assert_eq!(locks.take(lock(of(1), true)), Some(lock(of(2), false)));
            assert_eq!(locks.has(of(1), 0, 0), kept);
        }
    }
}
