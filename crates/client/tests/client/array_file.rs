//! Array files over correct and misbehaving disks, against a naive model in memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize};

use outcore_client::{LocalVolume, Memory, Ticket};
use outcore_core::doubles::Fault;
use outcore_core::{
    Alignment, BoxRequest, Buffer, ChunkGrid, ChunkOrder, Disk, ErrorKind, FileId, GridSpec, OnDone,
    OpenMode, Operation, Request, Result, StorageOrder,
};
use outcore_disk::{Directory, LocalDisk};
use outcore_memory::{Arena, Block, Region};
use proptest::prelude::*;

use crate::model::{
    GUARD, LateWrites, Model, Part, Place, block, content, finish, grid, ragged, wait_until_free, well,
};

type Dimension = (u64, u64, Vec<(u64, u64, u64)>);

/// Extent and chunk of one dimension, and (start, count, step) of some boxes.
fn dimension(boxes: usize) -> impl Strategy<Value = Dimension> {
    (1_u64..40, 1_u64..20).prop_flat_map(move |(extent, chunk)| {
        let part = (0..extent, 1_u64..4).prop_flat_map(move |(start, step)| {
            (Just(start), 1..=(extent - start).div_ceil(step), Just(step))
        });
        (Just(extent), Just(chunk), proptest::collection::vec(part, boxes))
    })
}

fn storage() -> impl Strategy<Value = (StorageOrder, ChunkOrder)> {
    let orders = [ChunkOrder::RowMajor, ChunkOrder::ColumnMajor, ChunkOrder::Hilbert, ChunkOrder::ZOrder];
    (prop_oneof![Just(StorageOrder::C), Just(StorageOrder::F)], proptest::sample::select(orders.to_vec()))
}

const BOXES: usize = 6;

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Boxes of any shape, step and memory order, written and read back, with little memory for bounce
    /// buffers and with a disk that moves a few bytes at a time.
    #[test]
    fn random_boxes_are_those_of_the_model(
        dims in proptest::collection::vec(dimension(BOXES), 1..4),
        (order, chunk_order) in storage(),
        item in proptest::sample::select(vec![1_u64, 4, 16]),
        fortran in proptest::collection::vec(any::<bool>(), BOXES),
        bounce_bytes in proptest::sample::select(vec![1_usize, 20_000, 1 << 20]),
        most in proptest::sample::select(vec![37_usize, 5000, usize::MAX]),
        growing in any::<bool>(),
    ) {
        let spec = GridSpec {
            shape: dims.iter().map(|d| d.0).collect(),
            chunk: dims.iter().map(|d| d.1).collect(),
            item_bytes: item,
            storage: order,
            chunk_order,
            slot_align_bytes: 4096,
            column_places: None,
            growing,
        };
        let place = Place::new(ChunkGrid::new(spec).unwrap());
        let arena = Arena::new(4 << 20);
        let file = place.open(Fault::Short(most), &arena, bounce_bytes).unwrap();
        let mut model = Model::new(&place.grid);
        for (number, fortran) in fortran.into_iter().enumerate() {
            let pick = |f: fn(&(u64, u64, u64)) -> u64| dims.iter().map(|d| f(&d.2[number])).collect::<Vec<_>>();
            let part = Part { start: pick(|b| b.0), count: pick(|b| b.1), step: pick(|b| b.2), fortran };
            model.write(&part, &file).unwrap();
            model.check(&part, &file).unwrap();
        }
        drop(file);
        model.check(&Part::whole(&model.shape), &place.open_well()).unwrap();
    }
}

#[test]
fn a_starved_bounce_pool_is_slow_not_stuck() {
    let (place, part) = ragged();
    let arena = Arena::new(32 << 10);
    let file = place.open(well(), &arena, 1).unwrap();
    let mut model = Model::new(&place.grid);
    model.write(&part, &file).unwrap();
    // Many concurrent requests wait for the same buffer.
    let targets: Vec<Arc<Block>> = (0..8).map(|_| block(&vec![0; part.bytes(8) + 2 * GUARD])).collect();
    let tickets: Vec<Ticket> =
        targets.iter().map(|t| part.submit(&file, Operation::Read, t).unwrap()).collect();
    tickets.iter().for_each(|ticket| finish(ticket).unwrap());
    targets.iter().for_each(|t| assert_eq!(content(t), content(&targets[0])));
    model.check(&part, &file).unwrap();
    assert!(arena.peak_bytes() <= arena.budget_bytes());
}

