//! Each kind of request, without faults.

use outcore_core::crash_disk::Random;
use outcore_core::{ErrorKind, Grant, Handle, IoReply, IoRequest, Level, Nested, Regions, Stripes, Target};
use outcore_server::io_server::{BLOCK_BYTES, Limits, data_path, sums_path};

use crate::world::{
    NOW_S, World, grant, key, noise, read_request, removal_grant, small_limits, target, write_request,
};

const BLOCK: usize = BLOCK_BYTES as usize;

#[test]
fn bytes_come_back_and_what_was_not_written_is_zeros() {
    let mut world = World::new(1, small_limits());
    assert_eq!(world.read(1, 5, 10), Ok(vec![0; 10]), "a file that was never written");
    assert_eq!(world.length(1), 0);
    assert!(world.disk.content(&data_path(Handle(1))).is_none(), "reading makes no file");
    let bytes = noise(&mut Random::new(1), 3 * BLOCK + 100);
    assert_eq!(world.write(1, 50, &bytes), Ok(()));
    assert_eq!(world.length(1), 50 + bytes.len() as u64);
    assert_eq!(world.read(1, 50, bytes.len() as u64).as_deref(), Ok(&bytes[..]));
    assert_eq!(world.read(1, 0, 51).unwrap()[..50], [0; 50]);
    let far = world.read(1, 3 * BLOCK_BYTES, 5 * BLOCK_BYTES).unwrap();
    assert_eq!(far[150..], vec![0; far.len() - 150], "past the end of a data file");
    let content = world.disk.content(&data_path(Handle(1))).unwrap();
    assert_eq!(content[50..], bytes, "a data file holds the bytes as they are");
    assert_eq!(world.write(1, 100 * BLOCK_BYTES, &[9]), Ok(()));
    assert_eq!(world.read(1, 40 * BLOCK_BYTES, 100), Ok(vec![0; 100]), "a hole");
}

#[test]
fn regions_of_a_striped_file_take_their_payload_in_order() {
    let mut world = World::new(2, small_limits());
    let stripes = Stripes::new(1000, 3).unwrap();
    let whole = Target { handle: Handle(4), stripes, entry: 1, generation: 0 };
    let levels = vec![Level { count: 40, step_bytes: 7000 }];
    let far = Nested { offset: 200_000, run_bytes: 3500, levels };
    let near = Nested { offset: 10, run_bytes: 5000, levels: vec![] };
    let regions = Regions::new(vec![far, near]).unwrap();
    let bytes = noise(&mut Random::new(2), regions.local_bytes(stripes, 1) as usize);
    let grant = grant(4);
    let write = IoRequest::Write { target: whole, grant, regions: regions.clone() };
    assert!(world.done(write, bytes.clone()).is_ok());
    let mut expected = vec![0; 400_000];
    let mut at = 0;
    for run in regions.local_runs(stripes, 1) {
        let length = run.length as usize;
        expected[run.offset as usize..][..length].copy_from_slice(&bytes[at..at + length]);
        at += length;
    }
    let content = world.disk.content(&data_path(Handle(4))).unwrap();
    assert_eq!(content, expected[..content.len()]);
    let read = IoRequest::Read { target: whole, grant, regions };
    assert_eq!(world.done(read, vec![0xEE; bytes.len()]), Ok(bytes));
}

#[test]
fn large_requests_go_straight_to_the_disk_and_small_pieces_together() {
    let mut world = World::new(3, Limits::default());
    let bytes = noise(&mut Random::new(3), 64 * BLOCK);
    world.write(1, 0, &bytes).unwrap();
    let before = world.disk_requests;
    world.write(1, 0, &bytes).unwrap();
    assert_eq!(world.disk_requests - before, 1, "4 MiB that are noted already");
    // 512 bytes of every 4096: one disk request for four blocks.
    let regions = Regions::strided(0, 0, 512, 1024, 4096, 0).unwrap();
    let before = world.disk_requests;
    let read = world.done(read_request(1, regions), vec![0; 512 * 1024]).unwrap();
    assert_eq!(world.disk_requests - before, 16);
    for (piece, found) in read.chunks(512).enumerate() {
        assert_eq!(found, &bytes[piece * 4096..][..512]);
    }
}

