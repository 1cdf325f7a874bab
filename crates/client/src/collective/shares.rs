//! The memory of one share of a collective: in place in the process's arrays, or in a bounce buffer.

use std::sync::Arc;

use outcore_core::{Buffer, ByteRun, Error, Packing, Result, Share};
use outcore_memory::{Arena, Region, Segment};

use crate::Memory;

/// Runs of at least this length, on average, are transferred in place. Shorter runs cost more in system calls
/// than a copy costs.
const LEAST_RUN_BYTES: u64 = 4096;

/// An array of a process that takes part in a collective.
#[derive(Clone)]
pub struct LocalArray {
    /// The place of its elements.
    pub memory: Memory,
    /// Number of elements along each dimension.
    pub shape: Vec<u64>,
}

/// The memory of a share while it travels.
pub(crate) struct Carried {
    /// The buffer for the link.
    pub(crate) buffer: Region,
    /// Whether the buffer is a copy, which counts against the budget.
    pub(crate) is_copy: bool,
}

/// The arrays of a process, and the arena for copies of their parts.
pub(crate) struct Carrier<'a> {
    pub(crate) arrays: &'a [LocalArray],
    pub(crate) item_bytes: u64,
    pub(crate) arena: Arena,
}

impl Carrier<'_> {
    /// The memory of a share. It is in place if the runs are long. Otherwise it is a bounce buffer; for a
    /// write, the buffer contains a copy of the bytes.
    pub(crate) fn carry(&self, share: &Share, write: bool) -> Result<Carried> {
        if let Some(buffer) = self.in_place(share)? {
            return Ok(Carried { buffer, is_copy: false });
        }
        // Powers of two keep the number of sizes small, so that the arena reuses buffers.
        let room = share.bytes.next_power_of_two();
        let block = self.arena.allocate(room as usize)?;
        let mut buffer = Region::whole(Arc::new(block));
        buffer.truncate(share.bytes as usize);
        if write {
            self.copy(share, &mut buffer, true)?;
        }
        Ok(Carried { buffer, is_copy: true })
    }

    /// Copies a share from the bounce buffer of a read to its place in the arrays.
    pub(crate) fn scatter(&self, share: &Share, buffer: &mut Region) -> Result<()> {
        self.copy(share, buffer, false)
    }

    fn in_place(&self, share: &Share) -> Result<Option<Region>> {
        let Some(first) = share.tiles.first() else { return Ok(Some(Region::empty())) };
        if share.tiles.iter().any(|tile| tile.part != first.part) {
            return Ok(None);
        }
        let array = &self.arrays[first.part];
        let place = |_| (array.memory.origin as i64, array.memory.strides.as_slice());
        let Some(runs) = share.runs_in_memory(self.item_bytes, LEAST_RUN_BYTES, place) else {
            return Ok(None);
        };
        let segment = |run: ByteRun| Segment { offset: run.start as usize, bytes: run.bytes as usize };
        Region::new(array.memory.block.clone(), runs.into_iter().map(segment).collect()).map(Some)
    }

    fn packings<'b>(&'b self, share: &'b Share) -> impl Iterator<Item = Packing> + 'b {
        share.tiles.iter().map(|tile| tile.in_memory(self.item_bytes, &self.arrays[tile.part].memory.strides))
    }

    fn copy(&self, share: &Share, buffer: &mut Region, out: bool) -> Result<()> {
        let mut from = 0;
        for (tile, packing) in share.tiles.iter().zip(self.packings(share)) {
            let array = &self.arrays[tile.part];
            let at = usize::try_from(start_of(array, &tile.local))
                .map_err(|_| Error::invalid("a share begins before its array"))?;
            let mut whole = Region::whole(array.memory.block.clone());
            whole.copy_packed(at, &packing, buffer, from, out);
            from += packing.bytes() as usize;
        }
        Ok(())
    }
}

/// Byte offset of an element in the block of its array.
fn start_of(array: &LocalArray, index: &[u64]) -> i64 {
    let steps = index.iter().zip(&array.memory.strides);
    steps.fold(array.memory.origin as i64, |at, (&i, &stride)| at + i as i64 * stride)
}
