//! Symbolic links: records that the manager stores, and never follows.

use outcore_core::{ErrorKind, ManagerReply, ManagerRequest};
use outcore_server::manager::{MAX_TARGET_BYTES, Manager};
use outcore_server::store::MemoryStore;

use crate::pool::*;

/// The link that a request meets.
fn met(manager: &mut Manager<MemoryStore>, request: ManagerRequest) -> (String, String) {
    match manager.handle(at(1), &root(), request) {
        ManagerReply::Link { path, target } => (path, target),
        reply => panic!("{reply:?}"),
    }
}

fn pool() -> Manager<MemoryStore> {
    let mut manager = open(MemoryStore::new());
    add_servers(&mut manager, 2);
    ask(&mut manager, &root(), make_directory("d", 0o755)).unwrap();
    ask(&mut manager, &root(), create("d/f")).unwrap();
    ask(&mut manager, &root(), make_link("l", "../d")).unwrap();
    manager
}

#[test]
fn a_link_is_met_on_the_way_and_where_a_file_or_directory_is_needed() {
    let mut manager = pool();
    let expected = ("l".to_owned(), "../d".to_owned());
    for request in [
        stat("l/f"),
        open_file("l/f", false),
        create("l/new"),
        make_directory("l/new/er", 0o755),
        make_link("l/link", "x"),
        remove("l/f", false),
        rename("l/f", "d/g"),
        rename("d/f", "l/g"),
        replace("d/f", "l/g"),
        list("l/x", "", 9),
        open_file("l", true),
        list("l", "", 9),
        get_extended("l", "a"),
        set_extended("l", "a", Some(b"1")),
    ] {
        assert_eq!(met(&mut manager, request.clone()), expected, "{request:?}");
    }
    let before: Vec<String> = tree(&mut manager).into_keys().collect();
    assert_eq!(before, ["d", "d/f", "l"], "nothing was done");
}

#[test]
fn a_link_itself_is_listed_renamed_and_removed() {
    let mut manager = pool();
    let found = inode(ask(&mut manager, &root(), stat("l")).unwrap());
    assert_eq!((found.target.as_deref(), found.mode, found.is_directory()), (Some("../d"), 0o777, false));
    assert_eq!(kind(ask(&mut manager, &root(), make_link("l", "x"))), ErrorKind::Exists);
    assert_eq!(kind(ask(&mut manager, &root(), create("l"))), ErrorKind::Exists);
    ask(&mut manager, &root(), rename("l", "d/m")).unwrap();
    let listed = names(ask(&mut manager, &root(), list("d", "", 9)).unwrap()).0;
    assert_eq!(listed[1].inode.target.as_deref(), Some("../d"));
    // A link replaces a file, and a file a link; only the file leaves data.
    assert_eq!(handles(ask(&mut manager, &root(), rename("d/m", "d/f")).unwrap()).len(), 1);
    ask(&mut manager, &root(), create("g")).unwrap();
    assert_eq!(handles(ask(&mut manager, &root(), rename("g", "d/f")).unwrap()).len(), 0);
    assert_eq!(handles(ask(&mut manager, &root(), orphans(&[], 0, 9)).unwrap()).len(), 1);
    ask(&mut manager, &root(), make_link("d/l", "nowhere")).unwrap();
    ask(&mut manager, &root(), remove("d/l", false)).unwrap();
    ask(&mut manager, &root(), make_link("d/l", "nowhere")).unwrap();
    ask(&mut manager, &root(), remove("d", true)).unwrap();
    assert!(tree(&mut manager).is_empty());
}

#[test]
fn bad_targets_and_places_are_refused() {
    let mut manager = pool();
    let long = "x".repeat(MAX_TARGET_BYTES + 1);
    for target in ["", "a\0b", &long] {
        assert_eq!(kind(ask(&mut manager, &root(), make_link("new", target))), ErrorKind::Invalid);
    }
    ask(&mut manager, &root(), make_link("new", &long[1..])).unwrap();
    assert_eq!(kind(ask(&mut manager, &root(), make_link("none/new", "x"))), ErrorKind::NotFound);
    assert_eq!(kind(ask(&mut manager, &root(), make_link("", "x"))), ErrorKind::Invalid);
    assert_eq!(kind(ask(&mut manager, &user(5, &[]), make_link("d/x", "x"))), ErrorKind::Denied);
}

#[test]
fn the_directories_above_a_renamed_link_are_its_owners() {
    let mut manager = pool();
    ask(&mut manager, &root(), rename("l", "p/q/l")).unwrap();
    assert_eq!(inode(ask(&mut manager, &root(), stat("p")).unwrap()).mode, 0o700);
}
