//! Locks on ranges of a file, with the rules of fcntl(2) and flock(2).

use std::collections::BTreeMap;
use std::iter::successors;
use std::ops::Bound;

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

    /// The part of this lock in a range that it meets.
    fn within(self, start: u64, end: u64) -> Self {
        Self { start: self.start.max(start), end: self.end.min(end), ..self }
    }

    /// The kind of this lock.
    pub fn kind(&self) -> LockKind {
        if self.exclusive { LockKind::Exclusive } else { LockKind::Shared }
    }
}

/// The locks on a file. Those of one owner never overlap, and those of one owner and kind never touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FileLocks(BTreeMap<(LockOwner, u64), FileLock>);

impl FileLocks {
    /// Whether there are no locks.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The number of locks.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The locks, by owner and range.
    pub fn all(&self) -> impl Iterator<Item = FileLock> {
        self.0.values().copied()
    }

    /// The owners, in order.
    pub fn owners(&self) -> impl Iterator<Item = LockOwner> {
        let first = |after: Bound<(LockOwner, u64)>| {
            self.0.range((after, Bound::Unbounded)).next().map(|((owner, _), _)| *owner)
        };
        successors(first(Bound::Unbounded), move |owner| first(Bound::Excluded((*owner, u64::MAX))))
    }

    /// The locks of an owner that meet a range, in order.
    fn meeting(&self, owner: LockOwner, start: u64, end: u64) -> impl Iterator<Item = FileLock> {
        let before = self.0.range((owner, 0)..=(owner, start)).next_back();
        let later = self.0.range((Bound::Excluded((owner, start)), Bound::Included((owner, end))));
        before.into_iter().chain(later).map(|(_, held)| *held).filter(move |held| held.meets(start, end))
    }

    /// The parts of an owner's locks in a range.
    pub fn parts(&self, owner: LockOwner, start: u64, end: u64) -> Vec<FileLock> {
        self.meeting(owner, start, end).map(|held| held.within(start, end)).collect()
    }

    /// Whether an owner has a lock that meets a range.
    pub fn has(&self, owner: LockOwner, start: u64, end: u64) -> bool {
        self.meeting(owner, start, end).next().is_some()
    }

    /// The ranges without a lock of an owner, by first and last byte.
    pub fn gaps(&self, owner: LockOwner) -> Vec<(u64, u64)> {
        let (mut next, mut gaps) = (Some(0), vec![]);
        for held in self.meeting(owner, 0, u64::MAX) {
            gaps.extend(next.filter(|next| *next < held.start).map(|next| (next, held.start - 1)));
            next = held.end.checked_add(1);
        }
        gaps.extend(next.map(|next| (next, u64::MAX)));
        gaps
    }

    /// The first lock that excludes `wanted`, by its range.
    pub fn conflict(&self, wanted: &FileLock) -> Option<FileLock> {
        let is_other = |owner: &LockOwner| *owner != wanted.owner && owner.family == wanted.owner.family;
        let of_owner = |owner| {
            let mut held = self.meeting(owner, wanted.start, wanted.end);
            held.find(|held| held.exclusive || wanted.exclusive)
        };
        self.owners().filter(is_other).filter_map(of_owner).min_by_key(|held| held.start)
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
        let owner = wanted.owner;
        self.unlock(owner, wanted.start, wanted.end);
        let mut whole = wanted;
        // Those that meet this range now touch the new lock.
        let neighbours = self.meeting(owner, wanted.start.saturating_sub(1), wanted.end.saturating_add(1));
        let alike: Vec<FileLock> = neighbours.filter(|held| held.exclusive == wanted.exclusive).collect();
        for held in alike {
            self.0.remove(&(owner, held.start));
            whole.start = whole.start.min(held.start);
            whole.end = whole.end.max(held.end);
        }
        self.insert(whole);
    }

    fn insert(&mut self, lock: FileLock) {
        self.0.insert((lock.owner, lock.start), lock);
    }

    /// Removes the locks of an owner in a range, and returns the removed parts; a lock that is longer is divided.
    pub fn unlock(&mut self, owner: LockOwner, start: u64, end: u64) -> Vec<FileLock> {
        let met: Vec<FileLock> = self.meeting(owner, start, end).collect();
        for held in &met {
            self.0.remove(&(owner, held.start));
            if held.start < start {
                self.insert(FileLock { end: start - 1, ..*held });
            }
            if held.end > end {
                self.insert(FileLock { start: end + 1, ..*held });
            }
        }
        met.into_iter().map(|held| held.within(start, end)).collect()
    }

    /// Keeps the locks of some owners only.
    pub fn keep(&mut self, mut is_kept: impl FnMut(LockOwner) -> bool) {
        self.0.retain(|(owner, _), _| is_kept(*owner));
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
                    model[who as usize][bytes.clone()].fill(Some(exclusive));
                }
                let owners = (0..OWNERS).filter(|who| model[*who as usize].iter().any(Option::is_some));
                prop_assert!(locks.owners().eq(owners.map(owner)));
                for who in 0..OWNERS {
                    let parts = locks.parts(owner(who), at(from), at(to));
                    prop_assert_eq!(&parts, &locks.clone().unlock(owner(who), at(from), at(to)));
                    prop_assert_eq!(locks.has(owner(who), at(from), at(to)), !parts.is_empty());
                    let of_parts: u64 = parts.iter().map(|part| part.end - part.start + 1).sum();
                    let of_model = model[who as usize][bytes.clone()].iter().flatten().count();
                    prop_assert_eq!(of_parts, of_model as u64);
                    let of_owner: Vec<_> = locks.all().filter(|l| l.owner == owner(who)).collect();
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
        assert_eq!(locks.len(), 2);
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
