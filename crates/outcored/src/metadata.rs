//! Location of a pool's metadata, and the limits that a machine sets to a daemon.

use std::path::Path;

use outcore_core::{Error, ErrorKind, Result};
use outcore_disk::{Directory, Reserve, most_open_files};
use outcore_net::{Key, User};
use outcore_server::store::{AnyStore, Database, PostgresStore, Progress, SqliteStore};
use outcore_server::{io_server, manager};

/// Directory of the manager's files.
pub(crate) const MANAGER: &str = "manager";
/// The lock file of the manager that uses the directory.
pub(crate) const LOCK: &str = "manager/lock";
/// File name of the store, below [`MANAGER`].
pub(crate) const METADATA: &str = "metadata.sqlite";
/// Directory below [`MANAGER`] with a replaced store, until the restored copy is in place. While it exists, no
/// manager starts.
pub(crate) const RESTORING: &str = "restoring";
/// A file that says that the metadata of a pool are in a database, and names the pool.
pub(crate) const DATABASE: &str = "manager/database";
/// Its first word.
const DATABASE_FORMAT: &str = "outcore-database-1";
/// File name of the reserve for removals, below [`MANAGER`].
const RESERVE: &str = "reserve";

/// Range of the number of handles that a manager skips if a server has not reported its highest handle. It exceeds
/// the number that an earlier run assigned, and rarely equals the number that another run skipped.
const LEAST_JUMP: u64 = 1 << 32;
const MOST_JUMP: u64 = 1 << 44;

/// Bytes of a disk that data leave free, at most, and an eighth of a small disk. This exceeds the metadata's
/// reserve and need.
const MOST_SPARE: u64 = 16 << 20;

/// Descriptors of a daemon besides data files and connections: its log, its store, its listeners.
const OWN_DESCRIPTORS: usize = 20;
/// Least and largest number of connections of a daemon.
const CONNECTIONS: std::ops::RangeInclusive<usize> = 4..=1024;

/// Descriptors for the data files of one I/O server, if this process has `servers` of them. Together they get half
/// of the process's limit.
pub(crate) fn file_descriptors(servers: usize) -> usize {
    most_open_files() / 2 / servers.max(1)
}

/// Concurrent connections of a daemon, at most.
pub(crate) fn most_connections() -> usize {
    let left = most_open_files() - most_open_files() / 2;
    left.saturating_sub(OWN_DESCRIPTORS).clamp(*CONNECTIONS.start(), *CONNECTIONS.end())
}

/// Refuses a manager's directory in which a restoration has begun and not ended: the store may lack its log.
pub(crate) fn check_restored(directory: &Path) -> Result<()> {
    let begun = directory.join(MANAGER).join(RESTORING);
    if begun.symlink_metadata().is_err() {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Invalid,
        format!(
            "need restored metadata, have a restoration that was stopped, with the replaced store in {}; run `outcore \
             pool restore` again",
            begun.display()
        ),
    ))
}

/// Refuses the directory of a manager whose store is in a database.
pub(crate) fn check_is_here(directory: &Path) -> Result<()> {
    if directory.join(DATABASE).symlink_metadata().is_err() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need the metadata in {}, have them in a database; run the pool as daemons, with the setting store, or bring them back \
         with `outcore pool migrate`",
        directory.display()
    )))
}

/// The pool whose metadata are in a database, according to a manager's directory.
pub(crate) fn pool_in_database(root: &Directory) -> Result<Option<u128>> {
    if !root.exists(DATABASE)? {
        return Ok(None);
    }
    let text = root.read_small(DATABASE)?;
    let text = String::from_utf8_lossy(&text);
    let digits = text.trim_end().strip_prefix(DATABASE_FORMAT).map(str::trim);
    digits.and_then(|digits| u128::from_str_radix(digits, 16).ok()).map(Some).ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, format!("{DATABASE} is damaged; restore it from a copy"))
    })
}

/// Notes that the metadata of a pool are in a database.
pub(crate) fn note_database(root: &Directory, pool: u128) -> Result<()> {
    if pool_in_database(root)? == Some(pool) {
        return Ok(());
    }
    root.replace_small(DATABASE, format!("{DATABASE_FORMAT} {pool:032x}\n").as_bytes())
}

/// Opens the store of a manager: in a database, under the lease with a number, or in its directory.
pub(crate) fn open_any(root: &Directory, database: Option<(&Database, i64)>) -> Result<AnyStore> {
    let Some((database, fence)) = database else { return Ok(Box::new(open_store(root.root())?)) };
    let noted = pool_in_database(root)?;
    let file = root.root().join(MANAGER).join(METADATA);
    if noted.is_none() && file.symlink_metadata().is_ok() {
        return Err(Error::invalid(format!(
            "need the metadata in a database, as the setting store says, have them in {}; move them with `outcore pool migrate`",
            file.display()
        )));
    }
    let mut store = PostgresStore::open_under(database, fence)?;
    let of_server = io_server::marked(root)?.map(|(pool, _)| pool);
    match (noted.or(of_server), manager::pool_in(&store)?) {
        (Some(own), found) if found != Some(own) => {
            let have = found.map_or("none".to_owned(), |pool| format!("those of pool {pool:032x}"));
            Err(Error::invalid(format!(
                "need the metadata of pool {own:032x}, to which {} belongs, have {have} in the database {}; correct the setting \
                 store",
                root.root().display(),
                database.name()
            )))
        }
        _ => {
            if store.progress()? == Progress::Restored {
                manager::mark_restored(&mut store)?;
                store.set_progress(Progress::Whole)?;
            }
            Ok(Box::new(store))
        }
    }
}

/// Opens the store in a manager's directory, or creates it. Refuses a store whose restoration has not ended.
pub(crate) fn open_store(directory: &Path) -> Result<SqliteStore> {
    check_restored(directory)?;
    check_is_here(directory)?;
    let below = directory.join(MANAGER);
    SqliteStore::open_keeping(below.join(METADATA), Box::new(Reserve::new(&below, RESERVE)))
}

/// The configuration of a manager that this user runs, with random numbers for a new pool and for this run.
pub(crate) fn manager_config() -> Result<manager::Config> {
    let User { uid, gids, .. } = User::own();
    let random = *Key::random()?.bytes();
    let (pool, rest) = random.split_at(16);
    let (run, jump) = rest.split_at(8);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    Ok(manager::Config {
        owner: uid,
        group: gids.first().copied().unwrap_or(0),
        run: number(run),
        jump: LEAST_JUMP + number(jump) % MOST_JUMP,
        ..manager::Config::new(u128::from_le_bytes(pool.try_into().unwrap_or_default()))
    })
}

/// Bytes of a disk that data leave free.
pub(crate) fn spare_bytes(directory: &Directory) -> Result<u64> {
    Ok(MOST_SPARE.min(directory.total_bytes()? / 8))
}
