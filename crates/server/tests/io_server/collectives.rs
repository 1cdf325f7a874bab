//! Collectives: the bytes that processes write and read together, and the results.

use outcore_core::{
    CollectivePlan, CollectiveSpec, Distribution, ElementBox, Error, ErrorKind, GridSpec, IoReply, IoRequest,
    MemorySchema, PIECE_BYTES,
};
use outcore_server::io_server::{Event, Limits};

use crate::ranks::{
    Doing, ITEM, Rank, content, grid, image, mesh, offsets, quarters, results, run, settle, spec, stripes,
};
use crate::world::{World, grant, target};

#[test]
fn what_some_write_others_read_and_messages_are_as_planned() {
    let mut world = World::new(1, Limits::default());
    let written = image(1);
    let ranks = run(&mut world, 1, &spec(1, true, 4, quarters()), &mut written.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
    assert!(content(&world, 1) == written);
    for rank in &ranks {
        let shares: usize = rank.rounds.iter().map(|(_, pieces)| pieces.len()).sum();
        assert_eq!(shares, 20, "a quarter of each piece, none of the padding");
        assert_eq!(rank.messages, 1 + 3 + 20 + 1);
    }
    // The answered write is durable.
    world.crash();
    let cyclic = mesh(&[3], [Distribution::Cyclic(1), Distribution::Whole, Distribution::Whole]);
    let mut read = vec![0; written.len()];
    let ranks = run(&mut world, 1, &spec(2, false, 5, cyclic), &mut read);
    assert_eq!(results(&ranks), vec![Ok(()); 5], "also those that have nothing");
    assert!(read == written);
}

#[test]
fn disks_that_fail_fail_all_and_those_that_stop_short_do_not() {
    let mut world = World::new(2, Limits::default());
    world.faults.short_of = 3;
    let written = image(2);
    let ranks = run(&mut world, 1, &spec(1, true, 4, quarters()), &mut written.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
    world.faults.is_full = true;
    let ranks = run(&mut world, 1, &spec(2, true, 4, quarters()), &mut image(3));
    for result in results(&ranks) {
        assert_eq!(result.unwrap_err().kind, ErrorKind::DiskFull);
    }
    world.faults.is_full = false;
    world.faults.unreadable = 5 << 20;
    let ranks = run(&mut world, 1, &spec(3, false, 4, quarters()), &mut vec![0; 20 << 20]);
    for result in results(&ranks) {
        assert_eq!(result.unwrap_err().kind, ErrorKind::Io);
    }
    world.faults.unreadable = 0;
    let mut read = vec![0; 20 << 20];
    let ranks = run(&mut world, 1, &spec(4, false, 4, quarters()), &mut read);
    assert_eq!(results(&ranks), vec![Ok(()); 4], "the server goes on");
}

#[test]
fn elements_that_nobody_has_stay() {
    let mut world = World::new(3, Limits::default());
    let before = image(4);
    run(&mut world, 1, &spec(1, true, 4, quarters()), &mut before.clone());
    let area = |start: [u64; 3], shape: [u64; 3]| ElementBox { start: start.to_vec(), shape: shape.to_vec() };
    let boxes = vec![
        vec![area([2, 3, 0], [5, 100, 512]), area([0, 0, 0], [1, 1, 7])],
        vec![],
        vec![area([9, 0, 511], [3, 256, 1]), area([0, 0, 0], [0, 1, 1])],
    ];
    let mut expected = before.clone();
    let (fresh, at) = (image(5), |i: u64, j: u64, k: u64| (((i * 256 + j) * 512 + k) * ITEM) as usize);
    for part in boxes.iter().flatten() {
        for i in 0..part.shape[0] {
            for j in 0..part.shape[1] {
                let first = at(part.start[0] + i, part.start[1] + j, part.start[2]);
                let bytes = first..first + (part.shape[2] * ITEM) as usize;
                expected[bytes.clone()].copy_from_slice(&fresh[bytes]);
            }
        }
    }
    let ranks = run(&mut world, 1, &spec(2, true, 3, MemorySchema::Boxes(boxes)), &mut fresh.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 3]);
    assert!(content(&world, 1) == expected);
}

#[test]
fn whole_blocks_go_to_the_disk_at_once_wherever_the_elements_begin() {
    let requests = |first: u64| {
        let (unit, count) = (PIECE_BYTES / ITEM, 8 * PIECE_BYTES / ITEM);
        let grid = GridSpec { shape: vec![16 * unit], chunk: vec![unit], ..grid() };
        let own = ElementBox { start: vec![first], shape: vec![count] };
        let spec = CollectiveSpec { grid, ..spec(1, true, 1, MemorySchema::Boxes(vec![vec![own]])) };
        let mut world = World::new(23, Limits::default());
        let mut image = image(7);
        assert_eq!(results(&run(&mut world, 1, &spec, &mut image)), [Ok(())]);
        let (begin, end) = ((first * ITEM) as usize, ((first + count) * ITEM) as usize);
        image[..begin].fill(0);
        assert!(content(&world, 1) == image[..end]);
        world.disk_requests
    };
    // A part of a block at each end takes a read and a write of that block, and the log gets one more page.
    let (partial_blocks, log) = (2 * 2, 2);
    assert_eq!(requests(3), requests(0) + partial_blocks + log);
}

#[test]
fn rounds_without_elements_of_processes_cost_nothing() {
    // The only elements lie 2^60 bytes from the beginning: a server that examined each piece would never end.
    let shape = vec![65536];
    let far = GridSpec { shape, chunk: vec![1], item_bytes: 1, slot_align_bytes: 1 << 44, ..grid() };
    let last = ElementBox { start: vec![65535], shape: vec![1] };
    let schema = MemorySchema::Boxes(vec![vec![], vec![last]]);
    let mut world = World::new(17, Limits::default());
    for (id, write) in [(1, true), (2, false)] {
        let schema = schema.clone();
        let spec = CollectiveSpec { grid: far.clone(), skips_disk: true, ..spec(id, write, 2, schema) };
        let plan = CollectivePlan::new(&spec, stripes()).unwrap();
        let [(round, pieces)] = &plan.rounds_of(0, 1)[..] else { panic!("one round") };
        let [piece] = pieces[..] else { panic!("one piece") };
        let join = |rank| {
            let spec = Box::new(spec.clone());
            IoRequest::Join { target: target(1), grant: grant(1), spec, rank, memory: None }
        };
        let wait = |rank, round| IoRequest::Await { collective: id, rank, round };
        let first = world.call(join(0), vec![]);
        world.done(join(1), vec![]).unwrap();
        world.answer(first).unwrap();
        // A round that the server skips keeps nobody waiting.
        for round in [0, *round] {
            world.done(wait(1, Some(round)), vec![]).unwrap();
        }
        let (rank, bytes) = (1, 1);
        let share = match write {
            true => IoRequest::Give { collective: id, rank, piece, bytes },
            false => IoRequest::Take { collective: id, rank, piece, bytes },
        };
        world.done(share, vec![7]).unwrap();
        let ends = [0, 1].map(|rank| world.call(wait(rank, None), vec![]));
        world.run();
        for end in ends {
            assert_eq!(world.answer(end).unwrap().0, IoReply::Done);
        }
    }
}

#[test]
fn what_others_write_meanwhile_where_nobody_has_anything_stays_too() {
    for seed in 1..6 {
        let mut world = World::new(seed, Limits::default());
        let before = image(4);
        run(&mut world, 1, &spec(1, true, 4, quarters()), &mut before.clone());
        // Planes, columns and single elements alternate: the two collectives share all pieces, and most blocks.
        let area =
            |start: [u64; 3], shape: [u64; 3]| ElementBox { start: start.to_vec(), shape: shape.to_vec() };
        let boxes = |first: u64| {
            let planes = (0..3).map(|i| area([i, 2 * first, 0], [1, 2, 512]));
            let columns = (0..9).map(|k| area([4, 0, 100 * first + 7 * k], [9, 256, 3]));
            vec![planes.collect::<Vec<_>>(), columns.collect()]
        };
        let mut expected = before.clone();
        let (fresh, at) = (image(5), |i: u64, j: u64, k: u64| (((i * 256 + j) * 512 + k) * ITEM) as usize);
        for part in [boxes(0), boxes(1)].iter().flatten().flatten() {
            for i in 0..part.shape[0] {
                for j in 0..part.shape[1] {
                    let first = at(part.start[0] + i, part.start[1] + j, part.start[2]);
                    let bytes = first..first + (part.shape[2] * ITEM) as usize;
                    expected[bytes.clone()].copy_from_slice(&fresh[bytes]);
                }
            }
        }
        let mut ranks: Vec<Rank> = Vec::new();
        for (id, first) in [(2, 0), (3, 1)] {
            let spec = spec(id, true, 2, MemorySchema::Boxes(boxes(first)));
            ranks.extend((0..2).map(|rank| Rank::join(&mut world, 1, &spec, rank)));
        }
        settle(&mut world, &mut ranks, &mut fresh.clone());
        assert_eq!(results(&ranks), vec![Ok(()); 4]);
        let found = content(&world, 1);
        let lost = found.iter().zip(&expected).filter(|(a, b)| a != b).count();
        assert_eq!(lost, 0, "seed {seed}: bytes that are not what was written last");
    }
}

#[test]
fn who_disagrees_is_named_to_all() {
    let mut world = World::new(4, Limits::default());
    let good = spec(1, true, 3, quarters_of_three());
    let other_grid = CollectiveSpec { grid: GridSpec { chunk: vec![2, 256, 512], ..grid() }, ..good.clone() };
    let other_schema = CollectiveSpec { schema: quarters_of_three_columns(), ..good.clone() };
    let other_way = CollectiveSpec { write: false, ..good.clone() };
    for (number, (other, what)) in [
        (other_grid, "shape, type and chunks"),
        (other_schema, "memory schema"),
        (other_way, "read or write"),
    ]
    .into_iter()
    .enumerate()
    {
        let id = 10 + number as u128;
        let (good, other) = (CollectiveSpec { id, ..good.clone() }, CollectiveSpec { id, ..other });
        let mut ranks = vec![
            Rank::join(&mut world, 1, &good, 1),
            Rank::join(&mut world, 1, &other, 2),
            Rank::join(&mut world, 1, &good, 0),
        ];
        settle(&mut world, &mut ranks, &mut []);
        for result in results(&ranks) {
            let message = result.unwrap_err().message;
            assert!(
                message.contains("processes 1 and 2 do not agree") && message.contains(what),
                "{message}"
            );
        }
    }
    let mut ranks = vec![Rank::join(&mut world, 1, &good, 0), Rank::join(&mut world, 2, &good, 1)];
    settle(&mut world, &mut ranks, &mut []);
    assert!(results(&ranks)[0].clone().unwrap_err().message.contains("do not agree on the array"));
}

fn quarters_of_three() -> MemorySchema {
    mesh(&[3], [Distribution::Block, Distribution::Whole, Distribution::Whole])
}

fn quarters_of_three_columns() -> MemorySchema {
    mesh(&[3], [Distribution::Whole, Distribution::Whole, Distribution::Block])
}

#[test]
fn who_does_not_come_is_named_and_who_comes_late_is_not() {
    let mut world = World::new(5, Limits::default());
    let good = spec(1, true, 4, quarters());
    let mut ranks: Vec<Rank> = [0, 3].map(|rank| Rank::join(&mut world, 1, &good, rank)).into();
    let mut written = image(6);
    settle(&mut world, &mut ranks, &mut written);
    world.tick(29);
    settle(&mut world, &mut ranks, &mut written);
    assert!(ranks.iter().all(|rank| rank.result.is_none()));
    world.tick(1);
    settle(&mut world, &mut ranks, &mut written);
    for result in results(&ranks) {
        assert!(result.unwrap_err().message.contains("nothing was heard of processes 1 and 2 for 30 s"));
    }
    let late = IoRequest::Join {
        target: target(1),
        grant: grant(1),
        spec: Box::new(good.clone()),
        rank: 1,
        memory: None,
    };
    assert!(world.done(late, vec![]).unwrap_err().message.contains("processes 1 and 2"), "and is told so");
    // Processes that join in order, each within the timeout of the one before, are still too late in total.
    let good = CollectiveSpec { id: 3, ..good };
    let mut ranks = vec![Rank::join(&mut world, 1, &good, 0)];
    world.tick(20);
    ranks.push(Rank::join(&mut world, 1, &good, 1));
    world.tick(10);
    settle(&mut world, &mut ranks, &mut written);
    assert!(
        results(&ranks)[0].clone().unwrap_err().message.contains("nothing was heard of processes 2 and 3")
    );
    let good = spec(2, true, 4, quarters());
    let mut ranks: Vec<Rank> = [0, 1, 3].map(|rank| Rank::join(&mut world, 1, &good, rank)).into();
    world.tick(29);
    ranks.push(Rank::join(&mut world, 1, &good, 2));
    settle(&mut world, &mut ranks, &mut written);
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
}

#[test]
fn a_clock_that_is_set_makes_nobody_late_and_nobody_waited_for_without_end() {
    for by_s in [3600, -3600] {
        let mut world = World::new(5, Limits::default());
        let good = spec(1, true, 4, quarters());
        let mut ranks: Vec<Rank> = [0, 1, 3].map(|rank| Rank::join(&mut world, 1, &good, rank)).into();
        let mut written = image(6);
        world.tick(2);
        world.set_clock(by_s);
        world.tick(20);
        world.set_clock(-by_s);
        ranks.push(Rank::join(&mut world, 1, &good, 2));
        settle(&mut world, &mut ranks, &mut written);
        assert_eq!(results(&ranks), vec![Ok(()); 4], "{by_s}");

        let good = CollectiveSpec { id: 2, ..good };
        let mut ranks = vec![Rank::join(&mut world, 1, &good, 0)];
        world.set_clock(by_s);
        world.tick(31); // the tick in which it was set back may not count
        settle(&mut world, &mut ranks, &mut written);
        let error = results(&ranks)[0].clone().expect_err("three processes did not come");
        assert!(error.message.contains("nothing was heard of processes 1, 2 and 3"), "{by_s}: {error}");
    }
}

#[test]
fn who_dies_midway_is_named_and_who_gives_up_says_why() {
    for write in [true, false] {
        let mut world = World::new(6, Limits::default());
        run(&mut world, 1, &spec(9, true, 4, quarters()), &mut image(7));
        let spec1 = spec(1, write, 4, quarters());
        let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::join(&mut world, 1, &spec1, rank)).collect();
        while ranks[2].asked.iter().all(|(_, doing)| !matches!(doing, Doing::Share { .. })) {
            world.turn();
            for rank in &mut ranks {
                rank.step(&mut world, &mut image(7));
            }
        }
        let mut rest: Vec<Rank> = ranks.drain(..).filter(|rank| rank.rank != 2).collect();
        settle(&mut world, &mut rest, &mut image(7));
        assert!(rest.iter().all(|rank| rank.result.is_none()), "they wait");
        world.tick(31);
        settle(&mut world, &mut rest, &mut image(7));
        for result in results(&rest) {
            assert!(result.unwrap_err().message.contains("nothing was heard of process 2 for 30 s"));
        }
        let spec2 = spec(2, write, 4, quarters());
        let mut ranks: Vec<Rank> = (0..3).map(|rank| Rank::join(&mut world, 1, &spec2, rank)).collect();
        let error = Error::new(ErrorKind::Budget, "no memory");
        let abandon = IoRequest::Abandon { collective: 2, rank: 3, error };
        assert!(world.done(abandon, vec![]).is_ok());
        settle(&mut world, &mut ranks, &mut image(7));
        for result in results(&ranks) {
            let error = result.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Budget);
            assert_eq!(error.message, "process 3 aborted: no memory");
        }
        // The abort arrives before the joins.
        let error = Error::new(ErrorKind::Budget, "no memory");
        let abandon = IoRequest::Abandon { collective: 3, rank: 3, error };
        assert!(world.done(abandon, vec![]).is_ok());
        let mut late = [Rank::join(&mut world, 1, &spec(3, write, 4, quarters()), 0)];
        settle(&mut world, &mut late, &mut []);
        assert_eq!(results(&late)[0].clone().unwrap_err().message, "process 3 aborted: no memory");
    }
}

