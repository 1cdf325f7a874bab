//! One I/O server of the simulation: its state machine, its disk, and the pending operations between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use outcore_core::crash_disk::{CrashDisk, MemoryBuffer, Random};
use outcore_core::wire::encode;
use outcore_core::{
    Buffer, Clock, Completion, Disk, Error, IoReply, IoRequest, Operation, Request, Result, ServerId,
};
use outcore_net::session::{IDLE_NS, Session, Sessions};
use outcore_server::grants::Key;
use outcore_server::io_server::{
    Caller, Config, Effect, Event, Fetch, IoServer, Limits, NameOperation, fetch, perform,
};

/// Number of the simulated pool.
pub const POOL: u128 = 0x0123_4567;

/// Identity of a client's request in the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    /// The client.
    pub client: usize,
    /// The client's number for the request.
    pub number: u64,
}

/// Pending reads of memory, and their target buffer.
type Fetching = (Vec<Fetch<MemoryBuffer>>, MemoryBuffer);

struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// An effect that an I/O server requests.
pub enum Wish {
    /// A disk request. The simulation later calls [`Node::disk_done`].
    Disk(u64),
    /// An operation on names. The simulation later calls [`Node::name_done`].
    Name(u64),
    /// Reads of clients' memory. The simulation later calls [`Node::fetch_done`].
    Fetch(u64),
    /// A query of the manager's time. The simulation later calls [`Node::told_time`].
    AskTime,
    /// Long work yields. The simulation later calls [`Node::go_on`].
    LetOthers(u64),
    /// An answer for a client.
    Answer(RequestKey, IoReply, MemoryBuffer),
}

/// An I/O server of the simulation.
pub struct Node {
    id: ServerId,
    key: Key,
    limits: Limits,
    /// Its disk.
    pub disk: CrashDisk,
    /// A planted bug: syncs are answered without being performed.
    pub skips_sync: bool,
    /// A planted bug: syncs report the length that the disk reports.
    pub trusts_lengths: bool,
    /// A copy of its files.
    pub copy: Option<BTreeMap<String, Vec<u8>>>,
    /// The disk acknowledges this request, and loses it.
    pub lost: Option<u64>,
    /// Number of starts. Messages to an earlier incarnation are lost.
    pub incarnation: u64,
    machine: Option<IoServer<MemoryBuffer>>,
    transfers: BTreeMap<u64, Request<MemoryBuffer>>,
    names: BTreeMap<u64, NameOperation>,
    fetches: BTreeMap<u64, Fetching>,
    calls: BTreeMap<u64, Asking>,
    next_call: u64,
    /// The sessions of clients, with their completed requests.
    sessions: Sessions<usize, ()>,
    /// Clients with a connection to this server.
    connected: BTreeMap<usize, Arc<Session<()>>>,
}

/// An unanswered request, and the session of its sender.
type Asking = (RequestKey, Option<Arc<Session<()>>>);

impl Node {
    /// A server that has not started yet.
    pub fn new(id: ServerId, key: Key, limits: Limits) -> Self {
        Self {
            id,
            key,
            limits,
            disk: CrashDisk::default(),
            skips_sync: false,
            trusts_lengths: false,
            copy: None,
            lost: None,
            incarnation: 0,
            machine: None,
            transfers: BTreeMap::new(),
            names: BTreeMap::new(),
            fetches: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            sessions: Sessions::default(),
            connected: BTreeMap::new(),
        }
    }

    /// Whether it is running.
    pub fn is_up(&self) -> bool {
        self.machine.is_some()
    }

    /// Starts it on its disk.
    pub fn start(&mut self) -> Result<Vec<Wish>> {
        self.incarnation += 1;
        let config = Config {
            pool: POOL,
            server: self.id,
            verify: Box::new(self.key.clone()),
            // Scratch memory contains arbitrary left-overs, never zeros.
            scratch: Arc::new(|bytes| Ok(MemoryBuffer::new(vec![0xAA; bytes]))),
            reads_memory: true,
            limits: self.limits,
            clock: Arc::new(NoClock),
            manager_time: None,
        };
        let mut effects = Vec::new();
        self.machine = Some(IoServer::start(config, &mut effects)?);
        Ok(self.wishes(effects))
    }

