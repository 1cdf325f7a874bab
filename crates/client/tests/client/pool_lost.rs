//! Lost or truncated data files are not mistaken for holes, and shortened files are not mistaken for lost
//! ones.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use outcore_client::PoolVolume;
use outcore_core::{
    Error, ErrorKind, FileId, Gather, Hints, OpenMode, Operation, Regions, Result, Volume, VolumeRequest,
};

use crate::pool_link::{MemoryLink, pool, region};

type Pool = PoolVolume<MemoryLink>;

fn run(pool: &Pool, file: FileId, operation: Operation, at: u64, bytes: usize) -> Result<usize> {
    let (sender, receiver) = mpsc::channel();
    let buffer = region(&vec![7; bytes]);
    let regions = match operation {
        Operation::Sync => Regions::default(),
        _ => Regions::contiguous(at, bytes as u64).unwrap(),
    };
    let buffer = if operation == Operation::Sync { buffer.gather([]) } else { buffer };
    pool.submit(
        VolumeRequest { file, operation, regions, buffer },
        Box::new(move |c| sender.send(c.result).unwrap()),
    );
    receiver.recv().unwrap()
}

/// Closes a file, and waits until its report has reached the manager.
fn close(pool: &Pool, file: FileId) {
    pool.close(file);
    pool.tell_written();
}

/// Creates a file of 1000 bytes in stripe units of 100 on two servers, and syncs it with `sync`.
fn written(pool: &Pool, sync: bool) {
    let file = pool.create_with("f", 0, false, Hints::default()).unwrap();
    run(pool, file, Operation::Write, 0, 1000).unwrap();
    if sync {
        run(pool, file, Operation::Sync, 0, 1).unwrap();
    }
    close(pool, file);
}

fn another(link: &Arc<MemoryLink>) -> Pool {
    PoolVolume::new(link.clone(), Arc::new(|| 1)).unwrap()
}

fn corrupt(result: Result<impl std::fmt::Debug>, part: &str) -> Error {
    let error = result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    assert!(error.message.contains(part) && error.message.contains('f'), "{part} is not in {error}");
    error
}

#[test]
fn what_is_lost_is_told_by_length_read_and_sync() {
    for server in [0, 1] {
        let (pool, link) = pool(2);
        written(&pool, true);
        let handle = pool.stat("f").unwrap().handle;
        link.lose_data(server, handle, 0);
        let reader = another(&link);
        let file = reader.open("f", OpenMode::Read).unwrap();
        let name = format!("server {server}: data of f are lost: need 500 bytes");
        let error = corrupt(reader.length(file), &name);
        assert!(error.message.contains(&format!("byte {} of the file", server * 100)), "{error}");
        corrupt(run(&reader, file, Operation::Read, 0, 10), &name);
        corrupt(run(&reader, file, Operation::Sync, 0, 1), &name);
        corrupt(reader.read_small("f"), &name);
    }
    let (pool, link) = pool(2);
    written(&pool, true);
    link.lose_data(1, pool.stat("f").unwrap().handle, 499);
    let file = pool.open("f", OpenMode::Read).unwrap();
    corrupt(
        pool.length(file),
        "server 1: data of f are lost: need 500 bytes of its data file there, which were durable, have 499",
    );
}

#[test]
fn small_files_are_missed_too() {
    let (pool, link) = pool(1);
    pool.replace_small("f", b"12345").unwrap();
    pool.append_small("g f", b"12345").unwrap();
    pool.tell_written();
    for path in ["f", "g f"] {
        link.lose_data(0, pool.stat(path).unwrap().handle, 0);
        corrupt(another(&link).read_small(path), "need 5 bytes");
    }
}

#[test]
fn what_was_not_synced_is_not_missed() {
    let (pool, link) = pool(2);
    written(&pool, false);
    link.lose_data(1, pool.stat("f").unwrap().handle, 0);
    let file = pool.open("f", OpenMode::Read).unwrap();
    assert_eq!(pool.length(file), Ok(900));
}

