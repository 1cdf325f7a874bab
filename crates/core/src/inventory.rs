//! What servers say of what they keep: for those who check a pool.

use crate::{Grant, Handle, Inode, Opened};

/// A place in the data files of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrubPlace {
    /// A data file: those before it, in the order of [`DataFile`]s, are done.
    pub handle: Handle,
    /// What of it is done, in bytes; more than it has is all of it.
    pub offset: u64,
}

/// A data file of an I/O server. They are in the order of the last byte of their handles, and then of their handles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFile {
    /// Which.
    pub handle: Handle,
    /// Bytes of the data file; `None`: there is none, only something that belongs to one.
    pub length: Option<u64>,
}

/// What there is of a data file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspection {
    /// The file.
    pub file: DataFile,
    /// Bytes of its checksums; `None`: there are none.
    pub sums_length: Option<u64>,
    /// The end of the last block past the end of the data file that has a checksum, in bytes; 0 if none has one, as it
    /// must be.
    pub summed_past_end: u64,
}

/// Bytes that are not what was written, as far as their server can tell.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damage {
    /// Whose data file.
    pub handle: Handle,
    /// The first of the bytes, in the data file.
    pub offset: u64,
    /// How many; 0: all of them.
    pub bytes: u64,
    /// What is wrong.
    pub what: String,
}

/// What came of a request to scrub.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrubbed {
    /// Where to go on; `None`: all is done.
    pub next: Option<ScrubPlace>,
    /// Data files that were come to the end of.
    pub files: u64,
    /// Bytes that were compared.
    pub bytes: u64,
    /// What was found.
    pub damage: Vec<Damage>,
}

/// What the manager knows of a handle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Known {
    /// A file, or a directory.
    Inode(Box<Inode>),
    /// A file without a name, with the right to remove its data files.
    Removed(Box<Opened>),
    /// No file has it, or will ever have it; with the right to remove data files of it.
    Gone(Grant),
    /// No file was given it yet.
    Unused,
}

/// A record of the manager that does not fit to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OddRecord {
    /// Of which file or directory.
    pub handle: Handle,
    /// What is wrong.
    pub what: String,
}
