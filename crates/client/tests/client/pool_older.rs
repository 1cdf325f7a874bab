//! Older copies of data files are refused by their generations.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, Receiver};

use outcore_client::PoolVolume;
use outcore_core::{
    ErrorKind, FileId, Gather, Handle, Hints, OpenMode, Operation, Regions, Result, Volume, VolumeRequest,
};

use crate::pool_link::{MemoryLink, pool, region};

type Pool = PoolVolume<MemoryLink>;

/// Starts an operation on the first bytes of a file. Its result arrives in the channel.
fn start(pool: &Pool, file: FileId, operation: Operation, bytes: usize) -> Receiver<Result<usize>> {
    let (sender, receiver) = mpsc::channel();
    let (buffer, regions) = match operation {
        Operation::Sync => (region(&[0]).gather([]), Regions::default()),
        _ => (region(&vec![7; bytes]), Regions::contiguous(0, bytes as u64).unwrap()),
    };
    pool.submit(
        VolumeRequest { file, operation, regions, buffer },
        Box::new(move |c| sender.send(c.result).unwrap()),
    );
    receiver
}

fn run(pool: &Pool, file: FileId, operation: Operation) -> Result<usize> {
    start(pool, file, operation, 1000).recv().unwrap()
}

fn written(pool: &Pool, file: FileId) {
    run(pool, file, Operation::Write).unwrap();
    run(pool, file, Operation::Sync).unwrap();
}

fn another(link: &Arc<MemoryLink>) -> Pool {
    PoolVolume::new(link.clone(), Arc::new(|| 1)).unwrap()
}

fn refused(result: Result<usize>) {
    corrupt(result, "need generation 2, have 1");
}

fn corrupt(result: Result<usize>, part: &str) {
    let error = result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
    assert!(error.message.contains(part), "{part} is not in {error}");
}

/// A file of generation 2 on two servers, open in one client, and its handle.
fn made() -> (Arc<MemoryLink>, Pool, FileId, Handle) {
    let (one, link) = pool(2);
    let file = one.create_with("f", 0, false, Hints::default()).unwrap();
    written(&one, file);
    written(&one, file);
    let handle = one.stat("f").unwrap().handle;
    (link, one, file, handle)
}

#[test]
fn a_client_compares_what_it_synced_itself() {
    let (link, one, file, handle) = made();
    link.put_back(1, handle, 1);
    for operation in [Operation::Read, Operation::Write, Operation::Sync] {
        refused(run(&one, file, operation));
    }
}

#[test]
fn a_client_that_opens_the_file_compares_what_the_manager_knows() {
    let (link, one, file, handle) = made();
    one.close(file);
    one.tell_written();
    link.put_back(0, handle, 1);
    let other = another(&link);
    let file = other.open("f", OpenMode::ReadWrite).unwrap();
    for operation in [Operation::Read, Operation::Write, Operation::Sync] {
        refused(run(&other, file, operation));
    }
    other.set_length(file, 1000).unwrap();
    run(&other, file, Operation::Read).unwrap();
}

#[test]
fn a_client_asks_again_after_a_restart() {
    let operations = [Operation::Read, Operation::Write, Operation::Sync];
    for (operation, is_older) in operations.into_iter().flat_map(|it| [(it, true), (it, false)]) {
        let (link, one, file, handle) = made();
        let other = another(&link);
        // The manager knows of no sync yet.
        let opened = other.open("f", OpenMode::ReadWrite).unwrap();
        run(&other, opened, Operation::Read).unwrap();
        one.close(file);
        one.tell_written();
        if is_older {
            // The first answer comes from the older copy, to a client that knows of none.
            link.put_back(0, handle, 1);
            refused(run(&other, opened, operation));
            refused(run(&other, opened, operation));
        } else {
            link.restart(0);
            run(&other, opened, operation).unwrap();
            let asked = link.asked();
            run(&other, opened, operation).unwrap();
            assert_eq!(link.asked(), asked, "once for each restart");
        }
    }
}

/// A file of generation 2, and another client that opened it, and read it, while the manager knew of no sync. It knows
/// of both now.
fn made_in_two() -> (Arc<MemoryLink>, Pool, FileId, Handle) {
    let (link, one, file, handle) = made();
    let other = another(&link);
    let opened = other.open("f", OpenMode::ReadWrite).unwrap();
    run(&other, opened, Operation::Read).unwrap();
    one.close(file);
    one.tell_written();
    (link, other, opened, handle)
}

#[test]
fn only_the_servers_that_answered_are_compared() {
    let (link, other, file, handle) = made_in_two();
    link.put_back(1, handle, 1);
    link.restart(0);
    assert_eq!(start(&other, file, Operation::Read, 100).recv().unwrap(), Ok(100));
    refused(run(&other, file, Operation::Read));
}

#[test]
fn an_older_copy_is_refused_although_the_file_was_shortened_meanwhile() {
    let (link, other, file, handle) = made_in_two();
    let one = another(&link);
    let shortened = one.open("f", OpenMode::ReadWrite).unwrap();
    one.set_length(shortened, 1000).unwrap();
    written(&one, shortened);
    one.close(shortened);
    one.tell_written();
    link.put_back(0, handle, 1);
    corrupt(run(&other, file, Operation::Read), "need generation 3, have 1");
}

#[test]
fn nothing_is_compared_while_the_manager_is_away() {
    for is_older in [false, true] {
        let (link, other, file, handle) = made_in_two();
        if is_older {
            link.put_back(0, handle, 1);
        } else {
            link.restart(0);
        }
        link.is_manager_away.store(true, Ordering::SeqCst);
        for operation in [Operation::Read, Operation::Write, Operation::Sync] {
            let error = run(&other, file, operation).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Io);
            for part in ["record of f", "restarted", "the manager does not answer", "start the manager"] {
                assert!(error.message.contains(part), "{part} is not in {error}");
            }
        }
        link.is_manager_away.store(false, Ordering::SeqCst);
        let read = run(&other, file, Operation::Read);
        if is_older {
            // Otherwise the older copy would have the known generation.
            refused(read);
        } else {
            assert_eq!(read, Ok(1000));
        }
    }
}

#[test]
fn a_manager_that_is_away_hinders_no_compared_file_and_no_other_server() {
    let (link, other, file, _) = made_in_two();
    link.restart(0);
    run(&other, file, Operation::Read).unwrap();
    link.is_manager_away.store(true, Ordering::SeqCst);
    let asked = link.asked();
    assert_eq!(run(&other, file, Operation::Read), Ok(1000), "it was compared after the restart");
    link.restart(1);
    assert_eq!(start(&other, file, Operation::Read, 100).recv().unwrap(), Ok(100), "server 0 has it");
    assert_eq!(link.asked(), asked);
    assert!(run(&other, file, Operation::Read).is_err());
    assert_eq!(start(&other, file, Operation::Read, 100).recv().unwrap(), Ok(100), "server 0 has it");
}

#[test]
fn an_answer_from_before_the_comparison_is_compared_too() {
    let (link, other, file, handle) = made_in_two();
    link.put_back(0, handle, 1);
    link.hold();
    let late = start(&other, file, Operation::Read, 1000);
    let release = link.release_later();
    refused(run(&other, file, Operation::Read));
    release();
    refused(late.recv().unwrap());
}

#[test]
fn data_that_an_older_copy_lacks_are_lost() {
    for from in [0, 400] {
        let (link, other, file, handle) = made_in_two();
        link.lose_data(1, handle, from);
        link.restart(1);
        corrupt(run(&other, file, Operation::Read), "server 1: data of f are lost: need 500 bytes");
    }
}
