//! The plan of a collective: the order in which each I/O server moves an array's bytes, and each process's
//! share of them.
//!
//! Servers and processes compute the plan from the same description, so they need not exchange it (Seamons et
//! al. 1995, server-directed I/O). A server moves its data file in order, in *pieces*. The pieces that it
//! moves concurrently are a *round*. Each process's part of a piece is its *share*, which travels in one
//! message.

mod coverage;
mod own;
mod reach;

use std::iter::successors;

pub use crate::collective::coverage::Coverage;
use crate::collective::own::OwnBytes;
use crate::collective::reach::Reach;
use crate::schema::{Axis, Overlap};
use crate::{
    ChunkGrid, Error, GridSpec, MemoryOffer, MemorySchema, Result, Share, StorageOrder, Stripes, Tile,
    TileLevel,
};

/// Maximum bytes of a piece, and the usual size: servers have memory for this.
pub const PIECE_BYTES: u64 = 1 << 20;
/// A piece is a multiple of this many bytes, except the last of a data file. So no block with a checksum
/// spans two pieces.
pub const PIECE_UNIT_BYTES: u64 = 64 << 10;
/// Maximum number of pieces of a round, and the usual number.
pub const ROUND_PIECES: u64 = 8;
/// Number of rounds whose pieces a server holds in memory concurrently.
pub const ROUNDS_AT_ONCE: u64 = 4;

/// A read or write of an array by all processes of a parallel program. Each process sends this description to
/// each server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveSpec {
    /// A random number, created by one process and known to all.
    pub id: u128,
    /// Whether the collective writes the array.
    pub write: bool,
    /// Number of processes.
    pub ranks: u64,
    /// The layout of the array on disk.
    pub grid: GridSpec,
    /// The number of the shard file to move.
    pub shard: u64,
    /// The distribution over the memory of the processes.
    pub schema: MemorySchema,
    /// Seconds for which the others wait for a process that is missing or stopped.
    pub patience_s: u64,
    /// Whether the servers make a write durable before it ends. Otherwise its processes sync it, like other writes.
    pub durable: bool,
    /// Whether to skip all reads and writes of disks, to measure everything else.
    pub skips_disk: bool,
    /// Bytes of a piece, except the last of a data file: a multiple of [`PIECE_UNIT_BYTES`], at most
    /// [`PIECE_BYTES`].
    pub piece_bytes: u64,
    /// Number of pieces of a round: 1 to [`ROUND_PIECES`].
    pub round_pieces: u64,
}

impl CollectiveSpec {
    /// Whether a sync must make the write durable after the end of the collective.
    pub fn needs_sync(&self) -> bool {
        self.write && !self.durable
    }
}

/// The bytes of a piece, so that no share exceeds [`PIECE_BYTES`] if a process has an element up to `copies` times.
/// A share of the smallest piece may exceed it.
pub fn piece_bytes(copies: u64) -> u64 {
    (PIECE_BYTES / copies.max(1) / PIECE_UNIT_BYTES).max(1) * PIECE_UNIT_BYTES
}

/// A part of an array file that a server moves in one step: bytes of its data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPiece {
    /// Its number on this server.
    pub number: u64,
    /// The first byte in the data file.
    pub offset: u64,
    /// Number of bytes.
    pub bytes: u64,
    boxes: Vec<PieceBox>,
}

/// Array elements in a piece. Elements of edge chunks beyond the array are not included.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PieceBox {
    start: Vec<u64>,
    shape: Vec<u64>,
    /// Offset of the first element in the piece, and the distance in bytes between elements along each
    /// dimension.
    at: u64,
    strides: Vec<u64>,
}

/// The plan of one [`CollectiveSpec`], for given stripes.
#[derive(Clone, Debug)]
pub struct CollectivePlan {
    grid: ChunkGrid,
    shard: u64,
    stripes: Stripes,
    piece_bytes: u64,
    round_pieces: u64,
    /// For each slot of the shard, the row-major number of its chunk.
    chunks: Vec<Option<u32>>,
    /// Whether every element is in the memory of some process.
    covers_all: bool,
    /// The parts of each process.
    parts: Vec<Vec<Vec<Axis>>>,
    /// For [`MemorySchema::Own`], the bytes of each process that told them.
    own: Vec<Option<OwnBytes>>,
    reach: Reach,
}

