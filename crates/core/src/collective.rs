//! The plan of a collective: which bytes of an array each I/O server moves when, and which of them are whose.
//!
//! Servers and processes compute it from the same description, and so need not tell each other (Seamons et al. 1995,
//! server-directed I/O). A server walks its data file in order, a *piece* after the other, some of them at once, which are
//! a *round*. What of a piece is one process's is its *share*, and one message.

use crate::schema::{Axis, Overlap};
use crate::{ChunkGrid, Error, GridSpec, MemorySchema, Packing, Result, StorageOrder, Stripes};

/// Bytes of a piece, but for the last of a data file.
pub const PIECE_BYTES: u64 = 1 << 20;
/// Pieces of a round.
pub const ROUND_PIECES: u64 = 8;
/// Rounds whose pieces a server has in memory at once.
pub const ROUNDS_AT_ONCE: u64 = 4;

/// A read or write of an array by all processes of a parallel program, as each of them describes it to each server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveSpec {
    /// Made at random by one process, and known to all.
    pub id: u128,
    /// Whether the array is written, not read.
    pub write: bool,
    /// How many processes there are.
    pub ranks: u64,
    /// How the array lies on disk.
    pub grid: GridSpec,
    /// Which of its shard files is meant.
    pub shard: u64,
    /// How it lies in the memory of the processes.
    pub schema: MemorySchema,
    /// How long others wait for a process that is not there yet, or that does not go on.
    pub patience_s: u64,
    /// Whether nothing is read from disks and nothing written to them: a measurement of everything else.
    pub skips_disk: bool,
}

/// What of an array file a server moves at once: bytes of its data file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedPiece {
    /// Its number on this server.
    pub number: u64,
    /// The first byte in the data file.
    pub offset: u64,
    /// How many.
    pub bytes: u64,
    boxes: Vec<PieceBox>,
}

/// Elements of the array that are in a piece, not counting what chunks at its edges have beyond it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct PieceBox {
    start: Vec<u64>,
    shape: Vec<u64>,
    /// Where the first one is in the piece, and the bytes from one to the next along each dimension.
    at: u64,
    strides: Vec<u64>,
}

/// What of a piece is one process's. Its bytes travel in the order of the tiles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// How many.
    pub bytes: u64,
    /// Where they lie.
    pub tiles: Vec<Tile>,
}

/// Elements in nested strides, both in a piece and in the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tile {
    /// Which of the arrays of the process.
    pub part: usize,
    /// Index of the first element in that array.
    pub local: Vec<u64>,
    /// The first byte in the piece.
    pub at: u64,
    /// The slowest first. The elements travel in this order.
    pub levels: Vec<TileLevel>,
}

/// One level of a [`Tile`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TileLevel {
    /// How many.
    pub count: u64,
    /// Bytes from one to the next in the piece.
    pub piece_step: u64,
    /// The dimension of the process's array along which they go.
    pub dim: usize,
    /// From one to the next along it.
    pub local_step: u64,
}

impl Tile {
    /// How many elements.
    pub fn items(&self) -> u64 {
        self.levels.iter().map(|level| level.count).product()
    }

    /// How its elements lie in the piece.
    pub fn in_piece(&self, item_bytes: u64) -> Packing {
        Packing::new(item_bytes, self.levels.iter().map(|level| (level.count, level.piece_step as i64)))
    }

    /// How they lie in an array of the process whose dimensions have these strides, in bytes.
    pub fn in_memory(&self, item_bytes: u64, strides: &[i64]) -> Packing {
        let step =
            |level: &TileLevel| (level.count, (level.local_step as i64).wrapping_mul(strides[level.dim]));
        Packing::new(item_bytes, self.levels.iter().map(step))
    }
}

/// The plan of one [`CollectiveSpec`], for a file that is striped in one way.
#[derive(Clone, Debug)]
pub struct CollectivePlan {
    grid: ChunkGrid,
    shard: u64,
    stripes: Stripes,
    piece_bytes: u64,
    /// Of each slot of the shard, the row-major number of its chunk there.
    chunks: Vec<Option<u32>>,
    /// Whether every element is in the memory of some process.
    covers_all: bool,
    /// Of each process.
    parts: Vec<Vec<Vec<Axis>>>,
}

