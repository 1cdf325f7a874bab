//! Open files: their bytes, and files that were removed while they were open.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use fuser::{Errno, FileHandle, INodeNo};
use outcore_core::{Buffer, Error, ErrorKind, FileId, Handle, Operation, Regions, Result, Volume};
use outcore_memory::Region;

use crate::Client;
use crate::ahead::{Ahead, FRESH, Source};
use crate::behind::Body;
use crate::buffers::{Buffers, Lender, MOST_BYTES};
use crate::errors::Answer;

/// How often gathered writes are looked at. Those of this age are sent, so that they reach the servers within a second.
const LOOK: Duration = Duration::from_millis(300);
/// Buffers for gathered writes, and as many for bytes that are read ahead, at most.
const MOST_BUFFERS: usize = 128;

/// A file that a program has open.
pub(crate) struct OpenFile {
    pub number: INodeNo,
    file: FileId,
    is_writable: bool,
    /// A length in bytes that the file is known to have had, and since when.
    length: AtomicU64,
    asked: Mutex<Option<Instant>>,
    body: Arc<Body>,
    /// Number of failures of gathered writes that the program knows.
    reported: AtomicU64,
    ahead: Mutex<Ahead>,
}

/// All open files of a mount.
pub(crate) struct OpenFiles {
    shared: Arc<Shared>,
    buffers: Arc<Buffers>,
    next: AtomicU64,
    /// Whether writes are gathered, and bytes are read ahead.
    pub is_cached: bool,
    for_writes: Arc<Lender>,
    for_reads: Arc<Lender>,
    /// Wakes the thread that sends gathered writes.
    began: SyncSender<()>,
}

struct Shared {
    client: Arc<Client>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Arc<OpenFile>>,
    /// The bytes of open files, by their numbers.
    bodies: HashMap<u64, Arc<Body>>,
    /// Hidden paths of files that were removed while they were open, by their numbers.
    removed: HashMap<u64, Vec<String>>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the length of a file changed: the next read asks for it.
    fn resized(&self, number: INodeNo) {
        for open in self.state().open.values().filter(|open| open.number == number) {
            open.length.store(0, Ordering::Relaxed);
        }
    }

    fn bodies(&self) -> Vec<Arc<Body>> {
        self.state().bodies.values().cloned().collect()
    }

    /// Records that all files may have changed elsewhere: the next reads ask the servers.
    fn refresh(&self) {
        for body in self.bodies() {
            body.changes();
            body.new.ask();
        }
        for open in self.state().open.values() {
            open.length.store(0, Ordering::Relaxed);
        }
    }

    /// Sends gathered writes once they are old. Returns whether some are still pending.
    fn send_older(&self) -> bool {
        self.bodies().into_iter().filter(|body| self.send_older_of(body)).count() > 0
    }

    fn send_older_of(&self, body: &Arc<Body>) -> bool {
        let has_bytes = body.send_older(&self.client, LOOK);
        let (keeps, are_old) = body.new.keeps(LOOK);
        if are_old && body.new.begin_sending() {
            // This thread must not wait for the manager. If no thread can be started, it tries again.
            let (client, failed, body) = (self.client.clone(), body.clone(), body.clone());
            let send = move || {
                body.settle(&client);
                // If it fails, the changes are still kept, and the program gets the error at its `close`.
                let _ = body.new.send(&client);
                body.new.end_sending();
            };
            if thread::Builder::new().name("mount-attributes".into()).spawn(send).is_err() {
                failed.new.end_sending();
            }
        }
        has_bytes || keeps
    }
}

/// Sends gathered writes in time, until the other end is dropped.
fn send_in_time(shared: &Shared, began: &Receiver<()>) {
    while began.recv().is_ok() {
        loop {
            thread::sleep(LOOK);
            // The look that follows sees the writes that this one is for.
            let _ = began.try_recv();
            if !shared.send_older() {
                break;
            }
        }
    }
}