#[test]
fn what_is_sent_again_changes_nothing() {
    let mut world = World::new(7, Limits { open_files: 2, ..Limits::default() });
    let written = image(8);
    let spec1 = spec(1, true, 4, quarters());
    let plan = CollectivePlan::new(&spec1, stripes()).unwrap();
    let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::join(&mut world, 1, &spec1, rank)).collect();
    world.run();
    let planned = plan.piece(0, 0);
    let share = plan.share(&planned, 3);
    let places: Vec<usize> = share.tiles.iter().flat_map(|tile| offsets(tile, 0)).collect();
    let bytes: Vec<u8> = places.iter().flat_map(|&at| written[at..at + ITEM as usize].to_vec()).collect();
    for _ in 0..2 {
        // The process itself repeats its share.
        let give = IoRequest::Give { collective: 1, rank: 3, piece: 0, bytes: share.bytes };
        assert!(world.done(give, bytes.clone()).is_ok());
    }
    settle(&mut world, &mut ranks, &mut written.clone());
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
    assert!(content(&world, 1) == written);
    let spec2 = spec(2, false, 4, quarters());
    let mut read = vec![0; written.len()];
    let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::join(&mut world, 1, &spec2, rank)).collect();
    let mut last = ranks.pop().unwrap();
    last.holds_end = true;
    settle(&mut world, &mut ranks, &mut read);
    while last.left > 0 {
        if !last.step(&mut world, &mut read) && !world.turn() {
            settle(&mut world, &mut ranks, &mut read);
        }
    }
    settle(&mut world, &mut ranks, &mut read);
    for rank in &ranks {
        assert_eq!((rank.left, &rank.result), (0, &None), "they wait for its end");
    }
    // The answer was lost, and the piece is no longer in memory.
    let again = IoRequest::Take { collective: 2, rank: 3, piece: 0, bytes: share.bytes };
    assert!(world.done(again.clone(), vec![0; share.bytes as usize]).unwrap() == bytes);
    // The data file is no longer open either, since others were used.
    for handle in 2..6 {
        world.write(handle, 0, &[1]).unwrap();
    }
    assert!(world.done(again, vec![0; share.bytes as usize]).unwrap() == bytes);
    last.await_round(&mut world, None);
    ranks.push(last);
    settle(&mut world, &mut ranks, &mut read);
    assert_eq!(results(&ranks), vec![Ok(()); 4]);
    assert!(read == written);
    let give = IoRequest::Give { collective: 1, rank: 0, piece: 0, bytes: 8 };
    assert!(world.done(give, vec![1; 8]).is_ok(), "of one that is over");
    assert!(content(&world, 1) == written);
    let wait = IoRequest::Await { collective: 1, rank: 0, round: None };
    assert!(world.done(wait, vec![]).is_ok());
}

