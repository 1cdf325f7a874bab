//! The blocks of data files: pieces of calls, locks, checksums, and access to the disk.

pub(crate) mod files;
pub(crate) mod format;
pub(crate) mod locks;
pub(crate) mod pieces;
pub(crate) mod removed;
pub(crate) mod resize;
pub(crate) mod room;
pub(crate) mod scratch;
pub(crate) mod sums;
pub(crate) mod transfer;
