//! The metadata store of one machine: SQLite.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use outcore_core::{Error, ErrorKind, Result};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Row, params};

use super::mounts::check_is_local;
use super::write_ahead::WriteAhead;
use super::{Guard, Log, MAX_RANGE, Outcome, Store, Versioned, Write, check_commit};

/// SQLite 3.51.3. Before it, a committed write could be lost when two processes checkpoint the log at once.
const OLDEST_SQLITE: i32 = 3_051_003;
/// Marks the file as ours: "outc".
const APPLICATION: i32 = 0x6f75_7463;
/// Of the tables below.
const FORMAT: i32 = 1;
/// How long to wait for another process's commit.
const PATIENCE: Duration = Duration::from_secs(10);

const TABLES: &str = "
    CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE last (version INTEGER NOT NULL);
    INSERT INTO last VALUES (0);
";

/// A store in one file, and SQLite's write-ahead log beside it. Several processes of one machine may have it open.
///
/// A commit has survived power loss when it returns, or when its [`Log`] was synced.
#[derive(Debug)]
pub struct SqliteStore {
    // Dropped in this order.
    log: Arc<WriteAhead>,
    connection: Connection,
    path: String,
    group: Option<Group>,
}

/// A group of commits, in one transaction: nobody else writes until its end, so what is known of a key stays so.
#[derive(Debug, Default)]
struct Group {
    /// Keys that were read or written in it. Emptied where writes are undone.
    known: RefCell<HashMap<Vec<u8>, Option<Versioned>>>,
    /// The version of the last commit in it.
    last: Cell<Option<i64>>,
}

/// Most keys that are remembered in a group.
const MOST_KNOWN: usize = 4096;

/// Whether the disk is too full for the small file by which several users of a store share its log.
fn has_no_room_to_share(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_SHMSIZE)
}

