//! Connections to pools, kept for the life of the process.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use outcore_client::{PoolVolume, system_clock};
use outcore_core::{Error, ErrorKind, Result};
use outcore_net::{Address, Credentials, NetLink, Options};

/// A client of a served pool.
pub type Client = PoolVolume<NetLink>;

/// The process, the address of the manager, and the file of the key.
type Known = HashMap<(u32, Address, Option<String>), Arc<Client>>;

/// Returns the client of the pool whose manager listens at an address. A process that was forked gets connections of its own.
///
/// # Errors
///
/// If the pool does not answer, or refuses the key.
pub fn client(manager: &Address, key: Option<&str>) -> Result<Arc<Client>> {
    static KNOWN: OnceLock<Mutex<Known>> = OnceLock::new();
    let known = || KNOWN.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner);
    let key =
        key.map(str::to_owned).or_else(|| std::env::var("OUTCORE_KEY").ok().filter(|file| !file.is_empty()));
    let place = (std::process::id(), manager.clone(), key.clone());
    if let Some(client) = known().get(&place) {
        return Ok(client.clone());
    }
    let credentials =
        key.as_ref().map_or(Ok(Credentials::Peer), |file| Credentials::from_file(Path::new(file)))?;
    let link =
        NetLink::connect(std::slice::from_ref(manager), Options::new(credentials)).map_err(|error| {
            match error.kind {
                ErrorKind::Denied if key.is_none() => Error::new(
                    ErrorKind::Denied,
                    format!("need a key for the pool at {manager}, have none; set OUTCORE_KEY to its file"),
                ),
                _ => error,
            }
        })?;
    let client = Arc::new(Client::new(Arc::new(link), system_clock())?);
    Ok(known().entry(place).or_insert(client).clone())
}
