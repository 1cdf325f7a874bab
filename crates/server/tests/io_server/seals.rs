//! Seals: they show data files that are too long, too short or older than they should be, and lost checksums.

use outcore_core::crash_disk::Random;
use outcore_core::{
    Damage, Disk, ErrorKind, Handle, IoReply, IoRequest, Names, OpenMode, Regions, ScrubPlace, Target,
};
use outcore_server::io_server::{BLOCK_BYTES, Limits, data_path, sums_path};

use crate::world::{World, grant, noise, removal_grant, small_limits, target, write_request};

const BLOCK: usize = BLOCK_BYTES as usize;

pub fn written(world: &mut World, handle: u64, seed: u64) -> Vec<u8> {
    let bytes = noise(&mut Random::new(seed), 5 * BLOCK + 99);
    world.write(handle, 0, &bytes).unwrap();
    world.sync(handle).unwrap();
    bytes
}

pub fn damage(world: &mut World) -> Vec<Damage> {
    world.scrub(ScrubPlace { handle: Handle(0), offset: 0 }, 1 << 30).damage
}

pub fn resize(world: &World, path: &str, length: u64) {
    let mode = OpenMode::Resize { length, reserve: false };
    world.disk.close(world.disk.open(path, mode).unwrap());
}

pub fn length(world: &mut World, handle: u64) -> IoReply {
    world.ask(IoRequest::Length { target: target(handle), grant: grant(handle) }, vec![]).0
}