impl SqliteStore {
    /// Opens the store in the file `path`, or makes it. Its directory must exist, on a disk of this machine.
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
        let connect = || Connection::open(path).map_err(|e| describe("open", &name, &e));
        let mut connection = connect()?;
        match set_up(&connection, &name) {
            Err(error) if has_no_room_to_share(&error) => {
                // What it knows is read and not shared, until it is opened when there is room.
                connection = connect()?;
                let alone = connection.pragma_update(None, "locking_mode", "EXCLUSIVE");
                alone.and_then(|()| set_up(&connection, &name))
            }
            set_up => set_up,
        }
        .map_err(|e| describe("open", &name, &e))??;
        Ok(Self { log: Arc::new(WriteAhead::of(path)?), connection, path: name, group: None })
    }

    #[cfg(test)]
    pub(super) fn replace_log(&mut self, log: WriteAhead) {
        self.log = Arc::new(log);
    }

    fn find(&self, key: &[u8]) -> rusqlite::Result<Option<Versioned>> {
        if let Some(known) = self.group.as_ref().and_then(|group| group.known.borrow().get(key).cloned()) {
            return Ok(known);
        }
        let mut statement =
            self.connection.prepare_cached("SELECT value, version FROM entries WHERE key = ?1")?;
        let found = statement.query_row([key], |row| versioned(row, 0)).optional()?;
        self.note(key, || found.clone());
        Ok(found)
    }

    /// Remembers in a group what a key has.
    fn note(&self, key: &[u8], has: impl FnOnce() -> Option<Versioned>) {
        if let Some(group) = &self.group {
            let mut known = group.known.borrow_mut();
            if known.len() >= MOST_KNOWN {
                known.clear();
            }
            known.insert(key.to_vec(), has());
        }
    }

    fn find_range(
        &self,
        from: &[u8],
        until: &[u8],
        most: usize,
    ) -> rusqlite::Result<Vec<(Vec<u8>, Versioned)>> {
        let mut statement = self.connection.prepare_cached(
            "SELECT key, value, version FROM entries WHERE key >= ?1 AND key < ?2 ORDER BY key LIMIT ?3",
        )?;
        let most = most.min(MAX_RANGE) as i64;
        let found =
            statement.query_map(params![from, until, most], |row| Ok((row.get(0)?, versioned(row, 1)?)))?;
        found.collect()
    }

    fn holds(&self, guard: &Guard) -> rusqlite::Result<bool> {
        if self.group.is_some() {
            return Ok(self.find(&guard.key)?.map(|found| found.version) == guard.version);
        }
        let mut statement = self.connection.prepare_cached("SELECT version FROM entries WHERE key = ?1")?;
        let found: Option<i64> = statement.query_row([&guard.key], |row| row.get(0)).optional()?;
        Ok(found.map(|version| version as u64) == guard.version)
    }

    fn execute(&self, sql: &str) -> rusqlite::Result<()> {
        self.connection.prepare_cached(sql)?.raw_execute().map(|_| ())
    }

    /// Guards and writes, within a transaction that is already begun.
    fn apply(&self, guards: &[Guard], writes: &[Write]) -> rusqlite::Result<Outcome> {
        for guard in guards {
            if !self.holds(guard)? {
                return Ok(Outcome::Conflict);
            }
        }
        let version = self.next_version()?;
        for write in writes {
            let written = || write.value.clone().map(|value| Versioned { value, version: version as u64 });
            self.note(&write.key, written);
            match &write.value {
                Some(value) => self
                    .connection
                    .prepare_cached(
                        "INSERT INTO entries VALUES (?1, ?2, ?3)
                         ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version",
                    )?
                    .execute(params![write.key, value, version])?,
                None => self
                    .connection
                    .prepare_cached("DELETE FROM entries WHERE key = ?1")?
                    .execute([&write.key])?,
            };
        }
        Ok(Outcome::Done(version as u64))
    }

    /// The version of a new commit. A group puts it into the table once, at its end.
    fn next_version(&self) -> rusqlite::Result<i64> {
        let known = self.group.as_ref().and_then(|group| group.last.get());
        let last = match known {
            Some(last) => last,
            None => {
                self.connection.prepare_cached("SELECT version FROM last")?.query_row([], |row| row.get(0))?
            }
        };
        match &self.group {
            Some(group) => group.last.set(Some(last + 1)),
            None => self.put_version(last + 1)?,
        }
        Ok(last + 1)
    }

    /// Not by one statement with the one before and RETURNING, which makes a temporary table each time.
    fn put_version(&self, version: i64) -> rusqlite::Result<()> {
        self.connection.prepare_cached("UPDATE last SET version = ?1")?.execute([version]).map(|_| ())
    }

    /// One commit between `begin` and `end`, or none of it.
    fn apply_between(
        &self,
        [begin, end, undo]: [&str; 3],
        guards: &[Guard],
        writes: &[Write],
    ) -> rusqlite::Result<Outcome> {
        self.execute(begin)?;
        let applied = self.apply(guards, writes).and_then(|outcome| self.execute(end).map(|()| outcome));
        // SQLite has rolled back itself after some errors, a full disk for one.
        if applied.is_err() && !self.connection.is_autocommit() {
            self.connection.execute_batch(undo)?;
        }
        if applied.is_err()
            && let Some(group) = &self.group
        {
            group.known.borrow_mut().clear();
        }
        applied
    }

    fn failed(&self, what: &str, error: &rusqlite::Error) -> Error {
        describe(what, &self.path, error)
    }

    fn check_group(&self) -> Result<()> {
        if self.group.is_some() && self.connection.is_autocommit() {
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
        self.find(key).map_err(|e| self.failed("read", &e))
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.log.check()?;
        self.find_range(from, until, most).map_err(|e| self.failed("read", &e))
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        check_commit(guards, writes)?;
        self.log.check()?;
        self.check_group()?;
        let is_in_group = self.group.is_some();
        let words = if is_in_group {
            ["SAVEPOINT one", "RELEASE one", "ROLLBACK TO one; RELEASE one"]
        } else {
            ["BEGIN IMMEDIATE", "COMMIT", "ROLLBACK"]
        };
        let outcome = self.apply_between(words, guards, writes).map_err(|e| self.failed("write", &e))?;
        if !is_in_group {
            self.log.sync()?;
        }
        Ok(outcome)
    }

    fn begin_group(&mut self) -> Result<()> {
        if self.group.is_some() {
            return Err(Error::invalid("need the end of one group before the next begins; end it"));
        }
        self.log.check()?;
        self.execute("BEGIN IMMEDIATE").map_err(|e| self.failed("write", &e))?;
        self.group = Some(Group::default());
        Ok(())
    }

    fn end_group(&mut self) -> Result<()> {
        self.end_group_unsynced()?;
        self.log.sync()
    }

    fn log(&self) -> Arc<dyn Log> {
        self.log.clone()
    }

    fn end_group_unsynced(&mut self) -> Result<()> {
        let lost = self.check_group();
        let Some(group) = self.group.take() else { return Ok(()) };
        lost?;
        let version = group.last.get().map_or(Ok(()), |version| self.put_version(version));
        let ended = version.and_then(|()| self.execute("COMMIT")).map_err(|e| self.failed("write", &e));
        if ended.is_err() && !self.connection.is_autocommit() {
            self.connection.execute_batch("ROLLBACK").map_err(|e| self.failed("write", &e))?;
        }
        ended
    }
}