    /// Stops it as a power cut does.
    pub fn crash(&mut self, random: &mut Random) {
        self.machine = None;
        // Pending disk writes may or may not have happened.
        for request in std::mem::take(&mut self.transfers).into_values() {
            if request.operation == Operation::Write && random.once_in(2) {
                self.disk.submit(request, Box::new(drop));
            }
        }
        self.disk.crash(random);
        self.names.clear();
        self.fetches.clear();
        self.calls.clear();
        self.sessions = Sessions::default();
        self.connected.clear();
    }

    /// The session of a client, which has a connection from now on.
    pub fn session(&mut self, now_ns: u64, client: usize) -> Arc<Session<()>> {
        let enter = || self.sessions.enter(client, now_ns);
        self.connected.entry(client).or_insert_with(enter).clone()
    }

    /// Ends a client's connection.
    pub fn leaves(&mut self, now_ns: u64, client: usize) {
        if let Some(session) = self.connected.remove(&client) {
            self.sessions.leave(&session, now_ns);
        }
    }

    /// Describes state that the server still holds for clients that disconnected long ago, once no work is
    /// pending; `None` if there is none.
    pub fn holds_of_gone(&self, now_ns: u64, is_gone: impl Fn(usize) -> bool) -> Option<String> {
        self.sessions.forget(now_ns.saturating_add(IDLE_NS));
        let here = self.connected.keys().filter(|client| !is_gone(**client)).count();
        let under_way = self.machine.as_ref().map_or(0, IoServer::under_way);
        if (self.sessions.count(), self.calls.len(), under_way) == (here, 0, 0) {
            return None;
        }
        let unanswered: Vec<RequestKey> = self.calls.values().map(|(key, _)| *key).collect();
        Some(format!(
            "server {} has work under way, {under_way} tasks, requests that are not answered, {unanswered:?}, or remembers \
             more than the {here} clients that are there: {}",
            self.id.0,
            self.sessions.count()
        ))
    }

    /// Handles the arrival of a new call.
    pub fn call(
        &mut self,
        now_ns: u64,
        (key, session): Asking,
        request: IoRequest,
        buffer: MemoryBuffer,
        caller: Caller<MemoryBuffer>,
    ) -> Vec<Wish> {
        self.next_call += 1;
        self.calls.insert(self.next_call, (key, session));
        self.step(now_ns, Event::Call { call: self.next_call, request, buffer, caller })
    }

    /// Delivers a tick.
    pub fn tick(&mut self, now_ns: u64) -> Vec<Wish> {
        self.step(now_ns, Event::Tick)
    }

    /// Calls the server while nothing else is pending, and completes its disk requests at once. Returns `None` if
    /// there is no answer.
    pub fn ask(&mut self, now_ns: u64, request: IoRequest) -> Option<IoReply> {
        let key = RequestKey { client: usize::MAX, number: 0 };
        let mut wishes = self.call(now_ns, (key, None), request, MemoryBuffer::new(vec![]), None);
        while let Some(wish) = wishes.pop() {
            match wish {
                Wish::Disk(token) => wishes.extend(self.disk_done(now_ns, token, None)),
                Wish::Name(token) => wishes.extend(self.name_done(now_ns, token)),
                Wish::Fetch(token) => wishes.extend(self.fetch_done(now_ns, token)),
                Wish::LetOthers(token) => wishes.extend(self.go_on(now_ns, token)),
                Wish::AskTime => wishes.extend(self.told_time(now_ns, None, 0)),
                Wish::Answer(_, reply, _) => return Some(reply),
            }
        }
        None
    }

