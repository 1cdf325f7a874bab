//! Files without a name: none is lost before its data files are, whatever happens in between.

use outcore_core::{ErrorKind, Handle, ManagerReply};
use outcore_server::manager::Manager;
use outcore_server::store::{MAX_RANGE, MemoryStore, Store};

use crate::pool::*;

fn count<S: Store>(store: &S, letter: u8) -> usize {
    store.range(&[letter], &[letter + 1], MAX_RANGE).unwrap().len()
}

/// A directory with 1500 files, some below others, and extended attributes.
fn large(manager: &mut Manager<MemoryStore>) -> Vec<Handle> {
    let mut made: Vec<Handle> = (0..1500)
        .map(|i| {
            let path = if i % 3 == 0 { format!("d/{}/f{i}", i % 7) } else { format!("d/f{i}") };
            opened(ask(manager, &root(), create(&path)).unwrap()).inode.handle
        })
        .collect();
    for i in 0..130 {
        for path in ["d", "d/3", "d/f1"] {
            ask(manager, &root(), set_extended(path, &format!("a{i}"), Some(b"v"))).unwrap();
        }
    }
    made.sort();
    made
}

/// As a client does: removes data files, says so, and goes on until there are no more.
fn clear(manager: &mut Manager<MemoryStore>, first: ManagerReply) -> Vec<Handle> {
    let mut removed = Vec::new();
    let mut page = handles(first);
    while !page.is_empty() {
        assert!(page.len() <= 1000);
        removed.extend_from_slice(&page);
        page = handles(ask(manager, &root(), orphans(&page, 0, 300)).unwrap());
    }
    removed.sort();
    removed
}

#[test]
fn a_directory_goes_at_once_and_what_was_in_it_bit_by_bit() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 2);
    let made = large(&mut manager);
    let reply = ask(&mut manager, &root(), remove("d", true)).unwrap();
    assert!(tree(&mut manager).is_empty());
    let removed = clear(&mut manager, reply);
    assert_eq!(removed, made);
    for letter in *b"notx" {
        assert_eq!(count(&store, letter), 0, "{} is left", letter as char);
    }
    assert_eq!(count(&store, b'i'), 1, "only the root has a record");
}

#[test]
fn a_manager_that_stops_on_the_way_goes_on_later() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 2);
    let made = large(&mut manager);
    drop(ask(&mut manager, &root(), remove("d", true)).unwrap());
    assert!(count(&store, b't') > 0, "not all of it is done");
    drop(manager);
    let mut manager = open(store.clone());
    let first = ask(&mut manager, &root(), orphans(&[], 0, 1000)).unwrap();
    assert_eq!(clear(&mut manager, first), made);
    assert_eq!(count(&store, b'o') + count(&store, b't') + count(&store, b'x'), 0);
}

#[test]
fn orphans_come_with_the_right_to_remove_their_data() {
    let mut pool = pool();
    let (one, two) = (user(1, &[5]), user(2, &[5]));
    for path in ["a", "b", "c"] {
        ask(&mut pool, &one, create(path)).unwrap();
    }
    let b = opened(ask(&mut pool, &one, open_file("b", true)).unwrap()).inode;
    for reply in [
        ask(&mut pool, &one, rename("a", "b")).unwrap(),
        ask(&mut pool, &one, orphans(&[], 0, 9)).unwrap(),
        ask(&mut pool, &root(), orphans(&[], 0, 9)).unwrap(),
    ] {
        let ManagerReply::Orphans(files) = reply else { panic!("{reply:?}") };
        assert_eq!(files.len(), 1);
        assert_eq!(files[0].inode, b, "its layout says where its data files are");
        key().verify(&files[0].grant, b.handle, true, 2).unwrap();
    }
    assert_eq!(handles(ask(&mut pool, &two, orphans(&[], 0, 9)).unwrap()), [], "not another user's");
    assert_eq!(kind(ask(&mut pool, &two, orphans(&[b.handle], 0, 9))), ErrorKind::Denied);
    assert_eq!(handles(ask(&mut pool, &one, orphans(&[b.handle], 0, 9)).unwrap()), []);
    ask(&mut pool, &one, orphans(&[b.handle, Handle(12345)], 0, 9)).unwrap();
    let c = handles(ask(&mut pool, &one, remove("c", false)).unwrap());
    assert_eq!(handles(ask(&mut pool, &root(), orphans(&c, 0, 9)).unwrap()), [], "root may say so too");
}

#[test]
fn pages_of_orphans_follow_each_other() {
    let mut pool = pool();
    let mut made = Vec::new();
    for i in 0..7 {
        made.push(opened(ask(&mut pool, &root(), create(&format!("f{i}"))).unwrap()).inode.handle);
        ask(&mut pool, &root(), remove(&format!("f{i}"), false)).unwrap();
    }
    let mut found: Vec<Handle> = Vec::new();
    for expected in [3, 3, 1, 0] {
        let after = found.last().map_or(0, |handle| handle.0);
        let page = handles(ask(&mut pool, &root(), orphans(&[], after, 3)).unwrap());
        assert_eq!(page.len(), expected);
        found.extend(page);
    }
    assert_eq!(found, made);
}
