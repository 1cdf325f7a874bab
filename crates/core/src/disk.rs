//! The disk seam: submit a request with an owned buffer, get the buffer back with the completion.

use crate::{Error, Packing, Piece, Result, Run, crc32c};

/// Memory that travels with a request. A buffer may be one run of bytes or several (scatter, gather). It is a
/// handle: a clone is another view of the same bytes.
pub trait Buffer: Clone + Send + 'static {
    /// Length in bytes.
    fn len(&self) -> usize;

    /// Whether there are no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Drops the first `bytes` bytes, so that the rest of a short transfer can be submitted again.
    fn advance(&mut self, bytes: usize);

    /// Keeps the first `bytes` bytes.
    fn truncate(&mut self, bytes: usize);

    /// Copies `from` into the buffer, starting `at` bytes from its start.
    fn copy_in(&mut self, at: usize, from: &[u8]);

    /// Copies bytes of the buffer, starting `at` bytes from its start, into `to`.
    fn copy_out(&self, at: usize, to: &mut [u8]);

    /// CRC-32C of `bytes` bytes of the buffer, starting `at` bytes from its start.
    fn crc32c(&self, at: usize, bytes: usize) -> u32 {
        let mut copy = vec![0; bytes];
        self.copy_out(at, &mut copy);
        crc32c(&copy)
    }

    /// Copies runs of `packed` into this buffer, from byte `at` of it on, or with `out` runs of this buffer into `packed`.
    /// There they follow each other from byte `from` on.
    fn copy_packed(&mut self, at: usize, packing: &Packing, packed: &mut Self, from: usize, out: bool) {
        packing.copy_by_runs(self, at, packed, from, out);
    }

    /// Makes the bytes from `from` on, up to `to`, zeros.
    fn zero(&mut self, from: usize, to: usize) {
        const ZEROS: [u8; 4096] = [0; 4096];
        for at in (from..to).step_by(ZEROS.len()) {
            self.copy_in(at, &ZEROS[..ZEROS.len().min(to - at)]);
        }
    }
}

/// A buffer that the client of a pool can make, and cut into what goes to each server.
pub trait Gather: Buffer {
    /// A buffer of `bytes` bytes of arbitrary content, outside of any budget: for what is small.
    fn allocate(bytes: usize) -> Result<Self>;

    /// A view of some runs of the bytes, each a start and a length, one after the other. No byte is copied. Starts
    /// must not descend, runs not overlap, and each must lie inside.
    fn gather(&self, runs: impl IntoIterator<Item = (usize, usize)>) -> Self;
}

/// An open file of a disk or a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileId(pub u64);

/// How a file is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenMode {
    /// Must exist; reads only.
    Read,
    /// Must exist; reads and writes.
    ReadWrite,
    /// Must not exist; made with room for `length` bytes that read as zeros.
    Create {
        /// Length in bytes.
        length: u64,
        /// Whether the room is taken from the disk now, so that later writes cannot find it full.
        reserve: bool,
    },
    /// Must exist; made longer or shorter. New bytes read as zeros.
    Resize {
        /// Length in bytes.
        length: u64,
        /// Whether their room is taken from the disk now, so that later writes cannot find it full.
        reserve: bool,
    },
}

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Fill the buffer from the file.
    Read,
    /// Put the buffer into the file.
    Write,
    /// Return once every completed write of the file survives power loss.
    Sync,
}

/// One request to a disk. `offset` is in bytes; a `Sync` carries an empty buffer.
#[derive(Debug)]
pub struct Request<B> {
    /// The file.
    pub file: FileId,
    /// What to do.
    pub operation: Operation,
    /// First byte in the file.
    pub offset: u64,
    /// The memory.
    pub buffer: B,
}

/// A finished request: its buffer, how many bytes were moved, and when the disk worked on it.
#[derive(Debug)]
pub struct Completion<B> {
    /// The buffer of the request.
    pub buffer: B,
    /// Bytes moved; fewer than asked for is allowed (the caller goes on with the rest), zero on a read means
    /// the file ended.
    pub result: Result<usize>,
    /// When the disk began, by its clock.
    pub started_ns: u64,
    /// When it was done.
    pub finished_ns: u64,
}

impl<B> Completion<B> {
    /// A completion that failed at once with `error`.
    pub fn failed(buffer: B, error: Error, now_ns: u64) -> Self {
        Self { buffer, result: Err(error), started_ns: now_ns, finished_ns: now_ns }
    }
}

/// Called once, on a thread of the disk's choosing, when a request is finished. It must not block.
pub type OnDone<B> = Box<dyn FnOnce(Completion<B>) + Send>;

/// Runs of a file shorter than this, on average, are written through the page cache rather than by direct I/O.
pub const SHORT_RUN_BYTES: u64 = 16 << 10;

/// Of what transfers must be multiples to skip the page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Bytes, for offset and length. No less than those for memory.
    pub offset_bytes: u64,
    /// Bytes, for addresses in memory.
    pub memory_bytes: u64,
}

impl Alignment {
    /// Any will do.
    pub const NONE: Self = Self { offset_bytes: 1, memory_bytes: 1 };

    /// What will do for both.
    #[must_use]
    pub fn max(self, other: Self) -> Self {
        Self {
            offset_bytes: self.offset_bytes.max(other.offset_bytes),
            memory_bytes: self.memory_bytes.max(other.memory_bytes),
        }
    }
}

/// A request, and who is told when it is done.
pub type Due<B> = (Request<B>, OnDone<B>);

/// Files in one directory tree on one disk.
///
/// Naming files is blocking (it is rare and small); moving bytes is not. Requests may finish in any order;
/// requests on overlapping bytes of one file are ordered only if the second is submitted after the first's
/// completion.
pub trait Disk: Send + Sync {
    /// The memory this disk moves.
    type Buffer: Buffer;

    /// Opens or makes the file `path`, relative to the disk's root.
    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId>;

    /// Forgets an open file. Requests in flight still finish.
    fn close(&self, file: FileId);

    /// Length of an open file in bytes.
    fn length(&self, file: FileId) -> Result<u64>;

    /// Starts a request. `done` is always called, exactly once.
    fn submit(&self, request: Request<Self::Buffer>, done: OnDone<Self::Buffer>);

    /// Starts several requests, as [`Self::submit`] does each: where there are many, at less cost.
    fn submit_all(&self, requests: Vec<Due<Self::Buffer>>) {
        for (request, done) in requests {
            self.submit(request, done);
        }
    }

    /// Reads pieces of an open file while the caller waits, out of the page cache, if this disk has one: short runs
    /// cost least so. `memory` is one run of bytes; the pieces' places in memory count from byte `origin` of it.
    /// Returns the pieces that it did not read, for requests, which also return the errors there are.
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

    /// Writes pieces of an open file while the caller waits, run by run through the page cache, if this disk has one.
    /// Memory is as in [`Self::read_mapped`]. Returns the pieces that it did not write, or not wholly, for requests,
    /// which also return the errors there are.
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

    /// Starts writing runs of an open file as one request, where this disk has a better way than a request for each.
    /// `buffer` has their bytes one after another, and `done` is told of all of them. Where it has none, it returns
    /// `done`, and has done nothing.
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

    /// What a transfer must be aligned to, to skip the page cache. Others are done too, more slowly.
    fn alignment(&self, file: FileId) -> Alignment;

    /// Bytes that can still be written.
    fn free_bytes(&self) -> Result<u64>;

    /// Bytes of the disk that an open file has already; 0 where the disk does not say.
    fn allocated_bytes(&self, file: FileId) -> Result<u64> {
        let _ = file;
        Ok(0)
    }
}
