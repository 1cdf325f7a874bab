//! An I/O server that listens: the data files of one directory, and its membership in the pool.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::Instant;

use outcore_core::wire::Role;
use outcore_core::{
    Answer, Buffer, Clock, Error, ErrorKind, Gather, IoReply, IoRequest, Link, ManagerReply, ManagerRequest,
    OnAnswer, Result, ServerAddress, ServerId,
};
use outcore_disk::{DEFAULT_THREADS, Directory, LocalDisk};
use outcore_memory::Region;
use outcore_mount::check_outside_mounts;
use outcore_net::{
    Address, Caller, Config, Credentials, Handler, Key, Listening, MonotonicClock, NetLink, Options, User,
    listen,
};
use outcore_server::io_server::{self, Limits, ManagerTime, Runner};

use crate::Settings;
use crate::exposition::CONTENT_TYPE;
use crate::http::{Got, PageServer};
use crate::io_metrics::{IoMetrics, status_of};
use crate::joining::{Joined, Joining};
use crate::manager::{OF_METRICS, addresses, common, signing_key};
use crate::metadata::{file_descriptors, most_connections, spare_bytes};
use crate::metrics::{Identity, METRICS_PATH, Metrics, NO_PAGE};
use crate::recorder::{Recorder, WatchedDisk};
use crate::requests::{IO_KINDS, Requests, kind_of_io};

const OF_DIRECT_MEMORY: &str = "\"on\", or \"off\"";

const KNOWN: &str =
    "directory, listen, key_file, manager, server, advertise, threads, memory_bytes, metrics, direct_memory";

/// Settings of an I/O server.
#[derive(Clone, Debug)]
pub struct IoSettings {
    /// The directory of its data files.
    pub directory: PathBuf,
    /// The addresses at which it listens.
    pub listen: Vec<Address>,
    /// The addresses for clients, if they differ from `listen`.
    pub advertise: Option<Vec<Address>>,
    /// The pool's key.
    pub key: Key,
    /// The addresses of the pool's manager.
    pub manager: Vec<Address>,
    /// Its number in the pool. Without one, an empty directory gets the next free number.
    pub server: Option<ServerId>,
    /// Concurrent transfers on the disk.
    pub threads: usize,
    /// Bytes of payloads in memory at once: at least 32 MiB, since clients send up to 8 MiB in one message.
    pub memory_bytes: Option<usize>,
    /// Whether the server reads the memory that processes on its machine offer in collectives.
    pub reads_memory: bool,
    /// `HOST:PORT` of its metrics for Prometheus, if it serves any.
    pub metrics: Option<String>,
}

impl IoSettings {
    /// Reads the settings from a file.
    pub fn from_settings(mut settings: Settings) -> Result<Self> {
        let (directory, listen, key) = common(&mut settings)?;
        let of_manager = "[\"tcp:node1:7171\"]";
        let manager = settings.list("manager", of_manager)?.filter(|list| !list.is_empty());
        let manager = addresses(&settings.required(manager, "manager", of_manager)?)?;
        let advertise = settings.list("advertise", "[\"tcp:node2:7172\"]")?;
        let advertise = advertise.map(|list| addresses(&list)).transpose()?;
        let server = settings.number("server", "0, or another number below 2^32")?;
        let server = match server.map(u32::try_from) {
            None => None,
            Some(Ok(number)) => Some(ServerId(number)),
            Some(Err(_)) => return Err(Error::invalid("need server = 0, or another number below 2^32")),
        };
        let threads = settings.number("threads", "4")?.unwrap_or(DEFAULT_THREADS as u64);
        let memory_bytes = settings.number("memory_bytes", "50_331_648")?;
        let metrics = settings.text("metrics", OF_METRICS)?;
        let direct_memory = settings.text("direct_memory", OF_DIRECT_MEMORY)?;
        let reads_memory = match direct_memory.as_deref() {
            None | Some("on") => true,
            Some("off") => false,
            Some(_) => return Err(Error::invalid(format!("need direct_memory = {OF_DIRECT_MEMORY}"))),
        };
        settings.finish(KNOWN)?;
        if threads == 0
            || threads > 256
            || memory_bytes.is_some_and(|bytes| !(32 << 20..1 << 40).contains(&bytes))
        {
            return Err(Error::invalid("need threads of 1 to 256, and memory_bytes of 32 MiB to 1 TiB"));
        }
        let (threads, memory_bytes) = (threads as usize, memory_bytes.map(|bytes| bytes as usize));
        Ok(Self {
            directory,
            listen,
            advertise,
            key,
            manager,
            server,
            threads,
            memory_bytes,
            reads_memory,
            metrics,
        })
    }
}

