//! The manager's answers about handles, for checks of a pool.

use std::collections::BTreeMap;

use outcore_core::{ErrorKind, Handle, Known, ManagerReply, ManagerRequest};
use outcore_server::manager::{MAX_PAGE, Manager};
use outcore_server::store::{MemoryStore, Store};

use crate::pool::*;

fn known(reply: ManagerReply) -> (Vec<Known>, bool) {
    match reply {
        ManagerReply::Known { known, more } => (known, more),
        other => panic!("answered by {other:?}"),
    }
}

fn know<S: Store>(manager: &mut Manager<S>, handles: &[u64]) -> Vec<Known> {
    let handles = handles.iter().copied().map(Handle).collect();
    known(ask(manager, &root(), ManagerRequest::Know { handles }).unwrap()).0
}

fn paths<S: Store>(manager: &mut Manager<S>, handles: &[u64]) -> Vec<Option<String>> {
    let handles = handles.iter().copied().map(Handle).collect();
    match ask(manager, &root(), ManagerRequest::Paths { handles }).unwrap() {
        ManagerReply::Paths(paths) => paths,
        other => panic!("answered by {other:?}"),
    }
}

fn made(pool: &mut Manager<MemoryStore>, path: &str) -> u64 {
    opened(ask(pool, &root(), create(path)).unwrap()).inode.handle.0
}

#[test]
fn each_handle_is_what_it_is() {
    let mut pool = pool();
    let (file, removed, gone) = (made(&mut pool, "a/b/file"), made(&mut pool, "x"), made(&mut pool, "y"));
    ask(&mut pool, &root(), remove("x", false)).unwrap();
    let orphaned = handles(ask(&mut pool, &root(), remove("y", false)).unwrap());
    ask(&mut pool, &root(), orphans(&orphaned, 0, 9)).unwrap();
    let directory = inode(ask(&mut pool, &root(), stat("a/b")).unwrap());

    let found = know(&mut pool, &[file, removed, gone, 1 << 40, directory.handle.0, gone + 1]);
    assert!(matches!(&found[0], Known::Inode(inode) if inode.handle == Handle(file)));
    let Known::Removed(orphan) = &found[1] else { panic!("{found:?}") };
    key().verify_removal(&orphan.grant, Handle(removed), 2).unwrap();
    let Known::Gone(grant) = &found[2] else { panic!("{found:?}") };
    key().verify_removal(grant, Handle(gone), 2).unwrap();
    assert_eq!(found[3], Known::Unused, "no right to remove what a lost record may own");
    assert_eq!(found[4], Known::Inode(Box::new(directory)));
    assert_eq!(found[5], Known::Unused, "the next file gets it");

    let found = paths(&mut pool, &[file, 1, removed, gone, 1 << 40]);
    assert_eq!(found, [Some("a/b/file".into()), Some(String::new()), None, None, None]);
    ask(&mut pool, &root(), rename("a/b", "c")).unwrap();
    assert_eq!(paths(&mut pool, &[file]), [Some("c/file".into())]);
    ask(&mut pool, &root(), remove("c", true)).unwrap();
    assert_eq!(paths(&mut pool, &[file]), [None]);
}

#[test]
fn pages_of_files_are_all_of_them_removed_or_not() {
    let mut pool = pool();
    let mut expected = BTreeMap::new();
    for n in 0..50 {
        let path = format!("d{}/f{n}", n % 3);
        expected.insert(made(&mut pool, &path), n % 4 == 0);
        if n % 4 == 0 {
            ask(&mut pool, &root(), remove(&path, false)).unwrap();
        }
    }
    for most in [1, 7, 49, 1000] {
        let (mut found, mut after) = (BTreeMap::new(), 0);
        loop {
            let request = ManagerRequest::Files { after: Handle(after), most };
            let (page, more) = known(ask(&mut pool, &root(), request).unwrap());
            assert!(page.len() as u64 <= most);
            for each in page {
                let (inode, is_removed) = match each {
                    Known::Inode(inode) => (*inode, false),
                    Known::Removed(file) => (file.inode, true),
                    other => panic!("listed: {other:?}"),
                };
                assert!(inode.handle.0 > after);
                after = inode.handle.0;
                if inode.layout.is_some() {
                    found.insert(after, is_removed);
                }
            }
            if !more {
                break;
            }
        }
        assert_eq!(found, expected, "in pages of {most}");
    }
}

#[test]
fn only_root_looks_and_not_at_everything_at_once() {
    let mut pool = pool();
    let many = vec![Handle(1); MAX_PAGE as usize + 1];
    for request in [
        ManagerRequest::Know { handles: vec![Handle(1)] },
        ManagerRequest::Files { after: Handle(0), most: 1 },
        ManagerRequest::Paths { handles: vec![Handle(1)] },
    ] {
        assert_eq!(kind(ask(&mut pool, &user(5, &[5]), request)), ErrorKind::Denied);
    }
    for request in [ManagerRequest::Know { handles: many.clone() }, ManagerRequest::Paths { handles: many }] {
        assert_eq!(kind(ask(&mut pool, &root(), request)), ErrorKind::Invalid);
    }
}
