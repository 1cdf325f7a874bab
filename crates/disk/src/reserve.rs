//! Reserved disk space, in a file.

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use outcore_core::{Result, Room};

use crate::system::{describe, free_bytes, reserve, total_bytes};

/// A file that occupies disk space until it is needed. Its content has no meaning.
#[derive(Debug)]
pub struct Reserve {
    directory: PathBuf,
    path: PathBuf,
}

impl Reserve {
    /// A reserve in the file `name` of a directory.
    pub fn new(directory: impl Into<PathBuf>, name: &str) -> Self {
        let directory = directory.into();
        Self { path: directory.join(name), directory }
    }
}

impl Room for Reserve {
    fn free_bytes(&self) -> Result<u64> {
        free_bytes(&self.directory)
    }

    fn total_bytes(&self) -> Result<u64> {
        total_bytes(&self.directory)
    }

    fn keep(&mut self, bytes: u64) -> Result<()> {
        let kept = File::options().write(true).create(true).truncate(false).mode(0o600).open(&self.path);
        let kept = kept.and_then(|file| reserve(&file, bytes));
        kept.map_err(|error| {
            // A partial reserve is useless.
            let _ = fs::remove_file(&self.path);
            describe("take room for", &self.path, &error)
        })
    }

    fn release(&mut self) -> Result<()> {
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(describe("remove", &self.path, &error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn room_is_taken_from_the_disk_and_given_back() {
        let root = tempfile::tempdir().unwrap();
        let mut reserve = Reserve::new(root.path(), "reserve");
        assert!(reserve.free_bytes().unwrap() <= reserve.total_bytes().unwrap());
        reserve.release().unwrap();
        for _ in 0..2 {
            reserve.keep(1 << 20).unwrap();
            assert!(fs::metadata(root.path().join("reserve")).unwrap().blocks() * 512 >= 1 << 20);
        }
        reserve.release().unwrap();
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
        assert!(reserve.keep(1 << 60).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0, "nothing is left of one that fails");
    }
}