    /// Completes a disk request, or fails it with an error.
    pub fn disk_done(&mut self, now_ns: u64, token: u64, fault: Option<(Error, &mut Random)>) -> Vec<Wish> {
        let Some(request) = self.transfers.remove(&token) else { return vec![] };
        let completion = match fault {
            Some((error, random)) => {
                if request.operation == Operation::Sync {
                    self.disk.fail_sync(request.file, random);
                }
                Completion::failed(request.buffer, error, now_ns)
            }
            None if self.lost == Some(token) => {
                let moved = request.buffer.len();
                let (buffer, result) = (request.buffer, Ok(moved));
                Completion { buffer, result, started_ns: now_ns, finished_ns: now_ns }
            }
            None if self.skips_sync && request.operation == Operation::Sync => {
                Completion { buffer: request.buffer, result: Ok(0), started_ns: now_ns, finished_ns: now_ns }
            }
            None => self.done(request),
        };
        self.step(now_ns, Event::Disk { token, completion })
    }

    /// Whether a pending disk request is a write.
    pub fn is_write(&self, token: u64) -> bool {
        self.transfers.get(&token).is_some_and(|request| request.operation == Operation::Write)
    }

    /// Whether a pending disk request is a sync.
    pub fn is_sync(&self, token: u64) -> bool {
        self.transfers.get(&token).is_some_and(|request| request.operation == Operation::Sync)
    }

    /// Completes an operation on names.
    pub fn name_done(&mut self, now_ns: u64, token: u64) -> Vec<Wish> {
        let Some(operation) = self.names.remove(&token) else { return vec![] };
        let result = perform(&self.disk, &self.disk, operation);
        self.step(now_ns, Event::Name { token, result })
    }

    /// Reads the memory of clients.
    pub fn fetch_done(&mut self, now_ns: u64, token: u64) -> Vec<Wish> {
        let Some((fetches, mut buffer)) = self.fetches.remove(&token) else { return vec![] };
        let result = fetch(&fetches, &mut buffer);
        drop((fetches, buffer));
        self.step(now_ns, Event::Fetched { token, result })
    }

    /// Delivers the manager's time, if the manager is reachable, and the time of the server's own clock.
    pub fn told_time(&mut self, now_ns: u64, manager_s: Option<u64>, own_s: u64) -> Vec<Wish> {
        self.step(now_ns, Event::Time { manager_s, own_s })
    }

    /// Resumes long work.
    pub fn go_on(&mut self, now_ns: u64, token: u64) -> Vec<Wish> {
        self.step(now_ns, Event::GoOn { token })
    }

    fn done(&self, request: Request<MemoryBuffer>) -> Completion<MemoryBuffer> {
        let (sender, receiver) = std::sync::mpsc::channel();
        self.disk.submit(request, Box::new(move |completion| drop(sender.send(completion))));
        receiver.try_recv().expect("this disk finishes each request at once")
    }

    fn step(&mut self, now_ns: u64, event: Event<MemoryBuffer>) -> Vec<Wish> {
        let mut effects = Vec::new();
        if let Some(machine) = &mut self.machine {
            machine.step(now_ns, event, &mut effects);
        }
        self.wishes(effects)
    }

    fn wishes(&mut self, effects: Vec<Effect<MemoryBuffer>>) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for effect in effects {
            match effect {
                Effect::Disk { token, request } => {
                    self.transfers.insert(token, request);
                    wishes.push(Wish::Disk(token));
                }
                Effect::Name { token, operation } => {
                    self.names.insert(token, operation);
                    wishes.push(Wish::Name(token));
                }
                Effect::Fetch { token, fetches, buffer } => {
                    self.fetches.insert(token, (fetches, buffer));
                    wishes.push(Wish::Fetch(token));
                }
                Effect::LetOthers { token } => wishes.push(Wish::LetOthers(token)),
                Effect::AskTime => wishes.push(Wish::AskTime),
                Effect::Answer { call, reply, buffer } => {
                    if let Some((key, session)) = self.calls.remove(&call) {
                        if let Some(session) = session {
                            session.finish(key.number, Arc::new(encode(&reply)));
                        }
                        wishes.push(Wish::Answer(key, reply, buffer));
                    }
                }
                _ => {}
            }
        }
        wishes
    }
}
