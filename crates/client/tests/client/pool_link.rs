//! A pool in memory behind the link: a manager over a map, and servers whose data files are vectors.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use outcore_client::PoolVolume;
use outcore_core::{
    Answer, Buffer, Error, ErrorKind, Grant, Handle, Hints, Incarnation, Inode, IoReply, IoRequest, IoStatus,
    Known, Layout, LengthGrant, Link, ManagerReply, ManagerRequest, Named, OnAnswer, Opened, Result,
    ServerAddress, ServerId, Target,
};
use outcore_memory::{Arena, Region};

use crate::pool_link_names::Names;

/// Lifetime of this manager's grants.
pub const GRANT_S: u64 = 600;
const UNIT_BYTES: u64 = 100;

type Job = Box<dyn FnOnce() + Send>;

pub struct MemoryLink {
    servers: u32,
    names: Mutex<Names>,
    data: Mutex<HashMap<(ServerId, Handle), Vec<u8>>>,
    /// The generation of each data file, and whether it was changed since.
    generations: Mutex<HashMap<(ServerId, Handle), (u64, bool)>>,
    /// (server, kind of request, bytes of its buffer) of each message.
    pub log: Mutex<Vec<(u32, &'static str, usize)>>,
    pub now_s: Arc<AtomicU64>,
    /// Errors of the next requests to I/O servers.
    pub faults: Mutex<VecDeque<Option<Error>>>,
    /// `Some`: answers are held until a release.
    held: Mutex<Option<Vec<Job>>>,
    /// Number of restarts of each server.
    restarts: Mutex<HashMap<ServerId, u64>>,
    /// Whether servers restart just before a sync.
    pub restarts_before_syncs: AtomicBool,
    pub list_page: u64,
    /// Number of requests to the manager.
    asked: AtomicU64,
    /// Whether the manager does not answer.
    pub is_manager_away: AtomicBool,
    /// Whether another client creates the next new file first.
    pub is_overtaken: AtomicBool,
    /// Whether the end of a truncation sets the time of the last write; a manager of an earlier version does not.
    pub cuts_set_times: AtomicBool,
    retired: Mutex<HashSet<ServerId>>,
}

impl MemoryLink {
    pub fn new(servers: u32) -> Self {
        Self {
            servers,
            names: Mutex::default(),
            data: Mutex::default(),
            generations: Mutex::default(),
            log: Mutex::default(),
            now_s: Arc::new(AtomicU64::new(1_000_000)),
            faults: Mutex::default(),
            held: Mutex::default(),
            restarts: Mutex::default(),
            restarts_before_syncs: AtomicBool::new(false),
            list_page: 2,
            asked: AtomicU64::new(0),
            is_manager_away: AtomicBool::new(false),
            is_overtaken: AtomicBool::new(false),
            cuts_set_times: AtomicBool::new(false),
            retired: Mutex::default(),
        }
    }

    pub fn renewals(&self) -> u64 {
        self.names.lock().unwrap().renewals
    }

    /// Number of requests to the manager so far.
    pub fn asked(&self) -> u64 {
        self.asked.load(Ordering::SeqCst)
    }

    pub fn retire(&self, server: u32) {
        self.retired.lock().unwrap().insert(ServerId(server));
    }

    /// The durable lengths of a file that were reported to the manager.
    pub fn durable(&self, path: &str) -> Vec<u64> {
        self.names.lock().unwrap().inodes[path].durable.lengths.clone()
    }

    /// Number of existing data files.
    pub fn data_files(&self) -> usize {
        self.data.lock().unwrap().len()
    }

    pub fn restart(&self, server: u32) {
        *self.restarts.lock().unwrap().entry(ServerId(server)).or_default() += 1;
    }

    pub fn run_of(&self, server: ServerId) -> Incarnation {
        Incarnation(self.restarts.lock().unwrap().get(&server).copied().unwrap_or(0) + 1)
    }

    pub fn hold(&self) {
        *self.held.lock().unwrap() = Some(vec![]);
    }

    /// Releases the held answers in reverse order.
    pub fn let_go(&self) {
        self.release_later()();
    }

    /// Stops holding answers. The result, when called, releases those held so far.
    pub fn release_later(&self) -> impl FnOnce() + use<> {
        let held = self.held.lock().unwrap().take().unwrap_or_default();
        || held.into_iter().rev().for_each(|job| job())
    }

