//! Backup of a pool's metadata while the pool is in use, and restoration while it is not.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use outcore_core::{Error, ErrorKind, Names, Result};
use outcore_disk::Directory;
use outcore_server::io_server;
use outcore_server::manager::{check_store, mark_restored};
use outcore_server::store::SqliteStore;

use crate::metadata::{LOCK, MANAGER, METADATA};

/// Suffix of an incomplete copy.
const PART: &str = ".part";
/// Name of the directory below [`MANAGER`] that contains a replaced store, before its number.
const REPLACED: &str = "replaced-";

fn failed(doing: &str, path: &Path, error: &std::io::Error) -> Error {
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
fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

fn sync_directory(of: &Path) -> Result<()> {
    let above = of.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(above).and_then(|open| open.sync_all()).map_err(|error| failed("sync", above, &error))
}

/// The store in a manager's directory.
fn store_in(directory: &Path) -> Result<PathBuf> {
    let store = directory.join(MANAGER).join(METADATA);
    if store.is_file() {
        return Ok(store);
    }
    Err(Error::new(
        ErrorKind::NotFound,
        format!("{} has no files of a manager; name the pool's first directory", directory.display()),
    ))
}

/// Copies a store to a new file that only its owner can read, and checks the copy. Returns the number of its pool.
fn copy_checked(source: &Path, target: &Path) -> Result<u128> {
    let part = with_suffix(target, PART);
    let copied = (|| {
        match fs::remove_file(&part) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(failed("remove", &part, &error));
            }
            _ => {}
        }
        let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part);
        made.map_err(|error| failed("make", &part, &error))?;
        SqliteStore::copy(source, &part)?;
        let pool = check_store(&SqliteStore::open(&part)?)?;
        fs::rename(&part, target).map_err(|error| failed("make", target, &error))?;
        sync_directory(target)?;
        Ok(pool)
    })();
    if copied.is_err() {
        for suffix in ["", "-wal", "-shm"] {
            let _ = fs::remove_file(with_suffix(&part, suffix));
        }
    }
    copied
}

/// Copies the metadata of a pool, given by its first directory, to a new file. The pool may be in use: the copy
/// has every change that was answered before this call.
pub fn backup_metadata(directory: &Path, target: &Path) -> Result<()> {
    let store = store_in(directory)?;
    if target.symlink_metadata().is_ok() {
        return Err(Error::new(
            ErrorKind::Exists,
            format!("{} exists; give another name for the copy", target.display()),
        ));
    }
    copy_checked(&store, target).map(drop)
}

/// Replaces the metadata of a pool by a copy. Returns the directory of the replaced store, or `None` if there was
/// none. The pool must not be running.
pub fn restore_metadata(directory: &Path, copy: &Path) -> Result<Option<PathBuf>> {
    let root = Directory::new(directory)?;
    let _lock = root.lock(LOCK)?;
    let store = directory.join(MANAGER).join(METADATA);
    let restored = with_suffix(&store, ".restored");
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
    let replaced = set_aside(&store)?;
    fs::rename(&restored, &store).map_err(|error| failed("make", &store, &error))?;
    sync_directory(&store)?;
    Ok(replaced)
}

/// Moves a store and its log into a new directory, which it returns. The store also keeps its name until the copy
/// takes it.
fn set_aside(store: &Path) -> Result<Option<PathBuf>> {
    let above = store.with_file_name("");
    let free = (1..).map(|number| above.join(format!("{REPLACED}{number}"))).find(|path| !path.exists());
    let (Some(aside), true) = (free, store.exists()) else { return Ok(None) };
    DirBuilder::new().mode(0o700).create(&aside).map_err(|error| failed("make", &aside, &error))?;
    let log = with_suffix(store, "-wal");
    let moved = fs::hard_link(store, aside.join(METADATA)).and_then(|()| {
        if log.exists() { fs::rename(&log, with_suffix(&aside.join(METADATA), "-wal")) } else { Ok(()) }
    });
    moved.map_err(|error| failed("move", store, &error))?;
    // This file belongs to the moved log.
    let _ = fs::remove_file(with_suffix(store, "-shm"));
    sync_directory(&aside.join(METADATA))?;
    sync_directory(store)?;
    Ok(Some(aside))
}
