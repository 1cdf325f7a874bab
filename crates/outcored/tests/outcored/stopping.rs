//! Stopping an I/O server while collectives wait for missing processes.

use std::sync::mpsc::{Receiver, channel};

use outcore_core::{
    ChunkOrder, CollectiveSpec, Distribution, ErrorKind, Grant, GridSpec, Hints, IoReply, IoRequest, Link,
    ManagerReply, ManagerRequest, MemorySchema, PIECE_BYTES, ROUND_PIECES, ServerId, StorageOrder, Target,
};
use outcore_memory::Region;
use outcore_net::{Credentials, Key, NetLink, Options, User};
use outcored::{IoDaemon, IoSettings, ManagerDaemon, serve_io, serve_manager};

use crate::daemon::{directory, io_settings, manager_settings};

/// Far more seconds than the server may take to stop.
const PATIENCE_S: u64 = 1_000_000;

struct Pool {
    _root: tempfile::TempDir,
    key: Key,
    manager: ManagerDaemon,
    server: IoDaemon,
}

impl Pool {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let key = Key::random().unwrap();
        let manager = serve_manager(&manager_settings(directory(root.path(), "m"), &key)).unwrap();
        let settings = io_settings(directory(root.path(), "d"), manager.addresses(), &key);
        let settings = IoSettings { threads: 1, memory_bytes: None, ..settings };
        let server = serve_io(&settings).unwrap();
        Self { _root: root, key, manager, server }
    }

    /// A client with a single connection, so that the server receives its requests in order.
    fn link(&self) -> NetLink {
        let credentials = Credentials::Pool { key: self.key.clone(), user: User::own() };
        let options = Options { connections_per_address: 1, ..Options::new(credentials) };
        NetLink::connect(self.manager.addresses(), options).unwrap()
    }
}

fn make_file(link: &NetLink) -> (Target, Grant) {
    let hints = Hints::default();
    let request = ManagerRequest::Create { path: "u".into(), mode: 0o644, hints };
    match link.manager(request).unwrap() {
        ManagerReply::Opened(opened) => {
            let stripes = opened.inode.layout.unwrap().stripes;
            (Target { handle: opened.inode.handle, stripes, entry: 0, generation: 0 }, opened.grant)
        }
        reply => panic!("{reply:?}"),
    }
}

fn ask(link: &NetLink, request: IoRequest) -> Receiver<IoReply> {
    let (sender, receiver) = channel();
    let done = Box::new(move |answer: outcore_core::Answer<Region>| drop(sender.send(answer.reply)));
    link.io(ServerId(0), request, Region::empty(), done);
    receiver
}

fn spec() -> CollectiveSpec {
    CollectiveSpec {
        id: 17,
        write: true,
        ranks: 3,
        grid: GridSpec {
            shape: vec![3, 1024],
            chunk: vec![3, 1024],
            item_bytes: 8,
            storage: StorageOrder::C,
            chunk_order: ChunkOrder::RowMajor,
            slot_align_bytes: 1 << 16,
            column_places: None,
            growing: false,
        },
        shard: 0,
        schema: MemorySchema::Mesh { mesh: vec![3], dims: vec![Distribution::Block, Distribution::Whole] },
        patience_s: PATIENCE_S,
        durable: true,
        skips_disk: false,
        piece_bytes: PIECE_BYTES,
        round_pieces: ROUND_PIECES,
    }
}

#[test]
fn processes_in_a_collective_are_told_that_the_server_stops_and_those_that_died_hold_nobody_up() {
    let pool = Pool::new();
    let links = [pool.link(), pool.link()];
    let (target, grant) = make_file(&links[0]);
    let joined: Vec<Receiver<IoReply>> = links
        .iter()
        .zip(0..)
        .map(|(link, rank)| {
            let spec = Box::new(spec());
            let joined = ask(link, IoRequest::Join { target, grant, spec, rank, memory: None });
            assert!(matches!(ask(link, IoRequest::Status).recv(), Ok(IoReply::Status(_))));
            joined
        })
        .collect();
    // The first process lives, the second dies, and the third never joins.
    let [lives, dies] = links;
    drop(dies);
    pool.server.stop();
    let IoReply::Failed(error) = joined[0].recv().unwrap() else { panic!("a server that was stopped") };
    assert_eq!(error.kind, ErrorKind::Io);
    assert!(error.message.contains("I/O server 0 is stopping"), "{error}");
    drop(lives);
    pool.manager.stop();
}
