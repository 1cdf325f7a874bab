//! What the users of a pool share: its files that are open, their grants, and when they were written to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use outcore_core::{
    Error, ErrorKind, FileId, Gather, Grant, Handle, Hints, Inode, IoReply, Link, ManagerReply,
    ManagerRequest, Opened, Result, ServerId,
};
use outcore_disk::umask;

use crate::pool::WallClock;
use crate::pool_call::{Call, Servers, unexpected};
use crate::pool_file::PoolFile;

/// How often a request is made with a new grant where servers refuse it: a grant is over sooner than thought if clocks jump.
pub(crate) const TRIES: u32 = 4;

/// Permission bits of new files, but for those of the umask.
const FILE_MODE: u32 = 0o666;

pub(crate) struct Shared<L: Link + ?Sized> {
    pub(crate) servers: Servers<L>,
    pub(crate) clock: WallClock,
    /// An empty buffer, for messages without a payload.
    pub(crate) none: L::Buffer,
    pub(crate) pool: u128,
    numbers: RwLock<Numbers>,
    files: RwLock<HashMap<FileId, Arc<PoolFile>>>,
    next: AtomicU64,
    /// The files that were written to from here since the manager was told.
    written: Mutex<HashMap<Handle, Written>>,
    /// Held while the manager is told: else a time that somebody sets in between would be lost.
    telling: Mutex<()>,
}

/// The latest time that is taken from a clock, or from who sets one, in nanoseconds since 1970: in the year 2262. Times of
/// later writes count up from there.
pub(crate) const MOST_NS: u64 = i64::MAX as u64;

#[derive(Clone, PartialEq)]
struct Written {
    path: Arc<str>,
    last_ns: u64,
}

/// The numbers of the I/O servers of a pool.
#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) in_use: Vec<ServerId>,
    pub(crate) retired: Vec<ServerId>,
}

/// Asks which pool it is, and which servers it has.
fn numbers<L: Link + ?Sized>(link: &L) -> Result<(u128, Numbers)> {
    match link.manager(ManagerRequest::Servers)? {
        ManagerReply::Servers { pool, servers, retired } => {
            let in_use = servers.into_iter().map(|server| server.id).collect();
            Ok((pool, Numbers { in_use, retired }))
        }
        ManagerReply::Failed(error) => Err(error),
        reply => Err(unexpected(&reply)),
    }
}

