//! A listening server: it accepts connections, and ends all of them in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::wire::{MAX_PAYLOAD_BYTES, Role, Welcome};
use outcore_core::{Clock, Error, ErrorKind, Incarnation, PeerMemory, Result};
use outcore_memory::{Arena, Region};

use crate::handshake::{Host, TIME_TO_BEGIN, admit, refuse};
use crate::process_memory::ProcessMemory;
use crate::server::admission::Admission;
use crate::server::channel::{Channel, ChannelCounts};
use crate::server::connection::Connection;
use crate::server::connections::Connections;
use crate::server::requests::Requests;
use crate::server::session::Sessions;
use crate::server::{Caller, Handler, Who};
use crate::socket::{Listener, Socket};
use crate::system::MonotonicClock;
use crate::{Address, Key};

/// Default maximum number of connections.
const MOST_CONNECTIONS: usize = 1024;

/// Wait for the file descriptor of a connection that the server has ended.
const TIME_TO_END: Duration = Duration::from_millis(10);

/// A client with more than one request holds at most the memory divided by this.
const SHARE: usize = 4;

/// Maximum time to send pending answers after the server was stopped.
const TIME_TO_STOP: Duration = Duration::from_secs(10);

/// Interval at which waiting threads check for the end.
const TICK: Duration = Duration::from_millis(200);

/// The configuration of a listening server.
#[derive(Clone, Debug)]
pub struct Config {
    /// The server's role.
    pub role: Role,
    /// This run of an I/O server. If another run answers later, a client knows that unsynced writes may be
    /// lost.
    pub incarnation: Incarnation,
    /// The pool's key. Without one, the server accepts UNIX sockets only.
    pub key: Option<Key>,
    /// Maximum bytes of payloads in memory, over all clients. One request moves at most a quarter of them.
    pub memory_bytes: usize,
    /// Additional bytes for long lists of regions.
    pub control_bytes: usize,
    /// A client that moves no byte for this long in the middle of a message is disconnected.
    pub patience: Duration,
    /// Interval of signs of life to a client with unanswered requests.
    pub working: Duration,
    /// Maximum number of connections, of which the server keeps some for clients that prove their key. For one
    /// more, it ends the oldest connection without such a proof. For one more client with a key, it ends the
    /// connection of a client with a key that was idle longest; that client reconnects.
    pub connections: usize,
}

impl Config {
    /// The defaults, which stay below 128 MiB.
    pub fn new(role: Role, key: Option<Key>) -> Self {
        Self {
            role,
            incarnation: Incarnation::NONE,
            key,
            memory_bytes: 48 << 20,
            // Enough for the longest list of runs that a client sends, with the rest of the message.
            control_bytes: (64 << 20) + (64 << 10),
            patience: Duration::from_secs(30),
            working: Duration::from_secs(1),
            connections: MOST_CONNECTIONS,
        }
    }
}

/// The shared state of a server's connections.
pub(crate) struct Shared {
    pub(crate) handler: Arc<dyn Handler>,
    pub(crate) arena: Arena,
    pub(crate) payloads: Arc<Admission>,
    pub(crate) controls: Arc<Admission>,
    /// Maximum bytes of one payload.
    pub(crate) payload_bytes: usize,
    config: Config,
    sessions: Sessions<(Who, u128), Arc<Connection>>,
    connections: Connections,
    channels: Vec<Arc<Channel>>,
    is_stopping: AtomicBool,
}

/// Observes a listening server.
#[derive(Clone)]
pub struct Watcher(Arc<Shared>);

impl Watcher {
    /// The traffic on each address.
    pub fn channels(&self) -> Vec<ChannelCounts> {
        self.0.channels.iter().map(|channel| channel.counts()).collect()
    }

    /// Bytes of payloads in memory, and the maximum.
    pub fn memory_bytes(&self) -> (usize, usize) {
        (self.0.arena.used_bytes(), self.0.arena.budget_bytes())
    }

    /// The name of the user of each connected client.
    pub fn clients(&self) -> Vec<String> {
        self.0.sessions.connected().into_iter().map(|(who, _)| who.name).collect()
    }

    /// Number of requests that wait for memory.
    pub fn waiting(&self) -> usize {
        self.0.payloads.waiting() + self.0.controls.waiting()
    }
}

/// A server that listens until it is stopped or dropped.
pub struct Listening {
    shared: Arc<Shared>,
    addresses: Vec<Address>,
    /// The sockets that listen, and their threads.
    acceptors: Vec<(Arc<Listener>, thread::JoinHandle<()>)>,
}

/// Listens on all `addresses`, and passes requests to `handler`. Port 0 takes a free port.
pub fn listen(addresses: &[Address], handler: Arc<dyn Handler>, config: Config) -> Result<Listening> {
    if config.key.is_none() && addresses.iter().any(|address| !matches!(address, Address::Unix(_))) {
        return Err(Error::new(
            ErrorKind::Denied,
            "need a key to listen on TCP, because TCP does not identify clients; give a key file, or listen on a UNIX socket",
        ));
    }
    let listeners: Vec<Listener> = addresses.iter().map(Listener::bind).collect::<Result<_>>()?;
    let addresses: Vec<Address> = listeners.iter().map(Listener::address).collect::<Result<_>>()?;
    let payload_bytes = (config.memory_bytes / SHARE).min(MAX_PAYLOAD_BYTES as usize);
    let shared = Arc::new(Shared {
        handler,
        arena: Arena::short_lived(config.memory_bytes),
        payloads: Admission::new(config.memory_bytes, payload_bytes),
        controls: Admission::new(config.control_bytes, config.control_bytes),
        payload_bytes,
        connections: Connections::new(config.connections),
        config,
        sessions: Sessions::default(),
        channels: addresses.iter().cloned().map(|address| Arc::new(Channel::new(address))).collect(),
        is_stopping: AtomicBool::new(false),
    });
    let acceptors = listeners.into_iter().zip(&shared.channels).map(|(listener, channel)| {
        let (shared, channel, listener) = (shared.clone(), channel.clone(), Arc::new(listener));
        let accepts = listener.clone();
        Ok((listener, start("outcore-accept", move || accept(&shared, &accepts, &channel))?))
    });
    let acceptors = acceptors.collect::<Result<_>>()?;
    Ok(Listening { shared, addresses, acceptors })
}

