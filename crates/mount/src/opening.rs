//! Opens, creates and closes files; creates directories.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;

use fuser::{Errno, FileAttr, FileHandle, INodeNo};
use outcore_client::Attributes;
use outcore_core::{ErrorKind, Hints, Inode, Volume, path_at};

use crate::attributes::{DIRECTORY_BITS, FILE_BITS, SET_GROUP, stale, time};
use crate::errors::{Answer, OrErrno, errno_of};
use crate::filesystem::PoolFilesystem;
use crate::tree::{Tree, text};

impl Tree {
    /// Opens a file. The second value is whether it has changed since the kernel got its attributes.
    pub fn open(&self, number: INodeNo, is_writable: bool) -> Answer<(FileHandle, bool)> {
        self.files.send_attributes(number).or_errno()?;
        let opened = self.client.open_known(&self.nodes.at(number), is_writable);
        let (file, inode) = opened.or_errno().map_err(stale)?;
        let has_changed = self.nodes.has_changed(number, time(inode.changed_ns));
        Ok((self.files.add(number, file, is_writable), has_changed))
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
        let path = self.at_in(parent, name)?;
        let (file, inode) = match self.client.create_known(&path, Hints::default(), mode & FILE_BITS) {
            Ok(made) => made,
            // The kernel found no such file, and has checked no rights to it: let it look again.
            Err(error) if error.kind == ErrorKind::Exists && !is_exclusive => return Err(Errno::ESTALE),
            Err(error) => return Err(errno_of(&error)),
        };
        let inode = self.give(parent, &path, inode, owner).inspect_err(|_| self.client.close(file))?;
        let attributes = self.entered(parent, name, &inode)?;
        let handle = self.files.add(attributes.ino, file, true);
        self.files.created(attributes.ino, inode);
        Ok((attributes, handle))
    }

    /// Gives what this mount has just created to the user who asked for it, and returns its record; removes it if the
    /// pool does not allow that. It names the record by its handle: meanwhile another client may rename.
    fn give(&self, parent: INodeNo, path: &str, inode: Inode, (owner, group): (u32, u32)) -> Answer<Inode> {
        if !self.gives || inode.owner == owner {
            return Ok(inode);
        }
        let given = self.client.stat(&self.nodes.at(parent)).and_then(|above| {
            // A directory with the set-group bit has passed on its group.
            let group = if above.mode & SET_GROUP == 0 { group } else { inode.group };
            let wanted = Attributes { owner: Some(owner), group: Some(group), ..Attributes::default() };
            self.client.set_attributes(&path_at(inode.handle), wanted)?;
            self.may_give.store(true, Ordering::Relaxed);
            Ok(group)
        });
        let group = given.or_errno().inspect_err(|_| {
            // The caller gets the first error.
            if self.client.stat(path).is_ok_and(|found| found.handle == inode.handle) {
                let _ = self.client.remove_one(path);
            }
        })?;
        Ok(Inode { owner, group, ..inode })
    }

    /// Like [`Tree::give`], for a directory or link that the manager created without stating its handle. If another
    /// client put another entry in its place, that one keeps its owner, unless it is empty or has the same target.
    pub fn give_found(
        &self,
        parent: INodeNo,
        path: &str,
        target: Option<&str>,
        owner: (u32, u32),
    ) -> Answer<Inode> {
        let inode = self.client.stat(path).or_errno()?;
        if !self.gives || inode.owner == owner.0 {
            return Ok(inode);
        }
        let is_like = inode.target.as_deref() == target
            && (target.is_some() || (inode.is_directory() && self.is_empty(&inode)?));
        if is_like { self.give(parent, path, inode, owner) } else { Err(Errno::ESTALE) }
    }

    fn is_empty(&self, directory: &Inode) -> Answer<bool> {
        Ok(self.client.list(&path_at(directory.handle)).or_errno()?.is_empty())
    }

    /// Records a new, empty name for the kernel, and returns its attributes.
    pub fn entered(&self, parent: INodeNo, name: &OsStr, inode: &Inode) -> Answer<FileAttr> {
        let length = inode.target.as_ref().map_or(0, String::len);
        let attributes = self.attributes_of(inode, length as u64);
        self.nodes.looked_up(&attributes, parent, text(name)?);
        Ok(attributes)
    }

    /// Closes a file. The last `close` of a removed file removes its hidden names.
    pub fn close(&self, handle: FileHandle) -> Answer<()> {
        let mut closed = Ok(());
        for hidden in self.files.close(handle) {
            closed = closed.and(self.client.remove_one(&hidden).or_errno());
        }
        closed
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
        let open = self.files.get(handle)?;
        let flushed = self.files.flush(&open).or_errno();
        // The client tells it again later if the manager does not answer.
        let _ = self.client.tell_written_to(self.nodes.handle(open.number));
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
        let path = self.at_in(parent, name)?;
        self.client.make_directory_as(&path, mode & DIRECTORY_BITS).or_errno()?;
        let inode = self.give_found(parent, &path, None, owner)?;
        self.entered(parent, name, &inode)
    }
}

impl PoolFilesystem {
    /// Opens a file, whose length the program then gets as it is now: close-to-open.
    pub fn open_current(&self, number: INodeNo, is_writable: bool) -> Answer<FileHandle> {
        let (handle, has_changed) = self.tree.open(number, is_writable)?;
        if let Some(notifier) = self.notifier.get().filter(|_| has_changed) {
            // The kernel drops the attributes, and asks for them again when the program does.
            let _ = notifier.inval_inode(number, -1, 0);
        }
        Ok(handle)
    }
}
