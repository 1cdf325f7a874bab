//! Removal. A file that loses its name stays listed as an orphan until its data files are gone. A directory loses
//! its name in one commit, together with everything below it; its files become orphans afterwards.

use outcore_core::{Error, ErrorKind, Handle, Inode, ManagerReply, Opened, Result};

use super::access::{READ, SEARCH, STICKY, WRITE, require, require_unstuck};
use super::record::{Detached, Node, Orphan};
use super::search::entries;
use super::step::Step;
use super::walk::above;
use super::{MAX_PAGE, Manager, Now, User, keys, record};
use crate::store::Store;

/// Entries removed from a directory without a name in one commit. Each needs up to 4 operations.
const NAMES_AT_ONCE: usize = 20;
/// Extended attributes and their entries in the index that one commit removes; at least those of one attribute.
const ATTRIBUTES_AT_ONCE: usize = 60;

impl<S: Store> Step<'_, S> {
    /// Whether a directory has no entries.
    pub(super) fn is_empty(&self, directory: Handle) -> Result<bool> {
        let (from, until) = keys::names(directory, "");
        Ok(self.store.range(&from, &until, 1)?.is_empty())
    }

    /// Turns a file into an orphan. Its extended attributes stay until its data files are gone.
    pub(super) fn make_orphan(&mut self, orphan: &Orphan) {
        self.delete(keys::inode(orphan.node.handle()));
        self.put(keys::orphan(orphan.node.handle()), orphan);
    }

    /// Removes the record of a directory, so that nothing new can enter it.
    pub(super) fn detach(&mut self, directory: Handle) {
        self.delete(keys::inode(directory));
        self.put(keys::detached(directory), &Detached { remover: self.who.uid });
    }

    /// Removes the record of a file or link that loses its name: a file becomes an orphan, which is returned.
    pub(super) fn drop_entry(&mut self, entry: Node, remover: u32) -> Option<Node> {
        if entry.inode.is_link() {
            self.delete(keys::inode(entry.handle()));
            return None;
        }
        let orphan = Orphan { remover, node: entry };
        self.make_orphan(&orphan);
        Some(orphan.node)
    }

    /// Removes a name. Returns its file, if it was a file.
    fn remove(&mut self, path: &str, recursive: bool) -> Result<Option<Node>> {
        let place = self.place(path, None, "remove")?;
        let entry = place.entry(path)?.clone();
        require(&place.parent.inode, self.who, WRITE, above(path))?;
        require_unstuck(&place.parent.inode, &entry.inode, self.who, path)?;
        self.delete(keys::name(place.parent.handle(), &place.name));
        self.touch(place.parent.handle())?;
        if !entry.is_directory() {
            return Ok(self.drop_entry(entry, self.who.uid));
        }
        // The guarded record was read before this check, so a concurrent addition to the directory causes a
        // conflict.
        if recursive {
            self.check_all_removable(entry.clone(), path)?;
            self.detach(entry.handle());
        } else if !self.is_empty(entry.handle())? {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "need an empty directory, have something in {path:?}; remove that first, or all of it"
                ),
            ));
        } else if self.remove_extended(entry.handle(), ATTRIBUTES_AT_ONCE)? {
            self.delete(keys::inode(entry.handle()));
        } else {
            // A later sweep removes the other attributes.
            self.detach(entry.handle());
        }
        Ok(None)
    }

    /// Returns an error unless the user could remove everything below a directory one by one.
    pub(super) fn check_all_removable(&mut self, top: Node, path: &str) -> Result<()> {
        if self.who.is_root {
            return Ok(());
        }
        let mut left = vec![(top, path.to_owned())];
        while let Some((directory, path)) = left.pop() {
            let (mut from, until) = keys::names(directory.handle(), "");
            let mut is_first = true;
            loop {
                let found = self.store.range(&from, &until, MAX_PAGE as usize)?;
                let Some((last, _)) = found.last() else { break };
                if is_first {
                    require(&directory.inode, self.who, READ | WRITE | SEARCH, &path)?;
                    is_first = false;
                }
                from = [last.as_slice(), &[0]].concat();
                for (key, versioned) in &found {
                    let handle = Handle(record::read(key, &versioned.value)?);
                    let node = self.look::<Node>(&keys::inode(handle))?.ok_or_else(|| self.stale(handle))?;
                    let below = || format!("{path}/{}", keys::name_in(key).unwrap_or_default());
                    if directory.inode.mode & STICKY != 0 {
                        require_unstuck(&directory.inode, &node.inode, self.who, &below())?;
                    }
                    if node.is_directory() {
                        left.push((node, below()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Removes some entries of a directory without a name, or its record if there are none left. Returns how many
    /// files became orphans, and whether the record is gone.
    fn empty(&mut self, directory: Handle) -> Result<(u64, bool)> {
        let key = keys::detached(directory);
        let Some(detached) = self.get::<Detached>(&key)? else { return Ok((0, true)) };
        let (from, until) = keys::names(directory, "");
        let names = self.store.range(&from, &until, NAMES_AT_ONCE)?;
        if names.is_empty() {
            let is_last = self.remove_extended(directory, ATTRIBUTES_AT_ONCE)?;
            if is_last {
                self.delete(key);
            }
            return Ok((0, is_last));
        }
        let mut orphans = 0;
        for (name, versioned) in names {
            let handle = Handle(record::read(&name, &versioned.value)?);
            self.delete(name);
            match self.get_node(handle)? {
                Some(node) if node.is_directory() => {
                    self.delete(keys::inode(handle));
                    self.put(keys::detached(handle), &detached);
                }
                Some(node) => {
                    orphans += u64::from(self.drop_entry(node, detached.remover).is_some());
                }
                None => {}
            }
        }
        Ok((orphans, false))
    }

    /// Removes up to `most` extended attributes and entries of the index. Returns whether none are left.
    fn remove_extended(&mut self, handle: Handle, most: usize) -> Result<bool> {
        let (from, until) = keys::all_extended(handle);
        let found = self.store.range(&from, &until, most + 1)?;
        let mut left = most;
        for (key, versioned) in found {
            let indexed = entries(handle, keys::name_in(&key).unwrap_or_default(), &versioned.value);
            let Some(fewer) = left.checked_sub(1 + indexed.len()) else { return Ok(false) };
            left = fewer;
            indexed.into_iter().for_each(|entry| self.delete(entry));
            self.delete(key);
        }
        self.delete(keys::noted_name(handle));
        Ok(true)
    }

    /// Removes the record of an orphan whose data files are gone. Returns whether nothing of it is left.
    fn forget(&mut self, handle: Handle) -> Result<bool> {
        let key = keys::orphan(handle);
        let Some(orphan) = self.get::<Orphan>(&key)? else { return Ok(true) };
        if !self.who.is_root && orphan.remover != self.who.uid {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "need files that user {} removed, have file {} of user {}; leave it to that user",
                    self.who.uid, handle.0, orphan.remover
                ),
            ));
        }
        let is_last = self.remove_extended(handle, ATTRIBUTES_AT_ONCE)?;
        if is_last {
            self.delete(key);
        }
        Ok(is_last)
    }

    /// A page of the orphans that the user may remove.
    fn own_orphans(&mut self, after: Handle, most: usize) -> Result<Vec<Inode>> {
        let (mut from, until) = keys::orphans(after);
        let mut own = Vec::new();
        loop {
            let found = self.store.range(&from, &until, MAX_PAGE as usize)?;
            let Some((last, _)) = found.last() else { return Ok(own) };
            from = [last.as_slice(), &[0]].concat();
            for (key, versioned) in &found {
                let orphan: Orphan = record::read(key, &versioned.value)?;
                if self.who.is_root || orphan.remover == self.who.uid {
                    own.push(orphan.node.inode);
                }
                if own.len() == most {
                    return Ok(own);
                }
            }
        }
    }
}

impl<S: Store> Manager<S> {
    pub(super) fn remove(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        recursive: bool,
    ) -> Result<ManagerReply> {
        let done = |manager: &mut Self| {
            if let Some(file) = manager.change(now, who, |step| step.remove(path, recursive))? {
                return Ok(ManagerReply::Orphans(vec![manager.removable(now, file.inode)]));
            }
            // A single name leaves no orphans but its own. Those of other requests are for their senders.
            if recursive { manager.swept(now, who) } else { Ok(ManagerReply::Orphans(vec![])) }
        };
        self.together(done)
    }

    pub(super) fn orphans(
        &mut self,
        now: Now,
        who: &User,
        gone: &[Handle],
        after: Handle,
        most: u64,
    ) -> Result<ManagerReply> {
        if gone.len() as u64 > MAX_PAGE {
            return Err(Error::invalid(format!(
                "need at most {MAX_PAGE} files to forget at once, have {}; send them in parts",
                gone.len()
            )));
        }
        let done = |manager: &mut Self| {
            for &handle in gone {
                while !manager.change(now, who, |step| step.forget(handle))? {}
            }
            let most = most.clamp(1, MAX_PAGE);
            manager.sweep(now, who, most)?;
            manager.page_of_orphans(now, who, after, most)
        };
        self.together(done)
    }

    /// Continues to empty directories without a name, until at least `most` files have become orphans or nothing
    /// is left.
    fn sweep(&mut self, now: Now, who: &User, most: u64) -> Result<()> {
        let mut made = 0;
        while made < most {
            let (from, until) = keys::all_detached();
            let Some((key, _)) = self.store.range(&from, &until, 1)?.into_iter().next() else {
                return Ok(());
            };
            let Some(directory) = keys::handle_in(&key) else { return Ok(()) };
            loop {
                let (orphans, is_gone) = self.change(now, who, |step| step.empty(directory))?;
                made += orphans;
                if is_gone || made >= most {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Empties directories after a removal. Returns the first page of the user's orphans.
    pub(super) fn swept(&mut self, now: Now, who: &User) -> Result<ManagerReply> {
        self.sweep(now, who, MAX_PAGE)?;
        self.page_of_orphans(now, who, Handle(0), MAX_PAGE)
    }

    pub(super) fn page_of_orphans(
        &mut self,
        now: Now,
        who: &User,
        after: Handle,
        most: u64,
    ) -> Result<ManagerReply> {
        let own = self.view(now, who, |step| step.own_orphans(after, most as usize))?;
        Ok(ManagerReply::Orphans(own.into_iter().map(|inode| self.removable(now, inode)).collect()))
    }

    /// An orphan, with a grant to remove its data files.
    pub(super) fn removable(&self, now: Now, inode: Inode) -> Opened {
        let grant = self.removal_grant(now, inode.handle);
        Opened { inode, grant }
    }
}
