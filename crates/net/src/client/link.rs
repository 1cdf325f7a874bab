//! The link: the manager and the I/O servers of one pool.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use outcore_core::wire::{Kind, MAX_CONTROL_BYTES, MAX_RUNS, Role, decode, encode};
use outcore_core::{
    Answer, Buffer, Clock, Error, ErrorKind, IoRequest, Layout, Link, ManagerReply, ManagerRequest, OnAnswer,
    Result, ServerAddress, ServerId,
};
use outcore_memory::Region;

use crate::client::answers::{io_reply, wait_for_answer};
use crate::client::call::{Call, Moves, Reply};
use crate::client::divide::{Joined, MOST_BYTES, PART_BYTES, divide};
use crate::client::peer::Peer;
use crate::client::reader::{Claim, Settles};
use crate::system::{MonotonicClock, random};
use crate::{Address, Credentials};

/// How a pool is reached.
#[derive(Clone)]
pub struct Options {
    /// With what the client proves who it is.
    pub credentials: Credentials,
    /// Connections to each address of an I/O server.
    pub connections_per_address: usize,
    /// Calls fail when a server could not be reached for so long.
    pub patience: Duration,
    /// A server that works on requests and is silent for less than this is not given up.
    pub least_silence: Duration,
    /// By which the times of answers are taken.
    pub clock: Arc<dyn Clock>,
}

impl Options {
    /// The defaults.
    pub fn new(credentials: Credentials) -> Self {
        Self {
            credentials,
            connections_per_address: 2,
            patience: Duration::from_secs(60),
            least_silence: Duration::from_secs(5),
            clock: Arc::new(MonotonicClock),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options").field("credentials", &self.credentials).finish_non_exhaustive()
    }
}

/// The servers of one pool, over the network. Dropping it fails calls that are not answered.
pub struct NetLink {
    options: Options,
    client: u128,
    process: u32,
    pool: u128,
    manager: Arc<Peer>,
    /// Who reaches the manager encrypted goes to no server that is reached otherwise over a network.
    needs_tls: bool,
    servers: Mutex<Servers>,
}

#[derive(Default)]
struct Servers {
    addresses: HashMap<ServerId, Vec<Address>>,
    /// Made when they are first called.
    peers: HashMap<ServerId, Arc<Peer>>,
    retired: HashSet<ServerId>,
}

impl NetLink {
    /// Connects to the manager at any of `addresses`, and learns from it where the I/O servers are.
    pub fn connect(addresses: &[Address], options: Options) -> Result<Self> {
        let client = u128::from_le_bytes(random()?);
        let manager = Peer::new(Role::Manager, addresses, client, &options)?;
        let mut link = Self {
            options,
            client,
            process: std::process::id(),
            pool: 0,
            manager,
            needs_tls: addresses.iter().any(|address| matches!(address, Address::Tls(_))),
            servers: Mutex::default(),
        };
        link.pool = link.refresh()?;
        Ok(link)
    }

    /// Which pool it is.
    pub fn pool(&self) -> u128 {
        self.pool
    }

    /// Most bytes that one request to a server moves; as far as is known, before the first request.
    pub fn payload_bytes(&self, server: ServerId) -> Result<u64> {
        self.peer(server).map(|peer| peer.payload_bytes.load(Ordering::Relaxed))
    }

    fn lock(&self) -> MutexGuard<'_, Servers> {
        self.servers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Asks the manager where the servers are, and returns which pool it is.
    fn refresh(&self) -> Result<u128> {
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
        let mut known = self.lock();
        for ServerAddress { id, addresses } in servers {
            let mut addresses =
                addresses.iter().map(|text| text.parse()).collect::<Result<Vec<Address>>>()?;
            if self.needs_tls {
                addresses.retain(|address| !matches!(address, Address::Tcp(_)));
            }
            if known.addresses.get(&id).is_some_and(|before| *before != addresses) {
                // It has moved: what waits for it at the old place goes to the new one by being called again.
                if let Some(peer) = known.peers.remove(&id) {
                    peer.close();
                }
            }
            known.addresses.insert(id, addresses);
        }
        for id in &retired {
            known.addresses.remove(id);
            if let Some(peer) = known.peers.remove(id) {
                peer.end(&is_retired(*id));
            }
        }
        known.retired = retired.into_iter().collect();
        Ok(pool)
    }

