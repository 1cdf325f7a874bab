//! Writes that a server of a pool may have lost, and their report by the next sync.

use std::sync::atomic::Ordering;

use outcore_core::{Error, ErrorKind, OpenMode, Volume};

use crate::pool::{made, sync, write_all};
use crate::pool_link::pool;

#[test]
fn writes_that_a_server_may_have_lost_are_told_by_the_next_sync() {
    let (pool, link) = pool(3);
    let file = made(&pool, 300);
    sync(&pool, file).unwrap();
    write_all(&pool, file, 1);
    link.restart(1);
    link.restart(2);
    let error = sync(&pool, file).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Lost);
    assert!(error.message.contains("I/O servers 1, 2 were restarted after a write to f"), "{error}");
    assert!(error.message.contains("repeat the writes"), "{error}");
    // Written again, it is safe, and synced writes stay safe.
    write_all(&pool, file, 1);
    sync(&pool, file).unwrap();
    link.restart(0);
    sync(&pool, file).unwrap();
    // A new length is a write too.
    pool.set_length(file, 200).unwrap();
    link.restart(0);
    assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Lost);
    sync(&pool, file).unwrap();
}

#[test]
fn lost_writes_are_told_whoever_made_them_and_whoever_syncs() {
    let (pool, link) = pool(2);
    let file = made(&pool, 300);
    sync(&pool, file).unwrap();
    write_all(&pool, file, 1);
    pool.close(file);
    link.restart(0);
    assert_eq!(pool.settle("f").unwrap_err().kind, ErrorKind::Lost);
    pool.settle("f").unwrap();

    let (one, other) =
        (pool.open("f", OpenMode::ReadWrite).unwrap(), pool.open("f", OpenMode::ReadWrite).unwrap());
    write_all(&pool, one, 1);
    write_all(&pool, other, 2);
    link.restart(0);
    // Each open file gets the error, since each may have written.
    assert_eq!(sync(&pool, other).unwrap_err().kind, ErrorKind::Lost);
    assert_eq!(sync(&pool, one).unwrap_err().kind, ErrorKind::Lost);
    for file in [one, other] {
        write_all(&pool, file, 3);
        sync(&pool, file).unwrap();
    }
    let late = pool.open("f", OpenMode::ReadWrite).unwrap();
    sync(&pool, late).unwrap();
}

#[test]
fn that_writes_are_lost_is_told_before_errors_that_may_pass() {
    for other in [0, 1] {
        let (pool, link) = pool(2);
        let file = made(&pool, 300);
        write_all(&pool, file, 1);
        link.restart(1 - other);
        let mut faults = [None, None];
        faults[other as usize] = Some(Error::new(ErrorKind::Io, "the network"));
        *link.faults.lock().unwrap() = faults.into();
        assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Lost);
        sync(&pool, file).unwrap();
    }
}

#[test]
fn small_files_are_durable_or_not_done() {
    let (pool, link) = pool(2);
    pool.replace_small("s", b"old").unwrap();
    pool.append_small("s", b"er").unwrap();
    link.restarts_before_syncs.store(true, Ordering::SeqCst);
    assert_eq!(pool.replace_small("s", b"new").unwrap_err().kind, ErrorKind::Lost);
    assert_eq!(pool.append_small("s", b"!").unwrap_err().kind, ErrorKind::Lost);
    assert!(pool.read_small("s").unwrap().starts_with(b"older"));
    assert_eq!(pool.list("").unwrap().len(), 1);
    let file = made(&pool, 10);
    assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Lost, "its length");
}