    /// The description that the manager has of a directory.
    pub fn description(&self, directory: &str) -> String {
        let found = self.names.lock().unwrap().descriptions.get(directory).cloned();
        String::from_utf8(found.unwrap_or_default()).unwrap()
    }

    /// Makes the manager lose a file whose data the servers have.
    pub fn lose(&self, path: &str) {
        let mut names = self.names.lock().unwrap();
        names.forget(path);
        names.orphans.clear();
    }

    /// Makes a server lose a file's data from a byte of the data file; all of it from byte 0.
    pub fn lose_data(&self, server: u32, handle: Handle, from: usize) {
        let mut data = self.data.lock().unwrap();
        if from == 0 {
            data.remove(&(ServerId(server), handle));
        } else if let Some(bytes) = data.get_mut(&(ServerId(server), handle)) {
            bytes.truncate(from);
        }
    }

    /// Puts an older copy of a data file back, and restarts its server.
    pub fn put_back(&self, server: u32, handle: Handle, generation: u64) {
        self.generations.lock().unwrap().insert((ServerId(server), handle), (generation, false));
        self.restart(server);
    }

    /// Checks the generation that a request names. Returns the present one.
    fn generation(&self, server: ServerId, target: &Target, request: &IoRequest) -> Result<u64> {
        let mut generations = self.generations.lock().unwrap();
        let (generation, is_changed) = generations.entry((server, target.handle)).or_default();
        if target.generation > *generation {
            let text = format!("f: need generation {}, have {generation}", target.generation);
            return Err(Error::new(ErrorKind::Corrupt, text));
        }
        match request {
            IoRequest::Sync { .. } if std::mem::take(is_changed) => *generation += 1,
            IoRequest::Write { .. } | IoRequest::SetLength { .. } | IoRequest::Reserve { .. } => {
                *is_changed = true;
            }
            _ => {}
        }
        Ok(*generation)
    }

    /// The messages since the last call.
    pub fn take_log(&self) -> Vec<(u32, &'static str, usize)> {
        std::mem::take(&mut self.log.lock().unwrap())
    }

    fn grant(&self, handle: Handle, write: bool) -> Grant {
        Grant { handle, write, expires_s: self.now_s.load(Ordering::SeqCst) + GRANT_S, mac: [7; 32] }
    }

    fn check(&self, target: &Target, grant: &Grant, write: bool) -> Result<()> {
        let is_over = self.now_s.load(Ordering::SeqCst) >= grant.expires_s;
        if is_over || grant.handle != target.handle || grant.mac != [7; 32] || (write && !grant.write) {
            return Err(Error::new(ErrorKind::Denied, "the grant is not good"));
        }
        Ok(())
    }

