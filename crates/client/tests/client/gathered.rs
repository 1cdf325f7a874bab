//! Boxes with gaps, of arrays in a pool: as few messages as servers, and no bytes outside the box.

use std::sync::Arc;

use outcore_client::{ArrayFile, MemoryUse};
use outcore_core::{
    ChunkGrid, ChunkOrder, Error, ErrorKind, GridSpec, Hints, Operation, StorageOrder, Volume,
};
use outcore_memory::{Arena, Region};
use proptest::prelude::*;

use crate::model::{GUARD, Model, Part, block, finish};
use crate::pool_link::{MemoryLink, pool};

const SERVERS: u32 = 3;

/// An array in a pool in memory.
fn made(grid: &ChunkGrid, bounce_bytes: usize) -> (Arc<ArrayFile>, Arc<MemoryLink>) {
    let (pool, link) = pool(SERVERS);
    let volume: Arc<dyn Volume<Buffer = Region>> = Arc::new(pool);
    ArrayFile::create(&volume, "a", grid, false, Hints::default()).unwrap();
    let memory = MemoryUse { arena: Arena::new(16 << 20), bounce_bytes };
    let file = ArrayFile::open(volume, "a", grid.clone(), true, memory, None).unwrap();
    link.take_log();
    (Arc::new(file), link)
}

fn spec(shape: &[u64], chunk: &[u64], item_bytes: u64) -> GridSpec {
    GridSpec {
        shape: shape.to_vec(),
        chunk: chunk.to_vec(),
        item_bytes,
        storage: StorageOrder::C,
        chunk_order: ChunkOrder::RowMajor,
        slot_align_bytes: 256,
        column_places: None,
        growing: false,
    }
}

#[test]
fn every_other_element_is_one_message_to_each_server() {
    let grid = ChunkGrid::new(spec(&[700, 900], &[300, 400], 8)).unwrap();
    assert_eq!(grid.shards(), 1);
    let (file, link) = made(&grid, 4 << 20);
    let mut model = Model::new(&grid);
    let every = Part { start: vec![0, 1], count: vec![234, 450], step: vec![3, 2], fortran: true };
    model.write(&every, &file).unwrap();
    let log = link.take_log();
    assert_eq!(log.len(), 3, "{log:?}");
    assert_eq!(log.iter().map(|message| message.2).sum::<usize>(), 234 * 450 * 8, "no other byte is sent");
    model.check(&every, &file).unwrap();
    let log = link.take_log();
    assert_eq!(log.iter().filter(|message| message.1 == "read").count(), 3, "{log:?}");
    model.check(&Part::whole(&[700, 900]), &file).unwrap();
}

#[test]
fn small_pieces_of_many_chunks_go_together() {
    let grid = ChunkGrid::new(spec(&[100, 100], &[5, 5], 8)).unwrap();
    let (file, link) = made(&grid, 1 << 20);
    let mut model = Model::new(&grid);
    // A row through 20 chunks, with one contiguous piece in each.
    let row = Part { start: vec![52, 0], count: vec![1, 100], step: vec![1, 1], fortran: false };
    model.write(&row, &file).unwrap();
    assert!(link.take_log().len() <= 3);
    model.check(&row, &file).unwrap();
    // With little memory for gathered bytes it takes several requests, with the same result.
    drop(file);
    let (file, link) = made(&grid, 1);
    let mut model = Model::new(&grid);
    let every = Part { start: vec![0, 0], count: vec![50, 100], step: vec![2, 1], fortran: true };
    model.write(&every, &file).unwrap();
    let messages = link.take_log();
    assert!(messages.len() > 3, "{messages:?}");
    assert!(messages.iter().all(|message| message.2 <= 16 << 10), "{messages:?}");
    model.check(&Part::whole(&[100, 100]), &file).unwrap();
}

#[test]
fn each_shard_file_is_a_request_of_its_own() {
    let grid = ChunkGrid::new(spec(&[2, 40_000], &[1, 1], 8)).unwrap();
    assert_eq!(grid.shards(), 2);
    let (file, link) = made(&grid, 1 << 20);
    let mut model = Model::new(&grid);
    let every = Part { start: vec![0, 3], count: vec![2, 500], step: vec![1, 79], fortran: true };
    model.write(&every, &file).unwrap();
    assert!(link.take_log().len() as u32 <= 2 * SERVERS);
    model.check(&every, &file).unwrap();
    let around = Part { start: vec![0, 0], count: vec![2, 1000], step: vec![1, 3], fortran: false };
    model.check(&around, &file).unwrap();
}

#[test]
fn a_request_describes_a_bounded_number_of_runs() {
    let grid = ChunkGrid::new(spec(&[3 << 20], &[1 << 20], 1)).unwrap();
    let (file, link) = made(&grid, 4 << 20);
    let mut model = Model::new(&grid);
    let every = Part { start: vec![1], count: vec![3 << 19], step: vec![2], fortran: false };
    model.write(&every, &file).unwrap();
    let log = link.take_log();
    // At most a million runs: two chunks of half a million each, then the third.
    assert!(log.len() > 1 && log.len() as u32 <= 2 * SERVERS, "{log:?}");
    assert!(log.iter().all(|message| message.2 <= 1 << 20), "{log:?}");
    model.check(&Part::whole(&[3 << 20]), &file).unwrap();
}

