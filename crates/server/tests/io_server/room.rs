//! Data leave some disk space free, for checksums, the log, and metadata on the same disk.

use outcore_core::ErrorKind;
use outcore_server::io_server::Limits;

use crate::world::{Faults, World, small_limits};

const SPARE: u64 = 16 << 20;

/// A disk with `left` bytes beyond the space that data leave free. Each file has `allocated` bytes.
fn with_room(left: u64, allocated: u64) -> Faults {
    Faults { room: Some((SPARE + left, allocated)), ..Faults::default() }
}

fn new_world() -> World {
    World::new(1, Limits { spare_bytes: SPARE, ..small_limits() })
}

#[test]
fn new_bytes_are_refused_before_the_disk_is_full() {
    let mut world = new_world();
    world.faults = with_room(49_999, 0);
    let error = world.write(1, 0, &[1; 50_000]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DiskFull);
    assert!(error.message.contains("need 50000 bytes on disk") && error.message.contains("have 49999"));
    assert_eq!((world.length(1), world.status().free_bytes), (0, 49_999));
    world.faults = with_room(50_000, 0);
    world.write(1, 0, &[1; 50_000]).unwrap();
    world.sync(1).unwrap();
    world.faults = with_room(0, 0);
    assert_eq!(world.write(1, 0, &[2; 10]).unwrap_err().kind, ErrorKind::DiskFull, "it may be a hole");
    assert_eq!(world.read(1, 0, 50_000), Ok(vec![1; 50_000]));
    world.remove(1).unwrap();
}

#[test]
fn bytes_that_have_their_room_are_written_on_a_full_disk() {
    let mut world = new_world();
    world.write(1, 0, &[1; 200_000]).unwrap();
    world.faults = with_room(0, 200_000);
    world.tick(1);
    world.write(1, 50, &[2; 100_000]).unwrap();
    world.write(1, 0, &[3; 50]).unwrap();
    assert_eq!(world.write(1, 199_999, &[4; 2]).unwrap_err().kind, ErrorKind::DiskFull, "it grows");
    world.set_length(1, 200_000, true).unwrap();
    assert_eq!(world.set_length(1, 200_001, true).unwrap_err().kind, ErrorKind::DiskFull);
    world.sync(1).unwrap();
    world.crash();
    let have = world.read(1, 0, 200_000).unwrap();
    assert_eq!((have[0], have[50], have[199_999]), (3, 2, 1));
}

#[test]
fn a_reservation_makes_a_file_longer_and_never_shorter() {
    let mut world = new_world();
    world.write(1, 0, &[1; 100_000]).unwrap();
    world.reserve(1, 10).unwrap();
    world.reserve(1, 100_000).unwrap();
    assert_eq!(world.length(1), 100_000);
    world.reserve(1, 300_000).unwrap();
    world.reserve(2, 70_000).unwrap();
    world.sync(1).unwrap();
    world.sync(2).unwrap();
    world.crash();
    assert_eq!((world.length(1), world.length(2)), (300_000, 70_000));
    // The checksums of the last block say nothing about where in it the file ends.
    world.reserve(1, 10).unwrap();
    world.reserve(2, 70_000).unwrap();
    assert_eq!((world.length(1), world.length(2)), (300_000, 70_000));
    let expected = [vec![1; 100_000], vec![0; 200_000]].concat();
    assert_eq!(world.read(1, 0, 300_000), Ok(expected));
    assert_eq!(world.reserve(1, 1 << 63).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn a_reservation_without_room_changes_nothing() {
    let mut world = new_world();
    world.write(1, 0, &[1; 200_000]).unwrap();
    world.faults = with_room(0, 200_000);
    world.tick(1);
    world.reserve(1, 200_000).unwrap();
    assert_eq!(world.reserve(1, 200_001).unwrap_err().kind, ErrorKind::DiskFull);
    assert_eq!(world.length(1), 200_000);
    assert_eq!(world.read(1, 0, 200_000), Ok(vec![1; 200_000]));
}

#[test]
fn the_disk_is_looked_at_again_after_a_part_of_what_it_had_and_after_a_while() {
    let mut world = new_world();
    world.faults = with_room(8 << 20, 0);
    world.write(1, 0, &[1; 1 << 16]).unwrap();
    // Another program fills the disk. The server still writes up to an eighth of the space that it found.
    world.faults = with_room(0, 0);
    let written = (1..100).take_while(|n| world.write(1, n << 16, &[1; 1 << 16]).is_ok()).count();
    assert!((1..=16).contains(&written), "{written}");
    world.faults = with_room(8 << 20, 0);
    world.write(2, 0, &[1; 1 << 16]).unwrap();
    world.faults = with_room(0, 0);
    world.tick(1);
    assert!(world.write(2, 1 << 16, &[1; 1 << 16]).is_err());
}
