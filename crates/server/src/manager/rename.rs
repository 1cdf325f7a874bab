//! Rename: one commit, whatever is below a directory.

use outcore_core::{Error, ErrorKind, ManagerReply, Result};

use super::access::{WRITE, require, require_unstuck};
use super::durable::Reached;
use super::files::mode_on_the_way;
use super::record::Node;
use super::search::DESCRIBING_ATTRIBUTE;
use super::step::Step;
use super::walk::above;
use super::{Manager, Now, User, keys};
use crate::store::Store;

/// The names that a rename may replace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Over<'a> {
    /// None.
    Nothing,
    /// A file, or an empty directory.
    One,
    /// A file, which gets this path, or an empty directory.
    Kept(&'a str),
    /// A file, or a directory with its entries. The new one takes over its default layout.
    All,
}

/// A client's report with a new name.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Told<'a> {
    /// The durable state of the file.
    pub durable: Reached<'a>,
    /// The description of the directory of the new name, if it may change; an empty one removes it.
    pub description: Option<&'a [u8]>,
}

impl<S: Store> Step<'_, S> {
    /// Renames an entry. Returns the file that it replaced, if any.
    fn rename(&mut self, from: &str, to: &str, told: Told<'_>, over: Over<'_>) -> Result<Option<Node>> {
        let all = over == Over::All;
        // This read comes before the walks. Otherwise another manager could meanwhile move a directory above both,
        // and this one could become its own descendant. The guard covers all such moves.
        let moves: u64 = self.get(keys::DIRECTORY_MOVED)?.unwrap_or(0);
        let old = self.place(from, None, "rename")?;
        let mut entry = old.entry(from)?.clone();
        self.told_durable(&mut entry, told.durable)?;
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
        if over == Over::Nothing && new.entry.is_some() {
            return Err(exists(to, "one"));
        }
        if new.entry.as_ref().is_some_and(|target| target.handle() == entry.handle()) {
            return Ok(None);
        }
        // The paths show this only if both begin at the root.
        let is_inside = entry.is_directory() && self.is_within(new.parent.handle(), entry.handle())?;
        let is_above = match &new.entry {
            Some(target) if all => self.is_within(old.parent.handle(), target.handle())?,
            _ => false,
        };
        if is_inside || is_above {
            return Err(Error::invalid(format!(
                "need two places for {from:?} and {to:?} of which none is inside the other, have such ones; choose another"
            )));
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
                match over {
                    Over::Kept(kept) if !target.is_directory() && !entry.is_directory() => {
                        self.keep(target.clone(), kept)?;
                        None
                    }
                    _ => self.make_room(&entry, target, to, all)?,
                }
            }
            None => None,
        };
        self.delete(keys::name(old.parent.handle(), &old.name));
        self.put(keys::name(new.parent.handle(), &new.name), &entry.handle().0);
        entry.parent = new.parent.handle();
        entry.inode.changed_ns = self.now.unix_ns;
        self.put_node(&entry);
        self.note_name(&entry, &new.name)?;
        if let Some(description) = told.description {
            let description = Some(description).filter(|text| !text.is_empty());
            self.put_extended(&new.parent, DESCRIBING_ATTRIBUTE, description, above(to))?;
        }
        self.touch(old.parent.handle())?;
        self.touch(new.parent.handle())?;
        Ok(replaced)
    }

    /// Gives the file that had the new name another one.
    fn keep(&mut self, mut file: Node, kept: &str) -> Result<()> {
        let place = self.place(kept, None, "keep a file")?;
        if place.entry.is_some() {
            return Err(exists(kept, "one"));
        }
        require(&place.parent.inode, self.who, WRITE, above(kept))?;
        self.put(keys::name(place.parent.handle(), &place.name), &file.handle().0);
        file.parent = place.parent.handle();
        file.inode.changed_ns = self.now.unix_ns;
        self.put_node(&file);
        self.note_name(&file, &place.name)?;
        self.touch(place.parent.handle())
    }

    /// Removes the entry that has the new name: a file for a file, a directory for a directory. The directory must
    /// be empty unless `all` is set.
    fn make_room(&mut self, entry: &Node, target: &Node, to: &str, all: bool) -> Result<Option<Node>> {
        match (entry.is_directory(), target.is_directory()) {
            (false, false) => Ok(self.drop_entry(target.clone(), self.who.uid)),
            (true, true) if all || self.is_empty(target.handle())? => {
                self.check_all_removable(target.clone(), to)?;
                self.detach(target.handle());
                Ok(None)
            }
            (true, true) => Err(exists(to, "a directory with something in it")),
            (false, true) => Err(exists(to, "a directory")),
            (true, false) => Err(exists(to, "a file")),
        }
    }
}

fn exists(path: &str, have: &str) -> Error {
    Error::new(
        ErrorKind::Exists,
        format!(
            "need a name that can be replaced, have {have} at {path:?}; remove that, or choose another name"
        ),
    )
}

impl<S: Store> Manager<S> {
    /// Renames without removing a file. See [`outcore_core::ManagerRequest::Move`].
    pub(super) fn relocate(
        &mut self,
        now: Now,
        who: &User,
        from: &str,
        to: &str,
        kept: Option<&str>,
    ) -> Result<ManagerReply> {
        let over = kept.map_or(Over::Nothing, Over::Kept);
        self.change(now, who, |step| step.rename(from, to, Told::default(), over))?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn rename(
        &mut self,
        now: Now,
        who: &User,
        from: &str,
        to: &str,
        told: Told<'_>,
    ) -> Result<ManagerReply> {
        let replaced = self.change(now, who, |step| step.rename(from, to, told, Over::One))?;
        let orphans = replaced.into_iter().map(|node| self.removable(now, node.inode)).collect();
        Ok(ManagerReply::Orphans(orphans))
    }

    /// Renames over any existing entry, in one commit. A replaced directory is emptied afterwards.
    pub(super) fn replace(&mut self, now: Now, who: &User, from: &str, to: &str) -> Result<ManagerReply> {
        self.together(|manager| {
            match manager.change(now, who, |step| step.rename(from, to, Told::default(), Over::All))? {
                Some(file) => Ok(ManagerReply::Orphans(vec![manager.removable(now, file.inode)])),
                None => manager.swept(now, who),
            }
        })
    }
}
