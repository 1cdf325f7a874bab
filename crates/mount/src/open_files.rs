//! Open files: their bytes, and files that were removed while they were open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fuser::{Errno, FileHandle, INodeNo};
use outcore_core::{Buffer, Error, ErrorKind, FileId, Operation, Regions, Result, Volume};
use outcore_memory::Region;

use crate::Client;
use crate::buffers::Buffers;
use crate::errors::Answer;

/// A file that a program has open.
pub(crate) struct OpenFile {
    pub number: INodeNo,
    file: FileId,
    /// A length in bytes that the file is known to have had.
    length: AtomicU64,
    /// Held while bytes are appended.
    appending: Mutex<()>,
}

/// All open files of a mount.
pub(crate) struct OpenFiles {
    client: Arc<Client>,
    buffers: Buffers,
    next: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Arc<OpenFile>>,
    /// Paths of files that were removed while they were open, by their numbers.
    removed: HashMap<u64, String>,
}

impl OpenFiles {
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, buffers: Buffers::default(), next: AtomicU64::new(1), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a file that the client has opened.
    pub fn add(&self, number: INodeNo, file: FileId) -> FileHandle {
        let open = OpenFile { number, file, length: AtomicU64::new(0), appending: Mutex::default() };
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.state().open.insert(handle, Arc::new(open));
        FileHandle(handle)
    }

    pub fn get(&self, handle: FileHandle) -> Answer<Arc<OpenFile>> {
        self.state().open.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    /// Whether a program has the file with this number open.
    pub fn is_open(&self, number: INodeNo) -> bool {
        self.state().open.values().any(|open| open.number == number)
    }

    /// Records the hidden path of a file that was removed while it is open. Returns whether it is still open; then the
    /// last `close` returns that path.
    pub fn removed_at(&self, number: INodeNo, path: &str) -> bool {
        let mut state = self.state();
        let is_open = state.open.values().any(|open| open.number == number);
        if is_open {
            state.removed.insert(number.0, path.into());
        }
        is_open
    }

    /// Closes a file. After the last `close` of a removed file, returns its number and its hidden path.
    pub fn close(&self, handle: FileHandle) -> Option<(INodeNo, String)> {
        let mut state = self.state();
        let open = state.open.remove(&handle.0)?;
        let is_last = !state.open.values().any(|other| other.number == open.number);
        let path = if is_last { state.removed.remove(&open.number.0) } else { None };
        drop(state);
        self.client.close(open.file);
        path.map(|path| (open.number, path))
    }

    /// All open files.
    pub fn handles(&self) -> Vec<FileHandle> {
        self.state().open.keys().copied().map(FileHandle).collect()
    }

    /// Records that the length of a file changed: the next read asks for it.
    pub fn resized(&self, number: INodeNo) {
        for open in self.state().open.values().filter(|open| open.number == number) {
            open.length.store(0, Ordering::Relaxed);
        }
    }

    /// The length of an open file in bytes.
    pub fn length(&self, open: &OpenFile) -> Result<u64> {
        let length = self.client.length(open.file)?;
        open.length.store(length, Ordering::Relaxed);
        Ok(length)
    }

    /// Reads at most `bytes` bytes into `target`, which is replaced. At the end of the file there are fewer.
    pub fn read(&self, open: &OpenFile, offset: u64, bytes: u32, target: &mut Vec<u8>) -> Result<()> {
        let end = offset.saturating_add(bytes.into());
        let mut known = open.length.load(Ordering::Relaxed);
        loop {
            let is_fresh = known < end;
            if is_fresh {
                known = self.length(open)?;
            }
            let count = known.min(end).saturating_sub(offset);
            target.resize(count as usize, 0);
            if count == 0 {
                return Ok(());
            }
            let read = self.buffers.with(count as usize, |buffer| {
                self.transfer(open, Operation::Read, offset, &buffer)?;
                buffer.copy_out(0, target);
                Ok(())
            });
            match read {
                // Another client has made the file shorter.
                Err(error) if error.kind == ErrorKind::Truncated && !is_fresh => known = 0,
                read => return read,
            }
        }
    }

    /// Writes bytes at an offset, or behind the last byte.
    pub fn write(&self, open: &OpenFile, offset: Option<u64>, bytes: &[u8]) -> Result<()> {
        let appending = offset.is_none().then(|| open.appending.lock());
        let offset = offset.map_or_else(|| self.length(open), Ok)?;
        let end = offset.checked_add(bytes.len() as u64);
        let end = end.ok_or_else(|| Error::invalid("need an end below 2^64; write at a smaller offset"))?;
        self.buffers.with(bytes.len(), |mut buffer| {
            buffer.copy_in(0, bytes);
            self.transfer(open, Operation::Write, offset, &buffer)
        })?;
        open.length.fetch_max(end, Ordering::Relaxed);
        drop(appending);
        Ok(())
    }

    /// Sets the length of a file.
    pub fn resize(&self, open: &OpenFile, length: u64) -> Result<()> {
        let resized = self.client.set_length(open.file, length);
        self.resized(open.number);
        resized
    }

    /// Returns once all writes survive power loss.
    pub fn sync(&self, open: &OpenFile) -> Result<()> {
        finish(&self.client.submit_sync_after(open.file, &[]))
    }

    fn transfer(&self, open: &OpenFile, operation: Operation, offset: u64, buffer: &Region) -> Result<()> {
        let regions = Regions::contiguous(offset, buffer.len() as u64)?;
        finish(&self.client.submit_regions(open.file, operation, regions, buffer.clone()))
    }
}

/// Waits for the end of a request. The client fails requests that a server does not answer in time.
fn finish(ticket: &outcore_client::Ticket) -> Result<()> {
    loop {
        if let Some(result) = ticket.wait(Duration::from_secs(60)) {
            return result;
        }
    }
}