#[test]
fn errors_of_gathered_requests_come_and_their_memory_is_free() {
    let grid = ChunkGrid::new(spec(&[700, 900], &[300, 400], 8)).unwrap();
    let every = Part { start: vec![0, 1], count: vec![234, 450], step: vec![3, 2], fortran: true };
    for operation in [Operation::Read, Operation::Write] {
        let (file, link) = made(&grid, 1 << 20);
        *link.faults.lock().unwrap() = [None, Some(Error::new(ErrorKind::Io, "a server fails"))].into();
        let memory = block(&vec![0; every.bytes(8) + 2 * GUARD]);
        let error = finish(&every.submit(&file, operation, &memory).unwrap()).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Io);
        assert_eq!(Arc::strong_count(&memory), 1);
        // Memory that is too small is refused, not overrun.
        let small = block(&[0; 1000]);
        let error = finish(&every.submit(&file, operation, &small).unwrap()).unwrap_err();
        assert_eq!((error.kind, Arc::strong_count(&small)), (ErrorKind::Invalid, 1));
        // Later requests succeed.
        finish(&every.submit(&file, operation, &memory).unwrap()).unwrap();
    }
}

#[test]
fn what_no_bounce_buffer_holds_goes_as_it_is() {
    // Two tiles of 256 x 64 elements, one above the other in memory: runs of 2 KiB, which no direct I/O
    // accepts.
    let tiles = GridSpec {
        storage: StorageOrder::F,
        chunk_order: ChunkOrder::ColumnMajor,
        ..spec(&[512, 64], &[256, 64], 8)
    };
    let grid = ChunkGrid::new(tiles).unwrap();
    let (file, link) = made(&grid, 16 << 10);
    let mut model = Model::new(&grid);
    let both = Part { start: vec![0, 0], count: vec![512, 64], step: vec![1, 1], fortran: true };
    model.write(&both, &file).unwrap();
    assert_eq!(link.take_log().iter().map(|message| message.2).collect::<Vec<_>>(), [256 << 10]);
    model.check(&both, &file).unwrap();
    let read = |log: Vec<(u32, &str, usize)>| log.iter().filter(|message| message.1 == "read").count();
    assert_eq!(read(link.take_log()), 1);
    // A part of each column: as many runs of memory as one request takes.
    let part = Part { start: vec![10, 0], count: vec![100, 64], step: vec![1, 1], fortran: true };
    model.write(&part, &file).unwrap();
    assert_eq!(link.take_log().len(), 1);
    model.check(&part, &file).unwrap();
    assert_eq!(read(link.take_log()), 1);
    model.check(&both, &file).unwrap();
    link.take_log();
    // Single elements are gathered.
    let across = Part { start: vec![3, 0], count: vec![64, 64], step: vec![4, 1], fortran: false };
    model.write(&across, &file).unwrap();
    assert!(link.take_log().iter().all(|message| message.2 <= 16 << 10));
    model.check(&both, &file).unwrap();
}

type Dimension = (u64, u64, Vec<(u64, u64, u64)>);

const BOXES: usize = 5;

/// Extent and chunk of one dimension, and (start, count, step) of some boxes.
fn dimension() -> impl Strategy<Value = Dimension> {
    (1_u64..40, 1_u64..20).prop_flat_map(move |(extent, chunk)| {
        let part = (0..extent, 1_u64..4).prop_flat_map(move |(start, step)| {
            (Just(start), 1..=(extent - start).div_ceil(step), Just(step))
        });
        (Just(extent), Just(chunk), prop::collection::vec(part, BOXES))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_boxes_are_those_of_the_model(
        dims in prop::collection::vec(dimension(), 1..4),
        fortran in prop::collection::vec(any::<bool>(), BOXES + 1),
        chunk_order in prop::sample::select(vec![ChunkOrder::RowMajor, ChunkOrder::Hilbert]),
        item in prop::sample::select(vec![1_u64, 8, 16]),
        bounce_bytes in prop::sample::select(vec![1_usize, 24 << 10, 1 << 20]),
    ) {
        let (shape, chunk): (Vec<u64>, Vec<u64>) = dims.iter().map(|d| (d.0, d.1)).unzip();
        let storage = if fortran[BOXES] { StorageOrder::F } else { StorageOrder::C };
        let grid = ChunkGrid::new(GridSpec { storage, chunk_order, ..spec(&shape, &chunk, item) }).unwrap();
        let (file, link) = made(&grid, bounce_bytes);
        let mut model = Model::new(&grid);
        for (number, &fortran) in fortran[..BOXES].iter().enumerate() {
            let pick = |f: fn(&(u64, u64, u64)) -> u64| dims.iter().map(|d| f(&d.2[number])).collect::<Vec<_>>();
            let part = Part {
                start: pick(|b| b.0), count: pick(|b| b.1), step: pick(|b| b.2), fortran,
            };
            link.take_log();
            model.write(&part, &file).unwrap();
            let written = link.take_log().len();
            model.check(&part, &file).unwrap();
            let read = link.take_log().iter().filter(|message| message.1 == "read").count();
            let most = u64::from(SERVERS) * grid.shards();
            if bounce_bytes == 1 << 20 {
                prop_assert!(written.max(read) as u64 <= most, "{written} and {read} messages, need {most}");
            }
        }
        model.check(&Part::whole(&shape), &file).unwrap();
    }
}
