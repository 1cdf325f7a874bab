//! Changes of owner, group, mode and times; default layouts; extended attributes.

use outcore_core::{Error, ErrorKind, Hints, ManagerReply, Result};

use super::access::{READ, WRITE, allows, check_mode, require, require_owner, settable};
use super::files::check_is_directory;
use super::layouts::understood;
use super::paths::MAX_NAME_BYTES;
use super::record::Node;
use super::step::Step;
use super::{Manager, Now, User, keys};
use crate::store::Store;

/// Bytes of an extended attribute, at most.
pub const MAX_EXTENDED_BYTES: usize = 64 << 10;
/// Extended attributes of a file or directory, at most.
pub const MAX_EXTENDED: usize = 256;

/// Latest time that a user may set, in nanoseconds since 1970: 2262-04-11T23:47:16Z. Each write advances the time
/// by at least a nanosecond, and programs store times in 63 bits.
const MOST_MODIFIED_NS: u64 = (i64::MAX as u64) / 1_000_000_000 * 1_000_000_000;

/// The requested changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wanted {
    pub mode: Option<u32>,
    pub owner: Option<u32>,
    pub group: Option<u32>,
    pub modified_ns: Option<u64>,
}

impl<S: Store> Step<'_, S> {
    fn set_attributes(&mut self, path: &str, wanted: &Wanted) -> Result<()> {
        let mut node = self.find_guarded(path)?;
        let who = self.who;
        // POSIX.1-2017, `chmod()`, `chown()` and `utimensat()`: EPERM, even if nothing would change.
        require_owner(&node.inode, who, "change the attributes of", path)?;
        if let Some(mode) = wanted.mode {
            self.meet(&node, path)?;
            check_mode(mode, node.is_directory())?;
        }
        if let Some(modified_ns) = wanted.modified_ns.filter(|modified_ns| *modified_ns > MOST_MODIFIED_NS) {
            return Err(Error::invalid(format!(
                "need a time of the last write of at most {MOST_MODIFIED_NS} ns since 1970 (2262-04-11T23:47:16Z) for {path:?}, \
                 have {modified_ns}; choose an earlier one"
            )));
        }
        // `chown()`: as with `_POSIX_CHOWN_RESTRICTED`, only root may change the owner.
        if wanted.owner.is_some_and(|owner| owner != node.inode.owner) && !who.is_root {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "need root to give {path:?} to another user, have user {}; ask an administrator",
                    who.uid
                ),
            ));
        }
        let other_group = wanted.group.filter(|&group| group != node.inode.group && !who.is_root);
        if let Some(group) = other_group.filter(|group| !who.gids.contains(group)) {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "need to be a member of group {group} to give it {path:?}, have groups {:?}; choose one of these",
                    who.gids
                ),
            ));
        }
        let inode = &mut node.inode;
        inode.owner = wanted.owner.unwrap_or(inode.owner);
        inode.group = wanted.group.unwrap_or(inode.group);
        inode.mode = wanted.mode.map_or(inode.mode, |mode| settable(mode, inode, who));
        inode.modified_ns = wanted.modified_ns.unwrap_or(inode.modified_ns);
        inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(())
    }

    /// Sets the times to now, like `utimensat()` without times. The right to write suffices.
    fn touch_path(&mut self, path: &str) -> Result<()> {
        let mut node = self.find_guarded(path)?;
        if node.inode.is_link() || !allows(&node.inode, self.who, WRITE) {
            require_owner(&node.inode, self.who, "set the time of", path)?;
        }
        node.inode.modified_ns = self.now.unix_ns;
        node.inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(())
    }

    fn set_default_layout(&mut self, path: &str, hints: &Hints) -> Result<()> {
        let count = self.servers()?.len();
        let defaults = understood(hints, count)?;
        if defaults.round_units.is_some() {
            return Err(Error::invalid(format!(
                "need a file for a number of stripe units that go round, have the directory {path}; leave that number out"
            )));
        }
        let mut node = self.find_guarded(path)?;
        self.meet(&node, path)?;
        check_is_directory(&node, path)?;
        require_owner(&node.inode, self.who, "set the default layout of", path)?;
        node.defaults = defaults;
        node.inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(())
    }

    fn get_extended(&mut self, path: &str, name: &str) -> Result<Vec<Vec<u8>>> {
        let node = self.find(path)?;
        self.meet(&node, path)?;
        require(&node.inode, self.who, READ, path)?;
        if name.is_empty() {
            let (from, until) = keys::all_extended(node.handle());
            let found = self.store.range(&from, &until, crate::store::MAX_RANGE)?;
            return Ok(found.iter().filter_map(|(key, _)| key.get(9..)).map(<[u8]>::to_vec).collect());
        }
        check_name(name)?;
        match self.store.get(&keys::extended(node.handle(), name))? {
            Some(found) => Ok(vec![found.value]),
            None => Err(no_attribute(path, name)),
        }
    }

    fn set_extended(&mut self, path: &str, name: &str, value: Option<&[u8]>) -> Result<()> {
        check_name(name)?;
        let mut node = self.find_guarded(path)?;
        self.meet(&node, path)?;
        require(&node.inode, self.who, WRITE, path)?;
        if !self.put_extended(&node, name, value, path)? && value.is_none() {
            return Err(no_attribute(path, name));
        }
        // Every change of an attribute also writes the record, so the record's guard covers the attributes.
        node.inode.changed_ns = self.now.unix_ns;
        self.put_node(&node);
        Ok(())
    }

    /// Sets or removes an extended attribute of a file that the user may write. The caller writes its record, which the
    /// step guards. Returns whether the file had the attribute.
    pub(super) fn put_extended(
        &mut self,
        node: &Node,
        name: &str,
        value: Option<&[u8]>,
        path: &str,
    ) -> Result<bool> {
        let key = keys::extended(node.handle(), name);
        let known = self.store.get(&key)?.map(|found| found.value);
        let is_known = known.is_some();
        match value {
            Some(value) if value.len() > MAX_EXTENDED_BYTES => {
                return Err(Error::invalid(format!(
                    "need an extended attribute of at most 64 KiB, have {} bytes; keep it in a file",
                    value.len()
                )));
            }
            Some(_) if !is_known && self.count_extended(node)? >= MAX_EXTENDED => {
                return Err(Error::invalid(format!(
                    "need at most {MAX_EXTENDED} extended attributes, have as many on {path:?}; remove one first"
                )));
            }
            _ if known.as_deref() == value => return Ok(is_known),
            Some(value) => self.put_bytes(key, value.to_vec()),
            None => self.delete(key),
        }
        self.index(node.handle(), name, known.as_deref(), value);
        self.note_own_name(node)?;
        Ok(is_known)
    }

    fn count_extended(&self, node: &Node) -> Result<usize> {
        let (from, until) = keys::all_extended(node.handle());
        Ok(self.store.range(&from, &until, MAX_EXTENDED)?.len())
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > MAX_NAME_BYTES || name.contains('\0') {
        return Err(Error::invalid(format!(
            "need a name of 1 to {MAX_NAME_BYTES} bytes for an extended attribute, have {} bytes or a zero byte; choose \
             another",
            name.len()
        )));
    }
    Ok(())
}

fn no_attribute(path: &str, name: &str) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("need the extended attribute {name:?} of {path:?}, have none of that name; list their names"),
    )
}

impl<S: Store> Manager<S> {
    pub(super) fn set_attributes(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        wanted: &Wanted,
    ) -> Result<ManagerReply> {
        self.change(now, who, |step| step.set_attributes(path, wanted))?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn touch(&mut self, now: Now, who: &User, path: &str) -> Result<ManagerReply> {
        self.change(now, who, |step| step.touch_path(path))?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn set_default_layout(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        hints: &Hints,
    ) -> Result<ManagerReply> {
        self.change(now, who, |step| step.set_default_layout(path, hints))?;
        Ok(ManagerReply::Done)
    }

    pub(super) fn get_extended(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        name: &str,
    ) -> Result<ManagerReply> {
        self.view(now, who, |step| step.get_extended(path, name)).map(ManagerReply::Values)
    }

    pub(super) fn set_extended(
        &mut self,
        now: Now,
        who: &User,
        path: &str,
        name: &str,
        value: Option<&[u8]>,
    ) -> Result<ManagerReply> {
        self.change(now, who, |step| step.set_extended(path, name, value))?;
        Ok(ManagerReply::Done)
    }
}