#[test]
fn no_memory_for_a_bounce_buffer_is_an_error() {
    let (place, part) = ragged();
    let arena = Arena::new(4096);
    let file = place.open(well(), &arena, 1 << 20).unwrap();
    let target = block(&vec![0; part.bytes(8) + 2 * GUARD]);
    for operation in [Operation::Read, Operation::Write] {
        let ticket = part.submit(&file, operation, &target).unwrap();
        assert_eq!(finish(&ticket).unwrap_err().kind, ErrorKind::Budget);
    }
    assert_eq!(arena.used_bytes(), 0);
}

#[test]
fn wherever_a_disk_fails_the_error_comes_and_nothing_hangs() {
    let (place, part) = ragged();
    let (mut opened, mut whole) = (0, 0);
    for after in 0..60 {
        let fault = Fault::FailAfter(AtomicUsize::new(after));
        let arena = Arena::new(1 << 20);
        let file = match place.open(fault, &arena, 20_000) {
            Ok(file) => file,
            Err(error) => {
                assert_eq!(error.kind, ErrorKind::Io);
                continue;
            }
        };
        opened += 1;
        let source = block(&vec![1; part.bytes(8) + 2 * GUARD]);
        let tickets = [
            part.submit(&file, Operation::Write, &source).unwrap(),
            part.submit(&file, Operation::Read, &source).unwrap(),
            file.submit_sync(),
        ];
        for ticket in &tickets {
            match finish(ticket) {
                Ok(()) => whole += 1,
                Err(error) => assert_eq!(error.kind, ErrorKind::Io),
            }
        }
        // After any failure, the memory of the requests is free.
        drop((file, tickets));
        wait_until_free(&arena);
    }
    assert!(opened >= 50 && whole < 3 * opened, "{opened} opened, {whole} requests whole");
}

#[test]
fn a_long_line_of_failing_requests_is_no_deep_stack() {
    let place = Place::new(grid(&[4096, 2050], &[4096, 1025], 2));
    let file = place.open(Fault::FailAfter(AtomicUsize::new(40)), &Arena::new(1 << 20), 1).unwrap();
    let part = Part { start: vec![1, 1], count: vec![4095, 2049], step: vec![1, 1], fortran: false };
    let ticket = part.submit(&file, Operation::Read, &block(&vec![0; part.bytes(2) + 2 * GUARD])).unwrap();
    assert_eq!(finish(&ticket).unwrap_err().kind, ErrorKind::Io);
}

#[test]
fn a_full_disk_says_so_and_what_was_written_before_is_there() {
    let (place, _) = ragged();
    let mut model = Model::new(&place.grid);
    let file = place.open(Fault::FullAfter(AtomicU64::new(400_000)), &Arena::new(1 << 20), 50_000).unwrap();
    let columns = |first: u64, count: u64| Part {
        start: vec![0, first],
        count: vec![700, count],
        step: vec![1, 1],
        fortran: true,
    };
    model.write(&columns(0, 20), &file).unwrap();
    let kept = model.bytes.clone();
    assert_eq!(model.write(&columns(100, 200), &file).unwrap_err().kind, ErrorKind::DiskFull);
    model.bytes = kept;
    model.check(&columns(0, 20), &file).unwrap();
    drop(file);
    model.check(&columns(0, 20), &place.open_well()).unwrap();
}

