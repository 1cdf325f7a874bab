//! The bytes of a shard file in which processes have elements, so that a plan skips the pieces between them.

use crate::{ChunkGrid, ElementBox, MemorySchema, StorageOrder};

/// Pairs of a box and a chunk to look at, at most; they take about 0.1 s. With more of them, the plan examines every piece.
const MOST_COMPARED: u64 = 1 << 20;

/// Ranges of bytes of a shard file, in order and disjoint. All elements of processes are in them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reach(Vec<(u64, u64)>);

impl Reach {
    pub(super) fn new(grid: &ChunkGrid, shard: u64, schema: &MemorySchema) -> Self {
        let all = Self(vec![(0, grid.index_offset())]);
        match schema {
            MemorySchema::Mesh { .. } | MemorySchema::Own(_) => all,
            MemorySchema::Boxes(boxes) => Self::of_boxes(grid, shard, boxes).unwrap_or(all),
        }
    }

    /// For each chunk with elements of boxes, the bytes from the first to the last of them; `None` if that takes too long.
    fn of_boxes(grid: &ChunkGrid, shard: u64, boxes: &[Vec<ElementBox>]) -> Option<Self> {
        let slots = (grid.index_offset() / grid.slot_bytes()) as usize;
        let mut ranges = vec![(u64::MAX, 0); slots];
        let mut compared = 0_u64;
        for area in boxes.iter().flatten().filter(|area| !area.shape.contains(&0)) {
            let chunks = chunks_of(grid, shard, area);
            let count =
                chunks.iter().map(|(first, end)| end.saturating_sub(*first)).try_fold(1, u64::checked_mul);
            compared = compared.checked_add(count?)?;
            if compared > MOST_COMPARED {
                return None;
            }
            for_each_chunk(&chunks, &mut |chunk| {
                let at = grid.locate(chunk).offset;
                let (first, end) = bytes_in_chunk(grid, area, chunk);
                let range = &mut ranges[(at / grid.slot_bytes()) as usize];
                *range = (range.0.min(at + first), range.1.max(at + end));
            });
        }
        ranges.retain(|(first, end)| first < end);
        Some(Self(ranges))
    }

    /// The first range that ends after a byte.
    pub(super) fn after(&self, offset: u64) -> Option<(u64, u64)> {
        self.0.get(self.0.partition_point(|(_, end)| *end <= offset)).copied()
    }
}

/// Along each dimension, the chunks of a shard with elements of a box: the first one, and the one after the last.
fn chunks_of(grid: &ChunkGrid, mut shard: u64, area: &ElementBox) -> Vec<(u64, u64)> {
    let mut chunks = vec![(0, 0); grid.dims()];
    for dim in (0..grid.dims()).rev() {
        let (length, here) = (grid.spec().chunk[dim], grid.shard_chunks()[dim]);
        let from = shard % grid.shard_counts()[dim] * here;
        shard /= grid.shard_counts()[dim];
        let (first, last) = (area.start[dim] / length, (area.start[dim] + area.shape[dim] - 1) / length);
        chunks[dim] = (first.max(from), (last + 1).min(from + here));
    }
    chunks
}

fn for_each_chunk(chunks: &[(u64, u64)], visit: &mut impl FnMut(&[u64])) {
    if chunks.iter().any(|(first, end)| first >= end) {
        return;
    }
    let mut at: Vec<u64> = chunks.iter().map(|(first, _)| *first).collect();
    loop {
        visit(&at);
        let Some(dim) = (0..at.len()).rev().find(|&dim| at[dim] + 1 < chunks[dim].1) else { return };
        at[dim] += 1;
        for later in dim + 1..at.len() {
            at[later] = chunks[later].0;
        }
    }
}

/// The bytes of a chunk from the first to the last element of a box, which has elements there.
fn bytes_in_chunk(grid: &ChunkGrid, area: &ElementBox, chunk: &[u64]) -> (u64, u64) {
    let spec = grid.spec();
    let (mut first, mut last, mut stride) = (0, 0, spec.item_bytes);
    let dims = 0..grid.dims();
    let fast_to_slow: Vec<usize> = match spec.storage {
        StorageOrder::C => dims.rev().collect(),
        StorageOrder::F => dims.collect(),
    };
    for dim in fast_to_slow {
        let length = spec.chunk[dim];
        let from = chunk[dim] * length;
        first += area.start[dim].saturating_sub(from) * stride;
        last += ((area.start[dim] + area.shape[dim] - from).min(length) - 1) * stride;
        stride *= length;
    }
    (first, last + spec.item_bytes)
}
