//! An open file of a pool: its layout, its grant, and its known length.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::{
    Error, ErrorKind, Gather, Grant, GrantTime, Handle, IoReply, IoRequest, Layout, Link, Opened, Regions,
    Result, ServerId, Target,
};

use crate::pool::call::{Call, loss, unexpected};
use crate::pool::durable::{AskedOf, DataEnd, Short, Tracked, lost};
use crate::pool::runs::Question;

/// Seconds until the next attempt, after a renewal failed while the old grant is still valid.
const AGAIN_AFTER_S: u64 = 5;

/// Callback that gets a grant, or the reason why there is none.
pub(crate) type OnGrant = Box<dyn FnOnce(Result<Grant>) + Send>;

pub(crate) struct PoolFile {
    pub(crate) path: Arc<str>,
    pub(crate) handle: Handle,
    pub(crate) layout: Layout,
    pub(crate) writable: bool,
    /// The minimum length of the file.
    length: AtomicU64,
    /// Number of losses of writes that this open file has reported to its user.
    losses: AtomicU64,
    /// Number of restarts of servers after which this client learned the generations that the manager knows.
    pub(crate) restarts: AtomicU64,
    /// Asks the manager for them.
    pub(crate) question: Question,
    tracked: Mutex<Tracked>,
    rights: Mutex<Rights>,
}

struct Rights {
    grant: Grant,
    time: GrantTime,
    renewing: bool,
    waiting: Vec<OnGrant>,
}

impl PoolFile {
    /// A file that the manager opened after this many restarts of servers.
    pub(crate) fn new(
        path: String,
        opened: Opened,
        writable: bool,
        now_s: u64,
        restarts: u64,
    ) -> Result<Self> {
        let Some(layout) = opened.inode.layout else {
            return Err(Error::invalid(format!("{path} is a directory, not a file; check the path")));
        };
        let rights = Rights {
            grant: opened.grant,
            time: GrantTime::new(&opened.grant, now_s),
            renewing: false,
            waiting: Vec::new(),
        };
        Ok(Self {
            path: path.into(),
            handle: opened.inode.handle,
            layout,
            writable,
            length: AtomicU64::new(0),
            losses: AtomicU64::new(0),
            restarts: AtomicU64::new(restarts),
            question: Question::default(),
            tracked: Mutex::new(Tracked::new(opened.inode.durable)),
            rights: Mutex::new(rights),
        })
    }

    fn rights(&self) -> MutexGuard<'_, Rights> {
        self.rights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The durable lengths.
    pub(crate) fn tracked(&self) -> MutexGuard<'_, Tracked> {
        self.tracked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The data files of some calls, which are not sent yet.
    pub(crate) fn asked_of<B>(&self, calls: &[Call<B>]) -> AskedOf {
        // The number comes first: a task adds the generations before it raises the number.
        let compared = self.restarts.load(Ordering::Acquire);
        self.tracked().asked_of(calls, compared)
    }

    /// The error for a data file that is shorter than its durable length.
    pub(crate) fn lost(&self, short: Short) -> Error {
        lost(&self.path, &self.layout, short)
    }

    /// The length of each data file, for a file of `length` bytes.
    pub(crate) fn local_lengths(&self, length: u64) -> Vec<u64> {
        let stripes = self.layout.stripes;
        (0..stripes.count()).map(|entry| stripes.local_length(entry, length)).collect()
    }

    /// The grant, if it is valid now.
    pub(crate) fn current_grant(&self, now_s: u64) -> Option<Grant> {
        let rights = self.rights();
        (!rights.time.is_over(now_s)).then_some(rights.grant)
    }

    /// Passes a valid grant to `then`, or keeps `then` until a new grant arrives. If the result is true, the
    /// caller must renew the grant and call [`PoolFile::renewed`].
    pub(crate) fn with_grant(&self, now_s: u64, then: OnGrant) -> bool {
        let mut rights = self.rights();
        let grant = rights.grant;
        let is_over = rights.time.is_over(now_s);
        let due = rights.time.is_due(now_s) && !rights.renewing;
        rights.renewing |= due;
        if is_over {
            rights.waiting.push(then);
        } else {
            drop(rights);
            then(Ok(grant));
        }
        due
    }

    /// Stores a new grant, or the reason why there is none, and passes it to the waiting callbacks.
    pub(crate) fn renewed(&self, grant: Result<Grant>, now_s: u64) {
        let mut rights = self.rights();
        rights.renewing = false;
        match &grant {
            Ok(grant) => {
                rights.grant = *grant;
                rights.time = GrantTime::new(grant, now_s);
            }
            Err(_) => rights.time.put_off(now_s, AGAIN_AFTER_S),
        }
        let waiting = std::mem::take(&mut rights.waiting);
        drop(rights);
        for then in waiting {
            then(grant.clone());
        }
    }

