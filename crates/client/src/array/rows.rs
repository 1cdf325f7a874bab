//! Lists of rows of a matrix. Most rows of such a list are single, short runs of a file, which need no bounce
//! buffer. One request to the volume reads all those of a shard file, which costs least.

use std::collections::BTreeMap;
use std::sync::Arc;

use outcore_core::{BoxRequest, Nested, Operation, Regions, Result, Slot, StorageOrder};
use outcore_memory::{Block, Region, Segment};

use crate::{ArrayFile, Memory, Ticket};

/// A longer run is worth a request of its own.
const MAX_RUN_BYTES: u64 = 64 << 10;

/// Runs of one shard file, and their places in a block.
pub(crate) struct ShortRuns {
    shard: u64,
    block: Arc<Block>,
    pub(crate) slots: Vec<Slot>,
    file: Vec<Nested>,
    memory: Vec<Segment>,
}

/// The part of a row in one chunk.
struct RowPart {
    slot: Slot,
    offset: u64,
    memory: Segment,
}

impl ArrayFile {
    /// Starts reading a list of rows into rows of memory: `width` elements of each, from column
    /// `first_column`. If one row cannot be read, none is.
    pub fn submit_rows(
        self: &Arc<Self>,
        rows: &[u64],
        first_column: u64,
        width: u64,
        memory: &Memory,
    ) -> Result<Ticket> {
        let stride = memory.strides.first().copied().unwrap_or(0) as isize;
        let (mut short, mut pieces) = (BTreeMap::<u64, ShortRuns>::new(), Vec::new());
        let mut origin = memory.origin;
        for run in rows.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            let parts = || self.row_parts(run[0], first_column, width, origin);
            if run.len() == 1
                && self.takes_short_rows(run[0], first_column, width, memory)
                && parts().all(|part| self.is_short(&part, &memory.block))
            {
                for part in parts() {
                    let runs = short.entry(part.slot.shard);
                    runs.or_insert_with(|| ShortRuns::new(part.slot.shard, memory)).add(part);
                }
            } else {
                let request = BoxRequest {
                    start: vec![run[0], first_column],
                    count: vec![run.len() as u64, width],
                    step: vec![1, 1],
                    memory_strides: memory.strides.clone(),
                };
                let memory = Memory { origin, ..memory.clone() };
                pieces.extend(self.plan(Operation::Read, &request, memory)?);
            }
            origin = origin.wrapping_add_signed(stride.wrapping_mul(run.len() as isize));
        }
        self.submit_pieces(Operation::Read, pieces, short.into_values().collect())
    }

    /// Whether the elements of a row inside the array are contiguous on disk and in memory, and the volume
    /// takes each run of a file separately.
    fn takes_short_rows(&self, row: u64, first_column: u64, width: u64, memory: &Memory) -> bool {
        let spec = self.grid().spec();
        let is_inside = spec.shape.len() == 2
            && row < spec.shape[0]
            && first_column.checked_add(width).is_some_and(|end| end <= spec.shape[1]);
        is_inside
            && !self.gathers
            && spec.storage == StorageOrder::C
            && memory.strides.get(1) == Some(&(spec.item_bytes as i64))
    }

    /// The parts of a row, one for each chunk. Their memory starts at byte `origin`.
    fn row_parts(
        &self,
        row: u64,
        first_column: u64,
        width: u64,
        origin: usize,
    ) -> impl Iterator<Item = RowPart> + '_ {
        let (grid, item) = (self.grid(), self.grid().spec().item_bytes);
        let mut column = first_column;
        std::iter::from_fn(move || {
            let [high, wide] = grid.spec().chunk[..] else { return None };
            let count = (wide - column % wide).min(first_column + width - column);
            if count == 0 {
                return None;
            }
            let slot = grid.locate(&[row / high, column / wide]);
            let offset = slot.offset + (row % high * wide + column % wide) * item;
            let done = ((column - first_column) * item) as usize;
            let memory = Segment { offset: origin.wrapping_add(done), bytes: (count * item) as usize };
            column += count;
            Some(RowPart { slot, offset, memory })
        })
    }

    /// Whether a part can be read in place, as one of many runs.
    fn is_short(&self, part: &RowPart, block: &Block) -> bool {
        let (bytes, start) = (part.memory.bytes as u64, block.as_ptr() as u64);
        bytes <= MAX_RUN_BYTES
            && bytes.is_multiple_of(self.align)
            && part.offset.is_multiple_of(self.align)
            && start.wrapping_add(part.memory.offset as u64).is_multiple_of(self.memory_align)
    }

    /// Reads runs of a shard file by one request.
    pub(crate) fn launch_short(self: &Arc<Self>, runs: ShortRuns, ticket: Ticket) {
        let ShortRuns { shard, block, file, memory, .. } = runs;
        match Regions::new(file).and_then(|regions| Ok((regions, Region::new(block, memory)?))) {
            Err(error) => ticket.part_done(Err(error)),
            Ok((regions, region)) => {
                let done = Box::new(move |result| ticket.part_done(result));
                self.move_regions(Operation::Read, shard, regions, region, done);
            }
        }
    }
}

impl ShortRuns {
    fn new(shard: u64, memory: &Memory) -> Self {
        let block = memory.block.clone();
        Self { shard, block, slots: Vec::new(), file: Vec::new(), memory: Vec::new() }
    }

    fn add(&mut self, part: RowPart) {
        if self.slots.last() != Some(&part.slot) {
            self.slots.push(part.slot);
        }
        self.file.push(Nested {
            offset: part.offset,
            run_bytes: part.memory.bytes as u64,
            levels: Vec::new(),
        });
        self.memory.push(part.memory);
    }
}
