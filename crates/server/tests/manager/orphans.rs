//! Files without a name: none is forgotten before its data files are removed, whatever happens in between.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use outcore_core::{Error, ErrorKind, Handle, Hints, ManagerReply, ManagerRequest, Result};
use outcore_server::manager::Manager;
use outcore_server::store::{Guard, MAX_RANGE, MemoryStore, Outcome, Store, Versioned, Write};

use crate::pool::*;

fn count<S: Store>(store: &S, letter: u8) -> usize {
    store.range(&[letter], &[letter + 1], MAX_RANGE).unwrap().len()
}

/// A directory with 1500 files, some in subdirectories, and extended attributes.
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

/// Removes orphans like a client: removes data files, reports that, and continues until none are left.
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

/// A store whose machine stops after a number of commits.
struct Stops {
    store: MemoryStore,
    commits: Rc<Cell<usize>>,
}

impl Store for Stops {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.store.get(key)
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.store.range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        let Some(left) = self.commits.get().checked_sub(1) else {
            return Err(Error::new(ErrorKind::Io, "need a machine, have none; start it again"));
        };
        self.commits.set(left);
        self.store.commit(guards, writes)
    }
}

fn files(manager: &mut Manager<MemoryStore>) -> BTreeMap<String, Handle> {
    let all = tree(manager).into_iter().filter(|(_, inode)| inode.layout.is_some());
    all.map(|(path, inode)| (path, inode.handle)).collect()
}

/// More files than one commit could rename. Wherever the manager stops, all of them have their new names, or none
/// has.
#[test]
fn a_directory_takes_the_place_of_another_by_one_commit() {
    let mut seen = vec![];
    for commits in 1.. {
        let store = MemoryStore::new();
        let mut manager = open(store.clone());
        add_servers(&mut manager, 2);
        for i in 0..120 {
            ask(&mut manager, &root(), create(&format!("new/{i}/f"))).unwrap();
            ask(&mut manager, &root(), create(&format!("d/{}/f{i}", i % 7))).unwrap();
        }
        let before = files(&mut manager);
        let in_directory = |name: &str| -> BTreeMap<String, Handle> {
            let own = before.iter().filter_map(|(path, &handle)| Some((path.strip_prefix(name)?, handle)));
            own.map(|(path, handle)| (format!("d{path}"), handle)).collect()
        };
        let (old, new) = (in_directory("d"), in_directory("new"));
        assert_eq!((old.len(), new.len()), (120, 120));

        let mut stops = open(Stops { store: store.clone(), commits: Rc::new(Cell::new(commits)) });
        let is_answered = ask(&mut stops, &root(), replace("new", "d")).is_ok();
        drop(stops);
        let mut manager = open(store.clone());
        let found = files(&mut manager);
        let is_new = found == new;
        assert!(is_new || found == before, "after {commits} commits");
        seen.push(is_new);
        let first = ask(&mut manager, &root(), orphans(&[], 0, 1000)).unwrap();
        let mut removed: Vec<Handle> = old.into_values().collect();
        removed.sort();
        assert_eq!(clear(&mut manager, first), if is_new { removed } else { vec![] });
        assert_eq!(count(&store, b'o') + count(&store, b't'), 0);
        if is_answered {
            break;
        }
    }
    // The first commit reserves handles, the second renames, and the others empty the replaced directory.
    assert_eq!(seen[..2], [false, true]);
    assert!(seen.len() > 5 && seen[1..].iter().all(|is_new| *is_new), "{seen:?}");
}

/// Clients cannot read the default layout in order to set it again.
#[test]
fn what_takes_the_place_of_a_directory_takes_over_its_default_layout() {
    let mut manager = pool();
    for path in ["new/f", "d/f"] {
        ask(&mut manager, &root(), create(path)).unwrap();
    }
    let hints = Hints { stripe_unit_bytes: Some(192 << 10), ..Hints::default() };
    ask(&mut manager, &root(), ManagerRequest::SetDefaultLayout { path: "d".into(), hints }).unwrap();
    ask(&mut manager, &root(), replace("new", "d")).unwrap();
    let made = opened(ask(&mut manager, &root(), create("d/g")).unwrap()).inode;
    assert_eq!(made.layout.unwrap().stripes.unit_bytes(), 192 << 10);
}

#[test]
fn what_is_refused_leaves_both_directories_as_they_were() {
    let (mut pool, own, other) = (pool(), user(1, &[1]), user(2, &[2]));
    for path in ["new/f", "new/g"] {
        ask(&mut pool, &own, create(path)).unwrap();
    }
    ask(&mut pool, &own, make_directory("d/e", 0o777)).unwrap();
    ask(&mut pool, &own, create("file")).unwrap();
    ask(&mut pool, &other, create("d/e/f")).unwrap();
    ask(&mut pool, &other, make_directory("d/e/theirs", 0o755)).unwrap();
    ask(&mut pool, &other, create("d/e/theirs/f")).unwrap();
    let before = tree(&mut pool);
    for (from, to, expected) in [
        ("none", "d", ErrorKind::NotFound),
        ("new/none", "d", ErrorKind::NotFound),
        ("file", "d", ErrorKind::Exists),
        ("new", "file", ErrorKind::Exists),
        // A stranger may not remove its entries.
        ("new", "d", ErrorKind::Denied),
    ] {
        assert_eq!(kind(ask(&mut pool, &own, replace(from, to))), expected, "{from} to {to}");
        assert_eq!(tree(&mut pool), before);
    }
    assert_eq!(handles(ask(&mut pool, &root(), orphans(&[], 0, 9)).unwrap()), []);
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
        key().verify_removal(&files[0].grant, b.handle, 2).unwrap();
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

/// Other orphans are those of requests that may be under way.
#[test]
fn a_removed_name_has_no_orphans_but_its_own() {
    let store = MemoryStore::new();
    let mut manager = open(store.clone());
    add_servers(&mut manager, 2);
    for path in ["f", "g", "all/h"] {
        ask(&mut manager, &root(), create(path)).unwrap();
    }
    for (path, attributes) in [("d", 0), ("e", 50), ("many", 130)] {
        ask(&mut manager, &root(), make_directory(path, 0o755)).unwrap();
        for i in 0..attributes {
            ask(&mut manager, &root(), set_extended(path, &format!("a{i}"), Some(b"v"))).unwrap();
        }
    }
    let f = handles(ask(&mut manager, &root(), remove("f", false)).unwrap());
    let directories = count(&store, b'i');
    for path in ["d", "e", "many"] {
        assert_eq!(handles(ask(&mut manager, &root(), remove(path, false)).unwrap()), []);
    }
    assert_eq!(count(&store, b'i'), directories - 3);
    let g = handles(ask(&mut manager, &root(), remove("g", false)).unwrap());
    assert_eq!((f.len(), g.len()), (1, 1));
    assert_ne!(f, g);
    let all = handles(ask(&mut manager, &root(), remove("all", true)).unwrap());
    assert!(all.len() == 3 && all.contains(&f[0]) && all.contains(&g[0]));
    assert_eq!(count(&store, b't') + count(&store, b'x'), 0, "nothing of the directories is left");
}
