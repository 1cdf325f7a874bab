//! Locks of programs. The manager holds them under a lease of this mount, which a thread renews.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use fuser::{Errno, FileHandle, INodeNo, ReplyLock};
use outcore_core::{
    ErrorKind, FileLock, FileLocks, Handle, LockFamily, LockKind, LockOwner, LockWish, Result,
};

use crate::Client;
use crate::errors::Answer;
use crate::lock_calls::Wanted;
use crate::lock_errors::{is_certain, refused, refused_at_first};
use crate::lock_waits::Waits;
use crate::term::Term;

/// The mount renews its lease this many times in its term.
const RENEWALS: u32 = 4;
/// Gathered writes are at the servers after this time.
const GATHERED: Duration = Duration::from_secs(1);

/// The locks of a mount.
pub(crate) struct Locks {
    client: Arc<Client>,
    lease: u128,
    /// Held during requests to the manager, so that it is in the order of their answers.
    state: Mutex<State>,
    /// A summary for reads and writes: never held during a request.
    view: Mutex<View>,
    has_view: AtomicBool,
    renewing: OnceLock<()>,
    pub waits: Waits,
}

#[derive(Default)]
struct State {
    /// The locks that the manager has granted, by files.
    held: HashMap<u64, FileLocks>,
    /// Those among them that it has forgotten in a restart, and that this mount has not reclaimed yet.
    reclaims: Vec<(u64, FileLock)>,
    /// The locks that others may have taken, until their owners learn that: by an error of the call that unlocks them.
    lost: HashMap<u64, FileLocks>,
    /// Owners, by files, of which the manager may have more locks than `held`, because an answer was lost.
    in_doubt: HashSet<(u64, LockOwner)>,
    /// The term of the lease; `None` without one.
    term: Option<Term>,
    /// Whether the last renewal is complete. Otherwise the manager may have restarted.
    is_renewed: bool,
    /// When the manager did not answer.
    failed: Option<Instant>,
}

#[derive(Default)]
struct View {
    /// The owners of locks, and of lost ones, by files.
    held: HashMap<u64, HashSet<LockOwner>>,
    lost: HashMap<u64, HashSet<LockOwner>>,
    /// The file of each descriptor through which locks were taken, and their owners.
    through: HashMap<u64, (u64, HashSet<LockOwner>)>,
    term: Option<Term>,
}

impl State {
    fn is_in_term(&self) -> bool {
        self.term.is_some_and(|term| !term.is_over())
    }

    /// Records that others may have taken an owner's locks in a range of a file.
    fn lose(&mut self, file: u64, owner: LockOwner, start: u64, end: u64) {
        for lock in remove(&mut self.held, file, owner, start, end) {
            self.lost.entry(file).or_default().set(lock);
        }
    }
}

/// Removes the locks of an owner in a range of a file, and returns them.
fn remove(
    files: &mut HashMap<u64, FileLocks>,
    file: u64,
    owner: LockOwner,
    start: u64,
    end: u64,
) -> Vec<FileLock> {
    let Some(locks) = files.get_mut(&file) else { return vec![] };
    let removed = locks.unlock(owner, start, end);
    if locks.is_empty() {
        files.remove(&file);
    }
    removed
}

fn has(files: &HashMap<u64, FileLocks>, file: u64, owner: LockOwner, start: u64, end: u64) -> bool {
    files.get(&file).is_some_and(|locks| locks.has(owner, start, end))
}

impl Locks {
    pub fn new(client: Arc<Client>) -> Self {
        let random = || u128::from(RandomState::new().hash_one((Instant::now(), std::process::id())));
        Self {
            client,
            lease: random() << 64 | random(),
            state: Mutex::default(),
            view: Mutex::default(),
            has_view: AtomicBool::new(false),
            renewing: OnceLock::new(),
            waits: Waits::default(),
        }
    }

    /// The state, and whether the manager did not answer a caller who had it before.
    fn state(&self) -> (MutexGuard<'_, State>, bool) {
        let since = Instant::now();
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let is_away = state.failed.is_some_and(|failed| failed > since);
        (state, is_away)
    }

    fn view(&self) -> MutexGuard<'_, View> {
        self.view.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn owner(&self, family: LockFamily, number: u64) -> LockOwner {
        LockOwner { lease: self.lease, family, number }
    }

    fn wish(&self, wanted: &Wanted) -> LockWish {
        let Wanted { number, process, start, end, kind, .. } = *wanted;
        let owner = self.owner(wanted.family, wanted.owner);
        // The number of a file is its handle.
        LockWish { handle: Handle(number.0), owner, process, start, end, kind, reclaims: false }
    }

