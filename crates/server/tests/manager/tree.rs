//! The check finds inconsistent records of names, files and directories, and every walk ends.

use outcore_core::{ErrorKind, Handle, ManagerReply, ManagerRequest};
use outcore_server::manager::Manager;
use outcore_server::store::conformance::{delete, put};
use outcore_server::store::{MemoryStore, Store};

use crate::pool::*;

/// All findings, page by page.
fn check(manager: &mut Manager<MemoryStore>) -> Vec<(u64, String)> {
    let (mut found, mut after) = (Vec::new(), Vec::new());
    loop {
        let request = ManagerRequest::Check { after, most: 3 };
        match ask(manager, &root(), request).unwrap() {
            ManagerReply::Checked { odd, next } => {
                found.extend(odd.into_iter().map(|odd| (odd.handle.0, odd.what)));
                let Some(next) = next else { return found };
                after = next;
            }
            other => panic!("answered by {other:?}"),
        }
    }
}

struct Tree {
    store: MemoryStore,
    manager: Manager<MemoryStore>,
    /// The handles of `d`, `d/e` and the file `d/e/f`.
    handles: [u64; 3],
}

fn tree() -> Tree {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 2);
    ask(&mut manager, &root(), create("d/e/f")).unwrap();
    ask(&mut manager, &root(), create("other")).unwrap();
    ask(&mut manager, &root(), set_extended("other", "a", Some(b"b"))).unwrap();
    let handles =
        ["d", "d/e", "d/e/f"].map(|path| inode(ask(&mut manager, &root(), stat(path)).unwrap()).handle.0);
    Tree { store, manager, handles }
}

fn key_of(letter: u8, handle: u64, name: &str) -> Vec<u8> {
    [&[letter][..], &handle.to_be_bytes(), name.as_bytes()].concat()
}

/// Changes a record as a bug would, with a correct checksum.
fn change(store: &MemoryStore, key: &[u8], change: impl FnOnce(&mut Vec<u8>)) {
    let mut value = store.get(key).unwrap().unwrap().value;
    change(&mut value);
    let _ = store.clone().commit(&[], &[put(key, &value)]).unwrap();
}

fn set_parent(store: &MemoryStore, handle: u64, parent: u64) {
    // The parent follows the format byte and the handle: `docs/format.md`.
    change(store, &key_of(b'i', handle, ""), |value| value[9..17].copy_from_slice(&parent.to_le_bytes()));
}

#[test]
fn a_whole_tree_has_no_findings_also_while_it_is_removed() {
    let mut tree = tree();
    assert_eq!(check(&mut tree.manager), []);
    ask(&mut tree.manager, &root(), rename("d/e", "e")).unwrap();
    ask(&mut tree.manager, &root(), remove("other", false)).unwrap();
    assert_eq!(check(&mut tree.manager), []);
    ask(&mut tree.manager, &root(), remove("e", true)).unwrap();
    assert_eq!(check(&mut tree.manager), []);
    let request = ManagerRequest::Check { after: vec![], most: 9 };
    assert_eq!(kind(ask(&mut tree.manager, &user(1, &[1]), request)), ErrorKind::Denied);
}

#[test]
fn directories_within_themselves_are_found() {
    let mut tree = tree();
    let [d, e, _] = tree.handles;
    set_parent(&tree.store, d, e);
    let found = check(&mut tree.manager);
    assert!(found.contains(&(d, "no way leads from it to the root".into())), "{found:?}");
    assert!(found.contains(&(e, "no way leads from it to the root".into())), "{found:?}");
    assert!(
        found.contains(&(1, format!("its name \"d\" is for file {d}, which is in directory {e}"))),
        "{found:?}"
    );
}

#[test]
fn records_that_are_lost_are_found() {
    let Tree { store, mut manager, handles: [d, e, f] } = tree();
    let _ = store.clone().commit(&[], &[delete(&key_of(b'i', d, ""))]).unwrap();
    let found = check(&mut manager);
    assert!(found.contains(&(e, format!("it is in directory {d}, which has no record"))), "{found:?}");
    assert!(found.contains(&(d, "it has no record, and the name \"e\" is in it".into())), "{found:?}");
    let found = found.iter().filter(|(handle, _)| *handle == 1).map(|(_, what)| what.as_str());
    assert_eq!(found.collect::<Vec<_>>(), [format!("its name \"d\" is for file {d}, which has no record")]);

    let Tree { store, mut manager, .. } = tree();
    set_parent(&store, e, f);
    assert!(check(&mut manager).contains(&(e, format!("it is in {f}, which is a file"))));
}

#[test]
fn the_record_of_another_file_is_found_and_ends_a_list() {
    let Tree { store, mut manager, handles: [_, e, f] } = tree();
    change(&store, &key_of(b'i', f, ""), |value| value[1..9].copy_from_slice(&e.to_le_bytes()));
    assert!(check(&mut manager).contains(&(f, format!("its record is that of file {e}"))));
    let files = ManagerRequest::Files { after: Handle(0), most: 1000 };
    assert_eq!(kind(ask(&mut manager, &root(), files)), ErrorKind::Corrupt);
}

#[test]
fn a_flipped_bit_ends_the_check_with_an_error_that_names_the_record() {
    for record in 0..12 {
        for bit in [0, 77, 1001] {
            let mut tree = tree();
            let Some(key) = tree.store.flip(record, bit) else { continue };
            let request = ManagerRequest::Check { after: vec![], most: 1000 };
            let error = ask(&mut tree.manager, &root(), request).unwrap_err();
            assert_eq!(error.kind, ErrorKind::Corrupt);
            assert!(error.message.contains(&key.escape_ascii().to_string()), "{error}");
        }
    }
}
