//! A directory tree as [`Names`].

use std::any::Any;
use std::fs::{File, TryLockError};
use std::io;

use outcore_core::{Entry, Error, ErrorKind, Names, Result};

use crate::Directory;
use crate::system::describe;

impl Names for Directory {
    fn read_small(&self, path: &str) -> Result<Vec<u8>> {
        self.read_small(path)
    }

    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.replace_small(path, bytes)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.list(path)
    }

    fn list_names(&self, path: &str) -> Result<Vec<String>> {
        self.list_names(path)
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.remove_unused(path)
    }

    fn wait_for_room(&self) {
        self.freeing().wait();
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Any + Send>> {
        let full = self.resolve_new(path)?;
        let opened = self.making().read(true).write(true).create(true).truncate(false).open(&full);
        // On a read-only disk, an existing lock file can be locked too.
        let opened = opened.or_else(|e| {
            let is_read_only =
                matches!(e.kind(), io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied);
            if is_read_only { File::open(&full).map_err(|_| e) } else { Err(e) }
        });
        let file = opened.map_err(|e| describe("open", &full, &e))?;
        match file.try_lock() {
            Ok(()) => Ok(Box::new(file)),
            Err(TryLockError::WouldBlock) => Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "{} is locked: another process or pool uses this directory; stop it, or choose another directory",
                    full.display()
                ),
            )),
            Err(TryLockError::Error(e)) => Err(describe("lock", &full, &e)),
        }
    }
}
