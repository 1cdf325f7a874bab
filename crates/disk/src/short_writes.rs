//! Short runs of a file, written in order by one thread through the page cache.
//!
//! The system lets one thread at a time write to a file, so additional threads would only wait. A direct write of
//! a short run takes about 50 µs, a write to the page cache 1 µs.

use std::collections::VecDeque;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::{Mutex, MutexGuard, PoisonError};

use outcore_core::{OnDone, Piece, Run};
use outcore_memory::{Block, Region};

/// Runs that are at most this far apart are read from the disk together.
pub(crate) const GAP_BYTES: u64 = 128 << 10;

/// Runs of a file, and a buffer with their bytes.
pub(crate) struct ShortWrite {
    pub(crate) runs: Vec<Run>,
    pub(crate) buffer: Region,
    pub(crate) done: OnDone<Region>,
}

/// The pending writes of one file.
#[derive(Default)]
pub(crate) struct ShortWrites(Mutex<Queue>);

#[derive(Default)]
struct Queue {
    waiting: VecDeque<ShortWrite>,
    /// Whether a thread currently processes the queue.
    is_served: bool,
}

impl ShortWrites {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a write. Returns whether the caller must start a thread for the queue.
    pub(crate) fn add(&self, write: ShortWrite) -> bool {
        let mut queue = self.queue();
        queue.waiting.push_back(write);
        !std::mem::replace(&mut queue.is_served, true)
    }

    /// The next write for the thread that processes the queue. After `None`, that thread is done.
    pub(crate) fn next(&self) -> Option<ShortWrite> {
        let mut queue = self.queue();
        let next = queue.waiting.pop_front();
        queue.is_served = next.is_some();
        next
    }
}

/// The ranges of a file (start and end) that the system needs in memory to write runs: it reads the rest of pages
/// that a run fills only partially. Empty if all runs are whole pages.
pub(crate) fn needed(runs: &[Run], page_bytes: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let is_whole = |run: &Run| run.offset.is_multiple_of(page_bytes) && run.length.is_multiple_of(page_bytes);
    if runs.iter().all(is_whole) {
        return ranges;
    }
    for run in runs {
        let end = run.offset + run.length;
        match ranges.last_mut() {
            Some((_, last)) if run.offset >= *last && run.offset - *last <= GAP_BYTES => *last = end,
            _ => ranges.push((run.offset, end)),
        }
    }
    ranges
}

/// Writes the runs of a piece directly from a block of memory; their memory offsets count from byte `origin`.
/// Returns whether all of them were written.
pub(crate) fn write_piece(file: &File, piece: &Piece, memory: &Block, origin: i64) -> bool {
    let (mut low, mut high) = (origin + piece.memory_offset, origin + piece.memory_offset);
    for stride in &piece.strides {
        let reach = stride.memory * (stride.count as i64 - 1);
        if reach < 0 { low += reach } else { high += reach }
    }
    let bytes = piece.run_bytes as usize;
    if piece.inner > 0 || low < 0 || high as usize + bytes > memory.len() {
        return false;
    }
    let mut is_written = true;
    piece.for_each_run(|from, at| {
        if !is_written {
            return;
        }
        let start = memory.as_ptr().wrapping_offset((origin + at) as isize);
        // SAFETY: every run lies in the block, as checked above, and the system only reads it.
        let written = unsafe {
            libc::pwrite(file.as_raw_fd(), start.cast(), bytes, (piece.file_offset + from) as libc::off_t)
        };
        is_written = written == bytes as isize;
    });
    is_written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_that_lie_near_each_other_are_one_range() {
        let run = |offset, length| Run { offset, length, at: 0 };
        let far = 10_000 + GAP_BYTES;
        assert_eq!(
            needed(&[run(0, 100), run(9000, 1000), run(far + 1, 8)], 4096),
            [(0, 10_000), (far + 1, far + 9)]
        );
        assert_eq!(needed(&[run(0, 100), run(9000, 1000), run(far, 8)], 4096), [(0, far + 8)]);
        assert!(needed(&[run(4096, 8192), run(65536, 4096)], 4096).is_empty(), "nothing to be read");
    }

    #[test]
    fn one_thread_takes_what_waits() {
        let writes = ShortWrites::default();
        let write = || ShortWrite { runs: Vec::new(), buffer: Region::empty(), done: Box::new(|_| ()) };
        assert!(writes.add(write()));
        assert!(!writes.add(write()), "a thread is on its way");
        assert!(writes.next().is_some() && writes.next().is_some());
        assert!(!writes.add(write()), "it has not seen the end");
        assert!(writes.next().is_some() && writes.next().is_none());
        assert!(writes.add(write()));
    }
}
