//! One request in progress: the records that it read and those that it will write, in one commit.

use std::collections::{BTreeMap, HashMap};

use outcore_core::wire::Record;
use outcore_core::{Error, ErrorKind, Handle, Result, ServerAddress, ServerId};

use super::links::Met;
use super::record::{self, Node};
use super::{Now, User, keys};
use crate::store::{Guard, MAX_RANGE, Outcome, Store, Versioned, Write};

/// Unused handles that the store has marked as reserved.
#[derive(Debug, Default)]
pub(super) struct Handles {
    next: u64,
    end: u64,
}

impl Handles {
    pub(super) fn new(next: u64, end: u64) -> Self {
        Self { next, end }
    }

    pub(super) fn left(&self) -> u64 {
        self.end - self.next
    }

    /// Whether the next handle would not be above `highest`.
    pub(super) fn is_below(&self, highest: Handle) -> bool {
        self.next <= highest.0
    }

    /// Whether a future file may get this handle.
    pub(super) fn holds(&self, handle: Handle) -> bool {
        (self.next..self.end).contains(&handle.0)
    }
}

/// The manager's state between requests. The store contains everything that must survive a restart.
#[derive(Debug, Default)]
pub(super) struct Memory {
    pub handles: Handles,
    /// The ids of the active I/O servers in order, and the version of `SERVERS_CHANGED` when they were read.
    pub servers: (u64, Vec<ServerId>),
    /// Index of the first server of the next file.
    pub turn: u64,
    /// The symbolic link that the request in progress met.
    pub met: Option<Met>,
}

/// One request in progress. Records read by `get` are guarded: if another manager changes one, nothing is written,
/// and the request is repeated. Records read by `look` are not guarded.
pub(super) struct Step<'a, S> {
    pub store: &'a S,
    pub now: Now,
    pub who: &'a User,
    pub memory: &'a mut Memory,
    /// Whether the records read were inconsistent because another manager wrote meanwhile. The request must be
    /// repeated.
    pub is_stale: bool,
    /// The file that the request creates, if any.
    pub made: Option<Handle>,
    /// Values that a search has read ahead.
    pub ahead: HashMap<Vec<u8>, Option<Vec<u8>>>,
    /// The first handle that the request took.
    first_new: Option<u64>,
    guards: BTreeMap<Vec<u8>, Option<u64>>,
    writes: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
}

impl<'a, S: Store> Step<'a, S> {
    pub(super) fn new(store: &'a S, now: Now, who: &'a User, memory: &'a mut Memory) -> Self {
        memory.met = None;
        let (guards, writes) = (BTreeMap::new(), BTreeMap::new());
        let (is_stale, made, ahead, first_new) = (false, None, HashMap::new(), None);
        Self { store, now, who, memory, is_stale, made, ahead, first_new, guards, writes }
    }

    /// The guards and the writes.
    pub(super) fn into_parts(self) -> (Vec<Guard>, Vec<Write>) {
        let guards = self.guards.into_iter().map(|(key, version)| Guard { key, version }).collect();
        let writes = self.writes.into_iter().map(|(key, value)| Write { key, value }).collect();
        (guards, writes)
    }

    /// The record at a key, as it will be after this step.
    pub(super) fn look<R: Record>(&self, key: &[u8]) -> Result<Option<R>> {
        let value = match self.writes.get(key) {
            Some(written) => written.clone(),
            None => self.value(key)?,
        };
        value.map(|value| record::read(key, &value)).transpose()
    }

    /// The value at a key that the step does not write.
    pub(super) fn value(&self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        match self.ahead.get(key) {
            Some(value) => Ok(value.clone()),
            None => Ok(self.store.get(key)?.map(|found| found.value)),
        }
    }

    /// Reads like `look`, and guards the record: it must be unchanged when the step is committed.
    pub(super) fn get<R: Record>(&mut self, key: &[u8]) -> Result<Option<R>> {
        if self.writes.contains_key(key) {
            return self.look(key);
        }
        let found = self.store.get(key)?;
        let version = found.as_ref().map(|found| found.version);
        // The first of two reads counts: if they differ, the commit is refused. Nobody else knows a new directory.
        if key[0] == b'n' && keys::handle_in(key).is_some_and(|directory| self.is_new(directory)) {
            return found.map(|found| record::read(key, &found.value)).transpose();
        }
        self.guards.entry(key.to_vec()).or_insert(version);
        found.map(|found| record::read(key, &found.value)).transpose()
    }

    /// Guards a record that the step neither needs nor writes.
    pub(super) fn guard(&mut self, key: &[u8]) -> Result<()> {
        let version = self.store.get(key)?.map(|found| found.version);
        self.guards.entry(key.to_vec()).or_insert(version);
        Ok(())
    }

    pub(super) fn put<R: Record>(&mut self, key: Vec<u8>, record: &R) {
        self.writes.insert(key, Some(record::write(record)));
    }

