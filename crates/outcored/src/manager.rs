//! A manager that listens: names and rights of a pool, in one directory.

use std::any::Any;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use outcore_core::wire::Role;
use outcore_core::{Error, ErrorKind, ManagerReply, ManagerRequest, Names, Origin, Result};
use outcore_disk::Directory;
use outcore_net::{Address, Config, Handler, Key, Listening, User, Who, listen};
use outcore_server::grants;
use outcore_server::manager::{self, Asked, Manager, Now};
use outcore_server::store::SqliteStore;

use crate::Settings;
use crate::http::PageServer;
use crate::metrics::{Identity, serve_metrics};
use crate::requests::{Requests, kind_of_manager};

/// Where a pool keeps what the manager knows, below the manager's directory.
const LOCK: &str = "manager/lock";
const METADATA: &str = "manager/metadata.sqlite";

/// Requests that become durable together.
const MOST_AT_ONCE: usize = 256;

const KNOWN: &str = "directory, listen, key_file, metrics";

/// What the setting of that name is like.
pub(crate) const OF_METRICS: &str = "\"127.0.0.1:9471\"";

/// What a manager is told.
#[derive(Clone, Debug)]
pub struct ManagerSettings {
    /// Where it keeps what it knows; it may be an I/O server's too.
    pub directory: PathBuf,
    /// Where it listens.
    pub listen: Vec<Address>,
    /// The pool's key: clients prove that they have it, and its servers know by it what the manager allows.
    pub key: Key,
    /// `HOST:PORT` at which Prometheus finds its metrics, if anywhere.
    pub metrics: Option<String>,
}

impl ManagerSettings {
    /// From a file's settings.
    pub fn from_settings(mut settings: Settings) -> Result<Self> {
        let (directory, listen, key) = common(&mut settings)?;
        let metrics = settings.text("metrics", OF_METRICS)?;
        settings.finish(KNOWN)?;
        Ok(Self { directory, listen, key, metrics })
    }
}

/// What both kinds of daemons are told.
pub(crate) fn common(settings: &mut Settings) -> Result<(PathBuf, Vec<Address>, Key)> {
    let (of_directory, of_listen) = ("\"/mnt/a\"", "[\"tcp:node1:7171\"]");
    let directory = settings.text("directory", of_directory)?;
    let directory = settings.required(directory, "directory", of_directory)?.into();
    let listen = settings.list("listen", of_listen)?.filter(|list| !list.is_empty());
    let listen = addresses(&settings.required(listen, "listen", of_listen)?)?;
    let of_key = "\"/etc/outcore/pool.key\"";
    let key_file = settings.text("key_file", of_key)?;
    let key_file = settings.required(key_file, "key_file", of_key)?;
    Ok((directory, listen, Key::from_file(key_file.as_ref())?))
}

pub(crate) fn addresses(texts: &[String]) -> Result<Vec<Address>> {
    texts.iter().map(|text| text.parse()).collect()
}

/// A manager that listens until this is stopped or dropped.
pub struct ManagerDaemon {
    // Dropped in this order: nobody is served when the lock goes.
    metrics: Option<PageServer>,
    listening: Listening,
    pool: u128,
    _lock: Lock,
}

/// Held, and touched by nobody.
struct Lock(#[expect(dead_code, reason = "held")] Mutex<Box<dyn Any + Send>>);

impl ManagerDaemon {
    /// Where it listens, with the ports that were taken.
    pub fn addresses(&self) -> &[Address] {
        self.listening.addresses()
    }

    /// Where its metrics are, with the port that was taken.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(PageServer::address)
    }

    /// Which pool it is of.
    pub fn pool(&self) -> u128 {
        self.pool
    }

    /// Answers what was asked, and stops.
    pub fn stop(self) {
        drop(self.metrics);
        self.listening.stop();
    }
}

