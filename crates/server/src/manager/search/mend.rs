//! The index and the noted names: their changes with those of attributes and names, and their repair.

use outcore_core::{ErrorKind, Handle, ManagerReply, Result};

use super::super::record::{self, Node, Orphan};
use super::super::step::Step;
use super::super::{MAX_PAGE, Manager, Now, ROOT, User, keys};
use super::terms::{all_entries, entries, entry_in};
use crate::store::{MAX_OPERATIONS, MAX_RANGE, Outcome, Store, Write};

/// The rules by which attributes have entries. A store whose index has others gets a new one.
const RULES: u64 = 3;
/// Writes of a commit that builds the index.
const WRITES_AT_ONCE: usize = MAX_OPERATIONS - 1;
/// Commits of a group that builds the index.
const COMMITS_AT_ONCE: usize = 1000;

/// The record that the index has the rules of this version.
pub(in super::super) fn indexed() -> Write {
    Write { key: keys::INDEXED.to_vec(), value: Some(record::write(&RULES)) }
}

impl<S: Store> Step<'_, S> {
    /// Changes the entries of an attribute with its value. The guard of the file's record covers them.
    pub(in super::super) fn index(
        &mut self,
        handle: Handle,
        name: &str,
        before: Option<&[u8]>,
        after: Option<&[u8]>,
    ) {
        let of = |value: Option<&[u8]>| value.map(|value| entries(handle, name, value)).unwrap_or_default();
        let (before, after) = (of(before), of(after));
        for key in before.difference(&after) {
            self.delete(key.clone());
        }
        for key in after.difference(&before) {
            self.put_bytes(key.clone(), Vec::new());
        }
    }

    /// Notes the name of a directory, or of a file with attributes, so that a search need not read all names beside
    /// it.
    pub(in super::super) fn note_name(&mut self, node: &Node, name: &str) -> Result<()> {
        let key = keys::noted_name(node.handle());
        let noted = self.look::<String>(&key)?;
        if noted.as_deref() != Some(name) && (node.is_directory() || noted.is_some()) {
            self.put(key, &name.to_owned());
        }
        Ok(())
    }

    /// Notes the name of a file that gets its first attribute.
    pub(in super::super) fn note_own_name(&mut self, node: &Node) -> Result<()> {
        if node.handle() == ROOT || self.look::<String>(&keys::noted_name(node.handle()))?.is_some() {
            return Ok(());
        }
        if let Some(name) = self.name_of(node.parent, node.handle())? {
            self.put(keys::noted_name(node.handle()), &name);
        }
        Ok(())
    }

    /// Writes the missing entries of a record, or removes the record if it is an entry without an attribute. Returns
    /// the handle if there was anything to do.
    pub(in super::super) fn mend(&mut self, key: &[u8], value: &[u8]) -> Result<Option<Handle>> {
        match key.first() {
            Some(b'n') => self.mend_name(key, Handle(record::read(key, value)?)),
            Some(b'x') => {
                let (Some(handle), Some(name)) = (keys::handle_in(key), keys::name_in(key)) else {
                    return Ok(None);
                };
                if self.get_node(handle)?.is_none() && self.get::<Orphan>(&keys::orphan(handle))?.is_none() {
                    return Ok(None);
                }
                let mut is_odd = false;
                for entry in entries(handle, name, value) {
                    if self.store.get(&entry)?.is_none() {
                        self.put_bytes(entry, Vec::new());
                        is_odd = true;
                    }
                }
                Ok(is_odd.then_some(handle))
            }
            Some(b'y') => {
                let known = match entry_in(key) {
                    Some((handle, name)) => {
                        // Each change of an attribute also writes the file's record.
                        self.guard(&keys::inode(handle))?;
                        let value = self.store.get(&keys::extended(handle, &name))?;
                        value.is_some_and(|found| entries(handle, &name, &found.value).contains(key))
                    }
                    None => false,
                };
                if known {
                    return Ok(None);
                }
                self.delete(key.to_vec());
                Ok(Some(entry_in(key).map_or(Handle(0), |(handle, _)| handle)))
            }
            _ => Ok(None),
        }
    }

    fn mend_name(&mut self, key: &[u8], handle: Handle) -> Result<Option<Handle>> {
        let (Some(directory), Some(name)) = (keys::handle_in(key), keys::name_in(key)) else {
            return Ok(None);
        };
        let Some(node) = self.get_node(handle)? else { return Ok(None) };
        let is_noted = node.is_directory() || self.has_extended(handle)?;
        let noted = self.look::<String>(&keys::noted_name(handle))?;
        if node.parent != directory || !is_noted || noted.as_deref() == Some(name) {
            return Ok(None);
        }
        self.put(keys::noted_name(handle), &name.to_owned());
        Ok(Some(handle))
    }

    fn has_extended(&self, handle: Handle) -> Result<bool> {
        let (from, until) = keys::all_extended(handle);
        Ok(!self.store.range(&from, &until, 1)?.is_empty())
    }
}

