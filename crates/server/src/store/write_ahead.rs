//! Durability of SQLite's write-ahead log, which outcore syncs itself.
//!
//! With `synchronous=NORMAL` SQLite writes a commit into the log and does not wait for the disk. It still syncs
//! where the order of writes matters: the log before its pages go into the database, the database before the log
//! restarts, and the log's new header before later pages. (See sqlite.org/pragma.html#pragma_synchronous, and
//! `walCheckpoint` and `walFrames` in its source.) A commit is therefore either in the current log, or in a
//! database that was synced. Syncing the log after a commit makes that commit and all earlier ones durable.

use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use outcore_core::{Error, ErrorKind, Result};

use super::Log;

/// The write-ahead log of a database.
#[derive(Debug)]
pub(super) struct WriteAhead {
    file: File,
    path: String,
    /// Serializes syncs: the system reports an error only once.
    syncing: Mutex<()>,
    has_failed: AtomicBool,
}

impl WriteAhead {
    /// Opens the log of a database, which must stay open as long as this value: the last connection to close
    /// removes the file. SQLite holds no locks on the log, so closing this handle releases none.
    pub(super) fn of(database: &Path) -> Result<Self> {
        let mut name = database.as_os_str().to_owned();
        name.push("-wal");
        let path = Path::new(&name).display().to_string();
        let file = File::open(&name).map_err(|error| {
            let what = format!("need to open the log {path} of the metadata store, have: {error}");
            Error::new(ErrorKind::Io, format!("{what}; see whether something removes files there"))
        })?;
        Ok(Self::new(file, path))
    }

    fn new(file: File, path: String) -> Self {
        Self { file, path, syncing: Mutex::default(), has_failed: AtomicBool::new(false) }
    }

    /// Returns an error if an earlier sync failed.
    pub(super) fn check(&self) -> Result<()> {
        if self.has_failed.load(Ordering::Acquire) {
            return Err(self.lost("the disk refused that before"));
        }
        Ok(())
    }

    fn lost(&self, have: &str) -> Error {
        Error::new(
            ErrorKind::Io,
            format!(
                "need the log {} of the metadata store on its disk, have: {have}; the last operations may be lost: check the disk, then restart the manager",
                self.path
            ),
        )
    }
}

impl Log for WriteAhead {
    fn sync(&self) -> Result<()> {
        let _alone = self.syncing.lock().unwrap_or_else(PoisonError::into_inner);
        self.check()?;
        self.file.sync_data().map_err(|error| {
            self.has_failed.store(true, Ordering::Release);
            self.lost(&error.to_string())
        })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;

    use super::*;
    use crate::store::conformance::put;
    use crate::store::{SqliteStore, Store};

    /// A log that cannot be synced: a pipe.
    fn broken() -> WriteAhead {
        let (pipe, _) = std::io::pipe().unwrap();
        WriteAhead::new(File::from(OwnedFd::from(pipe)), "log".into())
    }

    #[test]
    fn a_sync_that_fails_is_the_end_of_the_store() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("metadata");
        let mut store = SqliteStore::open(&path).unwrap();
        store.replace_log(broken());
        assert_eq!(store.get(b"a").unwrap(), None);
        let error = store.commit(&[], &[put(b"a", b"1")]).unwrap_err();
        assert!(error.message.contains("restart the manager"), "{error}");
        assert!(store.log().sync().is_err(), "no second try");
        assert!(store.get(b"a").is_err() && store.range(b"a", b"z", 9).is_err());
        assert!(store.commit(&[], &[put(b"b", b"1")]).is_err());
        assert!(store.begin_group().is_err());
        drop(store);
        let again = SqliteStore::open(&path).unwrap();
        assert_eq!(again.get(b"b").unwrap(), None, "refused before it was done");
    }

    #[test]
    fn a_group_is_seen_before_it_is_durable_and_its_end_says_whether_it_is() {
        let root = tempfile::tempdir().unwrap();
        let mut store = SqliteStore::open(root.path().join("metadata")).unwrap();
        store.replace_log(broken());
        store.begin_group().unwrap();
        let _ = store.commit(&[], &[put(b"a", b"1")]).unwrap();
        store.end_group_unsynced().unwrap();
        assert!(store.get(b"a").unwrap().is_some());
        store.begin_group().unwrap();
        let _ = store.commit(&[], &[put(b"b", b"1")]).unwrap();
        assert!(store.end_group().is_err());
        assert!(store.get(b"a").is_err());
    }
}
