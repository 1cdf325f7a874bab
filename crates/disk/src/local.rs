//! [`Disk`] on plain files: direct I/O where offset, length and memory are aligned, otherwise the page cache.

use std::collections::HashMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use outcore_core::{
    Alignment, Buffer, Clock, Completion, Disk, DiskSize, Due, Error, ErrorKind, FileId, OnDone, OpenMode,
    Operation, Piece, Request, Result, Run, SHORT_RUN_BYTES,
};
use outcore_memory::Region;

use crate::directory::Directory;
use crate::engine::{Engine, Job};
use crate::freeing::Freeing;
use crate::mapping::Mapping;
use crate::short_writes::{ShortWrite, ShortWrites, write_piece};
use crate::small::Direct;
use crate::system::{
    MonotonicClock, check_kind, describe, direct_alignment, drop_cached, memory_bytes, reserve, transfer,
};

/// A longer transfer through the page cache drops its pages afterwards.
const KEEP_CACHED_BYTES: usize = 1 << 20;

/// Runs of this length bypass the page cache if the file would not fit into it.
const LONG_RUN_BYTES: u64 = 64 << 10;

struct OpenFile {
    path: PathBuf,
    buffered: File,
    direct: Option<File>,
    /// Cleared when the kernel refuses an aligned direct transfer.
    direct_works: AtomicBool,
    alignment: Alignment,
    writable: bool,
    freeing: Arc<Freeing>,
    mapping: Mutex<Option<Arc<Mapping>>>,
    short_writes: ShortWrites,
}

/// A directory of plain files, served by the threads of its disk.
pub struct LocalDisk {
    directory: Directory,
    engine: Arc<Engine>,
    files: RwLock<HashMap<FileId, Arc<OpenFile>>>,
    next: AtomicU64,
}

impl LocalDisk {
    /// Serves the files below `directory`, with `threads` concurrent requests on this disk.
    pub fn new(directory: Directory, threads: usize) -> Result<Self> {
        let root = directory.root();
        let device = std::fs::metadata(root).map_err(|e| describe("look at", root, &e))?.dev();
        let engine =
            Engine::shared(device, threads).map_err(|e| describe("start the I/O threads for", root, &e))?;
        Ok(Self { directory, engine, files: RwLock::default(), next: AtomicU64::new(1) })
    }

    fn file(&self, file: FileId) -> Result<Arc<OpenFile>> {
        let files = self.files.read().unwrap_or_else(PoisonError::into_inner);
        files
            .get(&file)
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::Closed, "the file was closed; open it again"))
    }

    /// An open file, if this is the process whose threads can move its bytes.
    fn usable(&self, file: FileId) -> Result<Arc<OpenFile>> {
        let file = self.file(file)?;
        if self.engine.is_ours() {
            return Ok(file);
        }
        Err(Error::new(
            ErrorKind::Forked,
            "this array was opened in another process, and I/O threads do not survive a fork; \
             open the array again here, or start processes with the spawn method",
        ))
    }

    fn open_file(&self, path: &str, mode: OpenMode) -> Result<OpenFile> {
        let writable = mode != OpenMode::Read;
        let full = match mode {
            OpenMode::Create { .. } => self.directory.resolve_new(path)?,
            _ => self.directory.resolve(path)?,
        };
        let mut options = self.directory.making();
        options.read(true).write(writable).create_new(matches!(mode, OpenMode::Create { .. }));
        let opened = check_kind(&full).and_then(|()| options.open(&full));
        let buffered = opened.map_err(|e| describe("open", &full, &e))?;
        let size = match mode {
            OpenMode::Create { length, reserve } => Some((length, reserve)),
            OpenMode::Resize { length, reserve } => Some((length, reserve)),
            OpenMode::Read | OpenMode::ReadWrite => None,
        };
        if let Some((length, take)) = size {
            let free = self.directory.free_bytes()?;
            let taken = || {
                // If a program reserves more than is free, a file system may fill the disk before it refuses.
                let allocated = buffered.metadata()?.blocks() * 512;
                if take && length > allocated.saturating_add(free) {
                    return Err(std::io::Error::from_raw_os_error(libc::ENOSPC));
                }
                if take { reserve(&buffered, length) } else { Ok(()) }
            };
            if let Err(error) = buffered.set_len(length).and_then(|()| taken()) {
                if matches!(mode, OpenMode::Create { .. }) {
                    let _ = std::fs::remove_file(&full);
                }
                let mut error = describe("make", &full, &error);
                if error.kind == ErrorKind::DiskFull {
                    error.message = format!(
                        "need {length} bytes on disk for {}; {free} are free; free some room or choose another directory",
                        full.display()
                    );
                }
                return Err(error);
            }
        }
        // This makes the name durable. The length becomes durable when the caller syncs the file.
        if matches!(mode, OpenMode::Create { .. }) {
            self.directory.sync_above(&full)?;
        }
        let alignment = direct_alignment(&buffered);
        let direct = alignment.and_then(|_| {
            OpenOptions::new().read(true).write(writable).custom_flags(libc::O_DIRECT).open(&full).ok()
        });
        let alignment = direct.as_ref().and(alignment).unwrap_or(Alignment::NONE);
        let direct_works = AtomicBool::new(direct.is_some());
        let freeing = self.directory.freeing().clone();
        let (mapping, short_writes) = (Mutex::default(), ShortWrites::default());
        Ok(OpenFile {
            path: full,
            buffered,
            direct,
            direct_works,
            alignment,
            writable,
            freeing,
            mapping,
            short_writes,
        })
    }
}

