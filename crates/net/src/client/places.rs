//! The addresses of a pool's servers. The client gets them from the manager when it connects, and again after
//! it lost a server.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use outcore_core::wire::{Kind, MAX_CONTROL_BYTES, Role, decode, encode};
use outcore_core::{Error, ErrorKind, Layout, ManagerReply, ManagerRequest, Result, ServerAddress, ServerId};
use outcore_memory::Region;

use crate::Address;
use crate::client::answers::wait_for_answer;
use crate::client::call::{Call, Moves};
use crate::client::channel::{move_to, reach};
use crate::client::options::Options;
use crate::client::peer::Peer;
use crate::client::reader::{Claim, Settles};
use crate::client::sending::call;
use crate::system::random;

/// The servers of one pool, and their addresses.
pub(crate) struct Places {
    options: Options,
    client: u128,
    process: u32,
    manager: Arc<Peer>,
    /// A client that uses TLS to the manager uses no unencrypted network connection to other servers.
    needs_tls: bool,
    servers: Mutex<Servers>,
    /// Whether a request for the addresses is in flight.
    is_looking: AtomicBool,
    itself: Weak<Self>,
}

#[derive(Default)]
struct Servers {
    addresses: HashMap<ServerId, Vec<Address>>,
    /// Created at the first call to each server.
    peers: HashMap<ServerId, Arc<Peer>>,
    retired: HashSet<ServerId>,
}

impl Places {
    /// The pool whose manager is at one of `addresses`. Sends nothing yet.
    pub(crate) fn new(addresses: &[Address], options: Options) -> Result<Arc<Self>> {
        let client = u128::from_le_bytes(random()?);
        let manager = reach(Role::Manager, addresses, client, &options, None)?;
        let needs_tls = addresses.iter().any(|address| matches!(address, Address::Tls(_)));
        Ok(Arc::new_cyclic(|itself| Self {
            options,
            client,
            process: std::process::id(),
            manager,
            needs_tls,
            servers: Mutex::default(),
            is_looking: AtomicBool::new(false),
            itself: itself.clone(),
        }))
    }

