//! The memory of a busy I/O server, as the operating system counts it.

use std::process::Child;
use std::sync::Arc;

use outcore_client::{CollectivePart, LocalArray, Memory, PoolVolume};
use outcore_core::{
    Buffer, ChunkGrid, ChunkOrder, CollectiveSpec, Distribution, GridSpec, Hints, MemorySchema, OpenMode,
    Operation, PIECE_BYTES, ROUND_PIECES, StorageOrder, Volume,
};
use outcore_memory::{Arena, Region};
use outcore_net::{Credentials, Key, NetLink, Options, User};
use outcored::{ManagerDaemon, serve_manager};

use crate::daemon::{directory, end, manager_settings, pattern, spawn, transfer, wall_clock};

/// A manager in this process, and an I/O server in a separate process.
struct Pool {
    _root: tempfile::TempDir,
    key: Key,
    manager: ManagerDaemon,
    server: Child,
}

impl Pool {
    fn new(way: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        let key_file = root.path().join("key");
        let key = Key::random().unwrap();
        key.save(&key_file).unwrap();
        let directory = |name| directory(root.path(), name);
        let manager = serve_manager(&manager_settings(directory("m"), &key)).unwrap();
        let text = format!(
            "directory = \"{}\"\nlisten = \"{way}:127.0.0.1:0\"\nkey_file = \"{}\"\nmanager = \"{}\"\n",
            directory("d").display(),
            key_file.display(),
            manager.addresses()[0]
        );
        let (server, _) = spawn("io", &text, root.path());
        Self { _root: root, key, manager, server }
    }

    fn connect(&self) -> PoolVolume<NetLink> {
        let credentials = Credentials::Pool { key: self.key.clone(), user: User::own() };
        let link = NetLink::connect(self.manager.addresses(), Options::new(credentials)).unwrap();
        PoolVolume::new(Arc::new(link), wall_clock()).unwrap()
    }

    /// Writes and reads outside of collectives.
    fn be_busy(&self, name: &str, data: &[u8]) {
        let volume = self.connect();
        let create = OpenMode::Create { length: data.len() as u64, reserve: false };
        let file = volume.open(name, create).unwrap();
        for _ in 0..3 {
            transfer(&volume, file, Operation::Write, 0, data).unwrap();
            let read = transfer(&volume, file, Operation::Read, 0, &vec![0; data.len()]).unwrap();
            assert_eq!(read, *data);
        }
    }

    /// Stops the server. Returns its peak memory in KiB.
    fn end(self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
        assert!(end(self.server, 15).success());
        println!("peak {peak_kib} KiB");
        assert!(peak_kib > 10 << 10, "{peak_kib} KiB");
        peak_kib
    }
}

#[test]
fn an_io_server_with_64_busy_clients_stays_below_128_mib() {
    for way in ["tcp", "tls"] {
        let (pool, data) = (Pool::new(way), pattern(2 << 20));
        std::thread::scope(|scope| {
            for i in 0..64 {
                let (pool, data) = (&pool, &data);
                scope.spawn(move || pool.be_busy(&format!("f{i}"), data));
            }
        });
        assert!(pool.end() <= 128 << 10);
    }
}

const RANKS: u64 = 64;
const ROWS: u64 = 8192;
const COLUMNS: u64 = 1024;
const ITEM_BYTES: u64 = 8;

/// An array of 64 MiB. Each process owns some columns, and so a share of each piece.
fn spec(id: u128, write: bool) -> CollectiveSpec {
    let grid = GridSpec {
        shape: vec![ROWS, COLUMNS],
        chunk: vec![256, COLUMNS],
        item_bytes: ITEM_BYTES,
        storage: StorageOrder::C,
        chunk_order: ChunkOrder::RowMajor,
        slot_align_bytes: 1 << 16,
        column_places: None,
        growing: false,
    };
    let dims = vec![Distribution::Whole, Distribution::Block];
    let schema = MemorySchema::Mesh { mesh: vec![RANKS], dims };
    CollectiveSpec {
        id,
        write,
        ranks: RANKS,
        grid,
        shard: 0,
        schema,
        patience_s: 600,
        durable: true,
        skips_disk: false,
        piece_bytes: PIECE_BYTES,
        round_pieces: ROUND_PIECES,
    }
}

fn content(id: u128, rank: u64) -> Vec<u8> {
    let bytes = (ROWS * COLUMNS * ITEM_BYTES / RANKS) as usize;
    (0..bytes).map(|i| (i as u64 * (2 * rank + 1) + i as u64 / 251 + id as u64) as u8).collect()
}

/// Writes the columns of one process, and reads them back.
fn take_part(volume: &PoolVolume<NetLink>, id: u128, rank: u64) {
    let file = volume.open(&format!("u{id}"), OpenMode::ReadWrite).unwrap();
    let columns = COLUMNS / RANKS;
    let given = content(id, rank);
    for write in [true, false] {
        let block = Arc::new(Arena::new(usize::MAX).allocate(given.len()).unwrap());
        let mut view = Region::whole(block.clone());
        if write {
            view.copy_in(0, &given);
        }
        let strides = vec![(columns * ITEM_BYTES) as i64, ITEM_BYTES as i64];
        let memory = Memory { block, origin: 0, strides };
        let arrays = vec![LocalArray { memory, shape: vec![ROWS, columns] }];
        let spec = spec(id + if write { 0 } else { 100 }, write);
        let part =
            CollectivePart { spec, rank, arrays, memory_bytes: 1 << 20, offers_memory: false, trace: None };
        volume.collective(file, &part, &mut || Ok(())).unwrap();
        let mut found = vec![0; given.len()];
        view.copy_out(0, &mut found);
        assert!(found == given, "process {rank} of collective {id}");
    }
}

#[test]
fn an_io_server_with_two_collectives_of_64_processes_and_busy_clients_stays_below_128_mib() {
    let (pool, data) = (Pool::new("tcp"), pattern(2 << 20));
    let first = pool.connect();
    let unit = ChunkGrid::new(spec(1, true).grid).unwrap().slot_bytes();
    for id in [1, 2] {
        let hints = Hints { stripe_unit_bytes: Some(unit), ..Hints::default() };
        first.create_with(&format!("u{id}"), 0, false, hints).unwrap();
    }
    std::thread::scope(|scope| {
        for rank in 0..RANKS {
            let volume = Arc::new(pool.connect());
            for id in [1, 2] {
                let volume = volume.clone();
                scope.spawn(move || take_part(&volume, id, rank));
            }
        }
        for i in 0..8 {
            let (pool, data) = (&pool, &data);
            scope.spawn(move || pool.be_busy(&format!("f{i}"), data));
        }
    });
    assert!(pool.end() <= 128 << 10);
}
