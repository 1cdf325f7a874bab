//! The shared state of a pool's users: open files, their grants, and the times of writes.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use outcore_core::{
    Error, ErrorKind, FileId, Gather, Grant, Handle, Hints, Inode, IoReply, Link, ManagerReply,
    ManagerRequest, Opened, Result, ServerId, handle_in, path_at,
};
use outcore_disk::umask;

use crate::pool::call::{Call, Servers, unexpected};
use crate::pool::durable::{AskedOf, DataEnd};
use crate::pool::file::PoolFile;
use crate::pool::runs::ask_apart;
use crate::pool::volume::WallClock;

/// Maximum attempts with a new grant after servers refused one: if clocks jump, a grant expires earlier than
/// expected.
pub(crate) const TRIES: u32 = 4;

/// Permission bits of new files, before the umask.
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
    /// Writes and syncs of this client that were not reported to the manager yet.
    written: Mutex<HashMap<Handle, Written>>,
    /// Held during a report to the manager. Otherwise a time that somebody sets in between would be lost.
    telling: Mutex<()>,
    /// Whether the kernel follows symbolic links and applies umasks, and not this client.
    is_mounted: AtomicBool,
}

/// The latest time that a clock or a user may give, in nanoseconds since 1970: in the year 2262. Times of
/// later writes count up from there.
pub(crate) const MOST_NS: u64 = i64::MAX as u64;

#[derive(Clone, Default, PartialEq)]
struct Written {
    /// The last write; `None` if only the durable lengths are new.
    last_ns: Option<u64>,
    /// The number of shortenings, and the durable state of the data files since then.
    durable: Option<(u64, Vec<DataEnd>)>,
}

/// The numbers of the I/O servers of a pool.
#[derive(Clone)]
pub(crate) struct Numbers {
    pub(crate) in_use: Vec<ServerId>,
    pub(crate) retired: Vec<ServerId>,
}

