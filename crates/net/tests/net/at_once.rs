//! Small frames sent by calling threads, and the parts that the system does not take immediately.

use std::sync::atomic::Ordering;
use std::time::Instant;

use outcore_core::wire::{Header, Kind, Role, encode};
use outcore_core::*;
use outcore_net::{Address, Config, NetLink, Options};

use crate::bytes::Raw;
use crate::pool::*;

const BYTES: usize = 15_000;

fn data(number: u64) -> Vec<u8> {
    pattern(number as usize, BYTES)
}

#[test]
fn who_makes_calls_waits_for_no_server_and_all_of_them_arrive_whole() {
    let root = tempfile::tempdir().unwrap();
    for places in [vec![Address::Unix(root.path().join("io.sock"))], tcp(), tls()] {
        // A server without free memory receives nothing more.
        let pool = Pool::with(&places, Config { memory_bytes: 100_000, ..config(Role::IoServer(SERVER)) });
        let one = Options { connections_per_address: 1, ..options() };
        let link = NetLink::connect(pool.manager.addresses(), one).unwrap();
        write(&link, 0, 0, &data(0));
        pool.files.shut_gate(true);
        let calls: Vec<_> =
            (0..300).map(|i| start(&link, write_of(i, 0, BYTES as u64), region(&data(i)))).collect();
        let watcher = pool.server.watcher();
        until("a request waits for memory", || watcher.waiting() > 0);
        pool.files.shut_gate(false);
        assert!(calls.iter().all(|each| wait(each).reply == IoReply::Done));
        assert_eq!(pool.files.writes.load(Ordering::SeqCst), 301);
        assert!((0..300).all(|i| read(&link, i, 0, BYTES) == data(i)));
    }
}

#[test]
fn calls_of_a_server_that_ends_while_it_takes_nothing_are_made_again() {
    let root = tempfile::tempdir().unwrap();
    let places = [Address::Unix(root.path().join("io.sock"))];
    let full = Config { memory_bytes: 100_000, ..config(Role::IoServer(SERVER)) };
    let pool = Pool::with(&places, full);
    let link = pool.link();
    write(&link, 0, 0, &data(0));
    pool.files.shut_gate(true);
    let calls: Vec<_> =
        (0..300).map(|i| start(&link, write_of(i, 0, BYTES as u64), region(&data(i)))).collect();
    let watcher = pool.server.watcher();
    until("a request waits for memory", || watcher.waiting() > 0);
    let Pool { files, manager: _manager, server } = pool;
    let stopping = std::thread::spawn(move || server.stop());
    until("the server stops", || files.is_stopping.load(Ordering::SeqCst));
    files.shut_gate(false);
    stopping.join().unwrap();
    let handler = std::sync::Arc::new(Served(files));
    let _server = outcore_net::listen(&places, handler, config(Role::IoServer(SERVER))).unwrap();
    assert!(calls.iter().all(|each| wait(each).reply == IoReply::Done));
    assert!((0..300).all(|i| read(&link, i, 0, BYTES) == data(i)));
}

#[test]
fn who_takes_no_answers_gets_them_whole_later_and_stalls_nobody() {
    for places in networks() {
        let pool = Pool::new(&places);
        let link = pool.link();
        (0..250).for_each(|i| assert_eq!(write(&link, i, 0, &data(i)), IoReply::Done));
        let mut raw = Raw::introduced(&pool.server.addresses()[0]);
        for i in 0..250 {
            let control = encode(&read_of(i, 0, BYTES as u64));
            let header = Header { request: i + 1, settled: 1, ..Header::of(Kind::IoRequest, &control) };
            raw.send(&[&header.encode().unwrap()[..], &control].concat());
        }
        until("the server has all answers", || {
            pool.files.reads.load(Ordering::SeqCst) == 250 && pool.files.under_way() == 0
        });
        // The connection's thread sends the rest.
        let begun = Instant::now();
        (0..250).for_each(|i| assert_eq!(read(&link, i, 0, BYTES), data(i)));
        assert!(begun.elapsed() < LONG, "{:?}", begun.elapsed());
        let mut missing: Vec<u64> = (0..250).collect();
        while !missing.is_empty() {
            let (header, control) = raw.receive();
            if header.kind == Kind::Working {
                continue;
            }
            assert_eq!(outcore_core::wire::decode(&control), Ok(IoReply::Done));
            let number = header.request - 1;
            assert_eq!(raw.receive_payload(&header), data(number));
            missing.retain(|other| *other != number);
        }
    }
}

#[test]
fn small_frames_do_not_get_into_large_ones() {
    let root = tempfile::tempdir().unwrap();
    for places in [vec![Address::Unix(root.path().join("io.sock"))], tcp(), tls()] {
        let pool = Pool::new(&places);
        let one = Options { connections_per_address: 1, ..options() };
        let link = NetLink::connect(pool.manager.addresses(), one).unwrap();
        let large = pattern(7, 900_000);
        for round in 0..10 {
            let mut writes = vec![];
            for i in 0..20 {
                if i % 10 == 0 {
                    writes.push(start(&link, write_of(1000 + i, 0, 900_000), region(&large)));
                }
                writes.push(start(&link, write_of(i, round, BYTES as u64), region(&data(i))));
            }
            assert!(writes.iter().all(|each| wait(each).reply == IoReply::Done));
            let mut reads = vec![];
            for i in 0..20 {
                if i % 10 == 0 {
                    let read = start(&link, read_of(1000 + i, 0, 900_000), region(&[0; 900_000]));
                    reads.push((large.clone(), read));
                }
                let read = start(&link, read_of(i, round, BYTES as u64), region(&[0; BYTES]));
                reads.push((data(i), read));
            }
            assert!(reads.iter().all(|(bytes, read)| bytes_of(&wait(read).buffer) == *bytes));
        }
    }
}
