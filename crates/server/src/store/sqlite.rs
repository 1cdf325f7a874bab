//! The metadata store of one machine: SQLite.

mod opening;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use outcore_core::{Error, ErrorKind, Result, Room};
use rusqlite::{Connection, OpenFlags, OptionalExtension, Row, params};

use super::mounts::check_is_local;
use super::reserve::Reserve;
use super::sum::{check_sum, sum};
use super::write_ahead::WriteAhead;
use super::{Guard, Log, MAX_RANGE, Outcome, Store, Versioned, Write, check_commit};
use opening::{
    LOG_BYTES, OLDEST_SQLITE, PAGE_BYTES, SHORT_LOG_BYTES, check_is_ours, damaged, describe, prepare_to_read,
    set_up,
};

/// A store in one file, with SQLite's write-ahead log beside it. Several processes of one machine may open it.
///
/// A commit survives power loss when it returns, or once its [`Log`] has been synced.
#[derive(Debug)]
pub struct SqliteStore {
    // The fields are dropped in this order.
    log: Arc<WriteAhead>,
    connection: Connection,
    path: String,
    /// Whether a group of commits is open; it is one transaction.
    in_group: bool,
    known: Known,
    reserve: Option<Reserve>,
    /// The last answer of the reserve.
    has_room: bool,
}

/// A cache of records read and written in groups, during which nobody else writes. Between groups SQLite reports
/// whether another connection has written.
#[derive(Debug, Default)]
struct Known {
    /// Changes when another connection has written (sqlite.org/pragma.html#pragma_data_version).
    of: Cell<Option<i64>>,
    entries: RefCell<HashMap<Vec<u8>, Option<Versioned>>>,
    /// The version of the last commit.
    last: Cell<Option<i64>>,
    /// Whether the group has a commit.
    has_written: Cell<bool>,
}

impl Known {
    fn clear(&self) {
        self.entries.borrow_mut().clear();
        self.last.set(None);
    }
}

/// Cached keys, at most.
const MOST_KNOWN: usize = 4096;
/// Bytes of a cached value, at most.
const MOST_KNOWN_BYTES: usize = 1024;

const RANGE: &str =
    "SELECT key, value, version, sum FROM entries WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3";

