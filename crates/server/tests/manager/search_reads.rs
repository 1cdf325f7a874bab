//! The reads of a search: few calls of the store for a page, and none for a record that the page has read already.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use outcore_core::{Error, ErrorKind, ManagerReply, ManagerRequest, Result};
use outcore_server::manager::{DESCRIBING_ATTRIBUTE, Manager, User};
use outcore_server::store::{Guard, MemoryStore, Outcome, Store, Versioned, Write};

use crate::pool::*;

/// The calls that read, and how often each key was read alone or with others.
#[derive(Debug, Default)]
struct Reads {
    calls: Vec<&'static str>,
    keys: BTreeMap<Vec<u8>, usize>,
}

/// A store that records its reads.
#[derive(Clone)]
struct Noting {
    store: MemoryStore,
    reads: Rc<RefCell<Reads>>,
    /// Whether keys can only be read alone.
    is_damaged: Rc<Cell<bool>>,
}

impl Noting {
    fn note(&self, call: &'static str, keys: &[Vec<u8>]) {
        let mut reads = self.reads.borrow_mut();
        reads.calls.push(call);
        for key in keys {
            *reads.keys.entry(key.clone()).or_default() += 1;
        }
    }
}

impl Store for Noting {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.note("get", &[key.to_vec()]);
        self.store.get(key)
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Versioned>>> {
        self.note("get_many", keys);
        assert!(keys.is_sorted_by(|one, next| one < next), "sorted keys are read fastest");
        if self.is_damaged.get() {
            return Err(Error::new(ErrorKind::Corrupt, "need whole records, have a damaged one; mend it"));
        }
        self.store.get_many(keys)
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.note("range", &[]);
        self.store.range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        self.store.commit(guards, writes)
    }
}

