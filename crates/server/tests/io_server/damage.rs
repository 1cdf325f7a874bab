//! Disks that return wrong bytes, fail, or are full.

use outcore_core::crash_disk::Random;
use outcore_core::{Disk, Error, ErrorKind, Handle, IoReply, IoRequest, OpenMode};
use outcore_server::io_server::{BLOCK_BYTES, data_path, sums_path};

use crate::world::{Faults, World, grant, noise, small_limits, target};

const BLOCK: usize = BLOCK_BYTES as usize;

fn written(world: &mut World) -> Vec<u8> {
    let bytes = noise(&mut Random::new(20), 6 * BLOCK);
    world.write(1, 0, &bytes).unwrap();
    world.sync(1).unwrap();
    bytes
}

#[test]
fn flipped_bits_are_found_named_and_counted() {
    let mut world = World::new(21, small_limits());
    let bytes = written(&mut world);
    assert!(world.disk.flip(&data_path(Handle(1)), 2 * BLOCK + 77, 3));
    for (offset, length) in [(0, 6 * BLOCK_BYTES), (2 * BLOCK_BYTES, 1), (3 * BLOCK_BYTES - 1, 2)] {
        let error = world.read(1, offset, length).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        for part in ["server 3", "block 2", "0000000000000001", "131072"] {
            assert!(error.message.contains(part), "{part} is not in {error}");
        }
    }
    assert_eq!(world.status().damaged_blocks, 1, "a block is counted once");
    assert_eq!(world.read(1, 0, 2 * BLOCK_BYTES).as_deref(), Ok(&bytes[..2 * BLOCK]), "others are read");
    let error = world.write(1, 2 * BLOCK_BYTES, &[1; 10]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "damage is not summed anew with a part of its block");
    world.crash();
    assert!(world.read(1, 2 * BLOCK_BYTES, 1).is_err(), "nor by a crash later");
    world.write(1, 2 * BLOCK_BYTES, &bytes[2 * BLOCK..3 * BLOCK]).unwrap();
    assert_eq!(world.read(1, 0, 6 * BLOCK_BYTES), Ok(bytes), "a whole block written anew is good again");
}

#[test]
fn every_bit_of_a_block_and_of_its_checksum_counts() {
    let mut world = World::new(22, small_limits());
    let bytes = written(&mut world);
    let mut random = Random::new(22);
    for _ in 0..300 {
        let (offset, bit) = (random.below(6 * BLOCK_BYTES) as usize, random.below(8) as u8);
        assert!(world.disk.flip(&data_path(Handle(1)), offset, bit));
        assert_eq!(world.read(1, offset as u64, 1).unwrap_err().kind, ErrorKind::Corrupt);
        assert!(world.disk.flip(&data_path(Handle(1)), offset, bit));
        assert_eq!(world.read(1, offset as u64, 1), Ok(vec![bytes[offset]]));
    }
    for offset in 0..24 {
        world.stop();
        world.disk.flip(&sums_path(Handle(1)), 4096 + offset, 5);
        world.restart();
        let block = offset as u64 / 4;
        assert_eq!(world.read(1, block * BLOCK_BYTES, 9).unwrap_err().kind, ErrorKind::Corrupt);
        world.stop();
        world.disk.flip(&sums_path(Handle(1)), 4096 + offset, 5);
        world.restart();
    }
    assert_eq!(world.read(1, 0, 6 * BLOCK_BYTES), Ok(bytes));
}

#[test]
fn a_hole_that_is_none_any_more_is_damage() {
    let mut world = World::new(23, small_limits());
    world.write(1, 5 * BLOCK_BYTES, &[1; 10]).unwrap();
    assert!(world.disk.flip(&data_path(Handle(1)), 3 * BLOCK, 0));
    assert_eq!(world.read(1, 3 * BLOCK_BYTES + 9, 1).unwrap_err().kind, ErrorKind::Corrupt);
}

