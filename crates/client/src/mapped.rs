//! Boxes read while the caller waits, out of the page cache where the volume has one: plain indexing.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use outcore_core::{BoxRequest, Limits, Operation, Piece, Result, Slot, plan_box};
use outcore_memory::Region;

use crate::{ArrayFile, Memory, Ticket};

/// The part of a box in a chunk is one piece: a copy needs no cuts.
const UNCUT: Limits =
    Limits { piece_bytes: u64::MAX, read_gap_bytes: u64::MAX, gather_bytes: 0, piece_extents: 1 };

/// After so many bytes the caller decides whether to continue.
const ASK_AFTER_BYTES: u64 = 64 << 20;

impl ArrayFile {
    /// Reads a box. Requests read what the volume cannot copy out of the page cache; the ticket is for them. Once
    /// `go_on`, which is called now and then, returns false, nothing more is read.
    pub fn read_mapped(
        self: &Arc<Self>,
        request: &BoxRequest,
        memory: Memory,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Ticket> {
        if self.gathers {
            return self.submit(Operation::Read, request, memory);
        }
        let pieces = plan_box(self.grid(), request, Operation::Read, &UNCUT)?;
        if self.are_written(&pieces) {
            return self.submit(Operation::Read, request, memory);
        }
        let pinned = self.shards.pin(pieces.iter().map(|piece| piece.shard), Operation::Read)?;
        let copies = Ticket::new(1);
        self.shards.unpin_after(&copies, pinned);
        let region = Region::whole(memory.block.clone());
        let (mut left, mut since_asked) = (Vec::new(), 0);
        for part in pieces.chunk_by(|a, b| a.shard == b.shard).flat_map(parts) {
            let bytes = useful_bytes(part);
            if since_asked > 0 && since_asked + bytes > ASK_AFTER_BYTES {
                since_asked = 0;
                if !go_on() {
                    break;
                }
            }
            since_asked += bytes;
            let rest = match self.shards.file(part[0].shard) {
                Some(file) => self.volume.read_mapped(file, part.to_vec(), &region, memory.origin),
                None => part.to_vec(),
            };
            self.counters.bytes_read.fetch_add(bytes - useful_bytes(&rest), Ordering::Relaxed);
            self.counters.reads.fetch_add((part.len() - rest.len()) as u64, Ordering::Relaxed);
            left.extend(rest);
        }
        copies.part_done(Ok(()));
        let shares = left
            .iter()
            .flat_map(|piece| piece.split(Operation::Read, &self.limits))
            .map(|piece| (piece, memory.clone()));
        self.submit_pieces(Operation::Read, shares.collect(), Vec::new())
    }

    /// Whether a write to one of these chunks is under way: requests wait for it.
    fn are_written(&self, pieces: &[Piece]) -> bool {
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let of = |piece: &Piece| Slot { shard: piece.shard, offset: piece.slot_offset };
        !writers.is_empty()
            && pieces.iter().any(|piece| writers.get(&of(piece)).is_some_and(|writer| !writer.is_done()))
    }
}

fn useful_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::useful_bytes).sum()
}

/// Pieces of a shard file, so many at a time that the caller need not wait long.
fn parts(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    let most = pieces.iter().map(Piece::useful_bytes).max().unwrap_or(0).max(1);
    pieces.chunks((ASK_AFTER_BYTES / most).max(1) as usize)
}
