//! Creation, opening and listing of files and directories.

use outcore_core::{Error, Grant, Handle, Hints, Inode, ManagerReply, Named, Opened, Result, files_among};

use super::access::{READ, SEARCH, WRITE, check_mode, require};
use super::layouts::{layout, merged, understood};
use super::record::Node;
use super::step::Step;
use super::walk::not_found;
use super::{MAX_PAGE, Manager, Now, ROOT, User, keys};
use crate::grants::MOST_GRANT_S;
use crate::store::Store;

/// Prefix of the extended attributes that store unknown hints.
pub const HINT_PREFIX: &str = "hint.";

/// The mode of directories created on the way to a new name: the new entry's mode, searchable by those who may
/// read, and fully usable by the owner.
pub(super) fn mode_on_the_way(mode: u32) -> u32 {
    (mode | 0o300 | (mode & 0o444) >> 2) & 0o777
}

/// Returns an error if the node is a directory.
pub(super) fn check_is_file(node: &Node, path: &str) -> Result<()> {
    if node.is_directory() {
        return Err(Error::invalid(format!(
            "need a file, have a directory at {path:?}; give the path of a file"
        )));
    }
    Ok(())
}

/// Returns an error if the node is a file.
pub(super) fn check_is_directory(node: &Node, path: &str) -> Result<()> {
    if node.is_directory() {
        return Ok(());
    }
    Err(Error::invalid(format!("need a directory, have a file at {path:?}; give the path of a directory")))
}

/// The rights that opening a file requires. A grant to write also allows reading, so opening for writing requires
/// both rights. Only the owner needs no right to read, because the owner could change the mode.
fn wanted(inode: &Inode, who: &User, write: bool) -> u32 {
    match (write, who.uid == inode.owner) {
        (true, true) => WRITE,
        (true, false) => READ | WRITE,
        (false, _) => READ,
    }
}

impl<S: Store> Step<'_, S> {
    fn create(&mut self, path: &str, hints: &Hints, mode: u32) -> Result<Inode> {
        check_mode(mode, false)?;
        let servers = self.servers()?.to_vec();
        let asked = understood(hints, servers.len())?;
        let place = self.place(path, Some(mode_on_the_way(mode)), "make a file")?;
        let hints = merged(&asked, &place.hints);
        let mut inode = self.new_inode(&place.parent, mode)?;
        inode.layout = Some(layout(&hints, &servers, self.memory.turn)?);
        let node = self.add(&place.parent, &place.name, inode, path)?;
        for (name, value) in &hints.others {
            let key = keys::extended(node.handle(), &format!("{HINT_PREFIX}{name}"));
            self.put_bytes(key, value.as_bytes().to_vec());
        }
        self.made = Some(node.handle());
        Ok(node.inode)
    }

    fn create_directory(&mut self, path: &str, mode: u32) -> Result<()> {
        check_mode(mode, true)?;
        let place = self.place(path, Some(mode_on_the_way(mode)), "make a directory")?;
        self.make_directory(&place.parent, &place.name, mode, path).map(|_| ())
    }

    fn open(&mut self, path: &str, write: bool) -> Result<Inode> {
        let node = self.find(path)?;
        self.meet(&node, path)?;
        check_is_file(&node, path)?;
        require(&node.inode, self.who, wanted(&node.inode, self.who, write), path)?;
        Ok(node.inode)
    }

    /// Checks that an open file may stay open, by the rules for opening it and by the directories above it now.
    pub(super) fn check_renewal(&mut self, handle: Handle, write: bool) -> Result<()> {
        let path = format!("the open file {}", handle.0);
        let node = self.look::<Node>(&keys::inode(handle))?.ok_or_else(|| not_found(&path))?;
        check_is_file(&node, &path)?;
        // Owners may continue to write a file that they created without the right to write, since they could
        // change the mode.
        if self.who.uid != node.inode.owner {
            require(&node.inode, self.who, wanted(&node.inode, self.who, write), &path)?;
        }
        let mut above = node.parent;
        loop {
            let directory = self.look::<Node>(&keys::inode(above))?.ok_or_else(|| not_found(&path))?;
            require(&directory.inode, self.who, SEARCH, "a directory above an open file")?;
            if above == ROOT {
                return Ok(());
            }
            above = directory.parent;
        }
    }

    fn listed(&mut self, path: &str, after: &str, most: u64) -> Result<(Vec<Named>, bool)> {
        let node = self.find(path)?;
        self.meet(&node, path)?;
        if node.is_directory() {
            return self.list(path, after, most);
        }
        Ok((vec![Named { name: String::new(), inode: node.inode }], false))
    }

    fn list(&mut self, path: &str, after: &str, most: u64) -> Result<(Vec<Named>, bool)> {
        let directory = self.find(path)?;
        self.meet(&directory, path)?;
        check_is_directory(&directory, path)?;
        // Listing needs the right to read; the attributes of each entry need the right to search.
        require(&directory.inode, self.who, READ | SEARCH, path)?;
        let most = most.clamp(1, MAX_PAGE) as usize;
        let (from, until) = keys::names(directory.handle(), after);
        let found = self.store.range(&from, &until, most + 1)?;
        let more = found.len() > most;
        let mut names = Vec::with_capacity(found.len().min(most));
        for (key, versioned) in found.iter().take(most) {
            let handle = Handle(super::record::read(key, &versioned.value)?);
            let node = self.look::<Node>(&keys::inode(handle))?.ok_or_else(|| self.stale(handle))?;
            let name = keys::name_in(key).ok_or_else(|| self.stale(handle))?;
            names.push(Named { name: name.to_owned(), inode: node.inode });
        }
        Ok((names, more))
    }
}

