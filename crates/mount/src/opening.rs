//! Opens, creates and closes files; creates directories.

use std::ffi::OsStr;

use fuser::{Errno, FileAttr, FileHandle, INodeNo};
use outcore_client::Attributes;
use outcore_core::{ErrorKind, FileId, Hints, Inode, OpenMode, Volume};

use crate::attributes::MODE;
use crate::errors::{Answer, OrErrno, errno_of};
use crate::tree::{Tree, text};

impl Tree {
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
    pub fn give(&self, path: &str, inode: Inode, (owner, group): (u32, u32)) -> Answer<Inode> {
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
    pub fn entered(&self, parent: INodeNo, name: &OsStr, inode: &Inode) -> Answer<FileAttr> {
        let length = inode.target.as_ref().map_or(0, String::len);
        let attributes = self.attributes_of(inode, length as u64);
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

    /// Returns once the servers have all writes to a file, and the manager knows their time.
    pub fn flush(&self, handle: FileHandle) -> Answer<()> {
        let flushed = self.files.get(handle).and_then(|open| self.files.flush(&open).or_errno());
        self.client.tell_written();
        flushed
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
}
