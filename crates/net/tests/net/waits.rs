//! Requests of collectives that wait for other processes take nothing that the requests need for which they wait.

use outcore_core::*;
use outcore_memory::Region;
use outcore_net::{NetLink, Options};

use crate::pool::*;

/// Bytes of the largest share of a piece.
const SHARE_BYTES: usize = 8 << 20;

fn await_of(round: u64) -> IoRequest {
    IoRequest::Await { collective: 7, rank: 0, round: Some(round) }
}

fn take_of(piece: u64, bytes: usize) -> IoRequest {
    IoRequest::Take { collective: 7, rank: 0, piece, bytes: bytes as u64 }
}

fn link_of(pool: &Pool, connections: usize) -> NetLink {
    let options = Options { connections_per_address: connections, ..options() };
    NetLink::connect(pool.manager.addresses(), options).unwrap()
}

#[test]
fn a_large_share_travels_beside_requests_that_wait_for_it() {
    for places in networks() {
        let pool = Pool::new(&places);
        for connections in [1, 2] {
            let link = link_of(&pool, connections);
            let waits: Vec<_> = (0..8).map(|round| start(&link, await_of(round), Region::empty())).collect();
            let taken: Vec<_> = (0..4)
                .map(|piece| start(&link, take_of(piece, SHARE_BYTES), region(&vec![0; SHARE_BYTES])))
                .collect();
            for (piece, each) in taken.iter().enumerate() {
                let answer = wait(each);
                assert_eq!(answer.reply, IoReply::Done);
                assert!(bytes_of(&answer.buffer) == pattern(piece, SHARE_BYTES));
            }
            until("the server has the waits", || pool.files.waits.lock().unwrap().len() == waits.len());
            pool.files.end_waits();
            assert!(waits.iter().all(|each| wait(each).reply == IoReply::Done));
        }
    }
}

#[test]
fn any_number_of_calls_is_made_during_one_wait() {
    let pool = Pool::new(&tcp());
    let link = pool.link();
    let waits = start(&link, await_of(0), Region::empty());
    for number in 0..4000 {
        let reply = if number % 2 == 0 {
            write(&link, 1, 0, &[1; 10])
        } else {
            call(&link, take_of(1, 10), region(&[0; 10])).reply
        };
        assert_eq!(reply, IoReply::Done, "call {number}");
    }
    pool.files.end_waits();
    assert_eq!(wait(&waits).reply, IoReply::Done);
}

#[test]
fn more_waits_than_a_server_reads_keep_no_call_from_it() {
    let pool = Pool::new(&tcp());
    for connections in [1, 2] {
        let link = link_of(&pool, connections);
        let waits: Vec<_> = (0..600).map(|round| start(&link, await_of(round), Region::empty())).collect();
        for piece in 0..300 {
            let taken = call(&link, take_of(piece, 100), region(&[0; 100]));
            assert!(taken.reply == IoReply::Done && bytes_of(&taken.buffer) == pattern(piece as usize, 100));
        }
        let mut ended = 0;
        until("all waits end", || {
            pool.files.end_waits();
            ended += waits.iter().filter(|each| each.try_recv().is_ok()).count();
            ended == waits.len()
        });
    }
}
