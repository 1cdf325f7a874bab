//! The metadata store in PostgreSQL, over a real server. Without PostgreSQL these tests say so, and are left out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod ahead;
mod faults;
mod server;

use std::sync::OnceLock;
use std::thread;
use std::time::Duration;

use outcore_core::ErrorKind;
use outcore_core::crash_disk::Random;
use outcore_server::store::conformance::{self, guard, put};
use outcore_server::store::{MemoryStore, Outcome, PostgresLease, PostgresStore, Seen, Store, Write};
use server::Server;

/// The server of the tests that do not stop it.
fn shared() -> Option<&'static Server> {
    static SHARED: OnceLock<Option<Server>> = OnceLock::new();
    SHARED.get_or_init(Server::start).as_ref()
}

#[test]
fn postgres_conforms() {
    let Some(server) = shared() else { return };
    let url = server.url(&server.database());
    conformance::store(&mut || PostgresStore::open(&url).unwrap());
}

#[test]
fn groups_and_single_commits_do_what_the_model_does() {
    let Some(server) = shared() else { return };
    let url = server.url(&server.database());
    let open = || PostgresStore::open(&url).unwrap();
    let (mut stores, mut model, mut random) = ([open(), open()], MemoryStore::new(), Random::new(1));
    let (mut turn, mut in_group) = (0, false);
    for number in 0..1500_u32 {
        let mut key = || [b'a' + random.below(6) as u8];
        let (read, write, guarded) = (key(), key(), key());
        // The other handle writes between two groups of this one.
        if !in_group && random.once_in(9) {
            turn = 1 - turn;
        }
        let store = &mut stores[turn];
        match random.below(12) {
            0 if !in_group => {
                store.begin_group().unwrap();
                in_group = true;
            }
            1 => {
                store.end_group().unwrap();
                in_group = false;
            }
            2 => store.check().unwrap(),
            3..5 => assert_eq!(store.get(&read).unwrap(), model.get(&read).unwrap()),
            5 => assert_eq!(store.range(b"a", b"z", 9).unwrap(), model.range(b"a", b"z", 9).unwrap()),
            _ => {
                let mut version = model.get(&guarded).unwrap().map(|found| found.version);
                if random.once_in(5) {
                    version = Some(version.map_or(7, |version| version - 1));
                }
                // Some values are too long for the cache.
                let mut value = number.to_le_bytes().to_vec();
                value.resize(if random.once_in(3) { 3000 } else { 4 }, 1);
                let value = Some(value).filter(|_| !random.once_in(4));
                let (guards, writes) = ([guard(&guarded, version)], [Write { key: write.to_vec(), value }]);
                let done = (store.commit(&guards, &writes).unwrap(), model.commit(&guards, &writes).unwrap());
                assert_eq!(done.0, done.1, "{number}");
            }
        }
    }
}

#[test]
fn a_database_of_something_else_is_refused_and_stays_as_it_is() {
    let Some(server) = shared() else { return };
    let name = server.database();
    server.sql(&name, "CREATE SCHEMA outcore; CREATE TABLE outcore.birds (name text)");
    let error = PostgresStore::open(&server.url(&name)).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
    assert!(error.message.contains("have other tables"), "{error}");
    assert_eq!(server.sql(&name, "SELECT count(*) FROM pg_tables WHERE schemaname = 'outcore'"), "1");

    let absent = PostgresStore::open(&server.url("absent")).unwrap_err();
    assert_eq!(absent.kind, ErrorKind::NotFound, "{absent}");
    assert!(absent.message.contains("createdb"), "{absent}");
    server.sql(&name, "CREATE ROLE guest LOGIN");
    let denied = PostgresStore::open(&server.url_for("guest", &server.database())).unwrap_err();
    assert_eq!(denied.kind, ErrorKind::Denied, "{denied}");
    assert!(denied.message.contains("the owner of the database"), "{denied}");
}

#[test]
fn a_store_of_another_version_is_refused_at_once() {
    let Some(server) = shared() else { return };
    let name = server.database();
    let mut store = PostgresStore::open(&server.url(&name)).unwrap();
    let _ = store.commit(&[], &[put(b"a", b"1")]).unwrap();
    server.sql(&name, "UPDATE outcore.store SET format = 4");
    let again = PostgresStore::open(&server.url(&name)).unwrap_err();
    let running = store.commit(&[], &[put(b"a", b"2")]).unwrap_err();
    for error in [again, running] {
        assert_eq!(error.kind, ErrorKind::Invalid);
        assert!(error.message.contains("format 3, have format 4"), "{error}");
    }
    server.sql(&name, "UPDATE outcore.store SET format = 3");
    assert_eq!(store.get(b"a").unwrap().unwrap().value, b"1");
    let _ = store.commit(&[], &[put(b"a", b"2")]).unwrap();
}

