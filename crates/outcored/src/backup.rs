//! Backup of a pool's metadata while the pool is in use, and restoration while it is not.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outcore_core::{Error, ErrorKind, Names, Result};
use outcore_disk::Directory;
use outcore_server::io_server;
use outcore_server::manager::{check_store, mark_restored};
use outcore_server::store::SqliteStore;

use crate::metadata::{DATABASE, LOCK, MANAGER, METADATA, RESTORING, check_restored};

/// Suffix of an incomplete copy.
const PART: &str = ".part";
/// Suffixes of a database, its log, and the index of its log.
const BESIDE: [&str; 3] = ["", LOG, "-shm"];
/// Suffix of the log of a database.
const LOG: &str = "-wal";
/// Name of the directory below [`MANAGER`] that contains a replaced store, before its number.
const REPLACED: &str = "replaced-";

pub(crate) fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Error {
    let kind = match error.kind() {
        std::io::ErrorKind::AlreadyExists => ErrorKind::Exists,
        std::io::ErrorKind::NotFound => ErrorKind::NotFound,
        std::io::ErrorKind::StorageFull => ErrorKind::DiskFull,
        _ => ErrorKind::Io,
    };
    let text = format!("cannot {doing} {}: {error}; name another file, or make room", path.display());
    Error::new(kind, text)
}

/// A path with a suffix appended.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

pub(crate) fn sync_directory(of: &Path) -> Result<()> {
    let above = of.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(above).and_then(|open| open.sync_all()).map_err(|error| failed("sync", above, &error))
}

/// Refuses a pool whose metadata are in a database.
fn check_is_in_file(directory: &Path) -> Result<()> {
    if directory.join(DATABASE).symlink_metadata().is_err() {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need the metadata in {}, have them in a database; copy and restore that with pg_dump and pg_restore",
        directory.display()
    )))
}

/// The store in a manager's directory.
pub(crate) fn store_in(directory: &Path) -> Result<PathBuf> {
    check_is_in_file(directory)?;
    let store = directory.join(MANAGER).join(METADATA);
    if store.is_file() {
        return check_restored(directory).map(|()| store);
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!("{} has no files of a manager; name the pool's first directory", directory.display()),
    ))
}

/// Removes a database that a killed call may have left, with the files beside it. SQLite would apply their contents
/// to a new database of the same name.
pub(crate) fn remove_database(path: &Path) -> Result<()> {
    for suffix in BESIDE {
        match fs::remove_file(with_suffix(path, suffix)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove", path, &error));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Copies a store to a new file that only its owner can read, and checks the copy. Returns the number of its pool.
fn copy_checked(source: &Path, target: &Path) -> Result<u128> {
    let part = with_suffix(target, PART);
    let copied = (|| {
        remove_database(&part)?;
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
        made.map_err(|error| failed("make", &part, &error))?;
        SqliteStore::copy(source, &part)?;
        let pool = check_store(&SqliteStore::open(&part)?)?;
        rename_alone(&part, target)?;
        Ok(pool)
    })();
    if copied.is_err() {
        let _ = remove_database(&part);
    }
    copied
}

/// Renames a closed database durably. Refuses to leave its log behind.
pub(crate) fn rename_alone(from: &Path, to: &Path) -> Result<()> {
    let log = with_suffix(from, LOG);
    if log.exists() {
        return Err(Error::new(
            ErrorKind::Busy,
            format!(
                "need {} complete, have a log beside it; end the program that uses it, and try again",
                from.display()
            ),
        ));
    }
    fs::rename(from, to).map_err(|error| failed("make", to, &error))?;
    sync_directory(to)
}

/// Copies the metadata of a pool, given by its first directory, to a new file. The pool may be in use: the copy
/// has every change that was answered before this call.
pub fn backup_metadata(directory: &Path, target: &Path) -> Result<()> {
    let store = store_in(directory)?;
    for path in BESIDE.map(|suffix| with_suffix(target, suffix)) {
        if path.symlink_metadata().is_ok() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!("{} exists; give another name for the copy", path.display()),
            ));
        }
    }
    copy_checked(&store, target).map(drop)
}

/// Replaces the metadata of a pool by a copy. Returns the directory of the replaced store, or `None` if there was
/// none. The pool must not be running. If the process dies meanwhile, no manager starts until another call has
/// finished.
pub fn restore_metadata(directory: &Path, copy: &Path) -> Result<Option<PathBuf>> {
    check_is_in_file(directory)?;
    let root = Directory::new(directory)?;
    let _lock = root.lock(LOCK)?;
    let store = directory.join(MANAGER).join(METADATA);
    let restored = with_suffix(&store, ".restored");
    remove_database(&restored)?;
    let pool = copy_checked(copy, &restored)?;
    if let Some((own, _)) = io_server::marked(&root)?
        && own != pool
    {
        let _ = fs::remove_file(&restored);
        return Err(Error::invalid(format!(
            "need a copy of the metadata of pool {own:032x}, have one of pool {pool:032x} in {}; give another copy",
            copy.display()
        )));
    }
    mark_restored(&mut SqliteStore::open(&restored)?)?;
    let aside = store.with_file_name(RESTORING);
    set_aside(&store, &aside)?;
    rename_alone(&restored, &store)?;
    keep(&aside)
}

/// Moves a store and its log into the directory `aside`, or finishes that. The store also keeps its name until the
/// copy takes it.
fn set_aside(store: &Path, aside: &Path) -> Result<()> {
    match DirBuilder::new().mode(0o700).create(aside) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(failed("make", aside, &error));
        }
        _ => {}
    }
    // The marker is durable before the store changes.
    sync_directory(aside)?;
    let kept = aside.join(METADATA);
    let (log, kept_log) = (with_suffix(store, LOG), with_suffix(&kept, LOG));
    // A log without a store was left over. Then the store beside the directory is the copy of an earlier call, to which
    // the log does not belong.
    if !kept.exists() && !kept_log.exists() && store.exists() {
        fs::hard_link(store, &kept).map_err(|error| failed("move", store, &error))?;
        sync_directory(&kept)?;
    }
    if log.exists() {
        fs::rename(&log, &kept_log).map_err(|error| failed("move", &log, &error))?;
    }
    // This file belongs to the moved log.
    let _ = fs::remove_file(with_suffix(store, "-shm"));
    sync_directory(&kept)?;
    sync_directory(store)
}

/// The next free name of a directory for a replaced store, beside `path`.
pub(crate) fn free_name(path: &Path) -> PathBuf {
    let mut number = 1_u32;
    loop {
        let name = path.with_file_name(format!("{REPLACED}{number}"));
        if name.symlink_metadata().is_err() {
            return name;
        }
        number += 1;
    }
}

/// Gives the directory of a replaced store its name, which it returns, and so ends the restoration. Removes the
/// directory if it is empty.
fn keep(aside: &Path) -> Result<Option<PathBuf>> {
    // Without a store, there may be a log that was left over.
    let mut entries = fs::read_dir(aside).map_err(|error| failed("read", aside, &error))?;
    let kept = if entries.next().is_some() { Some(free_name(aside)) } else { None };
    match &kept {
        Some(kept) => fs::rename(aside, kept).map_err(|error| failed("make", kept, &error))?,
        None => fs::remove_dir(aside).map_err(|error| failed("remove", aside, &error))?,
    }
    sync_directory(aside)?;
    Ok(kept)
}