/// A pool with described arrays in runs of 100, of which every second one is empty, and the notes of its reads.
fn pool(arrays: usize) -> (Manager<Noting>, Noting) {
    let store = Noting { store: MemoryStore::new(), reads: Rc::default(), is_damaged: Rc::default() };
    let mut manager = open(store.clone());
    add_servers(&mut manager, 1);
    for number in 0..arrays {
        let path = format!("run-{}/a{number}", number / 100);
        let description = format!(r#"{{"kind": "array", "dtype": "c16", "size": {}}}"#, number % 2);
        ask(&mut manager, &root(), make_directory(&path, 0o755)).unwrap();
        for (name, value) in [(DESCRIBING_ATTRIBUTE, description.as_str()), ("set", "x7")] {
            ask(&mut manager, &root(), set_extended(&path, name, Some(value.as_bytes()))).unwrap();
        }
    }
    (manager, store)
}

/// The number of hits of a page, and the reads for it.
fn page(manager: &mut Manager<Noting>, store: &Noting, who: &User, query: &str) -> Result<(usize, Reads)> {
    *store.reads.borrow_mut() = Reads::default();
    let request = ManagerRequest::Find { path: "".into(), query: query.into(), after: vec![], most: 1000 };
    match ask(manager, who, request)? {
        ManagerReply::Found { hits, .. } => Ok((hits.len(), store.reads.take())),
        other => panic!("answered by {other:?}"),
    }
}

fn count(reads: &Reads, call: &str) -> usize {
    reads.calls.iter().filter(|made| **made == call).count()
}

/// The index proposes all arrays.
const QUERY: &str = r#"attr.set = "x7" and dtype = "c16" and size = 0"#;

#[test]
fn a_page_of_a_search_is_few_reads_of_many_keys() {
    // The manager compares 250 records at once.
    for (arrays, lots) in [(1, 1), (250, 1), (501, 3)] {
        let (mut manager, store) = pool(arrays);
        let (hits, reads) = page(&mut manager, &store, &root(), QUERY).unwrap();
        assert_eq!(hits, arrays.div_ceil(2));
        // The rules of the index, and the root.
        assert_eq!(count(&reads, "get"), 2, "{:?}", reads.calls);
        // Files, new directories and their names, attributes, noted names of hits, and their names.
        assert_eq!(count(&reads, "get_many"), 6 * lots, "{:?}", reads.calls);
        let again: Vec<_> = reads.keys.iter().filter(|(_, count)| **count > 1).collect();
        assert!(again.is_empty(), "read twice: {again:?}");
        // Each array has a record and two attributes, and each hit a noted name and a name.
        let runs = arrays.div_ceil(100);
        assert_eq!(reads.keys.len(), 2 + 3 * arrays + 2 * hits + 3 * runs);
    }
}

#[test]
fn a_search_reads_no_more_than_its_user_may_see() {
    let (mut manager, store) = pool(200);
    let stranger = user(7, &[7]);
    ask(&mut manager, &root(), set_mode("run-1", 0o711)).unwrap();
    ask(&mut manager, &root(), set_mode("run-0/a4", 0o711)).unwrap();
    let (hits, reads) = page(&mut manager, &store, &stranger, QUERY).unwrap();
    assert_eq!(hits, 49);
    let attributes = reads.keys.keys().filter(|key| key[0] == b'x').count();
    assert_eq!(attributes, 2 * 99, "of the readable arrays of the other run");
}

/// A record with a flipped bit is an error if the search needs it, and none otherwise.
#[test]
fn a_damaged_record_fails_only_the_searches_that_need_it() {
    let (mut manager, store) = pool(40);
    let description = |number: usize| {
        let all = store.store.range(b"x", b"y", 1000).unwrap();
        let described = all.into_iter().filter(|(key, _)| key.ends_with(DESCRIBING_ATTRIBUTE.as_bytes()));
        described.map(|(key, _)| key).nth(number).unwrap()
    };
    let all = store.store.range(b"", b"\xff", 4000).unwrap();
    let place = |key: &[u8]| all.iter().position(|(found, _)| found == key).unwrap() as u64;
    let damaged = description(3);
    store.store.flip(place(&damaged), 0);
    // The condition on the name fails first.
    let query = r#"attr.set = "x7" and name = "a2" and size = 0"#;
    let (hits, reads) = page(&mut manager, &store, &root(), query).unwrap();
    assert_eq!(hits, 1);
    assert!(count(&reads, "get") > 2, "the records are read alone: {:?}", reads.calls);
    let error = page(&mut manager, &store, &root(), QUERY).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    store.store.flip(place(&damaged), 0);
    assert_eq!(page(&mut manager, &store, &root(), QUERY).unwrap().0, 20);
}

/// All pages of a search.
fn replies(
    manager: &mut Manager<Noting>,
    who: &User,
    (path, query): (&str, &str),
    most: u64,
) -> Vec<ManagerReply> {
    let (mut replies, mut after) = (Vec::new(), Vec::new());
    loop {
        let request = ManagerRequest::Find { path: path.into(), query: query.into(), after, most };
        let reply = ask(manager, who, request).unwrap();
        let next = match &reply {
            ManagerReply::Found { next, .. } => next.clone(),
            other => panic!("answered by {other:?}"),
        };
        replies.push(reply);
        let Some(next) = next else { return replies };
        after = next;
    }
}

#[test]
fn reading_ahead_changes_no_answer() {
    let (mut manager, store) = pool(260);
    let group = Some(&br#"{"kind": "group"}"#[..]);
    for request in [
        set_extended("run-0", DESCRIBING_ATTRIBUTE, group),
        set_extended("run-1", DESCRIBING_ATTRIBUTE, group),
        create("run-1/a120/deep/er/file"),
        set_extended("run-1/a120/deep/er/file", "set", Some(b"x7")),
        make_link("run-1/link", "a120"),
        rename("run-0/a7", "run-2/moved"),
        set_mode("run-1", 0o711),
        set_mode("run-0/a4", 0o711),
        set_mode("run-2/a222", 0o700),
    ] {
        ask(&mut manager, &root(), request).unwrap();
    }
    let mut pages = 0;
    for query in [
        "",
        QUERY,
        r#"attr.set = "x7""#,
        r#"not attr.set = "x7""#,
        r#"name ~ "a1*" and attr.set = "x7""#,
        r#"path ~ "run-?/a2*" or kind = "group""#,
        r#"group = "run-0" and size = 0"#,
        r#"not group ~ "*" and kind = "array""#,
        r#"kind = "link" or name = "file" or size = 1"#,
        r#"attr.a != 1 or attr.b != 1 or attr.c != 1 or attr.d != 1 or attr.set = "x7""#,
    ] {
        for path in ["", "run-0", "run-1/a120", "run-2/a222", "run-2/moved", "run-0/a4"] {
            for (who, most) in [(root(), 1000), (root(), 7), (user(7, &[7]), 1000), (user(7, &[7]), 90)] {
                if !who.is_root && matches!(path, "run-2/a222" | "run-0/a4") {
                    continue;
                }
                let ahead = replies(&mut manager, &who, (path, query), most);
                store.is_damaged.set(true);
                let alone = replies(&mut manager, &who, (path, query), most);
                store.is_damaged.set(false);
                assert_eq!(ahead, alone, "{query} {path} {most}");
                pages += ahead.len();
            }
        }
    }
    assert!(pages > 500, "{pages}");
}
