//! Where a pool's metadata are, and the room that is kept for them.

use std::path::Path;

use outcore_core::Result;
use outcore_disk::{Directory, Reserve};
use outcore_server::store::SqliteStore;

/// What a manager keeps is below this, in its directory.
pub(crate) const MANAGER: &str = "manager";
/// Locked while a manager uses the directory.
pub(crate) const LOCK: &str = "manager/lock";
/// The store, below [`MANAGER`].
pub(crate) const METADATA: &str = "metadata.sqlite";
/// Holds room for removals, below [`MANAGER`].
const RESERVE: &str = "reserve";

/// Data leave so many bytes of a disk free, or an eighth of a small one: more than metadata keep and need.
const MOST_SPARE: u64 = 16 << 20;

/// Opens the store in a manager's directory, or makes it.
pub(crate) fn open_store(directory: &Path) -> Result<SqliteStore> {
    let below = directory.join(MANAGER);
    SqliteStore::open_keeping(below.join(METADATA), Box::new(Reserve::new(&below, RESERVE)))
}

/// Bytes of a disk that data leave free.
pub(crate) fn spare_bytes(directory: &Directory) -> Result<u64> {
    Ok(MOST_SPARE.min(directory.total_bytes()? / 8))
}
