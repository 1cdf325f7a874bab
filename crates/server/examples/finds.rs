//! Time of a search with three conditions among many arrays, of their creation with and without a description, in turn,
//! and of a label for each: `cargo run --release -p outcore-server --example finds -- DIRECTORY [ARRAYS [CLIENTS]]`. A
//! second run in the same directory only searches. For PostgreSQL, the URLs of two empty databases with a comma between
//! them take the place of the directory.

use std::ops::Range;
use std::path::Path;
use std::time::Instant;

use outcore_core::{Error, Hints, ManagerReply, ManagerRequest, Result, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, Manager, Now, User};
use outcore_server::store::{Database, PostgresStore, SqliteStore, Store};

/// Arrays of a run; a search finds one run.
const OF_A_RUN: usize = 1000;
const QUERY: &str = r#"dtype = "c16" and shape[0] > 50000 and attr.run = "x7""#;

fn ask<S: Store>(manager: &mut Manager<S>, requests: Vec<ManagerRequest>) -> Result<Vec<ManagerReply>> {
    let who = User { uid: 0, gids: vec![0], is_root: true };
    let asked = requests.into_iter().map(|request| Asked { who: who.clone(), origin: None, request });
    let replies = manager.handle_many(Now { unix_ns: 1, running_ns: 0 }, asked.collect());
    replies
        .into_iter()
        .map(|reply| match reply {
            ManagerReply::Failed(error) => Err(error),
            reply => Ok(reply),
        })
        .collect()
}

fn array(number: usize) -> String {
    format!("run-{}/a{number}", number / OF_A_RUN)
}

/// The requests of a client that makes an array of one file. The last one may describe it.
fn make(number: usize, described: bool) -> Vec<ManagerRequest> {
    let path = array(number);
    let file = |name: &str| ManagerRequest::Create {
        path: format!("{path}/{name}"),
        hints: Hints::default(),
        mode: 0o644,
    };
    let named = |name: &str, description| ManagerRequest::Rename {
        from: format!("{path}/{name}.new"),
        to: format!("{path}/{name}"),
        durable: vec![100],
        generations: vec![1],
        description,
    };
    let n = 50_000 + number % 100;
    let dtype = if number.is_multiple_of(2) { "c16" } else { "f8" };
    let description = format!(
        r#"{{"chunk_order":"row-major","chunks":[512,512],"dtype":"{dtype}","kind":"array","ndim":2,"order":"F","shape":[{n},{n}],"size":{},"state":"complete"}}"#,
        16 * n * n
    );
    vec![
        file("outcore.generation.new"),
        named("outcore.generation", None),
        file("c/0/0"),
        file("zarr.json.new"),
        named("zarr.json", described.then(|| description.into_bytes())),
    ]
}

fn label(number: usize) -> Vec<ManagerRequest> {
    let value = format!("x{}", number / OF_A_RUN).into_bytes();
    vec![ManagerRequest::SetExtended { path: array(number), name: "run".into(), value: Some(value) }]
}

fn opened<S: Store>(store: S) -> Result<Manager<S>> {
    let mut manager = Manager::open(store, Key::new([1; 32]), Config::new(1))?;
    manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] })?;
    Ok(manager)
}

/// Seconds in which a manager answers the requests for some arrays. Each client waits for an answer before its next
/// request, so the manager commits a request of each client together.
fn timed<S: Store>(
    manager: &mut Manager<S>,
    arrays: Range<usize>,
    clients: usize,
    requests: impl Fn(usize) -> Vec<ManagerRequest>,
) -> Result<f64> {
    let began = Instant::now();
    for first in arrays.clone().step_by(clients) {
        let mut left: Vec<_> =
            (first..arrays.end.min(first + clients)).map(|number| requests(number).into_iter()).collect();
        loop {
            let next: Vec<_> = left.iter_mut().filter_map(Iterator::next).collect();
            if next.is_empty() {
                break;
            }
            ask(manager, next)?;
        }
    }
    Ok(began.elapsed().as_secs_f64())
}

/// Numbers of the hits and of the pages of a search.
fn find<S: Store>(manager: &mut Manager<S>) -> Result<(usize, usize)> {
    let (mut hits, mut pages, mut after) = (0, 0, Vec::new());
    loop {
        let request = ManagerRequest::Find { path: "".into(), query: QUERY.into(), after, most: 1000 };
        match ask(manager, vec![request])?.pop() {
            Some(ManagerReply::Found { hits: found, next }) => {
                (hits, pages) = (hits + found.len(), pages + 1);
                let Some(next) = next else { return Ok((hits, pages)) };
                after = next;
            }
            reply => return Err(Error::invalid(format!("need hits, have {reply:?}; use this manager"))),
        }
    }
}

fn measure<S: Store>(described: S, plain: S, arrays: usize, clients: usize) -> Result<()> {
    let (mut described, mut plain) = (opened(described)?, opened(plain)?);
    let known = ManagerRequest::GetExtended { path: array(0), name: "run".into() };
    if ask(&mut described, vec![known]).is_err() {
        let (mut plain_s, mut described_s) = (0.0, 0.0);
        for first in (0..arrays).step_by(OF_A_RUN) {
            let run = first..arrays.min(first + OF_A_RUN);
            plain_s += timed(&mut plain, run.clone(), clients, |number| make(number, false))?;
            described_s += timed(&mut described, run, clients, |number| make(number, true))?;
        }
        let label_s = timed(&mut described, 0..arrays, clients, label)?;
        println!(
            "{arrays} arrays by {clients} clients: made in {plain_s:.1} s, with descriptions in {described_s:.1} s, \
             ratio {:.2}; labels in {label_s:.1} s",
            described_s / plain_s
        );
    }
    for _ in 0..3 {
        let began = Instant::now();
        let (hits, pages) = find(&mut described)?;
        println!("{hits} hits in {pages} pages: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let place = arguments.next().ok_or_else(|| {
        Error::invalid("need a directory on the disk to measure, have no argument; give an empty one")
    })?;
    let arrays = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(250_000);
    let clients = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(64);
    if let Some((described, plain)) = place.split_once(',') {
        let [described, plain]: [Database; 2] = [described.parse()?, plain.parse()?];
        return measure(PostgresStore::open(&described)?, PostgresStore::open(&plain)?, arrays, clients);
    }
    let store = |name: &str| SqliteStore::open(Path::new(&place).join(name));
    measure(store("described")?, store("plain")?, arrays, clients)
}
