//! The metadata store that several machines can reach: PostgreSQL.
//!
//! One row of the database has the version of the last commit. Each group of commits is one transaction, which locks this row
//! first. So groups of all managers happen one after another, and the records that a group reads stay the same until its
//! end. The group's writes stay in memory, and reach the database together at the end.

mod errors;
mod lease;
mod moving;
mod session;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Bound::{Excluded, Included};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::{Error, ErrorKind, Result};
use postgres::Row;
use postgres::types::ToSql;

use super::sum::{check_sum, sum};
use super::{Guard, MAX_COMMIT_BYTES, MAX_RANGE, Outcome, Store, Versioned, Write, check_commit};
use errors::is_of_session;
pub use lease::{BEAT, PostgresLease, Seen, VALID};
pub use moving::Progress;
pub use session::Database;
use session::Session;

/// Time from the loss of the connection after which calls fail at once. PostgreSQL restarts in a few seconds.
const PATIENCE: Duration = Duration::from_secs(10);
/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);
/// Cached keys, at most.
const MOST_KNOWN: usize = 1 << 15;
/// Bytes of a cached value, at most.
const MOST_KNOWN_BYTES: usize = 1024;

/// A store in a database of PostgreSQL. Several processes of several machines may open it.
///
/// A commit survives power loss when it returns. If the connection is lost, the next call outside of a group opens another one.
#[derive(Debug)]
pub struct PostgresStore {
    inner: RefCell<Inner>,
}

#[derive(Debug)]
struct Inner {
    database: Database,
    session: Option<Session>,
    group: Option<Group>,
    known: Known,
    patience: Duration,
    /// Since when there is no connection.
    down_since: Option<Instant>,
}

/// A group of commits: an open transaction.
#[derive(Debug)]
struct Group {
    /// The version of the last commit.
    version: i64,
    /// The version that the database has.
    sent: i64,
    /// The version before the group.
    first: i64,
    /// Writes that the database does not have yet, and the bytes of their values.
    held: BTreeMap<Vec<u8>, Option<Versioned>>,
    held_bytes: usize,
    /// The first error after which the transaction cannot be committed.
    failure: Option<Error>,
}

/// A cache of records as of a version, for groups. A group clears it if anybody else has committed since.
#[derive(Debug, Default)]
struct Known {
    version: i64,
    entries: HashMap<Vec<u8>, Option<Versioned>>,
}

impl Known {
    fn note(&mut self, key: Vec<u8>, found: Option<Versioned>) {
        if self.entries.len() >= MOST_KNOWN {
            self.entries.clear();
        }
        if found.as_ref().is_some_and(|found| found.value.len() > MOST_KNOWN_BYTES) {
            self.entries.remove(&key);
        } else {
            self.entries.insert(key, found);
        }
    }
}

impl PostgresStore {
    /// Opens the store in a database, or creates its tables there.
    pub fn open(database: &Database) -> Result<Self> {
        Self::of(database.clone())
    }

    /// Opens a store whose commits fail, with errors of kind `closed`, once the lease has another number than this one.
    pub fn open_under(database: &Database, fence: i64) -> Result<Self> {
        Self::of(Database { fence: Some(fence), ..database.clone() })
    }

    fn of(database: Database) -> Result<Self> {
        let known = Known::default();
        let patience = PATIENCE;
        let mut inner = Inner { database, session: None, group: None, known, patience, down_since: None };
        inner.session()?;
        Ok(Self { inner: RefCell::new(inner) })
    }

    /// Sets how long calls wait for a database that does not answer, from the moment when the first one found that; 10 s
    /// by default.
    pub fn set_patience(&mut self, patience: Duration) {
        self.inner.get_mut().patience = patience;
    }
}

