//! Checksum files without seals, from format 1 of the directory, and their upgrade.

use outcore_core::{Handle, IoReply, Names};
use outcore_server::io_server::{data_path, plain_sums_path, sums_path};

use crate::seals::{damage, length, resize, written};
use crate::world::{World, small_limits};

/// Gives the files of a stopped server the format without seals.
fn downgrade(world: &World, handle: u64) {
    let path = sums_path(Handle(handle));
    let sums = world.disk.content(&path).unwrap();
    world.disk.replace_small(&plain_sums_path(Handle(handle)), &sums[4096..]).unwrap();
    world.disk.remove(&path).unwrap();
}

#[test]
fn files_of_the_first_format_are_read_and_upgraded() {
    let mut world = World::new(7, small_limits());
    let bytes = written(&mut world, 1, 1);
    world.stop();
    downgrade(&world, 1);
    world.restart();
    assert_eq!(damage(&mut world), vec![]);
    assert_eq!(world.read(1, 0, bytes.len() as u64), Ok(bytes));
    let paths = world.disk.paths();
    assert!(paths.contains(&sums_path(Handle(1))) && !paths.contains(&plain_sums_path(Handle(1))));
    world.stop();
    resize(&world, &data_path(Handle(1)), 1 << 20);
    world.restart();
    assert_eq!(damage(&mut world).len(), 1, "the first seal counts");
}

#[test]
fn files_of_the_first_format_stay_as_they_are_on_a_disk_that_takes_no_writes() {
    let mut world = World::new(8, small_limits());
    let bytes = written(&mut world, 1, 1);
    world.stop();
    downgrade(&world, 1);
    world.faults.is_read_only = true;
    world.restart_with_faults();
    assert_eq!(world.read(1, 0, bytes.len() as u64), Ok(bytes.clone()));
    assert_eq!(damage(&mut world), vec![]);
    assert!(world.disk.paths().contains(&plain_sums_path(Handle(1))));
    world.faults.is_read_only = false;
    world.restart();
    assert_eq!(world.read(1, 0, bytes.len() as u64), Ok(bytes));
    world.remove(1).unwrap();
    assert!(world.disk.paths().iter().all(|path| !path.contains("0000000000000001")));
}

#[test]
fn a_file_of_the_first_format_that_was_being_written_is_examined() {
    let mut world = World::new(9, small_limits());
    let mut bytes = written(&mut world, 1, 1);
    world.write(1, 9, &[5; 9]).unwrap();
    bytes[9..18].fill(5);
    world.crash();
    // Nothing has opened the file since.
    downgrade(&world, 1);
    world.restart();
    world.run();
    let found = world.read(1, 0, bytes.len() as u64).unwrap();
    assert!(found[18..] == bytes[18..] && damage(&mut world).is_empty());
}

/// A file whose last byte is far behind the region that the log names.
fn long(world: &mut World) -> u64 {
    written(world, 1, 1);
    world.write(1, 3 << 20, &[1; 99]).unwrap();
    world.sync(1).unwrap();
    (3 << 20) + 99
}

#[test]
fn a_file_of_the_first_format_keeps_its_length_whatever_the_log_names() {
    let mut world = World::new(11, small_limits());
    let end = long(&mut world);
    world.write(1, 9, &[5; 9]).unwrap();
    world.crash();
    downgrade(&world, 1);
    for _ in 0..2 {
        world.restart();
        world.run();
        assert_eq!((world.length(1), damage(&mut world)), (end, vec![]));
        assert_eq!(world.read(1, 3 << 20, 99), Ok(vec![1; 99]));
        world.stop();
    }
}

#[test]
fn a_file_of_the_first_format_that_is_written_before_its_upgrade_is_good() {
    let mut world = World::new(12, small_limits());
    let end = long(&mut world);
    world.stop();
    downgrade(&world, 1);
    world.faults.is_unsealed = true;
    world.restart_with_faults();
    world.write(1, 9, &[5; 9]).unwrap();
    // The server closes it, to open others.
    for other in 2..5 {
        world.write(other, 0, &[1]).unwrap();
    }
    world.faults.is_unsealed = false;
    assert_eq!((world.length(1), damage(&mut world)), (end, vec![]));
    assert!(!world.disk.paths().contains(&plain_sums_path(Handle(1))), "upgraded");
    world.crash();
    assert_eq!((world.length(1), damage(&mut world)), (end, vec![]));
    assert_eq!(world.read(1, 9, 9), Ok(vec![5; 9]));
}

#[test]
fn a_length_is_durable_before_the_first_seal_states_it() {
    for seed in 0..20 {
        let mut world = World::new(seed, small_limits());
        written(&mut world, 1, 1);
        world.stop();
        downgrade(&world, 1);
        // The earlier version had set the length, and had not synced the file.
        resize(&world, &data_path(Handle(1)), 9 << 20);
        world.restart();
        assert_eq!(world.length(1), 9 << 20);
        world.crash();
        assert_eq!(damage(&mut world), vec![], "seed {seed}");
        assert!(matches!(length(&mut world, 1), IoReply::Length(_)), "seed {seed}");
    }
}

#[test]
fn a_new_checksum_file_counts_although_the_old_one_cannot_be_removed() {
    let mut world = World::new(13, small_limits());
    let mut bytes = written(&mut world, 1, 1);
    world.stop();
    downgrade(&world, 1);
    world.faults.is_half_sealed = true;
    world.restart_with_faults();
    world.write(1, 9, &[5; 9]).unwrap();
    bytes[9..18].fill(5);
    world.stop();
    world.faults.is_half_sealed = false;
    world.restart();
    assert_eq!(world.read(1, 0, bytes.len() as u64), Ok(bytes));
    assert_eq!(damage(&mut world), vec![]);
    assert!(world.disk.paths().contains(&plain_sums_path(Handle(1))), "the old one is still there");
    world.remove(1).unwrap();
    assert!(world.disk.paths().iter().all(|path| !path.contains("0000000000000001")));
}