impl OpenFile {
    fn direct_for(&self, offset: u64, region: &Region) -> Option<&File> {
        let direct = self.direct.as_ref().filter(|_| self.direct_works.load(Ordering::Relaxed))?;
        // Requests split runs of memory at their ends, so each run must also be a multiple of whole blocks.
        let aligned = offset.is_multiple_of(self.alignment.offset_bytes)
            && region.pointers().all(|(start, bytes)| {
                (start as u64).is_multiple_of(self.alignment.memory_bytes)
                    && (bytes as u64).is_multiple_of(self.alignment.offset_bytes)
            });
        aligned.then_some(direct)
    }

    /// The file mapped for reading, if that is possible.
    fn mapping(&self) -> Option<Arc<Mapping>> {
        let mut mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        if mapping.as_ref().is_none_or(|found| found.is_worn()) {
            let bytes = self.buffered.metadata().ok()?.len();
            *mapping = Mapping::new(&self.buffered, bytes).map(Arc::new);
        }
        mapping.clone()
    }

    fn read_mapped(&self, pieces: Vec<Piece>, memory: &Region, origin: usize) -> Vec<Piece> {
        let (Some((block, start)), Some(mapping)) = (memory.in_one_run(), self.mapping()) else {
            return pieces;
        };
        // A file of at most half the memory stays in the page cache until it is read again. For larger files the
        // cache is useless.
        let stays_cached = mapping.bytes() <= memory_bytes() / 2;
        let is_long = |piece: &Piece| !stays_cached && piece.run_bytes >= LONG_RUN_BYTES;
        let (mut left, short): (Vec<Piece>, Vec<Piece>) = pieces.into_iter().partition(is_long);
        let ahead = self.writable.then_some(&self.buffered);
        left.extend(mapping.copy(ahead, short, block, start + origin as i64));
        left
    }

    fn write_short(&self, pieces: Vec<Piece>, memory: &Region, origin: usize) -> Vec<Piece> {
        let Some((block, start)) = memory.in_one_run().filter(|_| self.writable) else { return pieces };
        let mapping = self.mapping();
        let is_left = |piece: &Piece| {
            if let Some(mapping) = &mapping {
                mapping.ask_to_write(&self.buffered, piece);
            }
            !write_piece(&self.buffered, piece, block, start + origin as i64)
        };
        pieces.into_iter().filter(is_left).collect()
    }

