//! The volume seam: a namespace of files, on one disk or on many.

use crate::{Alignment, FileId, Hints, OnDone, OpenMode, Operation, Piece, Regions, Result};

/// One request to a volume: the regions of a file, in order, against the bytes of one buffer, in order.
#[derive(Debug)]
pub struct VolumeRequest<B> {
    /// The file.
    pub file: FileId,
    /// What to do; `Sync` has no regions and an empty buffer.
    pub operation: Operation,
    /// Which bytes of the file: as many as the buffer has.
    pub regions: Regions,
    /// The memory.
    pub buffer: B,
}

/// Which requests a volume does least work for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// A gap of at most so many bytes between two regions costs less to read than to leave out.
    pub read_gap_bytes: u64,
    /// Whether one request for many regions costs less than one for each of them.
    pub gathers: bool,
}

/// A system call, or a head that moves, costs what reading this much does.
const READ_GAP_BYTES: u64 = 128 << 10;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name, without its directory.
    pub name: String,
    /// Whether it is a directory.
    pub is_directory: bool,
    /// Length in bytes (0 for a directory).
    pub length: u64,
}

/// A namespace of files. Paths are relative, with `/` between names; `..` and absolute paths are refused.
///
/// What every implementation must do is written as code in [`crate::conformance`].
pub trait Volume: Send + Sync {
    /// The memory this volume moves.
    type Buffer;

    /// Opens or makes a file. Directories above a new file are made.
    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId>;

    /// Makes a file as [`OpenMode::Create`] does, laid out as `hints` say where files lie on several disks.
    fn create(&self, path: &str, length: u64, reserve: bool, hints: Hints) -> Result<FileId> {
        let _ = hints;
        self.open(path, OpenMode::Create { length, reserve })
    }

    /// Bytes to which a large thing in a file, such as a chunk, should be aligned, so that writing one next to it
    /// does no work twice.
    fn slot_align_bytes(&self) -> u64 {
        4096
    }

    /// Of which requests arrays are best moved by.
    fn preference(&self) -> Preference {
        Preference { read_gap_bytes: READ_GAP_BYTES, gathers: false }
    }

    /// Forgets an open file.
    fn close(&self, file: FileId);

    /// Length in bytes of an open file.
    fn length(&self, file: FileId) -> Result<u64>;

    /// Starts a request; `done` is called exactly once. A transfer that completes is complete: the volume goes
    /// on after short reads and writes, and reading past the end is an error of kind `truncated`.
    fn submit(&self, request: VolumeRequest<Self::Buffer>, done: OnDone<Self::Buffer>);

    /// See [`crate::Disk::read_mapped`].
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

    /// See [`crate::Disk::write_short`].
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

    /// See [`crate::Disk::alignment`].
    fn alignment(&self, file: FileId) -> Alignment;

    /// The whole of a small file.
    fn read_small(&self, path: &str) -> Result<Vec<u8>>;

    /// Replaces a small file atomically and durably: after a crash the old or the new content is there, whole.
    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Appends to a small file and returns once the bytes survive power loss.
    fn append_small(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// The names in a directory, sorted.
    fn list(&self, path: &str) -> Result<Vec<Entry>>;

    /// Whether a file or directory of this name exists.
    fn exists(&self, path: &str) -> Result<bool>;

    /// Removes a file, or a directory with all it holds.
    fn remove(&self, path: &str) -> Result<()>;

    /// Removes as [`Volume::remove`], which may return before the room is there again: requests to the volume wait for
    /// it where they find none.
    fn remove_soon(&self, path: &str) -> Result<()> {
        self.remove(path)
    }

    /// Renames a file or directory; a file of the new name is replaced atomically.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// Nanoseconds since 1970 at which a file was last written to, as far as is known: it differs after a write.
    fn modified_ns(&self, path: &str) -> Result<u64>;

    /// Returns once all completed writes to a file, and its time of the last one, survive power loss.
    fn settle(&self, path: &str) -> Result<()>;

    /// Bytes that can still be written.
    fn free_bytes(&self) -> Result<u64>;
}
