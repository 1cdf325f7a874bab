//! Consistency of the records of names, files and directories, for checks of a pool.

use outcore_core::{Handle, ManagerReply, OddRecord, Result};

use super::paths::MAX_PATH_BYTES;
use super::record::{self, Node, Orphan};
use super::search::OLD_INDEX;
use super::step::Step;
use super::{MAX_PAGE, Manager, Now, ROOT, User, keys};
use crate::store::Store;

/// The range of keys to check.
const ALL: (&[u8], &[u8]) = (b"\0", b"\xff");

impl<S: Store> Step<'_, S> {
    /// A page of the inconsistent records after a key, and the last key of the page if there may be more.
    fn odd_records(&mut self, after: &[u8], most: usize) -> Result<(Vec<OddRecord>, Option<Vec<u8>>)> {
        let from = if after.is_empty() { ALL.0.to_vec() } else { [after, &[0]].concat() };
        let found = self.store.range(&from, ALL.1, most)?;
        let mut odd = Vec::new();
        for (key, versioned) in &found {
            if let Some(handle) = self.mend(key, &versioned.value)? {
                odd.push(OddRecord { handle, what: OLD_INDEX.to_owned() });
            }
            let Some(handle) = keys::handle_in(key) else { continue };
            let what = match key[0] {
                b'i' => self.odd_node(handle, &record::read(key, &versioned.value)?)?,
                b'n' => self.odd_name(handle, key, Handle(record::read(key, &versioned.value)?))?,
                b'o' => is_of(handle, &record::read::<Orphan>(key, &versioned.value)?.node),
                _ => None,
            };
            odd.extend(what.map(|what| OddRecord { handle, what }));
        }
        let is_full = found.len() == most;
        Ok((odd, found.into_iter().last().map(|(key, _)| key).filter(|_| is_full)))
    }

    /// Whether a directory was removed and is still being emptied.
    fn is_detached(&self, directory: Handle) -> Result<bool> {
        Ok(self.store.get(&keys::detached(directory))?.is_some())
    }

    /// Describes an inconsistency in the record of a file or directory; `None` if there is none.
    fn odd_node(&self, handle: Handle, node: &Node) -> Result<Option<String>> {
        if let Some(what) = is_of(handle, node) {
            return Ok(Some(what));
        }
        let (mut at, mut steps) = (node.parent, 0);
        // The root directory is its own parent.
        while handle != ROOT && at != ROOT {
            let Some(above) = self.look::<Node>(&keys::inode(at))? else {
                let is_known = self.is_detached(at)?;
                return Ok((!is_known).then(|| format!("it is in directory {}, which has no record", at.0)));
            };
            if !above.is_directory() {
                let kind = if above.inode.is_link() { "symbolic link" } else { "file" };
                return Ok(Some(format!("it is in {}, which is a {kind}", at.0)));
            }
            // The record of the directory of a file or link is checked separately.
            if !node.is_directory() {
                break;
            }
            steps += 1;
            if steps > MAX_PATH_BYTES {
                return Ok(Some("no way leads from it to the root".into()));
            }
            at = above.parent;
        }
        Ok(None)
    }

    /// Describes an inconsistency of a name in a directory; `None` if there is none.
    fn odd_name(&self, directory: Handle, key: &[u8], of: Handle) -> Result<Option<String>> {
        if self.is_detached(directory)? {
            return Ok(None);
        }
        let name =
            || keys::name_in(key).map_or_else(|| key.escape_ascii().to_string(), |name| format!("{name:?}"));
        if self.look::<Node>(&keys::inode(directory))?.is_none() {
            return Ok(Some(format!("it has no record, and the name {} is in it", name())));
        }
        let what = match self.look::<Node>(&keys::inode(of))? {
            None => "which has no record".to_owned(),
            Some(node) if node.parent != directory => format!("which is in directory {}", node.parent.0),
            Some(_) => return Ok(None),
        };
        Ok(Some(format!("its name {} is for file {}, {what}", name(), of.0)))
    }
}

/// Describes a record at the key of another handle; `None` if the key is right.
fn is_of(handle: Handle, node: &Node) -> Option<String> {
    (node.handle() != handle).then(|| format!("its record is that of file {}", node.handle().0))
}

impl<S: Store> Manager<S> {
    pub(super) fn check(&mut self, now: Now, who: &User, after: &[u8], most: u64) -> Result<ManagerReply> {
        if after.is_empty() {
            self.store.check()?;
        }
        let most = most.clamp(1, MAX_PAGE) as usize;
        let (odd, next) = self.view(now, who, |step| step.odd_records(after, most))?;
        Ok(ManagerReply::Checked { odd, next })
    }
}
