//! A session with the database: its URL, its settings, the creation of the tables, and the checks of existing ones.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use outcore_core::{Error, ErrorKind, Result};
use postgres::config::{Host, SslMode, TargetSessionAttrs};
use postgres::{Client, Config, NoTls, SimpleQueryMessage, Statement};

/// The format of the records, that of SQLite's `user_version`.
pub(super) const FORMAT: i32 = 3;
/// The state of a store that can be used.
pub(super) const WHOLE: &str = "whole";
/// The state of a store that an administrator has restored from a copy.
pub(super) const RESTORED: &str = "restored";
/// Oldest version of PostgreSQL, as `server_version_num`. It has `idle_session_timeout`.
const OLDEST: i32 = 140_000;
/// Time to connect, unless the URL says otherwise.
const CONNECT: Duration = Duration::from_secs(3);
/// Time after which a machine counts as dead that acknowledges no packets.
const SILENT: Duration = Duration::from_secs(10);
/// Port of PostgreSQL.
const PORT: u16 = 5432;
/// Directory of the socket on this machine.
const SOCKETS: &str = "/run/postgresql";

const TABLES: &str = "
    CREATE SCHEMA outcore;
    CREATE TABLE outcore.entries (
        key bytea PRIMARY KEY, value bytea NOT NULL, version bigint NOT NULL, sum bigint NOT NULL
    ) WITH (fillfactor = 80);
    CREATE TABLE outcore.store (
        one boolean PRIMARY KEY DEFAULT true CHECK (one), format integer NOT NULL, state text NOT NULL,
        version bigint NOT NULL, writer text NOT NULL, fence bigint NOT NULL
    ) WITH (fillfactor = 10);
    INSERT INTO outcore.store (format, state, version, writer, fence) VALUES (3, 'whole', 0, '', 0);
    CREATE TABLE outcore.lease (
        one boolean PRIMARY KEY DEFAULT true CHECK (one), fence bigint NOT NULL, beat bigint NOT NULL,
        holder text NOT NULL DEFAULT ''
    ) WITH (fillfactor = 10);
    INSERT INTO outcore.lease (fence, beat) VALUES (0, -1);
";

/// The administrator of a database may have changed these.
const SETTINGS: &str = "
    SET lock_timeout = '10s';
    SET statement_timeout = 0;
    SET idle_in_transaction_session_timeout = '10s';
    SET idle_session_timeout = 0;
    SET enable_seqscan = off;
    SET enable_bitmapscan = off;
    SET plan_cache_mode = force_generic_plan;
    SET jit = off;
";

/// The row that [`Database::check_row`] checks.
const ROW: &str = "SELECT format, state, version, fence FROM outcore.store";
/// Begins a group: locks the row of the store. Later statements then see all earlier commits.
pub(super) const BEGIN: &str = "
    BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
    SELECT format, state, version, fence FROM outcore.store FOR UPDATE
";
/// Version and writer of the last commit.
pub(super) const LAST: &str = "SELECT version, writer FROM outcore.store FOR UPDATE";
pub(super) const IS_LATEST: &str = "
    SELECT (SELECT count(*) FROM outcore.store) = 1
        AND coalesce((SELECT max(version) FROM outcore.entries) <= (SELECT version FROM outcore.store), true)
";
const READ: &str = "SELECT key, value, version, sum FROM outcore.entries WHERE";
const WRITE: &str = "
    WITH gone AS (DELETE FROM outcore.entries WHERE key = ANY($1::bytea[])),
    put AS (
        INSERT INTO outcore.entries (key, value, version, sum)
        SELECT * FROM unnest($2::bytea[], $3::bytea[], $4::bigint[], $5::bigint[])
        ON CONFLICT (key) DO UPDATE SET value = excluded.value, version = excluded.version, sum = excluded.sum
    )
    UPDATE outcore.store SET version = $6::bigint, writer = $7::text
";
/// Numbers of advisory locks: for the creation of the tables; of the session that shows that the active manager lives; and
/// of those in which it commits.
const CREATING: i64 = 0x6f75_7463_0000;
pub(super) const ALONE: i64 = 0x6f75_7463_0001;
pub(super) const USING: i64 = 0x6f75_7463_0002;