impl CollectivePlan {
    /// Checks the description, and prepares the plan.
    pub fn new(spec: &CollectiveSpec, stripes: Stripes) -> Result<Self> {
        let grid = ChunkGrid::new(spec.grid.clone())?;
        let shape = &spec.grid.shape;
        spec.schema.check(shape, spec.ranks)?;
        if spec.write {
            spec.schema.check_disjoint(shape)?;
        }
        if spec.shard >= grid.shards() {
            return Err(Error::invalid(format!(
                "an array of {} shard files has no shard {}",
                grid.shards(),
                spec.shard
            )));
        }
        let piece_bytes = spec.piece_bytes;
        if piece_bytes == 0 || piece_bytes > PIECE_BYTES || !piece_bytes.is_multiple_of(PIECE_UNIT_BYTES) {
            return Err(Error::invalid(format!(
                "need pieces of a multiple of {PIECE_UNIT_BYTES} bytes, at most {PIECE_BYTES}, have {piece_bytes}; choose \
                 others"
            )));
        }
        if spec.round_pieces == 0 || spec.round_pieces > ROUND_PIECES {
            return Err(Error::invalid(format!(
                "need rounds of 1 to {ROUND_PIECES} pieces, have {}; choose others",
                spec.round_pieces
            )));
        }
        let item = spec.grid.item_bytes;
        for (what, bytes) in [
            ("pieces", piece_bytes),
            ("stripe units", stripes.unit_bytes()),
            ("slots of chunks", grid.slot_bytes()),
        ] {
            if !bytes.is_multiple_of(item) {
                return Err(Error::invalid(format!(
                    "need {what} of whole elements for a collective, have {bytes} bytes and elements of {item}; create the array again with stripe units of whole chunks"
                )));
            }
        }
        let chunks = grid.slots_of_shard();
        let tells_own = matches!(spec.schema, MemorySchema::Own(_));
        if tells_own && !is_file(&grid, &chunks) {
            return Err(Error::invalid("need a file of bytes for regions, have an array; pass boxes"));
        }
        let parts = match tells_own {
            true => vec![],
            false => (0..spec.ranks).map(|rank| spec.schema.parts(shape, rank)).collect(),
        };
        let own = vec![None; if tells_own { spec.ranks as usize } else { 0 }];
        let covers_all = matches!(spec.schema, MemorySchema::Mesh { .. });
        let (shard, round_pieces) = (spec.shard, spec.round_pieces);
        let reach = Reach::new(&grid, shard, &spec.schema);
        Ok(Self { covers_all, grid, shard, stripes, piece_bytes, round_pieces, chunks, parts, own, reach })
    }

    /// Takes in the bytes of a process, if the processes tell them one by one. A process tells the same bytes each time.
    pub fn tell(&mut self, rank: u64, schema: &MemorySchema) -> Result<()> {
        let (MemorySchema::Own(regions), Some(place)) = (schema, self.own.get_mut(rank as usize)) else {
            return Ok(());
        };
        let own = OwnBytes::new(regions, self.grid.spec().shape[0])?;
        if place.as_ref().is_some_and(|told| *told != own) {
            return Err(Error::invalid(format!("process {rank} tells other bytes than before")));
        }
        *place = Some(own);
        OwnBytes::check_count(&self.own)
    }

    /// Bytes of a piece, except the last of a data file.
    pub fn piece_bytes(&self) -> u64 {
        self.piece_bytes
    }

    /// The round of a piece.
    pub fn round_of(&self, piece: u64) -> u64 {
        piece / self.round_pieces
    }

    /// Number of processes.
    pub fn ranks(&self) -> u64 {
        self.parts.len().max(self.own.len()) as u64
    }

