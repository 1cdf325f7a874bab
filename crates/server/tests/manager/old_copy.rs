//! A store that is an older copy: no handle is assigned twice.

use std::collections::BTreeSet;

use outcore_core::{ErrorKind, Handle, Known, ManagerReply, ManagerRequest, ServerAddress, ServerId};
use outcore_server::manager::{Config, Manager, check_store, mark_restored};
use outcore_server::store::conformance::{delete, put};
use outcore_server::store::{MemoryStore, Store};

use crate::pool::*;

/// A store with the same records.
fn copy(store: &MemoryStore) -> MemoryStore {
    let mut copy = MemoryStore::new();
    for (key, found) in store.range(b"\0", b"\xff", 4096).unwrap() {
        let _ = copy.commit(&[], &[put(&key, &found.value)]).unwrap();
    }
    copy
}

fn made<S: Store>(manager: &mut Manager<S>, path: &str) -> Handle {
    opened(ask(manager, &root(), create(path)).unwrap()).inode.handle
}

fn report(id: u32, highest: Handle) -> ManagerRequest {
    let server = ServerAddress { id: ServerId(id), addresses: vec![format!("tcp:h{id}:1")] };
    ManagerRequest::AddServer { server, highest }
}

/// A store, an older copy of it, and the handles that the newer one assigned.
fn newer_and_older() -> (MemoryStore, MemoryStore, BTreeSet<Handle>) {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 2);
    made(&mut manager, "before");
    let older = copy(&store);
    // A restarted manager reserves other handles.
    let mut manager = open(store.clone());
    add_servers(&mut manager, 2);
    let given = (0..5).map(|number| made(&mut manager, &format!("after{number}"))).collect();
    (store, older, given)
}

#[test]
fn new_files_get_handles_above_all_that_servers_have() {
    let (_, older, given) = newer_and_older();
    let highest = *given.last().unwrap();
    let mut manager = open(older);
    for (id, highest) in [(0, Handle(2)), (1, highest)] {
        ask(&mut manager, &root(), report(id, highest)).unwrap();
    }
    let known = ManagerRequest::Know { handles: vec![highest] };
    let Ok(ManagerReply::Known { known, .. }) = ask(&mut manager, &root(), known.clone()) else { panic!() };
    assert_eq!(known, [Known::Unused], "fsck says that the metadata are older than the data");
    for number in 0..2000 {
        let handle = made(&mut manager, &format!("new{number}"));
        // Handles of removed files are not on the servers, but were assigned too.
        assert!(handle.0 > highest.0 + (1 << 20), "{handle:?}");
    }
}

#[test]
fn a_server_that_tells_late_has_its_handles_left_alone_from_then_on() {
    let (_, older, given) = newer_and_older();
    let mut manager = open(older);
    made(&mut manager, "early");
    ask(&mut manager, &root(), report(0, *given.last().unwrap())).unwrap();
    for number in 0..2000 {
        assert!(!given.contains(&made(&mut manager, &format!("new{number}"))));
    }
}

#[test]
fn where_a_server_does_not_tell_handles_are_passed_over() {
    let (_, older, given) = newer_and_older();
    for jump in [1 << 33, 1 << 40] {
        let config = Config { mode: 0o777, jump, ..Config::new(POOL) };
        let mut manager = Manager::open(copy(&older), key(), config).unwrap();
        ask(&mut manager, &root(), report(0, Handle(2))).unwrap();
        let first = made(&mut manager, "new");
        assert!(first.0 > jump && !given.contains(&first));
        let last = (0..3000).map(|number| made(&mut manager, &format!("new{number}"))).max().unwrap();
        assert!(last.0 < first.0 + 5000, "once");
    }
}

#[test]
fn a_restored_copy_gives_no_handle_of_files_that_were_removed_since() {
    let (_, mut older, given) = newer_and_older();
    mark_restored(&mut older).unwrap();
    let mut manager = open(older.clone());
    for id in 0..2 {
        ask(&mut manager, &root(), report(id, Handle(2))).unwrap();
    }
    let first = made(&mut manager, "new");
    assert!(first > *given.last().unwrap(), "{first:?}");
    let last = (0..3000).map(|number| made(&mut manager, &format!("new{number}"))).max().unwrap();
    assert!(last.0 < first.0 + 5000, "once");
    assert_eq!(older.get(b"j").unwrap(), None);
}

#[test]
fn where_all_tell_and_nothing_is_new_handles_go_on_in_their_order() {
    let (newer, _, given) = newer_and_older();
    let config = Config { mode: 0o777, jump: 1 << 40, ..Config::new(POOL) };
    let mut manager = Manager::open(newer, key(), config).unwrap();
    for id in 0..2 {
        ask(&mut manager, &root(), report(id, *given.last().unwrap())).unwrap();
    }
    assert!(made(&mut manager, "new").0 < 5000);
}

#[test]
fn a_store_that_lost_its_first_records_makes_no_new_pool_and_gives_no_handle_again() {
    let (store, _, _) = newer_and_older();
    assert_eq!(check_store(&store), Ok(POOL));
    let mut broken = copy(&store);
    let _ = broken.commit(&[], &[delete(b"h")]).unwrap();
    let mut manager = open(broken);
    assert_eq!(kind(ask(&mut manager, &root(), create("new"))), ErrorKind::Corrupt);
    let mut broken = copy(&store);
    let _ = broken.commit(&[], &[delete(b"p")]).unwrap();
    assert_eq!(
        Manager::open(broken.clone(), key(), Config::new(POOL)).err().unwrap().kind,
        ErrorKind::Corrupt
    );
    assert_eq!(check_store(&broken).unwrap_err().kind, ErrorKind::Corrupt);
    assert_eq!(check_store(&MemoryStore::new()).unwrap_err().kind, ErrorKind::Corrupt);
    let _ = store.flip(3, 5).unwrap();
    assert_eq!(check_store(&store).unwrap_err().kind, ErrorKind::Corrupt);
}