#[test]
fn commits_fail_once_another_manager_has_the_lease() {
    let Some(server) = shared() else { return };
    let url = server.url(&server.database());
    let mut lease = PostgresLease::take(&url, "one").unwrap();
    let mut store = PostgresStore::open_under(&url, lease.fence()).unwrap();
    let _ = store.commit(&[], &[put(b"a", b"1")]).unwrap();
    let error = PostgresLease::take(&url, "two").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy);
    assert!(error.message.contains("have another manager"), "{error}");
    assert!(lease.beat().unwrap());

    store.begin_group().unwrap();
    let _ = store.commit(&[], &[put(b"a", b"2")]).unwrap();
    // The holder is suspended within a group: its beat stands still.
    let mut seen = vec![];
    let mut next = PostgresLease::stand_by(&url, "two", |each| seen.push(each)).unwrap();
    assert!(!seen.is_empty() && seen.iter().all(|each| *each == Seen::Active("one".into())), "{seen:?}");
    let mut active = PostgresStore::open_under(&url, next.fence()).unwrap();
    assert!(next.fence() > lease.fence());
    let _ = active.commit(&[], &[put(b"b", b"1")]).unwrap();
    assert!(store.end_group().is_err());
    for result in [store.begin_group(), store.commit(&[], &[put(b"a", b"3")]).map(drop)] {
        let error = result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Closed, "{error}");
        assert!(error.message.contains("lost it to another manager"), "{error}");
    }
    let has_lease = (0..2).map(|_| lease.beat()).find_map(Result::ok);
    assert_eq!(has_lease, Some(false), "the first beat finds the lost session");
    assert!(next.beat().unwrap());
    assert_eq!(active.get(b"a").unwrap().unwrap().value, b"1");
    next.give_back();
    PostgresLease::stand_by(&url, "one", |_| ()).unwrap();
}

#[test]
fn a_session_that_the_old_holder_opens_during_the_change_ends() {
    let Some(server) = shared() else { return };
    let name = server.database();
    let url = server.url(&name);
    let old = PostgresLease::take(&url, "one").unwrap();
    // The next holder has ended the sessions of the old one, and waits for this row.
    let mut row = server.session(&name);
    row.batch_execute("BEGIN; SELECT * FROM outcore.lease FOR UPDATE").unwrap();
    let waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let next = thread::scope(|scope| {
        let next = scope.spawn(|| PostgresLease::stand_by(&url, "two", |_| ()).unwrap());
        let mut watch = server.session(&name);
        while watch.query_one(waits, &[]).unwrap().get::<_, i64>(0) == 0 {
            assert!(!next.is_finished(), "it did not wait for the row");
            thread::sleep(Duration::from_millis(10));
        }
        let store = PostgresStore::open_under(&url, old.fence()).unwrap();
        assert_eq!(store.get(b"a").unwrap(), None);
        row.batch_execute("COMMIT").unwrap();
        let next = next.join().unwrap();
        let error = store.get(b"a").unwrap_err();
        assert_eq!(error.kind, ErrorKind::Closed, "{error}");
        next
    });
    assert!(next.fence() > old.fence());
}

#[test]
fn a_lease_without_a_name_gets_one_from_the_next_holder() {
    let Some(server) = shared() else { return };
    let name = server.database();
    let url = server.url(&name);
    let mut held = Some(PostgresLease::take(&url, "one").unwrap());
    // As earlier versions made it.
    server.sql(&name, "ALTER TABLE outcore.lease DROP COLUMN holder");
    let mut seen = vec![];
    let next = PostgresLease::stand_by(&url, "two", |each| {
        seen.push(each);
        held.take().into_iter().for_each(PostgresLease::give_back);
    });
    let _next = next.unwrap();
    assert_eq!(seen[0], Seen::Active(String::new()));
    let found = server.sql(&name, "SELECT holder FROM outcore.lease");
    assert!(found.contains("two"), "{found}");
}

#[test]
fn a_changed_record_and_a_lost_last_commit_are_found() {
    let Some(server) = shared() else { return };
    let name = server.database();
    let mut store = PostgresStore::open(&server.url(&name)).unwrap();
    let _ = store.commit(&[], &[put(b"a", b"1"), put(b"b", b"2")]).unwrap();
    for change in ["value = 'x'", "version = version + 1", "sum = sum + 1", "sum = -sum", "key = 'c'"] {
        server.sql(&name, &format!("UPDATE outcore.entries SET {change} WHERE key = 'a'"));
        let error = store.range(b"a", b"z", 9).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Corrupt, "{change}: {error}");
        server.sql(&name, "DELETE FROM outcore.entries WHERE key <> 'b'");
        let _ = store.commit(&[], &[put(b"a", b"1")]).unwrap();
        assert_eq!(store.range(b"a", b"z", 9).unwrap().len(), 2);
    }
    store.check().unwrap();
    server.sql(&name, "UPDATE outcore.store SET version = version - 1");
    let error = store.check().unwrap_err();
    assert!(error.message.contains("last commit below"), "{error}");
    server.sql(&name, "DELETE FROM outcore.store");
    assert_eq!(store.commit(&[], &[put(b"a", b"3")]).unwrap_err().kind, ErrorKind::Corrupt);
    server.sql(&name, "DROP TABLE outcore.entries");
    assert_eq!(store.get(b"a").unwrap_err().kind, ErrorKind::Corrupt);
}

#[test]
fn an_empty_commit_has_a_version_of_its_own() {
    let Some(server) = shared() else { return };
    let mut store = PostgresStore::open(&server.url(&server.database())).unwrap();
    let mut last = 0;
    for _ in 0..3 {
        for writes in [vec![], vec![put(b"a", b"1")]] {
            let Outcome::Done(version) = store.commit(&[], &writes).unwrap() else { panic!("a conflict") };
            assert!(version > last);
            last = version;
        }
    }
}
