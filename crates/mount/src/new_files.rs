//! Attributes of new files. A program such as `tar` creates a file, writes it, and sets its time, owner and mode before
//! it closes it. The mount keeps these changes, and sends them in one request at the latest after 0.3 to 0.6 seconds.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use fuser::INodeNo;
use outcore_client::Attributes;
use outcore_core::{ErrorKind, Inode, Result, path_at};

use crate::Client;
use crate::ahead::FRESH;
use crate::open_files::OpenFiles;

/// Permission bits of users other than the owner.
const OTHERS: u32 = 0o077;
/// Permission bits of all users.
const RIGHTS: u32 = 0o777;

/// The attributes of a file that this mount has created, while programs have it open.
#[derive(Default)]
pub(crate) struct NewFile {
    state: Mutex<Option<State>>,
    /// Whether a time is kept, which the next write makes void.
    has_time: AtomicBool,
    /// End of the bytes that were written through this mount.
    end: AtomicU64,
    /// Whether a thread sends changes now.
    is_sending: AtomicBool,
}

struct State {
    /// The record as programs of this mount see it.
    inode: Inode,
    /// When the manager and the servers had the other values of the record, and the length.
    known: Option<Instant>,
    /// The changes that the manager does not know yet, and the time of the first one.
    kept: Attributes,
    since: Option<Instant>,
}

impl State {
    fn is_known(&self) -> bool {
        self.known.is_some_and(|known| known.elapsed() < FRESH)
    }
}

impl NewFile {
    fn state(&self) -> MutexGuard<'_, Option<State>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records a file that this mount has just created.
    pub fn begin(&self, inode: Inode) {
        let (known, kept) = (Some(Instant::now()), Attributes::default());
        *self.state() = Some(State { inode, known, kept, since: None });
    }

    /// Records a write up to `end`.
    pub fn written(&self, end: u64) {
        self.end.fetch_max(end, Ordering::AcqRel);
        self.drop_time();
    }

    /// Whether a time is kept.
    pub fn has_time(&self) -> bool {
        self.has_time.load(Ordering::Acquire)
    }

    /// Drops a time that is kept: the file has changed since.
    pub fn drop_time(&self) {
        if self.has_time.swap(false, Ordering::AcqRel)
            && let Some(state) = &mut *self.state()
        {
            (state.kept.modified_ns, state.known) = (None, None);
        }
    }

    /// Asks the manager and the servers from now on.
    pub fn forget(&self) {
        self.drop_time();
        self.ask();
    }

    /// Asks the manager and the servers from now on, but keeps the changes that they do not know yet.
    pub fn ask(&self) {
        if let Some(state) = &mut *self.state() {
            state.known = None;
        }
    }

    /// The record and the length, if they are at most a second old.
    pub fn known(&self) -> Option<(Inode, u64)> {
        let state = self.state();
        let state = state.as_ref().filter(|state| state.is_known())?;
        Some((state.inode.clone(), self.end.load(Ordering::Acquire)))
    }

    /// The same, if the time is also that of the last change: nothing was written, or the kept time was set later.
    pub fn current(&self) -> Option<(Inode, u64)> {
        self.known().filter(|(_, end)| *end == 0 || self.has_time())
    }

    /// The manager's record with the changes that it does not know yet.
    pub fn shown(&self, inode: &Inode) -> Inode {
        let kept = self.state().as_ref().map(|state| state.kept).unwrap_or_default();
        with(inode.clone(), kept)
    }