impl CollectivePlan {
    /// Checks the description, and prepares what is asked of it.
    pub fn new(spec: &CollectiveSpec, stripes: Stripes) -> Result<Self> {
        let grid = ChunkGrid::new(spec.grid.clone())?;
        let shape = &spec.grid.shape;
        spec.schema.check(shape, spec.ranks)?;
        if spec.shard >= grid.shards() {
            return Err(Error::invalid(format!(
                "an array of {} shard files has no shard {}",
                grid.shards(),
                spec.shard
            )));
        }
        let item = spec.grid.item_bytes;
        for (what, bytes) in [
            ("pieces", PIECE_BYTES),
            ("stripe units", stripes.unit_bytes()),
            ("slots of chunks", grid.slot_bytes()),
        ] {
            if !bytes.is_multiple_of(item) {
                return Err(Error::invalid(format!(
                    "need {what} of whole elements for a collective, have {bytes} bytes and elements of {item}; make the \
                     array anew with stripe units of whole chunks"
                )));
            }
        }
        let chunks = grid.slots_of_shard();
        let parts = (0..spec.ranks).map(|rank| spec.schema.parts(shape, rank)).collect();
        let covers_all = matches!(spec.schema, MemorySchema::Mesh { .. });
        Ok(Self { covers_all, grid, shard: spec.shard, stripes, piece_bytes: PIECE_BYTES, chunks, parts })
    }

    /// How many processes.
    pub fn ranks(&self) -> u64 {
        self.parts.len() as u64
    }

    /// Whether every element is in the memory of some process, so that a write leaves nothing of what was there.
    pub fn covers_all(&self) -> bool {
        self.covers_all
    }

    /// How the file is striped.
    pub fn stripes(&self) -> Stripes {
        self.stripes
    }

    /// Bytes of the data file of an entry that hold chunks.
    pub fn data_bytes(&self, entry: u64) -> u64 {
        self.stripes.local_length(entry, self.grid.index_offset())
    }

    /// How many pieces the data file of an entry has.
    pub fn pieces(&self, entry: u64) -> u64 {
        self.data_bytes(entry).div_ceil(self.piece_bytes)
    }

    /// How many rounds the server of an entry goes through.
    pub fn rounds(&self, entry: u64) -> u64 {
        self.pieces(entry).div_ceil(ROUND_PIECES)
    }

    /// The pieces of a round.
    pub fn pieces_of(&self, entry: u64, round: u64) -> std::ops::Range<u64> {
        round * ROUND_PIECES..((round + 1) * ROUND_PIECES).min(self.pieces(entry))
    }

