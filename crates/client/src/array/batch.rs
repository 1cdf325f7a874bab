//! Batches of extents in one request: in place if they have few runs of memory, otherwise through a bounce
//! buffer.

use std::sync::Arc;

use outcore_core::{Buffer, Nested, Operation, Piece, Regions, Result};
use outcore_memory::{Block, Level, Region, Segment, copy_strided};

use crate::array::piece::{MAX_SEGMENTS, MIN_BOUNCE_BYTES, add_segments};
use crate::{ArrayFile, Memory, Ticket};

/// A piece of this size is worth a request of its own.
const ALONE_BYTES: u64 = 256 << 10;

/// A piece, and the memory of its box.
pub(crate) type Share = (Piece, Memory);

/// The runs of memory of a batch.
#[derive(Default)]
struct Runs {
    count: u64,
    block: Option<Arc<Block>>,
    /// Whether the runs have gaps in the file, or lie in several blocks.
    are_apart: bool,
}

impl Runs {
    fn with(&self, piece: &Piece, memory: &Memory) -> Self {
        let is_other = self.block.as_ref().is_some_and(|block| !Arc::ptr_eq(block, &memory.block));
        Self {
            count: self.count + piece.runs(),
            block: Some(memory.block.clone()),
            are_apart: self.are_apart || piece.has_gaps || is_other,
        }
    }

    /// Whether a request can take the runs in place.
    fn are_few(&self) -> bool {
        self.count <= MAX_SEGMENTS && !self.are_apart
    }
}

impl ArrayFile {
    /// Groups pieces into batches of one request each. A batch belongs to one shard, and has at most the
    /// bytes of a bounce buffer, or few runs of memory. If the volume does not gather, each piece is a batch.
    pub(crate) fn batches(&self, operation: Operation, shares: Vec<Share>) -> Vec<Vec<Share>> {
        let mut cut = Vec::with_capacity(shares.len());
        for (piece, memory) in shares {
            let most = self.most_bytes(&piece);
            if piece.extents() > 1 && piece.file_bytes() > most {
                let parts = piece.split(operation, &self.limited(most));
                cut.extend(parts.into_iter().map(|part| (part, memory.clone())));
            } else {
                cut.push((piece, memory));
            }
        }
        if !self.gathers {
            return cut.into_iter().map(|share| vec![share]).collect();
        }
        // If the regions of each request ascend, two concurrent writes to the same bytes leave one of them
        // intact.
        cut.sort_by_key(|(piece, _)| (piece.shard, piece.file_offset));
        let (mut batches, mut batch, mut bytes, mut extents) = (Vec::new(), Vec::<Share>::new(), 0, 0);
        let mut runs = Runs::default();
        for (piece, memory) in cut {
            let more = piece.file_bytes();
            if piece.extents() == 1 && more >= ALONE_BYTES {
                batches.push(vec![(piece, memory)]);
                continue;
            }
            let is_other = batch.last().is_some_and(|(last, _)| last.shard != piece.shard);
            let both = runs.with(&piece, &memory);
            let most = if both.are_few() { self.limits.piece_bytes } else { self.bounce_piece };
            let is_full = bytes + more > most || extents + piece.extents() > self.limits.piece_extents;
            if is_other || is_full {
                batches.push(std::mem::take(&mut batch));
                (bytes, extents, runs) = (0, 0, Runs::default());
            }
            runs = runs.with(&piece, &memory);
            bytes += more;
            extents += piece.extents();
            batch.push((piece, memory));
        }
        batches.push(batch);
        batches.retain(|batch| !batch.is_empty());
        batches
    }

    /// Moves the pieces of a batch.
    pub(crate) fn launch(self: &Arc<Self>, operation: Operation, mut batch: Vec<Share>, ticket: Ticket) {
        if batch.len() == 1
            && batch[0].0.extents() == 1
            && let Some((piece, memory)) = batch.pop()
        {
            return self.launch_extent(operation, piece, memory, ticket);
        }
        let Some(shard) = batch.first().map(|(piece, _)| piece.shard) else {
            return ticket.part_done(Ok(()));
        };
        let nested: Vec<Nested> = batch.iter().map(|(piece, _)| piece.nested()).collect();
        let prepared = Regions::new(nested).and_then(|regions| Ok((regions, self.run_by_run(&batch)?)));
        match prepared {
            Err(error) => {
                drop(batch);
                ticket.part_done(Err(error));
            }
            Ok((regions, Some(region))) => {
                drop(batch);
                let done = Box::new(move |result| ticket.part_done(result));
                self.move_regions(operation, shard, regions, region, done);
            }
            Ok((regions, None)) => {
                let file = self.clone();
                self.bounce.acquire(Box::new(move |block| match block {
                    Err(error) => {
                        // The caller may reuse the memory as soon as it learns that the work is done.
                        drop(batch);
                        ticket.part_done(Err(error));
                    }
                    Ok(block) => file.launch_gathered(operation, shard, regions, batch, block, ticket),
                }));
            }
        }
    }

