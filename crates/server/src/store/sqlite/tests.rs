//! The store in SQLite: conformance, and its own behaviour.

use super::opening::APPLICATION;
use super::*;
use crate::store::MemoryStore;
use crate::store::conformance::{self, guard, put};
use outcore_core::crash_disk::Random;

#[test]
fn sqlite_conforms() {
    let root = tempfile::tempdir().unwrap();
    conformance::store(&mut || SqliteStore::open(root.path().join("metadata")).unwrap());
}

#[test]
fn groups_and_single_commits_do_what_the_model_does() {
    let root = tempfile::tempdir().unwrap();
    let open = || SqliteStore::open(root.path().join("metadata")).unwrap();
    let (mut store, mut model, mut random) = (open(), MemoryStore::new(), Random::new(1));
    for number in 0..3000_u32 {
        let mut key = || [b'a' + random.below(6) as u8];
        let (read, write, guarded) = (key(), key(), key());
        match random.below(12) {
            0 if !store.in_group => store.begin_group().unwrap(),
            1 => store.end_group().unwrap(),
            2 if !store.in_group => store = open(),
            3..5 => assert_eq!(store.get(&read).unwrap(), model.get(&read).unwrap()),
            5 => assert_eq!(store.range(b"a", b"z", 9).unwrap(), model.range(b"a", b"z", 9).unwrap()),
            _ => {
                let mut version = model.get(&guarded).unwrap().map(|found| found.version);
                if random.once_in(5) {
                    version = Some(version.map_or(7, |version| version - 1));
                }
                let value = Some(number.to_le_bytes().to_vec()).filter(|_| !random.once_in(4));
                let (guards, writes) = ([guard(&guarded, version)], [Write { key: write.to_vec(), value }]);
                let done = (store.commit(&guards, &writes).unwrap(), model.commit(&guards, &writes).unwrap());
                assert_eq!(done.0, done.1, "{number}");
            }
        }
    }
}

#[test]
fn what_another_has_written_between_two_groups_is_seen_in_the_second() {
    let root = tempfile::tempdir().unwrap();
    let open = || SqliteStore::open(root.path().join("metadata")).unwrap();
    let mut stores = [open(), open()];
    let mut version = None;
    for round in 0..20_u8 {
        let store = &mut stores[usize::from(round / 2 % 2)];
        store.begin_group().unwrap();
        let found = store.get(b"k").unwrap();
        assert_eq!(
            found.map(|found| (found.value, Some(found.version))),
            version.map(|v| (vec![round - 1], v))
        );
        let guards = [guard(b"k", version.flatten())];
        let Outcome::Done(done) = store.commit(&guards, &[put(b"k", &[round])]).unwrap() else {
            panic!("a conflict in round {round}");
        };
        store.end_group().unwrap();
        assert!(Some(done) > version.flatten(), "versions grow, whoever writes");
        version = Some(Some(done));
    }
}

#[test]
fn reads_of_one_transaction_see_no_commit_of_another() {
    let root = tempfile::tempdir().unwrap();
    let open = || SqliteStore::open(root.path().join("metadata")).unwrap();
    let (store, mut other) = (open(), open());
    let keys = [b"a".to_vec(), b"b".to_vec()];
    let both = |value: &[u8]| keys.each_ref().map(|key| put(key, value));
    let first = other.commit(&[], &both(b"1")).unwrap();
    let (before, after) = store
        .in_one_read(|| {
            let before = store.get(&keys[0])?;
            assert_ne!(other.commit(&[], &both(b"2"))?, first);
            // A read of many keys is part of the open transaction.
            Ok((before, store.get_many(&keys)?))
        })
        .unwrap();
    assert_eq!(after[0], before);
    let values = |found: Vec<Option<Versioned>>| found.into_iter().map(|found| found.unwrap().value);
    assert!(values(after).eq([b"1", b"1"]));
    assert!(store.connection.is_autocommit());
    assert!(values(store.get_many(&keys).unwrap()).eq([b"2", b"2"]));
}

#[test]
fn a_store_with_larger_pages_keeps_them() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    let earlier = Connection::open(&path).unwrap();
    earlier.pragma_update(None, "page_size", 4096).unwrap();
    earlier.execute_batch(UNSUMMED_TABLES).unwrap();
    earlier.pragma_update(None, "application_id", APPLICATION).unwrap();
    drop(earlier);
    let page_bytes = |store: &SqliteStore| -> i64 {
        store.connection.query_row("PRAGMA page_size", [], |row| row.get(0)).unwrap()
    };
    let mut store = SqliteStore::open(&path).unwrap();
    let _ = store.commit(&[], &[put(b"k", b"v")]).unwrap();
    assert_eq!(page_bytes(&store), 4096);
    let new = SqliteStore::open(root.path().join("new")).unwrap();
    assert_eq!(page_bytes(&new), PAGE_BYTES);
}

