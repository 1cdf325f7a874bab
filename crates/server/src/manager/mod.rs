//! The manager: names, rights and layouts of a pool, stored in a metadata store.
//!
//! It reads no clock and opens no socket: each request comes with the time and the user. A request that changes
//! anything is one commit, guarded by the records that it read. If another manager of the same store commits
//! first, the request is repeated. After a file is opened, data do not pass through the manager: the I/O servers
//! verify grants themselves.

mod access;
mod ahead;
mod answers;
mod attributes;
mod durable;
mod files;
mod inventory;
mod keys;
mod layouts;
mod leases;
mod links;
mod paths;
mod record;
mod removal;
mod rename;
mod search;
mod servers;
mod step;
mod tree;
mod walk;

use std::collections::BTreeMap;
use std::sync::Arc;

use outcore_core::{
    Durable, Error, ErrorKind, Handle, Hints, Inode, ManagerReply, ManagerRequest, Origin, Result, ServerId,
};

use crate::grants::Key;
use crate::store::{Guard, Log, MAX_OPERATIONS, MAX_RANGE, Outcome, Store, Write};
use answers::{Answers, Note};
use durable::Reached;
use leases::Leases;
use record::Node;
use rename::Told;
use step::{Memory, Step, take_handles};

pub use attributes::{MAX_EXTENDED, MAX_EXTENDED_BYTES};
pub use files::HINT_PREFIX;
pub use layouts::MAX_OTHER_HINTS;
pub use leases::{LEASE_S, MAX_LEASES, MAX_LOCKS};
pub use links::MAX_TARGET_BYTES;
pub use paths::{MAX_NAME_BYTES, MAX_PATH_BYTES};
pub use search::{DESCRIBING_ATTRIBUTE, MAX_QUERY_BYTES};
pub use walk::MAX_MADE_ON_THE_WAY;

/// The root directory, where every path begins.
pub const ROOT: Handle = Handle(1);
/// Names or orphans in one answer, at most.
pub const MAX_PAGE: u64 = 1000;
/// Attempts per request when other managers interfere, at most.
const TRIES: usize = 32;
/// Handles reserved from the store at once.
const HANDLES_AT_ONCE: u64 = 1024;

/// The time of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Nanoseconds since 1970.
    pub unix_ns: u64,
    /// Nanoseconds by a clock that never jumps, since any moment.
    pub running_ns: u64,
}

/// The user of a request, as authenticated by the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// User id.
    pub uid: u32,
    /// Group ids. New files belong to the first.
    pub gids: Vec<u32>,
    /// Whether the user may do everything.
    pub is_root: bool,
}

/// Settings of a manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The number of the pool if the store is empty: a random number. Otherwise the store contains it.
    pub pool: u128,
    /// Owner of the root directory, if the store is empty.
    pub owner: u32,
    /// Its group.
    pub group: u32,
    /// Its permission bits.
    pub mode: u32,
    /// Lifetime of a grant, in seconds; at most [`crate::grants::MOST_GRANT_S`].
    pub grant_s: u64,
    /// Term of a lease for locks, in seconds.
    pub lease_s: u64,
    /// A random number of this run.
    pub run: u64,
    /// Number of handles to skip before the first new one, if a server has not reported its highest handle. It is
    /// random, and large enough that no run with an older or newer copy of the store has assigned the handles
    /// after it.
    pub jump: u64,
}

impl Config {
    /// The settings of a pool with this number: user 0 owns the root directory, with mode 0o755; grants last 10
    /// minutes, and leases 10 seconds; no handles are skipped.
    pub fn new(pool: u128) -> Self {
        Self { pool, owner: 0, group: 0, mode: 0o755, grant_s: 600, lease_s: LEASE_S, run: 0, jump: 0 }
    }
}

/// The manager of a pool. Several may share one store.
#[derive(Debug)]
pub struct Manager<S> {
    store: S,
    key: Key,
    config: Config,
    pool: u128,
    memory: Memory,
    answers: Answers,
    /// Whether `answers` must be loaded from the store.
    has_lost_answers: bool,
    /// The request in progress, until a commit has executed it.
    origin: Option<Origin>,
    in_group: bool,
    /// Whether the disk of the store had space for more than removals at the last query.
    has_room: bool,
    /// The highest handle that each I/O server reported to this run.
    reported: BTreeMap<ServerId, Handle>,
    /// Whether this run has reserved handles from the store.
    has_taken: bool,
    leases: Leases,
}

/// A request, its user, and its origin if the client may repeat it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The user.
    pub who: User,
    /// The origin.
    pub origin: Option<Origin>,
    /// The request.
    pub request: ManagerRequest,
}