    /// Keeps changes, if that makes no difference but of time. `may_give` says that the mount's user may give files to
    /// others. Each change that takes a right away is at once.
    pub fn keep(&self, wanted: Attributes, may_give: bool, now_ns: u64) -> bool {
        let mut state = self.state();
        // An older record may have more rights than another client has left.
        let Some(state) = state.as_mut().filter(|state| state.is_known()) else { return false };
        let inode = &state.inode;
        let adds = wanted
            .mode
            .is_none_or(|mode| inode.mode & !mode & RIGHTS == 0 && (inode.mode ^ mode) & !RIGHTS == 0);
        let is_same = wanted.owner.is_none_or(|owner| owner == inode.owner)
            && wanted.group.is_none_or(|group| group == inode.group);
        // Nobody but the owner has a right that the old owner or group would keep for longer.
        let is_private = may_give && inode.mode & OTHERS == 0;
        if !adds || !(is_same || is_private) {
            return false;
        }
        let inode = with(inode.clone(), wanted);
        state.inode = Inode { changed_ns: now_ns, ..inode };
        state.kept = over(state.kept, wanted);
        state.since.get_or_insert_with(Instant::now);
        if wanted.modified_ns.is_some() {
            self.has_time.store(true, Ordering::Release);
        }
        true
    }

    /// Sends changes, together with those that are kept. The servers have all writes before them.
    pub fn change(&self, client: &Client, path: &str, wanted: Attributes, now_ns: u64) -> Result<()> {
        let mut state = self.state();
        let Some(state) = &mut *state else { return client.set_attributes(path, wanted) };
        let all = over(state.kept, wanted);
        client.set_attributes(path, all)?;
        self.sent(state);
        state.inode = Inode { changed_ns: now_ns, ..with(state.inode.clone(), wanted) };
        Ok(())
    }

    /// Sends the changes that are kept. The servers have all writes before them.
    pub fn send(&self, client: &Client) -> Result<()> {
        let mut state = self.state();
        let Some(state) = state.as_mut().filter(|state| state.since.is_some()) else { return Ok(()) };
        match client.set_attributes(&path_at(state.inode.handle), state.kept) {
            // Another client has removed it.
            Err(error) if error.kind == ErrorKind::NotFound => {}
            sent => sent?,
        }
        self.sent(state);
        Ok(())
    }

    fn sent(&self, state: &mut State) {
        self.has_time.store(false, Ordering::Release);
        (state.kept, state.since) = (Attributes::default(), None);
    }

    /// Begins to send changes in another thread, unless one does so already.
    pub fn begin_sending(&self) -> bool {
        !self.is_sending.swap(true, Ordering::AcqRel)
    }

    /// Records that this thread has ended.
    pub fn end_sending(&self) {
        self.is_sending.store(false, Ordering::Release);
    }

    /// Whether changes are kept, and whether that is so since `age`.
    pub fn keeps(&self, age: Duration) -> (bool, bool) {
        match self.state.try_lock() {
            Ok(state) => {
                let since = state.as_ref().and_then(|state| state.since);
                (since.is_some(), since.is_some_and(|since| since.elapsed() >= age))
            }
            // Somebody sends them now.
            Err(_) => (true, false),
        }
    }
}

impl OpenFiles {
    /// Records a file that this mount has created.
    pub fn created(&self, number: INodeNo, inode: Inode) {
        if let Some(body) = self.body(number).filter(|_| self.is_cached) {
            body.new.begin(inode);
        }
    }

    /// The record and length of a file that this mount has created within a second.
    pub fn known(&self, number: INodeNo) -> Option<(Inode, u64)> {
        self.body(number).and_then(|body| body.new.known())
    }

    /// The same, if the time is also that of the last change.
    pub fn current(&self, number: INodeNo) -> Option<(Inode, u64)> {
        self.body(number).and_then(|body| body.new.current())
    }

    /// The manager's record with the changes that it does not know yet.
    pub fn shown(&self, number: INodeNo, inode: &Inode) -> Option<Inode> {
        self.body(number).map(|body| body.new.shown(inode))
    }

    /// Keeps changes of attributes for a later request, or sends them now, with those that are kept.
    pub fn set_attributes(
        &self,
        number: INodeNo,
        path: &str,
        wanted: Attributes,
        may_give: bool,
        now_ns: u64,
    ) -> Result<()> {
        let Some(body) = self.body(number) else { return self.client().set_attributes(path, wanted) };
        if body.new.keep(wanted, may_give, now_ns) {
            self.wake();
            return Ok(());
        }
        if wanted.modified_ns.is_some() || body.new.has_time() {
            // Otherwise they would change the time later.
            body.settle(self.client());
        }
        body.new.change(self.client(), path, wanted, now_ns)
    }

