//! A pool inside this process: its manager and I/O servers, called directly.

use std::any::Any;
use std::collections::{HashMap, HashSet};
use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outcore_core::{
    Answer, Error, ErrorKind, Gather, Incarnation, IoReply, IoRequest, Link, ManagerReply, ManagerRequest,
    Names, OnAnswer, Result, ServerAddress, ServerId,
};
use outcore_disk::{Directory, LocalDisk, MonotonicClock};
use outcore_memory::Region;
use outcore_mount::check_outside_mounts;
use outcore_server::grants::Key;
use outcore_server::io_server::{self, Runner};
use outcore_server::manager::{Manager, Now, User};
use outcore_server::store::SqliteStore;

use crate::metadata::{
    LOCK, MANAGER, METADATA, check_is_here, file_descriptors, manager_config, open_store, spare_bytes,
};

/// The manager and the servers of a pool, in this process.
pub struct EmbeddedLink {
    parts: RwLock<Option<Parts>>,
    process: u32,
}

struct Parts {
    // The fields are dropped in this order: the servers stop before the pool's lock is released.
    servers: HashMap<ServerId, Runner<LocalDisk>>,
    retired: RwLock<HashSet<ServerId>>,
    manager: Mutex<Manager<SqliteStore>>,
    user: User,
    _lock: Held,
}

impl EmbeddedLink {
    /// Opens the pool in `directories`, or creates one, with `threads` concurrent requests on each disk. The first
    /// directory contains the metadata; the order of the others does not matter. Empty directories become new
    /// servers. Directories of retired servers are refused or, with `skips_retired`, ignored.
    pub fn open(directories: &[String], threads: usize, skips_retired: bool) -> Result<Self> {
        let directories = distinct(directories)?;
        let (lock, mut manager, key) = open_manager(&directories[0])?;
        let user = this_user();
        let (known, retired) = servers_of(&mut manager, &user)?;
        let mut servers = HashMap::new();
        let mut assigned = assign(&directories, &known, &mut manager)?;
        // The first directory is needed even if its server is retired.
        assigned.retain(|(id, path)| !retired.contains(id) || (!skips_retired && *path != directories[0]));
        if let Some((id, path)) = assigned.iter().find(|(id, _)| retired.contains(id)) {
            return Err(Error::new(
                ErrorKind::Denied,
                format!(
                    "{0} is of I/O server {1}, which was retired; leave the directory out, or take that back with: outcore \
                     pool retire {2} {1} --undo",
                    path.display(),
                    id.0,
                    directories[0].display()
                ),
            ));
        }
        let descriptors = file_descriptors(assigned.len());
        for (id, path) in assigned {
            let directory = Directory::private(&path, &io_server::NAMES)?;
            let disk = Arc::new(LocalDisk::new(directory.clone(), threads)?);
            let spare_bytes = spare_bytes(&directory)?;
            let config = io_server::Config {
                pool: manager.pool(),
                server: id,
                verify: Box::new(key.clone()),
                scratch: Arc::new(Region::allocate),
                // Callers of this process already share their memory with the server.
                reads_memory: false,
                limits: io_server::Limits { spare_bytes, ..io_server::Limits::default() }.within(descriptors),
                clock: Arc::new(MonotonicClock),
                // The manager uses this machine's time too.
                manager_time: None,
            };
            let named = |error: Error| Error::new(error.kind, format!("{}: {error}", path.display()));
            let runner = Runner::start(disk, Arc::new(directory.clone()), config).map_err(named)?;
            servers.insert(id, runner);
            manager.report(id, io_server::highest_handle(&directory)?);
            // Added only now: the directory of a known server has a marker with its number.
            if !known.contains(&id) {
                manager.add_server(ServerAddress { id, addresses: vec![] })?;
            }
        }
        let (retired, manager) = (RwLock::new(retired), Mutex::new(manager));
        let parts = Parts { servers, retired, manager, user, _lock: lock };
        Ok(Self { parts: RwLock::new(Some(parts)), process: std::process::id() })
    }

    /// Stops the servers once their pending work is done, and releases the directories.
    pub fn close(&self) {
        let parts = self.parts.write().unwrap_or_else(PoisonError::into_inner).take();
        if self.process == std::process::id() {
            drop(parts);
        } else {
            // The threads and the locks belong to another process.
            std::mem::forget(parts);
        }
    }

    /// Calls `with` on the parts of the pool while it is open.
    fn parts<T>(&self, with: impl FnOnce(&Parts) -> Result<T>) -> Result<T> {
        if self.process != std::process::id() {
            return Err(Error::new(
                ErrorKind::Forked,
                "this pool was opened in another process, and its servers do not survive a fork; start processes with \
                 the spawn method, and one pool in one of them",
            ));
        }
        match &*self.parts.read().unwrap_or_else(PoisonError::into_inner) {
            Some(parts) => with(parts),
            None => Err(Error::new(ErrorKind::Closed, "the pool was closed; open it again")),
        }
    }
}