    /// Whether every element is in the memory of some process, so that a write replaces everything.
    pub fn covers_all(&self) -> bool {
        self.covers_all
    }

    /// The file's division into stripe units.
    pub fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// Bytes of chunks in the data file of an entry.
    pub fn data_bytes(&self, entry: u64) -> u64 {
        self.stripes.local_length(entry, self.grid.index_offset())
    }

    /// Number of pieces of an entry's data file.
    pub fn pieces(&self, entry: u64) -> u64 {
        self.data_bytes(entry).div_ceil(self.piece_bytes)
    }

    /// Number of rounds of an entry's server.
    pub fn rounds(&self, entry: u64) -> u64 {
        self.pieces(entry).div_ceil(self.round_pieces)
    }

    /// The first round from `round` on that may have shares. A round that it passes over has none.
    pub fn next_round(&self, entry: u64, round: u64) -> Option<u64> {
        let mut local = round.checked_mul(self.round_pieces)?.checked_mul(self.piece_bytes)?;
        while local < self.data_bytes(entry) {
            let at = self.stripes.offset_of(entry, local)?;
            let first = self.first_byte_after(at)?;
            if first <= at {
                return Some(self.round_of(local / self.piece_bytes));
            }
            // The entry's first byte that is not before the next element. It may lie behind that element, on which the
            // next pass decides.
            local = self.stripes.local_length(entry, first);
        }
        None
    }

    /// The first byte of the file, from `offset` on, that may belong to a process.
    fn first_byte_after(&self, offset: u64) -> Option<u64> {
        if self.own.is_empty() {
            return self.reach.after(offset).map(|(first, _)| first);
        }
        self.own.iter().flatten().filter_map(|own| own.after(offset)).min()
    }

    /// The rounds that may have shares, in order.
    pub fn rounds_with_shares(&self, entry: u64) -> impl Iterator<Item = u64> {
        successors(self.next_round(entry, 0), move |round| self.next_round(entry, round + 1))
    }

    /// The pieces of a round.
    pub fn pieces_of(&self, entry: u64, round: u64) -> std::ops::Range<u64> {
        round * self.round_pieces..((round + 1) * self.round_pieces).min(self.pieces(entry))
    }

    /// Piece `number` of the data file of an entry.
    pub fn piece(&self, entry: u64, number: u64) -> PlannedPiece {
        let offset = number * self.piece_bytes;
        let end = (offset + self.piece_bytes).min(self.data_bytes(entry));
        let (mut boxes, mut local) = (Vec::new(), offset);
        while local < end {
            // The offset in the file, and the bytes that are contiguous in file and data file within one
            // slot.
            let Some(at) = self.stripes.offset_of(entry, local) else { break };
            let (slot, within) = (at / self.grid.slot_bytes(), at % self.grid.slot_bytes());
            let bytes = (end - local).min(self.stripes.left_in_unit(at)).min(self.grid.slot_bytes() - within);
            if let Some(Some(chunk)) = self.chunks.get(slot as usize) {
                self.add_boxes(*chunk, within, within + bytes, local - offset, &mut boxes);
            }
            local += bytes;
        }
        PlannedPiece { number, offset, bytes: end - offset, boxes }
    }

    /// Adds the elements between bytes `from` and `to` of a chunk. Byte `from` is byte `at` of the piece.
    fn add_boxes(&self, chunk: u32, from: u64, to: u64, at: u64, boxes: &mut Vec<PieceBox>) {
        let (spec, item) = (self.grid.spec(), self.grid.spec().item_bytes);
        let Some(origin) = self.grid.chunk_origin(self.shard, chunk) else { return };
        let (first, last) = (from / item, to.min(self.grid.chunk_bytes()) / item);
        let order = slow_to_fast(spec.storage, spec.shape.len());
        let mut strides = vec![0; order.len()];
        let mut stride = item;
        for &dim in order.iter().rev() {
            strides[dim] = stride;
            stride *= spec.chunk[dim];
        }
        let lengths: Vec<u64> = order.iter().map(|&dim| spec.chunk[dim]).collect();
        for_each_box(&lengths, first, last, &mut |begin, counts| {
            let (mut start, mut shape, mut offset) = (origin.clone(), vec![0; order.len()], 0);
            for ((&dim, &begin), &count) in order.iter().zip(begin).zip(counts) {
                start[dim] += begin;
                offset += begin * strides[dim];
                shape[dim] = count.min(spec.shape[dim].saturating_sub(start[dim]));
            }
            if !shape.contains(&0) {
                boxes.push(PieceBox { start, shape, at: at + offset - from, strides: strides.clone() });
            }
        });
    }

