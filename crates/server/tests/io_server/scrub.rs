//! Scrubbing: it finds all damage that the test caused and nothing else, even during writes.

use outcore_core::crash_disk::Random;
use outcore_core::{
    Damage, Disk, ErrorKind, Handle, IoReply, IoRequest, Names, OpenMode, Regions, ScrubPlace, Scrubbed,
};
use outcore_server::io_server::{BLOCK_BYTES, data_path, sums_path};

use crate::world::{Faults, World, noise, read_request, removal_grant, small_limits, write_request};

const BEGIN: ScrubPlace = ScrubPlace { handle: Handle(0), offset: 0 };
const LENGTHS: [(u64, u64); 5] = [
    (1, 6 * BLOCK_BYTES),
    (2, 1),
    (255, 20 * BLOCK_BYTES + 77),
    (258, 2 * BLOCK_BYTES),
    (0x0123_4567_89ab_cdef, 3 * BLOCK_BYTES + 1),
];

fn filled(seed: u64) -> World {
    let mut world = World::new(seed, small_limits());
    for (handle, length) in LENGTHS {
        let bytes = noise(&mut Random::new(handle), length as usize);
        world.write(handle, 0, &bytes).unwrap();
        world.sync(handle).unwrap();
    }
    world
}

/// Scrubs everything, in bounded calls.
fn scrub_all(world: &mut World, most_bytes: u64) -> Scrubbed {
    let mut all = Scrubbed { next: Some(BEGIN), files: 0, bytes: 0, damage: vec![] };
    while let Some(place) = all.next {
        let piece = world.scrub(place, most_bytes);
        assert!(piece.bytes <= most_bytes + 4 * BLOCK_BYTES, "a piece is bounded");
        assert!(piece.next.is_none_or(|next| next != place), "it goes on");
        all.next = piece.next;
        all.files += piece.files;
        all.bytes += piece.bytes;
        all.damage.extend(piece.damage);
    }
    all
}

fn places(damage: &[Damage]) -> Vec<(u64, u64, u64)> {
    let mut places: Vec<_> = damage.iter().map(|d| (d.handle.0, d.offset, d.bytes)).collect();
    places.sort_unstable();
    places
}

#[test]
fn what_is_whole_is_read_once_and_nothing_is_found() {
    let mut world = filled(1);
    let total: u64 = LENGTHS.iter().map(|(_, length)| length).sum();
    for most_bytes in [1, BLOCK_BYTES, 7 * BLOCK_BYTES, 1 << 40] {
        let found = scrub_all(&mut world, most_bytes);
        assert_eq!((found.files, found.bytes, found.damage), (5, total, vec![]));
    }
    let mut empty = World::new(1, small_limits());
    assert_eq!(scrub_all(&mut empty, 1 << 20), Scrubbed { next: None, files: 0, bytes: 0, damage: vec![] });
}

#[test]
fn flipped_bits_in_data_and_in_checksums_are_told_exactly() {
    let mut world = filled(2);
    let mut expected = vec![];
    for (handle, length) in LENGTHS {
        for block in 0..length.div_ceil(BLOCK_BYTES) {
            if world.random.below(3) > 0 {
                continue;
            }
            let (path, at) = if world.random.below(2) == 0 {
                let left = BLOCK_BYTES.min(length - block * BLOCK_BYTES);
                (data_path(Handle(handle)), block * BLOCK_BYTES + world.random.below(left))
            } else {
                (sums_path(Handle(handle)), 4096 + 4 * block + world.random.below(4))
            };
            assert!(world.disk.flip(&path, at as usize, 2));
            expected.push(block_of(handle, block));
        }
    }
    assert!(expected.len() > 5);
    expected.sort_unstable();
    let found = scrub_all(&mut world, 3 * BLOCK_BYTES);
    assert_eq!(places(&found.damage), expected);
    assert!(found.damage.iter().all(|damage| damage.what.contains("need checksum")), "{found:?}");
    assert_eq!(world.status().damaged_blocks, expected.len() as u64);
    world.crash();
    assert_eq!(places(&scrub_all(&mut world, 1 << 30).damage), expected, "and so after a restart");
    for (handle, offset, _) in expected {
        let bytes = BLOCK_BYTES.min(world.length(handle) - offset);
        world.write(handle, offset, &vec![1; bytes as usize]).unwrap();
    }
    assert_eq!(scrub_all(&mut world, 1 << 30).damage, vec![], "what is written anew is good");
}

#[test]
fn checksums_in_memory_do_not_hide_those_on_the_disk() {
    let mut world = World::new(6, small_limits());
    world.write(1, 0, &vec![9; 6 * BLOCK_BYTES as usize]).unwrap();
    world.sync(1).unwrap();
    assert!(world.disk.flip(&sums_path(Handle(1)), 4096 + 4 * 2 + 1, 3));
    assert!(world.read(1, 2 * BLOCK_BYTES, 1).is_ok(), "as long as it is in memory");
    assert_eq!(places(&scrub_all(&mut world, 1 << 20).damage), [block_of(1, 2)]);
    assert!(world.read(1, 2 * BLOCK_BYTES, 1).is_err(), "as it will be after a restart");
    // The scrub ignores the disk's copy of a changed checksum that is not yet written.
    world.write(1, 2 * BLOCK_BYTES, &vec![8; BLOCK_BYTES as usize]).unwrap();
    assert_eq!(scrub_all(&mut world, 1 << 20).damage, vec![]);
    world.sync(1).unwrap();
    world.crash();
    assert_eq!(scrub_all(&mut world, 1 << 20).damage, vec![]);
}

