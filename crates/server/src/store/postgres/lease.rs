//! The lease of the active manager: a row with a number that grows with each holder, and a beat that grows while the
//! holder lives.
//!
//! The holder's session also has an advisory lock. If the holder dies, the database frees the lock at once. A holder that is
//! suspended, or cut off, keeps it; then its beat stands still. A new holder writes its number into the row that each
//! commit locks and checks, so a commit of an earlier holder fails. No clock of another machine counts.

use std::thread;
use std::time::{Duration, Instant};

use outcore_core::{ErrorKind, Result};
use postgres::Client;

use super::session::{ALONE, Database, USING, connect};

/// A stand-by takes the lease of a holder whose beat has stood still for this long.
const TERM: Duration = Duration::from_secs(6);
/// A holder may act for this long after a beat began. It is well below [`TERM`].
pub const VALID: Duration = Duration::from_secs(4);
/// Time between two beats, and between two looks of a stand-by.
pub const BEAT: Duration = Duration::from_millis(500);
/// Time for a holder that has lost only its connection to show that it lives.
const GRACE: Duration = Duration::from_secs(2);
/// The beat of a holder that has given the lease back.
const GIVEN_BACK: i64 = -1;

/// A table that an earlier version made lacks the column.
const LOOK: &str =
    "SELECT fence, beat, coalesce(to_jsonb(lease) ->> 'holder', '') AS holder FROM outcore.lease AS lease";
const HAS_HOLDER: &str = "SELECT to_jsonb(lease) ? 'holder' FROM outcore.lease AS lease";
const ADD_HOLDER: &str = "ALTER TABLE outcore.lease ADD COLUMN IF NOT EXISTS holder text NOT NULL DEFAULT ''";
const TAKE: &str = "
    WITH taken AS (UPDATE outcore.lease SET fence = fence + 1, beat = 0, holder = $1 RETURNING fence)
    UPDATE outcore.store SET fence = taken.fence FROM taken RETURNING outcore.store.fence
";
const DEPOSE: &str = "
    SELECT count(pg_terminate_backend(pid)) FROM pg_locks
    WHERE locktype = 'advisory' AND pid <> pg_backend_pid() AND objsubid = 1
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
        AND (classid::bigint << 32) | objid::bigint = ANY($1::bigint[])
";

/// The knowledge of a stand-by about the active manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Another manager is active. The text names it; it is empty if that manager is of an earlier version.
    Active(String),
    /// No manager is active: the stand-by is about to take the lease.
    Nobody,
    /// The database does not answer, for this reason.
    Unreachable(String),
}

/// A lease that this process has, or had.
#[derive(Debug)]
pub struct PostgresLease {
    database: Database,
    client: Option<Hidden>,
    fence: i64,
    taken: Instant,
}

/// A session that is not printed.
struct Hidden(Client);

impl std::fmt::Debug for Hidden {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a session")
    }
}

impl PostgresLease {
    /// Takes the lease unless a holder lives. `name` tells stand-bys where this manager is.
    pub fn take(database: &Database, name: &str) -> Result<Self> {
        let mut client = connect(database)?;
        let began = Instant::now();
        while !lock(&mut client, database)? {
            // The database may not know yet that the holder has died.
            if began.elapsed() >= BEAT {
                return Err(database.is_taken());
            }
            thread::sleep(BEAT / 10);
        }
        Self::become_holder(database, client, name)
    }

    /// Waits until no holder lives, and takes the lease like [`take`](Self::take). Calls `note` after each look at the holder.
    pub fn stand_by(database: &Database, name: &str, mut note: impl FnMut(Seen)) -> Result<Self> {
        let mut watch = Watch::default();
        let mut open: Option<Client> = None;
        loop {
            let mut client = match open.take().map_or_else(|| connect(database), Ok) {
                Ok(client) => client,
                Err(error) if matches!(error.kind, ErrorKind::Io | ErrorKind::Busy) => {
                    // A holder without the database does not live either, but takes the lease first when that is back.
                    watch = Watch::default();
                    note(Seen::Unreachable(error.message));
                    thread::sleep(BEAT);
                    continue;
                }
                Err(error) => return Err(error),
            };
            match watch.look(&mut client, database) {
                Ok(true) => return Self::become_holder(database, client, name),
                Ok(false) => {
                    note(watch.holder.clone().map_or(Seen::Nobody, Seen::Active));
                    open = Some(client);
                }
                Err(error) if matches!(error.kind, ErrorKind::Io | ErrorKind::Busy) => {
                    watch = Watch::default();
                    note(Seen::Unreachable(error.message));
                }
                Err(error) => return Err(error),
            }
            thread::sleep(BEAT);
        }
    }