    /// Records that a server refused this grant, so that the next request gets a new one.
    pub(crate) fn refused(&self, grant: &Grant) {
        let mut rights = self.rights();
        if rights.grant == *grant {
            rights.time.refused();
        }
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::ReadOnly,
            format!("{} is open for reading only; open it with mode=\"r+\"", self.path),
        ))
    }

    pub(crate) fn known_length(&self) -> u64 {
        self.length.load(Ordering::Acquire)
    }

    pub(crate) fn set_known_length(&self, length: u64) {
        self.length.store(length, Ordering::Release);
    }

    pub(crate) fn is_at_least(&self, length: u64) {
        self.length.fetch_max(length, Ordering::AcqRel);
    }

    /// Compares the number of reported losses of writes with the number known here. Returns an error if it is
    /// higher.
    pub(crate) fn told(&self, losses: u64) -> Result<()> {
        if self.losses.fetch_max(losses, Ordering::AcqRel) < losses {
            Err(loss(&self.path, &[]))
        } else {
            Ok(())
        }
    }

    /// An entry of the file, with the generation that its data file has had as far as this client knows.
    pub(crate) fn target(&self, entry: u64) -> Target {
        let generation = self.tracked().end_of(entry).generation;
        Target { handle: self.handle, stripes: self.layout.stripes, entry, generation }
    }

    /// One call to each of the file's servers for which `make` returns a request.
    pub(crate) fn calls<B>(&self, make: impl Fn(Target) -> Option<(IoRequest, B)>) -> Vec<Call<B>> {
        let servers = self.layout.servers.iter().zip(0..);
        servers
            .filter_map(|(&server, entry)| {
                let target = self.target(entry);
                let (path, generation) = (self.path.clone(), target.generation);
                make(target).map(|(request, buffer)| Call {
                    server,
                    path,
                    request,
                    buffer,
                    entry,
                    generation,
                })
            })
            .collect()
    }

    /// One call to each server with a part of the regions, with a view of that part of the buffer.
    pub(crate) fn parts<B: Gather>(
        &self,
        regions: &Regions,
        buffer: &B,
        make: impl Fn(Target, Regions) -> IoRequest,
    ) -> Vec<Call<B>> {
        self.calls(|target| {
            let runs = regions.local_runs(target.stripes, target.entry);
            let part = buffer.gather(runs.map(|run| (run.at as usize, run.length as usize)));
            (!part.is_empty()).then(|| (make(target, regions.clone()), part))
        })
    }

    /// For each of the file's servers: its number if it is retired.
    pub(crate) fn retired<L: Link + ?Sized>(&self, link: &L) -> Vec<Option<ServerId>> {
        self.layout.servers.iter().map(|&server| link.is_retired(server).then_some(server)).collect()
    }

    /// Calls that return the length of each data file.
    pub(crate) fn length_calls<B: Gather>(&self, grant: Grant, none: &B) -> Vec<Call<B>> {
        self.calls(|target| Some((IoRequest::Length { target, grant }, none.clone())))
    }

    /// The same calls without retired servers.
    pub(crate) fn length_calls_of_others<B: Gather>(
        &self,
        grant: Grant,
        retired: &[Option<ServerId>],
        none: &B,
    ) -> Vec<Call<B>> {
        let mut calls = self.length_calls(grant, none);
        calls.retain(|call| retired[call.entry as usize].is_none());
        calls
    }

    /// Calls that sync each data file.
    pub(crate) fn sync_calls<B: Gather>(&self, grant: Grant, none: &B) -> Vec<Call<B>> {
        self.calls(|target| Some((IoRequest::Sync { target, grant }, none.clone())))
    }

    /// Calls that set the length of each data file, for a file of `length` bytes.
    pub(crate) fn resize_calls<B: Gather>(
        &self,
        grant: Grant,
        length: u64,
        reserve: bool,
        none: &B,
    ) -> Vec<Call<B>> {
        self.calls(|target| {
            let local_length = target.stripes.local_length(target.entry, length);
            Some((IoRequest::SetLength { target, grant, local_length, reserve }, none.clone()))
        })
    }

    /// Calls that reserve the disk space of each data file, for a file of at least `length` bytes.
    pub(crate) fn reserve_calls<B: Gather>(&self, grant: Grant, length: u64, none: &B) -> Vec<Call<B>> {
        self.calls(|target| {
            let local_length = target.stripes.local_length(target.entry, length);
            let request = IoRequest::Reserve { target, grant, local_length };
            (local_length > 0).then(|| (request, none.clone()))
        })
    }

    /// The length of the file, from the lengths of its data files.
    pub(crate) fn length_from(&self, replies: &[IoReply]) -> Result<u64> {
        let mut length = 0;
        for (local, entry) in local_lengths_of(replies)?.into_iter().zip(0..) {
            let least = self.layout.stripes.length_from(entry, local).ok_or_else(|| {
                Error::new(
                    ErrorKind::Corrupt,
                    format!("a data file of {} is said to be {local} bytes long, which cannot be", self.path),
                )
            })?;
            length = length.max(least);
        }
        Ok(length)
    }
}