/// Sets the length of the data file of handle 1, as another program might.
fn cut(world: &mut World, length: u64) {
    world.stop();
    let cut = OpenMode::Resize { length, reserve: false };
    world.disk.close(world.disk.open(&data_path(Handle(1)), cut).unwrap());
    world.restart();
}

fn length_error(world: &mut World) -> Error {
    match world.ask(IoRequest::Length { target: target(1), grant: grant(1) }, vec![]).0 {
        IoReply::Failed(error) => error,
        other => panic!("answered by {other:?}"),
    }
}

#[test]
fn a_data_file_that_was_cut_short_is_not_said_to_be_shorter() {
    let mut world = World::new(31, small_limits());
    let bytes = written(&mut world);
    for blocks in [2, 0] {
        cut(&mut world, blocks * BLOCK_BYTES);
        let error = length_error(&mut world);
        assert_eq!(error.kind, ErrorKind::Corrupt);
        let byte = (blocks * BLOCK_BYTES).to_string();
        for part in ["server 3", "0000000000000001", "cut short", &byte] {
            assert!(error.message.contains(part), "{part} is not in {error}");
        }
        assert_eq!(world.sync(1).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(world.read(1, blocks * BLOCK_BYTES, 9).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(world.read(1, 5 * BLOCK_BYTES, 9).unwrap_err().kind, ErrorKind::Corrupt);
        let left = (blocks * BLOCK_BYTES) as usize;
        assert_eq!(world.read(1, 0, left as u64).as_deref(), Ok(&bytes[..left]), "what is left is read");
    }
    world.write(1, 0, &bytes).unwrap();
    assert_eq!(world.length(1), 6 * BLOCK_BYTES, "written anew it is good again");
    assert_eq!((world.sync(1), world.read(1, 0, 6 * BLOCK_BYTES)), (Ok(()), Ok(bytes)));
}

#[test]
fn a_data_file_that_was_cut_short_may_be_made_that_short() {
    for length in [0, 100, BLOCK_BYTES, 2 * BLOCK_BYTES, 3 * BLOCK_BYTES] {
        let mut world = World::new(32, small_limits());
        let bytes = written(&mut world);
        cut(&mut world, 2 * BLOCK_BYTES);
        world.set_length(1, length, false).unwrap();
        assert_eq!((world.length(1), world.sync(1)), (length, Ok(())));
        if length <= 2 * BLOCK_BYTES {
            world.reserve(1, length.min(10)).unwrap();
            assert_eq!(world.length(1), length, "a reservation within the file");
        }
        let left = length.min(2 * BLOCK_BYTES) as usize;
        assert_eq!(world.read(1, 0, left as u64).as_deref(), Ok(&bytes[..left]));
        if length > 2 * BLOCK_BYTES {
            assert_eq!(world.read(1, 2 * BLOCK_BYTES, 9).unwrap_err().kind, ErrorKind::Corrupt);
        }
        world.crash();
        assert_eq!(world.length(1), length);
        world.set_length(1, 8 * BLOCK_BYTES, false).unwrap();
        let zeros = vec![0; 5 * BLOCK];
        assert_eq!(world.read(1, 3 * BLOCK_BYTES, 5 * BLOCK_BYTES), Ok(zeros), "nothing of it comes back");
    }
}

#[test]
fn short_transfers_change_nothing() {
    let mut world = World::new(24, small_limits());
    world.faults = Faults { short_of: 2, ..Faults::default() };
    let bytes = noise(&mut Random::new(24), 4 * BLOCK);
    world.write(1, 1000, &bytes).unwrap();
    world.sync(1).unwrap();
    assert_eq!(world.read(1, 1000, 4 * BLOCK_BYTES), Ok(bytes.clone()));
    world.crash();
    assert_eq!(world.read(1, 1000, 4 * BLOCK_BYTES), Ok(bytes));
}

#[test]
fn a_full_disk_is_said_and_loses_nothing_else() {
    let (mut refused, mut random) = (0, Random::new(25));
    for seed in 0..40 {
        let mut world = World::new(seed, small_limits());
        let bytes = written(&mut world);
        let mut known = vec![vec![]; bytes.len()];
        for (byte, values) in bytes.iter().zip(&mut known) {
            values.push(*byte);
        }
        world.faults = Faults { full_of: 3, ..Faults::default() };
        for _ in 0..5 {
            let offset = random.below(5 * BLOCK_BYTES);
            let fresh = noise(&mut random, 1 + (bytes.len() as u64 - offset).min(100_000) as usize - 1);
            let written = world.write(1, offset, &fresh);
            for (at, byte) in fresh.iter().enumerate() {
                let values = &mut known[offset as usize + at];
                if written.is_ok() {
                    values.clear();
                }
                values.push(*byte);
            }
            if let Err(error) = written {
                assert_eq!(error.kind, ErrorKind::DiskFull);
                refused += 1;
            }
        }
        world.faults = Faults::default();
        for crash in [false, true] {
            let found = world.read(1, 0, bytes.len() as u64).expect("no block is damaged by a full disk");
            assert!(found.iter().zip(&known).all(|(byte, values)| values.contains(byte)), "seed {seed}");
            assert_eq!(world.sync(1), Ok(()));
            if crash {
                world.crash();
            }
        }
    }
    assert!(refused > 40, "{refused}");
}

#[test]
fn a_disk_that_cannot_sync_is_not_believed_later() {
    let mut world = World::new(26, small_limits());
    world.write(1, 0, &[1; 10]).unwrap();
    world.faults.sync_fails = true;
    assert_eq!(world.sync(1).unwrap_err().kind, ErrorKind::Io);
    world.faults.sync_fails = false;
    assert!(world.sync(1).unwrap_err().message.contains("may be lost"));
    world.write(2, 0, &[1; 10]).unwrap();
    assert_eq!(world.sync(2), Ok(()), "other files are not concerned");
}

#[test]
fn writers_wait_for_their_note_and_are_told_if_there_is_none() {
    let mut world = World::new(27, small_limits());
    world.write(1, 0, &[1; 10]).unwrap();
    world.faults.sync_fails = true;
    let error = world.write(2, 0, &[1; 10]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    assert_eq!(world.length(2), 0, "nothing is written without a note");
    world.faults.sync_fails = false;
    assert_eq!(world.write(2, 0, &[1; 10]), Ok(()), "the log is begun anew");
    world.crash();
    assert!(world.read(1, 0, 10).is_ok() && world.read(2, 0, 10).is_ok());
}

#[test]
fn the_log_is_begun_anew_when_it_is_long() {
    let mut world = World::new(28, small_limits());
    for turn in 0..300 {
        let handle = 1 + turn % 3;
        world.write(handle, (turn % 3) << 20, &[turn as u8; 20]).unwrap();
        if turn % 50 != 49 {
            world.sync(handle).unwrap();
        }
        if turn % 97 == 0 {
            world.crash();
        }
    }
    for path in ["log.0", "log.1"] {
        assert_eq!(world.disk.content(path).unwrap().len(), 1 << 20, "{path}");
    }
    assert_eq!(world.read(3, 2 << 20, 2), Ok(vec![299_u64 as u8; 2]));
}

#[test]
fn a_file_that_is_left_alone_is_not_looked_at_again_after_a_crash() {
    for (seconds, is_examined) in [(1, true), (11, false)] {
        let mut world = World::new(29, small_limits());
        world.write(1, 0, &[1; 10]).unwrap();
        world.tick(seconds);
        assert!(world.disk.flip(&data_path(Handle(1)), 5, 0));
        world.crash();
        // In a noted region a block's current content counts; elsewhere the change is damage.
        assert_eq!(world.read(1, 0, 10).is_ok(), is_examined, "after {seconds} s");
    }
}