#[test]
fn what_was_lost_before_a_sync_that_said_so_is_not_missed() {
    let (pool, link) = pool(2);
    let file = pool.create_with("f", 0, false, Hints::default()).unwrap();
    run(&pool, file, Operation::Write, 0, 1000).unwrap();
    link.restart(1);
    link.lose_data(1, pool.stat("f").unwrap().handle, 0);
    assert_eq!(run(&pool, file, Operation::Sync, 0, 1).unwrap_err().kind, ErrorKind::Lost);
    run(&pool, file, Operation::Sync, 0, 1).unwrap();
    close(&pool, file);
    let file = pool.open("f", OpenMode::Read).unwrap();
    assert_eq!(pool.length(file), Ok(900));
}

#[test]
fn nothing_is_sent_to_the_manager_between_open_and_close() {
    let (writer, link) = pool(2);
    written(&writer, true);
    // The report of a closed file may come late, and would include the writes made here.
    let pool = another(&link);
    let file = pool.open("f", OpenMode::ReadWrite).unwrap();
    let before = link.asked();
    for _ in 0..3 {
        run(&pool, file, Operation::Write, 500, 1000).unwrap();
        run(&pool, file, Operation::Sync, 0, 1).unwrap();
        run(&pool, file, Operation::Read, 0, 1500).unwrap();
    }
    assert_eq!(pool.length(file), Ok(1500));
    assert_eq!(link.asked(), before);
}

#[test]
fn a_file_that_was_shortened_is_not_lost() {
    let (pool, link) = pool(2);
    written(&pool, true);
    let (reader, writer) = (another(&link), another(&link));
    let seen = reader.open("f", OpenMode::Read).unwrap();
    let late = writer.open("f", OpenMode::ReadWrite).unwrap();
    run(&writer, late, Operation::Write, 1000, 1000).unwrap();
    run(&writer, late, Operation::Sync, 0, 1).unwrap();
    let file = pool.open("f", OpenMode::ReadWrite).unwrap();
    pool.set_length(file, 150).unwrap();
    assert_eq!(reader.length(seen), Ok(150), "it was opened before");
    assert_eq!(run(&reader, seen, Operation::Read, 0, 150), Ok(150));
    close(&writer, late);
    let fresh = another(&link);
    let again = fresh.open("f", OpenMode::Read).unwrap();
    assert_eq!(fresh.length(again), Ok(150), "what is told late does not count");
    // The client that shortened it continues, and its reports count.
    run(&pool, file, Operation::Sync, 0, 1).unwrap();
    run(&pool, file, Operation::Write, 0, 300).unwrap();
    run(&pool, file, Operation::Sync, 0, 1).unwrap();
    close(&pool, file);
    link.lose_data(1, pool.stat("f").unwrap().handle, 0);
    let again = fresh.open("f", OpenMode::Read).unwrap();
    corrupt(fresh.length(again), "need 100 bytes");
}

#[test]
fn what_is_left_of_a_file_beside_a_retired_server_is_read_and_missed() {
    let (pool, link) = pool(3);
    written(&pool, true);
    let reader = another(&link);
    let seen = reader.open("f", OpenMode::Read).unwrap();
    let file = pool.open("f", OpenMode::ReadWrite).unwrap();
    pool.set_length(file, 450).unwrap();
    link.retire(0);
    assert_eq!(run(&reader, seen, Operation::Read, 100, 100), Ok(100), "it was opened before");
    link.lose_data(1, pool.stat("f").unwrap().handle, 0);
    let fresh = another(&link);
    let again = fresh.open("f", OpenMode::Read).unwrap();
    corrupt(run(&fresh, again, Operation::Read, 100, 100), "server 1: data of f are lost: need 150 bytes");
}

#[test]
fn who_dies_while_shortening_leaves_nothing_to_miss() {
    let (pool, link) = pool(2);
    written(&pool, true);
    let file = pool.open("f", OpenMode::ReadWrite).unwrap();
    link.faults.lock().unwrap().push_back(Some(Error::new(ErrorKind::Io, "it may be done yet")));
    pool.set_length(file, 100).unwrap_err();
    run(&pool, file, Operation::Write, 0, 800).unwrap();
    run(&pool, file, Operation::Sync, 0, 1).unwrap();
    close(&pool, file);
    let other = another(&link);
    let file = other.open("f", OpenMode::ReadWrite).unwrap();
    run(&other, file, Operation::Write, 0, 800).unwrap();
    run(&other, file, Operation::Sync, 0, 1).unwrap();
    close(&other, file);
    // The servers execute the request only now.
    let handle = pool.stat("f").unwrap().handle;
    link.lose_data(0, handle, 100);
    link.lose_data(1, handle, 0);
    let file = other.open("f", OpenMode::Read).unwrap();
    assert_eq!(other.length(file), Ok(100));
}