    pub(super) fn put_bytes(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.writes.insert(key, Some(value));
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.writes.insert(key, None);
    }

    /// The guarded record of a file or directory.
    pub(super) fn get_node(&mut self, handle: Handle) -> Result<Option<Node>> {
        self.get(&keys::inode(handle))
    }

    pub(super) fn put_node(&mut self, node: &Node) {
        self.put(keys::inode(node.handle()), node);
    }

    /// A handle that was never used before. The manager has reserved enough of them.
    pub(super) fn new_handle(&mut self) -> Result<Handle> {
        let handles = &mut self.memory.handles;
        if handles.left() == 0 {
            return Err(Error::new(
                ErrorKind::Busy,
                "need a new handle, have none left in this batch; try again",
            ));
        }
        handles.next += 1;
        let handle = handles.next - 1;
        self.first_new.get_or_insert(handle);
        Ok(Handle(handle))
    }

    /// Whether the request in progress took this handle.
    fn is_new(&self, handle: Handle) -> bool {
        self.first_new.is_some_and(|first| (first..self.memory.handles.next).contains(&handle.0))
    }

    /// The error for two inconsistent reads. The manager repeats the step; if that happens every time, the store
    /// is damaged.
    pub(super) fn stale(&mut self, handle: Handle) -> Error {
        self.is_stale = true;
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "need a record of file {} in the metadata store, which a name is for, have none; restore the store \
                 from a backup",
                handle.0
            ),
        )
    }

    /// The ids of the active I/O servers, in order.
    pub(super) fn servers(&mut self) -> Result<&[ServerId]> {
        let version = self.store.get(keys::SERVERS_CHANGED)?.map_or(0, |found| found.version);
        if self.memory.servers.0 != version {
            let (found, _) = list_servers(self.store)?;
            self.memory.servers = (version, found.into_iter().map(|server| server.id).collect());
        }
        Ok(&self.memory.servers.1)
    }

    /// The ids of all I/O servers that ever existed.
    pub(super) fn all_servers(&self) -> Result<Vec<ServerId>> {
        let (from, until) = keys::all_servers();
        let found = self.store.range(&from, &until, MAX_RANGE)?;
        found.iter().map(|(key, _)| record::server_in(key)).collect()
    }
}

/// The active and the retired I/O servers, in the order of their ids.
pub(super) fn list_servers<S: Store>(store: &S) -> Result<(Vec<ServerAddress>, Vec<ServerId>)> {
    let (from, until) = keys::all_retired();
    let retired = store.range(&from, &until, MAX_RANGE)?;
    let retired = retired.iter().map(|(key, _)| record::server_in(key)).collect::<Result<Vec<_>>>()?;
    let (from, until) = keys::all_servers();
    let found = store.range(&from, &until, MAX_RANGE)?;
    let mut servers = Vec::with_capacity(found.len());
    for (key, versioned) in &found {
        let server = record::server(key, &versioned.value)?;
        if retired.binary_search(&server.id).is_err() {
            servers.push(server);
        }
    }
    Ok((servers, retired))
}

/// The first handle that no manager has reserved, according to the store.
pub(super) fn next_handle<S: Store>(store: &S) -> Result<u64> {
    if let Some(found) = store.get(keys::NEXT_HANDLE)? {
        return record::read(keys::NEXT_HANDLE, &found.value);
    }
    for (from, until) in [keys::inodes(super::ROOT), keys::orphans(super::ROOT)] {
        if let Some((key, _)) = store.range(&from, &until, 1)?.first() {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "need the next handle in the metadata store, have none, and a file at key {}; restore the store from a \
                     backup",
                    key.escape_ascii()
                ),
            ));
        }
    }
    Ok(super::ROOT.0 + 1)
}

/// Reserves the next handles for this manager, from `floor` on. No other manager gets them, even if this one never
/// uses them.
pub(super) fn take_handles<S: Store>(store: &mut S, count: u64, floor: u64) -> Result<Option<Handles>> {
    let guard = |key: &[u8], found: &Option<Versioned>| Guard {
        key: key.to_vec(),
        version: found.as_ref().map(|found| found.version),
    };
    let (before, restored) = (store.get(keys::NEXT_HANDLE)?, store.get(keys::RESTORED)?);
    let guards = [guard(keys::NEXT_HANDLE, &before), guard(keys::RESTORED, &restored)];
    let next = next_handle(store)?.max(floor);
    let end = next.checked_add(count).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, format!("need handles after {next}, have used all; make a new pool"))
    })?;
    let mut writes = vec![Write { key: keys::NEXT_HANDLE.to_vec(), value: Some(record::write(&end)) }];
    writes.extend(restored.map(|_| Write { key: keys::RESTORED.to_vec(), value: None }));
    match store.commit(&guards, &writes)? {
        Outcome::Done(_) => Ok(Some(Handles::new(next, end))),
        Outcome::Conflict => Ok(None),
    }
}