    fn become_holder(database: &Database, mut client: Client, name: &str) -> Result<Self> {
        let failed = |error: postgres::Error| database.describe("open", &error);
        client.query_one(DEPOSE, &[&vec![ALONE, USING]]).map_err(failed)?;
        let has_holder: bool =
            client.query_one(HAS_HOLDER, &[]).and_then(|row| row.try_get(0)).map_err(failed)?;
        if !has_holder {
            client.batch_execute(ADD_HOLDER).map_err(failed)?;
        }
        let taken = Instant::now();
        let fence = client.query_one(TAKE, &[&name]).and_then(|row| row.try_get(0)).map_err(failed)?;
        // The earlier holder may have opened a session with the old number in between. Its reads check no number.
        client.query_one(DEPOSE, &[&vec![USING]]).map_err(failed)?;
        Ok(Self { database: database.clone(), client: Some(Hidden(client)), fence, taken })
    }

    /// The number of this holder. Later holders have larger ones.
    pub fn fence(&self) -> i64 {
        self.fence
    }

    /// The time at which the database was asked for it.
    pub fn taken(&self) -> Instant {
        self.taken
    }

    /// Shows that the holder lives. Returns whether it still has the lease; an error says that the database does not
    /// answer.
    pub fn beat(&mut self) -> Result<bool> {
        let beat = "UPDATE outcore.lease SET beat = beat + 1 WHERE fence = $1";
        if self.client.is_none() {
            let mut client = connect(&self.database)?;
            // The fence counts. The lock shows a stand-by at once that this process has died.
            lock(&mut client, &self.database)?;
            self.client = Some(Hidden(client));
        }
        let Some(Hidden(client)) = &mut self.client else { return Ok(false) };
        match client.execute(beat, &[&self.fence]) {
            Ok(count) => Ok(count == 1),
            Err(error) => {
                self.client = None;
                Err(self.database.describe("reach", &error))
            }
        }
    }

    /// Gives the lease back, so that a stand-by need not wait.
    pub fn give_back(mut self) {
        if let Some(Hidden(client)) = &mut self.client {
            let given = "UPDATE outcore.lease SET beat = $2 WHERE fence = $1";
            // A stand-by notices the end of the session too, a little later.
            let _ = client.execute(given, &[&self.fence, &GIVEN_BACK]);
        }
    }
}

fn lock(client: &mut Client, database: &Database) -> Result<bool> {
    let locked = client.query_one("SELECT pg_try_advisory_lock($1)", &[&ALONE]);
    locked.and_then(|row| row.try_get(0)).map_err(|error| database.describe("open", &error))
}

/// The observations of a stand-by.
#[derive(Default)]
struct Watch {
    /// Fence and beat, and since when they are the same.
    seen: Option<((i64, i64), Instant)>,
    /// The name of the holder, if one seems to live.
    holder: Option<String>,
    is_locked: bool,
}

impl Watch {
    /// Whether no holder lives. The lock is then taken.
    fn look(&mut self, client: &mut Client, database: &Database) -> Result<bool> {
        let failed = |error: postgres::Error| database.describe("read", &error);
        let row = client.query_one(LOOK, &[]).map_err(failed)?;
        let now = (row.try_get(0).map_err(failed)?, row.try_get(1).map_err(failed)?);
        let since = match self.seen {
            Some((before, since)) if before == now => since,
            _ => Instant::now(),
        };
        if self.seen.replace((now, since)).is_some_and(|(before, _)| before != now) && self.is_locked {
            // The holder had only lost its session.
            client.execute("SELECT pg_advisory_unlock($1)", &[&ALONE]).map_err(failed)?;
            self.is_locked = false;
            return Ok(false);
        }
        if !self.is_locked {
            self.is_locked = lock(client, database)?;
        }
        let is_away = self.is_locked || now.1 == GIVEN_BACK;
        self.holder = if is_away { None } else { Some(row.try_get(2).map_err(failed)?) };
        let still = since.elapsed();
        if self.is_locked {
            return Ok(now.1 == GIVEN_BACK || still >= GRACE);
        }
        if still >= TERM {
            client.query_one(DEPOSE, &[&vec![ALONE]]).map_err(failed)?;
        }
        Ok(false)
    }
}