#[test]
fn an_answer_that_was_overtaken_is_no_loss() {
    let (pool, link) = pool(2);
    let file = pool.create_with("f", 0, false, Hints::default()).unwrap();
    run(&pool, file, Operation::Write, 0, 300).unwrap();
    for operation in [Operation::Sync, Operation::Read] {
        link.hold();
        let (sender, receiver) = mpsc::channel();
        // A read past the end makes the client request the length.
        let (regions, buffer) = match operation {
            Operation::Sync => (Regions::default(), region(&[])),
            _ => (Regions::contiguous(0, 5000).unwrap(), region(&[0; 5000])),
        };
        pool.submit(
            VolumeRequest { file, operation, regions, buffer },
            Box::new(move |c| sender.send(c.result).unwrap()),
        );
        let answer = link.release_later();
        let more = if operation == Operation::Sync { 1000 } else { 4000 };
        run(&pool, file, Operation::Write, 0, more).unwrap();
        run(&pool, file, Operation::Sync, 0, 1).unwrap();
        answer();
        let result = receiver.recv().unwrap();
        assert_ne!(result.map_err(|error| error.kind), Err(ErrorKind::Corrupt), "{operation:?}");
    }
}

#[test]
fn what_is_gone_need_not_be_made_durable() {
    let (pool, _) = pool(2);
    written(&pool, true);
    let file = pool.open("f", OpenMode::ReadWrite).unwrap();
    pool.remove("f").unwrap();
    assert_eq!(run(&pool, file, Operation::Sync, 0, 1), Ok(0));
    assert_eq!(run(&pool, file, Operation::Read, 0, 10).unwrap_err().kind, ErrorKind::NotFound);
}

#[test]
fn a_file_made_as_short_as_it_is_is_good_again() {
    let (pool, link) = pool(2);
    written(&pool, true);
    let handle = pool.stat("f").unwrap().handle;
    link.lose_data(0, handle, 0);
    link.lose_data(1, handle, 0);
    let file = pool.open("f", OpenMode::ReadWrite).unwrap();
    corrupt(pool.length(file), "need 500 bytes");
    pool.set_length(file, 0).unwrap();
    assert_eq!(another(&link).read_small("f"), Ok(vec![]));
    run(&pool, file, Operation::Write, 0, 1000).unwrap();
    run(&pool, file, Operation::Sync, 0, 1).unwrap();
    close(&pool, file);
    assert_eq!(another(&link).read_small("f"), Ok(vec![7; 1000]));
    link.lose_data(1, handle, 100);
    corrupt(another(&link).read_small("f"), "need 500 bytes");
}

#[test]
fn who_only_reads_tells_nothing() {
    let (pool, link) = pool(2);
    written(&pool, false);
    let reader = another(&link);
    let file = reader.open("f", OpenMode::Read).unwrap();
    run(&reader, file, Operation::Sync, 0, 1).unwrap();
    let before = link.asked();
    reader.tell_written();
    assert_eq!(link.asked(), before);
}

#[test]
fn a_list_says_how_long_a_file_was() {
    let (pool, link) = pool(2);
    written(&pool, true);
    let handle = pool.stat("f").unwrap().handle;
    for server in [0, 1] {
        link.lose_data(server, handle, 0);
    }
    assert_eq!(pool.list("").unwrap()[0].length, 1000);
}

#[test]
fn the_manager_is_told_when_a_file_is_closed() {
    let (pool, link) = pool(2);
    let file = pool.create_with("f", 0, false, Hints::default()).unwrap();
    run(&pool, file, Operation::Write, 0, 100).unwrap();
    run(&pool, file, Operation::Sync, 0, 1).unwrap();
    pool.rename("f", "g").unwrap();
    pool.close(file);
    let end = Instant::now() + Duration::from_secs(60);
    while link.durable("g") != [100, 0] {
        assert!(Instant::now() < end, "it is not told");
        std::thread::sleep(Duration::from_millis(1));
    }
}