#[test]
fn a_file_that_ends_early_is_truncated_and_the_rest_is_read() {
    let (place, _) = ragged();
    let mut model = Model::new(&place.grid);
    model.write(&Part::whole(&[700, 300]), &place.open_well()).unwrap();
    let end = place.grid.slot_bytes() * 4;
    assert_eq!(
        place.open(Fault::EndsAt(end), &Arena::new(1 << 20), 1).err().unwrap().kind,
        ErrorKind::Truncated
    );

    // The double ends the file after the index. Truncate the real file while it is open instead.
    let file = place.open_well();
    let path = place.root.path().join("a").join(place.grid.shard_key(0));
    std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(end).unwrap();
    let first = Part { start: vec![2, 1], count: vec![698, 120], step: vec![1, 1], fortran: false };
    model.check(&first, &file).unwrap();
    let error = model.check(&Part::whole(&[700, 300]), &file).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Truncated);
    assert!(error.message.contains("the file ends there"), "{error}");
}

#[test]
fn boxes_outside_the_array_are_refused() {
    let (place, mut part) = ragged();
    part.start[0] = 11;
    let target = block(&vec![0; part.bytes(8) + 2 * GUARD]);
    let refused = part.submit(&place.open_well(), Operation::Read, &target);
    assert_eq!(refused.err().unwrap().kind, ErrorKind::Invalid);
}

