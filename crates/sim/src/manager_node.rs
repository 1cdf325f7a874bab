//! The manager of a simulated pool, which loses power. It answers as `outcored` has it do: what comes while its disk makes a
//! commit durable is the next one, and nobody is told before.

use std::collections::BTreeMap;

use outcore_core::crash_disk::Random;
use outcore_core::{Error, ErrorKind, ManagerReply, ManagerRequest, Origin, Result, ServerAddress, ServerId};
use outcore_server::grants::Key;
use outcore_server::manager::{Asked, Config, Manager, Now, User};

use crate::node::{POOL, RequestKey};
use crate::power_store::PowerStore;

/// What it wants to happen.
pub enum ManagerWish {
    /// A client gets an answer.
    Answer(RequestKey, ManagerReply),
    /// It does what waits, soon.
    Work,
    /// Its disk makes so many groups of commits durable.
    Sync(usize),
}

/// A run of the manager.
struct Running {
    manager: Manager<PowerStore>,
    /// Requests of which it knows; with the answers that were given.
    sessions: BTreeMap<RequestKey, Option<ManagerReply>>,
    waiting: Vec<(RequestKey, ManagerRequest)>,
    works: bool,
    /// Answers that wait for the disk.
    done: Vec<(RequestKey, ManagerReply)>,
}

/// See the module.
pub struct ManagerNode {
    /// A planted bug: answers do not wait for the disk.
    pub answers_early: bool,
    /// Another: who only looks does not wait for the disk.
    pub reads_early: bool,
    /// Which run of it this is.
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
    /// Of a pool of so many servers; not yet started.
    pub fn new(servers: u32) -> Self {
        let store = PowerStore::default();
        Self { answers_early: false, reads_early: false, run: 0, servers, store, running: None }
    }

    /// Starts on what is there.
    pub fn start(&mut self) -> Result<()> {
        let mut manager = Manager::open(self.store.clone(), Key::new([7; 32]), Config::new(POOL))?;
        for id in (0..self.servers).map(ServerId) {
            manager.add_server(ServerAddress { id, addresses: vec!["sim".into()] })?;
        }
        let (sessions, waiting, done) = (BTreeMap::new(), vec![], vec![]);
        self.running = Some(Running { manager, sessions, waiting, works: false, done });
        Ok(())
    }

    /// A bit flips on its disk; see [`PowerStore::flip`].
    pub fn flip(&self, random: &mut Random, is_seen: bool) {
        self.store.flip(random, is_seen);
    }

    /// Whether it runs.
    pub fn is_up(&self) -> bool {
        self.running.is_some()
    }

    /// The power goes.
    pub fn crash(&mut self, random: &mut Random) {
        self.run += 1;
        self.running = None;
        self.store.crash(random);
    }

    /// Asks it at once, as root, and as if it were alone.
    pub fn ask(&mut self, now: Now, request: ManagerRequest) -> ManagerReply {
        match &mut self.running {
            Some(running) => running.manager.handle(now, &root(), request),
            None => ManagerReply::Failed(Error::new(ErrorKind::Io, "the manager is down")),
        }
    }

    /// A request arrives, perhaps again.
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

    /// It does what waits, in one commit.
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

    /// So many groups are durable.
    pub fn synced(&mut self, groups: usize) -> Vec<ManagerWish> {
        self.store.sync_ended(groups);
        let answers = self.running.as_mut().map(|running| std::mem::take(&mut running.done));
        self.tell_and_go_on(answers.unwrap_or_default())
    }

    /// What came meanwhile is done next.
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