/// Builds the index of a store without one, or with one by other rules: of a pool that an earlier version made. A store
/// without space for it stays as it is.
pub(in super::super) fn index_all<S: Store>(store: &mut S) -> Result<()> {
    let found = store.get(keys::INDEXED)?;
    let rules = found.map(|found| record::read::<u64>(keys::INDEXED, &found.value)).transpose()?;
    if rules == Some(RULES) {
        return Ok(());
    }
    let is_built = clear(store).and_then(|()| build(store)).and_then(|()| commit(store, vec![indexed()]));
    match is_built {
        Err(error) if error.kind == ErrorKind::DiskFull => Ok(()),
        is_built => is_built,
    }
}

fn commit<S: Store>(store: &mut S, writes: Vec<Write>) -> Result<()> {
    match store.commit(&[], &writes)? {
        // Without guards, there is no conflict.
        Outcome::Done(_) | Outcome::Conflict => Ok(()),
    }
}

/// Removes the entries of other rules.
fn clear<S: Store>(store: &mut S) -> Result<()> {
    let (from, until) = all_entries();
    loop {
        let found = store.range(&from, &until, WRITES_AT_ONCE)?;
        if found.is_empty() {
            return Ok(());
        }
        commit(store, found.into_iter().map(|(key, _)| Write { key, value: None }).collect())?;
    }
}

fn build<S: Store>(store: &mut S) -> Result<()> {
    let mut left: Vec<Write> = Vec::new();
    for (mut from, until) in [keys::all_names(), keys::all_attributes()] {
        loop {
            let found = store.range(&from, &until, MAX_RANGE)?;
            let Some((last, _)) = found.last() else { break };
            from = [last.as_slice(), &[0]].concat();
            for (key, versioned) in &found {
                left.extend(missing(store, key, &versioned.value)?);
            }
            if left.len() >= WRITES_AT_ONCE * COMMITS_AT_ONCE {
                write_all(store, std::mem::take(&mut left))?;
            }
        }
    }
    write_all(store, left)
}

/// The records that the index needs for a name or an attribute.
fn missing<S: Store>(store: &S, key: &[u8], value: &[u8]) -> Result<Vec<Write>> {
    let Some(name) = keys::name_in(key) else { return Ok(Vec::new()) };
    if key[0] == b'x' {
        let Some(handle) = keys::handle_in(key) else { return Ok(Vec::new()) };
        let keys = entries(handle, name, value).into_iter();
        return Ok(keys.map(|key| Write { key, value: Some(Vec::new()) }).collect());
    }
    let handle = Handle(record::read(key, value)?);
    let Some(found) = store.get(&keys::inode(handle))? else { return Ok(Vec::new()) };
    let node: Node = record::read(&keys::inode(handle), &found.value)?;
    let (from, until) = keys::all_extended(handle);
    if !node.is_directory() && store.range(&from, &until, 1)?.is_empty() {
        return Ok(Vec::new());
    }
    Ok(vec![Write { key: keys::noted_name(handle), value: Some(record::write(&name.to_owned())) }])
}

fn write_all<S: Store>(store: &mut S, mut writes: Vec<Write>) -> Result<()> {
    // Several attributes of a damaged store may have one entry.
    writes.sort_by(|one, other| one.key.cmp(&other.key));
    writes.dedup_by(|one, other| one.key == other.key);
    store.begin_group()?;
    let written = writes.chunks(WRITES_AT_ONCE).try_for_each(|some| commit(store, some.to_vec()));
    // The first error says why, such as a full disk.
    let ended = store.end_group();
    written.and(ended)
}

impl<S: Store> Manager<S> {
    /// Mends the index for a page of records. The reply has the mended ones.
    pub(in super::super) fn mend(
        &mut self,
        now: Now,
        who: &User,
        after: &[u8],
        most: u64,
    ) -> Result<ManagerReply> {
        let most = most.clamp(1, MAX_PAGE) as usize;
        let from = [after, &[0]].concat().max(vec![b'n']);
        let found = self.store.range(&from, &all_entries().1, most)?;
        let is_full = found.len() == most;
        let next = found.last().map(|(key, _)| key.clone()).filter(|_| is_full);
        self.store.forget();
        self.together(|manager| {
            let mut odd = Vec::new();
            for (key, _) in &found {
                let mended = |step: &mut Step<'_, S>| match step.store.get(key)? {
                    Some(versioned) => step.mend(key, &versioned.value),
                    None => Ok(None),
                };
                if let Some(handle) = manager.change(now, who, mended)? {
                    odd.push(outcore_core::OddRecord { handle, what: super::OLD_INDEX.into() });
                }
            }
            Ok(ManagerReply::Checked { odd, next })
        })
    }
}