fn block_of(handle: u64, block: u64) -> (u64, u64, u64) {
    (handle, block * BLOCK_BYTES, BLOCK_BYTES)
}

#[test]
fn a_data_file_that_was_cut_short_and_one_without_checksums_are_damage() {
    let mut world = filled(3);
    world.stop();
    let length = 3 * BLOCK_BYTES + 5;
    let cut = OpenMode::Resize { length, reserve: false };
    world.disk.close(world.disk.open(&data_path(Handle(255)), cut).unwrap());
    world.disk.remove(&sums_path(Handle(1))).unwrap();
    world.restart();
    let found = scrub_all(&mut world, 1 << 20);
    let lost = (3..21).map(|block| (255, block * BLOCK_BYTES, BLOCK_BYTES));
    let expected: Vec<_> = [(1, 0, 0)].into_iter().chain(lost).collect();
    assert_eq!(places(&found.damage), expected);
    let of = |block: u64| found.damage.iter().find(|d| d.offset == block * BLOCK_BYTES).unwrap().what.clone();
    assert!(of(3).contains("is damaged") && of(4).contains("cut short"), "{} {}", of(3), of(4));
}

#[test]
fn blocks_that_the_disk_cannot_read_are_damage_and_others_are_compared() {
    let mut world = filled(4);
    world.faults = Faults { unreadable: 10 * BLOCK_BYTES + 5, ..Faults::default() };
    world.disk.flip(&data_path(Handle(255)), 11 * BLOCK_BYTES as usize, 1);
    let found = scrub_all(&mut world, 1 << 20);
    assert_eq!(places(&found.damage), [block_of(255, 10), block_of(255, 11)]);
    assert!(found.damage[0].what.contains("cannot be read"), "{found:?}");
}

#[test]
fn nothing_is_found_under_writes_lengths_removals_and_crashes() {
    let mut compared = 0;
    for seed in 0..60 {
        let mut world = filled(seed);
        world.faults = Faults { short_of: 4, ..Faults::default() };
        let (mut place, mut calls) = (BEGIN, vec![]);
        for _ in 0..40 {
            let handle = LENGTHS[world.random.below(5) as usize].0;
            let (offset, bytes) = (world.random.below(20 * BLOCK_BYTES), 1 + world.random.below(200_000));
            let regions = Regions::contiguous(offset, bytes).unwrap();
            let (target, grant) = (crate::world::target(handle), crate::world::grant(handle));
            let (request, buffer) = match world.random.below(8) {
                0..=2 => {
                    let content = noise(&mut world.random, bytes as usize);
                    (write_request(handle, regions), content)
                }
                3 => (read_request(handle, regions), vec![0; bytes as usize]),
                4 => (IoRequest::SetLength { target, grant, local_length: offset, reserve: false }, vec![]),
                5 => (IoRequest::Remove { target, grant: removal_grant(handle) }, vec![]),
                _ => (IoRequest::Scrub { from: place, most_bytes: 5 * BLOCK_BYTES }, vec![]),
            };
            calls.push(world.call(request, buffer));
            for _ in 0..world.random.below(12) {
                world.turn();
            }
            if world.random.below(10) == 0 {
                world.run();
            }
            calls.retain(|&call| {
                let Some((reply, _)) = world.answer(call) else { return true };
                match reply {
                    IoReply::Scrubbed(found) => {
                        assert_eq!(found.damage, vec![], "seed {seed}");
                        place = found.next.unwrap_or(BEGIN);
                        compared += found.bytes;
                    }
                    IoReply::Done | IoReply::Absent => {}
                    // The file was removed while it was being written.
                    IoReply::Failed(error) if error.kind == ErrorKind::NotFound => {}
                    other => panic!("seed {seed}: answered by {other:?}"),
                }
                false
            });
            if world.random.below(30) == 0 {
                world.crash();
                calls.clear();
            }
        }
        world.run();
        world.crash();
        assert_eq!(scrub_all(&mut world, 1 << 20).damage, vec![], "seed {seed}");
    }
    assert!(compared > 1000 * BLOCK_BYTES, "{compared}");
}

#[test]
fn a_scrub_takes_its_turn_with_others() {
    let mut world = filled(5);
    let scrub = world.call(IoRequest::Scrub { from: BEGIN, most_bytes: 1 << 30 }, vec![]);
    let read = read_request(2, Regions::contiguous(0, 1).unwrap());
    let read = world.call(read, vec![0]);
    while world.answer(read).is_none() {
        assert!(world.turn(), "a read hangs behind a scrub");
    }
    assert!(world.answer(scrub).is_none(), "the scrub is not done when the read is");
    let scratch = *world.scratch.lock().unwrap();
    world.run();
    assert!(world.answer(scrub).is_some());
    assert!(*world.scratch.lock().unwrap() <= scratch + (1 << 20), "its memory is bounded");
}