/// A database of PostgreSQL.
#[derive(Clone)]
pub struct Database {
    pub(super) config: Config,
    pub(super) name: String,
    /// The number of the lease with which commits are made, if they need one.
    pub(super) fence: Option<i64>,
    /// Whether a store may be used that a migration has not finished, or has left.
    pub(super) is_moving: bool,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl FromStr for Database {
    type Err = Error;

    /// Reads a URL such as `postgres://user:password@host/database`.
    fn from_str(url: &str) -> Result<Self> {
        let unusable = |what: &str| {
            // The URL may contain a password.
            Error::invalid(format!(
                "need the URL of a database, such as postgres://user@host/database or \
                 postgres:///database?host=/run/postgresql, {what}; change the setting store"
            ))
        };
        if !["postgres://", "postgresql://"].iter().any(|scheme| url.starts_with(scheme)) {
            return Err(unusable("have another scheme"));
        }
        let mut config: Config = url.parse().map_err(|error: postgres::Error| {
            let cause = std::error::Error::source(&error).map_or(error.to_string(), ToString::to_string);
            unusable(&format!("have one that cannot be read: {cause}"))
        })?;
        let Some(database) = config.get_dbname().map(str::to_owned) else {
            return Err(unusable("have no name of a database in it"));
        };
        if config.get_ssl_mode() == SslMode::Require {
            return Err(unusable(
                "have one with sslmode=require, and outcore does not encrypt this connection: use a socket on the machine \
                 of the database, a tunnel, or a private network, and leave sslmode out",
            ));
        }
        if config.get_hosts().is_empty() && config.get_hostaddrs().is_empty() {
            config.host_path(SOCKETS);
        }
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT);
        }
        config.tcp_user_timeout(SILENT).keepalives_idle(SILENT).application_name("outcore");
        // If there are several hosts, the session is with the one that takes writes.
        config.target_session_attrs(TargetSessionAttrs::ReadWrite);
        let name = format!("{database} at {}", places(&config));
        Ok(Self { config, name, fence: None, is_moving: false })
    }
}

impl Database {
    /// Its name and its server, without a password.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The error for a database whose contents contradict each other.
    pub(super) fn damaged(&self, found: &str) -> Error {
        let text = format!(
            "need the metadata store in the database {} whole, have: {found}; restore it from a backup",
            self.name
        );
        Error::new(ErrorKind::Corrupt, text)
    }

    /// The error for a database that another manager uses.
    pub(super) fn is_taken(&self) -> Error {
        let text = format!(
            "need the database {} alone, have another manager that uses it; stop that manager, or name another database",
            self.name
        );
        Error::new(ErrorKind::Busy, text)
    }

    /// The version in the row that [`BEGIN`] or [`ROW`] returned, if the store can be used.
    pub(super) fn check_row(&self, messages: &[SimpleQueryMessage]) -> Result<i64> {
        let row = messages.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => {
                Some((row.get(0)?, row.get(1)?, row.get(2)?.parse().ok()?, row.get(3)?.parse().ok()?))
            }
            _ => None,
        });
        let (format, state, version, fence): (&str, _, _, i64) =
            row.ok_or_else(|| self.damaged("no row in its table outcore.store"))?;
        self.check_format(format)?;
        if state != WHOLE && state != RESTORED && !self.is_moving {
            return Err(Error::invalid(format!(
                "need a whole metadata store, have one that is {state} in the database {}; run the `outcore pool migrate` again \
                 that was the last one",
                self.name
            )));
        }
        if self.fence.is_some_and(|own| own != fence) {
            return Err(self.deposed());
        }
        Ok(version)
    }

    fn check_format(&self, format: &str) -> Result<()> {
        if format == FORMAT.to_string() {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "need a metadata store of format {FORMAT}, have format {format} in the database {}; choose another database, or \
             the version of outcore that wrote it",
            self.name
        )))
    }

    /// The error of a manager whose lease another one has.
    fn deposed(&self) -> Error {
        let text = format!(
            "need the lease of the active manager in the database {}, have lost it to another manager; this one ends",
            self.name
        );
        Error::new(ErrorKind::Closed, text)
    }
}

/// The addresses of a database.
fn places(config: &Config) -> String {
    let ports = config.get_ports();
    let port = |number: usize| ports.get(number).or(ports.first()).copied().unwrap_or(PORT);
    let hosts = config.get_hosts().iter().enumerate().map(|(number, host)| match host {
        Host::Tcp(name) => format!("{name}:{}", port(number)),
        Host::Unix(path) => path.display().to_string(),
    });
    let hosts: Vec<String> = hosts.collect();
    if hosts.is_empty() {
        return config.get_hostaddrs().iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    }
    hosts.join(", ")
}

/// An open session, with its prepared statements.
pub(super) struct Session {
    pub client: Client,
    pub get: Statement,
    pub many: Statement,
    pub range: Statement,
    pub write: Statement,
    /// A random text, which says who wrote the last commit.
    pub writer: String,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("writer", &self.writer).finish_non_exhaustive()
    }
}

impl Session {
    /// Connects, and checks the store.
    pub fn open(database: &Database) -> Result<Self> {
        let failed = |error: postgres::Error| database.describe("open", &error);
        let mut client = connect(database)?;
        if database.fence.is_some() {
            // The next holder of the lease finds this session by its lock, and ends it.
            client.execute("SELECT pg_advisory_lock_shared($1)", &[&USING]).map_err(failed)?;
        }
        let found = client.simple_query(ROW).map_err(failed)?;
        database.check_row(&found)?;
        Self::prepare(client).map_err(failed)
    }

