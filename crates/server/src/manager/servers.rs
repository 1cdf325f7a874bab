//! The I/O servers of a pool: their numbers, and where they listen.

use outcore_core::{Error, MAX_STRIPE_COUNT, Result, ServerAddress, ServerId};

use super::record::Ways;
use super::{Manager, Now, User, keys};
use crate::store::Store;

/// Most addresses of a server.
const MAX_ADDRESSES: usize = 16;
/// Most bytes of an address.
const MAX_ADDRESS_BYTES: usize = 255;

/// Who changes the list of servers.
const ROOT_USER: User = User { uid: 0, gids: vec![], is_root: true };

impl<S: Store> Manager<S> {
    /// Adds an I/O server, or changes where it listens. New files use it; old files stay where they are.
    pub fn add_server(&mut self, server: ServerAddress) -> Result<()> {
        let ServerAddress { id, addresses } = server;
        let is_long = |address: &String| address.is_empty() || address.len() > MAX_ADDRESS_BYTES;
        if addresses.len() > MAX_ADDRESSES || addresses.iter().any(is_long) {
            return Err(Error::invalid(format!(
                "need at most {MAX_ADDRESSES} addresses of 1 to {MAX_ADDRESS_BYTES} bytes for a server, have {} or longer \
                 ones; leave some out",
                addresses.len()
            )));
        }
        let ways = Ways(addresses);
        let now = Now { unix_ns: 0 };
        let known = self.view(now, &ROOT_USER, |step| step.look::<Ways>(&keys::server(id)))?;
        if known.as_ref() == Some(&ways) {
            // Started again where it was: that takes no commit, for which the disk may be too full.
            return Ok(());
        }
        self.change(now, &ROOT_USER, |step| {
            let changes: u64 = step.get(keys::SERVERS_CHANGED)?.unwrap_or(0);
            let known = step.get::<Ways>(&keys::server(id))?;
            if known.is_none() && step.servers()?.len() >= MAX_STRIPE_COUNT {
                return Err(Error::invalid(format!(
                    "need at most {MAX_STRIPE_COUNT} I/O servers in a pool, have as many; make another pool"
                )));
            }
            step.put(keys::server(id), &ways);
            step.put(keys::SERVERS_CHANGED.to_vec(), &(changes + 1));
            Ok(())
        })
    }

    /// A number for a new I/O server, greater than all before. It is taken in one commit, and not given again even if the
    /// server never comes.
    pub fn new_server(&mut self) -> Result<ServerId> {
        self.change(Now { unix_ns: 0 }, &ROOT_USER, |step| {
            // Guarded: a server with a number of its own choice may be added meanwhile.
            step.get::<u64>(keys::SERVERS_CHANGED)?;
            let given: u64 = step.get(keys::NEXT_SERVER)?.unwrap_or(0);
            let after = step.servers()?.iter().map(|id| u64::from(id.0) + 1).max();
            let next = given.max(after.unwrap_or(0));
            let id = u32::try_from(next).map_err(|_| {
                Error::invalid(format!(
                    "need a number below 2^32 for a new I/O server, have used {next}; make another pool"
                ))
            })?;
            step.put(keys::NEXT_SERVER.to_vec(), &(next + 1));
            Ok(ServerId(id))
        })
    }
}
