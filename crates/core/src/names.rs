//! The seam for names: what is needed of a directory beside a [`crate::Disk`] that serves its files.

use std::any::Any;

use crate::{Entry, Result};

/// Names and small files below one directory. Every call blocks, and is durable when it returns. Paths are as with a
/// [`crate::Disk`].
pub trait Names: Send + Sync {
    /// The whole of a small file.
    fn read_small(&self, path: &str) -> Result<Vec<u8>>;

    /// Replaces a small file atomically.
    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// The names in a directory, sorted.
    fn list(&self, path: &str) -> Result<Vec<Entry>>;

    /// The names in a directory, in any order: at less cost than [`Names::list`], where there are many.
    fn list_names(&self, path: &str) -> Result<Vec<String>> {
        Ok(self.list(path)?.into_iter().map(|entry| entry.name).collect())
    }

    /// Removes a file, or a directory with all it holds. A file is not in use: who still has it open may find it shorter. Its
    /// room may be free a little later, but who writes waits for it and does not find the disk full.
    fn remove(&self, path: &str) -> Result<()>;

    /// Returns once the room of what was removed before is free.
    fn wait_for_room(&self) {}

    /// Takes the exclusive lock on the file `path`, which is made if it is not there; it is held until what is
    /// returned is dropped. An error of kind `busy` if somebody else holds it.
    fn lock(&self, path: &str) -> Result<Box<dyn Any + Send>>;
}
