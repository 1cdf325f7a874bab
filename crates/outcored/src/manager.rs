//! A manager that listens: names and rights of a pool, in one directory.

use std::any::Any;
use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use outcore_core::wire::Role;
use outcore_core::{Error, ManagerReply, ManagerRequest, Names, Origin, Result};
use outcore_disk::Directory;
use outcore_mount::check_outside_mounts;
use outcore_net::{Address, Config, Handler, Key, Listening, OnReply, Who, listen};
use outcore_server::grants;
use outcore_server::manager::{self, Asked, Manager};
use outcore_server::store::{AnyStore, Database};

use crate::Settings;
use crate::exposition::CONTENT_TYPE;
use crate::http::{Got, PageServer};
use crate::line::{Line, Standby};
use crate::metadata::{LOCK, MANAGER, manager_config, most_connections, note_database, open_any};
use crate::metrics::{Identity, METRICS_PATH, Metrics, NO_PAGE, describe_queues};
use crate::pool_site::{PoolSite, View};
use crate::requests::{MANAGER_KINDS, Requests, kind_of_manager};
use crate::standing_by::{Turned, wait_for_lease};
use crate::turn::Heart;
use crate::watch::Watch;

const KNOWN: &str =
    "directory, listen, key_file, lease_seconds, metrics, store, stand_by, page, page_key_file";

/// Terms of leases that a manager may have, in seconds.
const LEASES: RangeInclusive<u64> = 1..=3600;
/// Example of the setting `lease_seconds`.
const OF_LEASE: &str = "10";

/// Example of the setting `metrics`.
pub(crate) const OF_METRICS: &str = "\"127.0.0.1:9471\"";

/// Example of the setting `store`.
const OF_STORE: &str = "\"postgres://user@host/database\"";

/// Example of the setting `stand_by`.
const OF_STAND_BY: &str = "\"on\" or \"off\"";

/// Example of the setting `page`.
const OF_PAGE: &str = "\"127.0.0.1:9470\"";

/// Settings of a manager.
#[derive(Clone, Debug)]
pub struct ManagerSettings {
    /// The directory of its files. It may also be the directory of an I/O server.
    pub directory: PathBuf,
    /// The addresses at which it listens.
    pub listen: Vec<Address>,
    /// The pool's key. Clients prove that they have it, and the pool's servers use it to verify grants.
    pub key: Key,
    /// Term of the leases for locks of files, in seconds; `None` for 10.
    pub lease_s: Option<u64>,
    /// `HOST:PORT` of its metrics for Prometheus, if it serves any.
    pub metrics: Option<String>,
    /// The database with the metadata; `None` if they are in the directory.
    pub store: Option<Database>,
    /// Whether it waits while another manager uses the database, instead of refusing to start.
    pub stand_by: bool,
    /// The page for people, if it serves one.
    pub page: Option<PageSettings>,
}

/// Settings of the page for people.
#[derive(Clone, Debug)]
pub struct PageSettings {
    /// `HOST:PORT` at which the manager serves it.
    pub address: String,
    /// The key whose digits are the password. Without one, the address must be one of this machine only.
    pub password: Option<Key>,
}

impl ManagerSettings {
    /// Reads the settings from a file.
    pub fn from_settings(mut settings: Settings) -> Result<Self> {
        let (directory, listen, key) = common(&mut settings)?;
        let lease_s = settings.number("lease_seconds", OF_LEASE)?;
        if let Some(wrong) = lease_s.filter(|lease_s| !LEASES.contains(lease_s)) {
            let (least, most) = LEASES.into_inner();
            return Err(Error::invalid(format!(
                "need lease_seconds from {least} to {most}, have {wrong}; change it"
            )));
        }
        let metrics = settings.text("metrics", OF_METRICS)?;
        let store = settings.text("store", OF_STORE)?.map(|url| url.parse()).transpose()?;
        let stand_by = match settings.text("stand_by", OF_STAND_BY)?.as_deref() {
            Some("on") if store.is_none() => {
                return Err(Error::invalid(format!(
                    "need store = {OF_STORE} for stand_by = \"on\", have no store; add it"
                )));
            }
            Some("on") => true,
            None | Some("off") => false,
            Some(other) => {
                return Err(Error::invalid(format!(
                    "need stand_by = {OF_STAND_BY}, have {other:?}; change it"
                )));
            }
        };
        let page = settings.text("page", OF_PAGE)?;
        let page_key = settings.text("page_key_file", "\"/etc/outcore/page.key\"")?;
        settings.finish(KNOWN)?;
        if page.is_none() && page_key.is_some() {
            return Err(Error::invalid(format!(
                "need page for page_key_file; set page = {OF_PAGE}, or remove both"
            )));
        }
        let password = page_key.map(|file| Key::from_file(file.as_ref())).transpose()?;
        let page = page.map(|address| PageSettings { address, password });
        Ok(Self { directory, listen, key, lease_s, metrics, store, stand_by, page })
    }
}

/// Reads the settings that both kinds of daemons have.
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