fn start(name: &str, work: impl FnOnce() + Send + 'static) -> Result<thread::JoinHandle<()>> {
    let thread = thread::Builder::new().name(name.to_owned()).stack_size(1 << 20).spawn(work);
    thread.map_err(|error| {
        Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"))
    })
}

fn accept(shared: &Arc<Shared>, listener: &Listener, channel: &Arc<Channel>) {
    while !shared.is_stopping() {
        match listener.accept(TICK) {
            Ok(Some(socket)) => {
                shared.connections.keep_spare();
                let (shared, channel) = (shared.clone(), channel.clone());
                // Without a thread the socket closes, and the client retries.
                drop(start("outcore-connection", move || shared.host(socket, channel)));
            }
            // This also runs while no client connects.
            Ok(None) => {
                shared.connections.keep_spare();
                shared.sessions.forget(MonotonicClock.now_ns());
            }
            Err(_) if shared.is_stopping() => return,
            Err(error) => {
                let is_out = matches!(error.raw_os_error(), Some(libc::EMFILE | libc::ENFILE));
                thread::sleep(if is_out && shared.connections.free_descriptor() {
                    TIME_TO_END
                } else {
                    TICK
                });
            }
        }
    }
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.is_stopping.load(Ordering::SeqCst)
    }

    /// Serves one connection, from start to end.
    fn host(self: &Arc<Self>, socket: Socket, channel: Arc<Channel>) {
        if socket.prepare(TICK).is_err() {
            return;
        }
        let (patience, working) = (self.config.patience, self.config.working);
        let connection = Arc::new(Connection::new(socket, channel, patience, working));
        self.connections.add(&connection);
        // After this check, `stop` knows of the connection.
        if self.is_stopping() {
            let error = Error::new(ErrorKind::Busy, "the server is stopping; try later");
            return refuse(&connection.socket, &error);
        }
        let welcome = Welcome {
            payload_bytes: self.payload_bytes as u64,
            working_ms: self.config.working.as_millis().try_into().unwrap_or(u32::MAX),
            incarnation: self.config.incarnation,
        };
        let time = TIME_TO_BEGIN.min(self.config.patience);
        let (role, key) = (self.config.role, self.config.key.as_ref());
        let host = Host { role, key, welcome, time, enter: &|| self.connections.admit(&connection) };
        let Ok((who, client)) = admit(&connection.socket, &host) else { return };
        let session = self.sessions.enter((who.clone(), client), MonotonicClock.now_ns());
        let process = connection.socket.peer_ids().and_then(|peer| ProcessMemory::of(&peer));
        let memory = process.map(|process| Arc::new(process) as Arc<dyn PeerMemory<Region>>);
        let sender = connection.clone();
        let sending = start("outcore-answers", move || sender.send_answers());
        if sending.is_ok() {
            let requests = Requests {
                shared: self.clone(),
                connection: connection.clone(),
                session: session.clone(),
                caller: Caller { who, memory },
                client,
            };
            requests.serve();
            if self.is_stopping() {
                connection.drain(Instant::now() + TIME_TO_STOP);
            }
        }
        connection.end();
        if let Ok(thread) = sending {
            // The thread ends with the connection. A panic has reported itself.
            let _ = thread.join();
        }
        self.sessions.leave(&session, MonotonicClock.now_ns());
    }
}

impl Listening {
    /// The addresses, with the actual ports.
    pub fn addresses(&self) -> &[Address] {
        &self.addresses
    }

    /// Peak bytes of payloads in memory.
    pub fn peak_bytes(&self) -> usize {
        self.shared.arena.peak_bytes()
    }

    /// An observer of this server, for any thread.
    pub fn watcher(&self) -> Watcher {
        Watcher(self.shared.clone())
    }

    /// Accepts no more requests, answers pending ones, and ends all connections.
    pub fn stop(mut self) {
        self.stop_now();
    }

    fn stop_now(&mut self) {
        if self.shared.is_stopping.swap(true, Ordering::SeqCst) {
            return;
        }
        for (listener, thread) in self.acceptors.drain(..) {
            listener.shut();
            let _ = thread.join();
        }
        let until = Instant::now() + TIME_TO_STOP;
        let all = self.shared.connections.live();
        for connection in &all {
            connection.socket.shut(std::net::Shutdown::Read);
        }
        self.shared.handler.end_waits();
        for connection in &all {
            connection.drain(until);
        }
        self.shared.payloads.close();
        self.shared.controls.close();
        for connection in &all {
            connection.end();
        }
        drop(all);
        // The threads of connections hold the handler. After this wait, the caller has the only reference.
        while self.shared.connections.any_exists() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Listening {
    fn drop(&mut self) {
        self.stop_now();
    }
}
