//! Files created per second by a manager that waits for the disk once per batch, against bare SQLite commits of as many
//! rows: `cargo run --release -p outcore-server --example creates -- DIRECTORY [BATCH]`. Prints rounds of both, in turn.

use std::path::Path;
use std::time::Instant;

use outcore_core::{Error, Hints, ManagerReply, ManagerRequest, Origin, Result, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, Manager, Now, User};
use outcore_server::store::SqliteStore;
use rusqlite::Connection;

const ROUNDS: usize = 5;
const BATCHES: usize = 200;

fn by_manager(path: &Path, batch: usize) -> Result<f64> {
    let mut manager = Manager::open(SqliteStore::open(path)?, Key::new([1; 32]), Config::new(1))?;
    manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] })?;
    let who = User { uid: 0, gids: vec![0], is_root: true };
    let began = Instant::now();
    for number in 0..BATCHES {
        let create = |client: usize| {
            let path = format!("directory/client-{client}/file-{number:08}");
            let request = ManagerRequest::Create { path, hints: Hints::default(), mode: 0o644 };
            let origin = Some(Origin { client: client as u128, number: number as u64 });
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

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or_else(|| {
        Error::invalid("need a directory on the disk to measure, have no argument; give an empty one")
    })?;
    let batch = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(8);
    for round in 0..ROUNDS {
        let path = |what: &str| Path::new(&directory).join(format!("{what}-{round}"));
        let ours = by_manager(&path("manager"), batch)?;
        let theirs = bare(&path("bare"), batch).map_err(|error| Error::invalid(error.to_string()))?;
        println!(
            "batches of {batch}: {ours:.0} creates/s, bare SQLite {theirs:.0} rows/s, ratio {:.2}",
            ours / theirs
        );
    }
    Ok(())
}
