//! Boxes read and written while the caller waits, through the page cache if the volume has one: plain
//! indexing.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use outcore_core::{BoxRequest, Limits, Operation, Piece, Result, SHORT_RUN_BYTES, Slot, plan_box};
use outcore_memory::Region;

use crate::{ArrayFile, Memory, Ticket};

/// One piece for the part of a box in a chunk: a copy needs no cuts.
const UNCUT: Limits =
    Limits { piece_bytes: u64::MAX, read_gap_bytes: u64::MAX, gather_bytes: 0, piece_extents: 1 };

/// One piece for all short runs of a box in a chunk, and one piece for each longer run.
const SHORT: Limits = Limits {
    piece_bytes: u64::MAX,
    read_gap_bytes: 0,
    gather_bytes: SHORT_RUN_BYTES - 1,
    piece_extents: u64::MAX,
};

/// After this many runs the caller decides whether to continue writing.
const ASK_AFTER_RUNS: u64 = 1 << 16;

/// After this many bytes the caller decides whether to continue.
const ASK_AFTER_BYTES: u64 = 64 << 20;

impl ArrayFile {
    /// Reads a box. Requests read the parts that the volume cannot copy from the page cache; the ticket
    /// covers those requests. Regularly calls `go_on`, and stops reading once that returns false.
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
        self.submit_parts(Operation::Read, &left, &memory)
    }

    /// Writes a box. The calling thread writes short runs directly from their place in memory: passing each
    /// run to another thread would cost more. Requests write the rest; the tickets cover those requests.
    /// Regularly calls `go_on`, and stops writing short runs once that returns false.
    pub fn write_short(
        self: &Arc<Self>,
        request: &BoxRequest,
        memory: Memory,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Ticket>> {
        if self.gathers {
            return Ok(vec![self.submit(Operation::Write, request, memory)?]);
        }
        let pieces = plan_box(self.grid(), request, Operation::Write, &SHORT)?;
        let is_short = |piece: &Piece| piece.inner == 0 && piece.extents() > 1;
        let mut short: HashMap<Slot, Vec<Piece>> = HashMap::new();
        for piece in pieces.iter().filter(|piece| is_short(piece)) {
            short.entry(slot_of(piece)).or_default().push(piece.clone());
        }
        let (mut after, before): (Vec<Piece>, Vec<Piece>) = pieces
            .into_iter()
            .filter(|piece| !is_short(piece))
            .partition(|piece| short.contains_key(&slot_of(piece)));
        let mut tickets = Vec::new();
        if !before.is_empty() {
            tickets.push(self.submit_parts(Operation::Write, &before, &memory)?);
        }
        after.extend(self.write_now(short, &memory, go_on)?);
        if !after.is_empty() {
            tickets.push(self.submit_parts(Operation::Write, &after, &memory)?);
        }
        Ok(tickets)
    }

    /// Writes the pieces of chunks without unfinished writes, in batches. Returns the other pieces, and those that
    /// it could not write. Between batches it holds up no request, because `go_on` may wait for one: a signal
    /// handler may use the same chunks.
    fn write_now(
        self: &Arc<Self>,
        pieces: HashMap<Slot, Vec<Piece>>,
        memory: &Memory,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Vec<Piece>> {
        let mut pieces: Vec<(Slot, Vec<Piece>)> = pieces.into_iter().collect();
        pieces.sort_unstable_by_key(|(slot, _)| *slot);
        let (mut batch, mut batch_runs, mut left) = (Vec::new(), 0, Vec::new());
        for (slot, part) in pieces {
            let runs = runs_of(&part);
            if batch_runs + runs > ASK_AFTER_RUNS {
                left.extend(self.write_batch(std::mem::take(&mut batch), memory)?);
                batch_runs = 0;
                if !go_on() {
                    return Ok(left);
                }
            }
            batch_runs += runs;
            batch.push((slot, part));
        }
        left.extend(self.write_batch(batch, memory)?);
        Ok(left)
    }

    /// Writes the pieces of some chunks, and lets later requests for these chunks wait meanwhile. Returns the
    /// pieces of chunks with unfinished writes, and those that it could not write.
    fn write_batch(self: &Arc<Self>, pieces: Vec<(Slot, Vec<Piece>)>, memory: &Memory) -> Result<Vec<Piece>> {
        let ticket = Ticket::new(1);
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_free = |slot: &Slot| writers.get(slot).is_none_or(Ticket::is_done);
        let (free, taken): (Vec<_>, Vec<_>) = pieces.into_iter().partition(|(slot, _)| is_free(slot));
        let slots: Vec<Slot> = free.iter().map(|(slot, _)| *slot).collect();
        self.write_before_others(writers, slots.clone(), &ticket);
        let pinned = match self.shards.pin(slots.iter().map(|slot| slot.shard), Operation::Write) {
            Ok(pinned) => pinned,
            Err(error) => {
                ticket.part_done(Err(error.clone()));
                return Err(error);
            }
        };
        self.shards.unpin_after(&ticket, pinned);
        let region = Region::whole(memory.block.clone());
        let mut left: Vec<Piece> = taken.into_iter().flat_map(|(_, part)| part).collect();
        for (slot, part) in free {
            let (bytes, runs) = (useful_bytes(&part), runs_of(&part));
            let rest = match self.shards.file(slot.shard) {
                Some(file) => self.volume.write_short(file, part, &region, memory.origin),
                None => part,
            };
            self.counters.bytes_written.fetch_add(bytes - useful_bytes(&rest), Ordering::Relaxed);
            self.counters.writes.fetch_add(runs - runs_of(&rest), Ordering::Relaxed);
            left.extend(rest);
        }
        ticket.part_done(Ok(()));
        Ok(left)
    }

    /// Starts moving pieces of any size by requests.
    fn submit_parts(
        self: &Arc<Self>,
        operation: Operation,
        pieces: &[Piece],
        memory: &Memory,
    ) -> Result<Ticket> {
        let parts = pieces.iter().flat_map(|piece| piece.split(operation, &self.limits));
        self.submit_pieces(operation, parts.map(|piece| (piece, memory.clone())).collect(), Vec::new())
    }

    /// Whether one of these chunks has an unfinished write, for which requests wait.
    fn are_written(&self, pieces: &[Piece]) -> bool {
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        let is_written = |piece| writers.get(&slot_of(piece)).is_some_and(|writer| !writer.is_done());
        !writers.is_empty() && pieces.iter().any(is_written)
    }
}

fn slot_of(piece: &Piece) -> Slot {
    Slot { shard: piece.shard, offset: piece.slot_offset }
}

fn useful_bytes(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::useful_bytes).sum()
}

fn runs_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(Piece::runs).sum()
}

/// Groups of pieces of a shard file, small enough that the caller does not wait long.
fn parts(pieces: &[Piece]) -> impl Iterator<Item = &[Piece]> {
    let most = pieces.iter().map(Piece::useful_bytes).max().unwrap_or(0).max(1);
    pieces.chunks((ASK_AFTER_BYTES / most).max(1) as usize)
}
