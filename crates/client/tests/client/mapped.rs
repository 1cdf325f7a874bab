//! Boxes copied from the page cache, and short runs written through it, against a naive model in memory.

use outcore_core::{ChunkGrid, ChunkOrder, ErrorKind, GridSpec, Operation, StorageOrder};
use proptest::prelude::*;

use crate::model::{GUARD, Model, Part, Place, block, content, finish, grid};

fn cube(extent: u64, chunk: u64) -> Place {
    let spec = GridSpec {
        shape: vec![extent; 3],
        chunk: vec![chunk; 3],
        item_bytes: 8,
        storage: StorageOrder::C,
        chunk_order: ChunkOrder::RowMajor,
        slot_align_bytes: 4096,
        column_places: None,
        growing: false,
    };
    Place::new(ChunkGrid::new(spec).unwrap())
}

fn part(start: [u64; 3], count: [u64; 3]) -> Part {
    Part { start: start.to_vec(), count: count.to_vec(), step: vec![1; 3], fortran: false }
}

/// Extent, chunk, and (start, count, step) of some boxes.
fn dimension() -> impl Strategy<Value = (u64, u64, Vec<(u64, u64, u64)>)> {
    (1_u64..60, 1_u64..30).prop_flat_map(|(extent, chunk)| {
        let one = (0..extent, 1_u64..4).prop_flat_map(move |(start, step)| {
            (Just(start), 1..=(extent - start).div_ceil(step), Just(step))
        });
        (Just(extent), Just(chunk), proptest::collection::vec(one, 4))
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_boxes_are_those_of_the_model(
        dims in proptest::collection::vec(dimension(), 1..4),
        storage in prop_oneof![Just(StorageOrder::C), Just(StorageOrder::F)],
        item in proptest::sample::select(vec![1_u64, 8, 16]),
        fortran in proptest::collection::vec(any::<bool>(), 4),
        growing in any::<bool>(),
    ) {
        let spec = GridSpec {
            shape: dims.iter().map(|d| d.0).collect(),
            chunk: dims.iter().map(|d| d.1).collect(),
            item_bytes: item,
            storage,
            chunk_order: ChunkOrder::RowMajor,
            slot_align_bytes: 4096,
            column_places: None,
            growing,
        };
        let place = Place::new(ChunkGrid::new(spec).unwrap());
        let (file, reader) = (place.open_real(), place.open_real());
        let mut model = Model::new(&place.grid);
        for (number, fortran) in fortran.into_iter().enumerate() {
            let pick = |f: fn(&(u64, u64, u64)) -> u64| dims.iter().map(|d| f(&d.2[number])).collect::<Vec<_>>();
            let part = Part { start: pick(|b| b.0), count: pick(|b| b.1), step: pick(|b| b.2), fortran };
            if number % 2 == 0 {
                model.write_short(&part, &file).unwrap();
            } else {
                model.write(&part, &file).unwrap();
            }
            model.check_mapped(&part, &file).unwrap();
            model.check_mapped(&Part::whole(&model.shape), &reader).unwrap();
        }
        model.check(&Part::whole(&model.shape), &file).unwrap();
    }
}

#[test]
fn direct_and_short_writes_are_seen_by_readers_that_have_the_pages_mapped() {
    let place = cube(128, 64);
    let (file, reader) = (place.open_real(), place.open_real());
    let mut model = Model::new(&place.grid);
    let whole = Part::whole(&model.shape);
    for round in 0..4 {
        // Whole chunks, which bypass the page cache; rows of 200 bytes; planes of 3; one element.
        let parts = [
            whole.clone(),
            part([64, 0, 64], [64; 3]),
            part([7 + round, 30, 11], [50, 60, 25]),
            part([0, 0, 61], [128, 128, 3]),
            part([127, 127, round], [1; 3]),
        ];
        for part in parts {
            model.write(&part, &file).unwrap();
            model.check_mapped(&part, &reader).unwrap();
            model.write_short(&part, &file).unwrap();
            model.check_mapped(&part, &reader).unwrap();
            model.check_mapped(&whole, &file).unwrap();
        }
    }
    model.check(&whole, &reader).unwrap();
}

#[test]
fn a_box_is_one_copy_from_each_chunk_and_no_other_byte_is_read() {
    let place = cube(128, 64);
    let (file, model) = (place.open_real(), Model::new(&place.grid));
    let before = file.counters();
    for (part, chunks) in [
        (part([10, 10, 10], [50, 50, 50]), 1),
        (part([60, 60, 60], [10, 10, 10]), 8),
        (part([0, 5, 0], [128, 1, 128]), 4),
        (part([0, 0, 100], [128, 128, 1]), 4),
    ] {
        let (old, bytes) = (file.counters(), part.bytes(8) as u64);
        model.check_mapped(&part, &file).unwrap();
        let now = file.counters();
        assert_eq!((now.reads - old.reads, now.bytes_read - old.bytes_read), (chunks, bytes), "{part:?}");
    }
    assert_eq!(file.counters().writes, before.writes);
}

#[test]
fn each_short_run_is_one_write_of_its_own_bytes() {
    let place = cube(128, 64);
    let (file, mut model) = (place.open_real(), Model::new(&place.grid));
    for (part, writes) in [
        // In one chunk, rows of 200 bytes; in eight chunks; and planes of three elements.
        (part([10, 10, 10], [50, 50, 25]), 2500),
        (part([60, 60, 60], [10, 10, 10]), 200),
        (part([0, 0, 100], [128, 128, 3]), 128 * 128),
    ] {
        let (old, bytes) = (file.counters(), part.bytes(8) as u64);
        model.write_short(&part, &file).unwrap();
        let now = file.counters();
        assert_eq!(
            (now.writes - old.writes, now.bytes_written - old.bytes_written),
            (writes, bytes),
            "{part:?}"
        );
    }
    model.check(&Part::whole(&model.shape), &file).unwrap();
}

#[test]
fn short_runs_wait_for_an_earlier_write_to_their_chunk() {
    let place = cube(128, 64);
    let file = place.open_real();
    let mut model = Model::new(&place.grid);
    let whole = Part::whole(&model.shape);
    for round in 0..10 {
        let source = model.noise(whole.bytes(8) + 2 * GUARD);
        let ticket = whole.submit(&file, Operation::Write, &block(&source)).unwrap();
        model.take(&whole, &source);
        model.write_short(&part([0, 0, 11 * round], [128, 128, 2]), &file).unwrap();
        finish(&ticket).unwrap();
        model.check(&whole, &file).unwrap();
    }
}

#[test]
fn writers_of_neighbouring_elements_never_disturb_each_other() {
    let place = Place::new(grid(&[300, 64], &[128, 40], 8));
    let mut model = Model::new(&place.grid);
    let whole = Part::whole(&model.shape);
    let source = model.noise(whole.bytes(8) + 2 * GUARD);
    model.take(&whole, &source);
    std::thread::scope(|scope| {
        for first in 0..4 {
            let (file, source) = (place.open_real(), source.clone());
            scope.spawn(move || {
                // Every fourth column, by direct writes or by requests.
                let mut columns = Part::whole(&[300, 64]);
                (columns.start[1], columns.count[1], columns.step[1]) = (first, 16, 4);
                let (mut request, mut memory) = columns.request(&file, &block(&source), GUARD);
                (request.memory_strides, memory.strides) = (vec![64 * 8, 4 * 8], vec![64 * 8, 4 * 8]);
                memory.origin += first as usize * 8;
                for _ in 0..10 {
                    let tickets = if first == 3 {
                        vec![file.submit(Operation::Write, &request, memory.clone()).unwrap()]
                    } else {
                        file.write_short(&request, memory.clone(), &mut || true).unwrap()
                    };
                    tickets.iter().for_each(|ticket| finish(ticket).unwrap());
                }
            });
        }
    });
    model.check(&whole, &place.open_real()).unwrap();
}

#[test]
fn a_caller_that_is_stopped_writes_no_more_short_runs() {
    let place = cube(128, 64);
    let file = place.open_real();
    let part = Part { step: vec![1, 1, 2], ..part([0, 0, 0], [64, 64, 64]) };
    let source = block(&vec![7; part.bytes(8) + 2 * GUARD]);
    let (request, memory) = part.request(&file, &source, GUARD);
    let mut asked = 0;
    let mut go_on = || {
        asked += 1;
        asked < 2
    };
    let tickets = file.write_short(&request, memory, &mut go_on).unwrap();
    assert!(tickets.is_empty());
    assert_eq!(asked, 2);
    assert_eq!(file.counters().writes, 64 * 64 * 32, "one chunk of two");
}

#[test]
fn a_caller_that_is_asked_whether_to_go_on_may_read_and_write_the_same_chunks() {
    let place = cube(128, 64);
    let file = place.open_real();
    let whole = Part { step: vec![1, 1, 2], ..part([0, 0, 0], [128, 128, 64]) };
    let source = block(&vec![7; whole.bytes(8) + 2 * GUARD]);
    let (request, memory) = whole.request(&file, &source, GUARD);
    let mut asked = 0;
    let mut go_on = || {
        asked += 1;
        for operation in [Operation::Read, Operation::Write] {
            for start in [[0, 0, 1], [64, 64, 65]] {
                let other = block(&[9; 8 + 2 * GUARD]);
                finish(&part(start, [1, 1, 1]).submit(&file, operation, &other).unwrap()).unwrap();
            }
        }
        true
    };
    let tickets = file.write_short(&request, memory, &mut go_on).unwrap();
    tickets.iter().for_each(|ticket| finish(ticket).unwrap());
    assert_eq!(asked, 8, "each chunk has more runs than one batch");
    let target = block(&vec![0; whole.bytes(8) + 2 * GUARD]);
    finish(&whole.submit(&file, Operation::Read, &target).unwrap()).unwrap();
    assert!(content(&target)[GUARD..GUARD + whole.bytes(8)].iter().all(|byte| *byte == 7));
}

#[test]
fn a_file_that_others_truncate_is_an_error_not_a_signal() {
    let place = Place::new(grid(&[700, 300], &[300, 128], 8));
    let file = place.open_real();
    let mut model = Model::new(&place.grid);
    let whole = Part::whole(&model.shape);
    model.write(&whole, &file).unwrap();
    model.check_mapped(&whole, &file).unwrap();
    let chunk = place.grid.slot_bytes();
    place.cut_off(chunk + 5000);
    let target = block(&vec![0; whole.bytes(8) + 2 * GUARD]);
    let error = finish(&whole.read_mapped(&file, &target).unwrap()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Truncated);
    // The rest is still readable, and the error repeats.
    let first = Part { start: vec![0, 0], count: vec![300, 128], step: vec![1, 1], fortran: false };
    model.check_mapped(&first, &file).unwrap();
    let error = finish(&whole.read_mapped(&file, &target).unwrap()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Truncated);
}

#[test]
fn a_caller_that_is_stopped_gets_no_more() {
    let place = cube(208, 104);
    let file = place.open_real();
    let mut model = Model::new(&place.grid);
    let whole = Part::whole(&model.shape);
    model.write(&whole, &file).unwrap();
    let target = block(&vec![0; whole.bytes(8) + 2 * GUARD]);
    let (request, memory) = whole.request(&file, &target, GUARD);
    let mut asked = 0;
    let mut go_on = || {
        asked += 1;
        false
    };
    finish(&file.read_mapped(&request, memory, &mut go_on).unwrap()).unwrap();
    assert_eq!(asked, 1);
    // Seven chunks of eight are less than 64 MiB.
    assert_eq!(file.counters().bytes_read, 7 * 104 * 104 * 104 * 8);
    assert!(content(&target)[GUARD + whole.bytes(8) - 104 * 8..].iter().all(|byte| *byte == 0));
}

#[test]
fn boxes_and_memory_that_do_not_fit_are_refused() {
    let place = cube(32, 16);
    let file = place.open_real();
    let target = block(&[0; 8]);
    assert!(part([0, 0, 30], [1, 1, 3]).read_mapped(&file, &target).is_err());
    let error = finish(&part([0; 3], [2; 3]).read_mapped(&file, &target).unwrap()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    let (request, memory) = part([0; 3], [2; 3]).request(&file, &target, 0);
    let tickets = file.write_short(&request, memory, &mut || true).unwrap();
    assert_eq!(finish(&tickets[0]).unwrap_err().kind, ErrorKind::Invalid);
}
