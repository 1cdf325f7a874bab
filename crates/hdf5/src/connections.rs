//! Connections to pools, kept for the life of the process.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use outcore_client::{PoolVolume, system_clock};
use outcore_core::{Error, ErrorKind, Result};
use outcore_net::{Credentials, PoolUrl, ServedLink};

/// A client of a served pool.
pub type Client = PoolVolume<ServedLink>;

/// The process, the address of the pool, and the file of the key.
type Known = HashMap<(u32, PoolUrl, Option<String>), Arc<Client>>;

/// The time after which calls to a server that is gone fail, if the environment sets it: HDF5 has no property for it.
fn timeout() -> Result<Option<Duration>> {
    let Some(given) = std::env::var("OUTCORE_TIMEOUT").ok().filter(|given| !given.is_empty()) else {
        return Ok(None);
    };
    let seconds = given.trim().parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    let unusable = || {
        Error::invalid(format!(
            "need OUTCORE_TIMEOUT in seconds, have {given:?}; set it to a number such as 60"
        ))
    };
    seconds.filter(|seconds| !seconds.is_zero()).map(Some).ok_or_else(unusable)
}

/// Returns the client of the pool at an address. A process that was forked gets connections of its own.
///
/// # Errors
///
/// If the pool does not answer, or refuses the key.
pub fn client(pool: &PoolUrl, key: Option<&str>) -> Result<Arc<Client>> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let known = || KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key =
        key.map(str::to_owned).or_else(|| std::env::var("OUTCORE_KEY").ok().filter(|file| !file.is_empty()));
    let place = (std::process::id(), pool.clone(), key.clone());
    if let Some(client) = known().get(&place) {
        return Ok(client.clone());
    }
    let credentials =
        key.as_ref().map_or(Ok(Credentials::Peer), |file| Credentials::from_file(Path::new(file)))?;
    let link = pool.connect(credentials, timeout()?).map_err(|error| match error.kind {
        ErrorKind::Denied if key.is_none() => Error::new(
            ErrorKind::Denied,
            format!("need a key for the pool at {pool}, have none; set OUTCORE_KEY to its file"),
        ),
        _ => error,
    })?;
    let client = Arc::new(Client::new(Arc::new(link), system_clock())?);
    Ok(known().entry(place).or_insert(client).clone())
}
