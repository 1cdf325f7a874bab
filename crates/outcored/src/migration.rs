//! Moves the metadata of a stopped pool from its directory to a database of PostgreSQL, and back.
//!
//! The source stays as it is until its copy is complete, compared with it, and durable. The file [`DATABASE`] then says
//! where the metadata are. A stopped migration is finished by the same call.

use std::fs::{DirBuilder, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outcore_core::{Error, ErrorKind, Names, Result};
use outcore_disk::Directory;
use outcore_server::io_server;
use outcore_server::manager::{check_store, mark_restored, pool_in};
use outcore_server::store::{
    Database, PostgresLease, PostgresStore, Progress, SqliteStore, Store, Versioned,
};

use crate::backup::{failed, free_name, remove_database, rename_alone, sync_directory, with_suffix};
use crate::metadata::{DATABASE, LOCK, MANAGER, METADATA, check_restored, note_database, pool_in_database};
use crate::standing_by::on_this_host;
use crate::turn::Heart;

/// Records that are copied at once.
const AT_ONCE: usize = 500;
/// Suffix of a copy that is not complete.
const PART: &str = ".migrated";

/// The result of a migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Migrated {
    /// The pool.
    pub pool: u128,
    /// Number of records.
    pub records: u64,
    /// The directory with the store that the pool no longer uses, if it was in the pool's directory.
    pub replaced: Option<PathBuf>,
}

/// Moves the metadata of the pool in a manager's directory to a database. No manager may run.
pub fn migrate_to_database(directory: &Path, database: &Database) -> Result<Migrated> {
    let root = Directory::new(directory)?;
    let _lock = root.lock(LOCK)?;
    check_restored(directory)?;
    let file = directory.join(MANAGER).join(METADATA);
    let is_noted = pool_in_database(&root)?.is_some();
    if !is_noted && !file.is_file() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{} has no metadata of a pool; name the pool's first directory", directory.display()),
        ));
    }
    let heart = Heart::start(PostgresLease::take(database, &on_this_host("outcore pool migrate"))?)?;
    let mut target = PostgresStore::open_to_move(database, heart.fence())?;
    let (pool, records) = if is_noted {
        let pool = check_owner(&root, pool_in(&target)?, database)?;
        if target.progress()? != Progress::Whole {
            return Err(Error::invalid(format!(
                "need the metadata in {} or in the database {}, have them in another database; name that one",
                directory.display(),
                database.name()
            )));
        }
        (pool, count(&target)?)
    } else {
        let source = SqliteStore::open(&file)?;
        (check_store(&source)?, fill(&mut target, &source, database)?)
    };
    note_database(&root, pool)?;
    Ok(Migrated { pool, records, replaced: put_aside(&file)? })
}

/// Copies a store to a database that has no records, or only some of a stopped migration.
fn fill(target: &mut PostgresStore, source: &SqliteStore, database: &Database) -> Result<u64> {
    if target.progress()? != Progress::Incomplete && !target.range(&[0], &[0xff], 1)?.is_empty() {
        // A migration may have ended after its last record.
        return match equal(source, target)? {
            Some(records) if target.progress()? == Progress::Whole => Ok(records),
            _ => Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "need an empty database, have metadata of pool {:032x} in {}; name another database, or drop the schema \
                     outcore of this one if nobody needs it",
                    pool_in(target)?.unwrap_or(0),
                    database.name()
                ),
            )),
        };
    }
    target.set_progress(Progress::Incomplete)?;
    target.clear()?;
    copy(source, |records| target.import(records))?;
    let records = check_equal(source, target)?;
    target.set_progress(Progress::Whole)?;
    Ok(records)
}

