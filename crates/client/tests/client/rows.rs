//! Lists of rows, against a naive model in memory.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use outcore_client::{ArrayFile, LocalVolume, Memory};
use outcore_core::doubles::Fault;
use outcore_core::{Buffer, ChunkGrid, ErrorKind, GridSpec, Operation, Result, StorageOrder};
use outcore_disk::{Directory, LocalDisk};
use outcore_memory::{Arena, Block, Region};
use proptest::prelude::*;

use crate::model::{GUARD, LateWrites, Model, Part, Place, block, content, finish, grid, well};

const PAGE: usize = 4096;

/// Row-major chunks of 8 rows of one page each, in three columns of chunks.
fn pages() -> ChunkGrid {
    let spec = GridSpec { storage: StorageOrder::C, ..grid(&[60, 1500], &[8, 512], 8).spec().clone() };
    ChunkGrid::new(spec).unwrap()
}

/// An array of pages with random bytes.
fn full() -> (Place, Model) {
    let place = Place::new(pages());
    let mut model = Model::new(&place.grid);
    model.write(&Part::whole(&[60, 1500]), &place.open_well()).unwrap();
    (place, model)
}

/// A read of rows into memory, from byte `origin`, at distances of `pitch` bytes.
struct Rows<'a> {
    rows: &'a [u64],
    first_column: u64,
    width: u64,
    origin: usize,
    pitch: usize,
}

impl Rows<'_> {
    fn room(&self) -> Arc<Block> {
        block(&vec![0xEE; self.origin + self.rows.len() * self.pitch + GUARD])
    }

    fn read(&self, file: &Arc<ArrayFile>, target: &Arc<Block>) -> Result<()> {
        let strides = vec![self.pitch as i64, 8];
        let memory = Memory { block: target.clone(), origin: self.origin, strides };
        finish(&file.submit_rows(self.rows, self.first_column, self.width, &memory)?)
    }

    /// Compares rows in memory with those of an array of `columns` columns, and checks that the bytes around
    /// them are unchanged.
    fn check(&self, target: &Arc<Block>, array: &[u8], columns: u64) {
        let mut want = vec![0xEE; target.len()];
        let bytes = self.width as usize * 8;
        for (at, row) in self.rows.iter().enumerate() {
            let (from, to) =
                ((row * columns + self.first_column) as usize * 8, self.origin + at * self.pitch);
            want[to..to + bytes].copy_from_slice(&array[from..from + bytes]);
        }
        assert!(content(target) == want, "{:?}", self.rows);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    /// Rows in any order, some adjacent, some repeated; whole pages and parts of them; aligned and unaligned
    /// memory; and a disk that may move only a part of each request.
    #[test]
    fn rows_are_those_of_the_model(
        mut rows in proptest::collection::vec(0_u64..60, 0..40),
        ascending in any::<bool>(),
        (first_column, width) in prop_oneof![
            Just((0, 1024)), Just((512, 512)), Just((256, 512)), Just((3, 700)), Just((1024, 476)), Just((9, 0)),
        ],
        aligned in any::<bool>(),
        most in proptest::sample::select(vec![512_usize, 1000, usize::MAX]),
    ) {
        let (place, model) = full();
        let file = place.open(Fault::Short(most), &Arena::new(4 << 20), 1 << 20).unwrap();
        if ascending {
            rows.sort_unstable();
        }
        let (origin, pitch) = if aligned { (0, 2 * PAGE + 512) } else { (GUARD, 2 * PAGE) };
        let part = Rows { rows: &rows, first_column, width, origin, pitch };
        let target = part.room();
        part.read(&file, &target).unwrap();
        part.check(&target, &model.bytes, 1500);
    }
}

#[test]
fn single_rows_are_read_in_place_and_counted() {
    let (place, model) = full();
    let arena = Arena::new(1 << 20);
    let file = place.open(well(), &arena, 1 << 20).unwrap();
    // Six single rows, in two chunks each, and two adjacent rows of one chunk.
    let rows = [50, 2, 4, 17, 33, 0, 40, 41];
    let part = Rows { rows: &rows, first_column: 0, width: 1024, origin: 0, pitch: 2 * PAGE };
    let (target, before) = (part.room(), file.counters());
    part.read(&file, &target).unwrap();
    part.check(&target, &model.bytes, 1500);
    let after = file.counters();
    assert_eq!(after.reads - before.reads, 6 * 2 + 2);
    assert_eq!(after.bytes_read - before.bytes_read, 8 * 2 * PAGE as u64);
    assert_eq!(arena.peak_bytes(), 0, "no buffer is used");
}

