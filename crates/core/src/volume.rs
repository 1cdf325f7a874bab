//! The volume trait: a namespace of files on one disk or on many.

use crate::{Alignment, FileId, Hints, OnDone, OpenMode, Operation, Piece, Regions, Result};

/// One request to a volume. The bytes of the regions, in order, map to the bytes of the buffer, in order.
#[derive(Debug)]
pub struct VolumeRequest<B> {
    /// The file.
    pub file: FileId,
    /// The operation. A `Sync` has no regions and an empty buffer.
    pub operation: Operation,
    /// The bytes of the file; their number is the length of the buffer.
    pub regions: Regions,
    /// The memory.
    pub buffer: B,
}

/// The requests that cost a volume least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Preference {
    /// Reading a gap of at most this many bytes between two regions costs less than skipping it.
    pub read_gap_bytes: u64,
    /// Whether one request for many regions costs less than one request for each region.
    pub gathers: bool,
}

/// Reading this many bytes costs about as much as a system call, or a move of a disk's head.
const READ_GAP_BYTES: u64 = 128 << 10;

/// One name in a directory.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The name, without its directory.
    pub name: String,
    /// Whether the entry is a directory.
    pub is_directory: bool,
    /// Length in bytes (0 for a directory).
    pub length: u64,
}

/// A namespace of files. Paths are relative, with `/` between names; `..` and absolute paths are refused.
///
/// [`crate::conformance`] tests what every implementation must do.
pub trait Volume: Send + Sync {
    /// The memory that this volume moves.
    type Buffer;

    /// Opens or creates a file. Directories above a new file are created.
    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId>;

    /// Creates a file as [`OpenMode::Create`] does. On a volume of several disks, `hints` choose where the
    /// file lies.
    fn create(&self, path: &str, length: u64, reserve: bool, hints: Hints) -> Result<FileId> {
        let _ = hints;
        self.open(path, OpenMode::Create { length, reserve })
    }

    /// Alignment in bytes for large objects in a file, such as chunks. With it, a write to one object does
    /// not repeat work for its neighbour.
    fn slot_align_bytes(&self) -> u64 {
        4096
    }

    /// The requests that move arrays at the least cost.
    fn preference(&self) -> Preference {
        Preference { read_gap_bytes: READ_GAP_BYTES, gathers: false }
    }

    /// Forgets an open file.
    fn close(&self, file: FileId);

    /// Length in bytes of an open file.
    fn length(&self, file: FileId) -> Result<u64>;

    /// Starts a request; `done` is called exactly once. A successful transfer is complete: the volume
    /// continues after short reads and writes. Reading past the end is an error of kind `truncated`.
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

    /// The contents of a small file.
    fn read_small(&self, path: &str) -> Result<Vec<u8>>;

    /// Replaces a small file atomically and durably: after a crash the file has the old or the new content,
    /// whole.
    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// Appends to a small file and returns once the bytes survive power loss.
    fn append_small(&self, path: &str, bytes: &[u8]) -> Result<()>;

    /// The names in a directory, sorted.
    fn list(&self, path: &str) -> Result<Vec<Entry>>;

    /// Whether a file or directory of this name exists.
    fn exists(&self, path: &str) -> Result<bool>;

    /// Removes a file, or a directory with its contents.
    fn remove(&self, path: &str) -> Result<()>;

    /// Removes like [`Volume::remove`], but may return before the disk space is free. Requests that find the
    /// volume full wait for that space.
    fn remove_soon(&self, path: &str) -> Result<()> {
        self.remove(path)
    }

    /// Renames a file or directory; a file of the new name is replaced atomically.
    fn rename(&self, from: &str, to: &str) -> Result<()>;

    /// The time of the last known write to a file, in nanoseconds since 1970. Each write changes it.
    fn modified_ns(&self, path: &str) -> Result<u64>;

    /// Returns once all completed writes to a file, and the time of the last write, survive power loss.
    fn settle(&self, path: &str) -> Result<()>;

    /// Bytes that can still be written.
    fn free_bytes(&self) -> Result<u64>;
}
