//! Several managers that use one store concurrently.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::thread;

use outcore_core::{ErrorKind, Handle, ManagerReply, ManagerRequest, Result};
use outcore_server::manager::Manager;
use outcore_server::store::{Guard, MemoryStore, Outcome, SqliteStore, Store, Versioned, Write};

use crate::pool::*;

type Meanwhile = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

/// A store that runs an action just before its next commit.
#[derive(Clone)]
struct Interrupted {
    store: MemoryStore,
    meanwhile: Meanwhile,
}

impl Store for Interrupted {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.store.get(key)
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.store.range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        let meanwhile = self.meanwhile.borrow_mut().take();
        if let Some(meanwhile) = meanwhile {
            meanwhile();
        }
        self.store.commit(guards, writes)
    }
}

/// After `before`, sends `request` to one manager, and `meanwhile` to another one just before the first one's
/// commit. Returns both answers, and a manager to inspect the result.
fn race(
    before: &[ManagerRequest],
    request: ManagerRequest,
    meanwhile: ManagerRequest,
) -> (Result<ManagerReply>, Result<ManagerReply>, Manager<MemoryStore>) {
    let store = MemoryStore::new();
    let mut other = open(store.clone());
    add_servers(&mut other, 2);
    for request in before {
        ask(&mut other, &root(), request.clone()).unwrap();
    }
    let interrupted = Interrupted { store: store.clone(), meanwhile: Rc::default() };
    let mut manager = open(interrupted.clone());
    // The manager reserves its handles first, so the interrupted commit is the request's own.
    ask(&mut manager, &root(), make_directory("warm", 0o755)).unwrap();
    let answer = Rc::new(RefCell::new(None));
    let noted = answer.clone();
    let happens = move || *noted.borrow_mut() = Some(ask(&mut other, &root(), meanwhile));
    *interrupted.meanwhile.borrow_mut() = Some(Box::new(happens));
    let first = ask(&mut manager, &root(), request);
    let second = answer.borrow_mut().take().expect("the request made no commit");
    let mut looker = open(store);
    ask(&mut looker, &root(), remove("warm", true)).unwrap();
    (first, second, looker)
}

fn paths(manager: &mut Manager<MemoryStore>) -> Vec<String> {
    tree(manager).into_keys().collect()
}

#[test]
fn a_directory_is_not_removed_under_a_new_file() {
    let made = [make_directory("d", 0o755)];
    let (first, second, mut pool) = race(&made, remove("d", false), create("d/f"));
    assert_eq!((kind(first), second.is_ok()), (ErrorKind::Exists, true));
    assert_eq!(paths(&mut pool), ["d", "d/f"]);
    let (first, second, mut pool) = race(&made, create("d/f"), remove("d", false));
    assert!(first.is_ok() && second.is_ok());
    assert_eq!(paths(&mut pool), ["d", "d/f"], "made again on the way");
}

#[test]
fn an_empty_directory_is_not_replaced_with_something_in_it() {
    let made = [make_directory("d", 0o755), make_directory("e", 0o755)];
    let (first, second, mut pool) = race(&made, rename("e", "d"), create("d/f"));
    assert_eq!((kind(first), second.is_ok()), (ErrorKind::Exists, true));
    assert_eq!(paths(&mut pool), ["d", "d/f", "e"]);
}

#[test]
fn what_comes_into_a_directory_that_is_replaced_is_in_one_of_both() {
    let made = [create("d/old"), create("new/f")];
    let (first, second, mut pool) = race(&made, replace("new", "d"), create("d/late"));
    assert_eq!((handles(first.unwrap()).len(), second.is_ok()), (2, true), "it was there before");
    assert_eq!(paths(&mut pool), ["d", "d/f"]);
    let (first, second, mut pool) = race(&made, create("d/late"), replace("new", "d"));
    assert_eq!((first.is_ok(), handles(second.unwrap()).len()), (true, 1));
    assert_eq!(paths(&mut pool), ["d", "d/f", "d/late"]);
}

#[test]
fn a_name_is_given_once() {
    let (first, second, mut pool) = race(&[], create("f"), create("f"));
    assert_eq!((kind(first), second.is_ok()), (ErrorKind::Exists, true));
    assert_eq!(paths(&mut pool), ["f"]);
    let made = [create("a"), create("b")];
    let (first, second, mut pool) = race(&made, rename("a", "c"), rename("b", "c"));
    let replaced = handles(first.unwrap());
    assert_eq!((replaced.len(), handles(second.unwrap()).len()), (1, 0), "the second replaced the first");
    assert_eq!(paths(&mut pool), ["c"]);
}

#[test]
fn directories_do_not_end_up_in_each_other() {
    // Neither request changes a directory that the other one changes. The first request is repeated, and creates
    // the missing directories above its target again.
    let made = [make_directory("p/a/x", 0o755), make_directory("q/b/y", 0o755)];
    let (first, second, mut pool) = race(&made, rename("p/a", "q/b/y/a"), rename("q/b", "p/a/x/b"));
    assert!(first.is_ok() && second.is_ok());
    let whole = "q/b/y/a/x/b/y";
    let mut expected = vec!["p"];
    expected.extend((1..=whole.len()).step_by(2).map(|end| &whole[..end]));
    assert_eq!(paths(&mut pool), expected);
}

