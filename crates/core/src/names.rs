//! The trait for names: a directory, beside a [`crate::Disk`] that serves its files.

use std::any::Any;

use crate::{Entry, Result};

/// Names and small files below one directory. Every call blocks, and is durable when it returns. Paths are as
/// in [`crate::Disk`].
pub trait Names: Send + Sync {
    /// The contents of a small file.
    fn read_small(&self, path: &str) -> Result<Vec<u8>>;

    /// Replaces a small file atomically.
    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// The names in a directory, sorted.
    fn list(&self, path: &str) -> Result<Vec<Entry>>;

    /// The names in a directory, in any order. For many names this costs less than [`Names::list`].
    fn list_names(&self, path: &str) -> Result<Vec<String>> {
        Ok(self.list(path)?.into_iter().map(|entry| entry.name).collect())
    }

    /// Removes a file, or a directory with its contents. A file must not be in use: a process that still has
    /// it open may find it shorter. Its space may become free a little later. Writers wait for that space and
    /// do not find the disk full.
    fn remove(&self, path: &str) -> Result<()>;

    /// Returns once the space of removed files is free.
    fn wait_for_room(&self) {}

    /// Takes the exclusive lock on the file `path`, and creates the file if needed. The lock is held until
    /// the result is dropped. If another process holds the lock, the error has the kind `busy`.
    fn lock(&self, path: &str) -> Result<Box<dyn Any + Send>>;
}
