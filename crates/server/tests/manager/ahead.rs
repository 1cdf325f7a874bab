//! Reads ahead for a group of requests: their number is bounded, and an error of theirs fails no request.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use outcore_core::{Error, ErrorKind, ManagerReply, Result};
use outcore_server::manager::{Asked, Manager};
use outcore_server::store::{Guard, MemoryStore, Outcome, Store, Versioned, Write};

use crate::pool::*;

/// A store like one in another process. It records how many keys each read of several had.
#[derive(Clone)]
struct Remote {
    store: MemoryStore,
    reads: Rc<RefCell<Vec<usize>>>,
    /// Whether keys can only be read alone.
    is_damaged: Rc<Cell<bool>>,
}

impl Store for Remote {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.store.get(key)
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Versioned>>> {
        self.reads.borrow_mut().push(keys.len());
        if self.is_damaged.get() {
            return Err(Error::new(ErrorKind::Lost, "need an answer of the database, have none"));
        }
        self.store.get_many(keys)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.store.range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        self.store.commit(guards, writes)
    }
}

/// A pool with a file `a/b`, and its store.
fn pool() -> (Manager<Remote>, Remote) {
    let store = Remote { store: MemoryStore::new(), reads: Rc::default(), is_damaged: Rc::default() };
    let mut manager = open(store.clone());
    add_servers(&mut manager, 1);
    ask(&mut manager, &root(), create("a/b")).unwrap();
    store.reads.borrow_mut().clear();
    (manager, store)
}

/// Creates files `a/0`, `a/1`, ... in one group.
fn create_many(manager: &mut Manager<Remote>, files: usize) -> Vec<ManagerReply> {
    let asked = |file| Asked { who: root(), origin: None, request: create(&format!("a/{file}")) };
    manager.handle_many(at(1), (0..files).map(asked).collect())
}

#[test]
fn at_most_512_paths_are_read_ahead() {
    for (files, ahead) in [(3, 3), (512, 512), (700, 512)] {
        let (mut manager, store) = pool();
        let replies = create_many(&mut manager, files);
        // The root and the name `a` in it; then `a`, and the names in it.
        assert_eq!(store.reads.borrow()[..2], [2, 1 + ahead], "{files} files");
        assert!(replies.iter().all(|reply| matches!(reply, ManagerReply::Opened(_))), "{replies:?}");
        assert_eq!(tree(&mut manager).len(), 2 + files);
    }
}

#[test]
fn an_error_of_a_read_ahead_fails_no_request_that_reads_well() {
    let (mut manager, store) = pool();
    store.is_damaged.set(true);
    let replies = create_many(&mut manager, 3);
    assert_eq!(*store.reads.borrow(), [2]);
    assert!(replies.iter().all(|reply| matches!(reply, ManagerReply::Opened(_))), "{replies:?}");
}
