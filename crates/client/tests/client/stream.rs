//! Scheduled streams: in order, within their memory, and over misbehaving disks.

use std::sync::atomic::AtomicUsize;

use outcore_client::Stream;
use outcore_core::ErrorKind;
use outcore_core::doubles::Fault;
use outcore_memory::Arena;

use crate::model::{Model, PATIENCE, Part, Place, content, ragged, well};

fn columns(place: &Place) -> Vec<(Vec<u64>, Vec<u64>)> {
    let shape = &place.grid.spec().shape;
    (0..shape[1]).map(|column| (vec![0, column], vec![shape[0], 1])).collect()
}

#[test]
fn a_stream_over_a_slow_disk_is_in_order_and_in_its_memory() {
    let (place, _) = ragged();
    let mut model = Model::new(&place.grid);
    model.write(&Part::whole(&[700, 300]), &place.open_well()).unwrap();
    let arena = Arena::new(100_000);
    let file = place.open(Fault::Short(999), &arena, 30_000).unwrap();
    let stream = Stream::new(file, arena.clone(), 60_000, 0);
    stream.extend(columns(&place)).unwrap();
    for column in 0..300_usize {
        let taken = stream.next(PATIENCE).unwrap().expect("a stream hangs");
        assert_eq!(taken.start, [0, column as u64]);
        let bytes = content(&taken.block);
        for row in 0..700 {
            let at = (row * 300 + column) * 8;
            assert_eq!(bytes[row * 8..row * 8 + 8], model.bytes[at..at + 8]);
        }
    }
    assert_eq!(stream.next(PATIENCE).err().unwrap().kind, ErrorKind::Closed);
    assert!(arena.peak_bytes() <= arena.budget_bytes());
}

#[test]
fn blocks_kept_until_the_memory_is_gone_are_an_error() {
    let (place, _) = ragged();
    let arena = Arena::new(100_000);
    let stream = Stream::new(place.open(well(), &arena, 30_000).unwrap(), arena, 60_000, 0);
    stream.extend(columns(&place)).unwrap();
    let mut kept = Vec::new();
    let error = loop {
        match stream.next(PATIENCE) {
            Ok(taken) => kept.push(taken.expect("a stream hangs")),
            Err(error) => break error,
        }
    };
    assert_eq!(error.kind, ErrorKind::Budget);
    // A column of 5600 bytes takes two pages.
    assert_eq!(kept.len(), 60_000 / 8192);
    kept.pop();
    assert!(stream.next(PATIENCE).unwrap().is_some());
}

#[test]
fn a_stream_over_a_failing_disk_gives_the_error_and_ends() {
    let (place, _) = ragged();
    for after in 10..40 {
        let arena = Arena::new(100_000);
        let file = place.open(Fault::FailAfter(AtomicUsize::new(after)), &arena, 30_000).unwrap();
        let stream = Stream::new(file, arena, 60_000, 0);
        stream.extend(columns(&place)).unwrap();
        let mut failed = 0;
        while stream.remaining() > 0 {
            match stream.next(PATIENCE) {
                Ok(taken) => drop(taken.expect("a stream hangs")),
                Err(error) => {
                    assert_eq!(error.kind, ErrorKind::Io);
                    failed += 1;
                }
            }
        }
        assert!(failed > 0);
    }
}

#[test]
fn whole_chunks_are_streamed_as_they_are_on_disk() {
    let (place, _) = ragged();
    let mut model = Model::new(&place.grid);
    model.write(&Part::whole(&[700, 300]), &place.open_well()).unwrap();
    let arena = Arena::new(2 << 20);
    let stream = Stream::new(place.open_well(), arena, 2 << 20, 0);
    let file = std::fs::read(place.root.path().join("a").join(place.grid.shard_key(0))).unwrap();
    let chunks = [vec![2, 2], vec![0, 0], vec![2, 0]];
    stream.extend_chunks(chunks.clone()).unwrap();
    for chunk in &chunks {
        let taken = stream.next(PATIENCE).unwrap().expect("a stream hangs");
        let (at, bytes) = (place.grid.locate(chunk).offset as usize, place.grid.chunk_bytes() as usize);
        assert_eq!(content(&taken.block)[..bytes], file[at..at + bytes]);
    }
    for outside in [vec![3, 0], vec![0]] {
        assert_eq!(stream.extend_chunks([outside]).unwrap_err().kind, ErrorKind::Invalid);
    }
}