/// Starts the manager of the pool in a directory, or makes a new pool.
pub fn serve_manager(settings: &ManagerSettings) -> Result<ManagerDaemon> {
    let root = Directory::new(&settings.directory)?;
    let lock = Lock(Mutex::new(root.lock(LOCK)?));
    let store = SqliteStore::open(settings.directory.join(METADATA))?;
    let owner = User::own();
    let config = manager::Config {
        owner: owner.uid,
        group: owner.gids[0],
        ..manager::Config::new(u128::from_le_bytes(
            Key::random()?.bytes()[..16].try_into().unwrap_or_default(),
        ))
    };
    let manager = Manager::open(store, signing_key(&settings.key), config)?;
    let pool = manager.pool();
    let requests = Arc::new(Requests::default());
    let managing =
        Managing { manager: Mutex::new(manager), line: Mutex::default(), requests: requests.clone() };
    let handler = Arc::new(managing);
    let listening =
        listen(&settings.listen, handler, Config::new(Role::Manager, Some(settings.key.clone())))?;
    let metrics = settings.metrics.as_ref().map(|address| {
        let identity = Identity { role: "manager", pool, server: None };
        serve_metrics(address, identity, requests, listening.watcher(), |_| {})
    });
    Ok(ManagerDaemon { metrics: metrics.transpose()?, listening, pool, _lock: lock })
}

/// The key of grants: the pool's.
pub(crate) fn signing_key(key: &Key) -> grants::Key {
    grants::Key::new(*key.bytes())
}

struct Managing {
    manager: Mutex<Manager<SqliteStore>>,
    line: Mutex<Line>,
    requests: Arc<Requests>,
}

/// Requests that wait for the next commit. Of those who brought them one works for all.
#[derive(Default)]
struct Line {
    is_served: bool,
    waiting: VecDeque<Waiting>,
}

struct Waiting {
    asked: Asked,
    told: Sender<Told>,
}

enum Told {
    Reply(ManagerReply),
    /// It is your turn to serve the line.
    Serve,
}

impl Managing {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does what waits in one commit, and leaves the line to the next.
    fn serve(&self) {
        let _hand_over = HandOver(self);
        let mut manager = self.manager.lock().unwrap_or_else(PoisonError::into_inner);
        let mut line = self.line();
        let count = line.waiting.len().min(MOST_AT_ONCE);
        let (mut requests, mut tell) = (Vec::with_capacity(count), Vec::with_capacity(count));
        for Waiting { asked, told } in line.waiting.drain(..count) {
            requests.push(asked);
            tell.push(told);
        }
        drop(line);
        for (told, reply) in tell.into_iter().zip(manager.handle_many(now(), requests)) {
            // Whoever asked waits for it.
            let _ = told.send(Told::Reply(reply));
        }
    }
}

/// Sees to it that somebody serves the line, however the one before ended.
struct HandOver<'a>(&'a Managing);

impl Drop for HandOver<'_> {
    fn drop(&mut self) {
        let mut line = self.0.line();
        match line.waiting.front() {
            Some(next) => drop(next.told.send(Told::Serve)),
            None => line.is_served = false,
        }
    }
}

impl Handler for Managing {
    fn manager(&self, who: &Who, origin: Origin, request: ManagerRequest) -> ManagerReply {
        let begun = self.requests.begin(kind_of_manager(&request));
        let user = manager::User { uid: who.uid, gids: who.gids.clone(), is_root: who.is_root };
        let reply = self.answer(Asked { who: user, origin: Some(origin), request });
        let error = match &reply {
            ManagerReply::Failed(error) => Some(error),
            _ => None,
        };
        self.requests.end(&begun, error, 0, 0);
        reply
    }
}

impl Managing {
    /// What comes in while the disk works on a commit is done together, in the next one.
    fn answer(&self, asked: Asked) -> ManagerReply {
        let (told, tells) = channel();
        let mut line = self.line();
        line.waiting.push_back(Waiting { asked, told });
        let is_mine = !std::mem::replace(&mut line.is_served, true);
        drop(line);
        if is_mine {
            self.serve();
        }
        loop {
            match tells.recv() {
                Ok(Told::Reply(reply)) => return reply,
                Ok(Told::Serve) => self.serve(),
                Err(_) => return ManagerReply::Failed(dropped()),
            }
        }
    }
}

fn dropped() -> Error {
    Error::new(ErrorKind::Io, "the manager dropped the request; look at its log")
}

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Now { unix_ns: since.map_or(0, |since| since.as_nanos() as u64) }
}
