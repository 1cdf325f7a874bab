//! The metadata store: an ordered key-value store with transactions, provided by one machine or a cluster.
//!
//! Keys and values are bytes. Every commit has a version, larger than all earlier ones, and each key remembers the
//! version of the commit that wrote it. A commit succeeds only if the versions still match its guards; otherwise
//! it changes nothing. Several managers can therefore share a store without knowing of each other. The module
//! [`conformance`] tests the requirements on every store.

pub mod conformance;
mod memory;
mod mounts;
mod postgres;
mod reserve;
mod sqlite;
mod sum;
mod write_ahead;

pub use memory::MemoryStore;
pub use postgres::{BEAT, Database, PostgresLease, PostgresStore, Progress, Seen, VALID};
pub use sqlite::SqliteStore;

use std::sync::Arc;

use outcore_core::{Error, ErrorKind, Result};

/// Guards and writes of a commit, at most. Every store can take this many (etcd allows 128 operations by default).
pub const MAX_OPERATIONS: usize = 100;
/// Bytes of a key, at most.
pub const MAX_KEY_BYTES: usize = 512;
/// Bytes of a value, at most.
pub const MAX_VALUE_BYTES: usize = 128 << 10;
/// Bytes of the keys and values of a commit, at most (etcd allows 1.5 MiB by default).
pub const MAX_COMMIT_BYTES: usize = 1 << 20;
/// Pairs that [`Store::range`] returns at once, at most.
pub const MAX_RANGE: usize = 4096;

/// A value, and the version of the commit that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes.
    pub value: Vec<u8>,
    /// The version, at least 1.
    pub version: u64,
}

/// A condition of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// The key.
    pub key: Vec<u8>,
    /// Its version; `None` if it must have no value.
    pub version: Option<u64>,
}

/// A write of a commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The key.
    pub key: Vec<u8>,
    /// Its new value; `None` deletes the key.
    pub value: Option<Vec<u8>>,
}

/// The outcome of a commit.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it is committed, at this version.
    Done(u64),
    /// Nothing is committed, because a guard does not hold. Read again and retry.
    Conflict,
}

/// A lease on a name until a time. A commit guarded by its version fails if the holder has lost the lease without
/// noticing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// A guard that holds until somebody takes or renews the lease.
    pub guard: Guard,
    /// Time in nanoseconds since 1970 from which others may take the lease.
    pub until_ns: u64,
}

/// The log of a store. Any thread may sync it while the store stays in use.
pub trait Log: Send + Sync {
    /// Makes all earlier commits durable: on return, they survive power loss. After a failure their state is
    /// unknown, since the refused writes may be readable for now, and a retry could succeed without them. The log
    /// and its store therefore fail from then on.
    fn sync(&self) -> Result<()>;
}

/// The log of a store whose commits are durable when they return.
struct NoLog;

impl Log for NoLog {
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// An ordered key-value store with transactions.
///
/// The store keeps a checksum of each record, which covers the key. Reading a damaged record is an error of kind
/// `corrupt` that names the key.
pub trait Store {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>>;

    /// The values of some keys, in the order of the keys, as a single read of the store. The default reads key after key.
    /// Sorted keys are read fastest: neighbours share pages of a database.
    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Versioned>>> {
        keys.iter().map(|key| self.get(key)).collect()
    }

    /// Whether another process answers each read, so that several reads take less time as one.
    fn is_remote(&self) -> bool {
        false
    }

    /// The first `most` pairs, at most [`MAX_RANGE`], whose keys are at least `from` and less than `until`, in
    /// bytewise order.
    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>>;

    /// Performs all writes atomically and durably if all guards hold, otherwise none. At most [`MAX_OPERATIONS`]
    /// in total.
    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome>;

    /// Begins a group. Its commits need be neither durable nor visible to others until [`Store::end_group`], so
    /// many commits share one wait for the disk. The default does nothing.
    fn begin_group(&mut self) -> Result<()> {
        Ok(())
    }

    /// Makes all commits of the group durable. On failure, possibly none of them happened.
    fn end_group(&mut self) -> Result<()> {
        Ok(())
    }

    /// Ends a group like [`Store::end_group`], but it becomes durable only with a later sync of the
    /// [`Store::log`]. Until then readers see the group, but no caller may be told of its success. Groups become
    /// durable in order.
    fn end_group_unsynced(&mut self) -> Result<()> {
        self.end_group()
    }

    /// Empties the caches of the store, before a repair of records that others damaged. The default has none.
    fn forget(&mut self) {}

