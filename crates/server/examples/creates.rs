//! Files created per second by a manager that waits for the disk once per batch, against bare commits of as many rows in the
//! same database: `cargo run --release -p outcore-server --example creates -- DIRECTORY [BATCH]` for SQLite, and the URL of an
//! empty database instead for PostgreSQL. Prints rounds of both, in turn.

use std::path::Path;
use std::time::Instant;

use outcore_core::{Error, Hints, ManagerReply, ManagerRequest, Origin, Result, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, Manager, Now, User};
use outcore_server::store::{Database, PostgresStore, SqliteStore, Store};
use postgres::{Client, NoTls};
use rusqlite::Connection;

const ROUNDS: usize = 5;
const BATCHES: usize = 200;

fn by_manager(store: impl Store, round: usize, batch: usize) -> Result<f64> {
    let mut manager = Manager::open(store, Key::new([1; 32]), Config::new(1))?;
    manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] })?;
    let who = User { uid: 0, gids: vec![0], is_root: true };
    let began = Instant::now();
    for number in 0..BATCHES {
        let create = |client: usize| {
            let path = format!("directory/client-{client}/file-{round}-{number:08}");
            let request = ManagerRequest::Create { path, hints: Hints::default(), mode: 0o644 };
            let origin = Some(Origin { client: client as u128, number: (round * BATCHES + number) as u64 });
            Asked { who: who.clone(), origin, request }
        };
        for reply in manager
            .handle_many(Now { unix_ns: number as u64, running_ns: 0 }, (0..batch).map(create).collect())
        {
            if let ManagerReply::Failed(error) = reply {
                return Err(error);
            }
        }
    }
    Ok((BATCHES * batch) as f64 / began.elapsed().as_secs_f64())
}

fn bare(path: &Path, batch: usize) -> rusqlite::Result<f64> {
    let connection = Connection::open(path)?;
    connection.execute_batch(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;
         CREATE TABLE files (name BLOB PRIMARY KEY, record BLOB NOT NULL) WITHOUT ROWID",
    )?;
    let began = Instant::now();
    for number in 0..BATCHES {
        connection.execute_batch("BEGIN IMMEDIATE")?;
        for client in 0..batch {
            let name = format!("directory/client-{client}/file-{number:08}");
            connection
                .prepare_cached("INSERT INTO files VALUES (?1, ?2)")?
                .execute((name.as_bytes(), [7_u8; 80]))?;
        }
        connection.execute_batch("COMMIT")?;
    }
    Ok((BATCHES * batch) as f64 / began.elapsed().as_secs_f64())
}

/// The same rows in PostgreSQL: one statement for each, or one for all.
fn bare_postgres(
    client: &mut Client,
    batch: usize,
    at_once: bool,
) -> std::result::Result<f64, postgres::Error> {
    client.batch_execute(
        "DROP TABLE IF EXISTS files; CREATE TABLE files (name bytea PRIMARY KEY, record bytea NOT NULL)",
    )?;
    let one = client.prepare("INSERT INTO files VALUES ($1, $2)")?;
    let all = client.prepare("INSERT INTO files SELECT * FROM unnest($1::bytea[], $2::bytea[])")?;
    let record = [7_u8; 80].as_slice();
    let began = Instant::now();
    for number in 0..BATCHES {
        let name = |client: usize| format!("directory/client-{client}/file-{number:08}").into_bytes();
        let names: Vec<Vec<u8>> = (0..batch).map(name).collect();
        let mut commit = client.transaction()?;
        if at_once {
            commit.execute(&all, &[&names, &vec![record; batch]])?;
        } else {
            for name in &names {
                commit.execute(&one, &[name, &record])?;
            }
        }
        commit.commit()?;
    }
    Ok((BATCHES * batch) as f64 / began.elapsed().as_secs_f64())
}

fn in_postgres(url: &str, round: usize, batch: usize) -> Result<()> {
    let database: Database = url.parse()?;
    let failed = |error: postgres::Error| Error::invalid(error.to_string());
    let mut client = Client::connect(url, NoTls).map_err(failed)?;
    let ours = by_manager(PostgresStore::open(&database)?, round, batch)?;
    let theirs = bare_postgres(&mut client, batch, false).map_err(failed)?;
    let at_once = bare_postgres(&mut client, batch, true).map_err(failed)?;
    println!(
        "batches of {batch}: {ours:.0} creates/s, bare PostgreSQL {theirs:.0} rows/s, ratio {:.2}; {at_once:.0} rows/s by one \
         statement for all, ratio {:.2}",
        ours / theirs,
        ours / at_once
    );
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or_else(|| {
        Error::invalid(
            "need a directory on the disk to measure, or a URL, have no argument; give an empty directory or database",
        )
    })?;
    let batch = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(8);
    for round in 0..ROUNDS {
        if place.starts_with("postgres") {
            in_postgres(&place, round, batch)?;
            continue;
        }
        let path = |what: &str| Path::new(&place).join(format!("{what}-{round}"));
        let ours = by_manager(SqliteStore::open(path("manager"))?, round, batch)?;
        let theirs = bare(&path("bare"), batch).map_err(|error| Error::invalid(error.to_string()))?;
        println!(
            "batches of {batch}: {ours:.0} creates/s, bare SQLite {theirs:.0} rows/s, ratio {:.2}",
            ours / theirs
        );
    }
    Ok(())
}
