//! Shares that a server reads from the memory of processes. Test doubles stand for the processes.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outcore_core::crash_disk::MemoryBuffer;
use outcore_core::{
    Buffer, ByteRun, CollectiveSpec, Distribution, Error, ErrorKind, GridSpec, IoReply, IoRequest,
    MemoryOffer, MemorySchema, Nested, OfferedArray, PeerMemory, Regions, Result,
};
use outcore_server::io_server::{Caller, Limits};

use crate::ranks::{Doing, ITEM, Rank, content, grid, image, mesh, quarters, results, settle, spec};
use crate::world::{World, grant, target};

const NONCE: u128 = 0x0123_4567_89ab_cdef_0f1e_2d3c_4b5a_6978;
const NONCE_AT: u64 = 0x5000;
const ARRAY_AT: u64 = 0x7_0000_0000;

/// The memory of a process: a nonce and an array. The process ends after `reads_left` reads.
#[derive(Debug)]
struct Process {
    nonce: u128,
    array: Mutex<Vec<u8>>,
    reads_left: AtomicU64,
}

impl PeerMemory<MemoryBuffer> for Process {
    fn read(&self, runs: &[ByteRun], buffer: &mut MemoryBuffer, places: &[ByteRun]) -> Result<()> {
        let ended = |_| Error::new(ErrorKind::Io, "it has ended");
        let one_less = |left: u64| left.checked_sub(1);
        self.reads_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).map_err(ended)?;
        let (array, nonce) = (self.array.lock().unwrap(), self.nonce.to_le_bytes());
        let mut found = vec![];
        for run in runs {
            let part = |base: u64, bytes: &[u8]| {
                let start = run.start.checked_sub(base)? as usize;
                bytes.get(start..start.checked_add(run.bytes as usize)?).map(<[u8]>::to_vec)
            };
            let bytes = part(NONCE_AT, &nonce).or_else(|| part(ARRAY_AT, &array));
            found.extend(bytes.ok_or_else(|| Error::new(ErrorKind::Io, "it has no such memory"))?);
        }
        let mut from = 0;
        for place in places {
            buffer.copy_in(place.start as usize, &found[from..from + place.bytes as usize]);
            from += place.bytes as usize;
        }
        assert_eq!(from, found.len());
        Ok(())
    }
}

/// The place of a process's array in its memory: the first element and the strides, in elements.
#[derive(Clone, Copy)]
struct Lies {
    first: i64,
    strides: [i64; 3],
}

/// Contiguous, with the last dimension fastest.
const PLAIN: Lies = Lies { first: 0, strides: [128 * 256, 256, 1] };

/// The quarter of a file that process `rank` of `quarters` owns, and the offer of its memory.
fn quarter(image: &[u8], rank: u64, lies: Lies) -> (MemoryOffer, Process) {
    let (row, column) = (rank / 2 * 128, rank % 2 * 256);
    let mut array = vec![0xEE; 8 << 20];
    for i in 0..20 {
        for j in 0..128 {
            for k in 0..256 {
                let at = lies.strides.iter().zip([i, j, k]).fold(lies.first, |at, (s, n)| at + s * n);
                let at = (at * ITEM as i64) as usize;
                let from = (((i as u64 * 256 + row + j as u64) * 512 + column + k as u64) * ITEM) as usize;
                array[at..at + ITEM as usize].copy_from_slice(&image[from..from + ITEM as usize]);
            }
        }
    }
    let offered = OfferedArray {
        address: ARRAY_AT + lies.first as u64 * ITEM,
        strides: lies.strides.map(|stride| stride * ITEM as i64).to_vec(),
    };
    let offer = MemoryOffer { nonce: NONCE, nonce_address: NONCE_AT, arrays: vec![offered] };
    let process = Process { nonce: NONCE, array: Mutex::new(array), reads_left: AtomicU64::new(u64::MAX) };
    (offer, process)
}

fn caller(process: Process) -> Caller<MemoryBuffer> {
    Some(Arc::new(process))
}

