//! The metadata store: an ordered key-value store with transactions, which one machine or a cluster can provide.
//!
//! Keys and values are bytes. Every commit has a version, larger than all before it, and each key remembers that of the
//! commit that wrote it. A commit happens if the versions are still as its guards say, and else not at all: so several
//! managers over one store do not need to know of each other. What every store must do is written as code in
//! [`conformance`].

pub mod conformance;
mod memory;
mod mounts;
mod reserve;
mod sqlite;
mod sum;
mod write_ahead;

pub use memory::MemoryStore;
pub use sqlite::SqliteStore;

use std::sync::Arc;

use outcore_core::{Error, ErrorKind, Result};

/// Most guards and writes of a commit together: what fits every store (etcd takes 128 operations by default).
pub const MAX_OPERATIONS: usize = 100;
/// Most bytes of a key.
pub const MAX_KEY_BYTES: usize = 512;
/// Most bytes of a value.
pub const MAX_VALUE_BYTES: usize = 128 << 10;
/// Most bytes of the keys and values of a commit together (etcd takes 1.5 MiB by default).
pub const MAX_COMMIT_BYTES: usize = 1 << 20;
/// Most pairs that [`Store::range`] gives at once.
pub const MAX_RANGE: usize = 4096;

/// A value, and the version of the commit that wrote it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versioned {
    /// The bytes.
    pub value: Vec<u8>,
    /// At least 1.
    pub version: u64,
}

/// What must be so for a commit to happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guard {
    /// Of this key,
    pub key: Vec<u8>,
    /// this is the version; `None`: it has no value.
    pub version: Option<u64>,
}

/// What a commit does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// This key
    pub key: Vec<u8>,
    /// gets this value; `None`: it has none any more.
    pub value: Option<Vec<u8>>,
}

/// What became of a commit.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All of it is done, at this version.
    Done(u64),
    /// None of it: a guard does not hold. Look again, and try again.
    Conflict,
}

/// A claim on a name, until a time. As a guard of a commit, its version keeps out who lost the claim unawares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Holds as long as nobody else took the lease, and it was not prolonged.
    pub guard: Guard,
    /// Nanoseconds since 1970 at which others may take it.
    pub until_ns: u64,
}

/// What makes the commits of a store durable, from whatever thread, while the store goes on.
pub trait Log: Send + Sync {
    /// When it returns, what was committed before it was called has survived power loss. If it fails, nobody knows what
    /// has: what the disk refused to keep may be read until then, and a second try could pass without it. So it fails
    /// from then on, and so does its store.
    fn sync(&self) -> Result<()>;
}

/// Of a store whose commits are durable when they return.
struct NoLog;

impl Log for NoLog {
    fn sync(&self) -> Result<()> {
        Ok(())
    }
}

/// An ordered key-value store with transactions.
///
/// It keeps a checksum of each record, with its key. A record that is not as it was written is an error of kind `corrupt`
/// that names the key.
pub trait Store {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>>;

    /// The first `most` pairs, at most [`MAX_RANGE`], whose keys are at least `from` and less than `until`, in the order
    /// of their bytes.
    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>>;

    /// Does all writes at once, durably, if all guards hold, and else none. At most [`MAX_OPERATIONS`].
    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome>;

    /// Commits from here to [`Store::end_group`] need not be durable, nor seen by others, before that: one wait for the
    /// disk for many commits. A store that gains nothing by it does nothing.
    fn begin_group(&mut self) -> Result<()> {
        Ok(())
    }

    /// Makes the commits of the group durable, all of them, or fails, and then none may have happened.
    fn end_group(&mut self) -> Result<()> {
        Ok(())
    }

    /// As [`Store::end_group`], but the group is durable only when a sync of the [`Store::log`] has ended that began later.
    /// Until then it is seen by all who read, and nobody may be told of it. Groups become durable in their order.
    fn end_group_unsynced(&mut self) -> Result<()> {
        self.end_group()
    }

    /// Looks for damage that no checksum of a record shows: records that are lost, or out of order.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// Whether there is room for more than removals, for which a store keeps some. It is asked between groups.
    fn has_room(&mut self) -> bool {
        true
    }

    /// What makes groups durable that ended so.
    fn log(&self) -> Arc<dyn Log> {
        Arc::new(NoLog)
    }

    /// Takes the lease on `key` for `holder`, or prolongs it; `None` while another has it. The key is of no other use.
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

/// Refuses a commit that some store could not take.
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
