//! The requirements on every [`Store`], as code: one call of [`store`] tests an implementation.

use std::collections::BTreeMap;
use std::thread;

use outcore_core::ErrorKind;

use super::{
    Guard, MAX_COMMIT_BYTES, MAX_KEY_BYTES, MAX_OPERATIONS, MAX_RANGE, MAX_VALUE_BYTES, Outcome, Store,
    Versioned, Write,
};

/// A guard: the key must have this version, or no value.
pub fn guard(key: &[u8], version: Option<u64>) -> Guard {
    Guard { key: key.to_vec(), version }
}

/// A write that sets a key to a value.
pub fn put(key: &[u8], value: &[u8]) -> Write {
    Write { key: key.to_vec(), value: Some(value.to_vec()) }
}

/// A write that deletes a key.
pub fn delete(key: &[u8]) -> Write {
    Write { key: key.to_vec(), value: None }
}

fn done<S: Store>(store: &mut S, guards: &[Guard], writes: &[Write]) -> u64 {
    match store.commit(guards, writes).expect("commit") {
        Outcome::Done(version) => version,
        Outcome::Conflict => panic!("a conflict where every guard holds: {guards:?}"),
    }
}

fn refused<S: Store>(store: &mut S, guards: &[Guard], writes: &[Write]) {
    assert_eq!(store.commit(guards, writes).expect("commit"), Outcome::Conflict, "{guards:?}");
}

fn keys<S: Store>(store: &S, from: &[u8], until: &[u8], most: usize) -> Vec<Vec<u8>> {
    store.range(from, until, most).expect("range").into_iter().map(|(key, _)| key).collect()
}

/// Checks a store. Each call of `open` returns another handle of the same store, which is empty at first.
///
/// # Panics
/// If the store violates a requirement.
pub fn store<S: Store + Send>(open: &mut dyn FnMut() -> S) {
    let mut one = open();
    assert_eq!(keys(&one, b"", &[0xff; 4], 10), Vec::<Vec<u8>>::new(), "not empty at first");
    guards_and_versions(&mut one, &open());
    ranges(&mut one);
    many_keys(&mut one, &mut open());
    limits(&mut one);
    groups(&mut one, &open());
    leases(&mut one);
    a_random_walk(&mut one);
    handles_at_once(&mut [open(), open(), open()]);
}

fn guards_and_versions<S: Store>(one: &mut S, other: &S) {
    assert_eq!(one.get(b"a").expect("get"), None);
    let first = done(one, &[guard(b"a", None)], &[put(b"a", b"1"), put(b"b", b"")]);
    assert!(first >= 1);
    let a = Some(Versioned { value: b"1".to_vec(), version: first });
    assert_eq!(one.get(b"a").expect("get"), a);
    assert_eq!(other.get(b"a").expect("get"), a, "another handle sees it");
    assert_eq!(one.get(b"b").expect("get").expect("an empty value is a value").value, b"");

    refused(one, &[guard(b"a", None)], &[put(b"c", b"")]);
    refused(one, &[guard(b"a", Some(first)), guard(b"b", Some(first + 1))], &[put(b"c", b"")]);
    refused(one, &[guard(b"none", Some(first))], &[put(b"c", b"")]);
    assert_eq!(one.get(b"c").expect("get"), None, "a refused commit writes nothing");

    let second = done(one, &[guard(b"a", Some(first))], &[put(b"a", b"1")]);
    assert!(second > first, "versions grow");
    refused(one, &[guard(b"a", Some(first))], &[delete(b"a")]);
    let third = done(one, &[guard(b"a", Some(second))], &[delete(b"a"), put(b"b", b"2")]);
    assert_eq!(other.get(b"a").expect("get"), None);
    done(one, &[guard(b"a", None)], &[put(b"a", b"1")]);
    refused(one, &[guard(b"a", Some(second))], &[delete(b"a")]);
    assert_eq!(one.get(b"b").expect("get").expect("written").version, third);
    done(one, &[], &[delete(b"a"), delete(b"b"), delete(b"never there")]);
    done(one, &[guard(b"a", None)], &[]);
}

fn ranges<S: Store>(one: &mut S) {
    let sorted: [&[u8]; 7] = [b"\0", b"\0\0", b"\0\xff", b"k", b"k\0", b"k\x7f", b"k\xff\xff"];
    let writes: Vec<Write> = sorted.iter().rev().map(|key| put(key, key)).collect();
    done(one, &[], &writes);
    assert_eq!(keys(one, b"\0", b"\xff", 100), sorted, "in the order of their bytes, the shorter first");
    assert_eq!(keys(one, b"\0\0", b"k", 100), [b"\0\0".to_vec(), b"\0\xff".to_vec()], "without the end");
    assert_eq!(keys(one, b"k\0", b"\xff", 2), [b"k\0".to_vec(), b"k\x7f".to_vec()], "the first so many");
    assert_eq!(keys(one, b"k", b"k", 100).len(), 0);
    assert_eq!(keys(one, b"z", b"a", 100).len(), 0);
    let found = one.range(b"k", b"k\0", 9).expect("range");
    assert_eq!(found[0].1.value, b"k", "with their values");
    let removed: Vec<Write> = sorted.iter().map(|key| delete(key)).collect();
    done(one, &[], &removed);
}