    /// Takes or removes a lock. Returns whether it was granted.
    ///
    /// # Errors
    ///
    /// `EIO` if the owner has lost locks on the file, or the manager does not answer. A call that unlocks a lost lock
    /// ends this: the owner may take new ones.
    pub fn set(self: &Arc<Self>, wanted: &Wanted) -> Answer<bool> {
        let wish = self.wish(wanted);
        let (mut state, is_away) = self.state();
        let Some(lock) = wish.lock() else {
            let unlocked = self.unlock(&mut state, is_away, &wish);
            drop(state);
            self.waits.wake();
            return unlocked.map(|()| true);
        };
        if is_away {
            return Err(Errno::EIO);
        }
        let (file, owner) = (wanted.number.0, wish.owner);
        let converts = owner.family == LockFamily::Flock && has(&state.held, file, owner, 0, u64::MAX);
        if !converts && state.held.get(&file).is_some_and(|locks| locks.conflict(&lock).is_some()) {
            return Ok(false);
        }
        let through = || (file, HashSet::new());
        self.view().through.entry(wanted.handle.0).or_insert_with(through).1.insert(owner);
        for is_last in [false, true] {
            if is_last || !state.is_in_term() || !state.is_renewed {
                let number_of = if state.term.is_none() { refused_at_first } else { refused };
                self.renew(&mut state).map_err(number_of)?;
                self.renewing.get_or_init(|| renew_in_time(self));
            }
            if has(&state.lost, file, owner, 0, u64::MAX) {
                return Err(Errno::EIO);
            }
            self.agree(&mut state).map_err(refused)?;
            match self.client.set_lock(wish).map_err(|error| (error.kind, error)) {
                Ok(None) => {
                    state.held.entry(file).or_default().set(lock);
                    self.show(&state, file);
                    return Ok(true);
                }
                Ok(Some(_)) => {
                    if converts {
                        remove(&mut state.held, file, owner, 0, u64::MAX);
                        self.show(&state, file);
                    }
                    return Ok(false);
                }
                // The manager waits for locks from before its restart.
                Err((ErrorKind::Busy, _)) => return Ok(false),
                // It has restarted.
                Err((ErrorKind::Lost, _)) if !is_last => {}
                Err((kind, error)) if is_certain(kind) => return Err(refused(error)),
                Err((_, error)) => {
                    state.lose(file, owner, lock.start, lock.end);
                    state.in_doubt.insert((file, owner));
                    state.failed = Some(Instant::now());
                    self.show(&state, file);
                    return Err(refused(error));
                }
            }
        }
        Err(Errno::ENOLCK)
    }

    /// Removes the locks of an owner in a range, also if the manager does not answer. The error `EIO` says that the owner
    /// has lost some of them, `ENOLCK` that the manager has no room for the parts that would be left.
    fn unlock(&self, state: &mut State, is_away: bool, wish: &LockWish) -> Answer<()> {
        let LockWish { owner, start, end, .. } = *wish;
        let file = wish.handle.0;
        if has(&state.held, file, owner, start, end) && !state.is_in_term() && !is_away {
            // If the manager still has the lock, the owner has not lost it.
            let _ = self.renew(state);
        }
        let is_in_term = state.is_in_term();
        let held = remove(&mut state.held, file, owner, start, end);
        let lost = remove(&mut state.lost, file, owner, start, end);
        self.show(state, file);
        if held.is_empty() && lost.is_empty() {
            return Ok(());
        }
        let answer = if is_away || held.is_empty() { Ok(None) } else { self.client.set_lock(*wish) };
        if answer.as_ref().is_err_and(|error| error.kind == ErrorKind::Invalid) {
            for (files, locks) in [(&mut state.held, held), (&mut state.lost, lost)] {
                for lock in locks {
                    files.entry(file).or_default().set(lock);
                }
            }
            self.show(state, file);
            return Err(Errno::ENOLCK);
        }
        // Without a lease, the manager has no locks.
        let is_known = answer.as_ref().map_or_else(|error| error.kind == ErrorKind::Lost, |_| !is_away);
        if !held.is_empty() && !is_known {
            state.in_doubt.insert((file, owner));
        }
        if answer.is_err() && !is_known {
            state.failed = Some(Instant::now());
        }
        if lost.is_empty() && is_in_term { Ok(()) } else { Err(Errno::EIO) }
    }

    /// Answers with the lock that would exclude another, if any.
    pub fn test(&self, wanted: &Wanted, reply: ReplyLock) {
        match self.client.test_lock(self.wish(wanted)) {
            Ok(None) => reply.locked(0, 0, libc::F_UNLCK, 0),
            Ok(Some(held)) => {
                let kind = if held.exclusive { libc::F_WRLCK } else { libc::F_RDLCK };
                // The number of a process of another mount would mean another process here.
                let process = if held.owner.lease == self.lease { held.process } else { 0 };
                reply.locked(held.start, held.end.min(i64::MAX as u64), kind, process);
            }
            // The manager waits for locks from before its restart.
            Err(error) if error.kind == ErrorKind::Busy => reply.error(Errno::EAGAIN),
            Err(error) if !self.has_lease() => reply.error(refused_at_first(error)),
            Err(error) => reply.error(refused(error)),
        }
    }

