//! Numbers of I/O servers: each is assigned once, even to concurrent callers.

use std::collections::BTreeSet;
use std::thread;

use outcore_core::{ErrorKind, Handle, ManagerReply, ManagerRequest, ServerAddress, ServerId};
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
    let server = ServerAddress { id: ServerId(id), addresses: vec![address] };
    ManagerRequest::AddServer { server, highest: Handle(0) }
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

fn retire(id: u32, undo: bool) -> ManagerRequest {
    ManagerRequest::Retire { server: ServerId(id), undo }
}

/// The numbers of the active and of the retired servers.
fn servers<S: Store>(manager: &mut Manager<S>) -> (Vec<u32>, Vec<u32>) {
    match ask(manager, &user(1, &[1]), ManagerRequest::Servers).unwrap() {
        ManagerReply::Servers { servers, retired, .. } => {
            (servers.iter().map(|server| server.id.0).collect(), retired.iter().map(|id| id.0).collect())
        }
        other => panic!("answered by {other:?}"),
    }
}

fn laid<S: Store>(manager: &mut Manager<S>, path: &str) -> BTreeSet<u32> {
    let file = opened(ask(manager, &root(), create(path)).unwrap());
    file.inode.layout.unwrap().servers.iter().map(|id| id.0).collect()
}

#[test]
fn nothing_new_lies_on_a_retired_server_until_that_is_undone() {
    let store = MemoryStore::new();
    let (mut one, mut other) = (open(store.clone()), open(store.clone()));
    add_servers(&mut one, 3);
    assert_eq!(laid(&mut other, "old"), BTreeSet::from([0, 1, 2]));
    ask(&mut one, &root(), retire(1, false)).unwrap();
    assert_eq!(servers(&mut other), (vec![0, 2], vec![1]));
    assert_eq!(laid(&mut other, "new"), BTreeSet::from([0, 2]), "the other manager knows");
    let old = inode(ask(&mut one, &root(), stat("old")).unwrap()).layout.unwrap().servers;
    assert_eq!(old.len(), 3, "what is there stays where it is");
    // Repeating the request is no error, since clients may repeat requests.
    ask(&mut one, &root(), retire(1, false)).unwrap();
    assert_eq!(kind(ask(&mut one, &root(), add(1))), ErrorKind::Denied, "it is refused");
    assert_eq!(new_server(&mut one), 3);
    let mut again = open(store);
    assert_eq!(servers(&mut again), (vec![0, 2], vec![1]), "after a restart");
    for _ in 0..2 {
        ask(&mut again, &root(), retire(1, true)).unwrap();
    }
    assert_eq!(servers(&mut again), (vec![0, 1, 2], vec![]));
    ask(&mut again, &root(), add(1)).unwrap();
    assert_eq!(laid(&mut one, "later"), BTreeSet::from([0, 1, 2]));
}

#[test]
fn numbers_of_retired_servers_are_not_given_again() {
    let mut manager = open(MemoryStore::new());
    ask(&mut manager, &root(), add(4)).unwrap();
    ask(&mut manager, &root(), retire(4, false)).unwrap();
    assert_eq!(new_server(&mut manager), 5);
    assert_eq!(kind(ask(&mut manager, &root(), create("f"))), ErrorKind::Invalid, "none is left");
}

#[test]
fn only_who_runs_the_pool_retires_servers_that_it_has() {
    let mut manager = pool();
    for undo in [false, true] {
        assert_eq!(kind(ask(&mut manager, &user(1, &[1]), retire(0, undo))), ErrorKind::Denied);
        assert_eq!(kind(ask(&mut manager, &root(), retire(4, undo))), ErrorKind::Invalid);
    }
    assert_eq!(servers(&mut manager), ((0..4).collect(), vec![]));
}

#[test]
fn a_server_that_is_started_again_where_it_was_changes_nothing() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    ask(&mut manager, &root(), add(0)).unwrap();
    let before = store.range(b"a", b"z", 100).unwrap();
    // A restarted manager makes no commit either, although it reserves handles before its first change.
    let mut manager = open(store.clone());
    ask(&mut manager, &root(), add(0)).unwrap();
    assert_eq!(store.range(b"a", b"z", 100).unwrap(), before);
}
