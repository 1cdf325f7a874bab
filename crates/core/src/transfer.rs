//! Plans the file requests for a box of an array. It is pure, so that client and server compute the same
//! plan.

use crate::cut::Cut;
use crate::{ChunkGrid, Error, Level, Nested, Operation, Result, StorageOrder};

/// Limits for cutting a transfer into pieces.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of file bytes of a piece (a single element may be larger).
    pub piece_bytes: u64,
    /// A read includes gaps of at most this many bytes and drops them.
    pub read_gap_bytes: u64,
    /// One piece may gather runs of the file up to this length at any distance. Each longer run is a piece of
    /// its own.
    pub gather_bytes: u64,
    /// Maximum number of runs of the file in one piece.
    pub piece_extents: u64,
}

/// A regular box of an array, and the place of its elements in memory.
#[derive(Clone, Debug)]
pub struct BoxRequest {
    /// First index along each dimension.
    pub start: Vec<u64>,
    /// Number of elements along each dimension; 0 makes the box empty.
    pub count: Vec<u64>,
    /// Step along each dimension in array elements, at least 1.
    pub step: Vec<u64>,
    /// Step along each dimension in bytes of memory; may be negative.
    pub memory_strides: Vec<i64>,
}

/// One level of a nested stride: `count` repetitions, `file` bytes apart on disk and `memory` bytes apart in
/// memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stride {
    /// Repetitions.
    pub count: u64,
    /// Bytes between them in the file.
    pub file: u64,
    /// Bytes between them in memory.
    pub memory: i64,
}

/// A part of one chunk as one request: extents of a shard file at regular distances, and their map to memory.
///
/// Element runs of `run_bytes` lie at `memory_offset + sum(i_k * strides[k].memory)` in memory and at
/// `file_offset + sum(i_k * strides[k].file)` in the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Number of the shard file.
    pub shard: u64,
    /// First byte of the slot that holds the chunk.
    pub slot_offset: u64,
    /// First byte of the first extent.
    pub file_offset: u64,
    /// Bytes of an extent, gaps included.
    pub extent_bytes: u64,
    /// First byte in memory, relative to the box's first element.
    pub memory_offset: i64,
    /// Bytes that are contiguous in the file and in memory.
    pub run_bytes: u64,
    /// Nested strides, fastest in the file first.
    pub strides: Vec<Stride>,
    /// Number of strides, from the fastest, inside an extent. The others lead from extent to extent.
    pub inner: usize,
    /// Whether an extent has gaps between its runs. A write fills them with zeros: they are padding beyond
    /// the array's edge. A read drops them.
    pub has_gaps: bool,
    /// Whether only padding follows up to the end of the slot, which a write may fill with zeros.
    pub reaches_slot_end: bool,
}

impl Piece {
    /// Number of extents of the file.
    pub fn extents(&self) -> u64 {
        self.strides[self.inner..].iter().map(|s| s.count).product()
    }

    /// File bytes that the piece moves: all extents.
    pub fn file_bytes(&self) -> u64 {
        self.extents() * self.extent_bytes
    }

    /// The extents as a nested stride.
    pub fn nested(&self) -> Nested {
        let outer = self.strides[self.inner..].iter().rev();
        let levels = outer.map(|s| Level { count: s.count, step_bytes: s.file }).collect();
        Nested { offset: self.file_offset, run_bytes: self.extent_bytes, levels }
    }

    /// Number of runs of memory.
    pub fn runs(&self) -> u64 {
        self.strides.iter().map(|s| s.count).product()
    }

    /// Bytes that enter or leave memory.
    pub fn useful_bytes(&self) -> u64 {
        self.runs() * self.run_bytes
    }

    /// Cuts the piece into smaller ones.
    pub fn split(&self, operation: Operation, limits: &Limits) -> Vec<Self> {
        let end = self.file_offset + self.extent_bytes;
        let cut = Cut {
            slot: crate::Slot { shard: self.shard, offset: self.slot_offset },
            chunk_end: if self.reaches_slot_end { end } else { u64::MAX },
            whole: self.has_gaps,
            operation,
            limits,
        };
        let mut pieces = Vec::new();
        cut.split(self.file_offset, self.memory_offset, self.run_bytes, &self.strides, &mut pieces);
        pieces
    }

