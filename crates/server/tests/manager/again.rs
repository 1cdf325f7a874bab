//! Requests repeated to a restarted manager.

use outcore_core::{ErrorKind, ManagerReply, ManagerRequest, Origin, Result};
use outcore_server::manager::{Manager, User};
use outcore_server::store::{MemoryStore, SqliteStore, Store};

use crate::pool::*;

const HOUR_NS: u64 = 3600 * SECOND_NS;

fn ask_from<S: Store>(
    manager: &mut Manager<S>,
    ns: u64,
    who: &User,
    (client, number): (u128, u64),
    request: ManagerRequest,
) -> Result<ManagerReply> {
    match manager.handle_from(at(ns), who, Some(Origin { client, number }), request) {
        ManagerReply::Failed(error) => Err(error),
        reply => Ok(reply),
    }
}

fn extended(path: &str, value: &[u8]) -> ManagerRequest {
    ManagerRequest::SetExtended { path: path.into(), name: "a".into(), value: Some(value.to_vec()) }
}

fn get_extended(path: &str) -> ManagerRequest {
    ManagerRequest::GetExtended { path: path.into(), name: "a".into() }
}

/// Makes each kind of change, and repeats it at another manager of the same store.
fn what_was_done_is_not_done_again(
    mut open_again: impl FnMut() -> Box<dyn FnMut(u64, ManagerRequest) -> Result<ManagerReply>>,
) {
    let mut one = open_again();
    let made = opened(one(1, create("f")).unwrap()).inode.handle;
    one(2, make_directory("d", 0o755)).unwrap();
    one(3, create("d/old")).unwrap();
    one(4, rename("d/old", "d/new")).unwrap();
    let removed = handles(one(5, remove("d/new", false)).unwrap());
    one(6, extended("f", b"1")).unwrap();
    assert_eq!(removed.len(), 1);
    drop(one);

    let mut other = open_again();
    assert_eq!(opened(other(1, create("f")).unwrap()).inode.handle, made);
    assert_eq!(other(2, make_directory("d", 0o755)), Ok(ManagerReply::Done));
    assert_eq!(handles(other(4, rename("d/old", "d/new")).unwrap()), removed);
    assert_eq!(handles(other(5, remove("d/new", false)).unwrap()), removed);
    // A repeated request does not undo later changes.
    other(7, extended("f", b"2")).unwrap();
    assert_eq!(other(6, extended("f", b"1")), Ok(ManagerReply::Done));
    assert_eq!(other(8, get_extended("f")), Ok(ManagerReply::Values(vec![b"2".to_vec()])));
    // Requests with other numbers are executed.
    assert_eq!(kind(other(9, create("f"))), ErrorKind::Exists);
    assert_eq!(kind(other(10, remove("d/new", false))), ErrorKind::NotFound);
    // The repeated creation of a file that is gone returns an error.
    other(11, remove("f", false)).unwrap();
    assert_eq!(kind(open_again()(1, create("f"))), ErrorKind::NotFound);
}

#[test]
fn a_store_in_memory_knows_what_was_done() {
    let store = MemoryStore::new();
    add_servers(&mut open(store.clone()), 2);
    what_was_done_is_not_done_again(|| {
        let mut manager = open(store.clone());
        Box::new(move |number, request| ask_from(&mut manager, SECOND_NS, &root(), (7, number), request))
    });
}

#[test]
fn sqlite_knows_what_was_done() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metadata");
    add_servers(&mut open(SqliteStore::open(&path).unwrap()), 2);
    what_was_done_is_not_done_again(|| {
        let mut manager = open(SqliteStore::open(&path).unwrap());
        Box::new(move |number, request| ask_from(&mut manager, SECOND_NS, &root(), (7, number), request))
    });
}

#[test]
fn a_directory_is_replaced_once() {
    let store = MemoryStore::new();
    let mut one = open(store.clone());
    add_servers(&mut one, 1);
    for path in ["new/first", "d/old"] {
        ask(&mut one, &root(), create(path)).unwrap();
    }
    let replaced =
        |mut manager| handles(ask_from(&mut manager, 1, &root(), (7, 1), replace("new", "d")).unwrap());
    let removed = replaced(open(store.clone()));
    assert_eq!(removed.len(), 1);
    // The repeated request must not remove this other file of the same name.
    ask(&mut one, &root(), create("new/second")).unwrap();
    assert_eq!(replaced(open(store)), removed);
    let paths: Vec<String> = tree(&mut one).into_keys().collect();
    assert_eq!(paths, ["d", "d/first", "new", "new/second"]);
}