/// Requests the pool's identity and its servers.
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
            is_mounted: AtomicBool::new(false),
        })
    }

    /// The servers at the time when the pool was opened, or when this client last retired one.
    pub(crate) fn numbers(&self) -> Numbers {
        self.numbers.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Retires a server, or reverses that.
    pub(crate) fn retire(&self, server: ServerId, undo: bool) -> Result<()> {
        match self.manager(ManagerRequest::Retire { server, undo })? {
            ManagerReply::Done => {}
            reply => return Err(unexpected(&reply)),
        }
        let (_, numbers) = numbers(self.servers.link())?;
        *self.numbers.write().unwrap_or_else(PoisonError::into_inner) = numbers;
        Ok(())
    }

    /// Sends a request to the manager, and follows the symbolic links that its paths lead through.
    pub(crate) fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        match self.servers.link().manager(request.clone())? {
            ManagerReply::Failed(error) => Err(error),
            ManagerReply::Link { path, target } => self.through_links(request, (path, target)),
            reply => Ok(reply),
        }
    }

    pub(crate) fn follows(&self) -> bool {
        !self.is_mounted.load(Ordering::Relaxed)
    }

    pub(crate) fn leave_to_kernel(&self) {
        self.is_mounted.store(true, Ordering::Relaxed);
    }

    /// Permission bits under the umask of this process.
    pub(crate) fn masked(&self, mode: u32) -> u32 {
        if self.follows() { mode & !umask() } else { mode }
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
        // Losses reported before do not concern this open file: nothing was written through it yet.
        let _ = file.told(self.servers.losses(file.handle));
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::new(file));
        id
    }

    pub(crate) fn stat(&self, path: &str) -> Result<Inode> {
        self.inode(ManagerRequest::Stat { path: path.into() })
    }

    pub(crate) fn inode(&self, request: ManagerRequest) -> Result<Inode> {
        match self.manager(request)? {
            ManagerReply::Inode(inode) => Ok(*inode),
            reply => Err(unexpected(&reply)),
        }
    }

    pub(crate) fn open(&self, path: &str, write: bool) -> Result<PoolFile> {
        self.open_known(path, write).map(|(file, _)| file)
    }

    pub(crate) fn open_known(&self, path: &str, write: bool) -> Result<(PoolFile, Inode)> {
        let path = checked(path)?;
        let restarts = self.servers.runs().restarts();
        let opened = self.opened(ManagerRequest::Open { path: path.clone(), write })?;
        let inode = opened.inode.clone();
        PoolFile::new(path, opened, write, self.now_s(), restarts).map(|file| (file, inode))
    }

    pub(crate) fn create(&self, path: &str, length: u64, reserve: bool, hints: Hints) -> Result<PoolFile> {
        self.create_as(path, length, reserve, hints, FILE_MODE).map(|(file, _)| file)
    }

    pub(crate) fn create_as(
        &self,
        path: &str,
        length: u64,
        reserve: bool,
        hints: Hints,
        mode: u32,
    ) -> Result<(PoolFile, Inode)> {
        let path = checked(path)?;
        let restarts = self.servers.runs().restarts();
        let request = ManagerRequest::Create { path: path.clone(), hints, mode: self.masked(mode) };
        let opened = self.opened(request)?;
        let inode = opened.inode.clone();
        let file = PoolFile::new(path, opened, true, self.now_s(), restarts)?;
        // An empty file needs no data files: the first write creates them.
        if length > 0
            && let Err(error) = self.resize(&file, length, reserve)
        {
            // Report the first error.
            let _ = self.remove(&file.path, false);
            return Err(error);
        }
        Ok((file, inode))
    }

    fn opened(&self, request: ManagerRequest) -> Result<Opened> {
        match self.manager(request)? {
            ManagerReply::Opened(opened) => Ok(*opened),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Passes a valid grant to `then`: immediately, or from a thread that renews it first, because a request
    /// to the manager blocks.
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

    /// Runs `action` with a grant, and retries with a new one if servers refuse it. Blocks during a renewal.
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

    /// A valid grant. Blocks during a renewal.
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

    /// Makes a file longer or shorter. Reports this to the manager before and after, since data files may
    /// become shorter than their known durable lengths.
    pub(crate) fn set_length(&self, file: &PoolFile, length: u64, reserve: bool) -> Result<()> {
        let lengths = file.local_lengths(length);
        let begun = self.inode(ManagerRequest::BeginCut { handle: file.handle, lengths })?;
        file.tracked().cut_begins(begun.durable.clone());
        let resized = self.resize(file, length, reserve);
        // A resize that failed may have taken effect. Then this client reports no more lengths of the file.
        let end = || {
            let ended = self.inode(ManagerRequest::EndCut { handle: file.handle })?;
            // A manager of an earlier version sets no time.
            let sets_time = ended.modified_ns > begun.modified_ns;
            Ok((Some(ended), sets_time))
        };
        let ended = if resized.is_ok() { self.instead_of_written(file.handle, end) } else { Ok(None) };
        let durable = ended.as_ref().ok().cloned().flatten().map(|inode| inode.durable);
        file.tracked().cut_ends(durable);
        resized.and(ended.map(|_| ()))
    }

    /// Reserves the disk space of the first `length` bytes of a file, and makes it so long if it is shorter.
    pub(crate) fn reserve(&self, file: &PoolFile, length: u64) -> Result<()> {
        self.granted(file, |grant| {
            let calls = file.reserve_calls(grant, length, &self.none);
            self.servers.wait_all(calls)?.iter().try_for_each(is_done)
        })?;
        self.note_written(file);
        Ok(())
    }

    fn resize(&self, file: &PoolFile, length: u64, reserve: bool) -> Result<()> {
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

    /// Waits for the answers to calls about a file. If the answers show missing data, checks with the manager
    /// whether the file still exists, and whether data are lost.
    pub(crate) fn wait_there(&self, file: &PoolFile, calls: Vec<Call<L::Buffer>>) -> Result<Vec<IoReply>> {
        let asked_of = file.asked_of(&calls);
        let replies = self.servers.wait_all(calls)?;
        self.check_runs(file, &asked_of)?;
        if asked_of.is_in_doubt(&replies) {
            self.check_is_there(file, asked_of, &replies)?;
        }
        Ok(replies)
    }

    /// Checks a file of which a server has nothing, or less than its durable length. The file may have been
    /// removed or shortened; otherwise data are lost.
    pub(crate) fn check_is_there(
        &self,
        file: &PoolFile,
        mut asked_of: AskedOf,
        replies: &[IoReply],
    ) -> Result<()> {
        let mut short = asked_of.short(replies);
        for _ in 0..TRIES {
            let inode = match self.inode(ManagerRequest::Describe { handle: file.handle }) {
                // A removed file needs no sync.
                Err(error) if error.kind == ErrorKind::NotFound && asked_of.is_sync => return Ok(()),
                Err(error) if error.kind == ErrorKind::NotFound => {
                    return Err(Error::new(
                        ErrorKind::NotFound,
                        format!("{} was removed or replaced since it was opened; open it again", file.path),
                    ));
                }
                inode => inode?,
            };
            let Some(found) = short else { return Ok(()) };
            // The lengths known at the time of the request count, unless somebody has started to shorten the
            // file since.
            if inode.durable.cuts == asked_of.known.cuts {
                return Err(file.lost(found));
            }
            asked_of.known = Arc::new(inode.durable);
            file.tracked().was_cut(asked_of.known.clone());
            let retired = file.retired(self.servers.link());
            let entries = 0..file.layout.stripes.count();
            asked_of.entries = entries.filter(|&entry| retired[entry as usize].is_none()).collect();
            let calls = |grant| file.length_calls_of_others(grant, &retired, &self.none);
            let lengths = self.granted(file, |grant| self.servers.wait_all(calls(grant)))?;
            short = asked_of.short(&lengths);
        }
        Ok(())
    }

    /// Checks a file if servers have restarted, or have nothing of it or too little, then calls `then`.
    pub(crate) fn when_there(
        self: &Arc<Self>,
        file: &Arc<PoolFile>,
        asked_of: AskedOf,
        replies: Result<Vec<IoReply>>,
        then: impl FnOnce(Result<Vec<IoReply>>) + Send + 'static,
    ) {
        let is_compared = self.is_compared(file, &asked_of);
        if !matches!(&replies, Ok(replies) if !is_compared || asked_of.is_in_doubt(replies)) {
            return then(replies);
        }
        let (shared, file) = (self.clone(), file.clone());
        let look = move || {
            let replies = replies?;
            shared.check_runs(&file, &asked_of)?;
            if asked_of.is_in_doubt(&replies) {
                shared.check_is_there(&file, asked_of, &replies)?;
            }
            Ok(replies)
        };
        ask_apart(look, then);
    }

    /// Closes an open file.
    pub(crate) fn close(self: &Arc<Self>, file: FileId) {
        let closed = self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
        let Some(file) = closed.filter(|file| self.written().contains_key(&file.handle)) else { return };
        // Completions close files too, and must not wait for the manager. If no thread can be started, the
        // next caller who queries the time makes the report.
        let shared = self.clone();
        let tell = move || drop(shared.tell(file.handle));
        let _ = std::thread::Builder::new().name("outcore-close".into()).spawn(tell);
    }

    fn written(&self) -> MutexGuard<'_, HashMap<Handle, Written>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note_written(&self, file: &PoolFile) {
        let now_ns = (self.clock)().min(MOST_NS);
        let mut written = self.written();
        let news = written.entry(file.handle).or_default();
        news.last_ns = Some(now_ns.max(news.last_ns.map_or(0, |before| before.saturating_add(1))));
    }

    /// Records the durable state of each data file after a sync that started in `turn`.
    pub(crate) fn note_synced(&self, file: &PoolFile, turn: Option<u64>, ends: &[DataEnd]) {
        let news = file.tracked().synced(turn, ends);
        // Readers report nothing.
        let Some((cuts, ends)) = news.filter(|_| file.writable) else { return };
        let mut written = self.written();
        let news = written.entry(file.handle).or_default();
        match &mut news.durable {
            Some((before, kept)) if *before == cuts => {
                for (kept, end) in kept.iter_mut().zip(ends) {
                    *kept = kept.max(end);
                }
            }
            Some((before, _)) if *before > cuts => {}
            durable => *durable = Some((cuts, ends)),
        }
    }

    /// Takes the unreported durable state of a file. The caller must report it.
    pub(crate) fn take_durable(&self, handle: Handle) -> Vec<DataEnd> {
        let durable = self.written().get_mut(&handle).and_then(|news| news.durable.take());
        durable.map_or(vec![], |(_, ends)| ends)
    }

    /// Reports this client's last write to a file, if the manager does not know it. Returns the record that the
    /// manager then has.
    pub(crate) fn tell_written(&self, path: &str) -> Result<Inode> {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let inode = self.stat(path)?;
        if !self.written().contains_key(&inode.handle) {
            return Ok(inode);
        }
        Ok(self.tell_now(inode.handle)?.unwrap_or(inode))
    }

    /// Runs `set`, which sets the time of the last write of a file, and returns whether it has done so. The manager then needs
    /// no report of earlier writes, except of the durable lengths.
    pub(crate) fn instead_of_written<T>(
        &self,
        handle: Handle,
        set: impl FnOnce() -> Result<(T, bool)>,
    ) -> Result<T> {
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        let before = self.written().get(&handle).and_then(|news| news.last_ns);
        let (outcome, is_set) = set()?;
        if !is_set {
            return Ok(outcome);
        }
        let mut written = self.written();
        if let Some(news) = written.get_mut(&handle)
            && news.last_ns == before
        {
            news.last_ns = None;
            if news.durable.is_none() {
                written.remove(&handle);
            }
        }
        Ok(outcome)
    }

    /// Whether the manager does not know the time of this client's last write to a file.
    pub(crate) fn is_untold(&self, handle: Handle) -> bool {
        self.written().get(&handle).is_some_and(|news| news.last_ns.is_some())
    }

    /// Like `tell_written`, for a file whose name may belong to another file by now.
    pub(crate) fn tell(&self, handle: Handle) -> Result<()> {
        if !self.written().contains_key(&handle) {
            return Ok(());
        }
        let _telling = self.telling.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell_now(handle).map(|_| ())
    }

    fn tell_now(&self, handle: Handle) -> Result<Option<Inode>> {
        let Some(news) = self.written().get(&handle).cloned() else { return Ok(None) };
        let (cuts, ends) = news.durable.clone().unwrap_or_default();
        let (durable, generations) = separate(&ends);
        let request = ManagerRequest::Wrote { handle, modified_ns: news.last_ns, cuts, durable, generations };
        let told = self.inode(request);
        let is_over = match &told {
            Ok(_) => true,
            Err(error) => error.kind == ErrorKind::NotFound,
        };
        let mut written = self.written();
        if is_over && written.get(&handle) == Some(&news) {
            written.remove(&handle);
        }
        told.map(Some)
    }

    /// Reports all unreported writes and lengths to the manager.
    pub(crate) fn tell_all_written(&self) {
        let all: Vec<Handle> = self.written().keys().copied().collect();
        for handle in all {
            // The file may have been removed or renamed.
            let _ = self.tell(handle);
        }
    }
}

/// The lengths and the generations of data files. Without any generation, their list is empty.
pub(crate) fn separate(ends: &[DataEnd]) -> (Vec<u64>, Vec<u64>) {
    let generations: Vec<u64> = ends.iter().map(|end| end.generation).collect();
    let has_some = generations.iter().any(|generation| *generation > 0);
    (ends.iter().map(|end| end.length).collect(), if has_some { generations } else { vec![] })
}

/// The normalized path: names with `/` between them, none of them `.` or empty. The root is empty. The path may begin
/// at a handle.
pub(crate) fn checked(path: &str) -> Result<String> {
    if let Some((handle, names)) = handle_in(path) {
        let below = checked(names)?;
        return Ok(if below.is_empty() { path_at(handle) } else { format!("{}/{below}", path_at(handle)) });
    }
    let names: Vec<&str> = path.split('/').filter(|name| !matches!(*name, "" | ".")).collect();
    if path.starts_with('/') || path.contains('\0') || names.contains(&"..") {
        return Err(Error::invalid(format!(
            "the path {path:?} leaves its volume; use a relative path without '..'"
        )));
    }
    Ok(names.join("/"))
}

/// Checks that a server moved bytes. `Absent` is fine: a read gets zeros, and a sync has nothing to do.
pub(crate) fn is_moved(reply: &IoReply) -> Result<()> {
    if *reply == IoReply::Absent { Ok(()) } else { is_done(reply) }
}

pub(crate) fn is_done(reply: &IoReply) -> Result<()> {
    match reply {
        IoReply::Done => Ok(()),
        reply => Err(unexpected(reply)),
    }
}