fn set_up(connection: &Connection, path: &str) -> rusqlite::Result<Result<()>> {
    connection.busy_timeout(PATIENCE)?;
    // Before anything is written: a file of somebody else's stays as it is.
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if let Err(error) = check_is_ours(connection, tables, path)? {
        return Ok(Err(error));
    }
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Ok(Err(Error::invalid(format!(
            "need a file system on which SQLite can keep a write-ahead log, have {path:?} in mode {mode}; choose \
                 another directory"
        ))));
    }
    // Who needs a commit on the disk syncs the log.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(32);
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Another process may have made the tables in the meantime.
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        connection.execute_batch(TABLES)?;
        connection.pragma_update(None, "application_id", APPLICATION)?;
        connection.pragma_update(None, "user_version", FORMAT)?;
    }
    connection.execute_batch("COMMIT")?;
    // What the last who used it could not sync is in the system's memory, and perhaps not on the disk. It is written
    // anew, into the database, before anything follows it in the log.
    match connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {}
        checkpoint => checkpoint?,
    }
    check_is_ours(connection, 1, path)
}

fn versioned(row: &Row<'_>, first: usize) -> rusqlite::Result<Versioned> {
    Ok(Versioned { value: row.get(first)?, version: row.get::<_, i64>(first + 1)? as u64 })
}

/// Refuses a database with tables that are not those of a store of this format.
fn check_is_ours(connection: &Connection, tables: i64, path: &str) -> rusqlite::Result<Result<()>> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let (application, format) = (pragma("application_id")?, pragma("user_version")?);
    if tables == 0 || (application, format) == (APPLICATION, FORMAT) {
        return Ok(Ok(()));
    }
    let have = if application == APPLICATION {
        format!("format {format}")
    } else {
        "a database of something else".to_owned()
    };
    Ok(Err(Error::invalid(format!(
        "need a metadata store of format {FORMAT}, have {have} in {path}; choose another file, or the version of outcore \
         that wrote it"
    ))))
}