impl<S: Store> Manager<S> {
    pub(super) fn create(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        hints: &Hints,
        mode: u32,
    ) -> Result<ManagerReply> {
        let inode = self.change(now, who, |step| step.create(path, hints, mode))?;
        self.memory.turn = self.memory.turn.wrapping_add(1);
        Ok(self.opened(now, inode, true))
    }

    pub(super) fn make_directory(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        mode: u32,
    ) -> Result<ManagerReply> {
        self.change(now, who, |step| step.create_directory(path, mode))?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn open_file(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        write: bool,
    ) -> Result<ManagerReply> {
        let inode = self.view(now, who, |step| step.open(path, write))?;
        Ok(self.opened(now, inode, write))
    }

    pub(super) fn renew(
        &mut self,
        now: Now,
        who: &User,
        handle: Handle,
        write: bool,
    ) -> Result<ManagerReply> {
        self.view(now, who, |step| step.check_renewal(handle, write))?;
        Ok(ManagerReply::Granted(self.grant(now, handle, write)))
    }

    pub(super) fn stat(&mut self, now: Now, who: &User, path: &str) -> Result<ManagerReply> {
        let node = self.view(now, who, |step| step.find(path))?;
        Ok(ManagerReply::Inode(Box::new(node.inode)))
    }

    pub(super) fn list(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        after: &str,
        most: u64,
    ) -> Result<ManagerReply> {
        let (names, more) = self.view(now, who, |step| step.list(path, after, most))?;
        Ok(ManagerReply::Names { names, more })
    }

    pub(super) fn look(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        after: &str,
        most: u64,
    ) -> Result<ManagerReply> {
        let (names, more) = self.view(now, who, |step| step.listed(path, after, most))?;
        let grant = self.key.sign_lengths(&files_among(&names), self.grants_end_s(now));
        Ok(ManagerReply::Looked { names, more, grant })
    }

    pub(super) fn opened(&self, now: Now, inode: Inode, write: bool) -> ManagerReply {
        let grant = self.grant(now, inode.handle, write);
        ManagerReply::Opened(Box::new(Opened { inode, grant }))
    }

    /// Grants access to a file from now on.
    pub(super) fn grant(&self, now: Now, handle: Handle, write: bool) -> Grant {
        self.key.sign(handle, write, self.grants_end_s(now))
    }

    /// Grants the right to remove the data files of a file without a name, from now on.
    pub(super) fn removal_grant(&self, now: Now, handle: Handle) -> Grant {
        self.key.sign_removal(handle, self.grants_end_s(now))
    }

    fn grants_end_s(&self, now: Now) -> u64 {
        (now.unix_ns / 1_000_000_000).saturating_add(self.config.grant_s.min(MOST_GRANT_S))
    }
}