/// An I/O server that listens until it is stopped or dropped.
pub struct IoDaemon {
    // The fields are dropped in this order: pending requests are answered before the server stops.
    metrics: Option<PageServer>,
    listening: Listening,
    _described: Arc<IoMetrics>,
    runner: Arc<Runner<WatchedDisk>>,
    pool: u128,
    server: ServerId,
    _joined: Joined,
}

impl IoDaemon {
    /// The addresses at which it listens, with the actual ports.
    pub fn addresses(&self) -> &[Address] {
        self.listening.addresses()
    }

    /// The address of its metrics, with the actual port.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(PageServer::address)
    }

    /// The number of its pool.
    pub fn pool(&self) -> u128 {
        self.pool
    }

    /// Its number in the pool.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Whether its disk is writable; on a read-only disk, the server only reads. `true` if the server does not
    /// answer in time.
    pub fn is_writable(&self) -> bool {
        status_of(&self.runner).is_none_or(|status| status.is_writable)
    }

    /// Answers pending requests, makes everything durable, and stops.
    pub fn stop(self) {
        drop(self.metrics);
        self.listening.stop();
        self.runner.stop();
    }
}

/// Starts an I/O server in a directory and reports its addresses to the manager. An empty directory becomes a new
/// server of the pool.
pub fn serve_io(settings: &IoSettings) -> Result<IoDaemon> {
    check_outside_mounts(&settings.directory)?;
    let credentials = Credentials::Pool { key: settings.key.clone(), user: User::own() };
    let manager = Arc::new(NetLink::connect(&settings.manager, Options::new(credentials))?);
    let pool = manager.pool();
    let directory = Directory::private(&settings.directory, &io_server::NAMES)?;
    let files = directory.clone();
    let server = which(settings, &directory, &manager)?;
    let recorder = Arc::new(Recorder::new());
    let disk = LocalDisk::new(directory.clone(), settings.threads)?;
    let disk = Arc::new(WatchedDisk { disk, recorder: recorder.clone() });
    let spare_bytes = spare_bytes(&directory)?;
    let config = io_server::Config {
        pool,
        server,
        verify: Box::new(signing_key(&settings.key)),
        scratch: Arc::new(Region::allocate),
        reads_memory: settings.reads_memory,
        limits: Limits { spare_bytes, ..Limits::default() }.within(file_descriptors(1)),
        clock: Arc::new(MonotonicClock),
        manager_time: Some(time_of(manager.clone())),
    };
    let runner = Arc::new(Runner::start(disk, Arc::new(directory), config)?);
    let role = Role::IoServer(server);
    let mut config = Config::new(role, Some(settings.key.clone()));
    config.incarnation = runner.incarnation();
    config.connections = most_connections();
    config.memory_bytes = settings.memory_bytes.unwrap_or(config.memory_bytes);
    let requests = Arc::new(Requests::new(IO_KINDS));
    let serving = Arc::new(Serving {
        runner: runner.clone(),
        requests: requests.clone(),
        recorder: recorder.clone(),
        metrics: OnceLock::new(),
    });
    let listening = listen(&settings.listen, serving.clone(), config)?;
    let identity = Identity { role: "io", pool, server: Some(server.0) };
    let common = Metrics { identity, started: Instant::now(), requests, watcher: listening.watcher() };
    let described = Arc::new(IoMetrics { common, runner: Arc::downgrade(&runner), recorder });
    let _ = serving.metrics.set(Arc::downgrade(&described));
    let metrics = settings.metrics.as_ref().map(|address| {
        let described = described.clone();
        PageServer::start("metrics", address, move |get| match get.path {
            METRICS_PATH => Got::Page(CONTENT_TYPE, described.text(false)),
            _ => Got::Missing(NO_PAGE),
        })
    });
    let metrics = metrics.transpose()?;

    let addresses = advertised(settings, listening.addresses())?;
    let joining = Joining { manager, address: ServerAddress { id: server, addresses }, directory: files };
    let joined = joining.join()?;
    Ok(IoDaemon { metrics, listening, _described: described, runner, pool, server, _joined: joined })
}

/// Asks the manager for its time.
fn time_of(manager: Arc<NetLink>) -> ManagerTime {
    Arc::new(move || match manager.manager(ManagerRequest::Time) {
        Ok(ManagerReply::Time { now_s, .. }) => Some(now_s),
        _ => None,
    })
}

struct Serving {
    runner: Arc<Runner<WatchedDisk>>,
    requests: Arc<Requests>,
    recorder: Arc<Recorder>,
    /// Set once the server listens.
    metrics: OnceLock<Weak<IoMetrics>>,
}

