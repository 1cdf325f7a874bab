//! Tests of the plan against its definition.

use super::*;
use crate::{ChunkOrder, Distribution, ElementBox, Level, Nested, Regions};
use proptest::collection::vec;
use proptest::prelude::*;

fn spec(grid: GridSpec, ranks: u64, schema: MemorySchema) -> CollectiveSpec {
    let (id, write, shard, patience_s, durable, skips_disk) = (1, true, 0, 60, true, false);
    CollectiveSpec {
        id,
        write,
        ranks,
        grid,
        shard,
        schema,
        patience_s,
        durable,
        skips_disk,
        piece_bytes: PIECE_BYTES,
        round_pieces: ROUND_PIECES,
    }
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

/// All indices of an array, with the last dimension fastest.
fn indices(shape: &[u64]) -> Vec<Vec<u64>> {
    shape.iter().fold(vec![vec![]], |found, &n| {
        found.iter().flat_map(|at| (0..n).map(move |i| [at.as_slice(), &[i]].concat())).collect()
    })
}

/// The owner of an element and its place in the owner's memory, by the definition: (rank, part, index).
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
        MemorySchema::Own(_) => None,
    }
}

/// Nested strides in ascending order, before byte 300.
fn ascending() -> impl Strategy<Value = Regions> {
    let part = (0_u64..30, 1_u64..6, vec((1_u64..4, 0_u64..5), 0..3));
    vec(part, 0..5).prop_map(|parts| {
        let (mut nested, mut at) = (vec![], 0);
        for (gap, run_bytes, inner) in parts {
            let (mut levels, mut extent) = (vec![], run_bytes);
            for (count, between) in inner {
                levels.insert(0, Level { count, step_bytes: extent + between });
                extent += (count - 1) * (extent + between);
            }
            nested.push(Nested { offset: at + gap, run_bytes, levels });
            at += gap + extent;
        }
        nested.retain(|part| Regions::new(vec![part.clone()]).unwrap().end() <= 300);
        Regions::new(nested).unwrap()
    })
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

/// Boxes of three processes: the array cut in two along one dimension, and one half along another. Some boxes
/// have no owner.
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
                // Owner 3 stands for no process.
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
            (1_u64..5, proptest::option::of(1_u64..8)),
        )
    });
    grid.prop_map(|(shape, chunk, (ranks, schema), storage, chunk_order, align, units, (count, round))| {
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
        let stripes = Stripes::new(slot * units, count).unwrap().with_round_units(round).unwrap();
        (grid, stripes, ranks, schema)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// Every element is in one share of one piece, at the byte that the grid and the stripes give.
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
            for round in plan.rounds_with_shares(entry) {
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

    /// The bytes that processes tell are in shares of theirs, and in no others.
    #[test]
    fn told_bytes_are_a_gather_and_scatter(
        told in vec(ascending(), 1..4), chunk in 1_u64..40, unit in 1_u64..40, count in 1_u64..4, piece_bytes in 1_u64..50,
    ) {
        let grid = GridSpec { shape: vec![300], chunk: vec![chunk], ..bytes() };
        let stripes = Stripes::new(unit, count).unwrap();
        let ranks = told.len() as u64;
        let mut plan =
            CollectivePlan::new(&spec(grid, ranks, MemorySchema::Own(Regions::default())), stripes).unwrap();
        (plan.piece_bytes, plan.round_pieces) = (piece_bytes, 2);
        let mut expected = vec![];
        for (rank, regions) in (0..).zip(&told) {
            plan.tell(rank, &MemorySchema::Own(regions.clone())).unwrap();
            let places = regions.runs().flat_map(|run| run.offset..run.offset + run.length).zip(0..);
            expected.extend(places.map(|(offset, local)| (stripes.locate(offset), rank, local)));
        }
        let mut found = vec![];
        for entry in 0..count {
            for number in plan.rounds_with_shares(entry).flat_map(|round| plan.pieces_of(entry, round)) {
                let (piece, mut bytes) = (plan.piece(entry, number), std::collections::BTreeSet::new());
                let before = found.len();
                for rank in 0..ranks {
                    let share = plan.share(&piece, rank);
                    let elements: Vec<_> = share.tiles.iter().flat_map(elements).collect();
                    prop_assert_eq!(share.bytes, elements.len() as u64);
                    bytes.extend(elements.iter().map(|(at, _)| *at));
                    found.extend(elements.iter().map(|(at, local)| ((entry, piece.offset + at), rank, local[0])));
                }
                let coverage = plan.coverage(&piece);
                let runs = coverage.runs().flat_map(|run| run.start..run.start + run.bytes);
                prop_assert!(runs.eq(bytes.iter().copied()));
                prop_assert_eq!(coverage.has_repeats(), found.len() - before > bytes.len());
                prop_assert_eq!(plan.shared_bytes(&piece), (found.len() - before) as u64);
            }
        }
        found.sort_unstable();
        expected.sort_unstable();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn regions_ascend_if_no_byte_is_before_an_earlier_one(
        parts in vec((0_u64..60, 1_u64..9, vec((1_u64..4, 0_u64..20), 0..3)), 0..4),
    ) {
        let part = |(offset, run_bytes, levels): (u64, u64, Vec<(u64, u64)>)| {
            let levels = levels.into_iter().map(|(count, step_bytes)| Level { count, step_bytes }).collect();
            Nested { offset, run_bytes, levels }
        };
        let regions = Regions::new(parts.into_iter().map(part).collect()).unwrap();
        let bytes: Vec<u64> = regions.runs().flat_map(|run| run.offset..run.offset + run.length).collect();
        prop_assert_eq!(regions.ascend(), bytes.is_sorted_by(|a, b| a < b));
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
    // 24 MiB in chunks of 12 MiB, one on each of two servers. Each of two processes has half of the columns.
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
    // 170 whole rows of 6 KiB, from row 512, and 4 KiB of the next row.
    assert_eq!(share.bytes, 170 * 3072 + 1024);
    assert_eq!(share.tiles.len(), 2);
}

/// A file of bytes.
fn bytes() -> GridSpec {
    GridSpec::of_bytes(1 << 42, 1 << 26)
}

#[test]
fn rounds_without_told_bytes_are_skipped() {
    let stripes = Stripes::new(1 << 20, 3).unwrap();
    let schema = |parts| MemorySchema::Own(Regions::new(parts).unwrap());
    let level = |count, step_bytes| Level { count, step_bytes };
    let far = schema(vec![
        Nested { offset: 5, run_bytes: 7, levels: vec![level(2, 5 << 39), level(3, 1 << 39)] },
        Nested { offset: (1 << 42) - 9, run_bytes: 9, levels: vec![] },
    ]);
    let mut plan = CollectivePlan::new(&spec(bytes(), 2, schema(vec![])), stripes).unwrap();
    plan.tell(1, &far).unwrap();
    let mut expected = vec![vec![]; 3];
    let starts = [0, 5 << 39].map(|outer| [0_u64, 1, 2].map(|inner| outer + (inner << 39) + 5));
    for offset in starts.concat().into_iter().chain([(1 << 42) - 9]) {
        let (entry, local) = stripes.locate(offset);
        expected[entry as usize].push(local / (ROUND_PIECES * PIECE_BYTES));
    }
    let found: Vec<Vec<u64>> = (0..3).map(|entry| plan.rounds_with_shares(entry).collect()).collect();
    assert_eq!(found, expected);
}

#[test]
fn told_bytes_that_cannot_be_planned_are_refused() {
    let stripes = Stripes::new(1 << 20, 3).unwrap();
    let run = |offset, run_bytes| Nested { offset, run_bytes, levels: vec![] };
    let own = |parts| MemorySchema::Own(Regions::new(parts).unwrap());
    let mut plan = CollectivePlan::new(&spec(bytes(), 2, own(vec![])), stripes).unwrap();
    let mut refused = |parts| plan.tell(0, &own(parts)).map_err(|error| error.message);
    assert!(refused(vec![run(7, 1), run(3, 1)]).unwrap_err().contains("ascend"));
    assert!(refused(vec![run(1 << 42, 1)]).unwrap_err().contains("before byte 4398046511104"));
    assert!(refused(vec![run(1, 1)]).is_ok());
    assert!(refused(vec![run(1, 1)]).is_ok(), "again");
    assert!(refused(vec![run(2, 1)]).unwrap_err().contains("other bytes than before"));
    let many = (0..1 << 19).map(|at| run(2 * at, 1)).collect();
    assert!(plan.tell(1, &own(many)).unwrap_err().message.contains("at most 524288 runs"));
    for grid in [
        GridSpec { item_bytes: 2, chunk: vec![1 << 24], ..bytes() },
        GridSpec { chunk: vec![3 << 20], slot_align_bytes: 1 << 23, ..bytes() },
        GridSpec { shape: vec![4, 4], chunk: vec![2, 2], ..bytes() },
    ] {
        let error = CollectivePlan::new(&spec(grid, 2, own(vec![])), stripes).unwrap_err();
        assert!(error.message.contains("need a file of bytes"), "{error}");
    }
}

/// 65536 chunks of 64 bytes at distances of 2^44 bytes. A plan that examined each piece would never end.
fn far_apart() -> GridSpec {
    GridSpec {
        shape: vec![8, 8, 65536],
        chunk: vec![8, 8, 1],
        item_bytes: 1,
        storage: StorageOrder::C,
        chunk_order: ChunkOrder::RowMajor,
        slot_align_bytes: 1 << 44,
        column_places: None,
        growing: false,
    }
}

#[test]
fn rounds_without_elements_are_skipped() {
    let area = |start: [u64; 3], shape: [u64; 3]| ElementBox { start: start.to_vec(), shape: shape.to_vec() };
    let own = vec![vec![area([0, 0, 65535], [8, 8, 1])], vec![], vec![area([3, 2, 40000], [1, 1, 3])]];
    let stripes = Stripes::new(1 << 20, 3).unwrap();
    let plan = CollectivePlan::new(&spec(far_apart(), 3, MemorySchema::Boxes(own)), stripes).unwrap();
    let round_at = |chunk: u64| {
        let (entry, local) = stripes.locate(chunk << 44);
        (entry, local / (ROUND_PIECES * PIECE_BYTES))
    };
    let mut expected = vec![vec![]; 3];
    for (entry, round) in [40000, 40001, 40002, 65535].map(round_at) {
        expected[entry as usize].push(round);
    }
    let found: Vec<Vec<u64>> = (0..3).map(|entry| plan.rounds_with_shares(entry).collect()).collect();
    assert_eq!(found, expected);
    let rounds = |rank| (0..3).map(|entry| plan.rounds_of(entry, rank).len()).sum::<usize>();
    assert_eq!([0, 1, 2].map(rounds), [1, 0, 3]);
}

#[test]
fn a_plan_of_too_many_boxes_skips_nothing() {
    let grid = GridSpec { slot_align_bytes: 1 << 16, ..far_apart() };
    let whole = ElementBox { start: vec![0; 3], shape: grid.shape.clone() };
    let copies = |count| MemorySchema::Boxes(vec![vec![whole.clone(); count]]);
    let chunks = ChunkGrid::new(grid).unwrap();
    let all = Reach::new(&chunks, 0, &copies(17));
    assert_eq!(all.after(5), Some((0, chunks.index_offset())));
    assert_eq!(Reach::new(&chunks, 0, &copies(16)).after(5), Some((0, 64)));
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
        CollectivePlan::new(&spec, Stripes::new(unit, 1).unwrap()).map(|_| ()).map_err(|error| error.message)
    };
    assert!(plan(8, 64, 0).is_ok());
    assert!(plan(8, 60, 0).unwrap_err().contains("stripe units of whole elements"));
    assert!(plan(24, 48, 0).unwrap_err().contains("pieces of whole elements"));
    assert!(plan(8, 64, 1).unwrap_err().contains("no shard 1"));
}

#[test]
fn pieces_are_smaller_if_a_process_has_several_copies() {
    assert_eq!([0, 1, 2, 3, 16].map(piece_bytes), [16, 16, 8, 5, 1].map(|units| units * PIECE_UNIT_BYTES));
    assert_eq!([17, 192, u64::MAX].map(piece_bytes), [PIECE_UNIT_BYTES; 3]);
}