impl<S: Store> Manager<S> {
    /// Opens the pool in `store`, or creates one if the store is empty. `key` signs grants.
    pub fn open(mut store: S, key: Key, config: Config) -> Result<Self> {
        access::check_mode(config.mode, true)?;
        if store.get(keys::POOL)?.is_none() {
            check_is_empty(&store)?;
            make_pool(&mut store, &config)?;
        }
        let found = store.get(keys::POOL)?.ok_or_else(|| {
            Error::new(
                ErrorKind::Busy,
                "need a new pool's number in the metadata store, have none; try again",
            )
        })?;
        let pool = record::read(keys::POOL, &found.value)?;
        search::index_all(&mut store)?;
        let (memory, answers) = (Memory::default(), Answers::load(&store)?);
        let leases = Leases::load(&store, config.lease_s)?;
        Ok(Self {
            store,
            key,
            config,
            pool,
            memory,
            answers,
            has_lost_answers: false,
            origin: None,
            in_group: false,
            has_room: true,
            reported: BTreeMap::new(),
            has_taken: false,
            leases,
        })
    }

    /// The number of the pool.
    pub fn pool(&self) -> u128 {
        self.pool
    }

    /// Answers a request. On return, its changes survive power loss, as far as the store promises that.
    pub fn handle(&mut self, now: Now, who: &User, request: ManagerRequest) -> ManagerReply {
        self.look_at_room(request.is_stored());
        self.memory.met = None;
        self.answer(now, who, request).unwrap_or_else(|error| self.link_or(error))
    }

    /// Answers requests in order, with one wait for the disk. If that fails, all of them have failed.
    pub fn handle_many(&mut self, now: Now, requests: Vec<Asked>) -> Vec<ManagerReply> {
        let (replies, _) = self.begin_many(now, requests);
        match self.end_group(S::end_group) {
            Ok(()) => replies,
            Err(error) => vec![ManagerReply::Failed(error); replies.len()],
        }
    }

    /// Answers requests in order, in a group that stays open if they may have changed anything. The second value
    /// says whether it is open. Before anybody gets an answer or makes another request, the caller must commit the
    /// group and then sync the [`Manager::log`].
    pub fn begin_many(&mut self, now: Now, requests: Vec<Asked>) -> (Vec<ManagerReply>, bool) {
        // One request also forms a group: its reads and writes are then one transaction, which locks the store
        // once.
        let gains = requests.iter().any(|asked| asked.request.is_stored());
        self.look_at_room(gains);
        if gains
            && !self.in_group
            && let Err(error) = self.begin_group()
        {
            return (vec![ManagerReply::Failed(error); requests.len()], false);
        }
        if gains && self.store.is_remote() {
            self.read_paths_ahead(&requests);
        }
        let answers = requests
            .into_iter()
            .map(|Asked { who, origin, request }| self.handle_from(now, &who, origin, request));
        (answers.collect(), gains)
    }

    /// Commits the open group without waiting for the disk. If that fails, the whole group has failed.
    pub fn commit_many(&mut self) -> Result<()> {
        self.end_group(S::end_group_unsynced)
    }

    /// The log whose sync makes committed groups durable.
    pub fn log(&self) -> Arc<dyn Log> {
        self.store.log()
    }

    /// Asks the store before a change whether its disk has space. Within a group, the answer from its start is
    /// used.
    fn look_at_room(&mut self, is_change: bool) {
        if is_change && !self.in_group {
            self.has_room = self.store.has_room();
        }
    }