    /// Calls `visit(bytes after the first in the file, offset in memory)` for each run.
    pub fn for_each_run(&self, mut visit: impl FnMut(u64, i64)) {
        fn level(strides: &[Stride], file: u64, memory: i64, visit: &mut impl FnMut(u64, i64)) {
            match strides.split_last() {
                None => visit(file, memory),
                Some((s, inner)) => {
                    for i in 0..s.count {
                        level(inner, file + i * s.file, memory + i as i64 * s.memory, visit);
                    }
                }
            }
        }
        level(&self.strides, 0, self.memory_offset, &mut visit);
    }
}

/// Plans the transfer of a box.
///
/// Every element of the box is in exactly one piece. A write never touches array elements outside the box.
pub fn plan_box(
    grid: &ChunkGrid,
    request: &BoxRequest,
    operation: Operation,
    limits: &Limits,
) -> Result<Vec<Piece>> {
    let dims = grid.dims();
    let shape = &grid.spec().shape;
    if [request.start.len(), request.count.len(), request.step.len(), request.memory_strides.len()]
        != [dims; 4]
    {
        return Err(Error::invalid(format!("the array has {dims} dimensions; the box has another number")));
    }
    for dim in 0..dims {
        let last = request.count[dim].checked_sub(1).map(|steps| {
            steps.checked_mul(request.step[dim]).and_then(|s| s.checked_add(request.start[dim]))
        });
        if request.step[dim] == 0 || last.is_some_and(|last| last.is_none_or(|last| last >= shape[dim])) {
            return Err(Error::invalid(format!(
                "the box from {:?}, {:?} elements at steps {:?}, leaves the array of shape {shape:?}",
                request.start, request.count, request.step
            )));
        }
    }
    let mut pieces = Vec::new();
    if request.count.contains(&0) {
        return Ok(pieces);
    }
    // For each dimension: the chunks that the box meets, and its part in each.
    let spans: Vec<Vec<Span>> = (0..dims).map(|dim| spans(grid, request, dim)).collect();
    let mut at = vec![0; dims];
    loop {
        let part: Vec<&Span> = at.iter().zip(&spans).map(|(&i, s)| &s[i]).collect();
        plan_chunk(grid, request, operation, limits, &part, &mut pieces);
        // Counting the fastest dimension of the chunk order first keeps the pieces in file order.
        let mut order: Vec<usize> = (0..dims).collect();
        if grid.spec().chunk_order != crate::ChunkOrder::ColumnMajor {
            order.reverse();
        }
        let Some(&dim) = order.iter().find(|&&dim| at[dim] + 1 < spans[dim].len()) else {
            return Ok(pieces);
        };
        for &faster in order.iter().take_while(|&&d| d != dim) {
            at[faster] = 0;
        }
        at[dim] += 1;
    }
}

/// The part of a box in one chunk, along one dimension.
struct Span {
    chunk: u64,
    /// First index inside the chunk.
    low: u64,
    count: u64,
    /// Index in the box of the first element.
    box_index: u64,
    /// Whether the box contains every array element of the chunk along this dimension.
    whole: bool,
}

fn spans(grid: &ChunkGrid, request: &BoxRequest, dim: usize) -> Vec<Span> {
    let (size, extent) = (grid.spec().chunk[dim], grid.spec().shape[dim]);
    let (start, count, step) = (request.start[dim], request.count[dim], request.step[dim]);
    let mut spans = Vec::new();
    let mut index = 0;
    while index < count {
        let first = start + index * step;
        let chunk = first / size;
        let end = ((chunk + 1) * size).min(extent);
        let inside = ((end - first).div_ceil(step)).min(count - index);
        let whole = (step == 1 || size == 1) && first == chunk * size && inside == end - first;
        spans.push(Span { chunk, low: first - chunk * size, count: inside, box_index: index, whole });
        index += inside;
    }
    spans
}