    /// A process's share of a piece.
    pub fn share(&self, piece: &PlannedPiece, rank: u64) -> Share {
        let mut share = Share { bytes: 0, tiles: Vec::new() };
        let spec = self.grid.spec();
        if !self.own.is_empty() {
            for (own, area) in
                self.own[rank as usize].iter().flat_map(|own| piece.boxes.iter().map(move |area| (own, area)))
            {
                own.add_to(&mut share, (area.start[0], area.start[0] + area.shape[0]), area.at);
            }
            return share;
        }
        let order = slow_to_fast(spec.storage, spec.shape.len());
        for (part, axes) in self.parts[rank as usize].iter().enumerate() {
            for area in &piece.boxes {
                let overlaps: Vec<Vec<Overlap>> = axes
                    .iter()
                    .zip(area.start.iter().zip(&area.shape))
                    .map(|(axis, (&start, &count))| axis.overlaps(start, start + count))
                    .collect();
                for_each_choice(&overlaps, &mut |chosen| {
                    let tile = tile_of(part, area, &order, chosen);
                    share.bytes += tile.items() * spec.item_bytes;
                    share.tiles.push(tile);
                });
            }
        }
        share
    }

    /// Bytes of a piece that processes send or receive. Elements that several processes read count for each.
    pub fn shared_bytes(&self, piece: &PlannedPiece) -> u64 {
        match self.covers_all {
            true => self.element_bytes(piece),
            false => (0..self.ranks()).map(|rank| self.share(piece, rank).bytes).sum(),
        }
    }

    /// The bytes of a piece that processes give. Several processes may give the same byte.
    pub fn coverage(&self, piece: &PlannedPiece) -> Coverage {
        let mut coverage = Coverage::new(piece.bytes);
        for rank in 0..self.ranks() {
            for tile in &self.share(piece, rank).tiles {
                coverage.add(tile.at, &tile.in_piece(self.grid.spec().item_bytes));
            }
        }
        coverage
    }

    /// Bytes of array elements in a piece.
    pub fn element_bytes(&self, piece: &PlannedPiece) -> u64 {
        let items: u64 = piece.boxes.iter().map(|area| area.shape.iter().product::<u64>()).sum();
        items * self.grid.spec().item_bytes
    }

    /// Checks that the arrays offered by a process match the memory schema.
    pub fn check_offer(&self, offer: &MemoryOffer, rank: u64) -> Result<()> {
        let dims = |axes: &Vec<Axis>| axes.len();
        let need: Vec<usize> = match self.own.is_empty() {
            true => self.parts[rank as usize].iter().map(dims).collect(),
            false => vec![1],
        };
        let have: Vec<usize> = offer.arrays.iter().map(|array| array.strides.len()).collect();
        if need == have {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "by the memory schema process {rank} has arrays of {need:?} dimensions, it offers memory of {have:?}"
        )))
    }

    /// The rounds of an entry in which a process has a share, each with the pieces that contain one.
    pub fn rounds_of(&self, entry: u64, rank: u64) -> Vec<(u64, Vec<u64>)> {
        let pieces_of = |round| {
            let has_share = |&number: &u64| self.share(&self.piece(entry, number), rank).bytes > 0;
            (round, self.pieces_of(entry, round).filter(has_share).collect::<Vec<u64>>())
        };
        self.rounds_with_shares(entry).map(pieces_of).filter(|(_, pieces)| !pieces.is_empty()).collect()
    }
}

