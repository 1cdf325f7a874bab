//! Requests cut into pieces: whole blocks that go directly between the call's buffer and the disk, and groups of
//! partial blocks.

use std::ops::Range;

use outcore_core::LocalRuns;

use crate::io_server::blocks::format::{BLOCK_BYTES, DIRECT_BLOCKS, SCRATCH_BLOCKS};

/// A piece of a request with this many parts ends at the end of its current block.
pub(crate) const MANY_PARTS: usize = 4096;
/// Parts of one piece, at most. A block cannot contain more, unless some overlap.
const MAX_PARTS: usize = BLOCK_BYTES as usize;
/// Adjacent runs are joined up to this size.
const MAX_RUN_BYTES: u64 = 64 << 20;

/// Bytes of a data file, and their place in the call's buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub offset: u64,
    pub bytes: u64,
    pub at: u64,
}

/// The bytes transferred under one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Whole blocks, whose bytes begin at byte `at` of the call's buffer.
    Direct { blocks: Range<u64>, at: u64 },
    /// Parts of at most [`SCRATCH_BLOCKS`] blocks.
    Mixed { blocks: Range<u64>, parts: Vec<Part> },
}

impl Piece {
    /// End of the piece in the call's buffer.
    pub fn buffer_end(&self) -> u64 {
        match self {
            Self::Direct { blocks, at } => at + (blocks.end - blocks.start) * BLOCK_BYTES,
            Self::Mixed { parts, .. } => parts.iter().map(|part| part.at + part.bytes).max().unwrap_or(0),
        }
    }

    /// End of the piece in the data file.
    pub fn end(&self) -> u64 {
        match self {
            Self::Direct { blocks, .. } => blocks.end * BLOCK_BYTES,
            Self::Mixed { parts, .. } => parts.iter().map(|part| part.offset + part.bytes).max().unwrap_or(0),
        }
    }

    /// Number of its runs.
    pub fn parts(&self) -> usize {
        match self {
            Self::Direct { .. } => 1,
            Self::Mixed { parts, .. } => parts.len(),
        }
    }

    pub fn bytes(&self) -> u64 {
        match self {
            Self::Direct { blocks, .. } => (blocks.end - blocks.start) * BLOCK_BYTES,
            Self::Mixed { parts, .. } => parts.iter().map(|part| part.bytes).sum(),
        }
    }
}

/// The parts of a request. They are contiguous in its payload, in the order of the runs, whatever gaps the whole
/// request has.
pub(crate) fn parts_of(runs: LocalRuns) -> impl Iterator<Item = Part> {
    let mut at = 0;
    runs.map(move |run| {
        let part = Part { offset: run.offset, bytes: run.length, at };
        at += run.length;
        part
    })
}

/// The pieces that some parts form, in order.
pub(crate) struct Pieces<I> {
    parts: I,
    many: usize,
    run: Option<Part>,
    following: Option<Part>,
    mixed: Vec<Part>,
}

impl<I: Iterator<Item = Part>> Pieces<I> {
    /// A piece with `many` parts ends at the end of its current block.
    pub fn new(parts: I, many: usize) -> Self {
        Self { parts, many, run: None, following: None, mixed: Vec::new() }
    }

    fn next_run(&mut self) -> Option<Part> {
        let mut run = match self.following.take() {
            Some(run) => run,
            None => self.parts.next()?,
        };
        let follows =
            |run: &Part, part: &Part| (part.offset, part.at) == (run.offset + run.bytes, run.at + run.bytes);
        while run.bytes < MAX_RUN_BYTES {
            match self.parts.next() {
                Some(part) if follows(&run, &part) => run.bytes += part.bytes,
                other => {
                    self.following = other;
                    break;
                }
            }
        }
        Some(run)
    }

    fn mixed_piece(&mut self) -> Option<Piece> {
        let parts = std::mem::take(&mut self.mixed);
        let first = parts.iter().map(|part| part.offset / BLOCK_BYTES).min()?;
        let last = parts.iter().map(|part| (part.offset + part.bytes - 1) / BLOCK_BYTES).max()?;
        Some(Piece::Mixed { blocks: first..last + 1, parts })
    }
}

