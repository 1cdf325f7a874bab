//! The disk trait: a request owns its buffer, and the completion returns the buffer.

use crate::{Error, Packing, Piece, Result, Run, crc32c};

/// Memory that travels with a request. A buffer may be one run of bytes or several (scatter, gather). It is a
/// handle: a clone is another view of the same bytes.
pub trait Buffer: Clone + Send + 'static {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether the buffer has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the first `bytes` bytes, so that the caller can submit the rest of a short transfer again.
    fn advance(&mut self, bytes: usize);

    /// Keeps only the first `bytes` bytes.
    fn truncate(&mut self, bytes: usize);

    /// Copies `from` into the buffer, at byte `at`.
    fn copy_in(&mut self, at: usize, from: &[u8]);

    /// Copies bytes of the buffer, from byte `at`, into `to`.
    fn copy_out(&self, at: usize, to: &mut [u8]);

    /// CRC-32C of `bytes` bytes of the buffer, from byte `at`.
    fn crc32c(&self, at: usize, bytes: usize) -> u32 {
        let mut copy = vec![0; bytes];
        self.copy_out(at, &mut copy);
        crc32c(&copy)
    }

    /// Copies the runs of `packing` between this buffer, from byte `at`, and `packed`, where the runs are
    /// contiguous from byte `from`. With `out`, copies from this buffer into `packed`; otherwise from
    /// `packed` into this buffer.
    fn copy_packed(&mut self, at: usize, packing: &Packing, packed: &mut Self, from: usize, out: bool) {
        packing.copy_by_runs(self, at, packed, from, out);
    }

    /// Fills the bytes `from..to` with zeros.
    fn zero(&mut self, from: usize, to: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (from..to).step_by(ZEROS.len()) {
            self.copy_in(at, &ZEROS[..ZEROS.len().min(to - at)]);
        }
    }
}

/// A buffer that the client of a pool can allocate and divide among servers.
pub trait Gather: Buffer {
    /// Allocates a small buffer of `bytes` bytes, outside of any budget. Its content is arbitrary.
    fn allocate(bytes: usize) -> Result<Self>;

    /// A view of some runs of the bytes, each a start and a length, in order. It copies nothing. The starts
    /// must not descend, and the runs must lie inside the buffer and not overlap.
    fn gather(&self, runs: impl IntoIterator<Item = (usize, usize)>) -> Self;
}

/// An open file of a disk or a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// The file must exist. Reads only.
    Read,
    /// The file must exist. Reads and writes.
    ReadWrite,
    /// The file must not exist. It is created with `length` bytes that read as zeros.
    Create {
        /// Length in bytes.
        length: u64,
        /// Whether to allocate the disk space now, so that later writes cannot fail on a full disk.
        reserve: bool,
    },
    /// The file must exist. It becomes longer or shorter; new bytes read as zeros.
    Resize {
        /// Length in bytes.
        length: u64,
        /// Whether to allocate the space of new bytes now, so that later writes cannot fail on a full disk.
        reserve: bool,
    },
}

/// The kind of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffer from the file.
    Read,
    /// Write the buffer to the file.
    Write,
    /// Return once every completed write to the file survives power loss.
    Sync,
}

/// One request to a disk. `offset` is in bytes; a `Sync` carries an empty buffer.
#[derive(Debug)]
pub struct Request<B> {
    /// The file.
    pub file: FileId,
    /// The operation.
    pub operation: Operation,
    /// First byte in the file.
    pub offset: u64,
    /// The memory.
    pub buffer: B,
}

/// A finished request: its buffer, the number of bytes moved, and the times of the transfer.
#[derive(Debug)]
pub struct Completion<B> {
    /// The buffer of the request.
    pub buffer: B,
    /// Bytes moved. After a short transfer the caller submits the rest. A read of zero bytes means the end of
    /// the file.
    pub result: Result<usize>,
    /// When the disk started, by its clock.
    pub started_ns: u64,
    /// When the disk finished.
    pub finished_ns: u64,
}

impl<B> Completion<B> {
    /// Completion of a request that failed immediately with `error`.
    pub fn failed(buffer: B, error: Error, now_ns: u64) -> Self {
        Self { buffer, result: Err(error), started_ns: now_ns, finished_ns: now_ns }
    }
}