    fn peer(&self, server: ServerId) -> Result<Arc<Peer>> {
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
        if self.needs_tls && addresses.is_empty() {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "need TLS, as the manager was reached with it, I/O server {} is reached without; let it \
                     listen on tls:HOST:PORT, or connect to the manager without TLS",
                    server.0
                ),
            ));
        }
        let peer = Peer::new(Role::IoServer(server), addresses, self.client, &self.options)?;
        known.peers.insert(server, peer.clone());
        Ok(peer)
    }

    /// Threads do not survive a fork.
    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            "a pool was used in a process forked from the one that connected to it; connect in each process",
        ))
    }

    fn ask(&self, request: ManagerRequest) -> Result<ManagerReply> {
        self.check_process()?;
        let claim = Arc::<Claim>::default();
        let settles = Settles(claim.clone());
        let done = Box::new(move |result, _| settles.with(result));
        let control = encode(&request);
        check_control(&control)?;
        let call = Call::new(Kind::ManagerRequest, control, Region::empty(), Moves::Nothing, done);
        let wire = self.manager.call(call);
        let reply = wait_for_answer(&self.manager, wire.as_deref(), &claim)?;
        decode(&reply.control)
    }

    /// One message.
    fn send(&self, server: ServerId, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let clock = self.options.clock.clone();
        let started_ns = clock.now_ns();
        let answer = move |result: Result<Reply>, buffer| {
            let finished_ns = clock.now_ns();
            let (reply, incarnation) = io_reply(result);
            done(Answer { reply, buffer, incarnation, started_ns, finished_ns });
        };
        let control = encode(&request);
        let ready = self.check_process().and_then(|()| check_control(&control)).and_then(|()| {
            let peer = self.peer(server)?;
            let most = peer.payload_bytes.load(Ordering::Relaxed);
            if buffer.len() as u64 > most {
                return Err(Error::new(
                    ErrorKind::Budget,
                    format!(
                        "need {} bytes at once, the server moves at most {most}; divide the request",
                        buffer.len()
                    ),
                ));
            }
            Ok(peer)
        });
        match ready {
            Err(error) => answer(Err(error), buffer),
            Ok(peer) => {
                let moves = match (request.is_read(), request.is_write()) {
                    (true, _) => Moves::In,
                    (_, true) => Moves::Out,
                    _ => Moves::Nothing,
                };
                // By a UNIX socket the server sees whose memory it is.
                let is_for_local = matches!(request, IoRequest::Join { memory: Some(_), .. });
                drop(request);
                let call = Call::new(Kind::IoRequest, control, buffer, moves, Box::new(answer));
                peer.call(Call { is_for_local, ..call });
            }
        }
    }

    /// Whether files of a reply lie on servers that are not known yet, or are retired, which may have been undone.
    fn has_news(&self, reply: &ManagerReply) -> bool {
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
}

fn is_retired(server: ServerId) -> Error {
    let text =
        format!("I/O server {} was retired, and what lay there is gone; restore it from a copy", server.0);
    Error::new(ErrorKind::Io, text)
}

fn check_control(control: &[u8]) -> Result<()> {
    if control.len() > MAX_CONTROL_BYTES as usize {
        return Err(Error::invalid(format!(
            "need at most {MAX_CONTROL_BYTES} bytes to describe a request, have {}; divide it",
            control.len()
        )));
    }
    Ok(())
}

impl Link for NetLink {
    type Buffer = Region;

    /// What is too large for one message goes as several, and is answered once.
    fn io(&self, server: ServerId, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let (target, grant, regions, is_write) = match &request {
            IoRequest::Read { target, grant, regions } => (*target, *grant, regions, false),
            IoRequest::Write { target, grant, regions } => (*target, *grant, regions, true),
            _ => return self.send(server, request, buffer, done),
        };
        let most_bytes = self.payload_bytes(server).unwrap_or(MOST_BYTES).min(MOST_BYTES);
        let bytes = buffer.len() as u64;
        if bytes <= most_bytes && regions.run_count() <= MAX_RUNS {
            return self.send(server, request, buffer, done);
        }
        let Ok(parts) = divide(&target, regions, bytes, most_bytes.min(PART_BYTES)) else {
            // What it is refused for is better said where all requests are looked at.
            return self.send(server, request, buffer, done);
        };
        let joined = Joined::new(parts.len(), buffer.clone(), done);
        let mut rest = buffer;
        for regions in parts {
            let bytes = regions.total_bytes() as usize;
            let part = rest.part(0, bytes);
            rest.advance(bytes);
            let request = if is_write {
                IoRequest::Write { target, grant, regions }
            } else {
                IoRequest::Read { target, grant, regions }
            };
            self.send(server, request, part, joined.part());
        }
    }

    fn is_local(&self, server: ServerId) -> bool {
        let known = self.lock();
        let mut addresses = known.addresses.get(&server).into_iter().flatten();
        addresses.any(|address| matches!(address, Address::Unix(path) if path.exists()))
    }

    fn is_retired(&self, server: ServerId) -> bool {
        self.lock().retired.contains(&server)
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        let retires = matches!(request, ManagerRequest::Retire { .. });
        let reply = self.ask(request)?;
        if retires || self.has_news(&reply) {
            self.refresh()?;
        }
        Ok(reply)
    }
}

impl Drop for NetLink {
    fn drop(&mut self) {
        if self.check_process().is_err() {
            return;
        }
        self.manager.close();
        for peer in self.lock().peers.values() {
            peer.close();
        }
    }
}