/// Moves the metadata of a pool from a database to its manager's directory. No manager may run.
pub fn migrate_from_database(directory: &Path, database: &Database) -> Result<Migrated> {
    let root = Directory::private(directory, &[MANAGER])?;
    let _lock = root.lock(LOCK)?;
    check_restored(directory)?;
    let file = directory.join(MANAGER).join(METADATA);
    let is_noted = pool_in_database(&root)?.is_some();
    // No other manager can start, and commits of an earlier one fail.
    let heart = Heart::start(PostgresLease::take(database, &on_this_host("outcore pool migrate"))?)?;
    let mut source = PostgresStore::open_to_move(database, heart.fence())?;
    let pool = check_owner(&root, pool_in(&source)?, database)?;
    let moved = |records| Ok(Migrated { pool, records, replaced: None });
    match source.progress()? {
        // A migration was stopped after its copy was complete.
        Progress::Moved if file.is_file() && pool_in(&SqliteStore::open(&file)?)? == Some(pool) => {
            forget_database(&root)?;
            return moved(count(&SqliteStore::open(&file)?)?);
        }
        Progress::Whole | Progress::Restored => {}
        Progress::Incomplete | Progress::Moved => {
            return Err(Error::invalid(format!(
                "need whole metadata in the database {}, have the rest of a migration; name the database that the \
                 manager uses",
                database.name()
            )));
        }
    }
    if !is_noted && file.is_file() {
        return Err(Error::new(
            ErrorKind::Exists,
            format!("need a directory without metadata, have {}; name another directory", file.display()),
        ));
    }
    check_store(&source)?;
    let part = with_suffix(&file, PART);
    remove_database(&part)?;
    let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
    made.map_err(|error| failed("make", &part, &error))?;
    let mut target = SqliteStore::open(&part)?;
    copy(&source, |records| target.import(records))?;
    target.check()?;
    let records = check_equal(&source, &target)?;
    if source.progress()? == Progress::Restored {
        mark_restored(&mut target)?;
    }
    drop(target);
    // Until the note is gone, this file counts for nothing.
    remove_database(&file)?;
    rename_alone(&part, &file)?;
    source.set_progress(Progress::Moved)?;
    forget_database(&root)?;
    moved(records)
}

/// Refuses a database of another pool than that of a directory. Returns its pool.
fn check_owner(root: &Directory, found: Option<u128>, database: &Database) -> Result<u128> {
    let of_server = io_server::marked(root)?.map(|(pool, _)| pool);
    let own = pool_in_database(root)?.or(of_server);
    match found {
        Some(found) if own.is_none_or(|own| own == found) => Ok(found),
        _ => {
            let named =
                |pool: Option<u128>| pool.map_or("no pool".into(), |pool| format!("pool {pool:032x}"));
            Err(Error::invalid(format!(
                "need the metadata of {}, have those of {} in the database {}; name another database or directory",
                named(own).replace("no pool", "a pool"),
                named(found),
                database.name()
            )))
        }
    }
}

fn forget_database(root: &Directory) -> Result<()> {
    if root.exists(DATABASE)? { root.remove(DATABASE) } else { Ok(()) }
}

/// Moves a store that is no longer used to a directory of its own, which it returns.
fn put_aside(file: &Path) -> Result<Option<PathBuf>> {
    if !file.is_file() {
        return Ok(None);
    }
    let aside = free_name(file);
    let made = DirBuilder::new().mode(0o700).create(&aside);
    made.map_err(|error| failed("make", &aside, &error))?;
    rename_alone(file, &aside.join(METADATA))?;
    sync_directory(file)?;
    Ok(Some(aside))
}

/// Calls `with` on some records after others, in their order.
fn pages(store: &dyn Store, mut with: impl FnMut(Vec<(Vec<u8>, Versioned)>) -> Result<()>) -> Result<()> {
    let mut from = vec![0];
    loop {
        let found = store.range(&from, &[0xff], AT_ONCE)?;
        let Some((last, _)) = found.last() else { return Ok(()) };
        from = [last.as_slice(), &[0]].concat();
        with(found)?;
    }
}

fn copy(source: &dyn Store, mut to: impl FnMut(&[(Vec<u8>, Versioned)]) -> Result<()>) -> Result<()> {
    pages(source, |records| to(&records))
}

fn count(store: &dyn Store) -> Result<u64> {
    let mut count = 0;
    pages(store, |records| {
        count += records.len() as u64;
        Ok(())
    })?;
    Ok(count)
}

/// The number of records of two stores if all of them are equal. Each read compares the checksums.
fn equal(one: &dyn Store, other: &dyn Store) -> Result<Option<u64>> {
    let (mut from, mut count) = (vec![0], 0);
    loop {
        let found = one.range(&from, &[0xff], AT_ONCE)?;
        if found != other.range(&from, &[0xff], AT_ONCE)? {
            return Ok(None);
        }
        let Some((last, _)) = found.last() else { return Ok(Some(count)) };
        from = [last.as_slice(), &[0]].concat();
        count += found.len() as u64;
    }
}

fn check_equal(source: &dyn Store, target: &dyn Store) -> Result<u64> {
    equal(source, target)?.ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            "need a copy with the records of its source, have another one; end every program that uses either, and run the \
             migration again",
        )
    })
}