/// The tables of the first format.
const UNSUMMED_TABLES: &str = "
    CREATE TABLE entries (key BLOB PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE last (version INTEGER NOT NULL);
    INSERT INTO last VALUES (7);
    PRAGMA user_version = 1;
";

#[test]
fn records_of_the_format_before_get_checksums() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    let earlier = Connection::open(&path).unwrap();
    earlier.execute_batch(UNSUMMED_TABLES).unwrap();
    earlier.pragma_update(None, "application_id", APPLICATION).unwrap();
    let records: Vec<(Vec<u8>, Vec<u8>)> =
        (0..2500_u32).map(|n| (n.to_be_bytes().to_vec(), vec![n as u8; n as usize % 50])).collect();
    earlier.execute_batch("BEGIN").unwrap();
    for (key, value) in &records {
        earlier.execute("INSERT INTO entries VALUES (?1, ?2, 7)", params![key, value]).unwrap();
    }
    earlier.execute_batch("COMMIT").unwrap();
    drop(earlier);
    for _ in 0..2 {
        let mut store = SqliteStore::open(&path).unwrap();
        for (key, value) in &records {
            let found = store.get(key).unwrap().unwrap();
            assert_eq!((&found.value, found.version), (value, 7));
        }
        let again = put(&records[5].0, &records[5].1);
        assert!(matches!(
            store.commit(&[guard(&records[4].0, Some(7))], &[again]).unwrap(),
            Outcome::Done(8..)
        ));
        store.connection.execute("UPDATE entries SET version = 7", []).unwrap();
        store.connection.execute("UPDATE last SET version = 7", []).unwrap();
        // The version is part of the checksum. Restoring it leaves only the checksum of one record wrong.
        let error = store.get(&records[5].0).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{error}");
        let both = [records[4].0.clone(), records[5].0.clone()];
        assert_eq!(store.get_many(&both).unwrap_err(), error);
        assert!(store.connection.is_autocommit(), "no read stays open");
        let mend = params![records[5].0, sum(&records[5].0, &records[5].1, 7)];
        store.connection.execute("UPDATE entries SET sum = ?2 WHERE key = ?1", mend).unwrap();
    }
}

#[test]
fn no_flipped_bit_passes_for_what_was_written() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    let mut store = SqliteStore::open(&path).unwrap();
    let records: Vec<(Vec<u8>, Vec<u8>)> =
        (0..200_u32).map(|n| (format!("key{n:03}").into_bytes(), vec![n as u8 | 1; 20])).collect();
    for (key, value) in &records {
        let _ = store.commit(&[], &[put(key, value)]).unwrap();
    }
    store.empty_log().unwrap();
    drop(store);
    let whole = std::fs::read(&path).unwrap();
    let mut random = Random::new(3);
    let (mut found, mut unseen) = (0, 0);
    for _ in 0..300 {
        let mut bytes = whole.clone();
        let at = random.below(bytes.len() as u64) as usize;
        bytes[at] ^= 1 << random.below(8);
        std::fs::write(&path, &bytes).unwrap();
        let looked = SqliteStore::open(&path).and_then(|store| {
            store.check()?;
            let all = store.range(b"\0", b"\xff", 1000)?;
            Ok(all.into_iter().map(|(key, found)| (key, found.value)).collect::<Vec<_>>())
        });
        match looked {
            Err(error) => {
                found += 1;
                assert!(matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Invalid), "byte {at}: {error}");
            }
            Ok(all) => {
                unseen += 1;
                assert!(all == records, "byte {at} is another, and passes");
            }
        }
        for name in ["-wal", "-shm"] {
            let _ = std::fs::remove_file(root.path().join(format!("metadata{name}")));
        }
    }
    assert!(found > 100, "{found} found, {unseen} where nothing lies");
}

#[test]
fn records_out_of_order_and_a_lost_last_commit_are_found() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    let mut store = SqliteStore::open(&path).unwrap();
    for number in 0..9 {
        let _ = store.commit(&[], &[put(format!("key{number}").as_bytes(), b"value")]).unwrap();
    }
    store.check().unwrap();
    store.connection.execute("UPDATE last SET version = version - 1", []).unwrap();
    let error = store.check().unwrap_err();
    assert!(error.message.contains("last commit below"), "{error}");
    drop(store);
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.windows(4).position(|bytes| bytes == b"key4").unwrap();
    bytes[at + 3] = b'0';
    std::fs::write(&path, &bytes).unwrap();
    let error = SqliteStore::open(&path).unwrap().range(b"key0", b"key9", 9).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("not in the order of their keys"), "{error}");
}

#[test]
fn sqlite_syncs_where_the_order_of_writes_matters() {
    let root = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(root.path().join("metadata")).unwrap();
    let level: i32 = store.connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).unwrap();
    let mode: String = store.connection.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!((level, mode.as_str()), (1, "wal"), "1 is NORMAL, see SQLite's page on PRAGMA synchronous");
    assert!(rusqlite::version_number() >= OLDEST_SQLITE);
}