#[test]
fn a_data_file_that_something_lengthened_is_damage_until_its_length_is_set() {
    for extra in [1, 4 * BLOCK_BYTES] {
        let mut world = World::new(1, small_limits());
        let bytes = written(&mut world, 1, 1);
        let end = bytes.len() as u64;
        world.stop();
        resize(&world, &data_path(Handle(1)), end + extra);
        world.restart();
        let IoReply::Failed(error) = length(&mut world, 1) else { panic!("a length") };
        assert_eq!(error.kind, ErrorKind::Corrupt);
        for part in ["server 3", "0000000000000001", &end.to_string(), &(end + extra).to_string()] {
            assert!(error.message.contains(part), "{part} is not in {error}");
        }
        assert_eq!(world.sync(1).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(world.read(1, end, 1).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(world.write(1, end, &[1; 9]).unwrap_err().kind, ErrorKind::Corrupt);
        assert_eq!(world.read(1, 0, end).as_deref(), Ok(&bytes[..]), "the file is there");
        let found = damage(&mut world);
        assert_eq!((found.len(), found[0].offset, found[0].bytes), (1, end, extra), "{found:?}");
        world.write(1, 3, &bytes[3..9]).unwrap();
        world.stop();
        world.restart();
        assert!(matches!(length(&mut world, 1), IoReply::Failed(_)), "no later seal covers it up");
        world.set_length(1, end, false).unwrap();
        assert_eq!((world.length(1), damage(&mut world)), (end, vec![]));
        assert_eq!(world.read(1, 0, end), Ok(bytes));
    }
}

#[test]
fn a_data_file_without_its_zeros_at_the_end_is_too_short() {
    let mut world = World::new(2, small_limits());
    world.set_length(1, 9 * BLOCK_BYTES, false).unwrap();
    world.sync(1).unwrap();
    world.stop();
    resize(&world, &data_path(Handle(1)), 3 * BLOCK_BYTES);
    world.restart();
    assert!(matches!(length(&mut world, 1), IoReply::Failed(error) if error.kind == ErrorKind::Corrupt));
    world.write(1, 0, &[1; 5]).unwrap();
    world.stop();
    world.restart();
    assert!(matches!(length(&mut world, 1), IoReply::Failed(_)), "no later seal covers it up");
    world.set_length(1, 3 * BLOCK_BYTES, false).unwrap();
    assert_eq!((world.length(1), world.sync(1)), (3 * BLOCK_BYTES, Ok(())));
}

#[test]
fn lengths_set_before_a_power_loss_are_no_damage() {
    for seed in 0..200 {
        let mut world = World::new(seed, small_limits());
        let mut random = Random::new(seed);
        written(&mut world, 1, seed);
        for _ in 0..random.below(6) {
            let length = random.below(40 * BLOCK_BYTES);
            match random.below(4) {
                0 => world.write(1, length, &[7; 5000]).unwrap(),
                1 => world.sync(1).unwrap(),
                _ => world.set_length(1, length, random.once_in(2)).unwrap(),
            }
        }
        let request = IoRequest::SetLength {
            target: target(1),
            grant: grant(1),
            local_length: random.below(40 * BLOCK_BYTES),
            reserve: random.once_in(2),
        };
        if random.once_in(2) {
            world.call(IoRequest::Sync { target: target(1), grant: grant(1) }, vec![]);
            for _ in 0..random.below(8) {
                world.turn();
            }
        }
        world.call(request, vec![]);
        for _ in 0..random.below(12) {
            world.turn();
        }
        world.crash();
        assert!(matches!(length(&mut world, 1), IoReply::Length(_)), "seed {seed}");
        assert_eq!(damage(&mut world), vec![], "seed {seed}");
        world.stop();
        world.restart();
        assert_eq!(damage(&mut world), vec![], "seed {seed}");
    }
}

#[test]
fn blocks_and_checksums_that_the_disk_lost_together_are_found() {
    let mut world = World::new(4, small_limits());
    let old = written(&mut world, 1, 1);
    world.stop();
    let paths = [data_path(Handle(1)), sums_path(Handle(1))];
    let before = paths.each_ref().map(|path| world.disk.content(path).unwrap());
    world.restart();
    written(&mut world, 1, 2);
    world.stop();
    // The disk lost both writes, but not that of the seal.
    let now = world.disk.content(&paths[1]).unwrap();
    world.disk.replace_small(&paths[0], &before[0]).unwrap();
    world.disk.replace_small(&paths[1], &[&now[..4096], &before[1][4096..]].concat()).unwrap();
    world.restart();
    assert_eq!(world.read(1, 0, 9).as_deref(), Ok(&old[..9]), "each block has its checksum");
    let found = damage(&mut world);
    assert_eq!((found.len(), found[0].bytes), (1, 0), "{found:?}");
    assert!(found[0].what.contains("checksums are old"), "{found:?}");
    world.crash();
    assert_eq!(damage(&mut world).len(), 1, "also after a restart");
    world.write(1, 0, &[3; 7]).unwrap();
    world.sync(1).unwrap();
    assert_eq!(damage(&mut world).len(), 1, "no later seal covers it up");
    world.set_length(1, 0, false).unwrap();
    assert_eq!(damage(&mut world), vec![], "an empty file has none");
}

#[test]
fn a_digest_survives_truncations_closings_and_power_losses() {
    for seed in 0..12 {
        let limits = Limits { open_files: 1, sums_bytes: 4096, ..small_limits() };
        let mut world = World::new(seed, limits);
        let mut random = Random::new(seed);
        for _ in 0..20 {
            let handle = random.between(1, 3);
            // Checksums of two pages.
            let offset = (random.below(2) << 26) + random.below(1 << 20);
            match random.below(9) {
                0 => world.set_length(handle, offset, false).unwrap(),
                1 | 2 => world.sync(handle).unwrap(),
                3 if random.once_in(3) => world.crash(),
                4 if random.once_in(3) => {
                    world.stop();
                    world.restart();
                }
                _ => world.write(handle, offset, &[seed as u8 + 1; 3000]).unwrap(),
            }
            if random.once_in(6) {
                let found = damage(&mut world);
                assert_eq!(found, vec![], "seed {seed}");
            }
        }
    }
}

#[test]
fn bytes_with_checksums_are_no_surplus_though_the_disk_lost_the_seal() {
    for more in [9, 3 * BLOCK] {
        let mut world = World::new(15, small_limits());
        let mut bytes = written(&mut world, 1, 1);
        world.stop();
        let path = sums_path(Handle(1));
        let seal = world.disk.content(&path).unwrap()[..4096].to_vec();
        world.restart();
        let added = noise(&mut Random::new(2), more);
        world.write(1, bytes.len() as u64, &added).unwrap();
        world.sync(1).unwrap();
        bytes.extend(added);
        world.stop();
        let now = world.disk.content(&path).unwrap();
        world.disk.replace_small(&path, &[&seal, &now[4096..]].concat()).unwrap();
        // Zeros behind them are a surplus.
        let end = bytes.len() as u64;
        let zeros = BLOCK_BYTES * 2;
        resize(&world, &data_path(Handle(1)), end.next_multiple_of(BLOCK_BYTES) + zeros);
        world.restart();
        world.done(IoRequest::Cut { handles: vec![Handle(1)] }, vec![]).unwrap();
        assert_eq!(world.length(1), end.next_multiple_of(BLOCK_BYTES));
        assert_eq!(world.read(1, 0, end), Ok(bytes));
        let found = damage(&mut world);
        assert!(found.len() == 1 && found[0].what.contains("checksums are old"), "{found:?}");
    }
}

fn at(handle: u64, generation: u64) -> Target {
    Target { generation, ..target(handle) }
}

fn sync(world: &mut World, handle: u64) -> u64 {
    let request = IoRequest::Sync { target: target(handle), grant: grant(handle) };
    match world.ask(request, vec![]).0 {
        IoReply::Synced { generation, .. } => generation,
        other => panic!("answered by {other:?}"),
    }
}

#[test]
fn an_older_copy_of_a_data_file_is_refused() {
    let mut world = World::new(5, small_limits());
    let paths = [data_path(Handle(1)), sums_path(Handle(1))];
    world.write(1, 0, &[1; 99]).unwrap();
    assert_eq!((sync(&mut world, 1), sync(&mut world, 1)), (1, 1), "nothing was written in between");
    world.stop();
    let copy = paths.each_ref().map(|path| world.disk.content(path).unwrap());
    world.restart();
    world.write(1, 0, &[2; 99]).unwrap();
    assert_eq!(sync(&mut world, 1), 2);
    let regions = || Regions::contiguous(0, 9).unwrap();
    let requests = |generation| {
        let (target, grant) = (at(1, generation), grant(1));
        [
            (IoRequest::Read { target, grant, regions: regions() }, 9),
            (IoRequest::Write { target, grant, regions: regions() }, 9),
            (IoRequest::Sync { target, grant }, 0),
            (IoRequest::Length { target, grant }, 0),
            (IoRequest::SetLength { target, grant, local_length: 99, reserve: false }, 0),
        ]
    };
    for (request, bytes) in requests(2) {
        assert!(world.done(request, vec![2; bytes]).is_ok());
    }
    world.stop();
    for (path, bytes) in paths.iter().zip(&copy) {
        world.disk.replace_small(path, bytes).unwrap();
    }
    world.restart();
    for (request, bytes) in requests(2) {
        let error = world.done(request, vec![2; bytes]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt);
        for part in ["server 3", "0000000000000001", "generation 2", "have 1", "restore"] {
            assert!(error.message.contains(part), "{part} is not in {error}");
        }
    }
    assert_eq!(world.read(1, 0, 3), Ok(vec![1; 3]), "a client that knows no generation reads it");
    for path in &paths {
        world.stop();
        world.disk.remove(path).unwrap();
        world.restart();
    }
    let [_, (write, _), ..] = requests(2);
    assert!(world.done(write, vec![2; 9]).unwrap_err().message.contains("have none"));
    assert!(!world.disk.paths().contains(&paths[0]), "no data file is made in place of a lost one");
}

#[test]
fn a_cut_removes_what_no_write_explains() {
    let mut world = World::new(10, small_limits());
    let bytes = written(&mut world, 1, 1);
    world.stop();
    resize(&world, &data_path(Handle(1)), 1 << 20);
    world.restart();
    let inspect = IoRequest::Inspect { handles: vec![Handle(1)] };
    let IoReply::Inspected(found) = world.ask(inspect, vec![]).0 else { panic!("no inspection") };
    assert_eq!(found[0].surplus, (1 << 20) - bytes.len() as u64);
    assert_eq!((found[0].generation, found[0].sums_are_old), (1, false));
    world.done(IoRequest::Cut { handles: vec![Handle(1), Handle(2)] }, vec![]).unwrap();
    assert_eq!((world.length(1), damage(&mut world)), (bytes.len() as u64, vec![]));
    assert_eq!(world.read(1, 0, bytes.len() as u64), Ok(bytes));
}

#[test]
fn a_sync_writes_one_page_more_and_syncs_no_more() {
    let mut world = World::new(6, small_limits());
    world.write(1, 0, &[1; 100]).unwrap();
    let (syncs, requests) = (world.syncs, world.disk_requests);
    world.sync(1).unwrap();
    // The checksums, the seal and two syncs, and the record in the log that clears the note.
    assert_eq!((world.syncs - syncs, world.disk_requests - requests), (3, 6));
    let sealed = world.disk.content(&sums_path(Handle(1))).unwrap();
    world.sync(1).unwrap();
    assert_eq!(world.disk.content(&sums_path(Handle(1))).unwrap(), sealed, "nothing was written");
}

/// Flips a bit of the first block of file 1, and lets the server find the damage.
fn damaged(world: &mut World) {
    written(world, 1, 1);
    world.disk.flip(&data_path(Handle(1)), 5, 3);
    assert_eq!(world.read(1, 0, 9).unwrap_err().kind, ErrorKind::Corrupt);
}

fn write_block(world: &mut World, block: u64, byte: u8) -> u64 {
    let regions = Regions::contiguous(block * BLOCK_BYTES, BLOCK_BYTES).unwrap();
    world.call(write_request(1, regions), vec![byte; BLOCK])
}

#[test]
fn a_file_is_removed_during_the_sync_after_a_repair() {
    for seed in 0..50 {
        let mut world = World::new(seed, small_limits());
        damaged(&mut world);
        write_block(&mut world, 0, 7);
        world.run();
        let sync = world.call(IoRequest::Sync { target: target(1), grant: grant(1) }, vec![]);
        for _ in 0..seed % 10 {
            world.turn();
        }
        let (target, grant) = (target(1), removal_grant(1));
        let removal = world.call(IoRequest::Remove { target, grant }, vec![]);
        world.run();
        assert!(world.answer(sync).is_some(), "seed {seed}");
        assert_eq!(world.answer(removal).map(|(reply, _)| reply), Some(IoReply::Done), "seed {seed}");
    }
}

#[test]
fn a_scrub_leaves_a_file_open_that_is_being_repaired() {
    for seed in 0..300 {
        let mut world = World::new(seed, small_limits());
        damaged(&mut world);
        world.stop();
        world.restart();
        world.run();
        // The scrub opens the file, and closes it afterwards.
        let from = ScrubPlace { handle: Handle(0), offset: 0 };
        world.call(IoRequest::Scrub { from, most_bytes: 1 << 30 }, vec![]);
        for _ in 0..world.random.below(30) {
            world.turn();
        }
        for block in [0, 1, 2, 3] {
            for _ in 0..world.random.below(10) {
                world.turn();
            }
            write_block(&mut world, block, (seed + block) as u8);
        }
        world.run();
        world.sync(1).unwrap();
        assert_eq!(damage(&mut world), vec![], "seed {seed}");
    }
}

#[test]
fn a_copy_without_a_write_during_a_sync_has_an_earlier_generation() {
    let mut times = 0;
    for seed in 0..200 {
        let mut world = World::new(seed, small_limits());
        written(&mut world, 1, 1);
        write_block(&mut world, 0, 7);
        world.run();
        let first = world.call(IoRequest::Sync { target: target(1), grant: grant(1) }, vec![]);
        for _ in 0..world.random.below(8) {
            world.turn();
        }
        write_block(&mut world, 1, 8);
        let first = loop {
            if let Some((reply, _)) = world.answer(first) {
                break reply;
            }
            world.turn();
        };
        let copy = world.disk.copy()[&data_path(Handle(1))].clone();
        world.run();
        let IoReply::Synced { generation, .. } = first else { panic!("answered by {first:?}") };
        if copy[BLOCK] != 8 {
            times += 1;
            assert!(sync(&mut world, 1) > generation, "seed {seed}");
        }
    }
    assert!(times > 20, "{times}");
}

#[test]
fn a_copy_that_no_client_synced_is_refused_too() {
    let mut world = World::new(14, small_limits());
    world.write(1, 0, &[1; 99]).unwrap();
    let (target, grant) = (at(1, 1), grant(1));
    let error = world.done(IoRequest::Length { target, grant }, vec![]).unwrap_err();
    assert!(error.kind == ErrorKind::Corrupt && error.message.contains("have 0"), "{error}");
    world.set_length(1, 0, false).unwrap();
    // The client knows how much of it was durable.
    assert_eq!(world.ask(IoRequest::Length { target, grant }, vec![]).0, IoReply::Length(0));
}
