//! A database that stops, that is full, and that loses connections.

use std::time::Duration;

use outcore_core::{Error, ErrorKind, Result};
use outcore_server::store::conformance::{guard, put};
use outcore_server::store::{Outcome, PostgresStore, Store};

use super::server::{Gate, Loss, Server};
use super::shared;

/// Repeats work until the database runs, however long it takes to start.
fn once_it_runs<T>(mut work: impl FnMut() -> Result<T>) -> T {
    loop {
        match work() {
            Err(Error { kind: ErrorKind::Io | ErrorKind::Busy, .. }) => {}
            done => return done.unwrap(),
        }
    }
}

#[test]
fn a_database_that_stops_and_starts_keeps_what_was_acknowledged() {
    let Some(server) = Server::start() else { return };
    let mut store = PostgresStore::open(&server.url(&server.database())).unwrap();
    let _ = store.commit(&[], &[put(b"a", b"1")]).unwrap();
    server.tell("stop");
    assert_eq!(server.tell("start"), "done");
    let found = once_it_runs(|| store.get(b"a"));
    assert_eq!(found.unwrap().value, b"1", "another session");

    store.begin_group().unwrap();
    let _ = store.commit(&[], &[put(b"b", b"1")]).unwrap();
    server.tell("stop");
    let error = store.get(b"c").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Busy, "{error}");
    let later = store.commit(&[], &[put(b"d", b"1")]);
    assert!(later.is_err(), "the group is lost");
    assert_eq!(store.end_group().unwrap_err().kind, ErrorKind::Busy);
    store.set_patience(Duration::ZERO);
    let error = store.get(b"a").unwrap_err();
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(error.message.contains("start the database"), "{error}");
    assert!(store.begin_group().is_err());
    server.tell("start");
    assert_eq!(once_it_runs(|| store.get(b"b")), None);
    assert_eq!(store.get(b"d").unwrap(), None);
    let _ = store.commit(&[guard(b"b", None)], &[put(b"b", b"2")]).unwrap();
    assert_eq!(store.get(b"b").unwrap().unwrap().value, b"2");
}

#[test]
fn a_commit_whose_answer_is_lost_is_done_and_one_that_does_not_arrive_is_not() {
    let Some(server) = shared() else { return };
    let name = server.database();
    let gate = Gate::before(server);
    let mut store = PostgresStore::open(&gate.url(&name)).unwrap();
    let mut other = PostgresStore::open(&server.url(&name)).unwrap();
    let mut last = None;
    for (loss, value) in
        [(Loss::Nothing, b"0"), (Loss::Answer, b"1"), (Loss::Commit, b"2"), (Loss::Answer, b"3")]
    {
        gate.lose(loss);
        let before = other.get(b"a").unwrap();
        let done = store.commit(&[guard(b"a", last)], &[put(b"a", value)]);
        let found = other.get(b"a").unwrap();
        if loss == Loss::Commit {
            let error = done.unwrap_err();
            assert_eq!(error.kind, ErrorKind::Busy, "the caller can repeat it: {error}");
            assert_eq!(found, before);
        } else {
            let Outcome::Done(version) = done.unwrap() else { panic!("a conflict") };
            last = Some(version);
            assert_eq!(found.map(|found| (found.value, found.version)), Some((value.to_vec(), version)));
        }
        // A commit of the other handle is not mistaken for that.
        let _ = other.commit(&[], &[put(b"other", value)]).unwrap();
        assert_eq!(store.get(b"other").unwrap().unwrap().value, value);
    }
}

#[test]
fn a_full_disk_loses_the_commit_and_nothing_else() {
    let Some(server) = shared() else { return };
    let name = server.database();
    let mut store = PostgresStore::open(&server.url(&name)).unwrap();
    let _ = store.commit(&[], &[put(b"before", b"1")]).unwrap();
    // The error of PostgreSQL when a write to its disk fails with ENOSPC.
    server.sql(
        &name,
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION
         'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
         CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON outcore.entries FOR EACH ROW EXECUTE FUNCTION full_disk()",
    );
    let error = store.commit(&[], &[put(b"a", b"1")]).unwrap_err();
    assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
    assert_eq!(store.get(b"a").unwrap(), None);
    store.begin_group().unwrap();
    let _ = store.commit(&[guard(b"in", None)], &[put(b"in", b"1")]).unwrap();
    assert_eq!(store.range(b"in", b"io", 9).unwrap_err().kind, ErrorKind::DiskFull, "it sends the writes");
    assert!(store.commit(&[], &[put(b"later", b"1")]).is_err());
    assert_eq!(store.end_group().unwrap_err().kind, ErrorKind::DiskFull);
    assert_eq!(store.get(b"before").unwrap().unwrap().value, b"1");
    server.sql(&name, "DROP TRIGGER full_disk ON outcore.entries");
    assert_eq!(store.get(b"in").unwrap(), None);
    assert_eq!(store.get(b"later").unwrap(), None);
    let done = store.commit(&[], &[put(b"after", b"1")]).unwrap();
    assert!(matches!(done, Outcome::Done(_)), "it goes on when there is room");
}
