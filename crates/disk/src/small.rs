//! Small direct transfers, of which one system call performs several.

use std::fs::File;

use outcore_core::Buffer;
use outcore_memory::Region;

use crate::short_reads::SHORT_BYTES;
use crate::system::{MOST_RUNS_AT_ONCE, transfer_runs, vectors};

/// Direct transfers of at most this many bytes are combined with others. Longer ones keep a disk busy individually.
pub(crate) const SMALL_BYTES: usize = 512 << 10;

/// Bytes of adjacent transfers that one system call moves, at most.
pub(crate) const MOST_JOINED_BYTES: usize = 2 << 20;

/// A direct transfer between a file and memory.
#[derive(Clone, Copy)]
pub(crate) struct Direct<'a> {
    pub(crate) file: &'a File,
    pub(crate) region: &'a Region,
    pub(crate) offset: u64,
    pub(crate) write: bool,
}

impl Direct<'_> {
    /// Whether it has the size, and so few runs of memory, that it may be combined with others.
    pub(crate) fn is_small(region: &Region) -> bool {
        (1..=SMALL_BYTES).contains(&region.len()) && region.pointers().nth(MOST_RUNS_AT_ONCE).is_none()
    }

    pub(crate) fn is_short_read(&self) -> bool {
        !self.write && self.region.len() <= SHORT_BYTES
    }

    /// Whether this transfer begins where `before` ends.
    pub(crate) fn follows(&self, before: &Direct) -> bool {
        std::ptr::eq(self.file, before.file)
            && self.write == before.write
            && before.offset.checked_add(before.region.len() as u64) == Some(self.offset)
    }
}

/// Moves parts of a file that follow each other. Returns whether all bytes were moved.
pub(crate) fn transfer_joined(parts: &[Direct]) -> bool {
    let Some(first) = parts.first() else { return true };
    let runs: Vec<libc::iovec> = parts.iter().flat_map(|part| vectors(part.region)).collect();
    let bytes: usize = parts.iter().map(|part| part.region.len()).sum();
    transfer_runs(first.file, &runs, first.offset, first.write).is_ok_and(|moved| moved == bytes)
}