    fn serve(&self, server: ServerId, request: &IoRequest, buffer: &mut Region) -> Result<IoReply> {
        let generation = match request {
            IoRequest::Read { target, .. }
            | IoRequest::Write { target, .. }
            | IoRequest::Sync { target, .. }
            | IoRequest::Length { target, .. }
            | IoRequest::SetLength { target, .. }
            | IoRequest::Reserve { target, .. } => self.generation(server, target, request)?,
            _ => 0,
        };
        let mut data = self.data.lock().unwrap();
        match request {
            IoRequest::Read { target, grant, regions } => {
                self.check(target, grant, false)?;
                assert_eq!(regions.local_bytes(target.stripes, target.entry), buffer.len() as u64);
                let Some(bytes) = data.get(&(server, target.handle)) else {
                    buffer.zero(0, buffer.len());
                    return Ok(IoReply::Absent);
                };
                let mut at = 0;
                for run in regions.local_runs(target.stripes, target.entry) {
                    let (low, high) = (run.offset as usize, (run.offset + run.length) as usize);
                    let mut part = vec![0; high - low];
                    let there = bytes.len().clamp(low, high) - low;
                    part[..there].copy_from_slice(&bytes[low.min(bytes.len())..][..there]);
                    buffer.copy_in(at, &part);
                    at += part.len();
                }
                Ok(IoReply::Done)
            }
            IoRequest::Write { target, grant, regions } => {
                self.check(target, grant, true)?;
                assert_eq!(regions.local_bytes(target.stripes, target.entry), buffer.len() as u64);
                let bytes = data.entry((server, target.handle)).or_default();
                let mut at = 0;
                for run in regions.local_runs(target.stripes, target.entry) {
                    let (low, high) = (run.offset as usize, (run.offset + run.length) as usize);
                    bytes.resize(bytes.len().max(high), 0);
                    buffer.copy_out(at, &mut bytes[low..high]);
                    at += high - low;
                }
                Ok(IoReply::Done)
            }
            IoRequest::Sync { target, grant } => {
                self.check(target, grant, false)?;
                let synced = |bytes: &Vec<u8>| IoReply::Synced { length: bytes.len() as u64, generation };
                Ok(data.get(&(server, target.handle)).map_or(IoReply::Absent, synced))
            }
            IoRequest::Length { target, grant } => {
                self.check(target, grant, false)?;
                let length = |bytes: &Vec<u8>| IoReply::Length(bytes.len() as u64);
                Ok(data.get(&(server, target.handle)).map_or(IoReply::Absent, length))
            }
            IoRequest::SetLength { target, grant, local_length, .. } => {
                self.check(target, grant, true)?;
                data.entry((server, target.handle)).or_default().resize(*local_length as usize, 0);
                Ok(IoReply::Done)
            }
            IoRequest::Reserve { target, grant, local_length } => {
                self.check(target, grant, true)?;
                let bytes = data.entry((server, target.handle)).or_default();
                bytes.resize(bytes.len().max(*local_length as usize), 0);
                Ok(IoReply::Done)
            }
            IoRequest::Remove { target, grant } => {
                self.check(target, grant, true)?;
                data.remove(&(server, target.handle));
                Ok(IoReply::Done)
            }
            IoRequest::Status => Ok(IoReply::Status(IoStatus {
                free_bytes: 1000 + u64::from(server.0),
                ..IoStatus::default()
            })),
            IoRequest::Lengths { handles, targets, .. } => {
                assert!(targets.iter().all(|target| handles.contains(&target.handle)));
                let length = |target: &Target| data.get(&(server, target.handle)).map_or(0, Vec::len) as u64;
                Ok(IoReply::Lengths(targets.iter().map(length).collect()))
            }
            #[allow(unreachable_patterns, reason = "requests may be added")]
            _ => Err(Error::invalid("not known here")),
        }
    }

    fn opened(&self, inode: &Inode, write: bool) -> ManagerReply {
        let grant = self.grant(inode.handle, write);
        ManagerReply::Opened(Box::new(Opened { inode: inode.clone(), grant }))
    }