#[test]
fn what_does_not_belong_is_refused() {
    let mut world = World::new(8, Limits::default());
    let good = spec(1, true, 4, quarters());
    let join = |spec: &CollectiveSpec, rank| {
        let (target, grant) = (target(1), grant(1));
        IoRequest::Join { target, grant, spec: Box::new(spec.clone()), rank, memory: None }
    };
    let message =
        |world: &mut World, request, bytes| world.done(request, vec![0; bytes]).unwrap_err().message;
    assert!(message(&mut world, join(&good, 4), 0).contains("of 4 processes none has number 4"));
    let bad = CollectiveSpec {
        schema: mesh(&[5], [Distribution::Block, Distribution::Whole, Distribution::Whole]),
        ..good.clone()
    };
    assert!(message(&mut world, join(&bad, 0), 0).contains("for the mesh"));
    let foreign = IoRequest::Join {
        target: target(1),
        grant: grant(2),
        spec: Box::new(good.clone()),
        rank: 0,
        memory: None,
    };
    assert!(world.done(foreign, vec![]).is_err(), "without a right to it");
    let give = |piece, bytes| IoRequest::Give { collective: 1, rank: 0, piece, bytes };
    assert!(message(&mut world, give(0, 8), 8).contains("does not know this collective"));
    let mut ranks: Vec<Rank> = (0..4).map(|rank| Rank::join(&mut world, 1, &good, rank)).collect();
    assert!(message(&mut world, give(17, 8), 8).contains("has not yet asked for shares of piece 17"));
    world.run();
    assert!(message(&mut world, give(0, 8), 8).contains("is 262144 bytes, not 8"));
    let take = IoRequest::Take { collective: 1, rank: 0, piece: 0, bytes: 8 };
    assert!(message(&mut world, take, 8).contains("nothing is taken"));
    let wait = IoRequest::Await { collective: 1, rank: 0, round: Some(99) };
    assert!(message(&mut world, wait, 0).contains("no round 99"));
    let mut written = image(9);
    settle(&mut world, &mut ranks, &mut written);
    assert_eq!(results(&ranks), vec![Ok(()); 4], "it goes on");
}

