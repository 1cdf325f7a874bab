//! Attributes of files and directories.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileHandle, INodeNo, TimeOrNow};
use outcore_client::{Attributes, Silent};
use outcore_core::{ErrorKind, Inode};

use crate::errors::{Answer, OrErrno, errno_of};
use crate::links::kind_of;
use crate::tree::Tree;

/// The size of reads and writes that programs should prefer, in bytes.
const BLOCK_BYTES: u32 = 1 << 20;
/// The permission bits that a pool stores of a file. It has no set-user and set-group bits, which are dropped.
pub(crate) const FILE_BITS: u32 = 0o1777;
/// Those of a directory.
pub(crate) const DIRECTORY_BITS: u32 = FILE_BITS | SET_GROUP;
/// The bit of a directory that passes on its group.
pub(crate) const SET_GROUP: u32 = 0o2000;

/// The latest time that a user may set: 2262-04-11T23:47:16Z.
const MOST_MODIFIED_NS: u64 = 9_223_372_036 * 1_000_000_000;

/// Changes of `setattr`.
#[derive(Default)]
pub(crate) struct Changes {
    pub mode: Option<u32>,
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub length: Option<u64>,
    pub modified: Option<TimeOrNow>,
}

impl Tree {
    /// The attributes of the file or directory at a path.
    pub fn attributes_at(&self, path: &str) -> Answer<FileAttr> {
        let inode = self.client.stat(path).or_errno()?;
        if !inode.is_file() {
            let length = inode.target.as_ref().map_or(0, String::len);
            return Ok(self.attributes_of(&inode, length as u64));
        }
        self.file_attributes(path, self.nodes.number(inode.handle))
    }

    fn file_attributes(&self, path: &str, number: INodeNo) -> Answer<FileAttr> {
        // POSIX.1-2017, `write()`: it marks the time for update, and `fstat()` returns the new one.
        self.files.settle(number);
        match self.client.tell_written_to(self.nodes.handle(number)) {
            Err(error) if !matches!(error.kind, ErrorKind::NotFound | ErrorKind::Denied) => {
                return Err(errno_of(&error));
            }
            _ => {}
        }
        // This comes first: writes may reach the servers meanwhile.
        let pending = self.files.pending_end(number);
        let (listed, _) = self.client.page(path, "", 1, &Silent::default()).or_errno()?;
        let found = listed.into_iter().next().filter(|listed| listed.name.is_empty());
        let found = found.ok_or(Errno::ENOENT)?.known().or_errno()?;
        Ok(self.attributes_of(&found.inode, found.length.max(pending)))
    }

    /// The attributes of a number.
    pub fn attributes(&self, number: INodeNo) -> Answer<FileAttr> {
        if let Some((inode, length)) = self.files.current(number) {
            return Ok(self.attributes_of(&inode, length));
        }
        let path = self.nodes.at(number);
        // An open one is a file.
        let is_file = self.files.is_open(number);
        let found = if is_file { self.file_attributes(&path, number) } else { self.attributes_at(&path) };
        found.map_err(stale)
    }

    /// The attributes that a record and a length in bytes give.
    pub fn attributes_of(&self, inode: &Inode, length: u64) -> FileAttr {
        let number = self.nodes.number(inode.handle);
        let shown = self.files.shown(number, inode);
        let inode = shown.as_ref().unwrap_or(inode);
        let modified = time(inode.modified_ns);
        FileAttr {
            ino: number,
            size: length,
            blocks: length.div_ceil(512),
            atime: modified,
            mtime: modified,
            ctime: time(inode.changed_ns),
            crtime: UNIX_EPOCH,
            kind: kind_of(inode),
            perm: (inode.mode & DIRECTORY_BITS) as u16,
            // For a directory 1 says that the number of its directories is unknown.
            nlink: u32::from(!self.files.is_removed(number)),
            uid: inode.owner,
            gid: inode.group,
            rdev: 0,
            blksize: BLOCK_BYTES,
            flags: 0,
        }
    }

    /// Changes attributes of a number, and returns the new ones.
    pub fn change(&self, number: INodeNo, handle: Option<FileHandle>, changes: &Changes) -> Answer<FileAttr> {
        if let Some(length) = changes.length {
            match handle.map(|handle| self.files.get(handle)) {
                Some(open) => self.files.resize(&*open?, length).or_errno()?,
                None => self.resize(number, length)?,
            }
        }
        let Changes { mode, owner, group, .. } = *changes;
        let modified_ns = match changes.modified {
            Some(TimeOrNow::SpecificTime(time)) => Some(nanoseconds(time)),
            _ => None,
        };
        let mode = mode.map(|mode| self.stored(number, mode)).transpose()?;
        let wanted = Attributes { mode, owner, group, modified_ns };
        let is_now = matches!(changes.modified, Some(TimeOrNow::Now));
        if is_now {
            // Otherwise pending writes would change the time later.
            self.files.settle(number);
        }
        if wanted != Attributes::default() {
            let (path, may_give) = (self.nodes.at(number), self.may_give.load(Ordering::Relaxed));
            let now_ns = nanoseconds(SystemTime::now());
            let gives = |inode: &Inode| wanted.owner.is_some_and(|owner| owner != inode.owner);
            let gives = self.files.known(number).is_some_and(|(inode, _)| gives(&inode));
            let set = self.files.set_attributes(number, &path, wanted, may_give, now_ns);
            set.map_err(|error| match error.kind {
                // POSIX: only the owner may, whatever the mode is.
                ErrorKind::Denied => Errno::EPERM,
                _ => stale(errno_of(&error)),
            })?;
            if gives {
                self.may_give.store(true, Ordering::Relaxed);
            }
        }
        if is_now {
            self.files.forget(number);
            self.client.touch(&self.nodes.at(number)).or_errno().map_err(stale)?;
        }
        match self.files.known(number) {
            // The kernel does not keep these: a program that asks for the time of a write gets it from `attributes`.
            Some((inode, length)) => Ok(self.attributes_of(&inode, length)),
            None => self.attributes(number),
        }
    }

    /// The permission bits of a mode that the pool stores.
    fn stored(&self, number: INodeNo, mode: u32) -> Answer<u32> {
        let is_directory = mode & SET_GROUP != 0
            && self.client.stat(&self.nodes.at(number)).or_errno().map_err(stale)?.is_directory();
        Ok(mode & if is_directory { DIRECTORY_BITS } else { FILE_BITS })
    }

    fn resize(&self, number: INodeNo, length: u64) -> Answer<()> {
        let (handle, _) = self.open(number, true)?;
        let resized = self.files.get(handle).and_then(|open| self.files.resize(&open, length).or_errno());
        self.close(handle).and(resized)
    }
}

/// The error for a number whose file is gone.
pub(crate) fn stale(error: Errno) -> Errno {
    if error.code() == Errno::ENOENT.code() { Errno::ESTALE } else { error }
}

pub(crate) fn time(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}

/// Nanoseconds since 1970. A pool has no times before it, nor after 2262; as on Linux, the nearest one counts.
fn nanoseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX).min(MOST_MODIFIED_NS)
}
