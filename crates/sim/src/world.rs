//! The world: all events in the order of time, determined by one seed.

mod clients;
mod clocks;
mod damage;
mod deaths;
mod judge;
mod manager;

use outcore_core::crash_disk::{MemoryBuffer, Random, SKIPS_CHECKSUMS};
use outcore_core::wire::decode;
use outcore_core::{Error, ErrorKind, Handle, IoReply, ManagerReply, Regions, ServerId};
use outcore_net::session::Begin;
use outcore_server::grants::Key;
use outcore_server::io_server::Limits;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use crate::client::{Call, Client, Kind, SimFile};
use crate::collective::Collective;
use crate::manager_node::ManagerNode;
use crate::node::{Node, RequestKey, Wish};
use crate::wall_clock::Clocks;

/// Start of the simulation: an arbitrary date.
const BEGIN_NS: u64 = 1_700_000_000_000_000_000;
const MS: u64 = 1_000_000;
/// Time after which a client repeats an unanswered request.
const PATIENCE_NS: u64 = 60 * MS;
/// Interval between ticks of the servers.
const TICK_NS: u64 = 1000 * MS;
/// Number of events of a run, at most.
const MOST_EVENTS: u64 = 2_000_000;

/// The faults of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Servers and the manager lose power, and clients die.
    pub crashes: bool,
    /// Messages are late, lost, and repeated.
    pub network: bool,
    /// Disks flip bits.
    pub flips: bool,
    /// Disks refuse writes because they are full.
    pub full: bool,
    /// Disks have errors in transfers.
    pub errors: bool,
    /// Disks have errors in syncs, and a later sync does not repair the loss.
    pub sync_errors: bool,
    /// Wall clocks jump.
    pub clocks: bool,
    /// After a power cut, an older copy of a server's files is put back.
    pub old_copies: bool,
    /// A disk acknowledges one write and loses it.
    pub lost_writes: bool,
    /// Zeros are appended to data files.
    pub zeros: bool,
}

/// A planted bug, which a run must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Syncs are answered without being performed.
    SkipSync,
    /// Repeated requests are executed again.
    DoTwice,
    /// Checksums are not checked.
    SkipChecksum,
    /// A new file gets the handle of a removed file.
    ReuseHandle,
    /// Clients ignore the incarnation of the server that answers.
    IgnoreIncarnation,
    /// Servers forget which files were removed.
    ForgetRemovals,
    /// Servers use their own clocks to decide whether grants have expired.
    OwnClock,
    /// Clients do not renew refused grants.
    KeepGrants,
    /// The manager answers before its commit is durable.
    AnswerEarly,
    /// Clients consider their shares of a collective durable before the servers confirm it.
    TrustShares,
    /// Clients forget that a sync must make a collective durable.
    ForgetCollectives,
    /// Servers wait for clients of a collective for ever.
    WaitForever,
    /// Servers do not notice the end of a connection.
    KeepConnections,
    /// Clients do not continue removals that a dead client began.
    LeaveOrphans,
    /// Clients do not compare generations.
    IgnoreGenerations,
    /// Servers report the length of a data file that the disk reports.
    TrustLengths,
}

/// A message on its way to a server.
struct Sent {
    server: usize,
    incarnation: u64,
    key: RequestKey,
    oldest: u64,
    call: Call,
}

enum Happening {
    Arrives(Box<Sent>),
    Disk { server: usize, incarnation: u64, token: u64 },
    Name { server: usize, incarnation: u64, token: u64 },
    GoOn { server: usize, incarnation: u64, token: u64 },
    Fetch { server: usize, incarnation: u64, token: u64 },
    Answered { key: RequestKey, incarnation: u64, reply: IoReply, bytes: Vec<u8> },
    Patience { key: RequestKey },
    Think { client: usize },
    Crash { server: usize },
    Start { server: usize },
    Tick { server: usize },
    GiveUp { client: usize, begun_ns: u64 },
    Dies { client: usize },
    Leaves { server: usize, client: usize },
    Jump,
    Asked { server: usize, incarnation: u64 },
    Manager(manager::Event),
}

/// The finding of a failed run, as text.
pub type Finding = String;

