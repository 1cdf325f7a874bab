//! A store in PostgreSQL as the source or the target of a migration.

use outcore_core::{Error, Result};

use super::super::{Store, Versioned};
use super::session::{Database, RESTORED, WHOLE};
use super::{Inner, PostgresStore};

/// The state of a target whose migration has not ended.
const INCOMPLETE: &str = "incomplete";
/// The state of a source whose records are now elsewhere.
const MOVED: &str = "moved elsewhere";

/// How far the migration of a store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// The store can be used.
    Whole,
    /// The store can be used, and its records may be older than the pool.
    Restored,
    /// Records may be missing: a migration into this store was stopped.
    Incomplete,
    /// The records are elsewhere, and these are old.
    Moved,
}

impl PostgresStore {
    /// Opens a store like [`PostgresStore::open_under`], whatever its progress.
    pub fn open_to_move(database: &Database, fence: i64) -> Result<Self> {
        Self::of(Database { fence: Some(fence), is_moving: true, ..database.clone() })
    }

    /// How far the migration is.
    pub fn progress(&mut self) -> Result<Progress> {
        let inner = self.inner.get_mut();
        let state: String = inner.run("read", |session| {
            session.client.query_one("SELECT state FROM outcore.store", &[])?.try_get(0)
        })?;
        match state.as_str() {
            WHOLE => Ok(Progress::Whole),
            RESTORED => Ok(Progress::Restored),
            INCOMPLETE => Ok(Progress::Incomplete),
            MOVED => Ok(Progress::Moved),
            _ => Err(inner.database.damaged(&format!("the state {state:?}"))),
        }
    }

    /// Notes how far the migration is, durably.
    pub fn set_progress(&mut self, progress: Progress) -> Result<()> {
        let state = match progress {
            Progress::Whole => WHOLE,
            Progress::Restored => RESTORED,
            Progress::Incomplete => INCOMPLETE,
            Progress::Moved => MOVED,
        };
        self.inner.get_mut().run("write", |session| {
            session.client.execute("UPDATE outcore.store SET state = $1", &[&state]).map(drop)
        })
    }

    /// Removes all records.
    pub fn clear(&mut self) -> Result<()> {
        let inner = self.inner.get_mut();
        inner.known = super::Known::default();
        inner.run("write", |session| {
            session
                .client
                .batch_execute("TRUNCATE outcore.entries; UPDATE outcore.store SET version = 0, writer = ''")
        })
    }

    /// Writes records with the versions that they have in another store, into one that nobody uses.
    pub fn import(&mut self, records: &[(Vec<u8>, Versioned)]) -> Result<()> {
        self.begin_group()?;
        let inner = self.inner.get_mut();
        let imported = inner.hold(records);
        let ended = inner.end();
        imported.and(ended)
    }
}

impl Inner {
    /// Makes records part of the group, with their versions.
    fn hold(&mut self, records: &[(Vec<u8>, Versioned)]) -> Result<()> {
        let Some(group) = &mut self.group else {
            return Err(Error::invalid("need a group for records, have none; begin one"));
        };
        for (key, found) in records {
            group.version = group.version.max(found.version as i64);
            group.held.insert(key.clone(), Some(found.clone()));
        }
        // Also a group whose records are older than others is written.
        group.sent = -1;
        group.first = -1;
        Ok(())
    }
}
