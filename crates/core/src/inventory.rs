//! The servers' reports on their data, for programs that check a pool.

use crate::{Grant, Handle, Inode, Opened};

/// A place in the data files of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubPlace {
    /// A data file. All data files before it, in the order of [`DataFile`]s, are finished.
    pub handle: Handle,
    /// The finished bytes of this data file. A value beyond its length means that all are.
    pub offset: u64,
}

/// A data file of an I/O server. The order is by the last byte of the handle, then by the handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// The file's handle.
    pub handle: Handle,
    /// Length of the data file in bytes; `None` if it does not exist. A listing has such entries for handles that only
    /// have other files, such as checksums.
    pub length: Option<u64>,
}

/// The parts of a data file that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The file.
    pub file: DataFile,
    /// Length of its checksums in bytes; `None` if it has none.
    pub sums_length: Option<u64>,
    /// The end in bytes of the last block past the end of the data file that has a checksum. 0 means none, as
    /// it must be.
    pub summed_past_end: u64,
    /// The generation of the data file; 0 if it was never synced.
    pub generation: u64,
    /// Bytes of the data file past its end. No write explains them.
    pub surplus: u64,
    /// Whether the checksums on the disk are not those that were written last.
    pub sums_are_old: bool,
}

/// Bytes that differ from the written ones, as far as their server can detect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The handle of the data file.
    pub handle: Handle,
    /// The first damaged byte in the data file.
    pub offset: u64,
    /// Number of bytes; 0 means all.
    pub bytes: u64,
    /// A description of the damage.
    pub what: String,
}

/// The result of a scrub request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// The place to continue; `None` if everything is checked.
    pub next: Option<ScrubPlace>,
    /// Number of data files whose end was reached.
    pub files: u64,
    /// Number of compared bytes.
    pub bytes: u64,
    /// The damage found.
    pub damage: Vec<Damage>,
}

/// The manager's knowledge of a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// A file, or a directory.
    Inode(Box<Inode>),
    /// A file without a name, with a grant to remove its data files.
    Removed(Box<Opened>),
    /// A handle that no file has or will ever have, with a grant to remove data files of it.
    Gone(Grant),
    /// A handle that no file has received yet.
    Unused,
}

/// A record of the manager that contradicts other records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddRecord {
    /// The file or directory of the record.
    pub handle: Handle,
    /// A description of the contradiction.
    pub what: String,
}
