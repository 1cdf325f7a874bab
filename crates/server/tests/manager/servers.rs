//! Numbers of I/O servers: each is given once, whoever asks at the same moment.

use std::collections::BTreeSet;
use std::thread;

use outcore_core::{ErrorKind, ManagerReply, ManagerRequest, ServerAddress, ServerId};
use outcore_server::manager::Manager;
use outcore_server::store::{MemoryStore, SqliteStore, Store};

use crate::pool::*;

fn new_server<S: Store>(manager: &mut Manager<S>) -> u32 {
    match ask(manager, &root(), ManagerRequest::NewServer).unwrap() {
        ManagerReply::NewServer(id) => id.0,
        other => panic!("answered by {other:?}"),
    }
}

fn add(id: u32) -> ManagerRequest {
    let address = format!("tcp:h{id}:1");
    ManagerRequest::AddServer { server: ServerAddress { id: ServerId(id), addresses: vec![address] } }
}

#[test]
fn a_number_is_given_once_even_if_the_server_never_comes() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    assert_eq!([new_server(&mut manager), new_server(&mut manager)], [0, 1]);
    ask(&mut manager, &root(), add(7)).unwrap();
    assert_eq!(new_server(&mut manager), 8, "after one that chose its own");
    let mut again = open(store);
    assert_eq!(new_server(&mut again), 9);
    assert_eq!(kind(ask(&mut again, &user(1, &[1]), ManagerRequest::NewServer)), ErrorKind::Denied);
    ask(&mut again, &root(), add(u32::MAX)).unwrap();
    assert_eq!(kind(ask(&mut again, &root(), ManagerRequest::NewServer)), ErrorKind::Invalid);
}

#[test]
fn those_who_ask_at_once_get_numbers_of_their_own() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata.sqlite");
    drop(open(SqliteStore::open(&path).unwrap()));
    let given: Vec<u32> = thread::scope(|scope| {
        let take = || {
            let mut manager = open(SqliteStore::open(&path).unwrap());
            (0..10).map(|_| new_server(&mut manager)).collect::<Vec<u32>>()
        };
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(take)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(given.into_iter().collect::<BTreeSet<u32>>(), (0..40).collect());
}

#[test]
fn a_server_that_is_started_again_where_it_was_changes_nothing() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    ask(&mut manager, &root(), add(0)).unwrap();
    let before = store.range(b"a", b"z", 100).unwrap();
    // Nor does a manager that was started again, and would take handles before it changes anything.
    let mut manager = open(store.clone());
    ask(&mut manager, &root(), add(0)).unwrap();
    assert_eq!(store.range(b"a", b"z", 100).unwrap(), before);
}
