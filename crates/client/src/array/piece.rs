//! Moves one extent of a file: in place if the disk can use the memory directly, otherwise through a bounce
//! buffer.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use outcore_core::{Buffer, Limits, Operation, Piece, Result};
use outcore_memory::{Block, Level, Region, Segment, copy_strided};

use crate::{ArrayFile, Memory, Ticket};

/// A smaller unaligned transfer goes through the page cache; a larger one goes through an aligned buffer.
pub(crate) const MIN_BOUNCE_BYTES: u64 = 64 << 10;
/// Maximum number of memory runs of a request without a bounce buffer; disks accept about as many. A piece
/// with more becomes several requests.
pub(crate) const MAX_SEGMENTS: u64 = 256;

impl ArrayFile {
    /// Moves a piece of one extent.
    pub(crate) fn launch_extent(
        self: &Arc<Self>,
        operation: Operation,
        piece: Piece,
        memory: Memory,
        ticket: Ticket,
    ) {
        let many_runs = piece.runs() > MAX_SEGMENTS && !piece.has_gaps;
        if many_runs && (self.fits(&piece, &memory) || self.is_more_than_buffered(&piece)) {
            let parts = piece.split(operation, &self.limited(MAX_SEGMENTS * piece.run_bytes));
            ticket.split_part(parts.len());
            for part in parts {
                self.launch_extent(operation, part, memory.clone(), ticket.clone());
            }
            return;
        }
        match self.in_place(operation, &piece, &memory) {
            Ok(Some(region)) => {
                drop(memory);
                let done = Box::new(move |result| ticket.part_done(result));
                self.move_bytes(operation, piece.shard, piece.file_offset, region, done);
            }
            Err(error) => ticket.part_done(Err(error)),
            Ok(None) => {
                let parts = piece.split(operation, &self.limited(self.bounce_piece));
                ticket.split_part(parts.len());
                let shares = std::iter::repeat_n(memory, parts.len());
                for (part, memory) in parts.into_iter().zip(shares) {
                    self.launch_through(operation, part, memory, ticket.clone());
                }
            }
        }
    }

    /// The limits for smaller pieces.
    pub(crate) fn limited(&self, piece_bytes: u64) -> Limits {
        Limits { piece_bytes, ..self.limits }
    }

    /// Moves a piece through a bounce buffer that is large enough.
    fn launch_through(self: &Arc<Self>, operation: Operation, piece: Piece, memory: Memory, ticket: Ticket) {
        let file = self.clone();
        let done = move |result| ticket.part_done(result);
        self.bounce.acquire(Box::new(move |block| match block {
            Err(error) => done(Err(error)),
            Ok(block) if operation == Operation::Write => file.write_through(piece, memory, block, done),
            Ok(block) => file.read_through(piece, memory, block, done),
        }));
    }

    /// Whether a request can move more of a piece in place than through a bounce buffer, on a volume that
    /// takes any memory. Its servers check whole blocks, even for a few bytes of a block. With buffers
    /// smaller than a block, they would read each block, or merge and write it, many times.
    fn is_more_than_buffered(&self, piece: &Piece) -> bool {
        self.gathers && piece.runs().min(MAX_SEGMENTS) * piece.run_bytes > self.bounce_piece
    }

    /// The memory of a piece as one region, if the disk can use it in place. It can if the memory is aligned,
    /// or too small to matter, or, in a pool, too large for a bounce buffer.
    fn in_place(&self, operation: Operation, piece: &Piece, memory: &Memory) -> Result<Option<Region>> {
        if piece.has_gaps || piece.runs() > MAX_SEGMENTS {
            return Ok(None);
        }
        let is_padded = operation == Operation::Write && piece.reaches_slot_end;
        let is_small = piece.extent_bytes < MIN_BOUNCE_BYTES && !is_padded;
        let ends_on_a_block = (piece.file_offset + piece.extent_bytes).is_multiple_of(self.align);
        let is_large = (!is_padded || ends_on_a_block) && self.is_more_than_buffered(piece);
        if !is_small && !is_large && !self.fits(piece, memory) {
            return Ok(None);
        }
        let mut runs = Vec::with_capacity(piece.runs() as usize);
        add_segments(piece, memory, &mut runs);
        Region::new(memory.block.clone(), runs).map(Some)
    }

    /// Whether every run of the piece is aligned in file and memory.
    pub(crate) fn fits(&self, piece: &Piece, memory: &Memory) -> bool {
        let start = memory.block.as_ptr() as u64;
        let in_file = |value: u64| value.is_multiple_of(self.align);
        let in_memory = |value: u64| value.is_multiple_of(self.memory_align);
        in_file(piece.file_offset)
            && in_file(piece.run_bytes)
            && in_memory(start.wrapping_add(memory.origin as u64).wrapping_add_signed(piece.memory_offset))
            && piece.strides.iter().all(|s| in_file(s.file) && in_memory(s.memory.unsigned_abs()))
    }

