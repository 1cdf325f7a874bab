//! Requests answered together: one wait for the disk, and all of them succeed or none.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use outcore_core::{Error, ErrorKind, ManagerReply, ManagerRequest, Result};
use outcore_server::manager::Asked;
use outcore_server::store::{Guard, MemoryStore, Outcome, SqliteStore, Store, Versioned, Write};

use crate::pool::*;

/// A store that records its calls, and whose groups fail on demand. A failed group is undone.
struct Noted {
    store: MemoryStore,
    before: Option<Vec<(Vec<u8>, Versioned)>>,
    notes: Rc<RefCell<Vec<&'static str>>>,
    fails: Rc<RefCell<bool>>,
}

impl Store for Noted {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.store.get(key)
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.store.range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        self.notes.borrow_mut().push("commit");
        self.store.commit(guards, writes)
    }

    fn begin_group(&mut self) -> Result<()> {
        self.notes.borrow_mut().push("begin");
        self.before = Some(self.store.range(b"", b"\xff", 4096)?);
        Ok(())
    }

    fn end_group(&mut self) -> Result<()> {
        self.notes.borrow_mut().push("end");
        if !*self.fails.borrow() {
            return Ok(());
        }
        for (key, _) in self.store.range(b"", b"\xff", 4096)? {
            let _ = self.store.commit(&[], &[Write { key, value: None }])?;
        }
        for (key, found) in self.before.take().unwrap() {
            let _ = self.store.commit(&[], &[Write { key, value: Some(found.value) }])?;
        }
        Err(Error::new(ErrorKind::DiskFull, "need room, have none; make some"))
    }
}

fn batch(requests: impl IntoIterator<Item = ManagerRequest>) -> Vec<Asked> {
    requests.into_iter().map(|request| Asked { who: root(), origin: None, request }).collect()
}

#[test]
fn changes_wait_for_the_disk_together_and_reading_does_not() {
    let notes: Rc<RefCell<Vec<&str>>> = Rc::default();
    let store = Noted { store: MemoryStore::new(), before: None, notes: notes.clone(), fails: Rc::default() };
    let mut manager = open(store);
    add_servers(&mut manager, 2);
    ask(&mut manager, &root(), create("first")).unwrap();
    let file = opened(ask(&mut manager, &root(), create("locked")).unwrap()).inode.handle;
    let mut asked = |requests: Vec<ManagerRequest>| {
        notes.borrow_mut().clear();
        let replies = manager.handle_many(at(1), batch(requests));
        (replies, notes.borrow().clone())
    };
    let (replies, seen) = asked(vec![create("a"), create("a"), stat("a"), create("d/b"), rename("a", "c")]);
    let done: Vec<bool> = replies.iter().map(|reply| !matches!(reply, ManagerReply::Failed(_))).collect();
    assert_eq!(done, [true, false, true, true, true], "in turn");
    assert_eq!(seen, ["begin", "commit", "commit", "commit", "end"]);
    assert_eq!(asked(vec![stat("c"), list("", "", 9)]).1, Vec::<&str>::new());
    assert_eq!(asked(vec![stat("c"), create("e")]).1, ["begin", "commit", "end"]);
    // The first lease is noted in the store, and the end of the last one. Locks are in memory.
    let renew = ManagerRequest::RenewLease { lease: 1 };
    assert_eq!(asked(vec![renew.clone()]).1, ["commit"]);
    let lock = ManagerRequest::SetLock { wish: lock(file, 1) };
    let (replies, seen) = asked(vec![renew, lock]);
    assert_eq!(replies[1], ManagerReply::Locked(None));
    assert_eq!(seen, Vec::<&str>::new());
    assert_eq!(asked(vec![ManagerRequest::EndLease { lease: 1 }]).1, ["commit"]);
}

#[test]
fn if_the_wait_fails_all_have_failed_and_no_handle_is_given_twice() {
    let fails: Rc<RefCell<bool>> = Rc::default();
    let store = MemoryStore::new();
    let noted = Noted { store: store.clone(), before: None, notes: Rc::default(), fails: fails.clone() };
    let mut manager = open(noted);
    add_servers(&mut manager, 2);
    // The manager reserves its handles within the group; if the group fails, they are free again.
    *fails.borrow_mut() = true;
    let lost = manager.handle_many(at(1), batch([create("a"), create("b"), stat("a")]));
    assert_eq!(lost.len(), 3);
    for reply in lost {
        assert!(matches!(reply, ManagerReply::Failed(error) if error.kind == ErrorKind::DiskFull));
    }
    *fails.borrow_mut() = false;
    assert!(tree(&mut manager).is_empty());
    let mut other = open(store);
    let mut given = BTreeSet::new();
    for i in 0..5 {
        assert!(
            given.insert(opened(ask(&mut other, &root(), create(&format!("o{i}"))).unwrap()).inode.handle)
        );
        assert!(
            given.insert(opened(ask(&mut manager, &root(), create(&format!("m{i}"))).unwrap()).inode.handle)
        );
    }
}

#[test]
fn leases_that_a_failed_commit_noted_are_noted_again() {
    let fails: Rc<RefCell<bool>> = Rc::default();
    let store = MemoryStore::new();
    let noted = Noted { store: store.clone(), before: None, notes: Rc::default(), fails: fails.clone() };
    let mut manager = open(noted);
    add_servers(&mut manager, 2);
    let file = opened(ask(&mut manager, &root(), create("a")).unwrap()).inode.handle;
    let renew = |lease| ManagerRequest::RenewLease { lease };
    *fails.borrow_mut() = true;
    let _ = manager.handle_many(at(1), batch([create("b"), renew(1)]));
    *fails.borrow_mut() = false;
    ask(&mut manager, &root(), renew(1)).unwrap();
    let mut next = open(store);
    ask(&mut next, &root(), renew(2)).unwrap();
    let refused = ask(&mut next, &root(), ManagerRequest::SetLock { wish: lock(file, 2) });
    assert_eq!(kind(refused), ErrorKind::Busy, "mounts may reclaim locks");
}

#[test]
fn what_a_batch_did_in_sqlite_is_there_for_others() {
    let directory = tempfile::tempdir().unwrap();
    let store = || SqliteStore::open(directory.path().join("metadata")).unwrap();
    let (mut one, mut other) = (open(store()), open(store()));
    add_servers(&mut one, 3);
    let replies = one.handle_many(at(1), batch((0..50).map(|i| create(&format!("d/{i:02}")))));
    assert!(replies.iter().all(|reply| matches!(reply, ManagerReply::Opened(_))), "{replies:?}");
    assert_eq!(tree(&mut other).len(), 51);
    let replies = other.handle_many(at(2), batch([remove("d", true), make_directory("d", 0o755)]));
    assert_eq!(handles(replies[0].clone()).len(), 50);
    assert_eq!(tree(&mut one).len(), 1);
}
