//! Read-ahead: small reads that follow each other get their bytes from a larger one.

use std::time::{Duration, Instant};

use outcore_client::Ticket;
use outcore_core::{Buffer, FileId, Gather, Operation, Regions, Result};
use outcore_memory::Region;

use crate::Client;
use crate::behind::Slot;

/// Bytes of the first read of several that follow each other. Each one after it is twice as long.
const FIRST_BYTES: u64 = 128 << 10;
/// Bytes of a read, at most.
const MOST_BYTES: u64 = 1 << 20;
/// Age at which bytes that were read ahead, and lengths, are dropped.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Bytes that one descriptor has read ahead.
pub(crate) struct Ahead {
    /// Where the next read starts if it follows the last one.
    pub next: u64,
    window: u64,
    /// The version of the file at the last read.
    seen: Option<u64>,
    here: Option<Block>,
    coming: Option<(Block, Ticket)>,
    pub slot: Option<Slot>,
}

/// An open file.
pub(crate) struct Source<'a> {
    pub client: &'a Client,
    pub file: FileId,
    /// A length in bytes that the file is known to have had.
    pub length: u64,
    /// Its version before the pending writes were settled.
    pub version: u64,
}

struct Block {
    offset: u64,
    bytes: Region,
    /// The version of the file before the block was read.
    version: u64,
    since: Instant,
}

impl Block {
    fn end(&self) -> u64 {
        self.offset + self.bytes.len() as u64
    }

    fn submit(from: &Source<'_>, offset: u64, bytes: u64) -> Result<(Self, Ticket)> {
        let bytes = bytes.min(from.length.saturating_sub(offset));
        let memory = Region::allocate(bytes as usize)?;
        let block = Self { offset, bytes: memory, version: from.version, since: Instant::now() };
        let regions = Regions::contiguous(offset, bytes)?;
        let ticket = from.client.submit_regions(from.file, Operation::Read, regions, block.bytes.clone());
        Ok((block, ticket))
    }
}

impl Default for Ahead {
    fn default() -> Self {
        Self { next: 0, window: FIRST_BYTES, seen: None, here: None, coming: None, slot: None }
    }
}

impl Ahead {
    /// Drops all bytes.
    pub fn forget(&mut self) {
        (self.here, self.coming, self.slot) = (None, None, None);
        self.window = FIRST_BYTES;
    }

    /// Drops bytes that are old, or were read before the file had this version. After a change, the next read is
    /// the first of its kind: programs that write between their reads would use little of each block.
    pub fn keep(&mut self, version: u64) {
        if self.seen.replace(version).is_some_and(|seen| seen != version) {
            self.forget();
            self.next = u64::MAX;
        }
        let is_fresh = |block: &Block| block.version == version && block.since.elapsed() < FRESH;
        self.here.take_if(|block| !is_fresh(block));
        self.coming.take_if(|(block, _)| !is_fresh(block));
    }

    /// Appends the bytes from `offset` up to `end` to `target`, as far as they are here or coming.
    pub fn take(&mut self, from: &Source<'_>, mut offset: u64, end: u64, target: &mut Vec<u8>) {
        while offset < end {
            let here = self.here.as_ref().filter(|block| (block.offset..block.end()).contains(&offset));
            if let Some(block) = here {
                let (count, at) = (end.min(block.end()) - offset, target.len());
                target.resize(at + count as usize, 0);
                block.bytes.copy_out((offset - block.offset) as usize, &mut target[at..]);
                offset += count;
            } else if let Some((block, ticket)) = self.coming.take_if(|(block, _)| block.offset == offset)
                // Otherwise the caller reads the bytes itself, and gets the error.
                && ticket.finish().is_ok()
            {
                self.here = Some(block);
                self.prefetch(from);
            } else {
                return;
            }
        }
    }

    /// Reads the block at `offset`, of at least `need` bytes unless the file ends there.
    pub fn read(&mut self, from: &Source<'_>, offset: u64, need: u64) -> Result<()> {
        let (block, ticket) = Block::submit(from, offset, self.window.max(need))?;
        ticket.finish()?;
        self.here = Some(block);
        // One block says little: many programs read the head of a file only.
        if self.window > FIRST_BYTES {
            self.prefetch(from);
        }
        self.window = (2 * self.window).min(MOST_BYTES);
        Ok(())
    }

    /// Starts to read the block after the current one.
    fn prefetch(&mut self, from: &Source<'_>) {
        if let Some(end) = self.here.as_ref().map(Block::end)
            && end < from.length
        {
            // Without memory for it, the next read reads the block itself.
            self.coming = Block::submit(from, end, self.window).ok();
            self.window = (2 * self.window).min(MOST_BYTES);
        }
    }
}
