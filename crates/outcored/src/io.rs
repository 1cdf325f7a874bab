//! An I/O server that listens: the data files of one directory, and its place in the pool.

use std::path::PathBuf;
use std::sync::Arc;

use outcore_core::wire::Role;
use outcore_core::{
    Error, ErrorKind, Gather, IoRequest, Link, ManagerReply, ManagerRequest, OnAnswer, Result, ServerAddress,
    ServerId,
};
use outcore_disk::{DEFAULT_THREADS, Directory, LocalDisk};
use outcore_memory::Region;
use outcore_net::{
    Address, Config, Credentials, Handler, Key, Listening, MonotonicClock, NetLink, Options, User, Who,
    listen,
};
use outcore_server::io_server::{self, Limits, Runner};

use crate::Settings;
use crate::manager::{addresses, common, signing_key};

const KNOWN: &str = "directory, listen, key_file, manager, server, advertise, threads, memory_bytes";

/// What an I/O server is told.
#[derive(Clone, Debug)]
pub struct IoSettings {
    /// Where its data files are.
    pub directory: PathBuf,
    /// Where it listens: each address is another way to it.
    pub listen: Vec<Address>,
    /// Where clients find it, if not where it listens.
    pub advertise: Option<Vec<Address>>,
    /// The pool's key.
    pub key: Key,
    /// Where the pool's manager listens.
    pub manager: Vec<Address>,
    /// Its number in the pool. Without one, an empty directory gets the next that is free.
    pub server: Option<ServerId>,
    /// Transfers that the disk works on at once.
    pub threads: usize,
    /// Bytes of payloads that are in memory at once: at least 32 MiB, since clients send up to 8 MiB in one message.
    pub memory_bytes: Option<usize>,
}

impl IoSettings {
    /// From a file's settings.
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
        settings.finish(KNOWN)?;
        if threads == 0
            || threads > 256
            || memory_bytes.is_some_and(|bytes| !(32 << 20..1 << 40).contains(&bytes))
        {
            return Err(Error::invalid("need threads of 1 to 256, and memory_bytes of 32 MiB to 1 TiB"));
        }
        let (threads, memory_bytes) = (threads as usize, memory_bytes.map(|bytes| bytes as usize));
        Ok(Self { directory, listen, advertise, key, manager, server, threads, memory_bytes })
    }
}

/// An I/O server that listens until this is stopped or dropped.
pub struct IoDaemon {
    // Dropped in this order: what was asked is answered before the server stops.
    listening: Listening,
    runner: Arc<Runner<LocalDisk>>,
    pool: u128,
    server: ServerId,
}

impl IoDaemon {
    /// Where it listens, with the ports that were taken.
    pub fn addresses(&self) -> &[Address] {
        self.listening.addresses()
    }

    /// Which pool it is of.
    pub fn pool(&self) -> u128 {
        self.pool
    }

    /// Which of its servers it is.
    pub fn server(&self) -> ServerId {
        self.server
    }

    /// Answers what was asked, makes everything durable, and stops.
    pub fn stop(self) {
        self.listening.stop();
        self.runner.stop();
    }
}

/// Starts an I/O server in a directory and tells the manager where it listens: an empty directory becomes a new
/// server of the pool.
pub fn serve_io(settings: &IoSettings) -> Result<IoDaemon> {
    let credentials = Credentials::Pool { key: settings.key.clone(), user: User::own() };
    let manager = NetLink::connect(&settings.manager, Options::new(credentials))?;
    let pool = manager.pool();
    let directory = Directory::new(&settings.directory)?;
    let server = which(settings, &directory, &manager)?;
    let disk = Arc::new(LocalDisk::new(directory.clone(), settings.threads)?);
    let config = io_server::Config {
        pool,
        server,
        verify: Box::new(signing_key(&settings.key)),
        scratch: Arc::new(Region::allocate),
        limits: Limits::default(),
        clock: Arc::new(MonotonicClock),
    };
    let runner = Arc::new(Runner::start(disk, Arc::new(directory), config)?);
    let role = Role::IoServer(server);
    let mut config = Config::new(role, Some(settings.key.clone()));
    config.memory_bytes = settings.memory_bytes.unwrap_or(config.memory_bytes);
    let listening = listen(&settings.listen, Arc::new(Serving(runner.clone())), config)?;

    let addresses = advertised(settings, listening.addresses())?;
    let request = ManagerRequest::AddServer { server: ServerAddress { id: server, addresses } };
    match manager.manager(request)? {
        ManagerReply::Done => Ok(IoDaemon { listening, runner, pool, server }),
        ManagerReply::Failed(error) => Err(error),
        reply => {
            Err(Error::new(ErrorKind::Corrupt, format!("the manager answered {reply:?} to a new server")))
        }
    }
}

struct Serving(Arc<Runner<LocalDisk>>);

impl Handler for Serving {
    fn io(&self, _who: &Who, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        self.0.call(request, buffer, done);
    }
}

/// The number of the server: what the settings say, what the directory says, or the next.
fn which(settings: &IoSettings, directory: &Directory, manager: &NetLink) -> Result<ServerId> {
    let named = |error: Error| Error::new(error.kind, format!("{}: {error}", settings.directory.display()));
    // Of which pool it is, is checked when it starts.
    let marked = io_server::marked(directory).map_err(named)?;
    match (settings.server, marked.map(|(_, server)| server)) {
        (Some(told), Some(found)) if told != found => Err(Error::invalid(format!(
            "{} is of server {}, the settings say {}; give the directory of that server, or an empty one",
            settings.directory.display(),
            found.0,
            told.0
        ))),
        (Some(id), _) | (None, Some(id)) => Ok(id),
        (None, None) => match manager.manager(ManagerRequest::Servers)? {
            ManagerReply::Servers { servers, .. } => {
                let next = servers.iter().map(|server| server.id.0 + 1).max().unwrap_or(0);
                Ok(ServerId(next))
            }
            ManagerReply::Failed(error) => Err(error),
            _ => Err(Error::new(ErrorKind::Corrupt, "the manager does not say which servers there are")),
        },
    }
}

/// Where clients are to look for the server.
fn advertised(settings: &IoSettings, listening: &[Address]) -> Result<Vec<String>> {
    let addresses = settings.advertise.as_deref().unwrap_or(listening);
    let is_everywhere = |address: &&Address| match address {
        Address::Tcp(place) => place.starts_with("0.0.0.0:") || place.starts_with("[::]:"),
        Address::Unix(_) => false,
    };
    if let Some(address) = addresses.iter().find(is_everywhere) {
        return Err(Error::invalid(format!(
            "clients cannot connect to {address}; say where they find this host: advertise = [\"tcp:node2:7172\"]"
        )));
    }
    Ok(addresses.iter().map(Address::to_string).collect())
}
