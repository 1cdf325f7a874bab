//! The I/O servers of a pool: their numbers, their addresses, and which are retired.

use outcore_core::{Error, ErrorKind, Handle, MAX_STRIPE_COUNT, Result, ServerAddress, ServerId};

use super::record::Ways;
use super::step::{Handles, Step, list_servers, next_handle};
use super::{Manager, Now, User, keys};
use crate::store::Store;

/// Addresses of a server, at most.
const MAX_ADDRESSES: usize = 16;
/// Bytes of an address, at most.
const MAX_ADDRESS_BYTES: usize = 255;
/// Handles skipped after the highest one that a server has and the store does not know.
const BEYOND_REPORTED: u64 = 1 << 32;

/// The user who changes the list of servers.
const ROOT_USER: User = User { uid: 0, gids: vec![], is_root: true };

impl<S: Store> Step<'_, S> {
    /// Returns an error if a server is retired. The guard detects a concurrent change.
    fn check_not_retired(&mut self, id: ServerId) -> Result<()> {
        if self.get::<u64>(&keys::retired(id))?.is_none() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Denied,
            format!(
                "need a server that is not retired, have I/O server {0}, which is: its files count as gone; leave it out, or \
                 take that back with: outcore pool retire POOL {0} --undo",
                id.0
            ),
        ))
    }
}

impl<S: Store> Manager<S> {
    /// Adds an I/O server, or changes its addresses. New files use it; existing files stay where they are. A
    /// retired server is refused.
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
        let now = Now { unix_ns: 0, running_ns: 0 };
        let known = self.view(now, &ROOT_USER, |step| {
            step.check_not_retired(id)?;
            step.look::<Ways>(&keys::server(id))
        })?;
        if known.as_ref() == Some(&ways) {
            // A restart at the same addresses needs no commit. The disk may be too full for one.
            return Ok(());
        }
        self.change(now, &ROOT_USER, |step| {
            let changes: u64 = step.get(keys::SERVERS_CHANGED)?.unwrap_or(0);
            step.check_not_retired(id)?;
            let known = step.get::<Ways>(&keys::server(id))?;
            if known.is_none() && step.all_servers()?.len() >= MAX_STRIPE_COUNT {
                return Err(Error::invalid(format!(
                    "need at most {MAX_STRIPE_COUNT} I/O servers in a pool, have as many; make another pool"
                )));
            }
            step.put(keys::server(id), &ways);
            step.put(keys::SERVERS_CHANGED.to_vec(), &(changes + 1));
            Ok(())
        })
    }

    /// Records the highest handle of a server's data files. New files get handles above it. If the store is an
    /// older copy, a server may have files whose handles the store considers free.
    pub fn report(&mut self, id: ServerId, highest: Handle) {
        self.reported.insert(id, highest);
        if self.memory.handles.is_below(highest) {
            self.memory.handles = Handles::default();
        }
    }

    /// The lowest handle that the next reservation may contain.
    pub(super) fn floor(&self) -> Result<u64> {
        let next = next_handle(&self.store)?;
        let highest = self.reported.values().map(|handle| handle.0).max().unwrap_or(0);
        let beyond = |from: u64, by| {
            from.checked_add(by).ok_or_else(|| {
                Error::new(
                    ErrorKind::Corrupt,
                    format!("need handles after {from}, have used all; make a new pool"),
                )
            })
        };
        if highest >= next || self.store.get(keys::RESTORED)?.is_some() {
            // Files that were removed since the copy was made had handles too.
            return beyond(highest.max(next), BEYOND_REPORTED.max(self.config.jump));
        }
        let (servers, _) = list_servers(&self.store)?;
        let have_reported = servers.iter().all(|server| self.reported.contains_key(&server.id));
        // Once per run: after its first reservation, the store knows this run's handles.
        beyond(next, if have_reported || self.has_taken { 0 } else { self.config.jump })
    }

    /// A new number for an I/O server, greater than all earlier ones. One commit reserves it. It is never reused,
    /// even if no server joins with it.
    pub fn new_server(&mut self) -> Result<ServerId> {
        self.change(Now { unix_ns: 0, running_ns: 0 }, &ROOT_USER, |step| {
            // The guard detects a server that joins concurrently with a number of its own choice.
            step.get::<u64>(keys::SERVERS_CHANGED)?;
            let given: u64 = step.get(keys::NEXT_SERVER)?.unwrap_or(0);
            let after = step.all_servers()?.iter().map(|id| u64::from(id.0) + 1).max();
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

    /// Retires an I/O server, or undoes that. Its number stays reserved.
    pub(super) fn retire(&mut self, now: Now, id: ServerId, undo: bool) -> Result<()> {
        self.change(now, &ROOT_USER, |step| {
            let changes: u64 = step.get(keys::SERVERS_CHANGED)?.unwrap_or(0);
            if step.get::<Ways>(&keys::server(id))?.is_none() {
                let all: Vec<String> = step.all_servers()?.iter().map(|id| id.0.to_string()).collect();
                return Err(Error::invalid(format!(
                    "need an I/O server of this pool, have {}, which it never had; choose among {}",
                    id.0,
                    all.join(", ")
                )));
            }
            if step.get::<u64>(&keys::retired(id))?.is_some() != undo {
                return Ok(());
            }
            if undo {
                step.delete(keys::retired(id));
            } else {
                step.put(keys::retired(id), &(now.unix_ns / 1_000_000_000));
            }
            step.put(keys::SERVERS_CHANGED.to_vec(), &(changes + 1));
            Ok(())
        })
    }
}