    fn answer(&mut self, now: Now, who: &User, request: ManagerRequest) -> Result<ManagerReply> {
        self.leases.began(now);
        match request {
            request if !self.has_room && request.takes_room() => Err(Error::new(
                ErrorKind::DiskFull,
                "need space on the disk of the pool's metadata, have only the reserve for removals; remove files, or free space on the manager's disk",
            )),
            ManagerRequest::Servers => {
                let (servers, retired) = step::list_servers(&self.store)?;
                Ok(ManagerReply::Servers { pool: self.pool, servers, retired })
            }
            ManagerRequest::Open { path, write } => self.open_file(now, who, &path, write),
            ManagerRequest::Create { path, hints, mode } => self.create(now, who, &path, &hints, mode),
            ManagerRequest::Renew { handle, write } => self.renew(now, who, handle, write),
            ManagerRequest::Stat { path } => self.stat(now, who, &path),
            ManagerRequest::List { path, after, most } => self.list(now, who, &path, &after, most),
            ManagerRequest::Look { path, after, most } => self.look(now, who, &path, &after, most),
            ManagerRequest::MakeDirectory { path, mode } => self.make_directory(now, who, &path, mode),
            ManagerRequest::MakeLink { path, target } => self.make_link(now, who, &path, &target),
            ManagerRequest::Remove { path, recursive } => self.remove(now, who, &path, recursive),
            ManagerRequest::Orphans { gone, after, most } => self.orphans(now, who, &gone, after, most),
            ManagerRequest::Rename { from, to, durable, generations, description } => {
                let durable = Reached { lengths: &durable, generations: &generations };
                let told = Told { durable, description: description.as_deref() };
                self.rename(now, who, &from, &to, told)
            }
            ManagerRequest::Move { from, to, kept } => self.relocate(now, who, &from, &to, kept.as_deref()),
            ManagerRequest::Replace { from, to } => self.replace(now, who, &from, &to),
            ManagerRequest::Wrote { handle, modified_ns, cuts, durable, generations } => {
                let reached = Reached { lengths: &durable, generations: &generations };
                self.wrote(now, who, handle, modified_ns, (cuts, reached))
            }
            ManagerRequest::BeginCut { handle, lengths } => self.begin_cut(now, who, handle, &lengths),
            ManagerRequest::EndCut { handle } => self.end_cut(now, who, handle),
            ManagerRequest::Describe { handle } => self.describe(now, who, handle),
            ManagerRequest::SetAttributes { path, mode, owner, group, modified_ns } => {
                let wanted = attributes::Wanted { mode, owner, group, modified_ns };
                self.set_attributes(now, who, &path, &wanted)
            }
            ManagerRequest::Touch { path } => self.touch(now, who, &path),
            ManagerRequest::SetDefaultLayout { path, hints } => {
                self.set_default_layout(now, who, &path, &hints)
            }
            ManagerRequest::GetExtended { path, name } => self.get_extended(now, who, &path, &name),
            ManagerRequest::SetExtended { path, name, value } => {
                self.set_extended(now, who, &path, &name, value.as_deref())
            }
            ManagerRequest::AddServer { .. }
            | ManagerRequest::NewServer
            | ManagerRequest::Retire { .. }
            | ManagerRequest::Files { .. }
            | ManagerRequest::Know { .. }
            | ManagerRequest::Paths { .. }
            | ManagerRequest::Check { .. }
            | ManagerRequest::Mend { .. }
                if !who.is_root =>
            {
                Err(Error::new(
                    ErrorKind::Denied,
                    format!(
                        "need the pool's key, or the user who runs the pool, to add, retire or check I/O servers, have user {}; use the pool's key file",
                        who.uid
                    ),
                ))
            }
            ManagerRequest::AddServer { server, highest } => {
                let id = server.id;
                self.add_server(server)?;
                self.report(id, highest);
                Ok(ManagerReply::Done)
            }
            ManagerRequest::NewServer => self.new_server().map(ManagerReply::NewServer),
            ManagerRequest::Retire { server, undo } => {
                self.retire(now, server, undo)?;
                Ok(ManagerReply::Done)
            }
            ManagerRequest::Files { after, most } => self.files(now, who, after, most),
            ManagerRequest::Know { handles } => self.know(now, who, &handles),
            ManagerRequest::Paths { handles } => self.paths(now, who, &handles),
            ManagerRequest::Check { after, most } => self.check(now, who, &after, most),
            ManagerRequest::Mend { after, most } => self.mend(now, who, &after, most),
            ManagerRequest::Find { path, query, after, most } => {
                self.search(now, who, &path, &query, (&after, most))
            }
            ManagerRequest::RenewLease { lease } => self.renew_lease(now, who, lease),
            ManagerRequest::EndLease { lease } => self.end_lease(now, who, lease),
            ManagerRequest::SetLock { wish } => self.set_lock(now, who, &wish),
            ManagerRequest::TestLock { wish } => self.test_lock(now, who, &wish),
            ManagerRequest::Time => {
                Ok(ManagerReply::Time { now_s: now.unix_ns / 1_000_000_000, run: self.config.run })
            }
        }
    }