fn many_keys<S: Store>(one: &mut S, other: &mut S) {
    let name = |i: usize| format!("many-{i:04}").into_bytes();
    let count = 3 * MAX_OPERATIONS;
    let mut versions = Vec::new();
    for first in (0..count).step_by(MAX_OPERATIONS) {
        let part: Vec<Write> =
            (first..first + MAX_OPERATIONS).step_by(2).map(|i| put(&name(i), &name(i))).collect();
        versions.push(done(one, &[], &part));
    }
    let expected = |i: usize| {
        let written = i.is_multiple_of(2) && i < count;
        written.then(|| Versioned { value: name(i), version: versions[i / MAX_OPERATIONS] })
    };
    // Every key, one behind them, and some twice, in another order than theirs.
    let numbers: Vec<usize> = (0..=count).rev().chain([5, 4, count, 4]).collect();
    let wanted: Vec<Vec<u8>> = numbers.iter().map(|i| name(*i)).collect();
    let all: Vec<_> = numbers.iter().map(|i| expected(*i)).collect();
    assert_eq!(one.get_many(&wanted).expect("many"), all, "in the order of the keys");
    assert_eq!(other.get_many(&wanted).expect("many"), all, "another handle sees them");
    assert_eq!(one.get_many(&[]).expect("none"), []);

    let values = |store: &S| {
        let found = store.get_many(&[name(0), name(1), name(2)]).expect("many");
        found.into_iter().map(|found| found.map(|found| found.value)).collect::<Vec<_>>()
    };
    one.begin_group().expect("a group begins");
    assert_eq!(values(one), [Some(name(0)), None, Some(name(2))]);
    done(one, &[], &[delete(&name(0)), put(&name(1), b"new")]);
    let after = [None, Some(b"new".to_vec()), Some(name(2))];
    assert_eq!(values(one), after, "a group sees its commits");
    one.end_group().expect("a group ends");
    assert_eq!((values(one), values(other)), (after.to_vec(), after.to_vec()));
    done(other, &[], &[put(&name(2), b"other")]);
    assert_eq!(values(one)[2], Some(b"other".to_vec()), "commits of others are seen");
    for first in (0..count).step_by(MAX_OPERATIONS) {
        let part: Vec<Write> = (first..first + MAX_OPERATIONS).map(|i| delete(&name(i))).collect();
        done(one, &[], &part);
    }
}

fn limits<S: Store>(one: &mut S) {
    let name = |i: usize| format!("limit-{i:05}").into_bytes();
    let guards: Vec<Guard> = (0..40).map(|i| guard(&name(i), None)).collect();
    let writes: Vec<Write> = (0..MAX_OPERATIONS - 40).map(|i| put(&name(i), b"v")).collect();
    done(one, &guards, &writes);
    let longest = vec![b'l'; MAX_KEY_BYTES];
    let largest = vec![7; MAX_VALUE_BYTES];
    done(one, &[], &[put(&longest, &largest)]);
    assert_eq!(one.get(&longest).expect("get").expect("written").value, largest);

    let few: Vec<Write> = (0..MAX_OPERATIONS).map(|i| put(&name(i), b"w")).collect();
    let much: Vec<Write> =
        (0..=MAX_COMMIT_BYTES / MAX_VALUE_BYTES).map(|i| put(&name(i), &largest)).collect();
    let cases: [(&[Guard], &[Write]); 6] = [
        (&guards[..1], &few),
        (&[], &much),
        (&[], &[put(b"", b"")]),
        (&[], &[put(&[b'l'; MAX_KEY_BYTES + 1], b"")]),
        (&[], &[put(b"k", &vec![0; MAX_VALUE_BYTES + 1])]),
        (&[], &[put(b"twice", b"1"), put(b"twice", b"2")]),
    ];
    for (guards, writes) in cases {
        let error = one.commit(guards, writes).expect_err("too much");
        assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
    }
    assert_eq!(one.get(b"twice").expect("get"), None);
    assert_eq!(one.get(&name(0)).expect("get").expect("written").value, b"v", "refused whole");

    let count = MAX_RANGE + 3;
    for first in (0..count).step_by(MAX_OPERATIONS) {
        let part: Vec<Write> =
            (first..count.min(first + MAX_OPERATIONS)).map(|i| put(&name(i), b"")).collect();
        done(one, &[], &part);
    }
    assert_eq!(keys(one, b"limit-", b"limit.", usize::MAX).len(), MAX_RANGE);
    for first in (0..count).step_by(MAX_OPERATIONS) {
        let part: Vec<Write> = (first..first + MAX_OPERATIONS).map(|i| delete(&name(i))).collect();
        done(one, &[], &part);
    }
    done(one, &[], &[delete(&longest)]);
}