impl Inner {
    /// The session with the database. Without one, this waits for the database for a while.
    fn session(&mut self) -> Result<&mut Session> {
        while self.session.is_none() {
            let since = *self.down_since.get_or_insert_with(Instant::now);
            match Session::open(&self.database) {
                Ok(session) => {
                    self.session = Some(session);
                    self.down_since = None;
                }
                Err(error) => {
                    let may_pass = matches!(error.kind, ErrorKind::Io | ErrorKind::Busy);
                    if !may_pass || since.elapsed() >= self.patience {
                        return Err(error);
                    }
                    thread::sleep(PAUSE);
                }
            }
        }
        self.session.as_mut().ok_or_else(|| Error::new(ErrorKind::Io, "need a session, have none; try again"))
    }

    /// Runs statements. A lost session is replaced once by another one, outside of groups.
    fn run<T>(
        &mut self,
        what: &str,
        mut work: impl FnMut(&mut Session) -> std::result::Result<T, postgres::Error>,
    ) -> Result<T> {
        self.check_group()?;
        let mut may_repeat = self.group.is_none();
        loop {
            let error = match work(self.session()?) {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            let is_over = is_of_session(&error);
            if is_over {
                self.session = None;
            }
            if is_over && std::mem::take(&mut may_repeat) {
                continue;
            }
            let mut failure = self.database.describe(what, &error);
            if let Some(group) = &mut self.group {
                if is_over {
                    failure.kind = ErrorKind::Busy;
                }
                group.failure.get_or_insert_with(|| failure.clone());
            }
            return Err(failure);
        }
    }

    /// Refuses work in a group that has failed.
    fn check_group(&self) -> Result<()> {
        self.group.as_ref().and_then(|group| group.failure.clone()).map_or(Ok(()), Err)
    }

    fn begin(&mut self) -> Result<()> {
        if self.group.is_some() {
            return Err(Error::invalid("need the end of one group before the next begins; end it"));
        }
        let begun = self.run("write", |session| session.client.simple_query(session::BEGIN));
        let begun = begun.and_then(|messages| self.database.check_row(&messages));
        match begun {
            Ok(version) => {
                if self.known.version != version {
                    self.known = Known { version, entries: HashMap::new() };
                }
                let (sent, first, held) = (version, version, BTreeMap::new());
                self.group = Some(Group { version, sent, first, held, held_bytes: 0, failure: None });
                Ok(())
            }
            Err(error) => {
                self.roll_back();
                Err(error)
            }
        }
    }

    /// Ends the transaction without its writes.
    fn roll_back(&mut self) {
        let rolled = self.session.as_mut().map(|session| session.client.batch_execute("ROLLBACK"));
        if rolled.is_some_and(|rolled| rolled.is_err()) {
            self.session = None;
        }
    }

    fn end(&mut self) -> Result<()> {
        if self.group.is_none() {
            return Ok(());
        }
        let sent = self.send_held();
        let Some(group) = self.group.take() else { return Ok(()) };
        let ended = match sent {
            // This waits for no disk.
            Ok(()) if group.version == group.first => {
                self.roll_back();
                return Ok(());
            }
            Ok(()) => self.commit(group.version),
            Err(error) => Err(error),
        };
        if ended.is_ok() {
            self.known.version = group.version;
        } else {
            self.known = Known::default();
            self.roll_back();
        }
        ended
    }

    /// Commits the transaction. If the connection is lost meanwhile, finds out whether it was committed.
    fn commit(&mut self, version: i64) -> Result<()> {
        let Some(session) = self.session.as_mut() else {
            return Err(Error::new(ErrorKind::Busy, "need the session of a group, have lost it; try again"));
        };
        let Err(error) = session.client.batch_execute("COMMIT") else { return Ok(()) };
        let failure = self.database.describe("write", &error);
        if !is_of_session(&error) {
            return Err(failure);
        }
        let Some(lost) = self.session.take() else { return Err(failure) };
        match self.last() {
            Ok((last, writer)) if last == version && writer == lost.writer => Ok(()),
            Ok((last, _)) if last <= version => Err(Error { kind: ErrorKind::Busy, ..failure }),
            Err(error) if error.kind == ErrorKind::Closed => Err(error),
            _ => Err(Error::new(
                ErrorKind::Io,
                format!(
                    "{}; it is unknown whether the last changes were made: look at their names",
                    failure.message
                ),
            )),
        }
    }

    /// Version and writer of the last commit, once no transaction is open that could commit another one.
    fn last(&mut self) -> Result<(i64, String)> {
        self.run("read", |session| {
            let row = session.client.query_one(session::LAST, &[])?;
            Ok((row.try_get(0)?, row.try_get(1)?))
        })
    }

    fn find(&mut self, key: &[u8]) -> Result<Option<Versioned>> {
        if let Some(found) = self.known_in_group(key) {
            self.check_group()?;
            return Ok(found.clone());
        }
        let found = self.run("read", |session| {
            session.client.query_opt(&session.get, &[&key])?.map(|row| summed(&row)).transpose()
        })?;
        let found = found.map(checked).transpose()?.map(|(_, found)| found);
        if self.group.is_some() {
            self.known.note(key.to_vec(), found.clone());
        }
        Ok(found)
    }

    /// The record of a key, as far as a group knows it without the database.
    fn known_in_group(&self, key: &[u8]) -> Option<&Option<Versioned>> {
        self.group.as_ref()?.held.get(key).or_else(|| self.known.entries.get(key))
    }

    /// The records of several keys, by one request for those that a group does not know.
    fn find_many(&mut self, keys: &[&[u8]]) -> Result<Vec<Option<Versioned>>> {
        self.check_group()?;
        let mut found: HashMap<&[u8], Option<Versioned>> = HashMap::new();
        let mut unknown: BTreeSet<&[u8]> = BTreeSet::new();
        for &key in keys {
            if let Some(known) = self.known_in_group(key) {
                found.insert(key, known.clone());
            } else {
                unknown.insert(key);
            }
        }
        let unknown: Vec<&[u8]> = unknown.into_iter().collect();
        if !unknown.is_empty() {
            let read = self.run("read", |session| {
                session.client.query(&session.many, &[&unknown])?.iter().map(summed).collect::<Read<Vec<_>>>()
            })?;
            let mut read = read.into_iter().map(checked).collect::<Result<HashMap<_, _>>>()?;
            for key in unknown {
                let record = read.remove(key);
                if self.group.is_some() {
                    self.known.note(key.to_vec(), record.clone());
                }
                found.insert(key, record);
            }
        }
        Ok(keys.iter().map(|key| found.get(key).cloned().flatten()).collect())
    }

    fn range(&mut self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        if from >= until {
            return Ok(Vec::new());
        }
        let held =
            |group: &Group| group.held.range::<[u8], _>((Included(from), Excluded(until))).next().is_some();
        if self.group.as_ref().is_some_and(held) {
            self.send_held()?;
        }
        let most = most.min(MAX_RANGE) as i64;
        let found = self.run("read", |session| {
            let rows = session.client.query(&session.range, &[&from, &until, &most])?;
            rows.iter().map(summed).collect::<Read<Vec<_>>>()
        })?;
        // A damaged index could send a walk back to an earlier key.
        let is_in_order = found.is_sorted_by(|(one, ..), (next, ..)| one < next)
            && found.iter().all(|(key, ..)| (from..until).contains(&key.as_slice()));
        if !is_in_order {
            return Err(self.database.damaged("records that are not in the order of their keys"));
        }
        found.into_iter().map(checked).collect()
    }

    /// Checks guards and performs writes within a group.
    fn apply(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        let guarded: Vec<&[u8]> = guards.iter().map(|guard| guard.key.as_slice()).collect();
        let found = self.find_many(&guarded)?;
        let version = |found: Option<Versioned>| found.map(|found| found.version);
        if !found.into_iter().map(version).eq(guards.iter().map(|guard| guard.version)) {
            return Ok(Outcome::Conflict);
        }
        let Some(group) = &mut self.group else {
            return Err(Error::invalid("need a group for a write, have none; begin one"));
        };
        group.version += 1;
        let version = group.version as u64;
        for write in writes {
            let value = write.value.clone().map(|value| Versioned { value, version });
            group.held_bytes += write.value.as_ref().map_or(0, Vec::len);
            group.held.insert(write.key.clone(), value);
        }
        if group.held_bytes > MAX_COMMIT_BYTES {
            self.send_held()?;
        }
        Ok(Outcome::Done(version))
    }

    /// Sends the writes of the group to the database, within its transaction.
    fn send_held(&mut self) -> Result<()> {
        self.check_group()?;
        let Some(group) = &mut self.group else { return Ok(()) };
        if group.sent == group.version {
            return Ok(());
        }
        let (version, held) = (group.version, std::mem::take(&mut group.held));
        (group.sent, group.held_bytes) = (version, 0);
        let (mut gone, mut keys, mut values, mut versions, mut sums) =
            (vec![], vec![], vec![], vec![], vec![]);
        for (key, found) in &held {
            match found {
                None => gone.push(key.as_slice()),
                Some(found) => {
                    keys.push(key.as_slice());
                    values.push(found.value.as_slice());
                    versions.push(found.version as i64);
                    sums.push(i64::from(sum(key, &found.value, found.version)));
                }
            }
        }
        self.run("write", |session| {
            let parameters: [&(dyn ToSql + Sync); 7] =
                [&gone, &keys, &values, &versions, &sums, &version, &session.writer];
            session.client.execute(&session.write, &parameters)
        })?;
        for (key, found) in held {
            self.known.note(key, found);
        }
        Ok(())
    }

    fn check(&mut self) -> Result<()> {
        self.send_held()?;
        let is_latest =
            self.run("check", |session| session.client.query_one(session::IS_LATEST, &[])?.try_get(0))?;
        let what = "a number of the last commit below that of a record";
        if is_latest { Ok(()) } else { Err(self.database.damaged(what)) }
    }
}

impl Store for PostgresStore {
    fn get(&self, key: &[u8]) -> Result<Option<Versioned>> {
        self.inner.borrow_mut().find(key)
    }