    fn read_through(
        self: &Arc<Self>,
        piece: Piece,
        memory: Memory,
        block: Arc<Block>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        let low = piece.file_offset / self.align * self.align;
        let high = (piece.file_offset + piece.extent_bytes)
            .next_multiple_of(self.align)
            .min(self.grid().shard_bytes());
        let segments = vec![Segment { offset: 0, bytes: (high - low) as usize }];
        let region = match Region::new(block.clone(), segments) {
            Ok(region) => region,
            Err(error) => {
                self.bounce.release(block);
                return done(Err(error));
            }
        };
        let file = self.clone();
        let shard = piece.shard;
        let unpack = move |result: Result<()>| {
            let lead = (piece.file_offset - low) as i64;
            let levels = levels(&piece, |s| (s.file as i64, s.memory));
            let target = memory.origin as i64 + piece.memory_offset;
            let result = result.and_then(|()| {
                copy_strided((&block, lead), (&memory.block, target), piece.run_bytes as usize, &levels)
            });
            drop(memory);
            file.bounce.release(block);
            done(result);
        };
        self.move_bytes(Operation::Read, shard, low, region, Box::new(unpack));
    }

    fn write_through(
        self: &Arc<Self>,
        piece: Piece,
        memory: Memory,
        block: Arc<Block>,
        done: impl FnOnce(Result<()>) + Send + 'static,
    ) {
        // Bytes keep their offset within a disk block, so that the aligned middle of the piece is aligned in
        // memory.
        let lead = piece.file_offset % self.align;
        let padded = if piece.reaches_slot_end {
            let slot_end = piece.slot_offset + self.grid().slot_bytes();
            (piece.file_offset + piece.extent_bytes).next_multiple_of(self.align).min(slot_end)
                - piece.file_offset
        } else {
            piece.extent_bytes
        };
        let mut image =
            match Region::new(block.clone(), vec![Segment { offset: lead as usize, bytes: padded as usize }])
            {
                Ok(image) => image,
                Err(error) => {
                    self.bounce.release(block);
                    return done(Err(error));
                }
            };
        if piece.has_gaps || padded > piece.extent_bytes {
            let from = if piece.has_gaps { 0 } else { piece.extent_bytes };
            image.copy_in(from as usize, &vec![0; (padded - from) as usize]);
        }
        let levels = levels(&piece, |s| (s.memory, s.file as i64));
        let source = memory.origin as i64 + piece.memory_offset;
        let packed =
            copy_strided((&memory.block, source), (&block, lead as i64), piece.run_bytes as usize, &levels);
        drop(memory);
        if let Err(error) = packed {
            self.bounce.release(block);
            return done(Err(error));
        }
        // Ragged ends are written as exact bytes (through the page cache), the middle as whole disk blocks.
        let end = piece.file_offset + padded;
        let middle_low = piece.file_offset.next_multiple_of(self.align).min(end);
        let middle_high = (end / self.align * self.align).max(middle_low);
        let ranges: Vec<(u64, u64)> =
            [(piece.file_offset, middle_low), (middle_low, middle_high), (middle_high, end)]
                .into_iter()
                .filter(|(low, high)| low < high)
                .collect();
        let file = self.clone();
        let parts = AtomicUsize::new(ranges.len());
        let first_error = Mutex::new(None);
        let finish = Mutex::new(Some((done, block)));
        let part_done = Arc::new(move |result: Result<()>| {
            if let Err(error) = result {
                first_error.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
            if parts.fetch_sub(1, Ordering::AcqRel) == 1
                && let Some((done, block)) = finish.lock().unwrap_or_else(PoisonError::into_inner).take()
            {
                file.bounce.release(block);
                let error = first_error.lock().unwrap_or_else(PoisonError::into_inner).take();
                done(error.map_or(Ok(()), Err));
            }
        });
        for (low, high) in ranges {
            let region = image.part((low - piece.file_offset) as usize, (high - low) as usize);
            let part_done = part_done.clone();
            self.move_bytes(Operation::Write, piece.shard, low, region, Box::new(move |r| part_done(r)));
        }
    }
}

/// Adds the memory of each run of a piece.
pub(crate) fn add_segments(piece: &Piece, memory: &Memory, segments: &mut Vec<Segment>) {
    piece.for_each_run(|_, at| {
        let offset = memory.origin.wrapping_add_signed(at as isize);
        segments.push(Segment { offset, bytes: piece.run_bytes as usize });
    });
}

fn levels(piece: &Piece, sides: fn(&outcore_core::Stride) -> (i64, i64)) -> Vec<Level> {
    piece
        .strides
        .iter()
        .map(|s| {
            let (from, to) = sides(s);
            Level { count: s.count, from, to }
        })
        .collect()
}
