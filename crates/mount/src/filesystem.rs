//! The kernel's requests, and their answers.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

use fuser::{
    BsdFileFlags, Errno, FileHandle, Filesystem, FopenFlags, Generation, INodeNo, InitFlags, KernelConfig,
    LockOwner, Notifier, OpenAccMode, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLock, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};

use crate::attributes::Changes;
use crate::buffers::MOST_BYTES;
use crate::errors::{Answer, OrErrno};
use crate::listings::Listings;
use crate::lock_calls::Wanted;
use crate::locks::Locks;
use crate::replies::{reply_done, reply_extended};
use crate::shown::Shown;
use crate::tree::{NAME_BYTES, Tree};

/// The extended attribute that answers with the address of a file in its pool. It is not listed, so copies do not
/// take it along.
const ADDRESS: &str = "user.outcore.address";
const STATFS_BLOCK_BYTES: u32 = 4096;
/// Reads and writes go past the page cache, and the kernel sends writes to one file at the same time.
const OPENED: FopenFlags = FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

thread_local! {
    /// The bytes of an answer, reused.
    static BYTES: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// A mounted directory of a pool.
pub(crate) struct PoolFilesystem {
    pub(crate) tree: Tree,
    /// Prefix of the address of each path, as in `outcore://node1:7171/`.
    address: String,
    /// How long the kernel may cache names and attributes.
    fresh: Duration,
    pub(crate) shown: Arc<Shown>,
    listings: Listings,
    /// `None` refuses all locks.
    pub(crate) locks: Option<Arc<Locks>>,
    pub(crate) notifier: Arc<OnceLock<Notifier>>,
}

impl PoolFilesystem {
    pub fn new(
        tree: Tree,
        address: String,
        fresh: Duration,
        locks: Option<Arc<Locks>>,
        notifier: Arc<OnceLock<Notifier>>,
    ) -> Self {
        let (shown, listings) = (Arc::new(Shown::new(fresh)), Listings::default());
        Self { tree, address, fresh, shown, listings, locks, notifier }
    }

    /// How long the kernel may cache the attributes of a number, and its name. While the mount has a lease, not at all.
    fn fresh(&self, number: INodeNo) -> Duration {
        let Some(locks) = self.locks.as_ref().filter(|_| !self.fresh.is_zero()) else { return self.fresh };
        if locks.has_lease() {
            return Duration::ZERO;
        }
        self.shown.add(number);
        // A lease that begins later, drops these attributes when it grants a lock.
        if locks.has_lease() { Duration::ZERO } else { self.fresh }
    }

    /// Writes bytes at an offset, or behind the last byte; with `O_SYNC` or `O_DSYNC` durably.
    fn write(&self, handle: FileHandle, offset: u64, data: &[u8], flags: i32) -> Answer<()> {
        let open = self.tree.file(handle)?;
        let is_ending = self.locks.as_ref().is_some_and(|locks| locks.is_ending());
        let flags = if is_ending { flags | libc::O_DIRECT } else { flags };
        self.tree.files.write(&open, flags, offset, data).or_errno()
    }

    fn reply_entry(&self, found: Answer<fuser::FileAttr>, reply: ReplyEntry) {
        match found {
            Ok(attributes) => reply.entry(&self.fresh(attributes.ino), &attributes, Generation(0)),
            Err(error) => reply.error(error),
        }
    }

    /// How long the kernel may cache the attributes of a file. Those that the mount itself may know for a while, not at
    /// all.
    fn fresh_of(&self, number: INodeNo) -> Duration {
        if self.tree.files.known(number).is_some() { Duration::ZERO } else { self.fresh(number) }
    }

    fn reply_attributes(&self, found: Answer<fuser::FileAttr>, fresh: Duration, reply: ReplyAttr) {
        match found.inspect(|attributes| self.tree.nodes.shown(attributes)) {
            Ok(attributes) => reply.attr(&fresh, &attributes),
            Err(error) => reply.error(error),
        }
    }

    fn extended(&self, number: INodeNo, name: &OsStr) -> Answer<Vec<u8>> {
        if name == ADDRESS {
            return self.tree.path(number).map(|path| format!("{}{path}", self.address).into_bytes());
        }
        self.tree.extended(number, name)
    }
}

impl Filesystem for PoolFilesystem {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // The kernel may allow less than these.
        let _ = config.set_max_write(MOST_BYTES as u32);
        let _ = config.set_max_readahead(MOST_BYTES as u32);
        let _ = config.set_max_background(64);
        // A lock is never silently local: the kernel passes all of them to us.
        let locks = InitFlags::FUSE_POSIX_LOCKS | InitFlags::FUSE_FLOCK_LOCKS;
        let needs = |_| io::Error::from_raw_os_error(libc::ENOLCK);
        config.add_capabilities(locks).map_err(needs)?;
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
        ];
        for flag in wanted {
            // An older kernel works without it.
            let _ = config.add_capabilities(flag);
        }
        if !self.fresh.is_zero() {
            // Otherwise the kernel would not keep the attributes until a program asks for them.
            let _ =
                config.add_capabilities(InitFlags::FUSE_DO_READDIRPLUS | InitFlags::FUSE_READDIRPLUS_AUTO);
        }
        Ok(())
    }

    fn destroy(&mut self) {
        self.tree.close_all();
        if let Some(locks) = &self.locks {
            locks.end();
        }
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.reply_entry(self.tree.look_up(parent, name), reply);
    }

    fn forget(&self, _: &Request, number: INodeNo, lookups: u64) {
        self.tree.forget(number, lookups);
    }

    fn getattr(&self, _: &Request, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let fresh = self.fresh_of(number);
        self.reply_attributes(self.tree.attributes(number), fresh, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        number: INodeNo,
        mode: Option<u32>,
        owner: Option<u32>,
        group: Option<u32>,
        length: Option<u64>,
        _accessed: Option<TimeOrNow>,
        modified: Option<TimeOrNow>,
        _changed: Option<SystemTime>,
        handle: Option<FileHandle>,
        _created: Option<SystemTime>,
        _change_time: Option<SystemTime>,
        _backup: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let changes = Changes { mode, owner, group, length, modified };
        let checked = match (length, handle) {
            (Some(_), Some(handle)) => self.check_locks(number, handle, None),
            _ => Ok(()),
        };
        let fresh = self.fresh_of(number);
        let changed = checked.and_then(|()| self.tree.change(number, handle, &changes));
        self.reply_attributes(changed, fresh, reply);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        _device: u32,
        reply: ReplyEntry,
    ) {
        if mode & libc::S_IFMT != libc::S_IFREG {
            return reply.error(Errno::EPERM);
        }
        let made = self.tree.create(parent, name, mode, true, (request.uid(), request.gid()));
        let made = made.and_then(|(attributes, handle)| self.tree.close(handle).map(|()| attributes));
        self.reply_entry(made, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        let made = self.tree.make_directory(parent, name, mode, (request.uid(), request.gid()));
        self.reply_entry(made, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_done(self.tree.remove_file(parent, name), reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_done(self.tree.remove_directory(parent, name), reply);
    }

    fn symlink(&self, request: &Request, parent: INodeNo, name: &OsStr, target: &Path, reply: ReplyEntry) {
        let owner = (request.uid(), request.gid());
        self.reply_entry(self.tree.make_link(parent, name, target, owner), reply);
    }

    fn readlink(&self, _: &Request, number: INodeNo, reply: ReplyData) {
        match self.tree.target(number) {
            Ok(target) => reply.data(target.as_bytes()),
            Err(error) => reply.error(error),
        }
    }

    fn link(&self, _: &Request, _number: INodeNo, _parent: INodeNo, _name: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::EPERM);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply_done(self.tree.rename((parent, name), (new_parent, new_name), flags), reply);
    }

    fn open(&self, _: &Request, number: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_current(number, flags.acc_mode() != OpenAccMode::O_RDONLY) {
            Ok(handle) => reply.opened(handle, OPENED),
            Err(error) => reply.error(error),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let is_exclusive = flags & libc::O_EXCL != 0;
        let owner = (request.uid(), request.gid());
        match self.tree.create(parent, name, mode, is_exclusive, owner) {
            Ok((attributes, handle)) => {
                reply.created(&self.fresh(attributes.ino), &attributes, Generation(0), handle, OPENED);
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        BYTES.with_borrow_mut(|bytes| {
            let read = self.check_locks(number, handle, owner).and_then(|()| self.tree.file(handle));
            match read.and_then(|open| self.tree.files.read(&open, flags.0, offset, size, bytes).or_errno()) {
                Ok(()) => reply.data(bytes),
                Err(error) => reply.error(error),
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: WriteFlags,
        flags: OpenFlags,
        owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let checked = self.check_locks(number, handle, owner);
        match checked.and_then(|()| self.write(handle, offset, data, flags.0)) {
            Ok(()) => reply.written(data.len() as u32),
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, number: INodeNo, handle: FileHandle, owner: LockOwner, reply: ReplyEmpty) {
        reply_done(self.tree.flush(handle).and(self.flushed_locks(number, handle, owner)), reply);
    }

    fn release(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        // Others see all writes once they get the locks.
        self.tree.files.settle(number);
        let unlocked = self.closed_locks(number, handle);
        reply_done(self.tree.close(handle).and(unlocked), reply);
    }

    fn fsync(&self, _: &Request, number: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let open = self.check_locks(number, handle, None).and_then(|()| self.tree.file(handle));
        let synced = open.and_then(|open| self.tree.files.sync(&open).or_errno());
        let synced = synced.and_then(|()| self.check_locks(number, handle, None));
        reply_done(synced, reply);
    }

    fn opendir(&self, _: &Request, number: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        match self.tree.names(number) {
            Ok(names) => reply.opened(self.listings.add(names), FopenFlags::empty()),
            Err(error) => reply.error(error),
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let names = match self.listings.get(handle) {
            Ok(names) => names,
            Err(error) => return reply.error(error),
        };
        for (number, listed) in names.iter().enumerate().skip(offset as usize) {
            if reply.add(listed.number, number as u64 + 1, listed.kind, &listed.name) {
                break;
            }
        }
        reply.ok();
    }

    fn readdirplus(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let filled = self.listings.get(handle).and_then(|names| {
            self.tree.fill(number, &names, offset as usize, |entry, next| {
                let attributes = &entry.attributes;
                let fresh = if entry.is_known { self.fresh(attributes.ino) } else { Duration::ZERO };
                reply.add(attributes.ino, next, entry.name, &fresh, attributes, Generation(0))
            })
        });
        match filled {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(&self, _: &Request, _: INodeNo, handle: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.listings.remove(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        // The manager answers a change of names once it is durable.
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let blocks = |bytes: u64| bytes / u64::from(STATFS_BLOCK_BYTES);
        match self.tree.space() {
            Ok(space) => reply.statfs(
                blocks(space.total_bytes),
                blocks(space.free_bytes),
                blocks(space.available_bytes),
                space.disk.total_files,
                space.disk.free_files,
                STATFS_BLOCK_BYTES,
                NAME_BYTES,
                STATFS_BLOCK_BYTES,
            ),
            Err(error) => reply.error(error),
        }
    }

    fn setxattr(
        &self,
        _: &Request,
        number: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let set = if name == ADDRESS {
            Err(Errno::EPERM)
        } else {
            self.tree.set_extended(number, name, Some(value), flags)
        };
        reply_done(set, reply);
    }

    fn getxattr(&self, _: &Request, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_extended(self.extended(number, name), size, reply);
    }

    fn listxattr(&self, _: &Request, number: INodeNo, size: u32, reply: ReplyXattr) {
        reply_extended(self.tree.extended_names(number), size, reply);
    }

    fn removexattr(&self, _: &Request, number: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        reply_done(self.tree.set_extended(number, name, None, 0), reply);
    }

    fn getlk(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        reply: ReplyLock,
    ) {
        self.test_lock(Wanted::new((number, handle, owner), process, (start, end), kind), reply);
    }

    fn setlk(
        &self,
        request: &Request,
        number: INodeNo,
        handle: FileHandle,
        owner: LockOwner,
        start: u64,
        end: u64,
        kind: i32,
        process: u32,
        sleep: bool,
        reply: ReplyEmpty,
    ) {
        let wanted = Wanted::new((number, handle, owner), process, (start, end), kind);
        self.set_lock(wanted.and_then(|wanted| wanted.of_call(request, kind)), request.pid(), sleep, reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        number: INodeNo,
        handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let checked = self.check_locks(number, handle, None);
        reply_done(checked.and_then(|()| self.tree.reserve(handle, offset, length, mode)), reply);
    }
}
