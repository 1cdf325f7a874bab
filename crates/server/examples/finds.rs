//! Time of a search with three conditions among many arrays, of their creation with and without a description, and of a
//! label for each: `cargo run --release -p outcore-server --example finds -- DIRECTORY [ARRAYS]`. A second run in the same
//! directory only searches.

use std::path::Path;
use std::time::Instant;

use outcore_core::{Error, Hints, ManagerReply, ManagerRequest, Result, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, Manager, Now, User};
use outcore_server::store::SqliteStore;

/// Requests of a batch.
const BATCH: usize = 64;
/// Arrays of a run; a search finds one run.
const OF_A_RUN: usize = 1000;
const QUERY: &str = r#"dtype = "c16" and shape[0] > 50000 and attr.run = "x7""#;

fn ask(manager: &mut Manager<SqliteStore>, requests: Vec<ManagerRequest>) -> Result<Vec<ManagerReply>> {
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

fn opened(path: &Path) -> Result<Manager<SqliteStore>> {
    let mut manager = Manager::open(SqliteStore::open(path)?, Key::new([1; 32]), Config::new(1))?;
    manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] })?;
    Ok(manager)
}

/// Seconds in which a manager answers the requests for some arrays.
fn timed(
    manager: &mut Manager<SqliteStore>,
    arrays: usize,
    requests: impl Fn(usize) -> Vec<ManagerRequest>,
) -> Result<f64> {
    let began = Instant::now();
    for first in (0..arrays).step_by(BATCH) {
        ask(manager, (first..arrays.min(first + BATCH)).flat_map(&requests).collect())?;
    }
    Ok(began.elapsed().as_secs_f64())
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or_else(|| {
        Error::invalid("need a directory on the disk to measure, have no argument; give an empty one")
    })?;
    let arrays = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(250_000);
    let directory = Path::new(&directory);
    let is_made = directory.join("described").exists();
    let mut manager = opened(&directory.join("described"))?;
    if !is_made {
        let plain_s = timed(&mut opened(&directory.join("plain"))?, arrays, |number| make(number, false))?;
        let described_s = timed(&mut manager, arrays, |number| make(number, true))?;
        let label_s = timed(&mut manager, arrays, label)?;
        println!(
            "{arrays} arrays: made in {plain_s:.1} s, with descriptions in {described_s:.1} s, ratio {:.2}; labels in {label_s:.1} s",
            described_s / plain_s
        );
    }
    for _ in 0..3 {
        let began = Instant::now();
        let (mut hits, mut pages, mut after) = (0, 0, Vec::new());
        loop {
            let request = ManagerRequest::Find { path: "".into(), query: QUERY.into(), after, most: 1000 };
            match ask(&mut manager, vec![request])?.pop() {
                Some(ManagerReply::Found { hits: found, next }) => {
                    (hits, pages) = (hits + found.len(), pages + 1);
                    let Some(next) = next else { break };
                    after = next;
                }
                reply => return Err(Error::invalid(format!("need hits, have {reply:?}; use this manager"))),
            }
        }
        println!("{hits} hits in {pages} pages: {:.1} ms", began.elapsed().as_secs_f64() * 1e3);
    }
    Ok(())
}