/// A manager that listens until it is stopped or dropped.
pub struct ManagerDaemon {
    // The fields are dropped in this order: no request is in progress when the lock is released.
    page: Option<PoolSite>,
    metrics: Option<PageServer>,
    listening: Listening,
    standby: Standby<AnyStore>,
    pool: u128,
    _heart: Option<Heart>,
    _lock: Lock,
}

/// A lock that is only held.
struct Lock(#[expect(dead_code, reason = "held")] Mutex<Box<dyn Any + Send>>);

impl ManagerDaemon {
    /// The addresses at which it listens, with the actual ports.
    pub fn addresses(&self) -> &[Address] {
        self.listening.addresses()
    }

    /// The address of its metrics, with the actual port.
    pub fn metrics(&self) -> Option<SocketAddr> {
        self.metrics.as_ref().map(PageServer::address)
    }

    /// The address of its page for people, with the actual port.
    pub fn page(&self) -> Option<SocketAddr> {
        self.page.as_ref().map(|site| site.server.address())
    }

    /// The number of its pool.
    pub fn pool(&self) -> u128 {
        self.pool
    }

    /// Makes the process print an error and exit when the disk has refused to make a change of the manager
    /// durable. Otherwise every request fails from then on.
    pub fn end_process_on_failure(&self) {
        self.standby.line().on_failure(|error| {
            eprintln!("outcored: {error}");
            std::process::exit(1);
        });
    }

    /// Answers pending requests, and stops.
    pub fn stop(self) {
        drop((self.page, self.metrics));
        self.listening.stop();
    }
}

/// Starts the manager of the pool in a directory, or creates a pool. A stand-by first waits until it is the active one.
pub fn serve_manager(settings: &ManagerSettings) -> Result<ManagerDaemon> {
    serve_manager_under(settings, wait_for_lease(settings)?)
}

/// Starts a manager like [`serve_manager`], after [`wait_for_lease`].
pub fn serve_manager_under(settings: &ManagerSettings, turned: Turned) -> Result<ManagerDaemon> {
    let Turned { heart, page } = turned;
    check_outside_mounts(&settings.directory)?;
    let root = Directory::private(&settings.directory, &[MANAGER])?;
    let lock = Lock(Mutex::new(root.lock(LOCK)?));
    let fence = heart.as_ref().map(Heart::fence);
    let store = open_any(&root, settings.store.as_ref().zip(fence))?;
    let lease_s = settings.lease_s.unwrap_or(manager::LEASE_S);
    let config = manager::Config { lease_s, ..manager_config()? };
    let manager = Manager::open(store, signing_key(&settings.key), config)?;
    let pool = manager.pool();
    if settings.store.is_some() {
        note_database(&root, pool)?;
    }
    let requests = Arc::new(Requests::new(MANAGER_KINDS));
    let line = Arc::new(Line::new(manager, heart.as_ref().map(Heart::turn)));
    let standby = Standby::start(line.clone())?;
    let handler = Arc::new(Managing { line: line.clone(), requests: requests.clone() });
    let mut config = Config::new(Role::Manager, Some(settings.key.clone()));
    config.connections = most_connections();
    let listening = listen(&settings.listen, handler, config)?;
    let identity = Identity { role: "manager", pool, server: None };
    let common = Metrics { identity, started: Instant::now(), requests, watcher: listening.watcher() };
    let text = Arc::new(move || {
        let mut page = common.page();
        let help = "Changes are made durable together, as many as wait.";
        page.single("outcore_commits_total", "counter", help, line.commits());
        describe_queues(&mut page, &[("commit", line.waiting() as u64)]);
        page.into_text()
    });
    let metrics = settings.metrics.as_ref().map(|address| {
        let text = text.clone();
        PageServer::start("metrics", address, move |get| match get.path {
            METRICS_PATH => Got::Page(CONTENT_TYPE, text()),
            _ => Got::Missing(NO_PAGE),
        })
    });
    let metrics = metrics.transpose()?;
    let page = match (&settings.page, page) {
        (None, _) => None,
        (Some(of_page), page) => {
            let watch = Watch::start(listening.addresses().to_vec(), settings.key.clone(), move || text())?;
            Some(PoolSite::show_in(page, of_page, View::Pool(watch))?)
        }
    };
    Ok(ManagerDaemon { page, metrics, listening, standby, pool, _heart: heart, _lock: lock })
}

/// The key that signs grants, which is the pool's key.
pub(crate) fn signing_key(key: &Key) -> grants::Key {
    grants::Key::new(*key.bytes())
}

struct Managing {
    line: Arc<Line<AnyStore>>,
    requests: Arc<Requests>,
}

impl Handler for Managing {
    fn manager(&self, who: &Who, origin: Origin, request: ManagerRequest, done: OnReply) {
        let begun = self.requests.begin(kind_of_manager(&request));
        let requests = self.requests.clone();
        let counted = move |reply: ManagerReply| {
            let error = match &reply {
                ManagerReply::Failed(error) => Some(error),
                _ => None,
            };
            requests.end(&begun, error, 0, 0);
            done(reply);
        };
        let user = manager::User { uid: who.uid, gids: who.gids.clone(), is_root: who.is_root };
        self.line.answer(Asked { who: user, origin: Some(origin), request }, Box::new(counted));
    }
}