    /// Writes runs through the page cache, beginning with the first bytes of `buffer`. Returns the number of bytes
    /// written.
    fn write_cached(&self, runs: &[Run], buffer: &Region) -> Result<usize> {
        if let Some(mapping) = self.mapping() {
            mapping.ask_for_runs(&self.buffered, runs);
        }
        let mut moved = 0;
        for run in runs {
            let end = run.at + run.length;
            let mut at = run.at;
            while at < end {
                let rest = buffer.part(at as usize, (end - at) as usize);
                let offset = run.offset + (at - run.at);
                let once = || {
                    transfer(&self.buffered, &rest, offset, true)
                        .map_err(|e| describe("write", &self.path, &e))
                };
                match self.freeing.with_room(once)? {
                    0 => return Err(self.took_none(offset)),
                    some => at += some as u64,
                }
            }
            moved += run.length as usize;
        }
        Ok(moved)
    }

    fn took_none(&self, offset: u64) -> Error {
        let path = self.path.display();
        Error::new(
            ErrorKind::Io,
            format!(
                "cannot write {path} at offset {offset}: the disk took no byte; check the disk and the system log"
            ),
        )
    }

    fn run(&self, operation: Operation, offset: u64, region: &Region) -> Result<usize> {
        self.freeing.with_room(|| self.run_once(operation, offset, region))
    }

    fn run_once(&self, operation: Operation, offset: u64, region: &Region) -> Result<usize> {
        if operation == Operation::Sync {
            return self.buffered.sync_data().map(|()| 0).map_err(|e| describe("sync", &self.path, &e));
        }
        let write = operation == Operation::Write;
        if write && !self.writable {
            return Err(Error::new(
                ErrorKind::ReadOnly,
                format!("{} is open for reading only; open it with mode=\"r+\"", self.path.display()),
            ));
        }
        let doing = if write { "write" } else { "read" };
        if let Some(direct) = self.direct_for(offset, region) {
            match transfer(direct, region, offset, write) {
                Ok(moved) => return Ok(moved),
                Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {
                    self.direct_works.store(false, Ordering::Relaxed);
                }
                Err(e) => return Err(describe(doing, &self.path, &e)),
            }
        }
        let moved =
            transfer(&self.buffered, region, offset, write).map_err(|e| describe(doing, &self.path, &e))?;
        if moved >= KEEP_CACHED_BYTES {
            drop_cached(&self.buffered, offset, moved as u64);
        }
        Ok(moved)
    }
}

/// A queued request.
struct Transfer {
    file: Arc<OpenFile>,
    request: Request<Region>,
    /// Whether this is a small direct transfer.
    is_small: bool,
    done: OnDone<Region>,
}

impl Transfer {
    fn new(file: Arc<OpenFile>, request: Request<Region>, done: OnDone<Region>) -> Self {
        let is_allowed = match request.operation {
            Operation::Read => true,
            Operation::Write => file.writable,
            Operation::Sync => false,
        };
        let is_small = is_allowed
            && Direct::is_small(&request.buffer)
            && file.direct_for(request.offset, &request.buffer).is_some();
        Self { file, request, is_small, done }
    }
}

impl Job for Transfer {
    fn run(self: Box<Self>) {
        let Self { file, request, done, .. } = *self;
        let started_ns = MonotonicClock.now_ns();
        let result = file.run(request.operation, request.offset, &request.buffer);
        let finished_ns = MonotonicClock.now_ns();
        done(Completion { buffer: request.buffer, result, started_ns, finished_ns });
    }

    fn small(&self) -> Option<Direct<'_>> {
        let file = self.file.direct.as_ref().filter(|_| self.is_small)?;
        let Request { offset, buffer: region, operation, .. } = &self.request;
        Some(Direct { file, region, offset: *offset, write: *operation == Operation::Write })
    }

    fn moved(self: Box<Self>, bytes: usize, started_ns: u64) {
        let finished_ns = MonotonicClock.now_ns();
        let buffer = self.request.buffer;
        (self.done)(Completion { buffer, result: Ok(bytes), started_ns, finished_ns });
    }
}

