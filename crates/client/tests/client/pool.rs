//! A pool as a volume: conformance, one message for each request and server, errors.

use std::sync::Arc;
use std::time::Duration;

use outcore_client::{ArrayFile, MemoryUse, PoolVolume};
use outcore_core::{
    Buffer, ChunkGrid, ChunkOrder, Error, ErrorKind, FileId, GridSpec, Hints, Level, Link, Nested, OpenMode,
    Operation, Regions, Result, StorageOrder, Volume, VolumeRequest, conformance,
};
use outcore_memory::{Arena, Region, Segment};
use proptest::prelude::*;

use crate::pool_link::{MemoryLink, content, pool, region};

pub const PATIENCE: Duration = Duration::from_secs(120);

pub fn made(pool: &PoolVolume<MemoryLink>, length: u64) -> FileId {
    pool.open("f", OpenMode::Create { length, reserve: false }).unwrap()
}

pub fn run<L: Link<Buffer = Region> + 'static>(
    pool: &PoolVolume<L>,
    file: FileId,
    operation: Operation,
    regions: Regions,
    buffer: &Region,
) -> Result<()> {
    pool.submit_regions(file, operation, regions, buffer.clone()).wait(PATIENCE).expect("a request hangs")
}

pub fn sync<L: Link<Buffer = Region> + 'static>(pool: &PoolVolume<L>, file: FileId) -> Result<()> {
    run(pool, file, Operation::Sync, Regions::default(), &Region::empty())
}

pub fn write_all(pool: &PoolVolume<MemoryLink>, file: FileId, byte: u8) {
    let all = Regions::contiguous(0, 300).unwrap();
    run(pool, file, Operation::Write, all, &region(&[byte; 300])).unwrap();
}

pub fn noise(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 251 + 1) as u8).collect()
}

#[test]
fn a_pool_conforms() {
    for servers in [1, 2, 3, 7] {
        let (pool, link) = pool(servers);
        conformance::volume(&pool, &region, &|| std::thread::sleep(Duration::from_millis(20)));
        pool.remove("a").unwrap();
        assert_eq!(link.data_files(), 0, "data files go with their names");
    }
}

#[test]
fn a_request_is_one_message_to_each_server_involved() {
    let (pool, link) = pool(3);
    let file = made(&pool, 3000);
    assert_eq!(link.take_log(), [(0, "set length", 0), (1, "set length", 0), (2, "set length", 0)]);

    let all = region(&noise(3000));
    run(&pool, file, Operation::Write, Regions::contiguous(0, 3000).unwrap(), &all).unwrap();
    assert_eq!(link.take_log(), [(0, "write", 1000), (1, "write", 1000), (2, "write", 1000)]);

    // Units of 100 bytes over three servers: 60 bytes of each of the units 0, 3, 6, ... lie on the first
    // server alone.
    let strided = Regions::strided(20, 0, 60, 10, 300, 0).unwrap();
    let part = region(&[0; 600]);
    run(&pool, file, Operation::Read, strided, &part).unwrap();
    assert_eq!(link.take_log(), [(0, "read", 600)]);
    let expected: Vec<u8> = (0..10).flat_map(|i| noise(3000)[20 + 300 * i..][..60].to_vec()).collect();
    assert_eq!(content(&part), expected);

    // A list of a thousand pieces, scattered over the file.
    let pieces = (0..1000).map(|i| Nested { offset: (i * 977) % 3000, run_bytes: 1, levels: vec![] });
    let list = region(&[0; 1000]);
    run(&pool, file, Operation::Read, Regions::new(pieces.collect()).unwrap(), &list).unwrap();
    let log = link.take_log();
    assert_eq!(log.len(), 3, "{log:?}");
    assert_eq!(log.iter().map(|message| message.2).sum::<usize>(), 1000);
    let expected: Vec<u8> = (0..1000).map(|i| noise(3000)[(i * 977) % 3000]).collect();
    assert_eq!(content(&list), expected);

    pool.submit_regions(file, Operation::Sync, Regions::default(), Region::empty())
        .wait(PATIENCE)
        .unwrap()
        .unwrap();
    assert_eq!(link.take_log(), [(0, "sync", 0), (1, "sync", 0), (2, "sync", 0)]);
    assert_eq!(pool.messages(), 3 + 3 + 1 + 3 + 3);
}