fn plan_chunk(
    grid: &ChunkGrid,
    request: &BoxRequest,
    operation: Operation,
    limits: &Limits,
    part: &[&Span],
    pieces: &mut Vec<Piece>,
) {
    let spec = grid.spec();
    let chunk: Vec<u64> = part.iter().map(|s| s.chunk).collect();
    let slot = grid.locate(&chunk);
    let fast_to_slow: Vec<usize> = match spec.storage {
        StorageOrder::C => (0..grid.dims()).rev().collect(),
        StorageOrder::F => (0..grid.dims()).collect(),
    };
    let (mut file_offset, mut memory_offset, mut file_stride) = (slot.offset, 0_i64, spec.item_bytes);
    let mut run = spec.item_bytes;
    let mut strides: Vec<Stride> = Vec::new();
    for &dim in &fast_to_slow {
        file_offset += part[dim].low * file_stride;
        memory_offset += part[dim].box_index as i64 * request.memory_strides[dim];
        let next = Stride {
            count: part[dim].count,
            file: file_stride * request.step[dim],
            memory: request.memory_strides[dim],
        };
        file_stride *= spec.chunk[dim];
        merge(&mut run, &mut strides, next);
    }
    let whole = part.iter().all(|s| s.whole);
    let chunk_end = slot.offset + grid.chunk_bytes();
    let cut = Cut { slot, chunk_end, whole, operation, limits };
    cut.split(file_offset, memory_offset, run, &strides, pieces);
}

