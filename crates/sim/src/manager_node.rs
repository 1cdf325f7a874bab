//! The manager of a simulated pool, which loses power. It answers like `outcored`: requests that arrive during one
//! commit's sync form the next commit, and no answer leaves before its commit is durable.

use std::collections::BTreeMap;

use outcore_core::crash_disk::Random;
use outcore_core::{Error, ErrorKind, ManagerReply, ManagerRequest, Origin, Result, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, Manager, Now, User};

use crate::node::{POOL, RequestKey};
use crate::power_store::PowerStore;

/// An effect that the manager requests.
pub enum ManagerWish {
    /// Answer a client.
    Answer(RequestKey, ManagerReply),
    /// Execute the waiting requests soon.
    Work,
    /// Sync the store; the number of groups becomes durable.
    Sync(usize),
}

/// One run of the manager.
struct Running {
    manager: Manager<PowerStore>,
    /// Known requests, with their answers once these exist.
    sessions: BTreeMap<RequestKey, Option<ManagerReply>>,
    waiting: Vec<(RequestKey, ManagerRequest)>,
    works: bool,
    /// Answers that wait for the disk.
    done: Vec<(RequestKey, ManagerReply)>,
}

/// The manager of a simulated pool.
pub struct ManagerNode {
    /// A planted bug: answers do not wait for the disk.
    pub answers_early: bool,
    /// A planted bug: answers to read-only requests do not wait for the disk.
    pub reads_early: bool,
    /// Number of the current run.
    pub run: u64,
    servers: u32,
    store: PowerStore,
    running: Option<Running>,
}

fn root() -> User {
    User { uid: 0, gids: vec![0], is_root: true }
}

fn asked(key: RequestKey, request: ManagerRequest) -> Asked {
    Asked { who: root(), origin: Some(Origin { client: key.client as u128, number: key.number }), request }
}

impl ManagerNode {
    /// A manager of a pool with this many servers, not yet started.
    pub fn new(servers: u32) -> Self {
        let store = PowerStore::default();
        Self { answers_early: false, reads_early: false, run: 0, servers, store, running: None }
    }

    /// Starts the manager on the current store.
    pub fn start(&mut self) -> Result<()> {
        let mut manager = Manager::open(self.store.clone(), Key::new([7; 32]), Config::new(POOL))?;
        for id in (0..self.servers).map(ServerId) {
            manager.add_server(ServerAddress { id, addresses: vec!["sim".into()] })?;
        }
        let (sessions, waiting, done) = (BTreeMap::new(), vec![], vec![]);
        self.running = Some(Running { manager, sessions, waiting, works: false, done });
        Ok(())
    }

    /// Flips a bit on its disk; see [`PowerStore::flip`].
    pub fn flip(&self, random: &mut Random, is_seen: bool) {
        self.store.flip(random, is_seen);
    }

    /// Whether it is running.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// Cuts its power.
    pub fn crash(&mut self, random: &mut Random) {
        self.run += 1;
        self.running = None;
        self.store.crash(random);
    }

    /// Executes a request at once, as root, as if no others were pending.
    pub fn ask(&mut self, now: Now, request: ManagerRequest) -> ManagerReply {
        match &mut self.running {
            Some(running) => running.manager.handle(now, &root(), request),
            None => ManagerReply::Failed(Error::new(ErrorKind::Io, "the manager is down")),
        }
    }

    /// Handles the arrival of a request, which may be a repetition.
    pub fn arrives(&mut self, now: Now, key: RequestKey, request: ManagerRequest) -> Vec<ManagerWish> {
        let Some(running) = &mut self.running else { return vec![] };
        match running.sessions.get(&key) {
            Some(Some(reply)) => return vec![ManagerWish::Answer(key, reply.clone())],
            Some(None) => return vec![],
            None => running.sessions.insert(key, None),
        };
        if self.reads_early && !request.is_change() {
            let (replies, _) = running.manager.begin_many(now, vec![asked(key, request)]);
            return self.tell(replies.into_iter().map(|reply| (key, reply)).collect());
        }
        running.waiting.push((key, request));
        let works = std::mem::replace(&mut running.works, true);
        if works { vec![] } else { vec![ManagerWish::Work] }
    }

    /// Executes the waiting requests in one commit.
    pub fn works(&mut self, now: Now) -> Result<Vec<ManagerWish>> {
        let Some(running) = &mut self.running else { return Ok(vec![]) };
        let (keys, requests): (Vec<_>, Vec<_>) =
            running.waiting.drain(..).map(|(key, request)| (key, asked(key, request))).unzip();
        let (replies, is_change) = running.manager.begin_many(now, requests);
        let answers: Vec<_> = keys.into_iter().zip(replies).collect();
        if !is_change {
            return Ok(self.tell_and_go_on(answers));
        }
        running.manager.commit_many()?;
        let mut wishes = vec![ManagerWish::Sync(self.store.sync_begins())];
        if self.answers_early {
            wishes.extend(self.tell(answers));
        } else {
            running.done = answers;
        }
        Ok(wishes)
    }

    /// Handles the end of a sync that made `groups` groups durable.
    pub fn synced(&mut self, groups: usize) -> Vec<ManagerWish> {
        self.store.sync_ended(groups);
        let answers = self.running.as_mut().map(|running| std::mem::take(&mut running.done));
        self.tell_and_go_on(answers.unwrap_or_default())
    }

    /// Sends answers, and schedules the requests that arrived meanwhile.
    fn tell_and_go_on(&mut self, answers: Vec<(RequestKey, ManagerReply)>) -> Vec<ManagerWish> {
        let mut wishes = self.tell(answers);
        if let Some(running) = &mut self.running {
            running.works = !running.waiting.is_empty();
            wishes.extend(running.works.then_some(ManagerWish::Work));
        }
        wishes
    }

    fn tell(&mut self, answers: Vec<(RequestKey, ManagerReply)>) -> Vec<ManagerWish> {
        let Some(running) = &mut self.running else { return vec![] };
        let noted = |(key, reply): (RequestKey, ManagerReply)| {
            running.sessions.insert(key, Some(reply.clone()));
            ManagerWish::Answer(key, reply)
        };
        answers.into_iter().map(noted).collect()
    }
}