#[test]
fn memory_that_is_too_small_is_refused_not_overrun() {
    let (place, part) = ragged();
    let file = place.open_well();
    let ticket = part.submit(&file, Operation::Read, &block(&[0; 1000])).unwrap();
    assert_eq!(finish(&ticket).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn requests_take_effect_in_the_order_of_their_submission() {
    let (place, part) = ragged();
    let directory = Directory::new(place.root.path()).unwrap();
    let disk = LateWrites(Arc::new(LocalDisk::new(directory.clone(), 3).unwrap()));
    let file = place.open_volume(LocalVolume::new(directory, disk), &Arena::new(64 << 20), 16 << 20).unwrap();
    for turn in 1..4_u8 {
        let memory = |value: u8| block(&vec![value; part.bytes(8) + 2 * GUARD]);
        let target = memory(0);
        let first = part.submit(&file, Operation::Write, &memory(100)).unwrap();
        let second = part.submit(&file, Operation::Write, &memory(turn)).unwrap();
        let read = part.submit(&file, Operation::Read, &target).unwrap();
        let sync = file.submit_sync();
        finish(&read).unwrap();
        assert!(first.is_done() && second.is_done());
        finish(&sync).unwrap();
        assert!(content(&target)[GUARD..GUARD + part.bytes(8)].iter().all(|&byte| byte == turn));
    }
}

#[test]
fn memory_is_free_once_the_ticket_says_so() {
    let (place, ragged) = ragged();
    let file = place.open(Fault::Short(30_000), &Arena::new(1 << 20), 20_000).unwrap();
    // Through a bounce buffer; then in place, aligned and with the layout of the disk.
    let chunk = Part { start: vec![0, 0], count: vec![300, 128], step: vec![1, 1], fortran: true };
    for (part, guard, turns) in [(&ragged, GUARD, 50), (&chunk, 0, 2000)] {
        for turn in 0..turns {
            let operation = if turn % 2 == 0 { Operation::Write } else { Operation::Read };
            let memory = block(&vec![1; part.bytes(8) + 2 * GUARD]);
            finish(&part.submit_at(&file, operation, &memory, guard).unwrap()).unwrap();
            assert_eq!(Arc::strong_count(&memory), 1);
        }
    }
}

/// A disk that requires more alignment than the inner disk.
struct Coarse(LocalDisk, Alignment);

impl Disk for Coarse {
    type Buffer = Region;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        self.0.open(path, mode)
    }

    fn close(&self, file: FileId) {
        self.0.close(file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        self.0.length(file)
    }

    fn submit(&self, request: Request<Region>, done: OnDone<Region>) {
        self.0.submit(request, done);
    }

    fn alignment(&self, _file: FileId) -> Alignment {
        self.1
    }

    fn free_bytes(&self) -> Result<u64> {
        self.0.free_bytes()
    }
}

#[test]
fn memory_need_not_be_aligned_as_files_are() {
    // Columns of 32 KiB, at distances of 32 KiB + 512 bytes in memory.
    let pitch = (4096 + 64) * 8;
    for (memory_bytes, is_in_place) in [(512, true), (4096, false)] {
        let place = Place::new(grid(&[4096, 6], &[4096, 3], 8));
        let directory = Directory::new(place.root.path()).unwrap();
        let local = LocalDisk::new(directory.clone(), 2).unwrap();
        let disk = Coarse(local, Alignment { offset_bytes: 4096, memory_bytes });
        let arena = Arena::new(64 << 20);
        let file = place.open_volume(LocalVolume::new(directory, disk), &arena, 1 << 20).unwrap();
        let bytes: Vec<u8> = (0..6 * pitch as u32).map(|i| (i * 7 + i / 251) as u8).collect();
        let (source, target) = (block(&bytes), block(&vec![0; bytes.len()]));
        for (operation, block) in [(Operation::Write, &source), (Operation::Read, &target)] {
            let strides = vec![8, pitch as i64];
            let request = BoxRequest {
                start: vec![0, 0],
                count: vec![4096, 6],
                step: vec![1, 1],
                memory_strides: strides.clone(),
            };
            let memory = Memory { block: block.clone(), origin: 0, strides };
            finish(&file.submit(operation, &request, memory).unwrap()).unwrap();
        }
        let found = content(&target);
        for column in 0..6 {
            let at = column * pitch..column * pitch + 4096 * 8;
            assert!(found[at.clone()] == bytes[at], "{column}");
        }
        assert_eq!(arena.peak_bytes() == 0, is_in_place, "no buffer is used");
    }
}

#[test]
fn aligned_memory_in_many_runs_is_used_as_it_is() {
    let spec = GridSpec { storage: StorageOrder::C, ..grid(&[700, 1024], &[700, 512], 8).spec().clone() };
    let place = Place::new(ChunkGrid::new(spec).unwrap());
    let arena = Arena::new(1 << 20);
    let file = place.open(well(), &arena, 1 << 20).unwrap();
    let mut model = Model::new(&place.grid);
    model.write(&Part::whole(&[700, 1024]), &place.open_well()).unwrap();
    let part = Part { start: vec![2, 0], count: vec![650, 1024], step: vec![1, 1], fortran: false };
    let target = block(&vec![0; part.bytes(8)]);
    let before = file.counters();
    finish(&part.submit_at(&file, Operation::Read, &target, 0).unwrap()).unwrap();
    assert_eq!(file.counters().bytes_read - before.bytes_read, part.bytes(8) as u64);
    assert_eq!(file.counters().reads - before.reads, 2 * 3);
    assert_eq!(arena.peak_bytes(), 0, "no bounce buffer");
    part.for_each(&[700, 1024], 8, |at, memory| {
        assert_eq!(model.bytes[at..at + 8], content_at(&target, memory));
    });
}

/// Eight bytes of a block.
fn content_at(block: &Arc<Block>, at: usize) -> [u8; 8] {
    let mut out = [0; 8];
    Region::whole(block.clone()).copy_out(at, &mut out);
    out
}

#[test]
fn padding_is_zeros_whatever_the_buffers_held() {
    let (place, part) = ragged();
    let mut model = Model::new(&place.grid);
    let file = place.open_well();
    // Fill the buffers with noise, then write chunks that extend beyond the array's edge.
    model.write(&part, &file).unwrap();
    model.write(&Part { fortran: false, ..Part::whole(&[700, 300]) }, &file).unwrap();
    let bytes = std::fs::read(place.root.path().join("a").join(place.grid.shard_key(0))).unwrap();
    for (row, column) in [(2, 0), (2, 1), (0, 2), (2, 2)] {
        let slot = &bytes[place.grid.locate(&[row, column]).offset as usize..];
        for (number, element) in slot[..place.grid.slot_bytes() as usize].chunks(8).enumerate() {
            let (i, j) = (row * 300 + number as u64 % 300, column * 128 + number as u64 / 300);
            let in_chunk = number < 300 * 128;
            if !in_chunk || i >= 700 || j >= 300 {
                assert_eq!(element, [0; 8], "element {number} of chunk {row}, {column}");
            }
        }
    }
}
