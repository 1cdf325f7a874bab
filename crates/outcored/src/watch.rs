//! The recent past of a pool: the manager's own metrics and those of the I/O servers, asked for every two seconds.

use std::collections::{BTreeMap, VecDeque};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use outcore_core::{
    Error, ErrorKind, Handle, IoReply, IoRequest, Link, ManagerReply, ManagerRequest, Result, ServerAddress,
    ServerId,
};
use outcore_memory::Region;
use outcore_net::{Address, Credentials, Key, NetLink, Options, User};

use crate::samples::Sample;

/// Interval of the samples.
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);

/// Samples that are kept: five minutes.
const MOST_SAMPLES: usize = 150;

/// Time limit for the answers to one round of questions.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Files whose paths are asked for at once, at most.
const MOST_PATHS: usize = 100;

/// All daemons at one moment.
#[derive(Clone, Debug)]
pub(crate) struct Moment {
    pub(crate) at: Instant,
    pub(crate) manager: Sample,
    /// The metrics of each server, or the reason why they are missing.
    pub(crate) servers: BTreeMap<u32, std::result::Result<Sample, String>>,
    /// Addresses of each server.
    pub(crate) addresses: BTreeMap<u32, Vec<String>>,
    pub(crate) retired: Vec<u32>,
    /// Paths of the files with collectives in flight, by handle.
    pub(crate) paths: BTreeMap<u64, String>,
}

#[derive(Default)]
struct State {
    moments: VecDeque<Arc<Moment>>,
    is_over: bool,
}

/// The recent moments, shared with the thread that asks.
#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    ends: Condvar,
}

/// The recent past of a pool, while this value exists.
pub(crate) struct Watch {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Watch {
    /// Watches the pool of the manager at `addresses`, whose own metrics are the text of `own`.
    pub(crate) fn start(
        addresses: Vec<Address>,
        key: Key,
        own: impl Fn() -> String + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Shared::default());
        let watched = shared.clone();
        let watch = move || {
            let mut link = None;
            loop {
                let moment = look(&addresses, &key, &mut link, Sample::parse(&own()));
                let mut state = watched.lock();
                if state.moments.len() == MOST_SAMPLES {
                    state.moments.pop_front();
                }
                state.moments.push_back(Arc::new(moment));
                let until = Instant::now() + INTERVAL;
                while !state.is_over {
                    let left = until.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    state = watched.ends.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
                }
                if state.is_over {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("outcore-watch".into()).spawn(watch).map_err(|error| {
            Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; close other programs"))
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The moments, the oldest first.
    pub(crate) fn moments(&self) -> Vec<Arc<Moment>> {
        self.shared.lock().moments.iter().cloned().collect()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.shared.lock().is_over = true;
        self.shared.ends.notify_all();
        if let Some(thread) = self.thread.take() {
            // A panic has reported itself.
            let _ = thread.join();
        }
    }
}

/// Asks all servers. `link` is kept for the next time, unless the manager did not answer.
fn look(addresses: &[Address], key: &Key, link: &mut Option<Connected>, manager: Sample) -> Moment {
    let mut moment = Moment {
        at: Instant::now(),
        manager,
        servers: BTreeMap::new(),
        addresses: BTreeMap::new(),
        retired: vec![],
        paths: BTreeMap::new(),
    };
    if ask_all(addresses, key, link, &mut moment).is_err() {
        *link = None;
    }
    moment
}

/// A link, and the servers that it knows: those of the pool when it connected.
type Connected = (NetLink, Vec<ServerAddress>);

fn connect(addresses: &[Address], key: &Key) -> Result<Connected> {
    let mut options = Options::new(Credentials::Pool { key: key.clone(), user: User::own() });
    options.patience = PATIENCE;
    // Servers that join in between cause another connection.
    let servers = servers_of(&NetLink::connect(addresses, options.clone())?)?.0;
    Ok((NetLink::connect(addresses, options)?, servers))
}

/// The servers of the pool, and the numbers of retired ones.
fn servers_of(link: &NetLink) -> Result<(Vec<ServerAddress>, Vec<ServerId>)> {
    match link.manager(ManagerRequest::Servers)? {
        ManagerReply::Servers { servers, retired, .. } => Ok((servers, retired)),
        ManagerReply::Failed(error) => Err(error),
        _ => Err(Error::new(ErrorKind::Corrupt, "the manager does not say which servers there are")),
    }
}

fn ask_all(
    addresses: &[Address],
    key: &Key,
    link: &mut Option<Connected>,
    moment: &mut Moment,
) -> Result<()> {
    let (connected, known) = match link {
        Some(connected) => connected,
        None => link.insert(connect(addresses, key)?),
    };
    let (servers, retired) = servers_of(connected)?;
    if *known != servers {
        (*connected, *known) = connect(addresses, key)?;
    }
    let link = &*connected;
    moment.retired = retired.iter().map(|id| id.0).collect();
    let (sender, receiver) = channel();
    let asked = servers.len();
    for server in servers {
        let (id, sender) = (server.id, sender.clone());
        let silent = format!("it did not answer within {:.1} s", PATIENCE.as_secs_f64());
        moment.servers.insert(id.0, Err(silent));
        moment.addresses.insert(id.0, server.addresses);
        // After the wait, nothing receives this.
        let done =
            Box::new(move |answer: outcore_core::Answer<Region>| drop(sender.send((id, answer.reply))));
        link.io(id, IoRequest::Metrics, Region::empty(), done);
    }
    let until = Instant::now() + PATIENCE;
    for _ in 0..asked {
        let left = until.saturating_duration_since(Instant::now());
        let Ok((ServerId(id), reply)) = receiver.recv_timeout(left) else { break };
        let found = match reply {
            IoReply::Metrics(text) => Ok(Sample::parse(&text)),
            IoReply::Failed(error) => Err(error.message),
            _ => Err("it gave another answer".into()),
        };
        moment.servers.insert(id, found);
    }
    name_files(link, moment)
}

/// Asks the manager for the paths of the files with collectives in flight.
fn name_files(link: &NetLink, moment: &mut Moment) -> Result<()> {
    let samples = moment.servers.values().flatten();
    let labels =
        samples.flat_map(|sample| sample.each("outcore_collective_progress").map(|(labels, _)| labels));
    let mut handles: Vec<u64> = labels.filter_map(|labels| labels.get("handle")?.parse().ok()).collect();
    handles.sort_unstable();
    handles.dedup();
    handles.truncate(MOST_PATHS);
    if handles.is_empty() {
        return Ok(());
    }
    let request = ManagerRequest::Paths { handles: handles.iter().copied().map(Handle).collect() };
    if let ManagerReply::Paths(paths) = link.manager(request)? {
        moment.paths =
            handles.into_iter().zip(paths).filter_map(|(handle, path)| Some((handle, path?))).collect();
    }
    Ok(())
}