    fn answer(&self, request: ManagerRequest) -> Result<ManagerReply> {
        let mut names = self.names.lock().unwrap();
        let missing = |path: &str| Error::new(ErrorKind::NotFound, format!("there is no {path}"));
        let find = |names: &Names, path: &str| names.inodes.get(path).cloned().ok_or_else(|| missing(path));
        match request {
            ManagerRequest::Servers => {
                let server = |id| ServerAddress { id: ServerId(id), addresses: vec![] };
                Ok(ManagerReply::Servers {
                    pool: 42,
                    servers: (0..self.servers).map(server).collect(),
                    retired: vec![],
                })
            }
            ManagerRequest::Open { path, write } => Ok(self.opened(&find(&names, &path)?, write)),
            ManagerRequest::Create { path, hints, mode: _ } => {
                if names.inodes.contains_key(&path) {
                    return Err(Error::new(ErrorKind::Exists, format!("{path} is there")));
                }
                names.make_above(&path);
                let inode = names.inode(Some(self.layout(&hints)?));
                names.inodes.insert(path, inode.clone());
                Ok(self.opened(&inode, true))
            }
            ManagerRequest::Renew { handle, write } => {
                if !names.inodes.values().any(|inode| inode.handle == handle) {
                    return Err(missing("such file"));
                }
                names.renewals += 1;
                Ok(ManagerReply::Granted(self.grant(handle, write)))
            }
            ManagerRequest::Stat { path } => Ok(ManagerReply::Inode(Box::new(find(&names, &path)?))),
            ManagerRequest::List { path, after, most } => {
                let (names, more) = self.page(&names, &path, &after, most);
                Ok(ManagerReply::Names { names, more })
            }
            ManagerRequest::Look { path, after, most } => {
                let is_file = names.inodes.get(&path).filter(|inode| inode.layout.is_some());
                let (names, more) = match is_file {
                    Some(inode) => (vec![Named { name: String::new(), inode: inode.clone() }], false),
                    None => self.page(&names, &path, &after, most),
                };
                Ok(ManagerReply::Looked { names, more, grant: LengthGrant { expires_s: 0, mac: [0; 32] } })
            }
            ManagerRequest::MakeDirectory { path, .. } => {
                names.make_above(&format!("{path}/x"));
                Ok(ManagerReply::Done)
            }
            ManagerRequest::Remove { path, recursive } => {
                let handle = find(&names, &path)?.handle;
                let below = format!("{path}/");
                if !recursive && names.inodes.keys().any(|name| name.starts_with(&below)) {
                    return Err(Error::new(ErrorKind::Exists, format!("{path} is not empty")));
                }
                names.forget(&path);
                if !recursive && !names.orphans.contains_key(&handle.0) {
                    return Ok(ManagerReply::Orphans(vec![]));
                }
                Ok(self.orphans(&names, Handle(if recursive { 0 } else { handle.0 - 1 })))
            }
            ManagerRequest::Orphans { gone, after, .. } => {
                for handle in gone {
                    names.orphans.remove(&handle.0);
                }
                Ok(self.orphans(&names, after))
            }
            ManagerRequest::Rename { from, to, durable, generations, description } => {
                find(&names, &from)?;
                if let Some(description) = description {
                    let directory = to.rsplit_once('/').map_or("", |(directory, _)| directory);
                    names.descriptions.insert(directory.to_owned(), description);
                }
                if !durable.is_empty() {
                    let known = &mut names.inodes.get_mut(&from).unwrap().durable;
                    (known.lengths, known.generations) = (durable, generations);
                }
                names.rename(&from, &to);
                Ok(self.orphans(&names, Handle(0)))
            }
            ManagerRequest::Replace { from, to } => {
                find(&names, &from)?;
                names.rename(&from, &to);
                Ok(self.orphans(&names, Handle(0)))
            }
            ManagerRequest::Know { handles } => {
                let known = |handle: Handle| match names.inodes.values().find(|inode| inode.handle == handle)
                {
                    Some(inode) => Known::Inode(Box::new(inode.clone())),
                    None if handle.0 > names.next => Known::Unused,
                    None => Known::Gone(self.grant(handle, true)),
                };
                Ok(ManagerReply::Known { known: handles.into_iter().map(known).collect(), more: false })
            }
            ManagerRequest::Touch { path } => {
                names.inodes.get_mut(&path).ok_or_else(|| missing(&path))?.modified_ns = 1000;
                Ok(ManagerReply::Done)
            }
            ManagerRequest::SetAttributes { path, modified_ns, .. } => {
                let inode = names.inodes.get_mut(&path).ok_or_else(|| missing(&path))?;
                inode.modified_ns = modified_ns.unwrap_or(inode.modified_ns);
                Ok(ManagerReply::Done)
            }
            ManagerRequest::Describe { handle } => {
                Ok(ManagerReply::Inode(Box::new(names.of(handle)?.clone())))
            }
            ManagerRequest::Wrote { handle, modified_ns, cuts, durable, generations } => {
                let inode = names.of(handle)?;
                if let Some(modified_ns) = modified_ns {
                    inode.modified_ns = modified_ns.max(inode.modified_ns + 1);
                }
                if inode.durable.cuts == cuts && inode.durable.cuts_done == cuts && !durable.is_empty() {
                    inode.durable.lengths = durable;
                    inode.durable.generations = generations;
                }
                Ok(ManagerReply::Inode(Box::new(inode.clone())))
            }
            ManagerRequest::BeginCut { handle, lengths } => {
                let inode = names.of(handle)?;
                inode.durable.cuts += 1;
                inode.durable.generations.clear();
                for (kept, length) in inode.durable.lengths.iter_mut().zip(lengths) {
                    *kept = length.min(*kept);
                }
                Ok(ManagerReply::Inode(Box::new(inode.clone())))
            }
            ManagerRequest::EndCut { handle } => {
                let inode = names.of(handle)?;
                inode.durable.cuts_done += 1;
                inode.modified_ns += u64::from(self.cuts_set_times.load(Ordering::Relaxed));
                Ok(ManagerReply::Inode(Box::new(inode.clone())))
            }
            _ => Err(Error::invalid("not known here")),
        }
    }