#[test]
fn lengths_are_set_and_what_is_cut_off_is_gone() {
    let mut world = World::new(4, small_limits());
    let bytes = noise(&mut Random::new(4), 5 * BLOCK);
    world.write(1, 0, &bytes).unwrap();
    world.set_length(1, 2 * BLOCK_BYTES + 10, false).unwrap();
    assert_eq!(world.length(1), 2 * BLOCK_BYTES + 10);
    world.set_length(1, 5 * BLOCK_BYTES, true).unwrap();
    let mut expected = bytes[..2 * BLOCK + 10].to_vec();
    expected.resize(5 * BLOCK, 0);
    assert_eq!(world.read(1, 0, 5 * BLOCK_BYTES), Ok(expected));
    world.set_length(2, 100, false).unwrap();
    assert_eq!(
        (world.length(2), world.read(2, 0, 200)),
        (100, Ok(vec![0; 200])),
        "a file made by its length"
    );
    // The range exceeds one page of checksums by far.
    world.write(1, 130 << 20, &bytes).unwrap();
    world.set_length(1, 0, false).unwrap();
    world.set_length(1, 140 << 20, false).unwrap();
    assert_eq!(world.read(1, 130 << 20, 100), Ok(vec![0; 100]));
    assert_eq!(world.read(1, 0, 100), Ok(vec![0; 100]));
}

#[test]
fn a_removed_file_is_gone_and_its_room_with_it() {
    let mut world = World::new(5, small_limits());
    world.write(1, 0, &[1; 1000]).unwrap();
    world.remove(1).unwrap();
    assert!(!world.disk.paths().iter().any(|path| path.starts_with("data")), "{:?}", world.disk.paths());
    assert_eq!((world.length(1), world.read(1, 0, 10)), (0, Ok(vec![0; 10])));
    assert_eq!(world.remove(1), Ok(()), "removing what is not there");
    assert!(world.disk.content(&sums_path(Handle(1))).is_none());
}

#[test]
fn grants_are_needed() {
    let mut world = World::new(6, small_limits());
    let regions = Regions::contiguous(0, 3).unwrap();
    let (handle, until) = (Handle(1), NOW_S + 1);
    let mut forged = key().sign(handle, true, until);
    forged.mac[0] ^= 1;
    let refused = [forged, key().sign(Handle(2), true, until), key().sign(handle, true, NOW_S - 1)];
    for grant in refused {
        let read = IoRequest::Read { target: target(1), grant, regions: regions.clone() };
        assert_eq!(world.done(read, vec![0; 3]).unwrap_err().kind, ErrorKind::Denied);
    }
    let reader = key().sign(handle, false, until);
    let write = IoRequest::Write { target: target(1), grant: reader, regions: regions.clone() };
    assert_eq!(world.done(write, vec![0; 3]).unwrap_err().kind, ErrorKind::Denied);
    for grant in [reader, grant(1), removal_grant(2), key().sign_removal(handle, NOW_S - 1)] {
        let remove = IoRequest::Remove { target: target(1), grant };
        assert_eq!(world.done(remove, vec![]).unwrap_err().kind, ErrorKind::Denied);
    }
    let write = IoRequest::Write { target: target(1), grant: removal_grant(1), regions: regions.clone() };
    assert_eq!(world.done(write, vec![0; 3]).unwrap_err().kind, ErrorKind::Denied);
    let shorten = IoRequest::SetLength { target: target(1), grant: reader, local_length: 0, reserve: false };
    assert_eq!(world.done(shorten, vec![]).unwrap_err().kind, ErrorKind::Denied);
    let read = IoRequest::Read { target: target(1), grant: reader, regions };
    assert!(world.done(read, vec![0; 3]).is_ok());
}

