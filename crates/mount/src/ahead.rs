//! Read-ahead: reads that follow each other get their bytes from requests that were sent before.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outcore_client::Ticket;
use outcore_core::{Buffer, FileId, Operation, Regions, Result};

use crate::Client;
use crate::buffers::{Lender, Lent, MOST_BYTES};

/// Bytes of the first read of several that follow each other. Each one after it is twice as long.
const FIRST_BYTES: u64 = 128 << 10;
/// Blocks of a descriptor, at most: one that is read, and those after it.
const MOST_BLOCKS: usize = 5;
/// Age at which bytes that were read ahead, and lengths, are dropped.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Bytes that one descriptor has read ahead.
pub(crate) struct Ahead {
    /// Where the next read starts if it follows the last one.
    pub next: u64,
    window: u64,
    /// The version of the file at the last read.
    seen: Option<u64>,
    /// Blocks in the order of the file, which follow each other.
    blocks: VecDeque<Block>,
}

/// An open file.
pub(crate) struct Source<'a> {
    pub client: &'a Client,
    pub memory: &'a Arc<Lender>,
    pub file: FileId,
    /// A length in bytes that the file is known to have had.
    pub length: u64,
    /// Its version before the pending writes were settled.
    pub version: u64,
}

struct Block {
    offset: u64,
    bytes: u64,
    memory: Lent,
    ticket: Ticket,
    /// The version of the file before the block was read.
    version: u64,
    since: Instant,
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.ticket.is_done() {
            self.memory.give_back();
        }
    }
}

impl Block {
    fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    /// Starts to read a block, unless there is no memory for it. It has about `window` bytes, and at least `need`.
    fn submit(from: &Source<'_>, offset: u64, need: u64, window: u64) -> Option<Self> {
        let bytes = (end_of_block(offset, need, window) - offset).min(from.length.saturating_sub(offset));
        let memory = from.memory.lend()?;
        let regions = Regions::contiguous(offset, bytes).ok()?;
        let since = Instant::now();
        let target = memory.part(0, bytes as usize);
        let ticket = from.client.submit_regions(from.file, Operation::Read, regions, target);
        Some(Self { offset, bytes, memory, ticket, version: from.version, since })
    }

    fn copy_out(&self, at: u64, to: &mut [u8]) {
        self.memory.part((at - self.offset) as usize, to.len()).copy_out(0, to);
    }
}

/// Where a block of about `window` bytes ends, at least `need` and at most `MOST_BYTES` bytes after `offset`. If possible,
/// later blocks start at a multiple of their length then, so that they are one stripe unit and not parts of two.
fn end_of_block(offset: u64, need: u64, window: u64) -> u64 {
    let least = offset + need.max(1);
    let down = (offset + window) / window * window;
    if down >= least { down } else { least.next_multiple_of(FIRST_BYTES).min(offset + MOST_BYTES as u64) }
}

impl Default for Ahead {
    fn default() -> Self {
        Self { next: 0, window: FIRST_BYTES, seen: None, blocks: VecDeque::new() }
    }
}

impl Ahead {
    /// Drops all bytes.
    pub fn forget(&mut self) {
        self.blocks.clear();
        self.window = FIRST_BYTES;
    }

    /// Drops bytes that are old, or were read before the file had this version. After a change, the next read is
    /// the first of its kind: programs that write between their reads would use little of each block.
    pub fn keep(&mut self, version: u64) {
        if self.seen.replace(version).is_some_and(|seen| seen != version) {
            self.forget();
            self.next = u64::MAX;
        }
        self.blocks.retain(|block| block.version == version && block.since.elapsed() < FRESH);
    }

    /// Whether a read of `bytes` bytes follows the last one. Those of several threads may pass each other.
    pub fn follows(&self, offset: u64, bytes: u64) -> bool {
        let is_large = bytes >= FIRST_BYTES;
        offset == self.next || is_large && offset.abs_diff(self.next) <= 2 * bytes
    }

    /// Appends the bytes from `offset` up to `end` to `target`, as far as they are here or coming.
    pub fn take(&mut self, from: &Source<'_>, mut offset: u64, end: u64, target: &mut Vec<u8>) {
        while offset < end {
            let is_here = |block: &Block| (block.offset..block.end()).contains(&offset);
            let Some(number) = self.blocks.iter().position(is_here) else { return };
            let block = &self.blocks[number];
            if block.ticket.finish().is_err() {
                // The caller reads the bytes itself, and gets the error.
                return self.blocks.truncate(number);
            }
            let (count, at) = (end.min(block.end()) - offset, target.len());
            target.resize(at + count as usize, 0);
            block.copy_out(offset, &mut target[at..]);
            offset += count;
            if number > 0 {
                // Another thread may be one block behind.
                self.blocks.drain(..number - 1);
                self.prefetch(from);
            }
        }
    }

    /// Reads the block at `offset`, of at least `need` bytes unless the file ends there. Returns `false` if there is no
    /// memory for it.
    pub fn read(&mut self, from: &Source<'_>, offset: u64, need: u64) -> Result<bool> {
        let Some(block) = Block::submit(from, offset, need, self.window) else { return Ok(false) };
        block.ticket.finish()?;
        self.blocks.clear();
        self.blocks.push_back(block);
        // One block says little: many programs read the head of a file only.
        if self.window > FIRST_BYTES {
            self.prefetch(from);
        }
        self.window = (2 * self.window.max(need)).min(MOST_BYTES as u64);
        Ok(true)
    }

    /// Starts to read the blocks after the current ones.
    fn prefetch(&mut self, from: &Source<'_>) {
        let most = if self.window < MOST_BYTES as u64 { 2 } else { MOST_BLOCKS };
        while let Some(end) = self.blocks.back().map(Block::end)
            && end < from.length
            && self.blocks.len() < most
        {
            // Without memory for it, the next read reads the block itself.
            let Some(block) = Block::submit(from, end, 0, self.window) else { return };
            self.blocks.push_back(block);
            self.window = (2 * self.window).min(MOST_BYTES as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_end_at_multiples_of_their_length() {
        let (kib, mib) = (1 << 10, 1 << 20);
        assert_eq!(end_of_block(0, 4 * kib, 128 * kib), 128 * kib);
        assert_eq!(end_of_block(4 * kib, 4 * kib, 128 * kib), 128 * kib);
        assert_eq!(end_of_block(0, mib - 32, 128 * kib), mib);
        assert_eq!(end_of_block(mib, 0, mib), 2 * mib);
        assert_eq!(end_of_block(mib - 1, 0, mib), mib);
        // A long read that starts between two multiples takes all that it needs.
        assert_eq!(end_of_block(100, mib, mib), mib + 100);
        assert_eq!(end_of_block(128 * kib - 1, 5, 128 * kib), 256 * kib);
    }
}