#[test]
fn one_bad_run_of_many_is_an_error() {
    let (place, _) = full();
    let rows: Vec<u64> = (0..60).step_by(2).collect();
    let part = Rows { rows: &rows, first_column: 0, width: 1024, origin: 0, pitch: 2 * PAGE };
    let fails = Fault::FailAfter(AtomicUsize::new(20));
    let file = place.open(fails, &Arena::new(1 << 20), 1 << 20).unwrap();
    assert_eq!(part.read(&file, &part.room()).unwrap_err().kind, ErrorKind::Io);
    let file = place.open_well();
    place.cut_off(40 * PAGE as u64);
    assert_eq!(part.read(&file, &part.room()).unwrap_err().kind, ErrorKind::Truncated);
}

#[test]
fn a_list_has_one_ticket_and_waits_for_what_is_written() {
    let unaligned = grid(&[12, 20], &[4, 16], 8);
    let spec = GridSpec { storage: StorageOrder::C, ..grid(&[12, 512], &[4, 512], 8).spec().clone() };
    for (grid, columns, origin) in [(unaligned, 20, GUARD), (ChunkGrid::new(spec).unwrap(), 512, 0)] {
        let place = Place::new(grid);
        let directory = Directory::new(place.root.path()).unwrap();
        let disk = LateWrites(Arc::new(LocalDisk::new(directory.clone(), 3).unwrap()));
        let volume = LocalVolume::new(directory, disk);
        let file = place.open_volume(volume, &Arena::new(64 << 20), 1 << 20).unwrap();
        let pitch = columns as usize * 8;
        let source = Model::new(&place.grid).noise(12 * pitch + 2 * GUARD);
        for turn in 0..3 {
            let source: Vec<u8> = source.iter().map(|byte| byte ^ turn).collect();
            let part = Rows { rows: &[5, 6, 7, 2, 9], first_column: 0, width: columns, origin, pitch };
            let target = part.room();
            let whole = Part::whole(&[12, columns]);
            let written = whole.submit(&file, Operation::Write, &block(&source)).unwrap();
            part.read(&file, &target).unwrap();
            assert!(written.is_done());
            part.check(&target, &source[GUARD..], columns);
        }
    }
}

#[test]
fn of_a_list_with_a_row_outside_nothing_is_moved() {
    let (place, _) = full();
    let file = place.open_well();
    let read = |rows: &[u64], first_column, width| {
        let part = Rows { rows, first_column, width, origin: 0, pitch: 2 * PAGE };
        let (target, before) = (part.room(), file.counters());
        let result = part.read(&file, &target);
        assert_eq!(file.counters(), before);
        assert!(content(&target).iter().all(|&byte| byte == 0xEE));
        result
    };
    for (row, first_column, width) in
        [(60, 0, 512), (u64::MAX, 0, 512), (3, 1024, 512), (3, u64::MAX, 512), (3, 2048, 1)]
    {
        let error = read(&[7, 2, row], first_column, width).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Invalid, "{row} {first_column} {width}");
    }
    read(&[], 0, 512).unwrap();
}

#[test]
fn memory_that_rows_do_not_fit_is_not_written() {
    let (place, _) = full();
    let file = place.open_well();
    let target = block(&vec![0xEE; 3 * PAGE]);
    for origin in [PAGE, usize::MAX - 4095] {
        let strides = vec![PAGE as i64, 8];
        let memory = Memory { block: target.clone(), origin, strides };
        let ended = file.submit_rows(&[9, 1, 5], 0, 512, &memory).and_then(|ticket| finish(&ticket));
        assert_eq!(ended.unwrap_err().kind, ErrorKind::Invalid, "{origin}");
        assert!(Region::whole(target.clone()).len() == 3 * PAGE);
        assert!(content(&target).iter().all(|&byte| byte == 0xEE));
    }
}