/// The simulated world.
pub struct World {
    random: Random,
    faults: Faults,
    plant: Option<Plant>,
    now_ns: u64,
    next: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: std::collections::HashMap<u64, Happening>,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    files: Vec<SimFile>,
    /// Orphans whose data files still exist.
    orphans: Vec<SimFile>,
    manager: ManagerNode,
    /// All handles that files ever had.
    handles: BTreeSet<Handle>,
    clocks: Clocks,
    /// Number of initial clients. Each of them owns parts of files.
    owners: usize,
    next_write: u64,
    /// The durable lengths that servers reported for each data file, with the times of the reports.
    durable: BTreeMap<(Handle, ServerId), Vec<(u64, u64)>>,
    /// A collective that some of its clients have not begun yet.
    collective: Option<Collective>,
    /// Whether crashes and other faults are over.
    is_calm: bool,
    flipped: bool,
    /// Whether every event is printed.
    trace: bool,
    /// Number of completed operations.
    pub operations: u64,
    /// Number of power cuts of servers.
    pub crashes: u64,
    /// Number of power cuts of the manager.
    pub manager_crashes: u64,
    /// Number of clients that died.
    pub deaths: u64,
    /// Number of dead clients whose work another client continued.
    pub taken_over: u64,
    /// Number of successful completions of collectives, counted per client.
    pub collectives: u64,
    /// Number of those in which a server needed several rounds.
    pub collectives_in_rounds: u64,
    /// Number of clock jumps.
    pub jumps: u64,
    /// Number of refused grants.
    pub refusals: u64,
}

impl World {
    /// Runs the pool of a seed to its end.
    pub fn run(seed: u64, faults: Faults, plant: Option<Plant>, trace: bool) -> Result<Self, Finding> {
        let mut world = Self::new(seed, faults, plant)?;
        world.trace = trace;
        world.live()?;
        world.judge()?;
        Ok(world)
    }

    fn new(seed: u64, faults: Faults, plant: Option<Plant>) -> Result<Self, Finding> {
        let mut random = Random::new(seed);
        let key = Key::new([7; 32]);
        let servers = random.between(1, 4);
        let limits = if random.once_in(2) {
            Limits::default()
        } else {
            Limits {
                scratch_bytes: 1 << 20,
                sums_bytes: 8192,
                open_files: 2,
                calls: 3,
                pieces: 3,
                pieces_of_call: 2,
                ..Limits::default()
            }
        };
        let removals = if plant == Some(Plant::ForgetRemovals) { 0 } else { limits.removals };
        let limits = Limits { removals, ..limits };
        let mut manager = ManagerNode::new(servers as u32);
        manager.answers_early = plant == Some(Plant::AnswerEarly);
        manager.start().map_err(said)?;
        let mut nodes = Vec::new();
        for id in (0..servers as u32).map(ServerId) {
            let mut node = Node::new(id, key.clone(), limits);
            node.skips_sync = plant == Some(Plant::SkipSync);
            node.trusts_lengths = plant == Some(Plant::TrustLengths);
            nodes.push(node);
        }
        let clients = random.between(1, 3) as usize;
        let mut world = Self {
            random,
            faults,
            plant,
            now_ns: BEGIN_NS,
            next: 0,
            queue: BinaryHeap::new(),
            happenings: std::collections::HashMap::new(),
            nodes,
            clients: (0..clients).map(|_| Client::default()).collect(),
            files: vec![],
            orphans: vec![],
            manager,
            handles: BTreeSet::new(),
            clocks: Clocks::new(servers as usize, clients),
            owners: clients,
            next_write: 0,
            durable: BTreeMap::new(),
            collective: None,
            is_calm: false,
            flipped: false,
            trace: false,
            operations: 0,
            crashes: 0,
            manager_crashes: 0,
            deaths: 0,
            taken_over: 0,
            collectives: 0,
            collectives_in_rounds: 0,
            jumps: 0,
            refusals: 0,
        };
        SKIPS_CHECKSUMS.set(plant == Some(Plant::SkipChecksum));
        for number in 0..world.random.between(1, 3) {
            let request = world.make_request(number as usize);
            let ManagerReply::Opened(opened) = world.ask(request) else {
                return Err("a file cannot be made".into());
            };
            let file = world.new_file(*opened)?;
            world.files.push(file);
        }
        for server in 0..world.nodes.len() {
            world.start(server)?;
            world.later(TICK_NS, Happening::Tick { server });
            if faults.crashes {
                let at = world.random.between(1, 400) * MS;
                world.later(at, Happening::Crash { server });
            }
        }
        if faults.crashes {
            let at = world.random.between(1, 400) * MS;
            world.later(at, Happening::Manager(manager::Event::Crash));
            // Client 0 never dies, so that it can check the final state.
            for client in 1..clients {
                let at = world.random.between(1, 1000) * MS;
                world.later(at, Happening::Dies { client });
            }
        }
        if faults.clocks {
            world.later(MS, Happening::Jump);
        }
        for client in 0..clients {
            // Client 0 does not die. If it is done early, all clients of a later collective may have died.
            let is_soon_done = client == 0 && clients > 1 && faults.crashes && world.random.once_in(2);
            world.clients[client].left =
                if is_soon_done { world.random.between(1, 8) } else { world.random.between(10, 60) };
        }
        Ok(world)
    }