/// Whether the disk is too full for SQLite's shared-memory file, through which several processes share the log.
fn has_no_room_to_share(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

impl SqliteStore {
    /// Opens the store in the file `path`, or creates it. The directory must exist, on a local disk.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        if rusqlite::version_number() < OLDEST_SQLITE {
            return Err(Error::invalid(format!(
                "need SQLite 3.51.3 or later, have {}; build outcore with the SQLite that it brings along",
                rusqlite::version()
            )));
        }
        check_is_local(
            path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new(".")),
        )?;
        let name = path.display().to_string();
        // SQLite gives the files beside a database the same mode. It also reports why a file cannot be created.
        let _ = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let connect = || Connection::open(path).map_err(|e| describe("open", &name, &e));
        let mut connection = connect()?;
        match set_up(&connection, &name) {
            Err(error) if has_no_room_to_share(&error) => {
                // Without the shared-memory file, this process opens the store exclusively, until a later opening
                // finds space.
                connection = connect()?;
                let alone = connection.pragma_update(None, "locking_mode", "EXCLUSIVE");
                alone.and_then(|()| set_up(&connection, &name))
            }
            set_up => set_up,
        }
        .map_err(|e| describe("open", &name, &e))??;
        Ok(Self {
            log: Arc::new(WriteAhead::of(path)?),
            connection,
            path: name,
            in_group: false,
            known: Known::default(),
            reserve: None,
            has_room: true,
        })
    }

    /// Opens a store like [`SqliteStore::open`], with a reserve for removals on its disk, which is that of `room`.
    pub fn open_keeping(path: impl AsRef<Path>, room: Box<dyn Room>) -> Result<Self> {
        let mut reserve = Reserve::new(room);
        // The reserve comes before the opening, which needs space too.
        reserve.look();
        let mut store = Self::open(path)?;
        store.reserve = Some(reserve);
        Ok(store)
    }

    /// Writes a consistent copy of the store in `source` to the file `target`, which must be empty or missing, and
    /// makes it durable. The store may be in use.
    pub fn copy(source: &Path, target: &Path) -> Result<()> {
        let name = source.display().to_string();
        let copied = Connection::open_with_flags(source, OpenFlags::SQLITE_OPEN_READ_ONLY).and_then(|from| {
            let tables = prepare_to_read(&from)?;
            if let Err(error) = check_is_ours(&from, tables, &name)? {
                return Ok(Err(error));
            }
            from.execute("VACUUM INTO ?1", [target.display().to_string()]).map(|_| Ok(()))
        });
        copied.map_err(|e| describe("copy", &name, &e))??;
        let synced = File::open(target).and_then(|file| file.sync_all());
        synced.map_err(|error| {
            let text = format!("cannot sync {}: {error}; see whether its disk works", target.display());
            Error::new(ErrorKind::Io, text)
        })
    }

    /// Writes records with the versions that they have in another store, into one that nobody uses.
    pub fn import(&mut self, records: &[(Vec<u8>, Versioned)]) -> Result<()> {
        let imported = self.execute("BEGIN IMMEDIATE").and_then(|()| {
            let mut last = self.last_version()?;
            for (key, found) in records {
                self.put(key, found)?;
                last = last.max(found.version as i64);
            }
            self.put_version(last)?;
            self.execute("COMMIT")
        });
        if imported.is_err() {
            self.undo();
        }
        imported.map_err(|e| self.failed("write", &e))?;
        self.log.sync()
    }

    /// Moves the contents of the log into the database, and truncates the log.
    fn empty_log(&self) -> rusqlite::Result<()> {
        self.connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
    }

    fn bound_log(&self, bytes: i64) -> rusqlite::Result<()> {
        self.connection.pragma_update(None, "wal_autocheckpoint", bytes / PAGE_BYTES)
    }

    #[cfg(test)]
    pub(super) fn replace_log(&mut self, log: WriteAhead) {
        self.log = Arc::new(log);
    }

    fn find(&self, key: &[u8]) -> Result<Option<Versioned>> {
        if self.in_group
            && let Some(known) = self.known.entries.borrow().get(key)
        {
            return Ok(known.clone());
        }
        let found = self.find_summed(key).map_err(|e| self.failed("read", &e))?;
        let found = found.map(|(found, sum)| check_sum(key, found, sum)).transpose()?;
        self.note(key, || found.clone());
        Ok(found)
    }

    fn find_summed(&self, key: &[u8]) -> rusqlite::Result<Option<Summed>> {
        let mut statement =
            self.connection.prepare_cached("SELECT value, version, sum FROM entries WHERE key = ?1")?;
        statement.query_row([key], |row| summed(row, 0)).optional()
    }

    /// Caches the value of a key during a group.
    fn note(&self, key: &[u8], has: impl FnOnce() -> Option<Versioned>) {
        if self.in_group {
            let mut known = self.known.entries.borrow_mut();
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            let has = has();
            if has.as_ref().is_some_and(|found| found.value.len() > MOST_KNOWN_BYTES) {
                known.remove(key);
            } else {
                known.insert(key.to_vec(), has);
            }
        }
    }

    /// Reads in one transaction: each takes locks and looks for commits of others. A group is one already.
    fn in_one_read<T>(&self, read: impl FnOnce() -> Result<T>) -> Result<T> {
        if !self.connection.is_autocommit() {
            return read();
        }
        let execute = |sql| self.execute(sql).map_err(|e| self.failed("read", &e));
        execute("BEGIN")?;
        let found = read();
        if !self.connection.is_autocommit() {
            execute("COMMIT")?;
        }
        found
    }

    fn find_range(&self, from: &[u8], until: &[u8], most: usize) -> rusqlite::Result<Vec<(Vec<u8>, Summed)>> {
        let mut statement = self.connection.prepare_cached(RANGE)?;
        let most = most.min(MAX_RANGE) as i64;
        let found =
            statement.query_map(params![from, until, most], |row| Ok((row.get(0)?, summed(row, 1)?)))?;
        found.collect()
    }

    fn holds(&self, guard: &Guard) -> Result<bool> {
        Ok(self.find(&guard.key)?.map(|found| found.version) == guard.version)
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.raw_execute().map(|_| ())
    }

    fn data_version(&self) -> rusqlite::Result<i64> {
        self.connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
    }

    /// Checks guards and performs writes within an open transaction.
    fn apply(&self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        for guard in guards {
            if !self.holds(guard)? {
                return Ok(Outcome::Conflict);
            }
        }
        self.write_all(writes).map_err(|e| self.failed("write", &e))
    }

    fn write_all(&self, writes: &[Write]) -> rusqlite::Result<Outcome> {
        let version = self.next_version()?;
        for write in writes {
            let written = write.value.clone().map(|value| Versioned { value, version: version as u64 });
            match &written {
                Some(written) => self.put(&write.key, written)?,
                None => drop(
                    self.connection
                        .prepare_cached("DELETE FROM entries WHERE key = ?1")?
                        .execute([&write.key])?,
                ),
            }
            self.note(&write.key, || written);
        }
        Ok(Outcome::Done(version as u64))
    }

    fn put(&self, key: &[u8], found: &Versioned) -> rusqlite::Result<()> {
        self.connection
            .prepare_cached("REPLACE INTO entries (key, value, version, sum) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![key, found.value, found.version as i64, sum(key, &found.value, found.version)])
            .map(drop)
    }

    fn last_version(&self) -> rusqlite::Result<i64> {
        self.connection.prepare_cached("SELECT version FROM last")?.query_row([], |row| row.get(0))
    }

    /// The version of a new commit. A group stores the last one at its end.
    fn next_version(&self) -> rusqlite::Result<i64> {
        let known = if self.in_group { self.known.last.get() } else { None };
        let last = match known {
            Some(last) => last,
            None => self.last_version()?,
        };
        if self.in_group {
            self.known.last.set(Some(last + 1));
            self.known.has_written.set(true);
        } else {
            self.put_version(last + 1)?;
        }
        Ok(last + 1)
    }

    /// Stores the version. A single UPDATE with RETURNING would create a temporary table each time.
    fn put_version(&self, version: i64) -> rusqlite::Result<()> {
        self.connection.prepare_cached("UPDATE last SET version = ?1")?.execute([version]).map(|_| ())
    }

    /// Rolls back the transaction. If it is a group, all its commits have failed, as its end reports.
    fn undo(&self) {
        // SQLite itself has already rolled back after some errors, such as a full disk; a second rollback would
        // fail.
        if !self.connection.is_autocommit() {
            let _ = self.connection.execute_batch("ROLLBACK");
        }
        self.known.clear();
    }

    fn failed(&self, what: &str, error: &rusqlite::Error) -> Error {
        describe(what, &self.path, error)
    }

    fn check_group(&self) -> Result<()> {
        if self.in_group && self.connection.is_autocommit() {
            return Err(Error::new(
                ErrorKind::Io,
                format!(
                    "need every commit of a group, have lost them with one that failed in {}; try all of them again",
                    self.path
                ),
            ));
        }
        Ok(())
    }
}