#[test]
fn nested_strides_from_memory_in_pieces() {
    let (pool, link) = pool(4);
    let file = made(&pool, 10_000);
    // A block of 3 by 5 by 7 bytes of a flat array, from memory with a gap after each byte.
    let levels = vec![Level { count: 3, step_bytes: 1000 }, Level { count: 5, step_bytes: 50 }];
    let block = Regions::new(vec![Nested { offset: 123, run_bytes: 7, levels }]).unwrap();
    let bytes = noise(2 * 105);
    let memory = Arc::new(Arena::new(1 << 20).allocate(bytes.len()).unwrap());
    Region::whole(memory.clone()).copy_in(0, &bytes);
    let every_second = (0..105).map(|i| Segment { offset: 2 * i, bytes: 1 }).collect();
    let source = Region::new(memory, every_second).unwrap();
    link.take_log();
    run(&pool, file, Operation::Write, block, &source).unwrap();
    assert!(link.take_log().len() <= 4);
    let whole = region(&[9; 10_000]);
    run(&pool, file, Operation::Read, Regions::contiguous(0, 10_000).unwrap(), &whole).unwrap();
    let mut expected = vec![0; 10_000];
    for (number, byte) in bytes.chunks(2).map(|pair| pair[0]).enumerate() {
        let (i, j, k) = (number / 35, number / 7 % 5, number % 7);
        expected[123 + 1000 * i + 50 * j + k] = byte;
    }
    assert_eq!(content(&whole), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn any_list_through_any_layout_is_as_in_one_vector(
        servers in 1_u32..5, unit in 1_u64..50, writes in prop::collection::vec(
            prop::collection::vec((0_u64..500, 1_u64..60), 1..5), 1..6),
    ) {
        let (pool, _) = pool(servers);
        let hints = Hints { stripe_unit_bytes: Some(unit), ..Hints::default() };
        let file = pool.create_with("f", 0, false, hints).unwrap();
        let mut model: Vec<u8> = vec![];
        for (number, extents) in writes.iter().enumerate() {
            let total = extents.iter().map(|e| e.1).sum::<u64>() as usize;
            let bytes: Vec<u8> = noise(total).iter().map(|b| b.wrapping_add(number as u8 * 31)).collect();
            // The result of bytes written twice in one request is undefined, so the model skips them.
            let mut seen = vec![false; 600];
            let overlap = extents.iter().any(|&(offset, length)| {
                (offset..offset + length).any(|at| std::mem::replace(&mut seen[at as usize], true))
            });
            if overlap {
                continue;
            }
            let parts = extents.iter().map(|&(offset, run_bytes)| Nested { offset, run_bytes, levels: vec![] });
            run(&pool, file, Operation::Write, Regions::new(parts.collect()).unwrap(), &region(&bytes)).unwrap();
            let mut at = 0;
            for &(offset, length) in extents {
                let end = (offset + length) as usize;
                model.resize(model.len().max(end), 0);
                model[offset as usize..end].copy_from_slice(&bytes[at..at + length as usize]);
                at += length as usize;
            }
            prop_assert_eq!(pool.length(file), Ok(model.len() as u64));
        }
        let whole = region(&vec![1; model.len()]);
        run(&pool, file, Operation::Read, Regions::contiguous(0, model.len() as u64).unwrap(), &whole).unwrap();
        prop_assert_eq!(content(&whole), model);
    }
}

#[test]
fn a_reader_sees_what_another_client_wrote_beyond_the_old_end() {
    let (writer, link) = pool(2);
    let clock = Arc::new(|| 1_000_000_000_000_000_u64);
    let reader = PoolVolume::new(link.clone(), clock).unwrap();
    let file = made(&writer, 10);
    let seen = reader.open("f", OpenMode::Read).unwrap();
    let ten = Regions::contiguous(495, 10).unwrap();
    let error = run(&reader, seen, Operation::Read, ten.clone(), &region(&[0; 10])).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Truncated);
    assert!(error.message.contains("505") && error.message.contains("ends at 10"), "{error}");
    assert!(error.message.ends_with("read up to there"), "{error}");
    run(&writer, file, Operation::Write, ten.clone(), &region(&noise(10))).unwrap();
    let target = region(&[0; 10]);
    link.take_log();
    run(&reader, seen, Operation::Read, ten.clone(), &target).unwrap();
    assert_eq!(content(&target), noise(10));
    assert_eq!(link.take_log().len(), 2 + 2, "two lengths, two reads");
    run(&reader, seen, Operation::Read, ten, &target).unwrap();
    assert_eq!(link.take_log().len(), 2, "the length is known by now");
}

