//! The metadata store in SQLite, with processes killed at arbitrary moments: every acknowledged commit is there,
//! and no commit is there in part. (A kill loses nothing that the process has passed to the system. Syncs protect
//! against power loss, see `store/write_ahead.rs`.)

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write as _};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;
use std::{env, thread};

use outcore_core::ErrorKind;
use outcore_server::store::{Guard, Outcome, SqliteStore, Store, Write};

const STORE: &str = "OUTCORE_TEST_STORE";
const WRITER: &str = "OUTCORE_TEST_WRITER";
/// Only a writer that hangs takes this long for a commit.
const PATIENCE: Duration = Duration::from_secs(120);
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

/// Repeats a write for as long as the other writer holds the store and SQLite reports it busy.
fn in_turn<T>(mut work: impl FnMut() -> outcore_core::Result<T>) -> T {
    loop {
        match work() {
            Err(error) if error.kind == ErrorKind::Busy => {}
            done => return done.unwrap(),
        }
    }
}

/// Runs in a separate process, for the test below: commits endlessly, and reports each commit.
#[test]
#[ignore = "a part of the test below"]
fn writer() {
    let Ok(path) = env::var(STORE) else { return };
    let writer: u8 = env::var(WRITER).unwrap().parse().unwrap();
    let mut store = in_turn(|| SqliteStore::open(&path));
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
            in_turn(|| store.begin_group());
        }
        assert!(matches!(in_turn(|| store.commit(&guards, &writes)), Outcome::Done(_)));
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

/// Passes on the number of each commit that a writer reports.
fn reports_of(output: ChildStdout) -> Receiver<u64> {
    let (sender, reports) = channel();
    thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            if let Some(number) = line.strip_prefix("done ").and_then(|number| number.parse().ok()) {
                sender.send(number).unwrap();
            }
        }
    });
    reports
}

#[test]
fn what_was_acknowledged_survives_killed_processes() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    let mut acknowledged = [0; 2];
    for round in 0..15_u64 {
        let mut children = [start(&path, 0), start(&path, 1)];
        let reports = children.each_mut().map(|child| reports_of(child.stdout.take().unwrap()));
        // In some rounds also while the writers open the store.
        for (reports, acknowledged) in reports.iter().zip(&mut acknowledged) {
            for _ in 0..round % 4 {
                *acknowledged = reports.recv_timeout(PATIENCE).expect("a commit");
            }
        }
        thread::sleep(Duration::from_millis(round * 37 % 40));
        for child in &mut children {
            child.kill().unwrap();
            let status = child.wait().unwrap();
            assert_eq!(status.signal(), Some(9), "a writer fails: {status}");
        }
        let store = SqliteStore::open(&path).unwrap();
        for (writer, reports) in reports.into_iter().enumerate() {
            // The last line may be torn; its commit was not acknowledged.
            let expected = reports.iter().last().unwrap_or(acknowledged[writer]);
            let found = last_of(&store, writer as u8);
            assert!(
                (expected..=expected + 1).contains(&found),
                "round {round}, writer {writer}: commit {expected} was acknowledged, {found} is there"
            );
            acknowledged[writer] = found;
        }
    }
}