impl Drop for EmbeddedLink {
    fn drop(&mut self) {
        self.close();
    }
}

impl Link for EmbeddedLink {
    type Buffer = Region;

    fn io(&self, server: ServerId, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let mut call = Some((request, buffer, done));
        let called = self.parts(|parts| {
            let runner = parts.servers.get(&server).ok_or_else(|| {
                Error::new(ErrorKind::NotFound, format!("there is no server {} in this pool", server.0))
            })?;
            if let Some((request, buffer, done)) = call.take() {
                runner.call(request, buffer, done);
            }
            Ok(())
        });
        if let (Err(error), Some((_, buffer, done))) = (called, call) {
            let (reply, incarnation) = (IoReply::Failed(error), Incarnation::NONE);
            done(Answer { reply, buffer, incarnation, started_ns: 0, finished_ns: 0 });
        }
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        // The owner of the servers may check the pool, as with daemons.
        let is_check = matches!(
            request,
            ManagerRequest::Files { .. }
                | ManagerRequest::Know { .. }
                | ManagerRequest::Paths { .. }
                | ManagerRequest::Check { .. }
                | ManagerRequest::Orphans { .. }
                | ManagerRequest::Retire { .. }
        );
        self.parts(|parts| {
            let mut manager = parts.manager.lock().unwrap_or_else(PoisonError::into_inner);
            let user = User { is_root: parts.user.is_root || is_check, ..parts.user.clone() };
            let retires = match request {
                ManagerRequest::Retire { server, undo: true } if !parts.servers.contains_key(&server) => {
                    return Err(Error::new(
                        ErrorKind::Busy,
                        format!(
                            "need the pool closed to take back that I/O server {0} was retired, have it open without that \
                             one's directory; close it, and use: outcore pool retire DIR {0} --undo",
                            server.0
                        ),
                    ));
                }
                ManagerRequest::Retire { .. } => true,
                _ => false,
            };
            let reply = manager.handle(now(), &user, request);
            if retires {
                let (_, retired) = servers_of(&mut manager, &user)?;
                *parts.retired.write().unwrap_or_else(PoisonError::into_inner) = retired;
            }
            Ok(reply)
        })
    }

    fn is_retired(&self, server: ServerId) -> bool {
        let is_retired = |parts: &Parts| {
            Ok(parts.retired.read().unwrap_or_else(PoisonError::into_inner).contains(&server))
        };
        self.parts(is_retired).unwrap_or(false)
    }
}

/// Retires an I/O server, or undoes that. `directory` contains the pool's metadata; the pool must not be open.
pub fn retire_server(directory: &Path, server: ServerId, undo: bool) -> Result<()> {
    check_is_here(directory)?;
    if !directory.join(MANAGER).join(METADATA).is_file() {
        return Err(Error::new(
            ErrorKind::NotFound,
            format!("{} has no files of a manager; name the pool's first directory", directory.display()),
        ));
    }
    let (_lock, mut manager, _) = open_manager(directory)?;
    let user = User { is_root: true, ..this_user() };
    match manager.handle(now(), &user, ManagerRequest::Retire { server, undo }) {
        ManagerReply::Done => Ok(()),
        ManagerReply::Failed(error) => Err(error),
        reply => Err(Error::new(ErrorKind::Io, format!("the manager answered {reply:?}"))),
    }
}

/// A lock that is only held.
type Held = Mutex<Box<dyn Any + Send>>;

/// Opens the manager in a directory, or creates one.
fn open_manager(directory: &Path) -> Result<(Held, Manager<SqliteStore>, Key)> {
    let root = Directory::private(directory, &[MANAGER])?;
    let lock = Mutex::new(root.lock(LOCK)?);
    let store = open_store(directory)?;
    let key = Key::new(*outcore_net::Key::random()?.bytes());
    Ok((lock, Manager::open(store, key.clone(), manager_config()?)?, key))
}

/// The directories as canonical paths. Missing ones are created; duplicates are refused.
fn distinct(directories: &[String]) -> Result<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = Vec::new();
    for given in directories {
        check_outside_mounts(Path::new(given))?;
        let made = DirBuilder::new().recursive(true).mode(0o700).create(given);
        let made = made.and_then(|()| std::fs::canonicalize(given));
        let path = made.map_err(|error| {
            let text = format!("cannot make the directory {given}: {error}; choose another one");
            Error::new(ErrorKind::ReadOnly, text)
        })?;
        if found.contains(&path) {
            return Err(Error::invalid(format!(
                "{given} is named twice; give a directory of its own for each server"
            )));
        }
        found.push(path);
    }
    if found.is_empty() {
        return Err(Error::invalid("a pool needs at least one directory, have none"));
    }
    Ok(found)
}