#[test]
fn many_at_once_take_turns_in_bounded_memory_and_stopping_ends_them() {
    let mut world = World::new(9, Limits::default());
    let mut written = image(10);
    let mut ranks = vec![];
    for id in 1..=5 {
        let spec = spec(u128::from(id), true, 4, quarters());
        ranks.extend((0..4).map(|rank| Rank::join(&mut world, id, &spec, rank)));
    }
    settle(&mut world, &mut ranks, &mut written);
    assert_eq!(results(&ranks), vec![Ok(()); 20]);
    for id in 1..=5 {
        assert!(content(&world, id) == written);
    }
    assert!(*world.scratch.lock().unwrap() <= 60 << 20, "48 MiB of pieces for all at work");
    let spec = spec(7, true, 4, quarters());
    let mut ranks: Vec<Rank> = (0..3).map(|rank| Rank::join(&mut world, 1, &spec, rank)).collect();
    world.stop();
    settle(&mut world, &mut ranks, &mut written);
    assert!(results(&ranks)[0].clone().unwrap_err().message.contains("stopping"));
}

#[test]
fn before_a_server_stops_only_collectives_that_need_nothing_more_go_on() {
    let mut world = World::new(11, Limits::default());
    let mut written = image(12);
    let mut ranks = vec![];
    for (id, count) in [(1, 4), (2, 4), (3, 3)] {
        let spec = spec(u128::from(id), true, 4, quarters());
        ranks.extend((0..count).map(|rank| Rank::join(&mut world, id, &spec, rank)));
    }
    while world.turn() {}
    // All processes of the first collective have asked for its end; in the second, one has not; in the third, one
    // has not joined.
    (0..7).for_each(|rank: usize| ranks[rank].await_round(&mut world, None));
    world.step(Event::EndCollectives);
    let late = spec(4, true, 4, quarters());
    ranks.push(Rank::join(&mut world, 4, &late, 0));
    settle(&mut world, &mut ranks, &mut written);
    let results = results(&ranks);
    assert_eq!(results[..4], vec![Ok(()); 4]);
    assert!(content(&world, 1) == written);
    for result in &results[4..] {
        let error = result.clone().unwrap_err();
        assert!(error.message.contains("I/O server 3 is stopping"), "{error}");
    }
}

#[test]
fn the_latest_generation_that_any_process_knows_counts() {
    let mut world = World::new(16, Limits::default());
    run(&mut world, 1, &spec(1, true, 4, quarters()), &mut image(1));
    for (id, write, known, is_good) in [(2, false, 1, true), (3, false, 2, false), (4, true, 2, false)] {
        let spec = spec(id, write, 4, quarters());
        let knows = |rank| if rank == 2 { known } else { 0 };
        let mut ranks: Vec<Rank> =
            (0..4).map(|rank| Rank::join_knowing(&mut world, 1, knows(rank), &spec, rank)).collect();
        settle(&mut world, &mut ranks, &mut vec![0; 20 << 20]);
        for result in results(&ranks) {
            match result {
                Ok(()) => assert!(is_good, "collective {id}"),
                Err(error) => assert!(!is_good && error.message.contains("need generation 2"), "{error}"),
            }
        }
    }
}