    /// Looks for damage that checksums of records cannot show: lost records, or wrong order.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Whether there is space for more than removals, for which a store keeps a reserve. Callers ask between
    /// groups.
    fn has_room(&mut self) -> bool {
        true
    }

    /// The log whose sync makes the groups durable that [`Store::end_group_unsynced`] ended.
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(NoLog)
    }

    /// Takes or renews the lease on `key` for `holder`. Returns `None` while another holder has it. The key must
    /// have no other use.
    fn lease(&mut self, key: &[u8], holder: u128, now_ns: u64, until_ns: u64) -> Result<Option<Lease>> {
        let found = self.get(key)?;
        if let Some(found) = &found {
            let (by, ends_ns) = read_lease(key, &found.value)?;
            if by != holder && ends_ns > now_ns {
                return Ok(None);
            }
        }
        let guard = Guard { key: key.to_vec(), version: found.map(|found| found.version) };
        let mut value = holder.to_le_bytes().to_vec();
        value.extend(until_ns.to_le_bytes());
        match self.commit(&[guard], &[Write { key: key.to_vec(), value: Some(value) }])? {
            Outcome::Conflict => Ok(None),
            Outcome::Done(version) => {
                Ok(Some(Lease { guard: Guard { key: key.to_vec(), version: Some(version) }, until_ns }))
            }
        }
    }
}

/// A store of any kind.
pub type AnyStore = Box<dyn Store + Send>;

impl Store for AnyStore {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        (**self).get(key)
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Versioned>>> {
        (**self).get_many(keys)
    }

    fn is_remote(&self) -> bool {
        (**self).is_remote()
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        (**self).range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        (**self).commit(guards, writes)
    }

    fn begin_group(&mut self) -> Result<()> {
        (**self).begin_group()
    }

    fn end_group(&mut self) -> Result<()> {
        (**self).end_group()
    }

    fn end_group_unsynced(&mut self) -> Result<()> {
        (**self).end_group_unsynced()
    }

    fn forget(&mut self) {
        (**self).forget();
    }

    fn check(&self) -> Result<()> {
        (**self).check()
    }

    fn has_room(&mut self) -> bool {
        (**self).has_room()
    }

    fn log(&self) -> Arc<dyn Log> {
        (**self).log()
    }

    fn lease(&mut self, key: &[u8], holder: u128, now_ns: u64, until_ns: u64) -> Result<Option<Lease>> {
        (**self).lease(key, holder, now_ns, until_ns)
    }
}

/// Holder and end of a lease.
fn read_lease(key: &[u8], value: &[u8]) -> Result<(u128, u64)> {
    let parts = value.split_first_chunk::<16>().and_then(|(by, rest)| Some((by, rest.try_into().ok()?)));
    let (by, ends_ns) = parts.ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "need 24 bytes of a lease at key {}, have {}; remove that key",
                key.escape_ascii(),
                value.len()
            ),
        )
    })?;
    Ok((u128::from_le_bytes(*by), u64::from_le_bytes(ends_ns)))
}

/// Refuses a commit that exceeds the limits of stores.
fn check_commit(guards: &[Guard], writes: &[Write]) -> Result<()> {
    let operations = guards.len() + writes.len();
    if operations > MAX_OPERATIONS {
        return Err(Error::invalid(format!(
            "need at most {MAX_OPERATIONS} guards and writes in a commit, have {operations}; split it"
        )));
    }
    let keys = guards.iter().map(|guard| &guard.key).chain(writes.iter().map(|write| &write.key));
    for key in keys {
        if key.is_empty() || key.len() > MAX_KEY_BYTES {
            return Err(Error::invalid(format!(
                "need keys of 1 to {MAX_KEY_BYTES} bytes, have one of {}; choose another",
                key.len()
            )));
        }
    }
    let mut bytes = 0;
    for write in writes {
        let value_bytes = write.value.as_ref().map_or(0, Vec::len);
        if value_bytes > MAX_VALUE_BYTES {
            return Err(Error::invalid(format!(
                "need values of at most {MAX_VALUE_BYTES} bytes, have one of {value_bytes}; split it"
            )));
        }
        bytes += write.key.len() + value_bytes;
    }
    if bytes > MAX_COMMIT_BYTES {
        return Err(Error::invalid(format!(
            "need at most {MAX_COMMIT_BYTES} bytes in a commit, have {bytes}; split it"
        )));
    }
    let mut written: Vec<&[u8]> = writes.iter().map(|write| write.key.as_slice()).collect();
    written.sort_unstable();
    if written.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::invalid("need one write of each key in a commit, have two; keep the last"));
    }
    Ok(())
}