    /// Piece `number` of the data file of an entry.
    pub fn piece(&self, entry: u64, number: u64) -> PlannedPiece {
        let offset = number * self.piece_bytes;
        let end = (offset + self.piece_bytes).min(self.data_bytes(entry));
        let (mut boxes, mut local) = (Vec::new(), offset);
        while local < end {
            // Where it is in the file, and how far file and data file go on together within one slot.
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

    /// Adds the elements between two bytes of a chunk, of which the first is at byte `at` of a piece.
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

    /// What of a piece is in the memory of a process.
    pub fn share(&self, piece: &PlannedPiece, rank: u64) -> Share {
        let mut share = Share { bytes: 0, tiles: Vec::new() };
        let spec = self.grid.spec();
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

    /// Bytes of a piece that are in the memory of processes.
    pub fn shared_bytes(&self, piece: &PlannedPiece) -> u64 {
        match self.covers_all {
            true => self.element_bytes(piece),
            false => (0..self.ranks()).map(|rank| self.share(piece, rank).bytes).sum(),
        }
    }

    /// Bytes of a piece that are elements of the array.
    pub fn element_bytes(&self, piece: &PlannedPiece) -> u64 {
        let items: u64 = piece.boxes.iter().map(|area| area.shape.iter().product::<u64>()).sum();
        items * self.grid.spec().item_bytes
    }

    /// The rounds of an entry in which a process has a share, each with the pieces of which it has one.
    pub fn rounds_of(&self, entry: u64, rank: u64) -> Vec<(u64, Vec<u64>)> {
        let pieces_of = |round| {
            let has_share = |&number: &u64| self.share(&self.piece(entry, number), rank).bytes > 0;
            (round, self.pieces_of(entry, round).filter(has_share).collect::<Vec<u64>>())
        };
        (0..self.rounds(entry)).map(pieces_of).filter(|(_, pieces)| !pieces.is_empty()).collect()
    }
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

/// Cuts the elements from `first` to `last` of an array with these lengths, numbered with the last dimension fastest, into
/// boxes, in their order.
fn for_each_box(lengths: &[u64], first: u64, last: u64, visit: &mut impl FnMut(&[u64], &[u64])) {
    let mut start = vec![0; lengths.len()];
    let mut shape = vec![1; lengths.len()];
    cut(lengths, 0, first, last, &mut start, &mut shape, visit);
}

/// The same for the dimensions from `dim` on, below the one element of each dimension before.
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

/// Visits each way of taking one of each.
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
mod tests {
    use super::*;
    use crate::{ChunkOrder, Distribution, ElementBox};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn spec(grid: GridSpec, ranks: u64, schema: MemorySchema) -> CollectiveSpec {
        let (id, write, shard, patience_s, skips_disk) = (1, true, 0, 60, false);
        CollectiveSpec { id, write, ranks, grid, shard, schema, patience_s, skips_disk }
    }

    /// Every element of a process's share of a piece: its byte in the piece, and its index in the process's array.
    fn elements(tile: &Tile) -> Vec<(u64, Vec<u64>)> {
        let mut found = vec![(tile.at, tile.local.clone())];
        for level in &tile.levels {
            let mut next = Vec::new();
            for (at, local) in found {
                for i in 0..level.count {
                    let mut local = local.clone();
                    local[level.dim] += i * level.local_step;
                    next.push((at + i * level.piece_step, local));
                }
            }
            found = next;
        }
        found
    }

    /// The indices of an array, the last dimension fastest.
    fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
        shape.iter().fold(vec![vec![]], |found, &n| {
            found.iter().flat_map(|at| (0..n).map(move |i| [at.as_slice(), &[i]].concat())).collect()
        })
    }

    /// Who has an element, and where in his memory, by the definition: (rank, part, index).
    fn owner(schema: &MemorySchema, shape: &[u64], at: &[u64]) -> Option<(u64, usize, Vec<u64>)> {
        match schema {
            MemorySchema::Mesh { mesh, dims } => {
                let (mut rank, mut local, mut level) = (0, vec![], 0);
                for ((&index, &n), dim) in at.iter().zip(shape).zip(dims) {
                    let run = match dim {
                        Distribution::Whole => {
                            local.push(index);
                            continue;
                        }
                        Distribution::Block => n.div_ceil(mesh[level]),
                        Distribution::Cyclic(run) => *run,
                    };
                    let (round, within) = (index / run / mesh[level], index % run);
                    local.push(round * run + within);
                    rank = rank * mesh[level] + index / run % mesh[level];
                    level += 1;
                }
                Some((rank, 0, local))
            }
            MemorySchema::Boxes(boxes) => boxes.iter().enumerate().find_map(|(rank, own)| {
                own.iter().enumerate().find_map(|(part, area)| {
                    let local: Option<Vec<u64>> = at
                        .iter()
                        .zip(area.start.iter().zip(&area.shape))
                        .map(|(&index, (&start, &count))| index.checked_sub(start).filter(|&i| i < count))
                        .collect();
                    local.map(|local| (rank as u64, part, local))
                })
            }),
        }
    }

    fn schema(dims: usize) -> impl Strategy<Value = (u64, MemorySchema)> {
        let dim = prop_oneof![
            Just(Distribution::Whole),
            Just(Distribution::Block),
            (1_u64..4).prop_map(Distribution::Cyclic)
        ];
        (vec(dim, dims), vec(1_u64..4, dims), 0_u64..3).prop_map(|(dims, counts, extra)| {
            let distributed = dims.iter().filter(|&&dim| dim != Distribution::Whole).count();
            let mesh = counts[..distributed].to_vec();
            (mesh.iter().product::<u64>() + extra, MemorySchema::Mesh { mesh, dims })
        })
    }

    /// Boxes of three processes: the array cut in two along one dimension, and one of the halves along another one; some of
    /// them left out.
    fn boxes(shape: Vec<u64>) -> impl Strategy<Value = (u64, MemorySchema)> {
        let dims = shape.len();
        (0..dims, 0..dims, any::<u64>(), any::<u64>(), vec(0_usize..4, 3)).prop_map(
            move |(a, b, first, second, owners)| {
                let whole = ElementBox { start: vec![0; shape.len()], shape: shape.clone() };
                let split = |area: &ElementBox, dim: usize, at: u64| {
                    let (mut low, mut high) = (area.clone(), area.clone());
                    let at = at % (area.shape[dim] + 1);
                    low.shape[dim] = at;
                    (high.start[dim], high.shape[dim]) = (area.start[dim] + at, area.shape[dim] - at);
                    (low, high)
                };
                let (low, high) = split(&whole, a, first);
                let (left, right) = split(&high, b, second);
                let mut own = vec![vec![]; 3];
                for (area, owner) in [low, left, right].into_iter().zip(owners) {
                    // The fourth is nobody.
                    if let Some(own) = own.get_mut(owner) {
                        own.push(area);
                    }
                }
                (3, MemorySchema::Boxes(own))
            },
        )
    }

    fn case() -> impl Strategy<Value = (GridSpec, Stripes, u64, MemorySchema)> {
        let grid = vec((1_u64..9, 1_u64..6), 1..4).prop_flat_map(|dims| {
            let shape: Vec<u64> = dims.iter().map(|&(n, _)| n).collect();
            let chunk: Vec<u64> = dims.iter().map(|&(n, c)| c.min(n)).collect();
            let schemas = prop_oneof![schema(shape.len()).boxed(), boxes(shape.clone()).boxed()];
            let per_block: Vec<_> = shape.iter().zip(&chunk).map(|(n, c)| 1..=n.div_ceil(*c)).collect();
            let blocks = per_block.prop_map(ChunkOrder::Blocks);
            (
                Just(shape),
                Just(chunk),
                schemas,
                prop_oneof![Just(StorageOrder::C), Just(StorageOrder::F)],
                prop_oneof![
                    Just(ChunkOrder::RowMajor),
                    Just(ChunkOrder::ColumnMajor),
                    Just(ChunkOrder::Hilbert),
                    blocks,
                ],
                prop_oneof![Just(1_u64), Just(64), Just(1 << 18)],
                1_u64..4,
                1_u64..5,
            )
        });
        grid.prop_map(|(shape, chunk, (ranks, schema), storage, chunk_order, align, units, count)| {
            let item_bytes = 8;
            let slot = (chunk.iter().product::<u64>() * item_bytes).div_ceil(align) * align;
            let grid = GridSpec {
                shape,
                chunk,
                item_bytes,
                storage,
                chunk_order,
                slot_align_bytes: align,
                column_places: None,
                growing: false,
            };
            (grid, Stripes::new(slot * units, count).unwrap(), ranks, schema)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]

        /// Every element is in one share of one piece, at the byte where the grid and the stripes have it.
        #[test]
        fn shares_are_a_gather_and_scatter((grid, stripes, ranks, schema) in case(), piece_items in 1_u64..20) {
            let mut plan = CollectivePlan::new(&spec(grid.clone(), ranks, schema.clone()), stripes).unwrap();
            if grid.slot_align_bytes < 1 << 18 {
                plan.piece_bytes = piece_items * grid.item_bytes;
            }
            let chunks = ChunkGrid::new(grid.clone()).unwrap();
            let mut expected = std::collections::BTreeMap::new();
            for at in indices(&grid.shape) {
                let Some(owner) = owner(&schema, &grid.shape, &at) else { continue };
                let chunk: Vec<u64> = at.iter().zip(&grid.chunk).map(|(i, c)| i / c).collect();
                let inside: Vec<(u64, u64)> = at.iter().zip(&grid.chunk).map(|(i, &c)| (i % c, c)).collect();
                let number = |fold: u64, (i, c): &(u64, u64)| fold * c + i;
                let element = match grid.storage {
                    StorageOrder::C => inside.iter().fold(0, number),
                    StorageOrder::F => inside.iter().rev().fold(0, number),
                };
                let place = stripes.locate(chunks.locate(&chunk).offset + element * grid.item_bytes);
                prop_assert!(expected.insert(place, owner).is_none());
            }
            let mut found = std::collections::BTreeMap::new();
            for entry in 0..stripes.count() {
                for round in 0..plan.rounds(entry) {
                    for number in plan.pieces_of(entry, round) {
                        let piece = plan.piece(entry, number);
                        let mut bytes = 0;
                        for rank in 0..ranks {
                            let share = plan.share(&piece, rank);
                            bytes += share.bytes;
                            let mut counted = 0;
                            for tile in &share.tiles {
                                for (at, local) in elements(tile) {
                                    prop_assert!(at + grid.item_bytes <= piece.bytes);
                                    let place = (entry, piece.offset + at);
                                    prop_assert!(found.insert(place, (rank, tile.part, local)).is_none());
                                    counted += grid.item_bytes;
                                }
                            }
                            prop_assert_eq!(counted, share.bytes);
                        }
                        prop_assert_eq!(bytes, plan.shared_bytes(&piece));
                        prop_assert!(bytes <= plan.element_bytes(&piece));
                        if matches!(schema, MemorySchema::Mesh { .. }) {
                            prop_assert_eq!(bytes, plan.element_bytes(&piece), "a mesh leaves nothing out");
                        }
                    }
                }
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn boxes_of_a_range_are_its_elements_in_order(
            lengths in vec(1_u64..5, 1..4), first in 0_u64..70, last in 0_u64..70,
        ) {
            let total: u64 = lengths.iter().product();
            let (first, last) = (first.min(total), last.min(total));
            let mut found = vec![];
            for_each_box(&lengths, first, last, &mut |start, shape| {
                for at in indices(shape) {
                    found.push(at.iter().zip(start).zip(&lengths).fold(0, |number, ((i, s), n)| number * n + i + s));
                }
            });
            prop_assert_eq!(found, (first..last).collect::<Vec<u64>>());
        }
    }

    #[test]
    fn large_chunks_are_cut_into_pieces_and_rounds() {
        // 24 MiB in chunks of 12 MiB, one on each of two servers; two processes with half the columns each.
        let grid = GridSpec {
            shape: vec![4096, 768],
            chunk: vec![2048, 768],
            item_bytes: 8,
            storage: StorageOrder::C,
            chunk_order: ChunkOrder::RowMajor,
            slot_align_bytes: 1 << 16,
            column_places: None,
            growing: false,
        };
        let dims = vec![Distribution::Whole, Distribution::Block];
        let schema = MemorySchema::Mesh { mesh: vec![2], dims };
        let plan = CollectivePlan::new(&spec(grid, 3, schema), Stripes::new(12 << 20, 2).unwrap()).unwrap();
        assert_eq!((plan.pieces(0), plan.rounds(0)), (12, 2));
        assert_eq!(plan.rounds_of(1, 1), [(0, (0..8).collect()), (1, (8..12).collect())]);
        assert!(plan.rounds_of(1, 2).is_empty());
        let share = plan.share(&plan.piece(1, 3), 1);
        // 170 whole rows of 6 KiB from row 512 on, and 4 KiB of the next.
        assert_eq!(share.bytes, 170 * 3072 + 1024);
        assert_eq!(share.tiles.len(), 2);
    }

    #[test]
    fn what_cannot_be_planned_is_refused() {
        let grid = |item_bytes| GridSpec {
            shape: vec![4],
            chunk: vec![2],
            item_bytes,
            storage: StorageOrder::C,
            chunk_order: ChunkOrder::RowMajor,
            slot_align_bytes: 1,
            column_places: None,
            growing: false,
        };
        let schema = MemorySchema::Mesh { mesh: vec![], dims: vec![Distribution::Whole] };
        let plan = |item, unit, shard| {
            let spec = CollectiveSpec { shard, ..spec(grid(item), 1, schema.clone()) };
            CollectivePlan::new(&spec, Stripes::new(unit, 1).unwrap())
                .map(|_| ())
                .map_err(|error| error.message)
        };
        assert!(plan(8, 64, 0).is_ok());
        assert!(plan(8, 60, 0).unwrap_err().contains("stripe units of whole elements"));
        assert!(plan(24, 48, 0).unwrap_err().contains("pieces of whole elements"));
        assert!(plan(8, 64, 1).unwrap_err().contains("no shard 1"));
    }
}