    fn prepare(mut client: Client) -> std::result::Result<Self, postgres::Error> {
        let get = client.prepare(&format!("{READ} key = $1"))?;
        let many = client.prepare(&format!("{READ} key = ANY($1::bytea[])"))?;
        let range = client.prepare(&format!("{READ} key >= $1 AND key < $2 ORDER BY key LIMIT $3"))?;
        let write = client.prepare(WRITE)?;
        let writer = client.query_one("SELECT gen_random_uuid()::text", &[])?.try_get(0)?;
        Ok(Self { client, get, many, range, write, writer })
    }
}

/// Connects, and creates the tables in an empty database.
pub(super) fn connect(database: &Database) -> Result<Client> {
    let failed = |error: postgres::Error| database.describe("open", &error);
    let mut client = database.config.connect(NoTls).map_err(failed)?;
    check_server(&mut client, database)?;
    client.batch_execute(SETTINGS).map_err(failed)?;
    set_up(&mut client, database)?;
    Ok(client)
}

/// Refuses a server that is too old, or that loses commits with the power.
fn check_server(client: &mut Client, database: &Database) -> Result<()> {
    let settings = "
        SELECT current_setting('server_version_num')::integer, current_setting('server_version'),
            current_setting('fsync') = 'on' AND current_setting('full_page_writes') = 'on',
            set_config('synchronous_commit', CASE current_setting('synchronous_commit')
                WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)
    ";
    let row = client.query_one(settings, &[]).map_err(|error| database.describe("open", &error))?;
    if row.get::<_, i32>(0) < OLDEST {
        let have = row.get::<_, String>(1);
        return Err(Error::invalid(format!("need PostgreSQL 14 or later, have {have}; upgrade it")));
    }
    if !row.get::<_, bool>(2) {
        return Err(Error::invalid(format!(
            "need a database that survives power loss, have {} with fsync or full_page_writes off; set both to on in its \
             postgresql.conf",
            database.name
        )));
    }
    Ok(())
}

/// Creates the tables, unless the database has them. Refuses a schema of something else.
fn set_up(client: &mut Client, database: &Database) -> Result<()> {
    let failed = |error: postgres::Error| database.describe("open", &error);
    let found = "SELECT to_regclass('outcore.store') IS NOT NULL, to_regnamespace('outcore') IS NOT NULL";
    let row = client.query_one(found, &[]).map_err(failed)?;
    if row.get::<_, bool>(0) {
        // Another version may have other columns.
        let row = client.query_opt("SELECT format::text FROM outcore.store", &[]).map_err(failed)?;
        let row = row.ok_or_else(|| database.damaged("no row in its table outcore.store"))?;
        return database.check_format(row.get(0));
    }
    // Another process may create them at the same time.
    let mut creation = client.transaction().map_err(failed)?;
    creation.execute("SELECT pg_advisory_xact_lock($1)", &[&CREATING]).map_err(failed)?;
    let row = creation.query_one(found, &[]).map_err(failed)?;
    match (row.get::<_, bool>(0), row.get::<_, bool>(1)) {
        (true, _) => Ok(()),
        (false, true) => Err(Error::invalid(format!(
            "need a metadata store in the schema outcore of the database {}, have other tables; name another database",
            database.name
        ))),
        (false, false) => {
            creation.batch_execute(TABLES).map_err(failed)?;
            creation.commit().map_err(failed)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_database_is_named_without_its_password() {
        for (url, name) in [
            ("postgres://me:secret@db1/pool", "pool at db1:5432"),
            ("postgresql://me@db1:5433,db2:5434/pool", "pool at db1:5433, db2:5434"),
            ("postgres://me@/pool?host=/tmp/s", "pool at /tmp/s"),
            ("postgres:///pool", "pool at /run/postgresql"),
        ] {
            let database = url.parse::<Database>().unwrap();
            assert_eq!(database.name, name);
            assert_eq!(format!("{database:?}"), name);
        }
    }

    #[test]
    fn a_url_that_cannot_be_used_is_refused_without_its_password() {
        for (url, have) in [
            ("host=db1 password=secret", "another scheme"),
            ("mysql://me:secret@db1/pool", "another scheme"),
            ("postgres://me:secret@db1", "no name of a database"),
            ("postgres://me:secret@db1:port/pool", "cannot be read"),
            ("postgres://me:secret@db1/pool?color=red", "cannot be read"),
            ("postgres://me:secret@db1/pool?sslmode=require", "does not encrypt"),
        ] {
            let error = url.parse::<Database>().unwrap_err();
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.message.contains(have) && !error.message.contains("secret"), "{error}");
        }
    }
}