/// Size of the file system of a disk. All are 0 if it does not report them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskSize {
    /// Bytes, free or not.
    pub total_bytes: u64,
    /// Files, existing and possible.
    pub total_files: u64,
    /// Files that can still be created.
    pub free_files: u64,
}

/// Completion callback: called once, on a thread that the disk chooses. It must not block.
pub type OnDone<B> = Box<dyn FnOnce(Completion<B>) + Send>;

/// If a file's runs are shorter than this on average, writes go through the page cache instead of direct I/O.
pub const SHORT_RUN_BYTES: u64 = 16 << 10;

/// The alignment that a transfer needs to bypass the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Alignment of offset and length in bytes; at least `memory_bytes`.
    pub offset_bytes: u64,
    /// Alignment of memory addresses in bytes.
    pub memory_bytes: u64,
}

impl Alignment {
    /// Any alignment will do.
    pub const NONE: Self = Self { offset_bytes: 1, memory_bytes: 1 };

    /// The alignment that satisfies both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            offset_bytes: self.offset_bytes.max(other.offset_bytes),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// A request and its completion callback.
pub type Due<B> = (Request<B>, OnDone<B>);

/// Files in one directory tree on one disk.
///
/// Naming files blocks (it is rare and small); moving bytes does not. Requests may finish in any order. Two
/// requests on overlapping bytes of one file are ordered only if the second is submitted after the first
/// completed.
pub trait Disk: Send + Sync {
    /// The memory that this disk moves.
    type Buffer: Buffer;

    /// Opens or creates the file `path`, relative to the disk's root.
    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId>;

    /// Closes an open file. Requests in flight still finish.
    fn close(&self, file: FileId);

    /// Length of an open file in bytes.
    fn length(&self, file: FileId) -> Result<u64>;

    /// Starts a request. `done` is called exactly once.
    fn submit(&self, request: Request<Self::Buffer>, done: OnDone<Self::Buffer>);

    /// Starts several requests, each as [`Self::submit`] does. For many requests this costs less.
    fn submit_all(&self, requests: Vec<Due<Self::Buffer>>) {
        for (request, done) in requests {
            self.submit(request, done);
        }
    }

    /// Reads pieces of an open file from the page cache while the caller waits, if this disk has one. Short
    /// runs cost least this way. `memory` is one run of bytes; the pieces' memory offsets count from its byte
    /// `origin`. Returns the pieces that it did not read. The caller reads those by requests, which also
    /// report errors.
    fn read_mapped(
        &self,
        file: FileId,
        pieces: Vec<Piece>,
        memory: &Self::Buffer,
        origin: usize,
    ) -> Vec<Piece> {
        let _ = (file, memory, origin);
        pieces
    }

    /// Writes pieces of an open file through the page cache, run by run, while the caller waits, if this disk
    /// has one. `memory` is as in [`Self::read_mapped`]. Returns the pieces that it did not write, or wrote
    /// only in part. The caller writes those by requests, which also report errors.
    fn write_short(
        &self,
        file: FileId,
        pieces: Vec<Piece>,
        memory: &Self::Buffer,
        origin: usize,
    ) -> Vec<Piece> {
        let _ = (file, memory, origin);
        pieces
    }

    /// Starts one request that writes several runs of an open file, if this disk can do that at less cost
    /// than a request for each. `buffer` contains the bytes of the runs in order, and `done` gets one
    /// completion for all of them. A disk that cannot do that returns `done` and does nothing.
    fn write_runs(
        &self,
        file: FileId,
        runs: &[Run],
        buffer: &Self::Buffer,
        done: OnDone<Self::Buffer>,
    ) -> Option<OnDone<Self::Buffer>> {
        let _ = (file, runs, buffer);
        Some(done)
    }

    /// The alignment that a transfer needs to bypass the page cache. Other transfers work too, more slowly.
    fn alignment(&self, file: FileId) -> Alignment;

    /// Bytes that can still be written.
    fn free_bytes(&self) -> Result<u64>;

    /// Size of the file system.
    fn size(&self) -> Result<DiskSize> {
        Ok(DiskSize::default())
    }

    /// Bytes of disk space that an open file occupies; 0 if the disk does not report it.
    fn allocated_bytes(&self, file: FileId) -> Result<u64> {
        let _ = file;
        Ok(0)
    }
}