impl Store for SqliteStore {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.log.check()?;
        self.find(key)
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Versioned>>> {
        self.log.check()?;
        self.in_one_read(|| keys.iter().map(|key| self.find(key)).collect())
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.log.check()?;
        let found = self.find_range(from, until, most).map_err(|e| self.failed("read", &e))?;
        // A damaged page order could send a walk back to an earlier key.
        let is_in_order = found.is_sorted_by(|(one, _), (next, _)| one < next)
            && found.iter().all(|(key, _)| (from..until).contains(&key.as_slice()));
        if !is_in_order {
            return Err(damaged(&self.path, "records that are not in the order of their keys"));
        }
        let checked = found.into_iter().map(|(key, (found, sum))| {
            let found = check_sum(&key, found, sum)?;
            Ok((key, found))
        });
        checked.collect()
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        check_commit(guards, writes)?;
        self.log.check()?;
        self.check_group()?;
        let is_alone = !self.in_group;
        let alone = |sql| {
            let done = if is_alone { self.execute(sql) } else { Ok(()) };
            done.map_err(|e| self.failed("write", &e))
        };
        let applied = alone("BEGIN IMMEDIATE").and_then(|()| self.apply(guards, writes));
        let applied = applied.and_then(|outcome| alone("COMMIT").map(|()| outcome));
        if applied.is_err() {
            self.undo();
        }
        let outcome = applied?;
        if is_alone {
            self.known.clear();
            self.log.sync()?;
        }
        Ok(outcome)
    }

