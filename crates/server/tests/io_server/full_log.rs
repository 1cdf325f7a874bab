//! A disk so full that the log cannot restart. The server starts, reads and removes; it writes once there is
//! space.

use outcore_core::ErrorKind;
use outcore_server::io_server::{BLOCK_BYTES, Limits, data_path};

use crate::world::{Faults, World, small_limits};

fn full() -> Faults {
    Faults { is_full: true, ..Faults::default() }
}

/// A server that starts on a full disk with some files, one of which was being written.
fn started_full(seed: u64) -> World {
    let mut world = World::new(seed, Limits { removals: 0, ..small_limits() });
    world.write(1, 0, &[1; 100_000]).unwrap();
    world.sync(1).unwrap();
    world.write(2, 0, &[2; 100_000]).unwrap();
    world.faults = full();
    world.restart_with_faults();
    world
}

#[test]
fn it_is_read_and_refuses_writes_until_there_is_room() {
    let mut world = started_full(1);
    assert!(!world.status().is_writable);
    assert_eq!(world.status().noted_files, 1);
    assert_eq!(world.read(1, 0, 100_000), Ok(vec![1; 100_000]));
    assert_eq!(world.read(2, 0, 100_000), Ok(vec![2; 100_000]));
    for handle in [1, 3] {
        let error = world.write(handle, 9 << 20, &[3; 10]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::DiskFull);
        assert!(error.message.contains("server 3") && error.message.contains("cannot note it"), "{error}");
    }
    assert_eq!(world.read(1, 0, 100_000), Ok(vec![1; 100_000]), "still");
    world.remove(1).unwrap();
    world.faults = Faults::default();
    world.write(3, 0, &[3; 10]).unwrap();
    assert!(world.status().is_writable);
    world.sync(3).unwrap();
    world.crash();
    assert_eq!(world.read(3, 0, 10), Ok(vec![3; 10]));
    assert_eq!(world.read(2, 0, 100_000), Ok(vec![2; 100_000]));
    assert_eq!(world.length(1), 0);
}

#[test]
fn what_the_log_said_before_counts_until_it_can_be_written() {
    for seed in 0..40 {
        let mut world = started_full(seed);
        for _ in 0..3 {
            world.restart_with_faults();
            assert_eq!(world.status().noted_files, 1, "seed {seed}");
        }
        // A bit flip simulates a crash in the middle of a write. The region is noted, so the current content
        // counts.
        world.stop();
        assert!(world.disk.flip(&data_path(outcore_core::Handle(2)), 5, 0));
        world.restart_with_faults();
        assert!(world.read(2, 0, BLOCK_BYTES).is_ok(), "seed {seed}: its region is still noted");
        world.faults = Faults::default();
        world.write(2, 0, &[4; 100]).unwrap();
        world.sync(2).unwrap();
        world.stop();
        assert!(world.disk.flip(&data_path(outcore_core::Handle(2)), 5, 0));
        world.restart();
        assert!(world.read(2, 0, BLOCK_BYTES).is_err(), "seed {seed}: nothing is noted any more");
    }
}