fn describe(what: &str, path: &str, error: &rusqlite::Error) -> Error {
    let (kind, fix) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (ErrorKind::DiskFull, "make room on its disk"),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (ErrorKind::Busy, "wait for the other process that is writing to it, or end it")
        }
        Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => {
            (ErrorKind::ReadOnly, "let this user write to it and to its directory")
        }
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
            (ErrorKind::Corrupt, "restore it from a backup")
        }
        Some(ErrorCode::CannotOpen) => {
            (ErrorKind::NotFound, "make its directory, or let this user write there")
        }
        _ => (ErrorKind::Io, "see whether its disk works"),
    };
    Error::new(kind, format!("need to {what} the metadata store {path}, have: {error}; {fix}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::MemoryStore;
    use crate::store::conformance::{self, guard, put};
    use outcore_core::crash_disk::Random;

    #[test]
    fn sqlite_conforms() {
        let root = tempfile::tempdir().unwrap();
        conformance::store(&mut || SqliteStore::open(root.path().join("metadata")).unwrap());
    }

    #[test]
    fn groups_and_single_commits_do_what_the_model_does() {
        let root = tempfile::tempdir().unwrap();
        let open = || SqliteStore::open(root.path().join("metadata")).unwrap();
        let (mut store, mut model, mut random) = (open(), MemoryStore::new(), Random::new(1));
        for number in 0..3000_u32 {
            let mut key = || [b'a' + random.below(6) as u8];
            let (read, write, guarded) = (key(), key(), key());
            match random.below(12) {
                0 if store.group.is_none() => store.begin_group().unwrap(),
                1 => store.end_group().unwrap(),
                2 if store.group.is_none() => store = open(),
                3..5 => assert_eq!(store.get(&read).unwrap(), model.get(&read).unwrap()),
                5 => assert_eq!(store.range(b"a", b"z", 9).unwrap(), model.range(b"a", b"z", 9).unwrap()),
                _ => {
                    let mut version = model.get(&guarded).unwrap().map(|found| found.version);
                    if random.once_in(5) {
                        version = Some(version.map_or(7, |version| version - 1));
                    }
                    let value = Some(number.to_le_bytes().to_vec()).filter(|_| !random.once_in(4));
                    let (guards, writes) =
                        ([guard(&guarded, version)], [Write { key: write.to_vec(), value }]);
                    let done =
                        (store.commit(&guards, &writes).unwrap(), model.commit(&guards, &writes).unwrap());
                    assert_eq!(done.0, done.1, "{number}");
                }
            }
        }
    }

    #[test]
    fn sqlite_syncs_where_the_order_of_writes_matters() {
        let root = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(root.path().join("metadata")).unwrap();
        let level: i32 = store.connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap();
        let mode: String = store.connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
        assert_eq!(
            (level, mode.as_str()),
            (1, "wal"),
            "1 is NORMAL, see SQLite's page on PRAGMA synchronous"
        );
        assert!(rusqlite::version_number() >= OLDEST_SQLITE);
    }

    #[test]
    fn what_is_not_a_store_is_refused_and_stays_as_it_is() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("other");
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE birds (name TEXT)").unwrap();
        let before = std::fs::read(&path).unwrap();
        let error = SqliteStore::open(&path).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains("a database of something else"), "{error}");
        assert_eq!(std::fs::read(&path).unwrap(), before);

        let text = root.path().join("text");
        std::fs::write(&text, "not a database, but long enough that it could be one".repeat(20)).unwrap();
        assert_eq!(SqliteStore::open(&text).unwrap_err().kind, ErrorKind::Corrupt);

        let later = root.path().join("later");
        let store = SqliteStore::open(&later).unwrap();
        store.connection.pragma_update(None, "user_version", 2).unwrap();
        drop(store);
        assert!(SqliteStore::open(&later).unwrap_err().message.contains("have format 2"));
        let none = SqliteStore::open(root.path().join("none/metadata")).unwrap_err();
        assert_eq!(none.kind, ErrorKind::NotFound, "{none}");
    }

    #[test]
    fn a_full_disk_loses_the_commit_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(root.path().join("metadata")).unwrap();
        let done = store.commit(&[], &[put(b"before", b"1")]).unwrap();
        assert!(matches!(done, Outcome::Done(_)));
        store.connection.pragma_update(None, "max_page_count", 8).unwrap();
        let large = put(b"large", &[1; 100_000]);
        let error = store.commit(&[], std::slice::from_ref(&large)).unwrap_err();
        assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
        assert_eq!(store.get(b"large").unwrap(), None);

        store.begin_group().unwrap();
        let _ = store.commit(&[guard(b"in", None)], &[put(b"in", b"1")]).unwrap();
        assert_eq!(store.commit(&[], &[large]).unwrap_err().kind, ErrorKind::DiskFull);
        let later = store.commit(&[], &[put(b"later", b"1")]);
        let kept = store.end_group().is_ok();
        assert_eq!(store.get(b"in").unwrap().is_some(), kept, "what the end of the group says is so");
        assert_eq!(store.get(b"later").unwrap().is_some(), kept && later.is_ok());
        assert_eq!(store.get(b"before").unwrap().unwrap().value, b"1");
        store.connection.pragma_update(None, "max_page_count", 1000).unwrap();
        let done = store.commit(&[], &[put(b"after", b"1")]).unwrap();
        assert!(matches!(done, Outcome::Done(_)), "it goes on when there is room");
    }
}
