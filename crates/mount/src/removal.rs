//! Removes and renames names. A file that is open keeps its data under a hidden name.

use std::ffi::OsStr;
use std::sync::atomic::Ordering;

use fuser::{Errno, INodeNo, RenameFlags};
use outcore_core::{Error, ErrorKind, Volume};

use crate::errors::{Answer, OrErrno, errno_of};
use crate::tree::{Tree, text};

/// Names of files that were removed while they were open begin so.
pub(crate) const REMOVED: &str = ".outcore-removed-";

impl Tree {
    /// Removes a file. While it is open, its data stay under another name.
    pub fn remove_file(&self, parent: INodeNo, name: &OsStr) -> Answer<()> {
        let path = self.at_in(parent, name)?;
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
        let other = self.hidden_name(number);
        let hidden = self.nodes.at_in(parent, &other);
        self.client.rename(path, &hidden).or_errno()?;
        self.nodes.renamed(number, parent, &other);
        Ok(Some((number, hidden)))
    }

    /// A new name for a file that is open and loses its own.
    fn hidden_name(&self, number: INodeNo) -> String {
        let count = self.next.fetch_add(1, Ordering::Relaxed);
        format!("{REMOVED}{}-{}-{count}", std::process::id(), number.0)
    }

    /// Removes a file with a hidden name at its last `close`, or now if it was closed meanwhile.
    fn remove_hidden(&self, number: INodeNo, hidden: &str) -> Answer<()> {
        if self.files.removed_at(number, hidden) { Ok(()) } else { self.client.remove_one(hidden).or_errno() }
    }

    /// Removes an empty directory.
    pub fn remove_directory(&self, parent: INodeNo, name: &OsStr) -> Answer<()> {
        let path = self.at_in(parent, name)?;
        if !self.client.stat(&path).or_errno()?.is_directory() {
            return Err(Errno::ENOTDIR);
        }
        self.client.remove_one(&path).map_err(|error| match error.kind {
            ErrorKind::Exists => Errno::ENOTEMPTY,
            _ => errno_of(&error),
        })?;
        self.nodes.removed(parent, text(name)?);
        Ok(())
    }

    /// Renames a file or directory; replaces a file, or an empty directory.
    pub fn rename(&self, from: (INodeNo, &OsStr), to: (INodeNo, &OsStr), flags: RenameFlags) -> Answer<()> {
        let is_new = flags == RenameFlags::RENAME_NOREPLACE;
        if !flags.is_empty() && !is_new {
            return Err(Errno::EINVAL);
        }
        let (old, new) = (self.at_in(from.0, from.1)?, self.at_in(to.0, to.1)?);
        let (moved, target) = (self.nodes.find(from.0, text(from.1)?), self.nodes.find(to.0, text(to.1)?));
        if let Some(number) = moved {
            // Nobody finds the new name with older attributes.
            self.files.send_attributes(number).or_errno()?;
        }
        let target = target.filter(|target| Some(*target) != moved && self.files.is_open(*target));
        let hidden = target.map(|number| (number, self.hidden_name(number)));
        let renamed = match &hidden {
            _ if is_new => self.client.relocate(&old, &new, None),
            Some((_, name)) => self.client.relocate(&old, &new, Some(&self.nodes.at_in(to.0, name))),
            None => self.client.rename(&old, &new),
        };
        renamed.map_err(|error| if is_new { errno_of(&error) } else { self.why_not(&old, &new, &error) })?;
        if let Some((number, name)) = &hidden {
            self.nodes.renamed(*number, to.0, name);
        }
        match moved {
            Some(number) => self.nodes.renamed(number, to.0, text(to.1)?),
            None => self.nodes.removed(to.0, text(to.1)?),
        }
        hidden.map_or(Ok(()), |(number, name)| self.remove_hidden(number, &self.nodes.at_in(to.0, &name)))
    }

    /// The error number for a rename that the manager refused.
    fn why_not(&self, old: &str, new: &str, error: &Error) -> Errno {
        let is_directory = |path| self.client.stat(path).map(|inode| inode.is_directory());
        match (error.kind, is_directory(old), is_directory(new)) {
            (ErrorKind::Exists, Ok(false), Ok(true)) => Errno::EISDIR,
            (ErrorKind::Exists, Ok(true), Ok(false)) => Errno::ENOTDIR,
            (ErrorKind::Exists, _, _) => Errno::ENOTEMPTY,
            _ => errno_of(error),
        }
    }
}