/// Whether the elements are the bytes of a file, in order.
fn is_file(grid: &ChunkGrid, chunks: &[Option<u32>]) -> bool {
    let spec = grid.spec();
    spec.item_bytes == 1
        && grid.slot_bytes() == spec.chunk[0]
        && chunks.iter().zip(0..).all(|(chunk, slot)| *chunk == Some(slot))
}

fn tile_of(part: usize, area: &PieceBox, order: &[usize], chosen: &[Overlap]) -> Tile {
    let mut at = area.at;
    let mut levels = Vec::with_capacity(2 * order.len());
    for &dim in order {
        let (overlap, stride) = (&chosen[dim], area.strides[dim]);
        at += (overlap.start - area.start[dim]) * stride;
        let outer = TileLevel {
            count: overlap.count,
            piece_step: overlap.step.saturating_mul(stride),
            dim,
            local_step: overlap.local_step,
        };
        let inner = TileLevel { count: overlap.run, piece_step: stride, dim, local_step: 1 };
        levels.extend([outer, inner].into_iter().filter(|level| level.count > 1));
    }
    Tile { part, local: chosen.iter().map(|overlap| overlap.local).collect(), at, levels }
}

/// Dimensions in the order of elements in a chunk.
fn slow_to_fast(storage: StorageOrder, dims: usize) -> Vec<usize> {
    match storage {
        StorageOrder::C => (0..dims).collect(),
        StorageOrder::F => (0..dims).rev().collect(),
    }
}

/// Cuts a range of elements into boxes, in order. The elements `first..last` of an array with these lengths
/// are numbered with the last dimension fastest.
fn for_each_box(lengths: &[u64], first: u64, last: u64, visit: &mut impl FnMut(&[u64], &[u64])) {
    let mut start = vec![0; lengths.len()];
    let mut shape = vec![1; lengths.len()];
    cut(lengths, 0, first, last, &mut start, &mut shape, visit);
}

/// Does the same for the dimensions from `dim` on, with one element in each earlier dimension.
fn cut(
    lengths: &[u64],
    dim: usize,
    first: u64,
    last: u64,
    start: &mut [u64],
    shape: &mut [u64],
    visit: &mut impl FnMut(&[u64], &[u64]),
) {
    if first >= last {
        return;
    }
    let below: u64 = lengths[dim + 1..].iter().product();
    let (head, tail) = (first / below, last / below);
    let one = |at: u64, from: u64, to: u64, start: &mut [u64], shape: &mut [u64], visit: &mut _| {
        (start[dim], shape[dim]) = (at, 1);
        cut(lengths, dim + 1, from, to, start, shape, visit);
    };
    if head == tail {
        return one(head, first % below, last % below, start, shape, visit);
    }
    let mut whole = head;
    if !first.is_multiple_of(below) {
        one(head, first % below, below, start, shape, visit);
        whole += 1;
    }
    if whole < tail {
        (start[dim], shape[dim]) = (whole, tail - whole);
        start[dim + 1..].fill(0);
        shape[dim + 1..].copy_from_slice(&lengths[dim + 1..]);
        visit(start, shape);
    }
    if !last.is_multiple_of(below) {
        one(tail, 0, last % below, start, shape, visit);
    }
}

/// Visits every combination of one item from each list.
fn for_each_choice<T: Copy>(lists: &[Vec<T>], visit: &mut impl FnMut(&[T])) {
    if lists.iter().any(Vec::is_empty) {
        return;
    }
    let mut at = vec![0; lists.len()];
    let mut chosen: Vec<T> = lists.iter().map(|list| list[0]).collect();
    loop {
        visit(&chosen);
        let Some(dim) = (0..lists.len()).rev().find(|&dim| at[dim] + 1 < lists[dim].len()) else { return };
        at[dim] += 1;
        at[dim + 1..].fill(0);
        for (place, (list, &number)) in chosen.iter_mut().zip(lists.iter().zip(&at)) {
            *place = list[number];
        }
    }
}

#[cfg(test)]
mod tests;
