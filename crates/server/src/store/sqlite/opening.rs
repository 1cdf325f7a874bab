//! Opening a store's database: creation, checks, and conversion to the current format; also the translation of
//! SQLite's errors.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use outcore_core::{Error, ErrorKind, Result};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, params};

use super::super::sum::sum;

/// SQLite 3.51.3. Older versions could lose a committed write when two processes checkpoint the log at once.
pub(super) const OLDEST_SQLITE: i32 = 3_051_003;
/// Marks the file as a store of outcore: "outc".
pub(super) const APPLICATION: i32 = 0x6f75_7463;
/// The format of the tables below.
///
/// The manager of format 2 changes attributes without their index.
pub(super) const FORMAT: i32 = 3;
/// The first format, whose records have no checksums.
const UNSUMMED: i32 = 1;
/// The size of a page. A commit changes a few bytes of some pages, and each changed page goes into the log.
/// Smaller pages fill up sooner, so changes take longer.
pub(super) const PAGE_BYTES: i64 = 2048;
/// Size of the log at which it is moved into the database, in bytes.
pub(super) const LOG_BYTES: i64 = 4 << 20;
/// The same on a disk that is nearly full.
pub(super) const SHORT_LOG_BYTES: i64 = 256 << 10;
/// Time to wait for another process's commit.
const PATIENCE: Duration = Duration::from_secs(10);

pub(super) const TABLES: &str = "
    CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, sum INTEGER NOT NULL)
        WITHOUT ROWID;
    CREATE TABLE last (version INTEGER NOT NULL);
    INSERT INTO last VALUES (0);
";

/// Prepares a connection that only reads. Returns the number of tables.
pub(super) fn prepare_to_read(connection: &Connection) -> rusqlite::Result<i64> {
    connection.busy_timeout(PATIENCE)?;
    connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
}

/// Creates the tables of a new store, and adds checksums to a store of the previous format.
pub(super) fn set_up(connection: &Connection, path: &str) -> rusqlite::Result<Result<()>> {
    // This check comes before any write, so a foreign file stays unchanged.
    let tables = prepare_to_read(connection)?;
    if let Err(error) = check_is_ours(connection, tables, path)? {
        return Ok(Err(error));
    }
    // Affects new files only.
    connection.pragma_update(None, "page_size", PAGE_BYTES)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
    if mode != "wal" {
        return Ok(Err(Error::invalid(format!(
            "need a file system on which SQLite can keep a write-ahead log, have {path:?} in mode {mode}; choose \
                 another directory"
        ))));
    }
    connection.pragma_update(None, "wal_autocheckpoint", LOG_BYTES / PAGE_BYTES)?;
    // Callers that need a commit on the disk sync the log.
    connection.pragma_update(None, "synchronous", "NORMAL")?;
    connection.set_prepared_statement_cache_capacity(32);
    // Otherwise SQLite plans each range of keys again, since other bounds might suit another index. There is no other.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    // Another process may have created the tables in the meantime.
    let tables: i64 = connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))?;
    if tables == 0 {
        connection.execute_batch(TABLES)?;
        connection.pragma_update(None, "application_id", APPLICATION)?;
        connection.pragma_update(None, "user_version", FORMAT)?;
    } else if format_of(connection)? < FORMAT {
        if format_of(connection)? == UNSUMMED {
            add_sums(connection)?;
        }
        connection.pragma_update(None, "user_version", FORMAT)?;
    }
    connection.execute_batch("COMMIT")?;
    // Commits that the last process could not sync are in the page cache, but perhaps not on the disk. A
    // checkpoint moves them into the database before anything follows them in the log.
    match connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(())) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DiskFull) => {}
        checkpoint => checkpoint?,
    }
    check_is_ours(connection, 1, path)
}