    /// Executes a read-only action.
    fn view<T>(
        &mut self,
        now: Now,
        who: &User,
        mut action: impl FnMut(&mut Step<'_, S>) -> Result<T>,
    ) -> Result<T> {
        let mut tries = 1;
        loop {
            let mut step = Step::new(&self.store, now, who, &mut self.memory);
            let result = action(&mut step);
            if result.is_ok() || !step.is_stale || tries == TRIES {
                return result;
            }
            tries += 1;
        }
    }

    /// Executes an action in one commit. Retries while other managers interfere.
    fn change<T>(
        &mut self,
        now: Now,
        who: &User,
        mut action: impl FnMut(&mut Step<'_, S>) -> Result<T>,
    ) -> Result<T> {
        for tries in 1..=TRIES {
            if !self.refill_handles()? {
                continue;
            }
            let mut step = Step::new(&self.store, now, who, &mut self.memory);
            let value = match action(&mut step) {
                Ok(value) => value,
                Err(_) if step.is_stale && tries < TRIES => continue,
                Err(error) => return Err(error),
            };
            let made = step.made;
            let (guards, mut writes) = step.into_parts();
            if writes.is_empty() {
                return Ok(value);
            }
            let mut noted = None;
            if let Some(origin) = self.origin {
                let at_s = now.unix_ns / 1_000_000_000;
                let note = Note { number: origin.number, uid: who.uid, at_s, made };
                let room = MAX_OPERATIONS.saturating_sub(guards.len() + writes.len());
                let besides = self.answers.writes(origin, &note, room);
                // A commit of the maximum size has no room for a note.
                noted = besides.len().checked_sub(1).map(|forgotten| (origin, note, forgotten));
                writes.extend(besides);
            }
            if let Outcome::Done(_) = self.store.commit(&guards, &writes)? {
                if let Some((origin, note, forgotten)) = noted {
                    self.answers.written(origin, note, forgotten);
                }
                self.origin = None;
                return Ok(value);
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            format!("need a moment without other changes of the same directory, have met {TRIES}; try again"),
        ))
    }

    /// Ensures that there are enough handles for one step. Returns `false` if another manager committed first.
    fn refill_handles(&mut self) -> Result<bool> {
        if self.memory.handles.left() > MAX_MADE_ON_THE_WAY as u64 {
            return Ok(true);
        }
        let floor = self.floor()?;
        let taken = take_handles(&mut self.store, HANDLES_AT_ONCE, floor)?;
        let is_taken = taken.is_some();
        self.has_taken |= is_taken;
        self.memory.handles = taken.unwrap_or_default();
        Ok(is_taken)
    }

    /// Executes an action whose commits become durable together.
    fn together<T>(&mut self, action: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.in_group {
            return action(self);
        }
        self.begin_group()?;
        let result = action(self);
        self.end_group(S::end_group).and(result)
    }

    fn begin_group(&mut self) -> Result<()> {
        self.store.begin_group()?;
        self.in_group = true;
        Ok(())
    }

    /// Ends the open group, if there is one, with `end`.
    fn end_group(&mut self, end: fn(&mut S) -> Result<()>) -> Result<()> {
        if !std::mem::take(&mut self.in_group) {
            return Ok(());
        }
        let ended = end(&mut self.store);
        if ended.is_err() {
            // The group reserved the handles. If it failed, another manager may get the same ones.
            self.memory = Memory::default();
            self.has_taken = false;
            self.leases.forget_note();
            // The notes of the group are invalid too.
            self.has_lost_answers = true;
        }
        ended
    }
}

/// Marks a restored copy of a store: the next new file gets a handle above all that were assigned since the copy
/// was made.
pub fn mark_restored<S: Store>(store: &mut S) -> Result<()> {
    let write = Write { key: keys::RESTORED.to_vec(), value: Some(record::write(&1_u64)) };
    store.commit(&[], &[write]).map(drop)
}

/// Reads and checks a whole store. Returns the number of its pool.
pub fn check_store<S: Store>(store: &S) -> Result<u128> {
    store.check()?;
    let mut from = vec![0];
    loop {
        let found = store.range(&from, &[0xff], MAX_RANGE)?;
        let Some((last, _)) = found.last() else { break };
        from = [last.as_slice(), &[0]].concat();
    }
    pool_in(store)?.ok_or_else(|| {
        Error::new(ErrorKind::Corrupt, "need the metadata of a pool, have an empty store; give another copy")
    })
}

/// The number of the pool in a store; `None` if it has none.
pub fn pool_in<S: Store>(store: &S) -> Result<Option<u128>> {
    store.get(keys::POOL)?.map(|found| record::read(keys::POOL, &found.value)).transpose()
}

/// Refuses to create a pool in a store with records: a store that lost its first record is not new.
fn check_is_empty<S: Store>(store: &S) -> Result<()> {
    match store.range(&[0], &[0xff], 1)?.first() {
        None => Ok(()),
        Some((key, _)) => Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "need the number of the pool in its metadata store, have other records, the first at key {}; restore the \
                 store from a backup",
                key.escape_ascii()
            ),
        )),
    }
}

/// Creates the root directory and records the number of the pool, unless another manager did so first.
fn make_pool<S: Store>(store: &mut S, config: &Config) -> Result<()> {
    let inode = Inode {
        handle: ROOT,
        layout: None,
        owner: config.owner,
        group: config.group,
        mode: config.mode,
        modified_ns: 0,
        changed_ns: 0,
        durable: Durable::default(),
        target: None,
    };
    let root = Node { inode, parent: ROOT, defaults: Hints::default() };
    let guards = [Guard { key: keys::POOL.to_vec(), version: None }];
    let writes = [
        Write { key: keys::POOL.to_vec(), value: Some(record::write(&config.pool)) },
        Write { key: keys::inode(ROOT), value: Some(record::write(&root)) },
        search::indexed(),
    ];
    match store.commit(&guards, &writes)? {
        Outcome::Done(_) | Outcome::Conflict => Ok(()),
    }
}
