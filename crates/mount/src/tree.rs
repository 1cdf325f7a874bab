//! Names, attributes and directories.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo, RenameFlags, TimeOrNow};
use outcore_client::{Attributes, Silent};
use outcore_core::{ErrorKind, FileId, Hints, Inode, OpenMode, Volume};

use crate::Client;
use crate::errors::{Answer, OrErrno, errno_of};
use crate::nodes::Nodes;
use crate::open_files::{OpenFile, OpenFiles};

/// The size of reads and writes that programs should prefer, in bytes.
const BLOCK_BYTES: u32 = 1 << 20;
/// Names of files that were removed while they were open begin so.
const REMOVED: &str = ".outcore-removed-";
/// The permission bits that a pool stores. It has no set-user and set-group bits, which are dropped.
const MODE: u32 = 0o1777;

/// The names below the mounted directory.
pub(crate) struct Tree {
    client: Arc<Client>,
    nodes: Nodes,
    pub files: OpenFiles,
    /// Whether new files belong to the user of the program, not to that of the mount.
    gives: bool,
    next: AtomicU64,
}

/// A name in a directory.
pub(crate) struct Listed {
    pub number: INodeNo,
    pub kind: FileType,
    pub name: String,
}

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
    /// The tree below a directory of a pool.
    pub fn new(client: Arc<Client>, root: &str, gives: bool) -> outcore_core::Result<Self> {
        let inode = client.stat(root)?;
        if inode.layout.is_some() {
            return Err(outcore_core::Error::invalid(format!(
                "need a directory to mount, have the file {root:?}; mount the directory above it"
            )));
        }
        let files = OpenFiles::new(client.clone());
        let nodes = Nodes::new(inode.handle, root.into());
        Ok(Self { client, nodes, files, gives, next: AtomicU64::new(0) })
    }

    /// Path of a number in the pool.
    pub fn path(&self, number: INodeNo) -> Answer<String> {
        self.nodes.path(number)
    }

    /// The path and the record of a number. Another client may have put another file at its path.
    fn current(&self, number: INodeNo) -> Answer<(String, Inode)> {
        let path = self.nodes.path(number)?;
        let inode = self.client.stat(&path).or_errno()?;
        if self.nodes.number(inode.handle) == number { Ok((path, inode)) } else { Err(Errno::ESTALE) }
    }

    /// The path of a name to change, in a directory that is where the kernel found it.
    fn path_in(&self, parent: INodeNo, name: &OsStr) -> Answer<String> {
        self.current(parent)?;
        self.nodes.path_in(parent, text(name)?)
    }

    /// Looks up a name for the kernel, which forgets it later.
    pub fn look_up(&self, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let attributes = self.attributes_at(&self.nodes.path_in(parent, text(name)?)?)?;
        self.nodes.looked_up(attributes.ino, parent, text(name)?);
        Ok(attributes)
    }

    /// Forgets lookups of a number.
    pub fn forget(&self, number: INodeNo, lookups: u64) {
        self.nodes.forget(number, lookups);
    }

    fn attributes_at(&self, path: &str) -> Answer<FileAttr> {
        let inode = self.client.stat(path).or_errno()?;
        if inode.layout.is_none() {
            return Ok(self.attributes_of(&inode, 0));
        }
        let (listed, _) = self.client.page(path, "", 1, &Silent::default()).or_errno()?;
        let found = listed.into_iter().next().filter(|listed| listed.name.is_empty());
        let found = found.ok_or(Errno::ENOENT)?.known().or_errno()?;
        Ok(self.attributes_of(&found.inode, found.length))
    }

    /// The attributes of a number.
    pub fn attributes(&self, number: INodeNo) -> Answer<FileAttr> {
        let found = self.attributes_at(&self.nodes.path(number)?)?;
        // Another file has the name now.
        if found.ino == number { Ok(found) } else { Err(Errno::ESTALE) }
    }

    fn attributes_of(&self, inode: &Inode, length: u64) -> FileAttr {
        let is_directory = inode.layout.is_none();
        let modified = time(inode.modified_ns);
        FileAttr {
            ino: self.nodes.number(inode.handle),
            size: length,
            blocks: length.div_ceil(512),
            atime: modified,
            mtime: modified,
            ctime: time(inode.changed_ns),
            crtime: UNIX_EPOCH,
            kind: if is_directory { FileType::Directory } else { FileType::RegularFile },
            perm: (inode.mode & MODE) as u16,
            // For a directory 1 says that the number of its directories is unknown.
            nlink: 1,
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
            Some(TimeOrNow::SpecificTime(time)) => Some(nanoseconds(time)?),
            _ => None,
        };
        let mode = mode.map(|mode| mode & MODE);
        let wanted = Attributes { mode, owner, group, modified_ns };
        if wanted != Attributes::default() {
            self.client.set_attributes(&self.current(number)?.0, wanted).or_errno()?;
        }
        if let Some(TimeOrNow::Now) = changes.modified {
            self.client.touch(&self.current(number)?.0).or_errno()?;
        }
        self.attributes(number)
    }

    fn resize(&self, number: INodeNo, length: u64) -> Answer<()> {
        let handle = self.open(number, true)?;
        let resized = self.files.get(handle).and_then(|open| self.files.resize(&open, length).or_errno());
        self.close(handle).and(resized)
    }

    /// Opens a file.
    pub fn open(&self, number: INodeNo, is_writable: bool) -> Answer<FileHandle> {
        let mode = if is_writable { OpenMode::ReadWrite } else { OpenMode::Read };
        let file = self.client.open(&self.nodes.path(number)?, mode).or_errno()?;
        self.opened(number, file)
    }

    /// Adds an open file, unless another client has put another file at its path.
    fn opened(&self, number: INodeNo, file: FileId) -> Answer<FileHandle> {
        let handle = self.client.handle(file).or_errno();
        match handle {
            Ok(handle) if self.nodes.number(handle) == number => Ok(self.files.add(number, file)),
            handle => {
                self.client.close(file);
                handle.and(Err(Errno::ESTALE))
            }
        }
    }

    /// Creates a file and opens it.
    pub fn create(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        is_exclusive: bool,
        owner: (u32, u32),
    ) -> Answer<(FileAttr, FileHandle)> {
        let path = self.path_in(parent, name)?;
        let file = match self.client.create_as(&path, Hints::default(), mode & MODE) {
            Ok(file) => file,
            // The kernel found no such file, and has checked no rights to it: let it look again.
            Err(error) if error.kind == ErrorKind::Exists && !is_exclusive => return Err(Errno::ESTALE),
            Err(error) => return Err(errno_of(&error)),
        };
        let handle = self.client.handle(file).or_errno();
        let made = handle.and_then(|handle| {
            let inode = self.client.stat(&path).or_errno()?;
            if inode.handle == handle { self.give(&path, inode, owner) } else { Err(Errno::ESTALE) }
        });
        let inode = made.inspect_err(|_| self.client.close(file))?;
        let attributes = self.entered(parent, name, &inode)?;
        Ok((attributes, self.files.add(attributes.ino, file)))
    }

    /// Gives a new name to the user who asked the mount for it, and returns its record; removes it if the pool does not
    /// allow that.
    fn give(&self, path: &str, inode: Inode, (owner, group): (u32, u32)) -> Answer<Inode> {
        if !self.gives || inode.owner == owner {
            return Ok(inode);
        }
        let wanted = Attributes { owner: Some(owner), group: Some(group), ..Attributes::default() };
        self.client.set_attributes(path, wanted).or_errno().inspect_err(|_| {
            // The caller gets the first error.
            let _ = self.client.remove_one(path);
        })?;
        Ok(Inode { owner, group, ..inode })
    }

    /// Records a new, empty name for the kernel, and returns its attributes.
    fn entered(&self, parent: INodeNo, name: &OsStr, inode: &Inode) -> Answer<FileAttr> {
        let attributes = self.attributes_of(inode, 0);
        self.nodes.looked_up(attributes.ino, parent, text(name)?);
        Ok(attributes)
    }

    /// Closes a file. The last `close` of a removed file removes its hidden name.
    pub fn close(&self, handle: FileHandle) -> Answer<()> {
        let Some((number, path)) = self.files.close(handle) else { return Ok(()) };
        // Its directory may have been renamed.
        self.client.remove_one(&self.nodes.path(number).unwrap_or(path)).or_errno()
    }

    /// Closes all files, at the end of the mount.
    pub fn close_all(&self) {
        for handle in self.files.handles() {
            // The file system is gone, so no program can get the error.
            let _ = self.close(handle);
        }
    }

    /// Reports the last writes to the manager, so that it knows their time.
    pub fn tell_written(&self) {
        self.client.tell_written();
    }

    /// Creates a directory.
    pub fn make_directory(
        &self,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        owner: (u32, u32),
    ) -> Answer<FileAttr> {
        let path = self.path_in(parent, name)?;
        if self.client.exists(&path).or_errno()? {
            return Err(Errno::EEXIST);
        }
        self.client.make_directory_as(&path, mode & MODE).or_errno()?;
        let inode = self.give(&path, self.client.stat(&path).or_errno()?, owner)?;
        self.entered(parent, name, &inode)
    }

    /// Removes a file. While it is open, its data stay under another name.
    pub fn remove_file(&self, parent: INodeNo, name: &OsStr) -> Answer<()> {
        let path = self.path_in(parent, name)?;
        if self.client.stat(&path).or_errno()?.layout.is_none() {
            return Err(Errno::EISDIR);
        }
        if let Some((number, hidden)) = self.hide_open(parent, text(name)?, &path)? {
            return self.remove_hidden(number, &hidden);
        }
        self.client.remove_one(&path).or_errno()?;
        self.nodes.removed(parent, text(name)?);
        Ok(())
    }

    /// If a file is open in this mount, gives it a hidden name. Returns its number and that path.
    fn hide_open(&self, parent: INodeNo, name: &str, path: &str) -> Answer<Option<(INodeNo, String)>> {
        let Some(number) = self.nodes.find(parent, name) else { return Ok(None) };
        if !self.files.is_open(number) {
            return Ok(None);
        }
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        let other = format!("{REMOVED}{}-{}-{count}", std::process::id(), number.0);
        let hidden = self.nodes.path_in(parent, &other)?;
        self.client.rename(path, &hidden).or_errno()?;
        self.nodes.renamed(number, parent, &other);
        Ok(Some((number, hidden)))
    }

    /// Removes a file with a hidden name at its last `close`, or now if it was closed meanwhile.
    fn remove_hidden(&self, number: INodeNo, hidden: &str) -> Answer<()> {
        if self.files.removed_at(number, hidden) { Ok(()) } else { self.client.remove_one(hidden).or_errno() }
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: INodeNo, name: &OsStr) -> Answer<()> {
        let path = self.path_in(parent, name)?;
        if self.client.stat(&path).or_errno()?.layout.is_some() {
            return Err(Errno::ENOTDIR);
        }
        self.refuse_full(&path)?;
        self.client.remove_one(&path).or_errno()?;
        self.nodes.removed(parent, text(name)?);
        Ok(())
    }

    fn refuse_full(&self, directory: &str) -> Answer<()> {
        let (listed, _) = self.client.page(directory, "", 1, &Silent::default()).or_errno()?;
        if listed.is_empty() { Ok(()) } else { Err(Errno::ENOTEMPTY) }
    }

    /// Renames a file or directory; replaces a file, or an empty directory.
    pub fn rename(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: RenameFlags) -> Answer<()> {
        // Without a request of the manager for it, another client could make the target meanwhile.
        if !flags.is_empty() {
            return Err(Errno::EINVAL);
        }
        let (old, new) = (self.path_in(from.0, from.1)?, self.path_in(to.0, to.1)?);
        let moved = self.client.stat(&old).or_errno()?;
        let target = match self.client.stat(&new) {
            Err(error) if error.kind == ErrorKind::NotFound => None,
            found => Some(found.or_errno()?),
        };
        let (number, name) = (self.nodes.number(moved.handle), text(to.1)?);
        let mut hidden = None;
        if let Some(target) = &target {
            if target.handle == moved.handle {
                return Ok(());
            }
            match (moved.layout.is_none(), target.layout.is_none()) {
                (false, true) => return Err(Errno::EISDIR),
                (true, false) => return Err(Errno::ENOTDIR),
                (true, true) => self.refuse_full(&new)?,
                (false, false) => hidden = self.hide_open(to.0, name, &new)?,
            }
        }
        match self.client.rename(&old, &new) {
            Ok(()) => {
                self.nodes.renamed(number, to.0, name);
                hidden.map_or(Ok(()), |(number, hidden)| self.remove_hidden(number, &hidden))
            }
            Err(error) => {
                if let Some((number, hidden)) = hidden
                    && self.client.rename(&hidden, &new).is_ok()
                {
                    self.nodes.renamed(number, to.0, name);
                }
                // Another client has made a name in the directory to replace.
                let is_full = target.is_some() && error.kind == ErrorKind::Exists;
                Err(if is_full { Errno::ENOTEMPTY } else { errno_of(&error) })
            }
        }
    }

    /// The names in a directory, without those of removed files that are still open.
    pub fn names(&self, number: INodeNo) -> Answer<Vec<Listed>> {
        let names = self.client.names(&self.nodes.path(number)?).or_errno()?;
        let of_parts = [(INodeNo(number.0), "."), (INodeNo::ROOT, "..")];
        let parts =
            of_parts.map(|(number, name)| Listed { number, kind: FileType::Directory, name: name.into() });
        let others = names.into_iter().filter(|named| !named.name.starts_with(REMOVED)).map(|named| Listed {
            number: self.nodes.number(named.inode.handle),
            kind: if named.inode.layout.is_none() { FileType::Directory } else { FileType::RegularFile },
            name: named.name,
        });
        Ok(parts.into_iter().chain(others).collect())
    }

    /// The value of an extended attribute.
    pub fn extended(&self, number: INodeNo, name: &OsStr) -> Answer<Vec<u8>> {
        let name = extended_name(name)?;
        match self.client.extended(&self.nodes.path(number)?, name) {
            Err(error) if error.kind == ErrorKind::NotFound => Err(Errno::NO_XATTR),
            found => found.or_errno(),
        }
    }

    /// The names of the extended attributes, each with a zero byte behind it.
    pub fn extended_names(&self, number: INodeNo) -> Answer<Vec<u8>> {
        let names = self.client.extended_names(&self.nodes.path(number)?).or_errno()?;
        let shown = names.iter().filter(|name| extended_name(OsStr::new(name)).is_ok());
        Ok(shown.flat_map(|name| [name.as_bytes(), &[0]].concat()).collect())
    }

    /// Sets an extended attribute, or removes it. `flags` are those of setxattr(2).
    pub fn set_extended(
        &self,
        number: INodeNo,
        name: &OsStr,
        value: Option<&[u8]>,
        flags: i32,
    ) -> Answer<()> {
        let name = extended_name(name)?;
        if value.is_none() || flags != 0 {
            let found = self.extended(number, OsStr::new(name));
            match found.map_err(Errno::code) {
                Ok(_) if flags & libc::XATTR_CREATE != 0 => return Err(Errno::EEXIST),
                Err(code) if code != Errno::NO_XATTR.code() => return Err(Errno::from_i32(code)),
                Err(_) if flags & libc::XATTR_CREATE == 0 => return Err(Errno::NO_XATTR),
                _ => {}
            }
        }
        let (path, _) = self.current(number)?;
        self.client.set_extended(&path, name, value.map(<[u8]>::to_vec)).or_errno()
    }

    /// Free disk space of all servers, in bytes.
    pub fn free_bytes(&self) -> Answer<u64> {
        self.client.free_bytes().or_errno()
    }

    /// The open file of a handle.
    pub fn file(&self, handle: FileHandle) -> Answer<Arc<OpenFile>> {
        self.files.get(handle)
    }
}

/// The name as text; a pool stores names in UTF-8.
fn text(name: &OsStr) -> Answer<&str> {
    name.to_str().ok_or(Errno::EILSEQ)
}

/// The name of an extended attribute that programs may use.
fn extended_name(name: &OsStr) -> Answer<&str> {
    text(name)?.starts_with("user.").then_some(text(name)?).ok_or(Errno::EOPNOTSUPP)
}

fn time(ns: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_nanos(ns)
}

fn nanoseconds(time: SystemTime) -> Answer<u64> {
    let since = time.duration_since(UNIX_EPOCH).map_err(|_| Errno::EINVAL)?;
    u64::try_from(since.as_nanos()).map_err(|_| Errno::EINVAL)
}