/// Adds a checksum to each record of a store in the first format, within a transaction.
fn add_sums(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("ALTER TABLE entries ADD COLUMN sum INTEGER NOT NULL DEFAULT 0")?;
    let mut page = connection
        .prepare("SELECT key, value, version FROM entries WHERE key > ?1 ORDER BY key LIMIT 1000")?;
    let mut update = connection.prepare("UPDATE entries SET sum = ?2 WHERE key = ?1")?;
    let mut after = Vec::new();
    loop {
        let found = page.query_map([&after], |row| {
            let key: Vec<u8> = row.get(0)?;
            let kept = sum(&key, &row.get::<_, Vec<u8>>(1)?, row.get::<_, i64>(2)? as u64);
            Ok((key, kept))
        })?;
        let found = found.collect::<rusqlite::Result<Vec<_>>>()?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        after.clone_from(last);
        for (key, kept) in &found {
            update.execute(params![key, kept])?;
        }
    }
}

fn format_of(connection: &Connection) -> rusqlite::Result<i32> {
    connection.pragma_query_value(None, "user_version", |row| row.get(0))
}

/// Refuses a database whose tables are not those of a store in a supported format.
pub(super) fn check_is_ours(
    connection: &Connection,
    tables: i64,
    path: &str,
) -> rusqlite::Result<Result<()>> {
    let application: i32 = connection.pragma_query_value(None, "application_id", |row| row.get(0))?;
    let format = format_of(connection)?;
    if tables == 0 || (application == APPLICATION && (UNSUMMED..=FORMAT).contains(&format)) {
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

/// Translates an error of SQLite, with a fix.
pub(super) fn describe(what: &str, path: &str, error: &rusqlite::Error) -> Error {
    let may_be_disk = matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase)
    );
    if may_be_disk && let Some(error) = unreadable(what, path) {
        return error;
    }
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
        None if is_of_another_type(error) => (ErrorKind::Corrupt, "restore it from a backup"),
        _ => (ErrorKind::Io, "see whether its disk works"),
    };
    Error::new(kind, format!("need to {what} the metadata store {path}, have: {error}; {fix}"))
}

/// The error for a store with a file that the disk cannot read. SQLite reports such a file as malformed
/// (`SQLITE_IOERR_CORRUPTFS` in its `os_unix.c`).
fn unreadable(what: &str, path: &str) -> Option<Error> {
    [path.to_owned(), format!("{path}-wal")].into_iter().find_map(|file| {
        let failure = read_whole(&file).err().filter(|failure| failure.kind() != io::ErrorKind::NotFound)?;
        let text = format!(
            "need to {what} the metadata store {path}, have a disk that does not read {file}: {failure}; check the disk and the \
             system log"
        );
        Some(Error::new(ErrorKind::Io, text))
    })
}

/// Files that were read after an error. They stay open: SQLite holds POSIX record locks, and a process loses its
/// locks on a file when it closes any descriptor of that file (`fcntl(2)`).
static STAY_OPEN: Mutex<BTreeMap<(u64, u64), File>> = Mutex::new(BTreeMap::new());

fn read_whole(path: &str) -> io::Result<()> {
    let found = fs::metadata(path)?;
    let mut files = STAY_OPEN.lock().unwrap_or_else(PoisonError::into_inner);
    let file = match files.entry((found.dev(), found.ino())) {
        Entry::Occupied(entry) => entry.into_mut(),
        Entry::Vacant(entry) => entry.insert(File::open(path)?),
    };
    let (mut bytes, mut offset) = (vec![0; 1 << 16], 0);
    loop {
        match file.read_at(&mut bytes, offset)? {
            0 => return Ok(()),
            read => offset += read as u64,
        }
    }
}

/// Whether a column of a record contains a value of a type that the store never writes.
fn is_of_another_type(error: &rusqlite::Error) -> bool {
    use rusqlite::Error as Of;
    matches!(
        error,
        Of::InvalidColumnType(..) | Of::IntegralValueOutOfRange(..) | Of::FromSqlConversionFailure(..)
    )
}

/// The error for a database with inconsistent pages.
pub(super) fn damaged(path: &str, found: &str) -> Error {
    if let Some(error) = unreadable("check", path) {
        return error;
    }
    let text = format!("need the metadata store {path} whole, have: {found}; restore it from a backup");
    Error::new(ErrorKind::Corrupt, text)
}
