//! Removes and renames names. A file that is open keeps its data under a hidden name.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;

use fuser::{Errno, INodeNo, RenameFlags};
use outcore_client::Silent;
use outcore_core::{ErrorKind, Volume};

use crate::errors::{Answer, OrErrno, errno_of};
use crate::tree::{Tree, text};

/// Names of files that were removed while they were open begin so.
pub(crate) const REMOVED: &str = ".outcore-removed-";

impl Tree {
    /// Removes a file. While it is open, its data stay under another name.
    pub fn remove_file(&self, parent: INodeNo, name: &OsStr) -> Answer<()> {
        let path = self.path_in(parent, name)?;
        if self.client.stat(&path).or_errno()?.is_directory() {
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
        if !self.client.stat(&path).or_errno()?.is_directory() {
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
            match (moved.is_directory(), target.is_directory()) {
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
}