    fn get_many(&self, keys: &[Vec<u8>]) -> Result<Vec<Option<Versioned>>> {
        let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
        self.inner.borrow_mut().find_many(&keys)
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn range(&self, from: &[u8], until: &[u8], most: usize) -> Result<Vec<(Vec<u8>, Versioned)>> {
        self.inner.borrow_mut().range(from, until, most)
    }

    fn commit(&mut self, guards: &[Guard], writes: &[Write]) -> Result<Outcome> {
        check_commit(guards, writes)?;
        let inner = self.inner.get_mut();
        if inner.group.is_some() {
            inner.check_group()?;
            return inner.apply(guards, writes);
        }
        inner.begin()?;
        let applied = inner.apply(guards, writes);
        let ended = inner.end();
        applied.and_then(|outcome| ended.map(|()| outcome))
    }

    fn begin_group(&mut self) -> Result<()> {
        self.inner.get_mut().begin()
    }

    fn end_group(&mut self) -> Result<()> {
        self.inner.get_mut().end()
    }

    fn forget(&mut self) {
        self.inner.get_mut().known.entries.clear();
    }

    fn check(&self) -> Result<()> {
        self.inner.borrow_mut().check()
    }
}

type Read<T> = std::result::Result<T, postgres::Error>;

/// A key, a value with its version, and its stored checksum.
type Summed = (Vec<u8>, Versioned, i64);

fn summed(row: &Row) -> Read<Summed> {
    let version: i64 = row.try_get(2)?;
    Ok((row.try_get(0)?, Versioned { value: row.try_get(1)?, version: version as u64 }, row.try_get(3)?))
}

fn checked((key, found, kept): Summed) -> Result<(Vec<u8>, Versioned)> {
    // A checksum that is no uint32 is wrong, whatever is right.
    let kept = u32::try_from(kept).unwrap_or_else(|_| !sum(&key, &found.value, found.version));
    let found = check_sum(&key, found, kept)?;
    Ok((key, found))
}