fn groups<S: Store>(one: &mut S, other: &S) {
    one.begin_group().expect("a group begins");
    let first = done(one, &[guard(b"g", None)], &[put(b"g", b"1")]);
    assert_eq!(one.get(b"g").expect("get").expect("seen at once").value, b"1");
    assert_eq!(keys(one, b"g", b"h", 9), [b"g".to_vec()]);
    refused(one, &[guard(b"g", None)], &[put(b"h", b"")]);
    one.commit(&[], &[put(b"", b"")]).expect_err("refused in a group as elsewhere");
    let second = done(one, &[guard(b"g", Some(first))], &[put(b"g", b"2")]);
    assert!(second > first);
    one.end_group().expect("a group ends");
    assert_eq!(other.get(b"g").expect("get").expect("seen by all").value, b"2");
    assert_eq!(other.get(b"h").expect("get"), None);
    one.begin_group().expect("an empty group begins");
    one.end_group().expect("an empty group ends");
    done(one, &[guard(b"g", Some(second))], &[delete(b"g")]);
}

fn leases<S: Store>(one: &mut S) {
    let first = one.lease(b"lease", 1, 1000, 2000).expect("lease").expect("free");
    assert_eq!(first.until_ns, 2000);
    assert_eq!(one.lease(b"lease", 2, 1999, 3000).expect("lease"), None, "held by another");
    let prolonged = one.lease(b"lease", 1, 1500, 2500).expect("lease").expect("its own");
    refused(one, &[first.guard], &[put(b"h", b"")]);
    done(one, std::slice::from_ref(&prolonged.guard), &[]);
    let next = one.lease(b"lease", 2, 2500, 3500).expect("lease").expect("it ended");
    refused(one, &[prolonged.guard], &[put(b"h", b"")]);
    assert_eq!(one.lease(b"lease", 1, 2600, 3600).expect("lease"), None, "lost");
    done(one, &[next.guard], &[delete(b"lease")]);
}

/// Compares many small commits, some of them refused, with a map.
fn a_random_walk<S: Store>(one: &mut S) {
    let mut state = 1_u64;
    // Knuth, The Art of Computer Programming, volume 2, section 3.3.4: MMIX.
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut model: BTreeMap<Vec<u8>, Versioned> = BTreeMap::new();
    for step in 0..300_u64 {
        let mut pick = |few: u64| -> Vec<Vec<u8>> {
            let mut keys: Vec<Vec<u8>> = (0..random(few)).map(|_| vec![b'w', random(12) as u8]).collect();
            keys.sort();
            keys.dedup();
            keys
        };
        let (guarded, written) = (pick(3), pick(4));
        let wrong = random(4) == 0 && !guarded.is_empty();
        let guards: Vec<Guard> = guarded
            .iter()
            .map(|key| {
                let version = model.get(key).map(|found| found.version);
                guard(key, if wrong { Some(version.map_or(1, |version| version + 1)) } else { version })
            })
            .collect();
        let writes: Vec<Write> = written
            .iter()
            .map(|key| if random(3) == 0 { delete(key) } else { put(key, &step.to_le_bytes()) })
            .collect();
        match one.commit(&guards, &writes).expect("commit") {
            Outcome::Conflict => assert!(wrong, "step {step}"),
            Outcome::Done(version) => {
                assert!(!wrong, "step {step}");
                for write in writes {
                    match write.value {
                        Some(value) => drop(model.insert(write.key, Versioned { value, version })),
                        None => drop(model.remove(&write.key)),
                    }
                }
            }
        }
        let found: BTreeMap<_, _> = one.range(b"w", b"x", MAX_RANGE).expect("range").into_iter().collect();
        assert_eq!(found, model, "step {step}");
    }
    let rest: Vec<Write> = model.keys().map(|key| delete(key)).collect();
    done(one, &[], &rest);
}

/// Concurrent handles each increment a counter and note it: no increment is lost, and none happens twice.
fn handles_at_once<S: Store + Send>(handles: &mut [S]) {
    const EACH: u64 = 25;
    let count = handles.len() as u64;
    thread::scope(|scope| {
        for (number, handle) in handles.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut left = EACH;
                while left > 0 {
                    let found = handle.get(b"counter").expect("get");
                    let value = found.as_ref().map_or(0, |found| {
                        u64::from_le_bytes(found.value.as_slice().try_into().expect("8 bytes"))
                    });
                    let note = format!("note-{value:04}").into_bytes();
                    let guards = [guard(b"counter", found.map(|found| found.version))];
                    let writes = [put(b"counter", &(value + 1).to_le_bytes()), put(&note, &[number as u8])];
                    if let Outcome::Done(_) = handle.commit(&guards, &writes).expect("commit") {
                        left -= 1;
                    }
                }
            });
        }
    });
    let notes = handles[0].range(b"note-", b"note.", MAX_RANGE).expect("range");
    assert_eq!(notes.len() as u64, count * EACH);
    for number in 0..count {
        let own = notes.iter().filter(|(_, note)| note.value == [number as u8]).count() as u64;
        assert_eq!(own, EACH, "handle {number}");
    }
    let end = handles[0].get(b"counter").expect("get").expect("counted").value;
    assert_eq!(end, (count * EACH).to_le_bytes());
}
