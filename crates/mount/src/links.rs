//! Symbolic links. The kernel follows them, so the mount shows each target as it was written.

use std::ffi::OsStr;
use std::path::Path;

use fuser::{Errno, FileAttr, FileType, INodeNo};
use outcore_core::{ErrorKind, Inode};

use crate::attributes::stale;
use crate::errors::{Answer, OrErrno, errno_of};
use crate::tree::{Tree, text};

impl Tree {
    /// Creates a symbolic link.
    pub fn make_link(
        &self,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        owner: (u32, u32),
    ) -> Answer<FileAttr> {
        let path = self.at_in(parent, name)?;
        let target = text(target.as_os_str())?;
        match self.client.make_link(&path, target) {
            // The kernel has checked the names.
            Err(error) if error.kind == ErrorKind::Invalid => return Err(Errno::ENAMETOOLONG),
            Err(error) => return Err(errno_of(&error)),
            Ok(()) => {}
        }
        let inode = self.give_found(parent, &path, Some(target), owner)?;
        self.entered(parent, name, &inode)
    }

    /// The target of a symbolic link.
    pub fn target(&self, number: INodeNo) -> Answer<String> {
        let link = self.client.stat(&self.nodes.at(number)).or_errno().map_err(stale)?;
        link.target.ok_or(Errno::EINVAL)
    }
}

/// The kind of a name.
pub(crate) fn kind_of(inode: &Inode) -> FileType {
    if inode.is_link() {
        FileType::Symlink
    } else if inode.is_file() {
        FileType::RegularFile
    } else {
        FileType::Directory
    }
}
