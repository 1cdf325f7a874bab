//! Open directories.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fuser::{Errno, FileHandle};

use crate::errors::Answer;
use crate::tree::Listed;

type Names = Arc<Vec<Listed>>;

/// The names in each open directory, as they were when a program opened it.
#[derive(Default)]
pub(crate) struct Listings {
    open: Mutex<HashMap<u64, Names>>,
    next: AtomicU64,
}

impl Listings {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Names>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds an open directory.
    pub fn add(&self, names: Vec<Listed>) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open().insert(handle, Arc::new(names));
        FileHandle(handle)
    }

    pub fn get(&self, handle: FileHandle) -> Answer<Names> {
        self.open().get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    pub fn remove(&self, handle: FileHandle) {
        self.open().remove(&handle.0);
    }
}