#[test]
fn only_what_was_done_is_noted_and_only_for_who_did_it() {
    let store = MemoryStore::new();
    let mut one = open(store.clone());
    add_servers(&mut one, 1);
    let (ann, bob) = (user(1, &[1]), user(2, &[2]));
    ask_from(&mut one, 1, &ann, (7, 1), create("a")).unwrap();
    assert_eq!(kind(ask_from(&mut one, 1, &bob, (8, 1), create("a"))), ErrorKind::Exists);
    let mut other = open(store);
    assert_eq!(kind(ask_from(&mut other, 2, &bob, (7, 1), create("a"))), ErrorKind::Exists);
    assert_eq!(kind(ask_from(&mut other, 2, &ann, (8, 1), create("a"))), ErrorKind::Exists);
    ask(&mut other, &ann, remove("a", false)).unwrap();
    ask_from(&mut other, 3, &bob, (8, 1), create("a")).unwrap();
}

#[test]
fn the_number_of_a_client_is_of_no_use_to_another_user() {
    let store = MemoryStore::new();
    let mut one = open(store.clone());
    add_servers(&mut one, 1);
    let (ann, bob) = (user(1, &[1]), user(2, &[2]));
    let made = opened(ask_from(&mut one, 1, &ann, (7, 1), create("a")).unwrap()).inode.handle;
    // Bob uses the number of Ann's client, and all slots that it has.
    for number in 1..=32 {
        ask_from(&mut one, 2, &bob, (7, number), create(&format!("b{number}"))).unwrap();
    }
    for mut manager in [one, open(store)] {
        let again = ask_from(&mut manager, 3, &ann, (7, 1), create("a")).unwrap();
        assert_eq!(opened(again).inode.handle, made, "what Ann's client did is still known");
        assert_eq!(kind(ask_from(&mut manager, 3, &bob, (7, 33), create("a"))), ErrorKind::Exists);
    }
}

#[test]
fn notes_are_few_and_go_in_time() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 1);
    let notes = || store.range(b"a", b"b", 4096).unwrap().len();
    let mut make = |ns, client, number| {
        let name = format!("f-{client}-{number}");
        ask_from(&mut manager, ns, &root(), (client, number), create(&name)).unwrap();
    };
    for number in 1..=200 {
        make(SECOND_NS, 7, number);
    }
    assert_eq!(notes(), 16, "of a client that makes many");
    for client in 100..200 {
        make(2 * SECOND_NS, client, 1);
    }
    assert_eq!(notes(), 116);
    for number in 1..=5000 {
        make(2 * HOUR_NS + number * SECOND_NS, 8, number);
    }
    assert_eq!(notes(), 16, "the others are old");
    let mut again = open(store.clone());
    let before = ask_from(&mut again, 2 * HOUR_NS, &root(), (8, 5000), create("f-8-5000")).unwrap();
    assert!(matches!(before, ManagerReply::Opened(_)));
}

#[test]
fn a_clock_that_jumps_makes_no_note_old() {
    const YEAR_NS: u64 = 365 * 24 * HOUR_NS;
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 1);
    let made = opened(ask_from(&mut manager, YEAR_NS, &root(), (7, 1), create("f")).unwrap()).inode.handle;
    for (turn, ns) in [30 * YEAR_NS, 0, YEAR_NS, u64::MAX, YEAR_NS].into_iter().enumerate() {
        for number in 1..=600 {
            let name = format!("f-{turn}-{number}");
            ask_from(&mut manager, ns, &root(), (100 + turn as u128, number), create(&name)).unwrap();
        }
        let mut again = open(store.clone());
        let once_more = ask_from(&mut again, ns, &root(), (7, 1), create("f")).unwrap();
        assert_eq!(opened(once_more).inode.handle, made, "after a jump to {ns}");
    }
}

#[test]
fn a_commit_as_large_as_they_come_is_still_done() {
    let mut manager = pool();
    let hints = (0..32).map(|i| (format!("hint{i}"), "x".to_owned())).collect();
    let hints = outcore_core::Hints { others: hints, ..outcore_core::Hints::default() };
    let path = format!("{}f", "d/".repeat(16));
    let request = ManagerRequest::Create { path, hints, mode: 0o644 };
    ask_from(&mut manager, 1, &root(), (7, 1), request).unwrap();
}