    /// Maximum bytes of a piece in one request: the size of a bounce buffer, or the largest number of runs in
    /// place.
    fn most_bytes(&self, piece: &Piece) -> u64 {
        let as_they_are = if self.gathers && !piece.has_gaps { MAX_SEGMENTS * piece.run_bytes } else { 0 };
        as_they_are.max(self.bounce_piece)
    }

    /// The memory of a batch as one region, if it has few runs. The runs must be aligned, or too small to
    /// matter, or have too many bytes for a bounce buffer.
    fn run_by_run(&self, batch: &[Share]) -> Result<Option<Region>> {
        let [(_, first), ..] = batch else { return Ok(None) };
        let runs = batch.iter().fold(Runs::default(), |runs, (piece, memory)| runs.with(piece, memory));
        let bytes: u64 = batch.iter().map(|(piece, _)| piece.file_bytes()).sum();
        let is_fit =
            |(piece, memory): &Share| piece.extent_bytes < MIN_BOUNCE_BYTES || self.fits(piece, memory);
        if !runs.are_few() || !(bytes > self.bounce_piece || batch.iter().all(is_fit)) {
            return Ok(None);
        }
        let mut segments = Vec::new();
        batch.iter().for_each(|(piece, memory)| add_segments(piece, memory, &mut segments));
        Region::new(first.block.clone(), segments).map(Some)
    }

    /// Moves a batch through a bounce buffer, where its extents are contiguous.
    fn launch_gathered(
        self: &Arc<Self>,
        operation: Operation,
        shard: u64,
        regions: Regions,
        batch: Vec<Share>,
        block: Arc<Block>,
        ticket: Ticket,
    ) {
        let segment = Segment { offset: 0, bytes: regions.total_bytes() as usize };
        let packed = Region::new(block.clone(), vec![segment]).and_then(|mut region| {
            if operation == Operation::Write {
                pack(&batch, &block, &mut region)?;
            }
            Ok(region)
        });
        let file = self.clone();
        let region = match packed {
            Ok(region) => region,
            Err(error) => {
                drop(batch);
                self.bounce.release(block);
                return ticket.part_done(Err(error));
            }
        };
        let finish = move |result: Result<()>| {
            let is_read = operation == Operation::Read;
            let result = result.and_then(|()| if is_read { unpack(&batch, &block) } else { Ok(()) });
            drop(batch);
            file.bounce.release(block);
            ticket.part_done(result);
        };
        self.move_regions(operation, shard, regions, region, Box::new(finish));
    }
}

/// Copies the elements of a batch to their extents in `block`. Padding between them becomes zeros.
fn pack(batch: &[Share], block: &Block, image: &mut Region) -> Result<()> {
    let mut at = 0;
    for (piece, memory) in batch {
        if piece.has_gaps {
            image.copy_in(at as usize, &vec![0; piece.file_bytes() as usize]);
        }
        let levels: Vec<Level> =
            places(piece).map(|(count, place, memory)| Level { count, from: memory, to: place }).collect();
        let source = memory.origin as i64 + piece.memory_offset;
        copy_strided((&memory.block, source), (block, at), piece.run_bytes as usize, &levels)?;
        at += piece.file_bytes() as i64;
    }
    Ok(())
}

/// Copies the elements of a batch from their extents in `block`.
fn unpack(batch: &[Share], block: &Block) -> Result<()> {
    let mut at = 0;
    for (piece, memory) in batch {
        let levels: Vec<Level> =
            places(piece).map(|(count, place, memory)| Level { count, from: place, to: memory }).collect();
        let target = memory.origin as i64 + piece.memory_offset;
        copy_strided((block, at), (&memory.block, target), piece.run_bytes as usize, &levels)?;
        at += piece.file_bytes() as i64;
    }
    Ok(())
}

/// (count, bytes among the packed extents, bytes in memory) of each stride of a piece.
fn places(piece: &Piece) -> impl Iterator<Item = (u64, i64, i64)> + '_ {
    let mut next = piece.extent_bytes as i64;
    piece.strides.iter().enumerate().map(move |(level, stride)| {
        let place = if level < piece.inner { stride.file as i64 } else { next };
        if level >= piece.inner {
            next *= stride.count as i64;
        }
        (stride.count, place, stride.memory)
    })
}
