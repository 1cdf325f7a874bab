//! The metadata store in SQLite, with processes killed at arbitrary moments: every acknowledged commit is there,
//! and no commit is there in part. (A kill loses nothing that the process has passed to the system. Syncs protect
//! against power loss, see `store/write_ahead.rs`.)

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use std::{env, thread};

use outcore_server::store::{Guard, Outcome, SqliteStore, Store, Write};

const STORE: &str = "OUTCORE_TEST_STORE";
const WRITER: &str = "OUTCORE_TEST_WRITER";
/// Keys that each commit writes together.
const PARTS: u8 = 5;

fn key(writer: u8, part: u8) -> Vec<u8> {
    vec![b'k', writer, part]
}

/// The common number of all parts of a writer, which is that of its last commit.
fn last_of(store: &SqliteStore, writer: u8) -> u64 {
    let found = store.range(&[b'k', writer], &[b'k', writer + 1], 100).unwrap();
    let numbers: Vec<u64> =
        found.iter().map(|(_, found)| u64::from_le_bytes(found.value[..8].try_into().unwrap())).collect();
    let versions: Vec<u64> = found.iter().map(|(_, found)| found.version).collect();
    let first = numbers.first().copied().unwrap_or(0);
    assert!(numbers.is_empty() || numbers.len() == usize::from(PARTS), "{numbers:?}");
    assert!(numbers.iter().all(|&number| number == first), "a commit is there in part: {numbers:?}");
    assert!(versions.iter().all(|&version| version == versions[0]), "{versions:?}");
    first
}

/// Runs in a separate process, for the test below: commits endlessly, and reports each commit.
#[test]
#[ignore = "a part of the test below"]
fn writer() {
    let Ok(path) = env::var(STORE) else { return };
    let writer: u8 = env::var(WRITER).unwrap().parse().unwrap();
    let mut store = SqliteStore::open(path).unwrap();
    let mut number = last_of(&store, writer);
    loop {
        let guards: Vec<Guard> = (0..PARTS)
            .map(|part| {
                let key = key(writer, part);
                Guard { version: store.get(&key).unwrap().map(|found| found.version), key }
            })
            .collect();
        number += 1;
        let mut value = number.to_le_bytes().to_vec();
        value.resize(2000, 7);
        let writes: Vec<Write> =
            (0..PARTS).map(|part| Write { key: key(writer, part), value: Some(value.clone()) }).collect();
        // Every third commit is in a group, which counts once the group has ended.
        let is_group = number.is_multiple_of(3);
        if is_group {
            store.begin_group().unwrap();
        }
        assert!(matches!(store.commit(&guards, &writes).unwrap(), Outcome::Done(_)));
        if is_group {
            store.end_group().unwrap();
        }
        println!("done {number}");
        std::io::stdout().flush().unwrap();
    }
}

fn start(path: &std::path::Path, writer: u8) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "writer", "--ignored", "--nocapture"])
        .env(STORE, path)
        .env(WRITER, writer.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn what_was_acknowledged_survives_killed_processes() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    let mut acknowledged = [0; 2];
    for round in 0..15_u64 {
        let mut children = [start(&path, 0), start(&path, 1)];
        let readers: Vec<_> = children
            .iter_mut()
            .map(|child| {
                let lines = BufReader::new(child.stdout.take().unwrap()).lines();
                thread::spawn(move || {
                    // The last line may be torn; its commit was not acknowledged.
                    let done = lines.map_while(Result::ok);
                    done.filter_map(|line| line.strip_prefix("done ")?.parse::<u64>().ok()).last()
                })
            })
            .collect();
        thread::sleep(Duration::from_millis(30 + round * 37 % 120));
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let store = SqliteStore::open(&path).unwrap();
        for (writer, reader) in readers.into_iter().enumerate() {
            acknowledged[writer] = reader.join().unwrap().unwrap_or(acknowledged[writer]);
            let found = last_of(&store, writer as u8);
            let expected = acknowledged[writer];
            assert!(
                (expected..=expected + 1).contains(&found),
                "round {round}, writer {writer}: commit {expected} was acknowledged, {found} is there"
            );
            acknowledged[writer] = found;
        }
    }
    assert!(acknowledged.iter().all(|&number| number > 15), "{acknowledged:?}: the writers hardly wrote");
}
