//! Rename: one commit, whatever is below a directory.

use outcore_core::{Error, ErrorKind, ManagerReply, Result};

use super::access::{WRITE, require, require_unstuck};
use super::durable::Reached;
use super::files::mode_on_the_way;
use super::record::Node;
use super::step::Step;
use super::walk::above;
use super::{Manager, Now, User, keys};
use crate::store::Store;

impl<S: Store> Step<'_, S> {
    /// Renames an entry. Returns the file that it replaced, if any. With `all`, a directory may be replaced
    /// together with its entries; the new one takes over its default layout.
    fn rename(&mut self, from: &str, to: &str, durable: Reached<'_>, all: bool) -> Result<Option<Node>> {
        // This read comes before the walks. Otherwise another manager could meanwhile move a directory above both,
        // and this one could become its own descendant. The guard covers all such moves.
        let moves: u64 = self.get(keys::DIRECTORY_MOVED)?.unwrap_or(0);
        let old = self.place(from, None, "rename")?;
        let mut entry = old.entry(from)?.clone();
        self.told_durable(&mut entry, durable)?;
        if entry.is_directory() && to.strip_prefix(from).is_some_and(|rest| rest.starts_with('/')) {
            return Err(Error::invalid(format!(
                "need a place for {from:?} outside of itself, have {to:?}; choose another"
            )));
        }
        if all && from.strip_prefix(to).is_some_and(|rest| rest.starts_with('/')) {
            return Err(Error::invalid(format!(
                "need something else than {from:?} for it to replace, have {to:?}, in which it is; move it out of that first"
            )));
        }
        // The mode of a link says nothing about who may use a directory.
        let mode = if entry.inode.is_link() { 0o600 } else { entry.inode.mode };
        let new = self.place(to, Some(mode_on_the_way(mode)), "rename to")?;
        if new.entry.as_ref().is_some_and(|target| target.handle() == entry.handle()) {
            return Ok(None);
        }
        for (place, path) in [(&old, from), (&new, to)] {
            require(&place.parent.inode, self.who, WRITE, above(path))?;
        }
        require_unstuck(&old.parent.inode, &entry.inode, self.who, from)?;
        let is_moved = old.parent.handle() != new.parent.handle();
        if entry.is_directory() && is_moved {
            // The entry for the parent is part of a directory, so a move requires the right to write it, as on
            // Linux.
            require(&entry.inode, self.who, WRITE, from)?;
            self.put(keys::DIRECTORY_MOVED.to_vec(), &(moves + 1));
        }
        let replaced = match &new.entry {
            Some(target) => {
                require_unstuck(&new.parent.inode, &target.inode, self.who, to)?;
                if all {
                    // The name keeps the defaults for new files, because clients cannot read them in order to set
                    // them again.
                    entry.defaults = target.defaults.clone();
                }
                self.make_room(&entry, target, to, all)?
            }
            None => None,
        };
        self.delete(keys::name(old.parent.handle(), &old.name));
        self.put(keys::name(new.parent.handle(), &new.name), &entry.handle().0);
        entry.parent = new.parent.handle();
        entry.inode.changed_ns = self.now.unix_ns;
        self.put_node(&entry);
        self.touch(old.parent.handle())?;
        self.touch(new.parent.handle())?;
        Ok(replaced)
    }

    /// Removes the entry that has the new name: a file for a file, a directory for a directory. The directory must
    /// be empty unless `all` is set.
    fn make_room(&mut self, entry: &Node, target: &Node, to: &str, all: bool) -> Result<Option<Node>> {
        let exists = |have: &str| {
            Error::new(
                ErrorKind::Exists,
                format!(
                    "need a name that can be replaced, have {have} at {to:?}; remove that, or choose another name"
                ),
            )
        };
        match (entry.is_directory(), target.is_directory()) {
            (false, false) => Ok(self.drop_entry(target.clone(), self.who.uid)),
            (true, true) if all || self.is_empty(target.handle())? => {
                self.check_all_removable(target.clone(), to)?;
                self.detach(target.handle());
                Ok(None)
            }
            (true, true) => Err(exists("a directory with something in it")),
            (false, true) => Err(exists("a directory")),
            (true, false) => Err(exists("a file")),
        }
    }
}

impl<S: Store> Manager<S> {
    pub(super) fn rename(
        &mut self,
        now: Now,
        who: &User,
        from: &str,
        to: &str,
        durable: Reached<'_>,
    ) -> Result<ManagerReply> {
        let replaced = self.change(now, who, |step| step.rename(from, to, durable, false))?;
        let orphans = replaced.into_iter().map(|node| self.removable(now, node.inode)).collect();
        Ok(ManagerReply::Orphans(orphans))
    }

    /// Renames over any existing entry, in one commit. A replaced directory is emptied afterwards.
    pub(super) fn replace(&mut self, now: Now, who: &User, from: &str, to: &str) -> Result<ManagerReply> {
        self.together(|manager| {
            match manager.change(now, who, |step| step.rename(from, to, Reached::default(), true))? {
                Some(file) => Ok(ManagerReply::Orphans(vec![manager.removable(now, file.inode)])),
                None => manager.swept(now, who),
            }
        })
    }
}