    fn later(&mut self, after_ns: u64, what: Happening) {
        self.next += 1;
        self.queue.push(Reverse((self.now_ns + after_ns, self.next)));
        self.happenings.insert(self.next, what);
    }

    /// Creates the files, lets the clients work, and waits until all requests are answered.
    fn live(&mut self) -> Result<(), Finding> {
        for file in 0..self.files.len() {
            let all = Regions::contiguous(0, self.files[file].model.length()).map_err(said)?;
            self.begin(0, file, Kind::Make, all);
            self.go_on(|world| world.clients[0].is_idle())?;
        }
        for client in 0..self.clients.len() {
            self.later(1, Happening::Think { client });
        }
        self.go_on(|world| world.clients.iter().all(|client| client.left == 0 && client.is_idle()))
    }

    fn go_on(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), Finding> {
        let mut events = 0;
        while !is_done(self) {
            let Some(Reverse((at, number))) = self.queue.pop() else {
                return Err("nothing is under way, and a client still waits".into());
            };
            events += 1;
            if events > MOST_EVENTS {
                return Err("it does not come to an end".into());
            }
            self.now_ns = self.now_ns.max(at);
            if let Some(what) = self.happenings.remove(&number) {
                self.happens(what)?;
            }
        }
        Ok(())
    }

    fn happens(&mut self, what: Happening) -> Result<(), Finding> {
        let now = self.now_ns;
        match what {
            Happening::Arrives(sent) => self.arrives(*sent),
            Happening::Disk { server, incarnation, token } => {
                if self.nodes[server].incarnation == incarnation {
                    self.lose_write(server, token);
                    let fault = self.disk_fault(server, token).map(|error| (error, &mut self.random));
                    let wishes = self.nodes[server].disk_done(now, token, fault);
                    self.fulfil(server, wishes);
                }
            }
            Happening::Name { server, incarnation, token } => {
                if self.nodes[server].incarnation == incarnation {
                    let wishes = self.nodes[server].name_done(now, token);
                    self.fulfil(server, wishes);
                }
            }
            Happening::GoOn { server, incarnation, token } => {
                if self.nodes[server].incarnation == incarnation {
                    let wishes = self.nodes[server].go_on(now, token);
                    self.fulfil(server, wishes);
                }
            }
            Happening::Fetch { server, incarnation, token } => {
                if self.nodes[server].incarnation == incarnation {
                    let wishes = self.nodes[server].fetch_done(now, token);
                    self.fulfil(server, wishes);
                }
            }
            Happening::Answered { key, incarnation, reply, bytes } => {
                self.answered(key, incarnation, reply, &bytes)?;
            }
            Happening::Patience { key } => self.send(key),
            Happening::Think { client } => self.think(client)?,
            Happening::Crash { server } => {
                if !self.is_calm && self.nodes[server].is_up() {
                    self.crash(server);
                    let (down, up) = (self.random.between(1, 200) * MS, self.random.between(50, 800) * MS);
                    self.later(down, Happening::Start { server });
                    self.later(down + up, Happening::Crash { server });
                }
            }
            Happening::Start { server } => {
                if !self.nodes[server].is_up() {
                    self.start(server)?;
                }
            }
            Happening::GiveUp { client, begun_ns } => self.give_up(client, begun_ns),
            Happening::Dies { client } => self.dies(client),
            Happening::Leaves { server, client } => self.leaves(server, client),
            Happening::Jump => self.jump(),
            Happening::Manager(event) => self.manager_happens(event)?,
            Happening::Asked { server, incarnation } => self.tell_time(server, incarnation),
            Happening::Tick { server } => {
                let wishes = self.nodes[server].tick(now);
                self.fulfil(server, wishes);
                if !self.is_calm {
                    self.later(TICK_NS, Happening::Tick { server });
                }
            }
        }
        Ok(())
    }