#[test]
fn what_is_removed_is_not_renamed_or_changed() {
    let made = [create("f")];
    for request in [rename("f", "g"), set_mode("f", 0o600), set_extended("f", "a", Some(b"1"))] {
        let (first, second, mut pool) = race(&made, request, remove("f", false));
        assert_eq!((kind(first), second.is_ok()), (ErrorKind::NotFound, true));
        assert_eq!(paths(&mut pool), Vec::<String>::new());
    }
    let (first, second, _) = race(&made, remove("f", false), remove("f", false));
    assert_eq!((kind(first), second.is_ok()), (ErrorKind::NotFound, true), "an orphan has one remover");
}

#[test]
fn changes_of_one_file_are_not_lost() {
    let made = [create("f")];
    let (first, second, mut pool) = race(&made, set_mode("f", 0o600), set_owner("f", Some(5), Some(6)));
    assert!(first.is_ok() && second.is_ok());
    let found = &tree(&mut pool)["f"];
    assert_eq!((found.mode, found.owner, found.group), (0o600, 5, 6));
}

#[test]
fn what_comes_into_a_directory_that_is_removed_is_not_lost() {
    let made = [make_directory("d/e", 0o755)];
    let (first, second, mut pool) = race(&made, remove("d", true), create("d/e/f"));
    assert!(first.is_ok());
    let file = opened(second.unwrap()).inode.handle;
    assert_eq!(paths(&mut pool), Vec::<String>::new());
    assert_eq!(handles(ask(&mut pool, &root(), orphans(&[], 0, 9)).unwrap()), [file]);
}

/// A store in which every commit conflicts.
struct Unlucky(MemoryStore);

impl Store for Unlucky {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.0.get(key)
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.0.range(from, until, most)
    }

    fn commit(&mut self, _: &[Guard], _: &[Write]) -> Result<Outcome> {
        Ok(Outcome::Conflict)
    }
}

#[test]
fn a_request_is_not_tried_for_ever() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 1);
    ask(&mut manager, &root(), create("f")).unwrap();
    let mut unlucky = open(Unlucky(store));
    for request in [create("g"), set_mode("f", 0o600)] {
        assert_eq!(kind(ask(&mut unlucky, &root(), request)), ErrorKind::Busy);
    }
}

/// Runs several managers, each in a thread, that create, move and remove entries in the same few directories.
fn crowd<S: Store>(open_store: &(dyn Fn() -> S + Sync), each: u64) {
    let mut first = open(open_store());
    add_servers(&mut first, 3);
    let made: Vec<Vec<Handle>> = thread::scope(|scope| {
        let threads: Vec<_> = (1..=3_u64)
            .map(|seed| {
                scope.spawn(move || {
                    let mut manager = open(open_store());
                    let mut state = seed;
                    let mut made = Vec::new();
                    for _ in 0..each {
                        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(seed);
                        let pick =
                            |shift: u32| ["a", "b", "a/b", "b/a", "a/a/b"][(state >> shift) as usize % 5];
                        let request = match (state >> 60) % 8 {
                            0..=2 => create(&format!("{}/f", pick(33))),
                            3..=4 => rename(pick(33), pick(40)),
                            5 => replace(pick(33), pick(40)),
                            6 => remove(pick(33), true),
                            _ => remove(pick(33), false),
                        };
                        if let Ok(ManagerReply::Opened(opened)) = ask(&mut manager, &root(), request) {
                            made.push(opened.inode.handle);
                        }
                    }
                    made
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let made: Vec<Handle> = made.into_iter().flatten().collect();
    let distinct: BTreeSet<Handle> = made.iter().copied().collect();
    assert_eq!(distinct.len(), made.len(), "a handle was given twice");
    assert!(made.len() as u64 > each / 10, "most requests did nothing");

    let mut without: Vec<Handle> = handles(ask(&mut first, &root(), orphans(&[], 0, 1000)).unwrap());
    let found = tree(&mut first);
    without.extend(found.values().filter(|inode| inode.layout.is_some()).map(|inode| inode.handle));
    let all: BTreeSet<Handle> = without.iter().copied().collect();
    assert_eq!(all.len(), without.len(), "a file has two names, or is an orphan with a name");
    assert_eq!(all, distinct, "every file has a name or is an orphan");
    let store = open_store();
    let count = |letter: u8| store.range(&[letter], &[letter + 1], 4096).unwrap().len();
    assert_eq!(count(b'i'), found.len() + 1, "records that no path leads to");
    assert_eq!((count(b'n'), count(b't')), (found.len(), 0));
}

#[test]
fn a_crowd_of_managers_leaves_a_sound_pool_in_memory() {
    let store = MemoryStore::new();
    crowd(&|| store.clone(), 1000);
}

#[test]
fn a_crowd_of_managers_leaves_a_sound_pool_in_sqlite() {
    let root = tempfile::tempdir().unwrap();
    crowd(&|| SqliteStore::open(root.path().join("metadata")).unwrap(), 150);
}