    /// Removes all locks of a process on a file: it closes a descriptor of the file.
    pub fn flushed(self: &Arc<Self>, number: INodeNo, owner: u64) -> Answer<()> {
        let owner = self.owner(LockFamily::Fcntl, owner);
        for (file, owners) in self.view().through.values_mut() {
            if *file == number.0 {
                owners.remove(&owner);
            }
        }
        if self.is_shown(number, owner) { self.release(number, owner) } else { Ok(()) }
    }

    /// Removes the locks of flock(2), and those of open file descriptions, at the last close of a descriptor.
    pub fn closed(self: &Arc<Self>, number: INodeNo, handle: FileHandle) -> Answer<()> {
        let through = self.view().through.remove(&handle.0);
        let owners = through.map(|(_, owners)| owners).unwrap_or_default();
        owners.into_iter().map(|owner| self.release(number, owner)).fold(Ok(()), Answer::and)
    }

    /// Whether the close of a descriptor by a process removes locks of fcntl(2).
    pub fn ends_at_flush(&self, number: INodeNo, owner: u64) -> bool {
        self.is_shown(number, self.owner(LockFamily::Fcntl, owner))
    }

    /// Whether the last close of a descriptor removes locks.
    pub fn ends_at_close(&self, number: INodeNo, handle: FileHandle) -> bool {
        let owners = self.view().through.get(&handle.0).map(|(_, owners)| owners.clone()).unwrap_or_default();
        owners.into_iter().any(|owner| self.is_shown(number, owner))
    }

    /// Whether the mount has a lease. Then programs may have locks.
    pub fn has_lease(&self) -> bool {
        self.view().term.is_some()
    }

    fn is_shown(&self, number: INodeNo, owner: LockOwner) -> bool {
        let view = self.view();
        [&view.held, &view.lost].iter().any(|files| files.get(&number.0).is_some_and(|o| o.contains(&owner)))
    }

    fn release(self: &Arc<Self>, number: INodeNo, owner: LockOwner) -> Answer<()> {
        let (family, owner) = (owner.family, owner.number);
        let (handle, start, end, kind) = (FileHandle(0), 0, u64::MAX, LockKind::None);
        self.set(&Wanted { number, handle, family, owner, process: 0, start, end, kind }).map(drop)
    }

    /// Refuses to use a file for a program that has lost locks on it. The program is known by its descriptor, and by
    /// its number as an owner of locks.
    pub fn check(&self, number: INodeNo, handle: FileHandle, process: Option<u64>) -> Answer<()> {
        if !self.has_view.load(Ordering::Acquire) {
            return Ok(());
        }
        let process = process.map(|owner| self.owner(LockFamily::Fcntl, owner));
        for is_last in [false, true] {
            let view = self.view();
            let through = view.through.get(&handle.0).map(|(_, owners)| owners);
            let is_of = |owner: &LockOwner| {
                process.as_ref() == Some(owner) || through.is_some_and(|owners| owners.contains(owner))
            };
            let has = |files: &HashMap<u64, HashSet<LockOwner>>| {
                files.get(&number.0).is_some_and(|owners| owners.iter().any(is_of))
            };
            if has(&view.lost) {
                return Err(Errno::EIO);
            }
            if !has(&view.held) || view.term.is_some_and(|term| !term.is_over()) {
                return Ok(());
            }
            drop(view);
            // The manager may still have the lock.
            let (mut state, is_away) = self.state();
            if is_last || is_away || (!state.is_in_term() && self.renew(&mut state).is_err()) {
                return Err(Errno::EIO);
            }
        }
        Err(Errno::EIO)
    }

    /// Whether writes must go to the servers at once: others may have the locks before gathered ones are there.
    pub fn is_ending(&self) -> bool {
        self.has_view.load(Ordering::Acquire)
            && self.view().term.is_none_or(|term| term.ends_within(GATHERED))
    }

    /// Ends the lease and all waits, at the end of the mount.
    pub fn end(&self) {
        self.waits.end();
        let (mut state, _) = self.state();
        if state.term.take().is_some() {
            // Otherwise the lease ends by itself.
            let _ = self.client.end_lease(self.lease);
        }
    }