#[test]
fn the_first_error_wins_and_every_answer_is_awaited() {
    let (pool, link) = pool(3);
    let file = made(&pool, 300);
    let fault = |kind| Some(Error::new(kind, "a server fails"));
    *link.faults.lock().unwrap() = [None, fault(ErrorKind::DiskFull), fault(ErrorKind::Io)].into();
    link.hold();
    let ticket =
        pool.submit_regions(file, Operation::Write, Regions::contiguous(0, 300).unwrap(), region(&[1; 300]));
    assert!(!ticket.is_done());
    link.let_go(); // in reverse order
    assert_eq!(ticket.wait(PATIENCE).unwrap().unwrap_err().kind, ErrorKind::Io);
    // Later requests succeed.
    run(&pool, file, Operation::Write, Regions::contiguous(0, 300).unwrap(), &region(&[2; 300])).unwrap();
}

#[test]
fn room_is_that_of_the_fullest_server_times_their_number() {
    assert_eq!(pool(3).0.free_bytes(), Ok(3000));
}

#[test]
fn a_million_regions_are_one_message() {
    let (pool, link) = pool(1);
    let file = made(&pool, 16 << 20);
    let parts = (0..1 << 20).map(|i| Nested { offset: 16 * i, run_bytes: 8, levels: vec![] });
    let regions = Regions::new(parts.collect()).unwrap();
    link.take_log();
    run(&pool, file, Operation::Write, regions, &region(&noise(8 << 20))).unwrap();
    assert_eq!(link.take_log(), [(0, "write", 8 << 20)]);
}

#[test]
fn an_array_lies_in_a_pool_slot_by_slot() {
    let (pool, link) = pool(2);
    let volume: Arc<dyn Volume<Buffer = Region>> = Arc::new(pool);
    let spec = GridSpec {
        shape: vec![300, 200],
        chunk: vec![100, 50],
        item_bytes: 8,
        storage: StorageOrder::F,
        chunk_order: ChunkOrder::ColumnMajor,
        slot_align_bytes: volume.slot_align_bytes(),
        column_places: None,
        growing: false,
    };
    let grid = ChunkGrid::new(spec).unwrap();
    assert_eq!(grid.slot_bytes(), 65_536);
    ArrayFile::create(&volume, "a", &grid, false, Hints::default()).unwrap();
    let memory = MemoryUse { arena: Arena::new(1 << 20), bounce_bytes: 1 << 18 };
    ArrayFile::open(volume.clone(), "a", grid, true, memory, None).unwrap();
    let log = link.take_log();
    assert!(
        log.iter().filter(|message| message.1 == "write").count() == 1,
        "the index is on one server: {log:?}"
    );
}

#[test]
fn what_regions_and_buffer_must_be_is_checked() {
    let (pool, _) = pool(2);
    let file = made(&pool, 10);
    let request = VolumeRequest {
        file,
        operation: Operation::Read,
        regions: Regions::contiguous(0, 4).unwrap(),
        buffer: region(&[0; 5]),
    };
    assert_eq!(conformance::complete(&pool, request).err().unwrap().kind, ErrorKind::Invalid);
    pool.make_directory("d/e").unwrap();
    assert_eq!(pool.open("d", OpenMode::Read).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(pool.list("d").unwrap()[0].name, "e");
}
