//! Cuts the part of a box in one chunk into pieces.

use crate::{Limits, MAX_LEVELS, Operation, Piece, Slot, Stride};

/// A write bridges a gap of padding of at most this many bytes by writing zeros.
const MAX_PADDING_GAP_BYTES: u64 = 128 << 10;

/// Parameters for cutting the part of a box in one chunk.
pub(crate) struct Cut<'a> {
    pub(crate) slot: Slot,
    pub(crate) chunk_end: u64,
    /// Whether the box contains every array element of the chunk. If so, gaps are padding beyond the array's
    /// edge.
    pub(crate) whole: bool,
    pub(crate) operation: Operation,
    pub(crate) limits: &'a Limits,
}

impl Cut<'_> {
    fn most_bytes(&self) -> u64 {
        self.limits.piece_bytes.max(1)
    }

    /// Whether one extent may cover repetitions of `extent` bytes at distance `stride.file`.
    fn may_bridge(&self, extent: u64, stride: &Stride) -> bool {
        let gap = stride.file.saturating_sub(extent);
        match self.operation {
            Operation::Read => gap <= self.limits.read_gap_bytes,
            _ => gap == 0 || (self.whole && gap <= MAX_PADDING_GAP_BYTES),
        }
    }

    pub(crate) fn split(
        &self,
        file: u64,
        memory: i64,
        run: u64,
        strides: &[Stride],
        pieces: &mut Vec<Piece>,
    ) {
        // `inner`: the number of levels, from the fastest, that one extent can cover.
        let (mut extent, mut inner) = (run, 0);
        while inner < strides.len() && self.may_bridge(extent, &strides[inner]) {
            let wider = (strides[inner].count - 1) * strides[inner].file + extent;
            if wider > self.most_bytes() {
                break;
            }
            extent = wider;
            inner += 1;
        }
        if inner == strides.len() && extent > self.most_bytes() {
            return self.split_run(file, memory, run, pieces);
        }
        let Some((outer, rest)) = strides[inner..].split_last() else {
            return pieces.push(self.piece(file, memory, extent, run, strides, inner));
        };
        let most = self.most_repetitions(extent, outer, rest);
        if most >= outer.count && !self.may_bridge(extent, &strides[inner]) {
            return pieces.push(self.piece(file, memory, extent, run, strides, inner));
        }
        // Split the slowest level into groups that fit one piece.
        let (group, faster) = (most.clamp(1, outer.count), &strides[..strides.len() - 1]);
        let mut index = 0;
        while index < outer.count {
            let count = group.min(outer.count - index);
            let mut levels = faster.to_vec();
            if count > 1 {
                levels.push(Stride { count, ..*outer });
            }
            self.split(file + index * outer.file, memory + index as i64 * outer.memory, run, &levels, pieces);
            index += count;
        }
    }

    /// Number of repetitions of the slowest level `outer` that fit one piece. `rest` are the other levels
    /// beyond the extent.
    fn most_repetitions(&self, extent: u64, outer: &Stride, rest: &[Stride]) -> u64 {
        if extent > self.most_bytes() || rest.len() >= MAX_LEVELS {
            return 1;
        }
        if self.may_bridge(extent, rest.first().unwrap_or(outer)) {
            // One extent can cover a part of that level after all.
            return if rest.is_empty() { 1 + (self.most_bytes() - extent) / outer.file } else { 1 };
        }
        if extent > self.limits.gather_bytes {
            return 1;
        }
        let extents: u64 = rest.iter().map(|s| s.count).product();
        (self.most_bytes() / extent).min(self.limits.piece_extents) / extents
    }

    fn split_run(&self, file: u64, memory: i64, run: u64, pieces: &mut Vec<Piece>) {
        let most = self.most_bytes();
        let step = if most >= 4096 { most / 4096 * 4096 } else { most };
        let mut done = 0;
        while done < run {
            let bytes = step.min(run - done);
            pieces.push(self.piece(file + done, memory + done as i64, bytes, bytes, &[], 0));
            done += bytes;
        }
    }

    fn piece(
        &self,
        file: u64,
        memory: i64,
        extent: u64,
        run: u64,
        strides: &[Stride],
        inner: usize,
    ) -> Piece {
        let useful = strides[..inner].iter().map(|s| s.count).product::<u64>() * run;
        Piece {
            shard: self.slot.shard,
            slot_offset: self.slot.offset,
            file_offset: file,
            extent_bytes: extent,
            memory_offset: memory,
            run_bytes: run,
            strides: strides.to_vec(),
            inner,
            has_gaps: useful != extent,
            reaches_slot_end: inner == strides.len() && file + extent == self.chunk_end,
        }
    }
}