/// The state of data files at a sync.
pub(crate) fn ends_of(replies: &[IoReply]) -> Result<Vec<DataEnd>> {
    let end = |reply: &IoReply| match reply {
        IoReply::Synced { length, generation } => Ok(DataEnd { length: *length, generation: *generation }),
        IoReply::Absent => Ok(DataEnd::default()),
        reply => Err(unexpected(reply)),
    };
    replies.iter().map(end).collect()
}

/// The lengths of data files.
fn local_lengths_of(replies: &[IoReply]) -> Result<Vec<u64>> {
    let length = |reply: &IoReply| match reply {
        IoReply::Length(length) => Ok(*length),
        IoReply::Absent => Ok(0),
        reply => Err(unexpected(reply)),
    };
    replies.iter().map(length).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::{Durable, Inode};

    fn file(expires_s: u64, now_s: u64) -> PoolFile {
        let inode = Inode {
            handle: Handle(7),
            layout: Some(Layout::new(10, vec![ServerId(1), ServerId(2)]).unwrap()),
            owner: 0,
            group: 0,
            mode: 0o644,
            modified_ns: 0,
            changed_ns: 0,
            durable: Durable::default(),
            target: None,
        };
        PoolFile::new("f".into(), Opened { inode, grant: grant(expires_s) }, true, now_s, 0).unwrap()
    }

    fn grant(expires_s: u64) -> Grant {
        Grant { handle: Handle(7), write: true, expires_s, mac: [0; 32] }
    }

    #[test]
    fn a_grant_is_renewed_once_before_it_ends_and_awaited_after() {
        let (file, got) = (file(1000, 0), Arc::new(Mutex::new(vec![])));
        let ask = |now_s| {
            let got = got.clone();
            file.with_grant(now_s, Box::new(move |grant| got.lock().unwrap().push(grant.unwrap().expires_s)))
        };
        assert!(!ask(900));
        assert!(ask(940), "a minute before its end");
        assert!(!ask(950), "one renewal is enough");
        assert!(!ask(999));
        assert_eq!(*got.lock().unwrap(), [1000; 3], "the last one waits");
        file.renewed(Ok(grant(2000)), 999);
        assert_eq!(*got.lock().unwrap(), [1000, 1000, 1000, 2000]);
        assert!(!ask(1001));
    }

    #[test]
    fn a_grant_that_was_refused_is_renewed() {
        let file = file(1000, 900);
        file.refused(&grant(1));
        assert!(!file.with_grant(0, Box::new(drop)), "another one was refused");
        file.refused(&grant(1000));
        assert!(file.current_grant(0).is_none() && file.with_grant(0, Box::new(drop)));
        file.renewed(Ok(grant(1600)), 0);
        assert!(file.current_grant(0).is_some());
    }

    #[test]
    fn who_waits_learns_that_there_is_no_grant() {
        let (file, got) = (file(10, 0), Arc::new(Mutex::new(None)));
        let note = got.clone();
        let then = Box::new(move |grant| *note.lock().unwrap() = Some(grant));
        assert!(file.with_grant(50, then));
        let denied = Error::new(ErrorKind::Denied, "gone");
        file.renewed(Err(denied.clone()), 50);
        assert_eq!(*got.lock().unwrap(), Some(Err(denied)));
        assert!(file.with_grant(51, Box::new(drop)), "the next one tries again");
    }

    #[test]
    fn the_longest_reach_of_a_data_file_is_the_length() {
        let file = file(10, 0);
        for (locals, length) in [([0, 0], 0), ([10, 4], 14), ([14, 10], 24), ([0, 3], 13)] {
            assert_eq!(file.length_from(&locals.map(IoReply::Length)), Ok(length));
        }
        assert_eq!(file.length_from(&[IoReply::Done]).unwrap_err().kind, ErrorKind::Io);
        assert_eq!(file.length_from(&[IoReply::Length(u64::MAX); 1]).unwrap_err().kind, ErrorKind::Corrupt);
    }
}