fn join(world: &mut World, spec: &CollectiveSpec, image: &[u8], lies: [Lies; 4]) -> Vec<Rank> {
    let ranks = (0..4).zip(lies).map(|(rank, lies)| {
        let (offer, process) = quarter(image, rank, lies);
        Rank::join_with(world, 1, spec, rank, Some(offer), caller(process))
    });
    ranks.collect()
}

#[test]
fn what_lies_in_long_runs_is_read_without_messages() {
    let mut world = World::new(1, Limits::default());
    let written = image(1);
    let padded = Lies { first: 0, strides: [128 * 260, 260, 1] };
    let backwards = Lies { first: 19 * 128 * 256, strides: [-128 * 256, 256, 1] };
    let columns = Lies { first: 0, strides: [1, 20, 20 * 128] };
    let spec1 = spec(1, true, 4, quarters());
    let mut ranks = join(&mut world, &spec1, &written, [PLAIN, padded, backwards, columns]);
    settle(&mut world, &mut ranks, &mut written.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
    assert!(content(&world, 1) == written);
    assert!(ranks.iter().all(|rank| rank.is_read));
    let messages: Vec<u64> = ranks.iter().map(|rank| rank.messages).collect();
    assert_eq!(messages, [2, 2, 2, 1 + 3 + 20 + 1], "elements that lie apart are given");
    let status = world.status();
    assert_eq!((status.bytes_written, status.direct_bytes), (20 << 20, 15 << 20));
    // The answered write is durable.
    world.crash();
    assert!(content(&world, 1) == written);
}

#[test]
fn with_processes_elsewhere_it_is_read_and_given() {
    let mut world = World::new(2, Limits::default());
    let written = image(2);
    let spec1 = spec(1, true, 4, quarters());
    let near = (0..2).map(|rank| {
        let (offer, process) = quarter(&written, rank, PLAIN);
        Rank::join_with(&mut world, 1, &spec1, rank, Some(offer), caller(process))
    });
    let mut ranks: Vec<Rank> = near.collect();
    ranks.extend((2..4).map(|rank| Rank::join(&mut world, 1, &spec1, rank)));
    settle(&mut world, &mut ranks, &mut written.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
    assert!(content(&world, 1) == written);
    let messages: Vec<u64> = ranks.iter().map(|rank| rank.messages).collect();
    assert_eq!(messages, [2, 2, 25, 25]);
}

#[test]
fn who_cannot_be_read_or_is_another_gives_by_messages() {
    let written = image(3);
    let spec1 = spec(1, true, 4, quarters());
    let run = |world: &mut World, alter: &dyn Fn(&mut MemoryOffer, &mut Process)| {
        let ranks = (0..4).map(|rank| {
            let (mut offer, mut process) = quarter(&written, rank, PLAIN);
            alter(&mut offer, &mut process);
            Rank::join_with(world, 1, &spec1, rank, Some(offer), caller(process))
        });
        let mut ranks: Vec<Rank> = ranks.collect();
        settle(world, &mut ranks, &mut written.clone());
        assert_eq!(results(&ranks), vec![Ok(()); 4]);
        assert!(ranks.iter().all(|rank| !rank.is_read && rank.messages == 1 + 3 + 20 + 1));
        assert!(content(world, 1) == written);
        assert_eq!(world.status().direct_bytes, 0);
    };
    let mut world = World::new(3, Limits::default());
    run(&mut world, &|_, process| process.reads_left = AtomicU64::new(0));
    let mut world = World::new(4, Limits::default());
    // Another process, or a forked copy of one, has another nonce at this address.
    run(&mut world, &|_, process| process.nonce += 1);
    let mut world = World::new(5, Limits::default());
    run(&mut world, &|offer, _| offer.nonce_address = 1);
    // A server that is configured to read no memory.
    let mut world = World::without_memory(6);
    run(&mut world, &|_, _| {});
}

#[test]
fn who_ends_or_is_wrong_midway_fails_all_and_is_named() {
    let written = image(4);
    for is_wrong in [false, true] {
        let mut world = World::new(7, Limits::default());
        let spec1 = spec(1, true, 4, quarters());
        let ranks = (0..4).map(|rank| {
            let (mut offer, process) = quarter(&written, rank, PLAIN);
            if rank == 2 && is_wrong {
                offer.arrays[0].address += 7 << 20;
            }
            if rank == 2 && !is_wrong {
                // Enough reads for the nonce and some pieces.
                process.reads_left.store(9, Ordering::Relaxed);
            }
            Rank::join_with(&mut world, 1, &spec1, rank, Some(offer), caller(process))
        });
        let mut ranks: Vec<Rank> = ranks.collect();
        settle(&mut world, &mut ranks, &mut written.clone());
        let why = if is_wrong { "it has no such memory" } else { "it has ended" };
        for result in results(&ranks) {
            let message = result.unwrap_err().message;
            assert_eq!(message, format!("the memory of process 2 cannot be read: {why}"));
        }
        // The next collective finds the buffers free.
        let spec2 = spec(2, true, 4, quarters());
        let mut ranks = join(&mut world, &spec2, &written, [PLAIN; 4]);
        settle(&mut world, &mut ranks, &mut written.clone());
        assert_eq!(results(&ranks), vec![Ok(()); 4]);
        assert!(content(&world, 1) == written);
    }
}

#[test]
fn who_gives_up_or_dies_before_the_end_fails_all() {
    let written = image(5);
    let mut world = World::new(8, Limits::default());
    let spec1 = spec(1, true, 4, quarters());
    let mut ranks = join(&mut world, &spec1, &written, [PLAIN; 4]);
    for _ in 0..40 {
        world.turn();
    }
    let abandon = IoRequest::Abandon { collective: 1, rank: 3, error: Error::new(ErrorKind::Io, "Ctrl-C") };
    world.call(abandon, vec![]);
    settle(&mut world, &mut ranks, &mut written.clone());
    for result in results(&ranks) {
        assert_eq!(result.unwrap_err().message, "process 3 aborted: Ctrl-C");
    }
    // The server has read its memory, but the process never asks for the result.
    let spec2 = spec(2, true, 4, quarters());
    let mut ranks = join(&mut world, &spec2, &written, [PLAIN; 4]);
    ranks[1].holds_end = true;
    settle(&mut world, &mut ranks, &mut written.clone());
    assert!(ranks.iter().all(|rank| rank.result.is_none()));
    world.tick(30);
    settle(&mut world, &mut ranks, &mut written.clone());
    for (number, result) in results(&ranks).into_iter().enumerate() {
        let message = result.unwrap_err().message;
        assert!(number == 1 || message.contains("nothing was heard of process 1 for 30 s"), "{message}");
    }
}

#[test]
fn what_nobody_has_stays_and_what_many_have_is_put_together() {
    // Process 0 owns whole rows. Process 1 owns the right half of some rows, which is not contiguous on disk.
    let mut world = World::new(9, Limits::default());
    let before = image(6);
    let spec1 = spec(1, true, 4, quarters());
    let mut ranks = join(&mut world, &spec1, &before, [PLAIN; 4]);
    settle(&mut world, &mut ranks, &mut before.clone());
    let area = |start: [u64; 3], shape: [u64; 3]| outcore_core::ElementBox {
        start: start.to_vec(),
        shape: shape.to_vec(),
    };
    let fresh = image(7);
    let areas = [area([3, 0, 0], [9, 256, 512]), area([15, 7, 256], [2, 100, 256])];
    let schema = outcore_core::MemorySchema::Boxes(areas.iter().map(|area| vec![area.clone()]).collect());
    let spec2 = spec(2, true, 2, schema);
    let mut expected = before.clone();
    let ranks = (0..2).zip(&areas).map(|(rank, area)| {
        let mut array = vec![];
        for i in 0..area.shape[0] {
            for j in 0..area.shape[1] {
                let row = (area.start[0] + i) * 256 + area.start[1] + j;
                let from = ((row * 512 + area.start[2]) * ITEM) as usize;
                let bytes = from..from + (area.shape[2] * ITEM) as usize;
                array.extend_from_slice(&fresh[bytes.clone()]);
                expected[bytes.clone()].copy_from_slice(&fresh[bytes]);
            }
        }
        let step = (area.shape[2] * ITEM) as i64;
        let strides = vec![step * area.shape[1] as i64, step, ITEM as i64];
        let arrays = vec![OfferedArray { address: ARRAY_AT, strides }];
        let offer = MemoryOffer { nonce: NONCE, nonce_address: NONCE_AT, arrays };
        let process = Process { nonce: NONCE, array: Mutex::new(array), reads_left: u64::MAX.into() };
        Rank::join_with(&mut world, 1, &spec2, rank, Some(offer), caller(process))
    });
    let mut ranks: Vec<Rank> = ranks.collect();
    settle(&mut world, &mut ranks, &mut fresh.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 2]);
    assert!(ranks.iter().all(|rank| rank.messages == 2));
    assert!(content(&world, 1) == expected);
}

#[test]
fn an_answer_that_was_lost_is_given_again_as_it_was() {
    let mut world = World::new(10, Limits::default());
    let written = image(8);
    let spec1 = spec(1, true, 4, quarters());
    let mut ranks = join(&mut world, &spec1, &written, [PLAIN; 4]);
    world.run();
    // The process joins again over a channel that does not identify it to the server.
    let again = IoRequest::Join {
        target: target(1),
        grant: grant(1),
        spec: Box::new(spec1.clone()),
        rank: 3,
        memory: None,
    };
    assert_eq!(world.ask(again, vec![]).0, outcore_core::IoReply::ReadsMemory);
    settle(&mut world, &mut ranks, &mut written.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
    assert!(content(&world, 1) == written);
}

#[test]
fn offers_that_do_not_belong_are_refused() {
    let mut world = World::new(11, Limits::default());
    let written = image(9);
    let spec1 = spec(1, true, 4, quarters());
    for (number, arrays) in [0_usize, 2].into_iter().enumerate() {
        let (mut offer, process) = quarter(&written, 0, PLAIN);
        offer.arrays = vec![offer.arrays[0].clone(); arrays];
        let mut rank = [Rank::join_with(&mut world, 1, &spec1, number as u64, Some(offer), caller(process))];
        settle(&mut world, &mut rank, &mut []);
        let message = results(&rank)[0].clone().unwrap_err().message;
        assert!(message.contains("it offers memory of"), "{message}");
    }
    // Strides beyond the address space lead to addresses that do not exist.
    let spec2 = CollectiveSpec { schema: whole(), ranks: 1, ..spec(2, true, 1, whole()) };
    let (mut offer, process) = quarter(&written, 0, PLAIN);
    offer.arrays[0].strides = vec![i64::MAX, i64::MIN, 8];
    let mut rank = [Rank::join_with(&mut world, 1, &spec2, 0, Some(offer), caller(process))];
    settle(&mut world, &mut rank, &mut written.clone());
    let message = results(&rank)[0].clone().unwrap_err().message;
    assert!(message.contains("the memory of process 0 cannot be read"), "{message}");
    // The server reads no memory of processes that read the array.
    let spec3 = spec(3, false, 4, quarters());
    let mut ranks = join(&mut world, &spec3, &written, [PLAIN; 4]);
    settle(&mut world, &mut ranks, &mut vec![0; written.len()]);
    assert!(ranks.iter().all(|rank| !rank.is_read));
    assert!(ranks.iter().all(|rank| !rank.asked.iter().any(|(_, doing)| matches!(doing, Doing::Join))));
}

fn whole() -> outcore_core::MemorySchema {
    mesh(&[], [Distribution::Whole, Distribution::Whole, Distribution::Whole])
}

#[test]
fn what_is_read_late_is_in_nobodys_way() {
    let (before, written) = (image(12), image(13));
    let mut world = World::new(12, Limits::default());
    let spec1 = spec(1, true, 4, quarters());
    let mut ranks = join(&mut world, &spec1, &before, [PLAIN; 4]);
    // The server has found the nonces, and the pieces are open.
    for _ in 0..4 {
        world.turn_of_fetch();
    }
    world.run_without_fetches();
    let abandon = IoRequest::Abandon { collective: 1, rank: 3, error: Error::new(ErrorKind::Io, "Ctrl-C") };
    world.call(abandon, vec![]);
    world.run_without_fetches();
    // The server still reads shares of the aborted collective while processes of the next one give theirs.
    let spec2 = spec(2, true, 4, quarters());
    ranks.extend((0..4).map(|rank| Rank::join(&mut world, 1, &spec2, rank)));
    settle(&mut world, &mut ranks, &mut written.clone());
    assert_eq!(results(&ranks[4..]), vec![Ok(()); 4]);
    assert!(results(&ranks[..4]).iter().all(Result::is_err));
    assert!(content(&world, 1) == written);
}

#[test]
fn only_who_is_silent_is_named() {
    let mut world = World::new(13, Limits::default());
    let written = image(14);
    let spec1 = spec(1, true, 4, quarters());
    let near = (0..3).map(|rank| {
        let (offer, process) = quarter(&written, rank, PLAIN);
        Rank::join_with(&mut world, 1, &spec1, rank, Some(offer), caller(process))
    });
    let mut ranks: Vec<Rank> = near.collect();
    // This process joins, and never calls again.
    drop(Rank::join(&mut world, 1, &spec1, 3));
    settle(&mut world, &mut ranks, &mut written.clone());
    world.tick(30);
    settle(&mut world, &mut ranks, &mut written.clone());
    for result in results(&ranks) {
        let message = result.unwrap_err().message;
        assert!(message.starts_with("nothing was heard of process 3 for 30 s"), "{message}");
    }
}

#[test]
fn messages_with_bytes_of_others_wait_for_reads_of_memory() {
    let run = |offset, run_bytes| Nested { offset, run_bytes, levels: vec![] };
    for (first, is_shared) in [(30_000, true), (40_000, false)] {
        let mut world = World::new(9, Limits::default());
        let grid = GridSpec { shape: vec![1 << 16], chunk: vec![1 << 16], item_bytes: 1, ..grid() };
        let spec_of = |part| {
            let schema = MemorySchema::Own(Regions::new(vec![part]).unwrap());
            Box::new(CollectiveSpec { grid: grid.clone(), ..spec(1, true, 2, schema) })
        };
        let array = OfferedArray { address: ARRAY_AT, strides: vec![1] };
        let offer = MemoryOffer { nonce: NONCE, nonce_address: NONCE_AT, arrays: vec![array] };
        let process = Process {
            nonce: NONCE,
            array: Mutex::new(vec![b'a'; 40_000]),
            reads_left: AtomicU64::new(u64::MAX),
        };
        let mut join = |caller, part, rank, memory| {
            let join =
                IoRequest::Join { target: target(1), grant: grant(1), spec: spec_of(part), rank, memory };
            world.call_of(caller, join, vec![])
        };
        join(caller(process), run(0, 40_000), 0, Some(offer));
        join(None, run(first, 20_000), 1, None);
        // The nonce.
        world.turn_of_fetch();
        world.run_without_fetches();
        let give = IoRequest::Give { collective: 1, rank: 1, piece: 0, bytes: 20_000 };
        let given = world.call(give, vec![b'b'; 20_000]);
        world.run_without_fetches();
        assert_eq!(world.answer(given).is_none(), is_shared, "while the server may still read");
        let ends =
            [0, 1].map(|rank| world.call(IoRequest::Await { collective: 1, rank, round: None }, vec![]));
        world.run();
        for end in ends {
            assert_eq!(world.answer(end).map(|(reply, _)| reply), Some(IoReply::Done));
        }
        let found = content(&world, 1);
        let (own, all) = ([b'a'].repeat(first as usize), [b'b'].repeat(20_000));
        assert!(found[..first as usize + 20_000] == [own, all].concat());
    }
}