impl OpenFiles {
    /// The open files of a mount. With `is_cached`, writes are gathered, and bytes are read ahead.
    pub fn new(client: Arc<Client>, is_cached: bool) -> Result<Self> {
        let shared = Arc::new(Shared { client, state: Mutex::default() });
        let (began, receiver) = sync_channel(1);
        let of_thread = shared.clone();
        let send = move || send_in_time(&of_thread, &receiver);
        thread::Builder::new().name("mount-writes".into()).spawn(send).map_err(|error| {
            let text = format!("cannot start a thread for gathered writes: {error}; end other programs");
            Error::new(ErrorKind::Io, text)
        })?;
        let buffers = Arc::<Buffers>::default();
        let [for_writes, for_reads] = [(); 2].map(|()| Lender::new(buffers.clone(), MOST_BUFFERS));
        let next = AtomicU64::new(1);
        Ok(Self { shared, buffers, next, is_cached, for_writes, for_reads, began })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state()
    }

    /// Wakes the thread that sends in time.
    pub fn wake(&self) {
        // If the thread has one such message, it needs no second.
        let _ = self.began.try_send(());
    }

    pub fn client(&self) -> &Client {
        &self.shared.client
    }

    /// Adds a file that the client has opened.
    pub fn add(&self, number: INodeNo, file: FileId, is_writable: bool) -> FileHandle {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        let body = state.bodies.entry(number.0).or_default().clone();
        let (length, reported) = (AtomicU64::new(0), AtomicU64::new(body.failures()));
        let (asked, ahead) = (Mutex::default(), Mutex::default());
        let open = OpenFile { number, file, is_writable, length, asked, body, reported, ahead };
        state.open.insert(handle, Arc::new(open));
        FileHandle(handle)
    }

    pub fn get(&self, handle: FileHandle) -> Answer<Arc<OpenFile>> {
        self.state().open.get(&handle.0).cloned().ok_or(Errno::EBADF)
    }

    pub fn body(&self, number: INodeNo) -> Option<Arc<Body>> {
        self.state().bodies.get(&number.0).cloned()
    }

    /// Returns once the servers have all writes to a file that this mount has open.
    pub fn settle(&self, number: INodeNo) {
        if let Some(body) = self.body(number) {
            body.settle(self.client());
        }
    }

    /// Returns once the servers have all writes of this mount, and the manager their attributes and times. Errors are those
    /// of later calls on the files.
    pub fn settle_all(&self) {
        let client = self.client();
        let bodies: Vec<_> =
            self.state().bodies.iter().map(|(number, body)| (*number, body.clone())).collect();
        for (_, body) in &bodies {
            // They all go at the same time.
            body.send_older(client, Duration::ZERO);
        }
        let mut is_away = false;
        for (number, body) in bodies {
            body.settle(client);
            if is_away {
                continue;
            }
            let keeps = body.new.keeps(Duration::ZERO).0;
            let sent = if keeps { body.new.send(client) } else { Ok(()) };
            // The number of a file is its handle.
            let told = sent.and_then(|()| client.tell_written_to(Handle(number)));
            // The files do not all wait for a manager that does not answer.
            is_away = told.is_err_and(|error| !matches!(error.kind, ErrorKind::NotFound | ErrorKind::Denied));
        }
    }

    /// Records, when it is called, that files may have changed elsewhere.
    pub fn refresher(&self) -> impl Fn() + Send + use<> {
        let shared = self.shared.clone();
        move || shared.refresh()
    }

    /// End of the writes to a file that have not reached the servers yet, in bytes; 0 if there are none.
    pub fn pending_end(&self, number: INodeNo) -> u64 {
        self.body(number).map_or(0, |body| body.pending_end())
    }

    /// Whether a program has the file with this number open.
    pub fn is_open(&self, number: INodeNo) -> bool {
        self.state().bodies.contains_key(&number.0)
    }

    /// Whether a file was removed while it is open.
    pub fn is_removed(&self, number: INodeNo) -> bool {
        self.state().removed.contains_key(&number.0)
    }

    /// Records the hidden path of a file that was removed while it is open. Returns whether it is still open; then the
    /// last `close` returns that path.
    pub fn removed_at(&self, number: INodeNo, path: &str) -> bool {
        let mut state = self.state();
        let is_open = state.bodies.contains_key(&number.0);
        if is_open {
            state.removed.entry(number.0).or_default().push(path.into());
        }
        is_open
    }