#[test]
fn what_is_not_a_store_is_refused_and_stays_as_it_is() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("other");
    Connection::open(&path).unwrap().execute_batch("CREATE TABLE birds (name TEXT)").unwrap();
    let before = std::fs::read(&path).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid);
    assert!(error.message.contains("a database of something else"), "{error}");
    assert_eq!(std::fs::read(&path).unwrap(), before);

    let text = root.path().join("text");
    std::fs::write(&text, "not a database, but long enough that it could be one".repeat(20)).unwrap();
    assert_eq!(SqliteStore::open(&text).unwrap_err().kind, ErrorKind::Corrupt);

    let later = root.path().join("later");
    let store = SqliteStore::open(&later).unwrap();
    store.connection.pragma_update(None, "user_version", 4).unwrap();
    drop(store);
    assert!(SqliteStore::open(&later).unwrap_err().message.contains("have format 4"));
    let none = SqliteStore::open(root.path().join("none/metadata")).unwrap_err();
    assert_eq!(none.kind, ErrorKind::NotFound, "{none}");
}

#[test]
fn a_file_that_the_disk_does_not_read_is_named_and_not_called_malformed() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    std::fs::write(&path, "what a failed read leaves of a page".repeat(200)).unwrap();
    // Reading byte 0 of `/proc/self/mem` fails with EIO.
    let log = root.path().join("metadata-wal");
    std::os::unix::fs::symlink("/proc/self/mem", &log).unwrap();
    let error = SqliteStore::open(&path).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io, "{error}");
    let is_named = error.message.contains(&format!("does not read {}: Input/output error", log.display()));
    assert!(is_named && !error.message.contains("backup"), "{error}");
    std::fs::remove_file(&log).unwrap();
    assert_eq!(SqliteStore::open(&path).unwrap_err().kind, ErrorKind::Corrupt, "a disk that reads");
}

#[test]
fn a_full_disk_loses_the_commit_and_nothing_else() {
    let root = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(root.path().join("metadata")).unwrap();
    let done = store.commit(&[], &[put(b"before", b"1")]).unwrap();
    assert!(matches!(done, Outcome::Done(_)));
    store.connection.pragma_update(None, "max_page_count", 8).unwrap();
    let large = put(b"large", &[1; 100_000]);
    let error = store.commit(&[], std::slice::from_ref(&large)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
    assert_eq!(store.get(b"large").unwrap(), None);

    store.begin_group().unwrap();
    let _ = store.commit(&[guard(b"in", None)], &[put(b"in", b"1")]).unwrap();
    assert_eq!(store.commit(&[], &[large]).unwrap_err().kind, ErrorKind::DiskFull);
    let later = store.commit(&[], &[put(b"later", b"1")]);
    let kept = store.end_group().is_ok();
    assert_eq!(store.get(b"in").unwrap().is_some(), kept, "what the end of the group says is so");
    assert_eq!(store.get(b"later").unwrap().is_some(), kept && later.is_ok());
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"1");
    store.connection.pragma_update(None, "max_page_count", 1000).unwrap();
    let done = store.commit(&[], &[put(b"after", b"1")]).unwrap();
    assert!(matches!(done, Outcome::Done(_)), "it goes on when there is room");
}

#[test]
fn a_check_within_a_group_counts_its_commits() {
    let root = tempfile::tempdir().unwrap();
    let mut store = SqliteStore::open(root.path().join("metadata")).unwrap();
    store.begin_group().unwrap();
    assert!(matches!(store.commit(&[], &[put(b"a", b"1")]).unwrap(), Outcome::Done(_)));
    store.check().unwrap();
    store.end_group().unwrap();
    store.check().unwrap();
}

/// Record locks of this process on a file, as the system lists them.
fn locks(path: &std::path::Path) -> usize {
    use std::os::unix::fs::MetadataExt as _;
    let inode = format!(":{} ", std::fs::metadata(path).unwrap().ino());
    let process = format!(" {} ", std::process::id());
    let listed = std::fs::read_to_string("/proc/locks").unwrap();
    listed.lines().filter(|line| line.contains(&inode) && line.contains(&process)).count()
}

#[test]
fn a_look_at_the_file_after_an_error_keeps_the_locks() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("metadata");
    let mut store = SqliteStore::open(&path).unwrap();
    assert!(matches!(store.commit(&[], &[put(b"a", b"1")]).unwrap(), Outcome::Done(_)));
    let held = locks(&path);
    assert!(held > 0, "SQLite holds a lock on a database with a write-ahead log");
    let error = super::opening::damaged(path.to_str().unwrap(), "a test");
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert_eq!(locks(&path), held);
}

#[test]
fn ranges_are_planned_once() {
    let root = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(root.path().join("metadata")).unwrap();
    for from in [b"a", b"b", b"c"] {
        store.range(from, b"z", 9).unwrap();
    }
    let statement = store.connection.prepare_cached(RANGE).unwrap();
    assert_eq!(statement.get_status(rusqlite::StatementStatus::RePrepare), 0);
}
