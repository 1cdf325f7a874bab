//! Names and directories.

use std::ffi::OsStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use fuser::{Errno, FileAttr, FileHandle, FileType, INodeNo};

use crate::Client;
use crate::errors::{Answer, OrErrno};
use crate::links::kind_of;
use crate::nodes::Nodes;
use crate::open_files::{OpenFile, OpenFiles};
use crate::removal::REMOVED;

/// The names below the mounted directory.
pub(crate) struct Tree {
    pub client: Arc<Client>,
    pub nodes: Nodes,
    pub files: OpenFiles,
    /// Whether new files belong to the user of the program, not to that of the mount.
    pub gives: bool,
    /// Whether the pool is known to let the mount's user give files to others.
    pub may_give: AtomicBool,
    /// The next number in a hidden name.
    pub next: AtomicU64,
}

/// Bytes of a name, at most.
pub(crate) const NAME_BYTES: u32 = 255;

/// A name in a directory.
pub(crate) struct Listed {
    pub number: INodeNo,
    pub kind: FileType,
    pub name: String,
}

impl Tree {
    /// The tree below a directory of a pool.
    pub fn new(client: Arc<Client>, root: &str, gives: bool, is_cached: bool) -> outcore_core::Result<Self> {
        let root = &client.follow(root)?;
        client.leave_to_kernel();
        let inode = client.stat(root)?;
        if !inode.is_directory() {
            return Err(outcore_core::Error::invalid(format!(
                "need a directory to mount, have the file {root:?}; mount the directory above it"
            )));
        }
        let files = OpenFiles::new(client.clone(), is_cached)?;
        let nodes = Nodes::new(inode.handle, root.clone());
        let may_give = AtomicBool::new(false);
        Ok(Self { client, nodes, files, gives, may_give, next: AtomicU64::new(0) })
    }

    /// Path of a number in the pool.
    pub fn path(&self, number: INodeNo) -> Answer<String> {
        self.nodes.path(number)
    }

    /// The path of a name, at the handle of its directory.
    pub fn at_in(&self, parent: INodeNo, name: &OsStr) -> Answer<String> {
        if name.len() > NAME_BYTES as usize {
            return Err(Errno::ENAMETOOLONG);
        }
        Ok(self.nodes.at_in(parent, text(name)?))
    }

    /// Looks up a name for the kernel, which forgets it later.
    pub fn look_up(&self, parent: INodeNo, name: &OsStr) -> Answer<FileAttr> {
        let attributes = self.attributes_at(&self.at_in(parent, name)?)?;
        self.nodes.looked_up(&attributes, parent, text(name)?);
        Ok(attributes)
    }

    /// Forgets lookups of a number.
    pub fn forget(&self, number: INodeNo, lookups: u64) {
        self.nodes.forget(number, lookups);
    }

    /// The names in a directory, without those of removed files that are still open.
    pub fn names(&self, number: INodeNo) -> Answer<Vec<Listed>> {
        let names = self.client.names(&self.nodes.at(number)).or_errno()?;
        let of_parts = [(INodeNo(number.0), "."), (INodeNo::ROOT, "..")];
        let parts =
            of_parts.map(|(number, name)| Listed { number, kind: FileType::Directory, name: name.into() });
        let others = names.into_iter().filter(|named| !named.name.starts_with(REMOVED)).map(|named| Listed {
            number: self.nodes.number(named.inode.handle),
            kind: kind_of(&named.inode),
            name: named.name,
        });
        Ok(parts.into_iter().chain(others).collect())
    }

    /// The open file of a handle.
    pub fn file(&self, handle: FileHandle) -> Answer<Arc<OpenFile>> {
        self.files.get(handle)
    }
}

/// The name as text; a pool stores names in UTF-8.
pub(crate) fn text(name: &OsStr) -> Answer<&str> {
    name.to_str().ok_or(Errno::EILSEQ)
}
