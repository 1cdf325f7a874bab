//! Where a pool's metadata are, and the room that is kept for them.

use std::path::Path;

use outcore_core::Result;
use outcore_disk::{Directory, Reserve, most_open_files};
use outcore_net::{Key, User};
use outcore_server::manager;
use outcore_server::store::SqliteStore;

/// The manager's files are below this, in its directory.
pub(crate) const MANAGER: &str = "manager";
/// Locked while a manager uses the directory.
pub(crate) const LOCK: &str = "manager/lock";
/// The store, below [`MANAGER`].
pub(crate) const METADATA: &str = "metadata.sqlite";
/// Holds room for removals, below [`MANAGER`].
const RESERVE: &str = "reserve";

/// Least and largest number of handles that a manager skips where a server has not reported: more than an earlier run gave,
/// and rarely as many as another run skipped.
const LEAST_JUMP: u64 = 1 << 32;
const MOST_JUMP: u64 = 1 << 44;

/// Data leave so many bytes of a disk free, or an eighth of a small one: more than metadata keep and need.
const MOST_SPARE: u64 = 16 << 20;

/// Descriptors of a daemon for anything but data files and connections: its log, its store, its listeners.
const OWN_DESCRIPTORS: usize = 20;
/// No more than so many connections are needed, nor fewer than so many.
const CONNECTIONS: std::ops::RangeInclusive<usize> = 4..=1024;

/// Descriptors of data files of an I/O server, as many of which are in this process: half of those that it may have.
pub(crate) fn file_descriptors(servers: usize) -> usize {
    most_open_files() / 2 / servers.max(1)
}

/// Connections that a daemon may have at once.
pub(crate) fn most_connections() -> usize {
    let left = most_open_files() - most_open_files() / 2;
    left.saturating_sub(OWN_DESCRIPTORS).clamp(*CONNECTIONS.start(), *CONNECTIONS.end())
}

/// Opens the store in a manager's directory, or makes it.
pub(crate) fn open_store(directory: &Path) -> Result<SqliteStore> {
    let below = directory.join(MANAGER);
    SqliteStore::open_keeping(below.join(METADATA), Box::new(Reserve::new(&below, RESERVE)))
}

/// The configuration of a manager run by this user: with random numbers for a new pool, and for this run.
pub(crate) fn manager_config() -> Result<manager::Config> {
    let User { uid, gids, .. } = User::own();
    let random = *Key::random()?.bytes();
    let (pool, rest) = random.split_at(16);
    let (run, jump) = rest.split_at(8);
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().unwrap_or_default());
    Ok(manager::Config {
        owner: uid,
        group: gids.first().copied().unwrap_or(0),
        run: number(run),
        jump: LEAST_JUMP + number(jump) % MOST_JUMP,
        ..manager::Config::new(u128::from_le_bytes(pool.try_into().unwrap_or_default()))
    })
}

/// Bytes of a disk that data leave free.
pub(crate) fn spare_bytes(directory: &Directory) -> Result<u64> {
    Ok(MOST_SPARE.min(directory.total_bytes()? / 8))
}