#[test]
fn requests_that_do_not_fit_their_payload_are_refused() {
    let mut world = World::new(7, small_limits());
    for (bytes, payload) in [(10, 9), (10, 11), (3 << 20, 1), (1 << 40, 0)] {
        for request in [read_request, write_request] {
            let regions = Regions::contiguous(0, bytes).unwrap();
            let error = world.done(request(1, regions), vec![0; payload]);
            let is_unwritten = error.is_ok() && world.length(1) == 0;
            assert!(is_unwritten || error.is_err_and(|e| e.kind == ErrorKind::Invalid), "{bytes} {payload}");
        }
    }
    let stripes = Stripes::new(1000, 2).unwrap();
    let outside = Target { handle: Handle(1), stripes, entry: 2, generation: 0 };
    let sync = IoRequest::Sync { target: outside, grant: grant(1) };
    assert_eq!(world.done(sync, vec![]).unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn status_counts() {
    let mut world = World::new(8, small_limits());
    world.write(1, 0, &[1; 1000]).unwrap();
    world.read(1, 0, 300).unwrap();
    let status = world.status();
    assert_eq!((status.requests, status.bytes_written, status.bytes_read), (2, 1000, 300));
    assert_eq!((status.damaged_blocks, status.free_bytes), (0, 1 << 40));
}

#[test]
fn memory_is_bounded_under_many_calls() {
    let mut world = World::new(9, small_limits());
    let calls: Vec<u64> = (0..300)
        .map(|n| {
            let regions = Regions::strided(n * 100, 0, 100, 50, 70_000, 0).unwrap();
            world.call(write_request(n % 5, regions), vec![n as u8; 5000])
        })
        .collect();
    world.run();
    for call in calls {
        assert_eq!(world.answer(call).unwrap().0, IoReply::Done);
    }
    let made = *world.scratch.lock().unwrap();
    // Scratch buffers, buffers for checksums and for the log, and an empty view.
    assert!(made <= small_limits().scratch_bytes + 16 * 4096 + 65536 + 4096, "{made} bytes");
}

#[test]
fn files_that_were_closed_for_others_are_as_they_were() {
    let mut world = World::new(10, small_limits());
    for handle in 0..20 {
        world.write(handle, handle * 1000, &[handle as u8 + 1; 500]).unwrap();
    }
    for handle in 0..20 {
        assert_eq!(world.read(handle, handle * 1000, 500), Ok(vec![handle as u8 + 1; 500]));
        assert_eq!(world.length(handle), handle * 1000 + 500);
    }
    world.stop();
    world.restart();
    for handle in 0..20 {
        assert_eq!(world.read(handle, handle * 1000, 500), Ok(vec![handle as u8 + 1; 500]));
    }
}

#[test]
fn syncs_at_once_share_the_work() {
    let mut world = World::new(11, small_limits());
    world.write(1, 0, &[1; 100]).unwrap();
    let before = world.syncs;
    let calls: Vec<u64> =
        (0..8).map(|_| world.call(IoRequest::Sync { target: target(1), grant: grant(1) }, vec![])).collect();
    world.run();
    for call in calls {
        assert_eq!(world.answer(call).unwrap().0, IoReply::Synced { length: 100, generation: 1 });
    }
    // Syncs of data and checksums, once for the first call and once for all others; and of the log.
    assert!(world.syncs - before <= 5, "{}", world.syncs - before);
}

#[test]
fn lengths_of_several_files_are_those_of_each_by_one_request() {
    // More files than the limit of open files.
    let mut world = World::new(9, small_limits());
    for handle in 1..=5 {
        world.write(handle, 0, &vec![1; 1000 * handle as usize]).unwrap();
    }
    let handles: Vec<Handle> = (1..=6).map(Handle).collect();
    let grant = key().sign_lengths(&handles, NOW_S + 100);
    let ask = |of: &[u64]| IoRequest::Lengths {
        handles: handles.clone(),
        grant,
        targets: of.iter().map(|&handle| target(handle)).collect(),
    };
    let (reply, _) = world.ask(ask(&[3, 1, 2, 6, 5, 4]), vec![]);
    assert_eq!(
        reply,
        IoReply::Lengths(vec![3000, 1000, 2000, 0, 5000, 4000]),
        "0 where there is no data file"
    );
    assert!(world.disk.content(&data_path(Handle(6))).is_none(), "asking makes no file");
    let refused = |world: &mut World, request, kind| match world.ask(request, vec![]).0 {
        IoReply::Failed(error) => assert_eq!(error.kind, kind, "{error}"),
        other => panic!("answered by {other:?}"),
    };
    refused(&mut world, ask(&[7]), ErrorKind::Denied);
    let fewer = IoRequest::Lengths { handles: handles[1..].to_vec(), grant, targets: vec![target(2)] };
    refused(&mut world, fewer, ErrorKind::Denied);
    let elsewhere = Target { entry: 1, ..target(1) };
    let wrong = IoRequest::Lengths { handles: handles.clone(), grant, targets: vec![elsewhere] };
    refused(&mut world, wrong, ErrorKind::Invalid);
    world.tick(100);
    refused(&mut world, ask(&[1]), ErrorKind::Denied);
}

#[test]
fn of_what_is_absent_the_server_says_so() {
    let mut world = World::new(3, Limits { removals: 0, ..small_limits() });
    let read = |regions| read_request(4, regions);
    let length = || IoRequest::Length { target: target(4), grant: grant(4) };
    let all = Regions::contiguous(0, 200_000).unwrap();
    let (reply, bytes) = world.ask(read(all.clone()), vec![1; 200_000]);
    assert_eq!((reply, bytes.iter().all(|byte| *byte == 0)), (IoReply::Absent, true));
    assert_eq!(world.ask(length(), vec![]).0, IoReply::Absent);
    world.write(4, 0, &[7; 200_000]).unwrap();
    let (reply, bytes) = world.ask(read(all), vec![1; 200_000]);
    assert_eq!((reply, bytes.iter().all(|byte| *byte == 7)), (IoReply::Done, true));
    assert_eq!(world.ask(length(), vec![]).0, IoReply::Length(200_000));

    // A removal during a read with more pieces than the server moves at once must not pass off zeros as the file's
    // bytes.
    let levels = vec![Level { count: 24, step_bytes: 1 << 20 }];
    let pieces = Regions::new(vec![Nested { offset: 0, run_bytes: 1, levels }]).unwrap();
    let bytes = pieces.local_bytes(target(4).stripes, target(4).entry) as usize;
    world.done(write_request(5, pieces.clone()), vec![7; bytes]).unwrap();
    let mut torn = 0;
    for turns in 0..60 {
        world.done(write_request(4, pieces.clone()), vec![7; bytes]).unwrap();
        let reading = world.call(read(pieces.clone()), vec![1; bytes]);
        // The rest of the read is queued behind other reads.
        for _ in 0..5 {
            world.call(read_request(5, pieces.clone()), vec![1; bytes]);
        }
        for _ in 0..turns {
            world.turn();
        }
        let remove = IoRequest::Remove { target: target(4), grant: removal_grant(4) };
        let removing = world.call(remove, vec![]);
        // The server remembers no removals here, so this write recreates the file meanwhile.
        world.call(write_request(4, Regions::contiguous(0, 1).unwrap()), vec![7]);
        world.run();
        assert_eq!(world.answer(removing).unwrap().0, IoReply::Done);
        let (reply, found) = world.answer(reading).unwrap();
        let sevens = found.to_vec().iter().filter(|byte| **byte == 7).count();
        assert!(reply == IoReply::Absent || (reply, sevens) == (IoReply::Done, bytes), "{turns} turns");
        torn += usize::from((1..bytes).contains(&sevens));
    }
    assert!(torn > 0, "no removal came while the file was read");
}

#[test]
fn a_write_that_comes_after_the_removal_makes_no_data_file() {
    let mut world = World::new(7, small_limits());
    let last = key().sign_removal(Handle(1), NOW_S + 50);
    let remove = || IoRequest::Remove { target: target(1), grant: last };
    let late = |world: &mut World| {
        let write = world.write(1, 0, &[2; 10]).unwrap_err();
        let resize = world.set_length(1, 10, true).unwrap_err();
        assert_eq!((write.kind, resize.kind), (ErrorKind::NotFound, ErrorKind::NotFound));
        let paths = world.disk.paths();
        assert!(
            !paths.contains(&data_path(Handle(1))) && !paths.contains(&sums_path(Handle(1))),
            "{paths:?}"
        );
        assert_eq!(world.read(1, 0, 3), Ok(vec![0; 3]));
    };
    world.write(1, 0, &[1; 1000]).unwrap();
    world.done(remove(), vec![]).unwrap();
    late(&mut world);
    // The server also remembers the removal of a file of which it stored nothing. All removals survive crashes.
    world.remove(2).unwrap();
    for _ in 0..3 {
        world.crash();
        late(&mut world);
        assert_eq!(world.write(2, 0, &[2]).unwrap_err().kind, ErrorKind::NotFound);
        world.write(3, 0, &[3; 10]).unwrap();
    }
}

#[test]
fn a_removal_is_remembered_whatever_the_clocks_say() {
    let mut world = World::new(7, small_limits());
    world.write(1, 0, &[1; 1000]).unwrap();
    // The removal grant expires before the grant of an opening if the manager's clock is set back in between.
    let last = key().sign_removal(Handle(1), NOW_S + 10);
    world.done(IoRequest::Remove { target: target(1), grant: last }, vec![]).unwrap();
    for manager_s in [NOW_S + 20, NOW_S + 3600 * 24 * 365, NOW_S] {
        world.set_manager(manager_s);
        let write = |handle| {
            let grant = key().sign(Handle(handle), true, manager_s + 100);
            let regions = Regions::contiguous(0, 1).unwrap();
            IoRequest::Write { target: target(handle), grant, regions }
        };
        world.done(write(2), vec![2]).unwrap();
        // The log restarts with the records that are still needed.
        world.crash();
        let error = world.done(write(1), vec![2]).unwrap_err();
        assert_eq!(error.kind, ErrorKind::NotFound, "{manager_s}");
        assert!(!world.disk.paths().contains(&data_path(Handle(1))));
    }
}

#[test]
fn grants_end_by_the_time_of_the_manager() {
    const YEAR_S: u64 = 365 * 24 * 3600;
    let mut world = World::new(11, Limits::default());
    let write = |world: &mut World, ends_s| {
        let grant = key().sign(Handle(1), true, ends_s);
        let regions = Regions::contiguous(0, 1).unwrap();
        let request = IoRequest::Write { target: target(1), grant, regions };
        world.done(request, vec![7]).map(|_| ()).map_err(|error| error.kind)
    };
    let denied = Err(ErrorKind::Denied);
    // The server's clock is years off, and jumps.
    for own_s in [NOW_S, NOW_S + 10 * YEAR_S, 0] {
        world.own_s = own_s;
        world.restart();
        assert_eq!(write(&mut world, NOW_S + 600), Ok(()));
        assert_eq!(write(&mut world, NOW_S), denied);
        world.own_s = u64::MAX;
        assert_eq!(write(&mut world, NOW_S + 600), Ok(()));
    }
    // After jumps of the manager's clock, a new grant is valid at once, and one from the time when the clock was
    // ahead is invalid.
    for manager_s in [NOW_S + YEAR_S, NOW_S, 0, u64::MAX - 600, NOW_S] {
        world.set_manager(manager_s);
        assert_eq!(write(&mut world, manager_s + 600), Ok(()), "{manager_s}");
    }
    assert_eq!(write(&mut world, NOW_S + YEAR_S), denied);
    // Time passes without the manager. The server's own clock counts only after a restart.
    world.is_manager_up = false;
    world.own_s = NOW_S - YEAR_S;
    world.tick(60);
    assert_eq!(write(&mut world, NOW_S + 50), denied);
    assert_eq!(write(&mut world, NOW_S + 70), Ok(()));
    world.restart();
    assert_eq!(write(&mut world, NOW_S - YEAR_S + 100), Ok(()));
    // A request without a valid grant of the pool makes the server query nobody.
    world.asked = 0;
    let forged = Grant { expires_s: NOW_S, ..key().sign(Handle(1), true, NOW_S + 1) };
    let regions = Regions::contiguous(0, 1).unwrap();
    let request = IoRequest::Write { target: target(1), grant: forged, regions };
    assert_eq!(world.done(request, vec![7]).unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(world.asked, 0);
}

#[test]
fn many_who_come_with_old_grants_are_one_question() {
    let mut world = World::new(12, Limits::default());
    world.write(1, 0, &[1]).unwrap();
    world.asked = 0;
    world.now_s += 1000;
    let read = || read_request(1, Regions::contiguous(0, 1).unwrap());
    let calls: Vec<u64> = (0..50).map(|_| world.call(read(), vec![0])).collect();
    world.run();
    for call in calls {
        let IoReply::Failed(error) = world.answer(call).unwrap().0 else { panic!("the grant is over") };
        assert_eq!(error.kind, ErrorKind::Denied);
    }
    assert_eq!(world.asked, 2, "by the first, and for those that came meanwhile");
}

#[test]
fn a_small_call_is_answered_while_a_large_one_is_still_planned() {
    let mut world = World::new(8, Limits::default());
    world.write(1, (4 << 20) - 1, &[1]).unwrap();
    world.write(2, 0, &[2; 10]).unwrap();
    // 2^20 runs, the maximum of a message: one byte of every four.
    let levels = vec![Level { count: 1 << 20, step_bytes: 4 }];
    let many = Regions::new(vec![Nested { offset: 0, run_bytes: 1, levels }]).unwrap();
    let large = world.call(read_request(1, many), vec![7; 1 << 20]);
    let small = world.call(read_request(2, Regions::contiguous(0, 10).unwrap()), vec![0; 10]);
    let answered = loop {
        if let Some((reply, bytes)) = world.answer(small) {
            break (reply, bytes.to_vec());
        }
        assert!(world.turn_of_others(), "the large call was planned to its end first");
    };
    assert_eq!(answered, (IoReply::Done, vec![2; 10]));
    assert!(world.answer(large).is_none());
    world.run();
    let (reply, bytes) = world.answer(large).unwrap();
    assert_eq!((reply, bytes.to_vec()), (IoReply::Done, vec![0; 1 << 20]));
}

#[test]
fn removals_at_once_share_syncs_of_the_log() {
    let mut world = World::new(9, Limits::default());
    for handle in 1..=40 {
        world.write(handle, 0, &[1; 10]).unwrap();
        world.sync(handle).unwrap();
    }
    let before = world.syncs;
    let remove = |handle| IoRequest::Remove { target: target(handle), grant: removal_grant(handle) };
    let calls: Vec<u64> = (1..=40).map(|handle| world.call(remove(handle), vec![])).collect();
    world.run();
    for call in calls {
        assert_eq!(world.answer(call).unwrap().0, IoReply::Done);
    }
    assert_eq!(world.syncs - before, 1, "of the log, for all of them");
    // Several clients may remove the same left-over file.
    world.done(remove(1), vec![]).unwrap();
    assert_eq!(world.syncs - before, 1, "what is noted already is not noted again");
}
