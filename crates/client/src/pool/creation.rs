//! Files that a call opens, or creates if they are missing.

use outcore_core::{ErrorKind, FileId, Gather, Hints, Link, Result};

use crate::PoolVolume;

/// Attempts to open or create a file that others create and remove.
const TRIES: u32 = 100;

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    /// Opens a file, or creates it with the layout that `hints` select and these permission bits, before the umask. As on
    /// Linux, it creates the target of a symbolic link to a missing file. Returns the file, and whether it is new. A new
    /// file is open for writing, whatever `write` says.
    ///
    /// # Errors
    ///
    /// Those of opening and of creation.
    pub fn open_or_create(
        &self,
        path: &str,
        write: bool,
        hints: &Hints,
        mode: u32,
    ) -> Result<(FileId, bool)> {
        let create = |path: &str| self.create_as(path, hints.clone(), mode);
        let mut tries = 1;
        loop {
            // Opening comes first, because it needs no right to write to the directory.
            match self.0.open(path, write) {
                Err(error) if error.kind == ErrorKind::NotFound => {}
                opened => return opened.map(|file| (self.0.add(file), false)),
            }
            let mut created = create(path);
            if exists(&created) && self.stat(path).is_ok_and(|inode| inode.is_link()) {
                created = create(&self.follow(path)?);
            }
            // Otherwise another client has created it meanwhile.
            if !exists(&created) || tries == TRIES {
                return created.map(|file| (file, true));
            }
            tries += 1;
        }
    }
}

fn exists<T>(created: &Result<T>) -> bool {
    created.as_ref().is_err_and(|error| error.kind == ErrorKind::Exists)
}