/// Writes the pending short writes of a file until none are left.
struct ShortWriter(Arc<OpenFile>);

impl Job for ShortWriter {
    fn run(self: Box<Self>) {
        while let Some(ShortWrite { runs, buffer, done }) = self.0.short_writes.next() {
            let started_ns = MonotonicClock.now_ns();
            let result = self.0.write_cached(&runs, &buffer);
            done(Completion { buffer, result, started_ns, finished_ns: MonotonicClock.now_ns() });
        }
    }
}

impl Disk for LocalDisk {
    type Buffer = Region;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        let file = Arc::new(self.directory.freeing().with_room(|| self.open_file(path, mode))?);
        let id = FileId(self.next.fetch_add(1, Ordering::Relaxed));
        self.files.write().unwrap_or_else(PoisonError::into_inner).insert(id, file);
        Ok(id)
    }

    fn close(&self, file: FileId) {
        self.files.write().unwrap_or_else(PoisonError::into_inner).remove(&file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        let file = self.file(file)?;
        Ok(file.buffered.metadata().map_err(|e| describe("look at", &file.path, &e))?.len())
    }

    fn submit(&self, request: Request<Region>, done: OnDone<Region>) {
        self.submit_all(vec![(request, done)]);
    }

    fn submit_all(&self, requests: Vec<Due<Region>>) {
        let mut jobs: Vec<Box<dyn Job>> = Vec::with_capacity(requests.len());
        let mut last: Option<(FileId, Arc<OpenFile>)> = None;
        for (request, done) in requests {
            let file = match &last {
                Some((id, file)) if *id == request.file => Ok(file.clone()),
                _ => self.usable(request.file),
            };
            match file {
                Ok(file) => {
                    last = Some((request.file, file.clone()));
                    jobs.push(Box::new(Transfer::new(file, request, done)));
                }
                Err(error) => done(Completion::failed(request.buffer, error, MonotonicClock.now_ns())),
            }
        }
        self.engine.run(jobs);
    }

    fn read_mapped(&self, file: FileId, pieces: Vec<Piece>, memory: &Region, origin: usize) -> Vec<Piece> {
        match self.usable(file) {
            Ok(file) => file.read_mapped(pieces, memory, origin),
            Err(_) => pieces,
        }
    }

    fn write_short(&self, file: FileId, pieces: Vec<Piece>, memory: &Region, origin: usize) -> Vec<Piece> {
        match self.usable(file) {
            Ok(file) => file.write_short(pieces, memory, origin),
            Err(_) => pieces,
        }
    }

    fn write_runs(
        &self,
        file: FileId,
        runs: &[Run],
        buffer: &Region,
        done: OnDone<Region>,
    ) -> Option<OnDone<Region>> {
        let usable = self.usable(file).ok().filter(|file| file.writable);
        let Some(file) = usable.filter(|_| (buffer.len() as u64) < SHORT_RUN_BYTES * runs.len() as u64)
        else {
            return Some(done);
        };
        let write = ShortWrite { runs: runs.to_vec(), buffer: buffer.clone(), done };
        if file.short_writes.add(write) {
            self.engine.run(vec![Box::new(ShortWriter(file))]);
        }
        None
    }

    fn alignment(&self, file: FileId) -> Alignment {
        self.file(file).map_or(Alignment::NONE, |file| file.alignment)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.directory.free_bytes()
    }

    fn size(&self) -> Result<DiskSize> {
        self.directory.size()
    }

    fn allocated_bytes(&self, file: FileId) -> Result<u64> {
        let file = self.file(file)?;
        Ok(file.buffered.metadata().map_err(|e| describe("look at", &file.path, &e))?.blocks() * 512)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use outcore_memory::Arena;

    fn region(bytes: &[u8]) -> Region {
        let mut region = Region::whole(Arc::new(Arena::new(1 << 24).allocate(bytes.len()).unwrap()));
        region.copy_in(0, bytes);
        region
    }

    /// Performs several requests at once. Returns the number of bytes that each moved, and its buffer's content.
    fn run(disk: &LocalDisk, requests: Vec<Request<Region>>) -> Vec<(Result<usize>, Vec<u8>)> {
        let (sender, receiver) = mpsc::channel();
        let count = requests.len();
        for (number, request) in requests.into_iter().enumerate() {
            let sender = sender.clone();
            disk.submit(request, Box::new(move |done| sender.send((number, done)).unwrap()));
        }
        let mut all: Vec<_> = receiver.iter().take(count).collect();
        all.sort_by_key(|(number, _)| *number);
        let found = |done: Completion<Region>| {
            let mut bytes = vec![0; done.buffer.len()];
            done.buffer.copy_out(0, &mut bytes);
            (done.result, bytes)
        };
        all.into_iter().map(|(_, done)| found(done)).collect()
    }

    fn read(file: FileId, offset: u64, bytes: usize) -> Request<Region> {
        Request { file, operation: Operation::Read, offset, buffer: region(&vec![0xEE; bytes]) }
    }

    #[test]
    fn a_file_system_without_direct_io_is_read_through_the_page_cache() {
        // This file system refuses direct I/O, and reports no alignment for it.
        let disk = LocalDisk::new(Directory::new("/proc/sys/kernel").unwrap(), 2).unwrap();
        let file = disk.open("ostype", OpenMode::Read).unwrap();
        let open = disk.file(file).unwrap();
        let unknown = Alignment { offset_bytes: 4096, memory_bytes: 4096 };
        assert_eq!(direct_alignment(&open.buffered), Some(unknown), "nothing is known");
        assert!(open.direct.is_none());
        assert_eq!(disk.alignment(file), Alignment::NONE, "nothing needs to be aligned");
        let (moved, bytes) = run(&disk, vec![read(file, 0, 4096)]).remove(0);
        assert_eq!((moved, &bytes[..6]), (Ok(6), &b"Linux\n"[..]));
    }

    #[test]
    fn direct_transfers_that_are_refused_go_through_the_page_cache() {
        let root = tempfile::tempdir().unwrap();
        let disk = LocalDisk::new(Directory::new(root.path()).unwrap(), 2).unwrap();
        let bytes: Vec<u8> = (0..300_000_u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let write =
            |file| vec![Request { file, operation: Operation::Write, offset: 3, buffer: region(&bytes) }];
        let long = |file| vec![read(file, 5, 200_000)];
        let short = |file| (0..40).map(|i| read(file, 7 + 1000 * i, 999)).collect::<Vec<_>>();
        for first in [0, 1, 2] {
            let create = OpenMode::Create { length: 400_000, reserve: true };
            let name = format!("f{first}");
            let mut open = disk.open_file(&name, create).unwrap();
            if first > 0 {
                std::fs::write(root.path().join(&name), [&[0; 3][..], &bytes].concat()).unwrap();
            }
            // Pretend that less alignment is required than actually is.
            open.alignment = Alignment::NONE;
            let (open, file) = (Arc::new(open), FileId(100 + first));
            disk.files.write().unwrap().insert(file, open.clone());
            let requests = [write(file), long(file), short(file)].into_iter().nth(first as usize).unwrap();
            let places: Vec<_> = requests.iter().map(|r| (r.offset as usize - 3, r.buffer.len())).collect();
            for ((moved, found), (from, length)) in run(&disk, requests).into_iter().zip(places) {
                assert_eq!(moved, Ok(length));
                assert!(found == bytes[from..from + length], "{first}");
            }
            assert!(!open.direct_works.load(Ordering::Relaxed), "once is enough");
            let content = std::fs::read(root.path().join(&name)).unwrap();
            assert!(content[3..300_003] == bytes);
        }
    }
}