    /// Sends the changes of attributes of a new file that are kept.
    pub fn send_attributes(&self, number: INodeNo) -> Result<()> {
        let Some(body) = self.body(number).filter(|body| body.new.keeps(Duration::ZERO).0) else {
            return Ok(());
        };
        body.settle(self.client());
        body.new.send(self.client())
    }

    /// Asks the manager for the record of a file from now on: its time is set otherwise.
    pub fn forget(&self, number: INodeNo) {
        if let Some(body) = self.body(number) {
            body.new.forget();
        }
    }
}

/// Later changes over earlier ones.
fn over(earlier: Attributes, later: Attributes) -> Attributes {
    Attributes {
        mode: later.mode.or(earlier.mode),
        owner: later.owner.or(earlier.owner),
        group: later.group.or(earlier.group),
        modified_ns: later.modified_ns.or(earlier.modified_ns),
    }
}

/// A record with changes.
fn with(inode: Inode, changes: Attributes) -> Inode {
    Inode {
        mode: changes.mode.unwrap_or(inode.mode),
        owner: changes.owner.unwrap_or(inode.owner),
        group: changes.group.unwrap_or(inode.group),
        modified_ns: changes.modified_ns.unwrap_or(inode.modified_ns),
        ..inode
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::{Durable, Handle};

    fn new(mode: u32) -> NewFile {
        let inode = Inode {
            handle: Handle(7),
            layout: None,
            owner: 1,
            group: 2,
            mode,
            modified_ns: 3,
            changed_ns: 3,
            durable: Durable::default(),
            target: None,
        };
        let file = NewFile::default();
        file.begin(inode);
        file
    }

    fn mode(mode: u32) -> Attributes {
        Attributes { mode: Some(mode), ..Attributes::default() }
    }

    fn owner(owner: u32, group: u32) -> Attributes {
        Attributes { owner: Some(owner), group: Some(group), ..Attributes::default() }
    }

    #[test]
    fn changes_that_take_no_right_away_are_kept() {
        let table = [
            (0o600, mode(0o644), true, true),
            (0o600, mode(0o600), false, true),
            (0o644, mode(0o600), true, false),
            (0o600, mode(0o400), true, false),
            (0o600, mode(0o1644), true, false),
            (0o600, owner(5, 6), true, true),
            (0o600, owner(5, 6), false, false),
            (0o600, owner(1, 2), false, true),
            (0o644, owner(1, 2), false, true),
            (0o640, owner(1, 6), true, false),
            (0o601, owner(5, 2), true, false),
        ];
        for (before, wanted, may_give, is_kept) in table {
            assert_eq!(new(before).keep(wanted, may_give, 9), is_kept, "{before:o} {wanted:?} {may_give}");
        }
    }

    #[test]
    fn programs_see_kept_changes() {
        let file = new(0o600);
        let time = Attributes { modified_ns: Some(50), ..Attributes::default() };
        for wanted in [time, owner(5, 6), mode(0o644)] {
            assert!(file.keep(wanted, true, 9));
        }
        let (known, end) = file.known().unwrap();
        assert_eq!((known.mode, known.owner, known.group, known.modified_ns, end), (0o644, 5, 6, 50, 0));
        assert_eq!(file.keeps(Duration::ZERO), (true, true));
        assert!(file.current().is_some());
        let older = Inode { modified_ns: 4, mode: 0o600, owner: 1, group: 2, ..known };
        assert_eq!((file.shown(&older).mode, file.shown(&older).modified_ns), (0o644, 50));
        // A write makes the time void. The manager will say which it is.
        file.written(10);
        assert!(file.known().is_none());
        assert_eq!((file.shown(&older).owner, file.shown(&older).modified_ns), (5, 4));
    }
}
