//! The manager's knowledge of handles, independent of names, for checks of a pool.

use std::collections::BTreeMap;

use outcore_core::{Error, ErrorKind, Handle, Known, ManagerReply, Result};

use super::paths::MAX_PATH_BYTES;
use super::record::{Node, Orphan};
use super::step::Step;
use super::{MAX_PAGE, Manager, Now, ROOT, User, keys, record};
use crate::store::Store;

/// Files in one search for paths, at most: each needs a scan of all names in a directory.
const MOST_PATHS: usize = 100;

/// The state of a handle, before grants are signed.
enum Found {
    Inode(Node),
    Removed(Node),
    Gone(Handle),
    Unused,
}

impl<S: Store> Step<'_, S> {
    /// A page of the files, and whether there are more.
    fn files(&self, after: Handle, most: usize) -> Result<(Vec<Found>, bool)> {
        // Files come before orphans: one that loses its name between the two scans is then in at least one of
        // them.
        let mut found = BTreeMap::new();
        for (from, until) in [keys::inodes(after), keys::orphans(after)] {
            for (key, versioned) in self.store.range(&from, &until, most + 1)? {
                let Some(handle) = keys::handle_in(&key) else { continue };
                let node = if key[0] == b'i' {
                    Found::Inode(record::read(&key, &versioned.value)?)
                } else {
                    Found::Removed(record::read::<Orphan>(&key, &versioned.value)?.node)
                };
                // Otherwise the next page could begin at an earlier key.
                if let Found::Inode(node) | Found::Removed(node) = &node
                    && node.handle() != handle
                {
                    return Err(of_another(&key, node.handle()));
                }
                found.insert(handle, node);
            }
        }
        let more = found.len() > most;
        Ok((found.into_values().take(most).collect(), more))
    }

    fn find_handle(&self, handle: Handle) -> Result<Found> {
        // In the order of a file's life.
        if let Some(node) = self.look(&keys::inode(handle))? {
            return Ok(Found::Inode(node));
        }
        if let Some(orphan) = self.look::<Orphan>(&keys::orphan(handle))? {
            return Ok(Found::Removed(orphan.node));
        }
        let next = self.look::<u64>(keys::NEXT_HANDLE)?.unwrap_or(ROOT.0 + 1);
        let was_given = handle.0 < next && !self.memory.handles.holds(handle);
        Ok(if was_given { Found::Gone(handle) } else { Found::Unused })
    }

    /// The path of a file; `None` if no names lead to it.
    pub(super) fn path_of(&self, handle: Handle) -> Result<Option<String>> {
        let mut names = Vec::new();
        let mut at = handle;
        while at != ROOT {
            let Some(node) = self.look::<Node>(&keys::inode(at))? else { return Ok(None) };
            let Some(name) = self.name_of(node.parent, at)? else { return Ok(None) };
            names.push(name);
            if names.len() > MAX_PATH_BYTES {
                return Ok(None);
            }
            at = node.parent;
        }
        names.reverse();
        Ok(Some(names.join("/")))
    }

    /// The name of an entry in a directory.
    pub(super) fn name_of(&self, directory: Handle, wanted: Handle) -> Result<Option<String>> {
        let (mut from, until) = keys::names(directory, "");
        loop {
            let found = self.store.range(&from, &until, MAX_PAGE as usize)?;
            let Some((last, _)) = found.last() else { return Ok(None) };
            from = [last.as_slice(), &[0]].concat();
            for (key, versioned) in &found {
                if record::read::<u64>(key, &versioned.value)? == wanted.0 {
                    return Ok(keys::name_in(key).map(str::to_owned));
                }
            }
        }
    }
}

/// The error for a file record at the key of another file.
fn of_another(key: &[u8], handle: Handle) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!(
            "need the record of its own file at key {} of the metadata store, have that of file {}; restore the store from a \
             backup",
            key.escape_ascii(),
            handle.0
        ),
    )
}

fn check_count(handles: &[Handle], most: usize) -> Result<()> {
    if handles.len() <= most {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need at most {most} handles at once, have {}; ask for them in parts",
        handles.len()
    )))
}

impl<S: Store> Manager<S> {
    pub(super) fn files(&mut self, now: Now, who: &User, after: Handle, most: u64) -> Result<ManagerReply> {
        let most = most.clamp(1, MAX_PAGE) as usize;
        let (found, more) = self.view(now, who, |step| step.files(after, most))?;
        Ok(ManagerReply::Known { known: self.signed(now, found), more })
    }

    pub(super) fn know(&mut self, now: Now, who: &User, handles: &[Handle]) -> Result<ManagerReply> {
        check_count(handles, MAX_PAGE as usize)?;
        let each = |step: &mut Step<'_, S>| handles.iter().map(|handle| step.find_handle(*handle)).collect();
        let found = self.view(now, who, each)?;
        Ok(ManagerReply::Known { known: self.signed(now, found), more: false })
    }

    pub(super) fn paths(&mut self, now: Now, who: &User, handles: &[Handle]) -> Result<ManagerReply> {
        check_count(handles, MOST_PATHS)?;
        let each = |step: &mut Step<'_, S>| handles.iter().map(|handle| step.path_of(*handle)).collect();
        self.view(now, who, each).map(ManagerReply::Paths)
    }

    fn signed(&self, now: Now, found: Vec<Found>) -> Vec<Known> {
        let signed = |found| match found {
            Found::Inode(node) => Known::Inode(Box::new(node.inode)),
            Found::Removed(node) => Known::Removed(Box::new(self.removable(now, node.inode))),
            // Handles are never reused, so nobody will own the left-over data files.
            Found::Gone(handle) => Known::Gone(self.removal_grant(now, handle)),
            Found::Unused => Known::Unused,
        };
        found.into_iter().map(signed).collect()
    }
}
