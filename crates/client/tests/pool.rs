//! A pool as a volume: conformance, one message for each request and server, errors, grants.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod pool_link;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use outcore_client::{ArrayFile, Attributes, MemoryUse, PoolVolume};
use outcore_core::{
    Buffer, ChunkGrid, ChunkOrder, Error, ErrorKind, FileId, GridSpec, Hints, Level, Nested, OpenMode,
    Operation, Regions, Result, StorageOrder, Volume, VolumeRequest, conformance,
};
use outcore_memory::{Arena, Region, Segment};
use pool_link::{GRANT_S, MemoryLink, content, pool, region};
use proptest::prelude::*;

const PATIENCE: Duration = Duration::from_secs(20);

fn made(pool: &PoolVolume<MemoryLink>, length: u64) -> FileId {
    pool.open("f", OpenMode::Create { length, reserve: false }).unwrap()
}

fn run(
    pool: &PoolVolume<MemoryLink>,
    file: FileId,
    operation: Operation,
    regions: Regions,
    buffer: &Region,
) -> Result<()> {
    pool.submit_regions(file, operation, regions, buffer.clone()).wait(PATIENCE).expect("a request hangs")
}

fn noise(bytes: usize) -> Vec<u8> {
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
fn a_file_that_cannot_be_made_whole_is_not_there() {
    let (pool, link) = pool(3);
    *link.faults.lock().unwrap() = [None, Some(Error::new(ErrorKind::DiskFull, "full"))].into();
    let error = pool.open("f", OpenMode::Create { length: 9000, reserve: true }).unwrap_err();
    assert_eq!((error.kind, pool.exists("f"), link.data_files()), (ErrorKind::DiskFull, Ok(false), 0));
    // Files that were not replaced keep their old content.
    pool.replace_small("s", b"old").unwrap();
    *link.faults.lock().unwrap() = [None, Some(Error::new(ErrorKind::DiskFull, "full"))].into();
    assert_eq!(pool.replace_small("s", b"new").unwrap_err().kind, ErrorKind::DiskFull);
    assert_eq!(pool.read_small("s").as_deref(), Ok(&b"old"[..]));
    assert_eq!(pool.list("").unwrap().len(), 1, "nothing is left over");
    assert_eq!(link.data_files(), 1);
}

#[test]
fn grants_are_renewed_before_they_end_and_after() {
    let (pool, link) = pool(2);
    let file = made(&pool, 200);
    let all = Regions::contiguous(0, 200).unwrap();
    let read = || run(&pool, file, Operation::Read, all.clone(), &region(&[0; 200]));
    for after_s in [0, GRANT_S / 2] {
        link.now_s.fetch_add(after_s, Ordering::SeqCst);
        read().unwrap();
        assert_eq!(link.renewals(), 0);
    }
    link.now_s.fetch_add(GRANT_S / 2 - 10, Ordering::SeqCst);
    read().unwrap(); // with the old grant, which is renewed in the background
    let end = std::time::Instant::now() + PATIENCE;
    while link.renewals() == 0 {
        assert!(std::time::Instant::now() < end);
        std::thread::yield_now();
    }
    // A client that slept: its grant expired long ago, and is renewed first.
    link.now_s.fetch_add(10 * GRANT_S, Ordering::SeqCst);
    read().unwrap();
    assert_eq!(link.renewals(), 2);
    link.now_s.fetch_add(10 * GRANT_S, Ordering::SeqCst);
    assert_eq!(pool.length(file), Ok(200));
    assert_eq!(link.renewals(), 3);
}

/// All operations of a client on a file, with clocks that jump before each step.
#[test]
fn a_grant_that_servers_refuse_is_renewed_and_the_request_made_again() {
    const YEAR_S: u64 = 365 * 24 * 3600;
    let link = Arc::new(MemoryLink::new(3));
    for client_ns in [0, 1_000_000_000_000_000, u64::MAX] {
        // The client's clock stands still, while the pool's clock jumps by a year each time.
        let pool = PoolVolume::new(link.clone(), Arc::new(move || client_ns)).unwrap();
        let jump = || link.now_s.fetch_add(YEAR_S, Ordering::SeqCst);
        let file = made(&pool, 300);
        jump();
        write_all(&pool, file, 7);
        jump();
        sync(&pool, file).unwrap();
        let buffer = region(&[9; 300]);
        for offset in [0, 100] {
            jump();
            let read = Regions::contiguous(offset, 200).unwrap();
            run(&pool, file, Operation::Read, read, &region(&[9; 200])).unwrap();
        }
        jump();
        pool.set_length(file, 400).unwrap();
        jump();
        assert_eq!(pool.length(file), Ok(400));
        jump();
        run(&pool, file, Operation::Read, Regions::contiguous(0, 300).unwrap(), &buffer).unwrap();
        assert_eq!(content(&buffer), [7; 300]);
        // Each of these requests gets its own grant.
        let before = link.renewals();
        pool.replace_small("small", b"one").unwrap();
        pool.append_small("small", b" two").unwrap();
        assert_eq!(pool.read_small("small").unwrap(), b"one two");
        pool.remove("small").unwrap();
        assert_eq!(link.renewals(), before);
        pool.remove("f").unwrap();
        assert_eq!(link.data_files(), 0);
        pool.close(file);
    }
    // A client that is refused repeatedly gets an error.
    let pool = PoolVolume::new(link.clone(), Arc::new(|| 0)).unwrap();
    let file = made(&pool, 300);
    let denied = || Some(Error::new(ErrorKind::Denied, "injected"));
    link.faults.lock().unwrap().extend((0..100).map(|_| denied()));
    link.take_log();
    assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(pool.length(file).unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(link.take_log().len(), 2 * 4 * 3);
    link.faults.lock().unwrap().clear();
    // Also if servers refuse a removal, a request for lengths, or a small file.
    for _ in 0..3 {
        let one_each = |pool: &PoolVolume<MemoryLink>, action: &dyn Fn(&PoolVolume<MemoryLink>)| {
            link.faults.lock().unwrap().push_back(denied());
            action(pool);
            assert!(link.faults.lock().unwrap().is_empty());
        };
        one_each(&pool, &|pool| pool.replace_small("small", b"1").unwrap());
        one_each(&pool, &|pool| assert_eq!(pool.read_small("small").unwrap(), b"1"));
        one_each(&pool, &|pool| pool.append_small("small", b"").unwrap());
        one_each(&pool, &|pool| assert_eq!(pool.list("").unwrap().len(), 2));
        one_each(&pool, &|pool| pool.settle("small").unwrap());
        one_each(&pool, &|pool| pool.remove("small").unwrap());
        assert_eq!(link.data_files(), 3);
    }
}

#[test]
fn times_rise_whatever_the_clock_says() {
    let link = Arc::new(MemoryLink::new(1));
    let now_ns = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let clock = now_ns.clone();
    let pool = PoolVolume::new(link, Arc::new(move || clock.load(Ordering::SeqCst))).unwrap();
    let file = made(&pool, 10);
    let mut last_ns = pool.modified_ns("f").unwrap();
    for jump_ns in [0, 1_700_000_000_000_000_000, 5, u64::MAX, u64::MAX, 0, 1_800_000_000_000_000_000] {
        now_ns.store(jump_ns, Ordering::SeqCst);
        for writes in 1..3 {
            for _ in 0..writes {
                run(&pool, file, Operation::Write, Regions::contiguous(0, 1).unwrap(), &region(&[1]))
                    .unwrap();
            }
            let modified_ns = pool.modified_ns("f").unwrap();
            assert!(modified_ns > last_ns, "{jump_ns}");
            last_ns = modified_ns;
        }
    }
    // A time must leave room for later ones.
    for (modified_ns, is_taken) in [(i64::MAX as u64, true), (i64::MAX as u64 + 1, false), (u64::MAX, false)]
    {
        let wanted = Attributes { modified_ns: Some(modified_ns), ..Attributes::default() };
        assert_eq!(pool.set_attributes("f", wanted).is_ok(), is_taken, "{modified_ns}");
    }
}

#[test]
fn the_time_of_the_last_write_differs_after_each() {
    let (pool, _) = pool(2);
    let file = made(&pool, 10);
    let mut seen = vec![pool.modified_ns("f").unwrap()];
    for _ in 0..3 {
        run(&pool, file, Operation::Write, Regions::contiguous(0, 1).unwrap(), &region(&[1])).unwrap();
        seen.push(pool.modified_ns("f").unwrap());
        assert_eq!(pool.modified_ns("f").unwrap(), seen[seen.len() - 1], "it stays without one");
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    pool.settle("f").unwrap();
    pool.close(file);
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
    ArrayFile::create(&volume, "a", &grid, false, None).unwrap();
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

#[test]
fn one_file_or_empty_directory_is_removed() {
    let (pool, link) = pool(2);
    pool.replace_small("d/f", b"x").unwrap();
    assert_eq!(pool.remove_one("d").unwrap_err().kind, ErrorKind::Exists);
    pool.remove_one("d/f").unwrap();
    pool.remove_one("d").unwrap();
    assert_eq!((pool.exists("d"), link.data_files()), (Ok(false), 0));
}

#[test]
fn a_directory_replaces_another_and_what_cannot_be_removed_now_goes_later() {
    let (pool, link) = pool(2);
    for (path, bytes) in [("new/f", b"1"), ("d/f", b"2"), ("d/g", b"3")] {
        pool.replace_small(path, bytes).unwrap();
    }
    link.faults.lock().unwrap().push_back(Some(Error::new(ErrorKind::Io, "the disk")));
    pool.replace("new", "d").unwrap();
    assert_eq!(
        (pool.read_small("d/f").unwrap(), pool.exists("d/g"), pool.exists("new")),
        (b"1".to_vec(), Ok(false), Ok(false))
    );
    assert!(link.data_files() > 1, "a server refused");
    pool.replace_small("other", b"4").unwrap();
    pool.remove("other").unwrap();
    assert_eq!(link.data_files(), 1);
    assert_eq!(pool.replace("none", "d").unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(pool.replace("../new", "d").unwrap_err().kind, ErrorKind::Invalid);
}

fn sync(pool: &PoolVolume<MemoryLink>, file: FileId) -> Result<()> {
    run(pool, file, Operation::Sync, Regions::default(), &Region::empty())
}

fn write_all(pool: &PoolVolume<MemoryLink>, file: FileId, byte: u8) {
    let all = Regions::contiguous(0, 300).unwrap();
    run(pool, file, Operation::Write, all, &region(&[byte; 300])).unwrap();
}

#[test]
fn writes_that_a_server_may_have_lost_are_told_by_the_next_sync() {
    let (pool, link) = pool(3);
    let file = made(&pool, 300);
    sync(&pool, file).unwrap();
    write_all(&pool, file, 1);
    link.restart(1);
    link.restart(2);
    let error = sync(&pool, file).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Lost);
    assert!(error.message.contains("I/O servers 1, 2 were started again since f was written to"), "{error}");
    assert!(error.message.contains("write again"), "{error}");
    // Written again, it is safe, and synced writes stay safe.
    write_all(&pool, file, 1);
    sync(&pool, file).unwrap();
    link.restart(0);
    sync(&pool, file).unwrap();
    // A new length is a write too.
    pool.set_length(file, 200).unwrap();
    link.restart(0);
    assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Lost);
    sync(&pool, file).unwrap();
}

#[test]
fn lost_writes_are_told_whoever_made_them_and_whoever_syncs() {
    let (pool, link) = pool(2);
    let file = made(&pool, 300);
    sync(&pool, file).unwrap();
    write_all(&pool, file, 1);
    pool.close(file);
    link.restart(0);
    assert_eq!(pool.settle("f").unwrap_err().kind, ErrorKind::Lost);
    pool.settle("f").unwrap();

    let (one, other) =
        (pool.open("f", OpenMode::ReadWrite).unwrap(), pool.open("f", OpenMode::ReadWrite).unwrap());
    write_all(&pool, one, 1);
    write_all(&pool, other, 2);
    link.restart(0);
    // Each open file gets the error, since each may have written.
    assert_eq!(sync(&pool, other).unwrap_err().kind, ErrorKind::Lost);
    assert_eq!(sync(&pool, one).unwrap_err().kind, ErrorKind::Lost);
    for file in [one, other] {
        write_all(&pool, file, 3);
        sync(&pool, file).unwrap();
    }
    let late = pool.open("f", OpenMode::ReadWrite).unwrap();
    sync(&pool, late).unwrap();
}

#[test]
fn that_writes_are_lost_is_told_before_errors_that_may_pass() {
    for other in [0, 1] {
        let (pool, link) = pool(2);
        let file = made(&pool, 300);
        write_all(&pool, file, 1);
        link.restart(1 - other);
        let mut faults = [None, None];
        faults[other as usize] = Some(Error::new(ErrorKind::Io, "the network"));
        *link.faults.lock().unwrap() = faults.into();
        assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Lost);
        sync(&pool, file).unwrap();
    }
}

#[test]
fn small_files_are_durable_or_not_done() {
    let (pool, link) = pool(2);
    pool.replace_small("s", b"old").unwrap();
    pool.append_small("s", b"er").unwrap();
    link.restarts_before_syncs.store(true, Ordering::SeqCst);
    assert_eq!(pool.replace_small("s", b"new").unwrap_err().kind, ErrorKind::Lost);
    assert_eq!(pool.append_small("s", b"!").unwrap_err().kind, ErrorKind::Lost);
    assert!(pool.read_small("s").unwrap().starts_with(b"older"));
    assert_eq!(pool.list("").unwrap().len(), 1);
    let file = made(&pool, 10);
    assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Lost, "its length");
}

#[test]
fn a_time_that_is_set_is_not_replaced_by_that_of_an_earlier_write() {
    let (pool, _) = pool(2);
    let file = made(&pool, 100);
    let all = region(&noise(100));
    run(&pool, file, Operation::Write, Regions::contiguous(0, 100).unwrap(), &all).unwrap();
    let wanted = Attributes { modified_ns: Some(77), ..Attributes::default() };
    pool.set_attributes("f", wanted).unwrap();
    pool.close(file);
    pool.tell_written();
    assert_eq!(pool.modified_ns("f"), Ok(77));
}

#[test]
fn a_removed_file_is_an_error_and_not_zeros() {
    let (pool, _) = pool(2);
    let file = made(&pool, 300);
    write_all(&pool, file, 1);
    pool.remove("f").unwrap();
    let (all, buffer) = (Regions::contiguous(0, 300).unwrap(), region(&[9; 300]));
    for error in [
        run(&pool, file, Operation::Read, all.clone(), &buffer).unwrap_err(),
        pool.length(file).map(|_| ()).unwrap_err(),
        // A read beyond the known length requests the length.
        run(&pool, file, Operation::Read, Regions::contiguous(300, 9).unwrap(), &region(&[9; 9]))
            .unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.message.contains("f was removed or replaced since it was opened"), "{error}");
    }

    // A file that was never written to exists.
    let file = made(&pool, 0);
    assert_eq!(pool.length(file), Ok(0));
    run(&pool, file, Operation::Write, Regions::contiguous(20, 9).unwrap(), &region(&[9; 9])).unwrap();
    let buffer = region(&[5; 29]);
    run(&pool, file, Operation::Read, Regions::contiguous(0, 29).unwrap(), &buffer).unwrap();
    let mut bytes = [1; 29];
    buffer.copy_out(0, &mut bytes);
    assert_eq!(bytes[..20], [0; 20]);
}