    fn has_room(&mut self) -> bool {
        let has_room = self.reserve.as_mut().is_none_or(Reserve::look);
        if has_room != std::mem::replace(&mut self.has_room, has_room) {
            let bytes = if has_room { LOG_BYTES } else { SHORT_LOG_BYTES };
            let bounded = self.bound_log(bytes);
            let emptied = if has_room { Ok(()) } else { self.empty_log() };
            // A log that stays long takes space that removals may need, so the next look retries.
            self.has_room = has_room || bounded.and(emptied).is_err();
        }
        has_room
    }

    fn begin_group(&mut self) -> Result<()> {
        if self.in_group {
            return Err(Error::invalid("need the end of one group before the next begins; end it"));
        }
        self.log.check()?;
        let begun = self.execute("BEGIN IMMEDIATE").and_then(|()| self.data_version());
        match begun {
            Ok(version) => {
                if self.known.of.replace(Some(version)) != Some(version) {
                    self.known.clear();
                }
                self.known.has_written.set(false);
                self.in_group = true;
                Ok(())
            }
            Err(error) => {
                self.undo();
                Err(self.failed("write", &error))
            }
        }
    }

    fn end_group(&mut self) -> Result<()> {
        self.end_group_unsynced()?;
        self.log.sync()
    }

    fn log(&self) -> Arc<dyn Log> {
        self.log.clone()
    }

    fn check(&self) -> Result<()> {
        let check = |row: &Row<'_>| row.get::<_, String>(0);
        let found = self.connection.query_row("PRAGMA integrity_check(1)", [], check);
        let found = found.map_err(|e| self.failed("check", &e))?;
        if found != "ok" {
            return Err(damaged(&self.path, &found));
        }
        // A group stores the number of its last commit at its end.
        let in_group = self.known.last.get().filter(|_| self.in_group);
        let latest = "SELECT (SELECT count(*) FROM last) = 1
            AND coalesce((SELECT max(version) FROM entries) <= coalesce(?1, (SELECT version FROM last)), 1)";
        let is_latest: bool = self
            .connection
            .query_row(latest, [in_group], |row| row.get(0))
            .map_err(|e| self.failed("check", &e))?;
        let what = "a number of the last commit below that of a record";
        if is_latest { Ok(()) } else { Err(damaged(&self.path, what)) }
    }

    fn end_group_unsynced(&mut self) -> Result<()> {
        let lost = self.check_group();
        if !std::mem::take(&mut self.in_group) {
            return Ok(());
        }
        lost?;
        let last = self.known.last.get().filter(|_| self.known.has_written.get());
        let version = last.map_or(Ok(()), |version| self.put_version(version));
        let ended = version.and_then(|()| self.execute("COMMIT"));
        if ended.is_err() {
            self.undo();
        }
        ended.map_err(|e| self.failed("write", &e))
    }
}

/// A value with its version, and its stored checksum.
type Summed = (Versioned, u32);

fn summed(row: &Row<'_>, first: usize) -> rusqlite::Result<Summed> {
    let versioned = Versioned { value: row.get(first)?, version: row.get::<_, i64>(first + 1)? as u64 };
    Ok((versioned, row.get(first + 2)?))
}

#[cfg(test)]
mod tests;