/// Adds a level. Merges it into the run or the level below if both file and memory are contiguous.
fn merge(run: &mut u64, strides: &mut Vec<Stride>, next: Stride) {
    if next.count == 1 {
        return;
    }
    match strides.last_mut() {
        None if next.file == *run && next.memory == *run as i64 => *run *= next.count,
        Some(last)
            if next.file == last.file * last.count && next.memory == last.memory * last.count as i64 =>
        {
            last.count *= next.count;
        }
        _ => strides.push(next),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ChunkOrder, GridSpec, Regions};
    use proptest::prelude::*;

    /// One piece per chunk, if possible.
    const WIDE: Limits =
        Limits { piece_bytes: 1 << 20, read_gap_bytes: 128 << 10, gather_bytes: 0, piece_extents: 1 };

    fn grid(
        shape: &[u64],
        chunk: &[u64],
        storage: StorageOrder,
        chunk_order: ChunkOrder,
        item_bytes: u64,
    ) -> ChunkGrid {
        let spec = GridSpec {
            shape: shape.to_vec(),
            chunk: chunk.to_vec(),
            item_bytes,
            storage,
            chunk_order,
            slot_align_bytes: 64,
            column_places: None,
            growing: false,
        };
        ChunkGrid::new(spec).unwrap()
    }

    fn request(start: &[u64], count: &[u64], item_bytes: i64) -> BoxRequest {
        let mut memory_strides = vec![item_bytes; count.len()];
        for dim in (0..count.len().saturating_sub(1)).rev() {
            memory_strides[dim] = memory_strides[dim + 1] * count[dim + 1] as i64;
        }
        BoxRequest {
            start: start.to_vec(),
            count: count.to_vec(),
            step: vec![1; count.len()],
            memory_strides,
        }
    }

    #[test]
    fn a_whole_chunk_is_one_piece() {
        let grid = grid(&[8, 8], &[4, 4], StorageOrder::C, ChunkOrder::RowMajor, 8);
        let pieces = plan_box(&grid, &request(&[4, 0], &[4, 4], 8), Operation::Read, &WIDE).unwrap();
        assert_eq!(pieces.len(), 1);
        assert_eq!((pieces[0].file_offset, pieces[0].extent_bytes, pieces[0].run_bytes), (2 * 128, 128, 128));
    }

    #[test]
    fn slab_columns_of_a_tile_keep_their_segments() {
        let grid = grid(&[64, 8], &[32, 4], StorageOrder::F, ChunkOrder::ColumnMajor, 8);
        let slab = BoxRequest { memory_strides: vec![8, 64 * 8], ..request(&[32, 4], &[32, 4], 8) };
        let pieces = plan_box(&grid, &slab, Operation::Write, &WIDE).unwrap();
        assert_eq!(pieces.len(), 1);
        assert_eq!(pieces[0].run_bytes, 32 * 8);
        assert_eq!(pieces[0].strides, [Stride { count: 4, file: 256, memory: 512 }]);
    }

    #[test]
    fn writes_fill_padding_but_never_other_elements() {
        let grid = grid(&[5, 8], &[4, 4], StorageOrder::F, ChunkOrder::ColumnMajor, 8);
        let edge = plan_box(&grid, &request(&[4, 0], &[1, 4], 8), Operation::Write, &WIDE).unwrap();
        assert!(edge.len() == 1 && edge[0].has_gaps, "rows 5 to 7 are beyond the array");
        let inside = plan_box(&grid, &request(&[0, 0], &[1, 4], 8), Operation::Write, &WIDE).unwrap();
        assert!(inside.len() == 4 && inside.iter().all(|p| !p.has_gaps));
        let gathering = Limits { gather_bytes: 8, piece_extents: 3, ..WIDE };
        let inside = plan_box(&grid, &request(&[0, 0], &[1, 4], 8), Operation::Write, &gathering).unwrap();
        let extents: Vec<u64> = inside.iter().map(Piece::extents).collect();
        assert_eq!(extents, [3, 1], "one column is not written between the others, nor more than three");
    }

    #[test]
    fn what_is_far_apart_is_one_piece_of_a_volume_that_gathers() {
        let grid = grid(&[700, 900], &[700, 900], StorageOrder::C, ChunkOrder::RowMajor, 8);
        let every = BoxRequest {
            start: vec![0, 1],
            count: vec![234, 450],
            step: vec![3, 2],
            memory_strides: vec![-450 * 8, 8],
        };
        let gathering =
            Limits { piece_bytes: 4 << 20, read_gap_bytes: 0, gather_bytes: 4 << 20, piece_extents: 1 << 20 };
        for operation in [Operation::Read, Operation::Write] {
            let pieces = plan_box(&grid, &every, operation, &gathering).unwrap();
            assert_eq!(pieces.len(), 1);
            assert_eq!((pieces[0].extents(), pieces[0].file_bytes()), (234 * 450, 234 * 450 * 8));
            let nested = Nested {
                offset: 8,
                run_bytes: 8,
                levels: vec![
                    Level { count: 234, step_bytes: 3 * 7200 },
                    Level { count: 450, step_bytes: 16 },
                ],
            };
            assert_eq!(pieces[0].nested(), nested);
        }
        let bridging = Limits { read_gap_bytes: 8, ..gathering };
        let rows = plan_box(&grid, &every, Operation::Read, &bridging).unwrap();
        assert_eq!((rows[0].extents(), rows[0].extent_bytes, rows[0].inner), (234, 7192, 1));
    }

    #[test]
    fn boxes_outside_the_array_are_refused() {
        let grid = grid(&[5, 8], &[4, 4], StorageOrder::F, ChunkOrder::ColumnMajor, 8);
        for (start, count) in [(&[5, 0], &[1, 1]), (&[0, 0], &[5, 9]), (&[u64::MAX, 0], &[2, 1])] {
            assert!(plan_box(&grid, &request(start, count, 8), Operation::Read, &WIDE).is_err());
        }
        let zero_step = BoxRequest { step: vec![0, 1], ..request(&[0, 0], &[2, 2], 8) };
        assert!(plan_box(&grid, &zero_step, Operation::Read, &WIDE).is_err());
    }

    fn orders() -> impl Strategy<Value = (StorageOrder, ChunkOrder)> {
        (
            prop_oneof![Just(StorageOrder::C), Just(StorageOrder::F)],
            prop_oneof![
                Just(ChunkOrder::RowMajor),
                Just(ChunkOrder::ColumnMajor),
                Just(ChunkOrder::Hilbert),
                Just(ChunkOrder::ZOrder)
            ],
        )
    }

    fn limits() -> impl Strategy<Value = Limits> {
        (1_u64..100, 0_u64..30, 0_u64..40, 1_u64..12).prop_map(|(items, gap, gather, piece_extents)| Limits {
            piece_bytes: items * 4,
            read_gap_bytes: gap * gap,
            gather_bytes: gather * 4,
            piece_extents,
        })
    }

    /// Shape, chunk, start, count, step of a box inside the array.
    fn boxes() -> impl Strategy<Value = Vec<(u64, u64, u64, u64, u64)>> {
        let dim = (1_u64..9, 1_u64..5, 1_u64..4).prop_flat_map(|(shape, chunk, step)| {
            (Just(shape), Just(chunk), 0..shape, Just(step)).prop_flat_map(|(shape, chunk, start, step)| {
                let most = (shape - start).div_ceil(step);
                (Just(shape), Just(chunk), Just(start), 1..=most, Just(step))
            })
        });
        proptest::collection::vec(dim, 1..4)
    }

    proptest! {
        #[test]
        fn every_element_is_moved_exactly_once((storage, chunk_order) in orders(), dims in boxes(),
                                               limits in limits(), write in any::<bool>(), cut_later in any::<bool>()) {
            let pick = |f: fn(&(u64, u64, u64, u64, u64)) -> u64| dims.iter().map(f).collect::<Vec<_>>();
            let (shape, chunk, start, count, step) =
                (pick(|d| d.0), pick(|d| d.1), pick(|d| d.2), pick(|d| d.3), pick(|d| d.4));
            let grid = grid(&shape, &chunk, storage, chunk_order, 4);
            let request = BoxRequest { step: step.clone(), ..request(&start, &count, 4) };
            let operation = if write { Operation::Write } else { Operation::Read };
            // The same must hold for a direct plan and for large pieces that are cut later.
            let wide = Limits { piece_bytes: 1 << 20, piece_extents: 1 << 20, ..limits };
            let large = plan_box(&grid, &request, operation, &wide).unwrap();
            let cut: Vec<Piece> = large.iter().flat_map(|piece| piece.split(operation, &limits)).collect();
            let direct = plan_box(&grid, &request, operation, &limits).unwrap();
            let pieces = if cut_later { cut } else { direct };

            // The naive model: one element at a time.
            let mut expected = std::collections::BTreeMap::new();
            let total: u64 = count.iter().product();
            for number in 0..total {
                let (mut rest, mut chunk_at, mut inside) = (number, vec![0; shape.len()], vec![0; shape.len()]);
                for dim in (0..shape.len()).rev() {
                    let index = start[dim] + rest % count[dim] * step[dim];
                    rest /= count[dim];
                    (chunk_at[dim], inside[dim]) = (index / chunk[dim], index % chunk[dim]);
                }
                let order: Vec<usize> = match storage {
                    StorageOrder::C => (0..shape.len()).collect(),
                    StorageOrder::F => (0..shape.len()).rev().collect(),
                };
                let element = order.iter().fold(0, |e, &dim| e * chunk[dim] + inside[dim]);
                let slot = grid.locate(&chunk_at);
                expected.insert((slot.shard, slot.offset + element * 4), number as i64 * 4);
            }
            let mut touched = std::collections::BTreeSet::new();
            for piece in &pieces {
                prop_assert!(piece.file_bytes() <= limits.piece_bytes);
                prop_assert!(piece.extents() == 1 || piece.extents() <= limits.piece_extents);
                prop_assert!(piece.extents() == 1 || piece.extent_bytes <= limits.gather_bytes);
                let mut useful = 0;
                piece.for_each_run(|file, memory| {
                    for item in 0..piece.run_bytes / 4 {
                        let place = (piece.shard, piece.file_offset + file + item * 4);
                        assert_eq!(expected.remove(&place), Some(memory + item as i64 * 4));
                        useful += 4;
                    }
                });
                prop_assert_eq!(useful, piece.useful_bytes());
                for run in Regions::new(vec![piece.nested()]).unwrap().runs() {
                    for byte in run.offset..run.offset + run.length {
                        prop_assert!(!write || touched.insert((piece.shard, byte)), "a byte written twice");
                    }
                }
            }
            prop_assert!(expected.is_empty(), "elements not moved: {:?}", expected);
            if write {
                // No byte of an array element outside the box may be written.
                let moved: u64 = total * 4;
                let gaps: u64 = pieces.iter().map(|p| p.file_bytes() - p.useful_bytes()).sum();
                prop_assert_eq!(touched.len() as u64, moved + gaps);
                prop_assert!(pieces.iter().all(|p| !p.has_gaps || shape.iter().zip(&chunk).any(|(n, c)| n % c != 0)));
            }
        }
    }
}