    /// Closes a file. After the last `close` of a removed file, returns its hidden paths.
    pub fn close(&self, handle: FileHandle) -> Vec<String> {
        let Ok(open) = self.get(handle) else { return vec![] };
        // The writes go through this open file.
        open.body.settle(self.client());
        // The kernel flushes first, and the program got the error then.
        let _ = open.body.new.send(self.client());
        let mut state = self.state();
        if state.open.remove(&handle.0).is_none() {
            return vec![];
        }
        let is_last = !state.open.values().any(|other| other.number == open.number);
        let mut hidden = vec![];
        if is_last {
            state.bodies.remove(&open.number.0);
            hidden = state.removed.remove(&open.number.0).unwrap_or_default();
        }
        drop(state);
        self.client().close(open.file);
        hidden
    }

    /// All open files.
    pub fn handles(&self) -> Vec<FileHandle> {
        self.state().open.keys().copied().map(FileHandle).collect()
    }

    /// The length of an open file in bytes, as the servers know it.
    fn length(&self, open: &OpenFile) -> Result<u64> {
        let length = self.client().length(open.file)?;
        open.length.store(length, Ordering::Relaxed);
        *open.asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        Ok(length)
    }

    /// The length that the file is known to have had within a second; else 0. Another client may have shortened it.
    fn known_length(&self, open: &OpenFile) -> u64 {
        let asked = *open.asked.lock().unwrap_or_else(PoisonError::into_inner);
        let is_fresh = self.is_cached && asked.is_some_and(|asked| asked.elapsed() < FRESH);
        if is_fresh { open.length.load(Ordering::Relaxed) } else { 0 }
    }

    /// Reads at most `bytes` bytes into `target`, which is replaced. At the end of the file there are fewer. `flags` are
    /// those of open(2).
    pub fn read(
        &self,
        open: &OpenFile,
        flags: i32,
        offset: u64,
        bytes: u32,
        target: &mut Vec<u8>,
    ) -> Result<()> {
        // The version comes first: bytes that are read ahead must contain all changes up to it.
        let version = open.body.version();
        open.body.settle(self.client());
        let end = offset.saturating_add(bytes.into());
        if !self.is_cached || bytes as usize > MOST_BYTES || flags & libc::O_DIRECT != 0 {
            return self.read_now(open, offset, end, target);
        }
        let mut ahead = open.ahead.lock().unwrap_or_else(PoisonError::into_inner);
        ahead.keep(version);
        target.clear();
        let known = self.known_length(open);
        let source = self.source(open, known, version);
        ahead.take(&source, offset, end, target);
        let (follows, at) = (ahead.follows(offset, bytes.into()), offset + target.len() as u64);
        // At the end of the file, too: it may grow.
        ahead.next = at;
        if at == end || follows && self.read_ahead(open, source, &mut ahead, end, target)? {
            return Ok(());
        }
        ahead.forget();
        ahead.next = end;
        drop(ahead);
        self.read_now(open, offset, end, target)
    }