    fn page(&self, names: &Names, path: &str, after: &str, most: u64) -> (Vec<Named>, bool) {
        let below = if path.is_empty() { String::new() } else { format!("{path}/") };
        let mut found: Vec<Named> = names
            .inodes
            .iter()
            .filter_map(|(name, inode)| Some((name.strip_prefix(&below)?, inode)))
            .filter(|(name, _)| !name.contains('/') && *name > after)
            .map(|(name, inode)| Named { name: name.into(), inode: inode.clone() })
            .collect();
        let page = most.min(self.list_page) as usize;
        let more = found.len() > page;
        found.truncate(page);
        (found, more)
    }

    fn layout(&self, hints: &Hints) -> Result<Layout> {
        let count = hints.stripe_count.unwrap_or(u64::from(self.servers)) as u32;
        let base = hints.base.unwrap_or(0) as u32;
        let servers = (0..count).map(|i| ServerId((base + i) % self.servers)).collect();
        let layout = Layout::new(hints.stripe_unit_bytes.unwrap_or(UNIT_BYTES), servers)?;
        layout.with_round_units(hints.round_units)
    }

    /// A page with one entry.
    fn orphans(&self, names: &Names, after: Handle) -> ManagerReply {
        let page = names.orphans.range(after.0 + 1..).take(1);
        let opened =
            page.map(|(_, inode)| Opened { inode: inode.clone(), grant: self.grant(inode.handle, true) });
        ManagerReply::Orphans(opened.collect())
    }
}

impl Link for MemoryLink {
    type Buffer = Region;

    fn io(&self, server: ServerId, request: IoRequest, mut buffer: Region, done: OnAnswer<Region>) {
        let kind = match &request {
            IoRequest::Read { .. } => "read",
            IoRequest::Write { .. } => "write",
            IoRequest::Sync { .. } => "sync",
            IoRequest::Length { .. } => "length",
            IoRequest::SetLength { .. } => "set length",
            IoRequest::Reserve { .. } => "reserve",
            IoRequest::Remove { .. } => "remove",
            _ => "other",
        };
        self.log.lock().unwrap().push((server.0, kind, buffer.len()));
        let fault = self.faults.lock().unwrap().pop_front().flatten();
        let served = fault.map_or_else(|| self.serve(server, &request, &mut buffer), Err);
        let reply = served.unwrap_or_else(IoReply::Failed);
        if kind == "sync" && self.restarts_before_syncs.load(Ordering::SeqCst) {
            self.restart(server.0);
        }
        let incarnation = self.run_of(server);
        let answer = move || done(Answer { reply, buffer, incarnation, started_ns: 5, finished_ns: 9 });
        if let Some(held) = &mut *self.held.lock().unwrap() {
            return held.push(Box::new(answer));
        }
        answer();
    }

    fn is_retired(&self, server: ServerId) -> bool {
        self.retired.lock().unwrap().contains(&server)
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        if self.is_manager_away.load(Ordering::SeqCst) {
            return Err(Error::new(ErrorKind::Io, "the manager does not answer"));
        }
        if matches!(request, ManagerRequest::Create { .. }) && self.is_overtaken.swap(false, Ordering::SeqCst)
        {
            self.answer(request.clone()).unwrap();
        }
        Ok(self.answer(request).unwrap_or_else(ManagerReply::Failed))
    }
}

/// A pool of `servers` servers in memory, and its link.
pub fn pool(servers: u32) -> (PoolVolume<MemoryLink>, Arc<MemoryLink>) {
    let link = Arc::new(MemoryLink::new(servers));
    let now_s = link.now_s.clone();
    let clock = Arc::new(move || now_s.load(Ordering::SeqCst) * 1_000_000_000);
    (PoolVolume::new(link.clone(), clock).unwrap(), link)
}

pub fn region(bytes: &[u8]) -> Region {
    if bytes.is_empty() {
        return Region::empty();
    }
    let mut region = Region::whole(Arc::new(Arena::new(usize::MAX).allocate(bytes.len()).unwrap()));
    region.copy_in(0, bytes);
    region
}

pub fn content(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.copy_out(0, &mut bytes);
    bytes
}