    fn disk_fault(&mut self, server: usize, token: u64) -> Option<Error> {
        let is_sync = self.nodes[server].is_sync(token);
        let mut now_and_then = |may: bool| may && !self.is_calm && self.random.once_in(60);
        if now_and_then(if is_sync { self.faults.sync_errors } else { self.faults.errors }) {
            return Some(Error::new(ErrorKind::Io, "the drive has an error"));
        }
        now_and_then(self.faults.full).then(|| Error::new(ErrorKind::DiskFull, "the disk is full"))
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{:>10.3} ms  {}", (self.now_ns - BEGIN_NS) as f64 / MS as f64, what());
        }
    }

    fn crash(&mut self, server: usize) {
        self.say(|| format!("server {server} loses power"));
        self.crashes += 1;
        self.nodes[server].crash(&mut self.random);
        for file in &mut self.files {
            let stripes = file.layout.stripes;
            for (id, entry) in file.layout.servers.iter().zip(0..) {
                if id.0 as usize == server {
                    for (start, end) in SimFile::on_entry(stripes, entry, 0, file.model.length()) {
                        file.model.crashed(start, end);
                    }
                }
            }
        }
    }

    fn start(&mut self, server: usize) -> Result<(), Finding> {
        self.put_back(server);
        self.say(|| format!("server {server} starts"));
        let wishes = self.nodes[server].start().map_err(said)?;
        self.fulfil(server, wishes);
        Ok(())
    }

    fn fulfil(&mut self, server: usize, wishes: Vec<Wish>) {
        let incarnation = self.nodes[server].incarnation;
        for wish in wishes {
            let after = self.random.between(10_000, 3 * MS);
            match wish {
                Wish::Disk(token) => self.later(after, Happening::Disk { server, incarnation, token }),
                Wish::Name(token) => self.later(after, Happening::Name { server, incarnation, token }),
                Wish::Fetch(token) => self.later(after, Happening::Fetch { server, incarnation, token }),
                Wish::LetOthers(token) => self.later(after, Happening::GoOn { server, incarnation, token }),
                Wish::AskTime => self.later(after, Happening::Asked { server, incarnation }),
                Wish::Answer(key, reply, buffer) => {
                    self.reply(server, key, reply, buffer.to_vec());
                }
            }
        }
    }

    fn reply(&mut self, server: usize, key: RequestKey, reply: IoReply, bytes: Vec<u8>) {
        if self.faults.network && !self.is_calm && self.random.once_in(30) {
            return;
        }
        let after = self.delay();
        let incarnation = self.nodes[server].incarnation;
        self.later(after, Happening::Answered { key, incarnation, reply, bytes });
    }

    fn delay(&mut self) -> u64 {
        let is_late = self.faults.network && !self.is_calm && self.random.once_in(15);
        self.random.between(20_000, 2 * MS) + if is_late { self.random.between(1, 200) * MS } else { 0 }
    }

    /// Sends a request, and repeats it until it is answered.
    fn send(&mut self, key: RequestKey) {
        let client = &self.clients[key.client];
        let Some(call) = client.op.as_ref().and_then(|op| op.calls.get(&key.number)) else { return };
        let (call, oldest) = (call.clone(), client.oldest());
        let server = call.server.0 as usize;
        let incarnation = self.nodes[server].incarnation;
        let is_lost = self.faults.network && !self.is_calm && self.random.once_in(30);
        if self.nodes[server].is_up() && !is_lost {
            let after = self.delay();
            self.later(after, Happening::Arrives(Box::new(Sent { server, incarnation, key, oldest, call })));
        }
        self.later(PATIENCE_NS, Happening::Patience { key });
    }

    fn arrives(&mut self, Sent { server, incarnation, key, oldest, call }: Sent) {
        let node = &mut self.nodes[server];
        if node.incarnation != incarnation || !node.is_up() {
            return;
        }
        let session = node.session(self.now_ns, key.client);
        let begun = match self.plant {
            Some(Plant::DoTwice) => Begin::Run,
            _ => session.begin(key.number, oldest, ()),
        };
        self.say(|| format!("server {server}: request {key:?} arrives: {begun:?}"));
        let node = &mut self.nodes[server];
        // Sessions do not keep the bytes of a read, so a repeated read is executed again.
        let is_read = call.request.is_read();
        match begun {
            Begin::Done(reply) if !is_read => {
                if let Ok(reply) = decode::<IoReply>(&reply) {
                    self.reply(server, key, reply, vec![]);
                }
            }
            Begin::Run | Begin::Done(_) => {
                let caller = self.clients[key.client].memory();
                let payload = MemoryBuffer::new(call.payload);
                let asking = (key, Some(session));
                let wishes = node.call(self.now_ns, asking, call.request, payload, caller);
                self.fulfil(server, wishes);
            }
            Begin::Running | Begin::Late => {}
        }
        if self.clients[key.client].is_dead {
            // The dead client sent this message before its connection ended, so only the end can follow.
            self.leaves(server, key.client);
        }
    }
}

fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "the file is gone")
}

fn said(error: Error) -> Finding {
    format!("{:?}: {error}", error.kind)
}