    /// Removes locks that only the manager has, because an answer was lost.
    fn agree(&self, state: &mut State) -> Result<()> {
        while let Some(&(file, owner)) = state.in_doubt.iter().next() {
            let gaps = state.held.get(&file).map_or_else(|| vec![(0, u64::MAX)], |locks| locks.gaps(owner));
            for (start, end) in gaps {
                let (handle, kind) = (Handle(file), LockKind::None);
                let wish = LockWish { handle, owner, process: 0, start, end, kind, reclaims: false };
                match self.client.set_lock(wish) {
                    // Without a lease, the manager has no locks.
                    Err(error) if error.kind != ErrorKind::Lost => {
                        state.failed = Some(Instant::now());
                        return Err(error);
                    }
                    _ => {}
                }
            }
            state.in_doubt.remove(&(file, owner));
        }
        Ok(())
    }

    /// Takes or renews the lease. If the manager has no locks of it, reclaims them; those that the manager does not restore
    /// are lost.
    fn renew(&self, state: &mut State) -> Result<()> {
        let renewed = self.renew_now(state);
        if renewed.is_err() {
            state.failed = Some(Instant::now());
        }
        self.view().term = state.term;
        self.show_all(state);
        renewed
    }

    fn renew_now(&self, state: &mut State) -> Result<()> {
        let asked = (Instant::now(), SystemTime::now());
        state.is_renewed = false;
        let (seconds, has_none) = self.client.renew_lease(self.lease)?;
        // Later, others may have had the locks before the manager restarted.
        let may_reclaim = state.is_in_term();
        if has_none {
            state.in_doubt.clear();
            let all = state.held.iter().flat_map(|(file, locks)| locks.all().map(|lock| (*file, lock)));
            state.reclaims = all.collect();
        }
        while let Some(&(file, FileLock { owner, start, end, .. })) = state.reclaims.last() {
            // Meanwhile the owner may have unlocked a part.
            let parts = state.held.get(&file).map(|locks| locks.parts(owner, start, end));
            for part in parts.unwrap_or_default() {
                if !may_reclaim || !self.reclaim(file, &part)? {
                    state.lose(file, owner, part.start, part.end);
                }
            }
            state.reclaims.pop();
        }
        state.term = Some(Term::new(asked, seconds));
        state.is_renewed = true;
        Ok(())
    }

    /// Asks for a lock from before a restart of the manager. Returns whether it restored the lock.
    fn reclaim(&self, file: u64, lock: &FileLock) -> Result<bool> {
        let FileLock { owner, process, start, end, .. } = *lock;
        let (handle, kind) = (Handle(file), lock.kind());
        match self.client.set_lock(LockWish { handle, owner, process, start, end, kind, reclaims: true }) {
            Ok(conflict) => Ok(conflict.is_none()),
            Err(error) if is_certain(error.kind) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Shows the locks of a file to reads and writes.
    fn show(&self, state: &State, file: u64) {
        let mut view = self.view();
        let View { held, lost, .. } = &mut *view;
        for (from, to) in [(&state.held, held), (&state.lost, lost)] {
            match from.get(&file) {
                Some(locks) => drop(to.insert(file, locks.owners().collect())),
                None => drop(to.remove(&file)),
            }
        }
        self.has_view.store(!view.held.is_empty() || !view.lost.is_empty(), Ordering::Release);
    }

    fn show_all(&self, state: &State) {
        let mut files: HashSet<u64> = state.held.keys().chain(state.lost.keys()).copied().collect();
        files.extend(self.view().held.keys());
        for file in files {
            self.show(state, file);
        }
    }

    /// Renews the lease, or ends it if there are no locks.
    fn tick(&self) {
        let (mut state, is_away) = self.state();
        if state.term.is_none() || is_away {
            return;
        }
        if !state.held.is_empty() {
            // If the manager does not answer, the next turn asks again.
            let _ = self.renew(&mut state).and_then(|()| self.agree(&mut state));
            return;
        }
        match self.client.end_lease(self.lease) {
            Err(error) if error.kind != ErrorKind::Lost => state.failed = Some(Instant::now()),
            _ => {
                state.term = None;
                state.reclaims.clear();
                state.in_doubt.clear();
                self.view().term = None;
            }
        }
    }
}

/// Starts the thread that renews the lease as long as the mount exists.
fn renew_in_time(locks: &Arc<Locks>) {
    let locks: Weak<Locks> = Arc::downgrade(locks);
    let pause = |locks: &Locks| {
        let term = locks.view().term;
        term.map_or(Duration::from_secs(1), |term| term.lasts) / RENEWALS
    };
    let renew = move || {
        while let Some(wait) = locks.upgrade().map(|locks| pause(&locks)) {
            thread::sleep(wait);
            if let Some(locks) = locks.upgrade() {
                locks.tick();
            }
        }
    };
    // Without the thread, the lease ends, and programs with locks get errors.
    let _ = thread::Builder::new().name("mount-lease".into()).spawn(renew);
}