impl Handler for Serving {
    fn io(&self, caller: &Caller, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let kind = kind_of_io(&request);
        let (requests, begun) = (self.requests.clone(), self.requests.begin(kind));
        let (is_write, is_read, recorder) = (request.is_write(), request.is_read(), self.recorder.clone());
        let counted = move |answer: Answer<Region>| {
            let error = match &answer.reply {
                IoReply::Failed(error) => Some(error),
                _ => None,
            };
            let bytes = answer.buffer.len() as u64;
            requests.end(&begun, error, u64::from(is_write) * bytes, u64::from(is_read) * bytes);
            recorder.request(kind, (answer.started_ns, answer.finished_ns), bytes);
            done(answer);
        };
        let is_check = matches!(
            request,
            IoRequest::Scrub { .. }
                | IoRequest::DataFiles { .. }
                | IoRequest::Inspect { .. }
                | IoRequest::Cut { .. }
                | IoRequest::Metrics
        );
        let incarnation = self.runner.incarnation();
        let now = move |reply, buffer| {
            let now_ns = MonotonicClock.now_ns();
            Answer { reply, buffer, incarnation, started_ns: now_ns, finished_ns: now_ns }
        };
        if is_check && !caller.who.is_root {
            let error = Error::new(
                ErrorKind::Denied,
                "need the pool's key, or the user who runs the server, to check it; use the pool's key file",
            );
            return counted(now(IoReply::Failed(error), buffer));
        }
        match request {
            IoRequest::Spans => counted(now(IoReply::Spans(Box::new(self.recorder.spans())), buffer)),
            IoRequest::Metrics => {
                let metrics = self.metrics.get().and_then(Weak::upgrade);
                // The text waits for the server's thread. Without a thread, the caller gets an error.
                let tell = move || {
                    let text = metrics.map(|metrics| metrics.text(true)).unwrap_or_default();
                    counted(now(IoReply::Metrics(text), buffer));
                };
                drop(thread::Builder::new().name("outcore-metrics".into()).spawn(tell));
            }
            request => self.runner.call_of(caller.memory.clone(), request, buffer, Box::new(counted)),
        }
    }

    fn end_waits(&self) {
        self.runner.end_collectives();
    }
}

/// The number of the server: from the settings, from the directory, or the next free one.
fn which(settings: &IoSettings, directory: &Directory, manager: &NetLink) -> Result<ServerId> {
    let named = |error: Error| Error::new(error.kind, format!("{}: {error}", settings.directory.display()));
    // The runner checks the pool's number when it starts.
    let marked = io_server::marked(directory).map_err(named)?;
    match (settings.server, marked.map(|(_, server)| server)) {
        (Some(told), Some(found)) if told != found => Err(Error::invalid(format!(
            "{} is of server {}, the settings say {}; give the directory of that server, or an empty one",
            settings.directory.display(),
            found.0,
            told.0
        ))),
        (Some(told), None) if is_known(told, manager)? => Err(Error::invalid(format!(
            "{} is empty, and the pool has a server {} with files of its own; give its directory, or leave server out for a \
             new one",
            settings.directory.display(),
            told.0
        ))),
        (Some(id), _) | (None, Some(id)) => Ok(id),
        // The manager assigns it in one commit, so servers that join at once get different numbers.
        (None, None) => match manager.manager(ManagerRequest::NewServer)? {
            ManagerReply::NewServer(id) => Ok(id),
            ManagerReply::Failed(error) => Err(error),
            _ => Err(Error::new(ErrorKind::Corrupt, "the manager gives no number for a new server")),
        },
    }
}

/// Whether the pool has, or had, a server with this number.
fn is_known(id: ServerId, manager: &NetLink) -> Result<bool> {
    match manager.manager(ManagerRequest::Servers)? {
        ManagerReply::Servers { servers, retired, .. } => {
            Ok(retired.contains(&id) || servers.iter().any(|server| server.id == id))
        }
        ManagerReply::Failed(error) => Err(error),
        _ => Err(Error::new(ErrorKind::Corrupt, "the manager does not say which servers there are")),
    }
}

/// The addresses at which clients find the server.
fn advertised(settings: &IoSettings, listening: &[Address]) -> Result<Vec<String>> {
    let addresses = settings.advertise.as_deref().unwrap_or(listening);
    let is_everywhere = |address: &&Address| match address {
        Address::Tcp(place) | Address::Tls(place) => {
            place.starts_with("0.0.0.0:") || place.starts_with("[::]:")
        }
        Address::Unix(_) => false,
    };
    if let Some(address) = addresses.iter().find(is_everywhere) {
        return Err(Error::invalid(format!(
            "clients cannot connect to {address}; say where they find this host: advertise = [\"tcp:node2:7172\"]"
        )));
    }
    Ok(addresses.iter().map(Address::to_string).collect())
}