    fn lock(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gets the addresses of the servers from the manager. Returns the pool's identity.
    pub(crate) fn refresh(&self) -> Result<u128> {
        let (pool, servers, retired) = match self.ask(ManagerRequest::Servers)? {
            ManagerReply::Servers { pool, servers, retired } => (pool, servers, retired),
            ManagerReply::Failed(error) => return Err(error),
            _ => {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    "the manager does not say which servers there are",
                ));
            }
        };
        let mut places = Vec::with_capacity(servers.len());
        for ServerAddress { id, addresses } in servers {
            let mut addresses =
                addresses.iter().map(|text| text.parse()).collect::<Result<Vec<Address>>>()?;
            if self.needs_tls {
                addresses.retain(|address| !matches!(address, Address::Tcp(_)));
            }
            places.push((id, addresses));
        }
        let (mut over, mut reached) = (vec![], Ok(()));
        let mut known = self.lock();
        for (id, addresses) in places {
            match known.peers.get(&id) {
                Some(_) if addresses.is_empty() => {
                    over.extend(known.peers.remove(&id).map(|peer| (peer, self.unreachable(id))));
                }
                // If it has moved, its queued calls go to the new address.
                Some(peer) => reached = reached.and(move_to(peer, &addresses)),
                None => {}
            }
            known.addresses.insert(id, addresses);
        }
        for id in &retired {
            known.addresses.remove(id);
            over.extend(known.peers.remove(id).map(|peer| (peer, is_retired(*id))));
        }
        known.retired = retired.into_iter().collect();
        // Callbacks of failed calls may call other servers.
        drop(known);
        over.iter().for_each(|(peer, why)| peer.end(why));
        reached.map(|()| pool)
    }

    /// Starts a thread that gets the addresses of the servers, after one was lost. One such thread runs at a
    /// time.
    fn look(self: &Arc<Self>) {
        if self.is_looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let places = self.clone();
        let look = move || {
            // After a failure, the peer that lost a server asks again.
            let _ = places.refresh();
            places.is_looking.store(false, Ordering::SeqCst);
        };
        let thread = thread::Builder::new().name("outcore-places".to_owned()).stack_size(1 << 20);
        if thread.spawn(look).is_err() {
            self.is_looking.store(false, Ordering::SeqCst);
        }
    }

    pub(crate) fn peer(&self, server: ServerId) -> Result<Arc<Peer>> {
        let mut known = self.lock();
        if let Some(peer) = known.peers.get(&server) {
            return Ok(peer.clone());
        }
        let addresses = known.addresses.get(&server).ok_or_else(|| {
            if known.retired.contains(&server) {
                return is_retired(server);
            }
            Error::new(
                ErrorKind::NotFound,
                format!("I/O server {} is not one of the pool's; look at the manager's list", server.0),
            )
        })?;
        if addresses.is_empty() {
            return Err(self.unreachable(server));
        }
        let itself = self.itself.clone();
        let look = Box::new(move || {
            if let Some(places) = itself.upgrade() {
                places.look();
            }
        });
        let role = Role::IoServer(server);
        let peer = reach(role, addresses, self.client, &self.options, Some(look))?;
        known.peers.insert(server, peer.clone());
        Ok(peer)
    }

    /// The error for a server without an address that this client may use.
    fn unreachable(&self, server: ServerId) -> Error {
        let id = server.0;
        if self.needs_tls {
            return Error::new(
                ErrorKind::Denied,
                format!(
                    "need TLS, as the manager was reached with it, I/O server {id} is reached without; let it listen \
                     on tls:HOST:PORT, or connect to the manager without TLS"
                ),
            );
        }
        Error::invalid(format!("I/O server {id} has no address; give one to the manager"))
    }

    /// Checks the process, because threads do not survive a fork.
    pub(crate) fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "a pool was used in a process forked from the one that connected to it; connect in each process",
        ))
    }

    /// Sends a request to the manager, and waits for its answer.
    pub(crate) fn ask(&self, request: ManagerRequest) -> Result<ManagerReply> {
        self.check_process()?;
        let claim = Arc::<Claim>::default();
        let settles = Settles(claim.clone());
        let done = Box::new(move |result, _| settles.with(result));
        let control = encode(&request);
        check_control(&control)?;
        let request = Call::new(Kind::ManagerRequest, control, Region::empty(), Moves::Nothing, done);
        let wire = call(&self.manager, request);
        let reply = wait_for_answer(&self.manager, wire.as_deref(), &claim)?;
        decode(&reply.control)
    }

    /// Whether a reply has files on servers that are unknown, or known as retired. A retirement may have been
    /// reversed.
    pub(crate) fn has_news(&self, reply: &ManagerReply) -> bool {
        let known = self.lock();
        let is_new = |layout: &Option<Layout>| {
            layout.iter().flat_map(|layout| &layout.servers).any(|id| !known.addresses.contains_key(id))
        };
        match reply {
            ManagerReply::Opened(opened) => is_new(&opened.inode.layout),
            ManagerReply::Orphans(files) => files.iter().any(|file| is_new(&file.inode.layout)),
            _ => false,
        }
    }

    /// Whether a server has a UNIX socket on this machine.
    pub(crate) fn is_local(&self, server: ServerId) -> bool {
        let known = self.lock();
        let mut addresses = known.addresses.get(&server).into_iter().flatten();
        addresses.any(|address| matches!(address, Address::Unix(path) if path.exists()))
    }

    pub(crate) fn is_retired(&self, server: ServerId) -> bool {
        self.lock().retired.contains(&server)
    }

    /// Closes all connections. Unanswered calls fail.
    pub(crate) fn close(&self) {
        if self.check_process().is_err() {
            return;
        }
        self.manager.close();
        let peers: Vec<Arc<Peer>> = self.lock().peers.values().cloned().collect();
        peers.iter().for_each(|peer| peer.close());
    }
}

pub(crate) fn check_control(control: &[u8]) -> Result<()> {
    if control.len() > MAX_CONTROL_BYTES as usize {
        return Err(Error::invalid(format!(
            "need at most {MAX_CONTROL_BYTES} bytes to describe a request, have {}; divide it",
            control.len()
        )));
    }
    Ok(())
}

fn is_retired(server: ServerId) -> Error {
    let text =
        format!("I/O server {} was retired, and its data are gone; restore them from a copy", server.0);
    Error::new(ErrorKind::Io, text)
}