impl<L: Link + ?Sized + 'static> Shared<L>
where
    L::Buffer: Gather + Sync,
{
    pub(crate) fn new(link: Arc<L>, clock: WallClock) -> Result<Self> {
        let (pool, numbers) = numbers(link.as_ref())?;
        Ok(Self {
            servers: Servers::new(link),
            clock,
            none: L::Buffer::allocate(1)?.gather([]),
            pool,
            numbers: RwLock::new(numbers),
            files: RwLock::default(),
            next: AtomicU64::new(1),
            written: Mutex::default(),
            telling: Mutex::default(),
        })
    }

    /// The servers that the pool had when it was opened, or one was last retired from here.
    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Retires a server, or takes that back.
    pub(crate) fn retire(&self, server: ServerId, undo: bool) -> Result<()> {
        match self.manager(ManagerRequest::Retire { server, undo })? {
            ManagerReply::Done => {}
            reply => return Err(unexpected(&reply)),
        }
        let (_, numbers) = numbers(self.servers.link())?;
        *self.numbers.write().unwrap_or_else(PoisonError::into_inner) = numbers;
        Ok(())
    }

    pub(crate) fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        match self.servers.link().manager(request)? {
            ManagerReply::Failed(error) => Err(error),
            reply => Ok(reply),
        }
    }

    pub(crate) fn now_s(&self) -> u64 {
        (self.clock)() / 1_000_000_000
    }

    pub(crate) fn file(&self, file: FileId) -> Result<Arc<PoolFile>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files
            .get(&file)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::Closed, "the file was closed; open it again"))
    }

    pub(crate) fn add(&self, file: PoolFile) -> FileId {
        let id = FileId(self.next.fetch_add(1, Ordering::Relaxed));
        // What was told of earlier writes is of no concern to who has made none.
        let _ = file.told(self.servers.losses(file.handle));
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(file));
        id
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Inode> {
        match self.manager(ManagerRequest::Stat { path: path.into() })? {
            ManagerReply::Inode(inode) => Ok(*inode),
            reply => Err(unexpected(&reply)),
        }
    }

    pub(crate) fn open(&self, path: &str, write: bool) -> Result<PoolFile> {
        let path = checked(path)?;
        let opened = self.opened(ManagerRequest::Open { path: path.clone(), write })?;
        PoolFile::new(path, opened, write, self.now_s())
    }

    pub(crate) fn create(&self, path: &str, length: u64, reserve: bool, hints: Hints) -> Result<PoolFile> {
        self.create_as(path, length, reserve, hints, FILE_MODE)
    }

    pub(crate) fn create_as(
        &self,
        path: &str,
        length: u64,
        reserve: bool,
        hints: Hints,
        mode: u32,
    ) -> Result<PoolFile> {
        let path = checked(path)?;
        let request = ManagerRequest::Create { path: path.clone(), hints, mode: mode & !umask() };
        let file = PoolFile::new(path, self.opened(request)?, true, self.now_s())?;
        // An empty file needs no data files: they are made when it is written to.
        if length > 0
            && let Err(error) = self.set_length(&file, length, reserve)
        {
            // The first error is the one to tell.
            let _ = self.remove(&file.path, false);
            return Err(error);
        }
        Ok(file)
    }

    fn opened(&self, request: ManagerRequest) -> Result<Opened> {
        match self.manager(request)? {
            ManagerReply::Opened(opened) => Ok(*opened),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Hands a grant that is good now to `then`: at once, or from a thread that renews it first, since who asks the
    /// manager waits.
    pub(crate) fn with_grant(
        self: &Arc<Self>,
        file: &Arc<PoolFile>,
        then: impl FnOnce(Result<Grant>) + Send + 'static,
    ) {
        if !file.with_grant(self.now_s(), Box::new(then)) {
            return;
        }
        let (shared, renewing) = (self.clone(), file.clone());
        let renew = move || {
            let request = ManagerRequest::Renew { handle: renewing.handle, write: renewing.writable };
            let grant = shared.manager(request).and_then(|reply| match reply {
                ManagerReply::Granted(grant) => Ok(grant),
                reply => Err(unexpected(&reply)),
            });
            renewing.renewed(grant, shared.now_s());
        };
        if let Err(error) = std::thread::Builder::new().name("outcore-grant".into()).spawn(renew) {
            let text = format!("cannot start a thread to renew a grant: {error}; end other programs");
            file.renewed(Err(Error::new(ErrorKind::Io, text)), self.now_s());
        }
    }

    /// Does something with a grant, for who may wait: once more with a new one if servers do not take the first.
    pub(crate) fn granted<T>(&self, file: &PoolFile, action: impl Fn(Grant) -> Result<T>) -> Result<T> {
        let mut tries = 1;
        loop {
            let grant = self.grant(file)?;
            match action(grant) {
                Err(error) if error.kind == ErrorKind::Denied && tries < TRIES => file.refused(&grant),
                done => return done,
            }
            tries += 1;
        }
    }

    /// A grant for who may wait.
    pub(crate) fn grant(&self, file: &PoolFile) -> Result<Grant> {
        let now_s = self.now_s();
        if let Some(grant) = file.current_grant(now_s) {
            return Ok(grant);
        }
        let request = ManagerRequest::Renew { handle: file.handle, write: file.writable };
        match self.manager(request)? {
            ManagerReply::Granted(grant) => {
                file.renewed(Ok(grant), now_s);
                Ok(grant)
            }
            reply => Err(unexpected(&reply)),
        }
    }

    pub(crate) fn set_length(&self, file: &PoolFile, length: u64, reserve: bool) -> Result<()> {
        self.granted(file, |grant| {
            let calls = file.resize_calls(grant, length, reserve, &self.none);
            self.servers.wait_all(calls)?.iter().try_for_each(is_done)
        })?;
        file.set_known_length(length);
        self.note_written(file);
        Ok(())
    }

    pub(crate) fn length(&self, file: &PoolFile) -> Result<u64> {
        let replies =
            self.granted(file, |grant| self.wait_there(file, file.length_calls(grant, &self.none)))?;
        let length = file.length_from(&replies)?;
        file.set_known_length(length);
        Ok(length)
    }

    /// Waits for the answers to calls about a file, which must be there if servers have nothing of it.
    pub(crate) fn wait_there(&self, file: &PoolFile, calls: Vec<Call<L::Buffer>>) -> Result<Vec<IoReply>> {
        let replies = self.servers.wait_all(calls)?;
        if replies.contains(&IoReply::Absent) {
            self.check_is_there(file)?;
        }
        Ok(replies)
    }

    /// Whether a file that a server has nothing of is there: one that was removed has nothing either.
    fn check_is_there(&self, file: &PoolFile) -> Result<()> {
        match self.manager(ManagerRequest::Renew { handle: file.handle, write: false }) {
            Err(error) if error.kind == ErrorKind::NotFound => Err(Error::new(
                ErrorKind::NotFound,
                format!("{} was removed or replaced since it was opened; open it again", file.path),
            )),
            reply => reply.map(|_| ()),
        }
    }

    /// Looks whether the file is there, if servers have nothing of it, and goes on with `then`. The manager is asked
    /// from a thread of its own, since who has the replies must not wait.
    pub(crate) fn when_there(
        self: &Arc<Self>,
        file: &Arc<PoolFile>,
        replies: Result<Vec<IoReply>>,
        then: impl FnOnce(Result<Vec<IoReply>>) + Send + 'static,
    ) {
        if !matches!(&replies, Ok(replies) if replies.contains(&IoReply::Absent)) {
            return then(replies);
        }
        let (shared, file) = (self.clone(), file.clone());
        let then = Arc::new(Mutex::new(Some(then)));
        let look = {
            let then = then.clone();
            move || {
                let replies = shared.check_is_there(&file).and(replies);
                if let Some(then) = take(&then) {
                    then(replies);
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("outcore-absent".into()).spawn(look)
            && let Some(then) = take(&then)
        {
            let text = format!("cannot start a thread to ask the manager: {error}; end other programs");
            then(Err(Error::new(ErrorKind::Io, text)));
        }
    }

    /// Forgets an open file.
    pub(crate) fn close(self: &Arc<Self>, file: FileId) {
        let closed = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
        let Some(file) = closed.filter(|file| self.written().contains_key(&file.handle)) else { return };
        // Files are closed from completions too, which must not wait for the manager. If no thread can be started, who
        // asks for the time tells it.
        let shared = self.clone();
        let tell = move || drop(shared.tell_written(&file.path));
        let _ = std::thread::Builder::new().name("outcore-close".into()).spawn(tell);
    }

    fn written(&self) -> MutexGuard<'_, HashMap<Handle, Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_written(&self, file: &PoolFile) {
        let now_ns = (self.clock)().min(MOST_NS);
        let mut written = self.written();
        let last_ns = written.get(&file.handle).map_or(0, |before| before.last_ns.saturating_add(1));
        written.insert(file.handle, Written { path: file.path.clone(), last_ns: now_ns.max(last_ns) });
    }

    /// Tells the manager when a file was last written to from here, if it does not know; returns what it knows then.
    pub(crate) fn tell_written(&self, path: &str) -> Result<u64> {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let inode = self.stat(path)?;
        let Some(last) = self.written().get(&inode.handle).cloned() else { return Ok(inode.modified_ns) };
        // Never the same time for two contents, whatever the clocks say: the manager sees to that.
        let request = ManagerRequest::Wrote { handle: inode.handle, modified_ns: last.last_ns };
        let now = match self.manager(request)? {
            ManagerReply::Inode(inode) => *inode,
            reply => return Err(unexpected(&reply)),
        };
        let mut written = self.written();
        if written.get(&inode.handle) == Some(&last) {
            written.remove(&inode.handle);
        }
        Ok(now.modified_ns)
    }

    /// Tells the manager all that it does not know.
    pub(crate) fn tell_all_written(&self) {
        let paths: Vec<Arc<str>> = self.written().values().map(|written| written.path.clone()).collect();
        for path in paths {
            // A file may be gone by now, or have another name.
            let _ = self.tell_written(&path);
        }
    }
}

/// A path as the manager has it: names with `/` between them, none of them `.` or empty. The root is empty.
pub(crate) fn checked(path: &str) -> Result<String> {
    let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if path.starts_with('/') || path.contains('\0') || names.contains(&"..") {
        return Err(Error::invalid(format!(
            "the path {path:?} leaves its volume; use a relative path without '..'"
        )));
    }
    Ok(names.join("/"))
}

fn take<T>(from: &Mutex<Option<T>>) -> Option<T> {
    from.lock().unwrap_or_else(PoisonError::into_inner).take()
}

/// Whether bytes were moved. Of what a server has nothing, zeros were.
pub(crate) fn is_moved(reply: &IoReply) -> Result<()> {
    if *reply == IoReply::Absent { Ok(()) } else { is_done(reply) }
}

pub(crate) fn is_done(reply: &IoReply) -> Result<()> {
    match reply {
        IoReply::Done => Ok(()),
        reply => Err(unexpected(reply)),
    }
}
