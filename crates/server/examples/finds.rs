//! Time of a search with three conditions among many arrays, and of their creation with and without indexed attributes:
//! `cargo run --release -p outcore-server --example finds -- DIRECTORY [ARRAYS]`.

use std::path::Path;
use std::time::Instant;

use outcore_core::{Error, Hints, ManagerReply, ManagerRequest, Result, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, DESCRIBING_ATTRIBUTE, Manager, Now, User};
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

/// The requests that make an array: its directory and three files; with attributes, two more.
fn make(number: usize, described: bool) -> Vec<ManagerRequest> {
    let path = format!("run-{}/a{number}", number / OF_A_RUN);
    let file = |name| ManagerRequest::Create {
        path: format!("{path}/{name}"),
        hints: Hints::default(),
        mode: 0o644,
    };
    let mut requests = vec![
        ManagerRequest::MakeDirectory { path: path.clone(), mode: 0o755 },
        file("outcore.generation"),
        file("c/0/0"),
        file("zarr.json"),
    ];
    if described {
        let n = 50_000 + number % 100;
        let dtype = if number.is_multiple_of(2) { "c16" } else { "f8" };
        let text = format!(
            r#"{{"kind":"array","dtype":"{dtype}","shape":[{n},{n}],"chunks":[512,512],"ndim":2,"size":{},"order":"F","chunk_order":"row-major","state":"complete"}}"#,
            16 * n * n
        );
        let set = |name: &str, value: String| ManagerRequest::SetExtended {
            path: path.clone(),
            name: name.into(),
            value: Some(value.into_bytes()),
        };
        requests.push(set(DESCRIBING_ATTRIBUTE, text));
        requests.push(set("run", format!("x{}", number / OF_A_RUN)));
    }
    requests
}

/// Seconds in which a manager makes arrays, and the manager.
fn made(path: &Path, arrays: usize, described: bool) -> Result<(f64, Manager<SqliteStore>)> {
    let mut manager = Manager::open(SqliteStore::open(path)?, Key::new([1; 32]), Config::new(1))?;
    manager.add_server(ServerAddress { id: ServerId(0), addresses: vec![] })?;
    let began = Instant::now();
    for first in (0..arrays).step_by(BATCH) {
        let batch = (first..arrays.min(first + BATCH)).flat_map(|number| make(number, described));
        ask(&mut manager, batch.collect())?;
    }
    Ok((began.elapsed().as_secs_f64(), manager))
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().ok_or_else(|| {
        Error::invalid("need a directory on the disk to measure, have no argument; give an empty one")
    })?;
    let arrays = arguments.next().and_then(|text| text.parse().ok()).unwrap_or(250_000);
    let (plain_s, _) = made(&Path::new(&directory).join("plain"), arrays, false)?;
    let (described_s, mut manager) = made(&Path::new(&directory).join("described"), arrays, true)?;
    println!(
        "{arrays} arrays: made in {plain_s:.1} s, with attributes in {described_s:.1} s, ratio {:.2}",
        described_s / plain_s
    );
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