impl<I: Iterator<Item = Part>> Iterator for Pieces<I> {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        loop {
            let Some(run) = self.run.take().or_else(|| self.next_run()) else {
                return self.mixed_piece();
            };
            let block = run.offset / BLOCK_BYTES;
            let is_whole = run.offset.is_multiple_of(BLOCK_BYTES) && run.bytes >= BLOCK_BYTES;
            let taken = if is_whole {
                (run.bytes / BLOCK_BYTES).min(DIRECT_BLOCKS - block % DIRECT_BLOCKS) * BLOCK_BYTES
            } else {
                run.bytes.min(BLOCK_BYTES - run.offset % BLOCK_BYTES)
            };
            let is_full = self.mixed.last().is_some_and(|last| {
                let before = last.offset / BLOCK_BYTES;
                before / SCRATCH_BLOCKS != block / SCRATCH_BLOCKS
                    || (before != block && self.mixed.len() >= self.many)
                    || self.mixed.len() >= MAX_PARTS
            });
            if !self.mixed.is_empty() && (is_whole || is_full) {
                self.run = Some(run);
                return self.mixed_piece();
            }
            let rest = Part { offset: run.offset + taken, bytes: run.bytes - taken, at: run.at + taken };
            self.run = Some(rest).filter(|rest| rest.bytes > 0);
            if is_whole {
                return Some(Piece::Direct { blocks: block..block + taken / BLOCK_BYTES, at: run.at });
            }
            self.mixed.push(Part { bytes: taken, ..run });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::{Level, Nested, Regions, Stripes};
    use proptest::prelude::*;

    fn of_request(runs: LocalRuns) -> Pieces<impl Iterator<Item = Part>> {
        Pieces::new(parts_of(runs), MANY_PARTS)
    }

    #[test]
    fn a_ragged_run_is_whole_blocks_between_two_parts() {
        let regions = Regions::contiguous(BLOCK_BYTES - 10, 3 * BLOCK_BYTES).unwrap();
        let pieces: Vec<Piece> =
            of_request(regions.local_runs(Stripes::new(1 << 40, 1).unwrap(), 0)).collect();
        let part = |offset, bytes, at| Part { offset, bytes, at };
        assert_eq!(
            pieces,
            [
                Piece::Mixed { blocks: 0..1, parts: vec![part(BLOCK_BYTES - 10, 10, 0)] },
                Piece::Direct { blocks: 1..3, at: 10 },
                Piece::Mixed {
                    blocks: 3..4,
                    parts: vec![part(3 * BLOCK_BYTES, BLOCK_BYTES - 10, 2 * BLOCK_BYTES + 10)]
                },
            ]
        );
    }

    #[test]
    fn units_of_one_server_follow_each_other() {
        // 64 units of 64 KiB on 4 servers: 16 contiguous units on each server.
        let regions = Regions::contiguous(0, 64 * BLOCK_BYTES).unwrap();
        let pieces: Vec<Piece> =
            of_request(regions.local_runs(Stripes::new(BLOCK_BYTES, 4).unwrap(), 2)).collect();
        assert_eq!(pieces, [Piece::Direct { blocks: 0..16, at: 0 }]);
    }

    proptest! {
        #[test]
        fn pieces_are_the_bytes_in_order(
            offset in 0_u64..200_000, run_bytes in 1_u64..200_000, count in 1_u64..5, step in 0_u64..400_000,
            unit in 1_u64..100_000, servers in 1_u64..4,
        ) {
            let levels = vec![Level { count, step_bytes: step }];
            let regions = Regions::new(vec![Nested { offset, run_bytes, levels }]).unwrap();
            let stripes = Stripes::new(unit, servers).unwrap();
            for entry in 0..servers {
                let (mut expected, mut at) = (vec![], 0);
                for run in regions.local_runs(stripes, entry) {
                    expected.push((run.offset, run.length, at));
                    at += run.length;
                }
                let mut found: Vec<(u64, u64, u64)> = vec![];
                for piece in of_request(regions.local_runs(stripes, entry)) {
                    prop_assert!(piece.buffer_end() <= at);
                    match piece {
                        Piece::Direct { blocks, at } => {
                            prop_assert!(blocks.end - blocks.start <= DIRECT_BLOCKS);
                            prop_assert_eq!(blocks.start / DIRECT_BLOCKS, (blocks.end - 1) / DIRECT_BLOCKS);
                            found.push((blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES, at));
                        }
                        Piece::Mixed { blocks, parts } => {
                            prop_assert_eq!(blocks.start / SCRATCH_BLOCKS, (blocks.end - 1) / SCRATCH_BLOCKS);
                            for part in parts {
                                prop_assert!(part.offset >= blocks.start * BLOCK_BYTES);
                                prop_assert!(part.offset + part.bytes <= blocks.end * BLOCK_BYTES);
                                found.push((part.offset, part.bytes, part.at));
                            }
                        }
                    }
                }
                // Join adjacent entries of both lists before the comparison.
                let join = |list: Vec<(u64, u64, u64)>| {
                    let mut joined: Vec<(u64, u64, u64)> = vec![];
                    for (offset, bytes, at) in list {
                        match joined.last_mut() {
                            Some(last) if last.0 + last.1 == offset && last.2 + last.1 == at => last.1 += bytes,
                            _ => joined.push((offset, bytes, at)),
                        }
                    }
                    joined
                };
                prop_assert_eq!(join(found), join(expected));
            }
        }
    }
}