/// The active and the retired I/O servers.
fn servers_of(manager: &mut Manager<SqliteStore>, user: &User) -> Result<(Vec<ServerId>, HashSet<ServerId>)> {
    match manager.handle(now(), user, ManagerRequest::Servers) {
        ManagerReply::Servers { servers, retired, .. } => {
            Ok((servers.into_iter().map(|server| server.id).collect(), retired.into_iter().collect()))
        }
        ManagerReply::Failed(error) => Err(error),
        reply => Err(Error::new(ErrorKind::Io, format!("the manager answered {reply:?}"))),
    }
}

/// Assigns a server to each directory: the one in its marker, or a new server if it has none.
fn assign(
    directories: &[PathBuf],
    known: &[ServerId],
    manager: &mut Manager<SqliteStore>,
) -> Result<Vec<(ServerId, PathBuf)>> {
    let mut servers: Vec<(ServerId, PathBuf)> = Vec::new();
    let mut fresh = Vec::new();
    for path in directories {
        let Some(id) = marked(path, manager.pool())? else {
            fresh.push(path);
            continue;
        };
        if let Some((_, other)) = servers.iter().find(|(other, _)| *other == id) {
            return Err(Error::invalid(format!(
                "{} and {} both are of server {}: one is a copy; leave it out",
                other.display(),
                path.display(),
                id.0
            )));
        }
        servers.push((id, path.clone()));
    }
    let has = |id: &ServerId| servers.iter().any(|(there, _)| there == id);
    let missing: Vec<String> = known.iter().filter(|id| !has(id)).map(|id| id.0.to_string()).collect();
    if !missing.is_empty() {
        // An empty directory beside others may be a new disk that replaces a dead one.
        let retire = fresh.first().map_or(String::new(), |path| {
            format!(
                ", or if the disk of {0} is dead, and {1} is a new one, use: outcore pool retire {2} {0}",
                missing[0],
                path.display(),
                directories[0].display()
            )
        });
        return Err(Error::invalid(format!(
            "need the directories of all {} servers of the pool, those of {} are missing; give all of them, the first one \
             first{retire}",
            known.len(),
            missing.join(", "),
        )));
    }
    for path in fresh {
        servers.push((manager.new_server()?, path.clone()));
    }
    Ok(servers)
}

/// The server in the marker of a directory; `None` if it has none yet.
fn marked(path: &Path, pool: u128) -> Result<Option<ServerId>> {
    let named = |error: Error| Error::new(error.kind, format!("{}: {error}", path.display()));
    match Directory::new(path).and_then(|directory| io_server::marked(&directory)).map_err(named)? {
        None => Ok(None),
        Some((of, server)) if of == pool => Ok(Some(server)),
        Some(_) => Err(Error::invalid(format!(
            "{} is of another pool; give an empty directory, or name the first directory of that pool first",
            path.display()
        ))),
    }
}

/// Where the clock of this process that never jumps begins.
static BEGAN: OnceLock<Instant> = OnceLock::new();

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    let ns = |since: Duration| u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
    let running = BEGAN.get_or_init(Instant::now).elapsed();
    Now { unix_ns: since.map_or(0, ns), running_ns: ns(running) }
}

fn this_user() -> User {
    let outcore_net::User { uid, gids, .. } = outcore_net::User::own();
    User { uid, gids, is_root: uid == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_client::PoolVolume;
    use outcore_core::{Buffer, conformance};
    use outcore_memory::Arena;

    fn region(bytes: &[u8]) -> Region {
        if bytes.is_empty() {
            return Region::empty();
        }
        let arena = Arena::new(bytes.len().next_multiple_of(4096));
        let mut region = Region::whole(Arc::new(arena.allocate(bytes.len()).expect("memory")));
        region.copy_in(0, bytes);
        region
    }

    #[test]
    fn an_embedded_pool_conforms() {
        for servers in [1, 3] {
            let root = tempfile::tempdir().expect("a directory");
            let directories: Vec<String> =
                (0..servers).map(|i| root.path().join(i.to_string()).display().to_string()).collect();
            let link = EmbeddedLink::open(&directories, 2, false).expect("a new pool");
            let clock = Arc::new(|| now().unix_ns);
            let pool = PoolVolume::new(Arc::new(link), clock).expect("its volume");
            conformance::volume(&pool, &region, &|| std::thread::sleep(std::time::Duration::from_millis(20)));
        }
    }
}