    fn source<'a>(&'a self, open: &OpenFile, length: u64, version: u64) -> Source<'a> {
        Source { client: self.client(), memory: &self.for_reads, file: open.file, length, version }
    }

    /// Reads a block from where the next read starts, and appends its bytes up to `end`. Returns `false` if there is no
    /// memory for it.
    fn read_ahead(
        &self,
        open: &OpenFile,
        mut source: Source<'_>,
        ahead: &mut Ahead,
        end: u64,
        target: &mut Vec<u8>,
    ) -> Result<bool> {
        let at = ahead.next;
        loop {
            let is_fresh = source.length < end;
            if is_fresh {
                source.length = self.length(open)?;
            }
            if source.length <= at {
                ahead.forget();
                return Ok(true);
            }
            match ahead.read(&source, at, end - at) {
                // Another client has made the file shorter.
                Err(error) if error.kind == ErrorKind::Truncated && !is_fresh => source.length = 0,
                Ok(true) => {
                    let before = target.len() as u64;
                    ahead.take(&source, at, end, target);
                    ahead.next = at + target.len() as u64 - before;
                    return Ok(true);
                }
                other => return other,
            }
        }
    }

    /// Reads the bytes from `offset` to `end`, or to the end of the file.
    fn read_now(&self, open: &OpenFile, offset: u64, end: u64, target: &mut Vec<u8>) -> Result<()> {
        let mut known = self.known_length(open);
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

    /// Writes bytes at an offset, or behind the last byte. `flags` are those of open(2). An error may be that of an
    /// earlier write.
    pub fn write(&self, open: &OpenFile, flags: i32, offset: u64, bytes: &[u8]) -> Result<()> {
        let too_large = || Error::invalid("need an end below 2^63; write at a smaller offset");
        let end = offset.checked_add(bytes.len() as u64).filter(|end| i64::try_from(*end).is_ok());
        let end = end.ok_or_else(too_large)?;
        open.body.report(&open.reported)?;
        let at_once = libc::O_APPEND | libc::O_DSYNC | libc::O_DIRECT;
        if self.is_cached && flags & at_once == 0 {
            let began = || self.wake();
            if open.body.gather(self.client(), &self.for_writes, open.file, (offset, bytes), began) {
                open.length.fetch_max(end, Ordering::Relaxed);
                open.body.new.written(end);
                return Ok(());
            }
        }
        open.body.settle(self.client());
        open.body.report(&open.reported)?;
        if flags & libc::O_APPEND == 0 {
            self.write_now(open, offset, bytes)?;
        } else {
            let _appending = open.body.appending.lock();
            self.write_now(open, self.length(open)?, bytes)?;
        }
        if flags & libc::O_DSYNC != 0 { self.sync(open) } else { Ok(()) }
    }

    fn write_now(&self, open: &OpenFile, offset: u64, bytes: &[u8]) -> Result<()> {
        // The file changes: no read may use bytes that were read ahead before this, or that arrive meanwhile.
        open.body.changes();
        let written = self.buffers.with(bytes.len(), |mut buffer| {
            buffer.copy_in(0, bytes);
            self.transfer(open, Operation::Write, offset, &buffer)
        });
        open.body.changes();
        written?;
        open.length.fetch_max(offset + bytes.len() as u64, Ordering::Relaxed);
        open.body.new.written(offset + bytes.len() as u64);
        Ok(())
    }

    /// Sets the length of a file.
    pub fn resize(&self, open: &OpenFile, length: u64) -> Result<()> {
        self.change_length(open, |client| client.set_length(open.file, length))
    }

    /// Reserves the space of the first `length` bytes of a file, and makes it so long if it is shorter.
    pub fn reserve(&self, open: &OpenFile, length: u64) -> Result<()> {
        self.change_length(open, |client| client.reserve(open.file, length))
    }

    fn change_length(&self, open: &OpenFile, change: impl FnOnce(&Client) -> Result<()>) -> Result<()> {
        open.body.settle(self.client());
        open.body.changes();
        let changed = change(self.client());
        open.body.changes();
        open.body.new.forget();
        self.shared.resized(open.number);
        changed
    }

    /// Returns once the servers have all writes. An error is that of an earlier write.
    pub fn flush(&self, open: &OpenFile) -> Result<()> {
        open.body.settle(self.client());
        let sent = open.body.new.send(self.client());
        if open.is_writable {
            open.body.report(&open.reported)?;
        }
        sent
    }

    /// Returns once all writes survive power loss. An error may be that of an earlier write.
    pub fn sync(&self, open: &OpenFile) -> Result<()> {
        let flushed = self.flush(open);
        flushed.and(self.client().submit_sync_after(open.file, &[]).finish())
    }

    fn transfer(&self, open: &OpenFile, operation: Operation, offset: u64, buffer: &Region) -> Result<()> {
        let regions = Regions::contiguous(offset, buffer.len() as u64)?;
        self.client().submit_regions(open.file, operation, regions, buffer.clone()).finish()
    }
}

#[cfg(test)]
mod tests;
