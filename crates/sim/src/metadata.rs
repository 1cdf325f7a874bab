//! A manager that loses power, and clients that check that its answers remain true.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use outcore_core::crash_disk::Random;
use outcore_core::{Error, ErrorKind, Handle, Hints, ManagerReply, ManagerRequest};
use outcore_server::manager::Now;

use crate::manager_node::{ManagerNode, ManagerWish};
use crate::node::RequestKey;
use crate::wall_clock::WallClock;
use crate::world::Finding;

const MS: u64 = 1_000_000;
/// Start of the simulation: an arbitrary date.
const BEGIN_NS: u64 = 1_700_000_000_000_000_000;
/// Time after which a client repeats an unanswered request.
const PATIENCE_NS: u64 = 60 * MS;
/// Upper bound of the numbers that a client gives its file.
const MOST_GIVEN: u64 = 1000;
/// Number of events of a run, at most.
const MOST_EVENTS: u64 = 100_000;

/// A planted bug, which a run must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// Answers do not wait for the disk.
    AnswerEarly,
    /// Answers to read-only requests do not wait for the disk.
    ReadEarly,
    /// The store has no checksums, and its disk flips bits.
    NoSums,
}

/// An operation of a client. Each client does one at a time, and has a directory in which nobody else writes.
#[derive(Clone, Debug)]
enum Op {
    /// Creates its next file.
    Make,
    /// Sets the modification time of its first file to the next number.
    Number(u64),
    /// Creates its next symbolic link.
    Link,
    /// Reads the target of a link that is known to be there.
    ReadLink { whose: usize, number: usize },
    /// Reads the number of a client's first file. It must be at least `least`, which a client saw before.
    Look { whose: usize, least: Option<u64> },
}

#[derive(Default)]
struct Client {
    left: u64,
    requests: u64,
    op: Option<Op>,
    /// The files whose creation was confirmed.
    made: Vec<Handle>,
    /// Number of links whose creation was confirmed.
    links: usize,
    /// The last number that it set.
    given: u64,
    /// The highest number of its first file that any client has seen, if the file exists.
    known: Option<u64>,
}

enum Happening {
    Think { client: usize },
    Patience { key: RequestKey },
    Arrives { key: RequestKey },
    Works { run: u64 },
    Synced { run: u64, groups: usize },
    Answered { key: RequestKey, reply: ManagerReply },
    Crash,
    Start,
    Flip,
}

/// The simulation of a manager and its clients.
pub struct Metadata {
    random: Random,
    now_ns: u64,
    /// The wall clock of the manager, which jumps.
    clock: WallClock,
    clock_random: Random,
    link_random: Random,
    next: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: HashMap<u64, Happening>,
    manager: ManagerNode,
    clients: Vec<Client>,
    /// Number of power cuts.
    pub crashes: u64,
    /// Whether bits flip on the disk, and if so, whether the store has checksums that reveal it.
    flips: Option<bool>,
    flip_random: Random,
    /// Number of requests that met a damaged record.
    pub damaged: u64,
}

fn said(error: Error) -> Finding {
    format!("{:?}: {error}", error.kind)
}

fn link(client: usize, number: usize) -> String {
    format!("c{client}/l{number}")
}

fn target(client: usize, number: usize) -> String {
    format!("../target {number} of {client}")
}

fn path(client: usize, number: usize) -> String {
    format!("c{client}/f{number}")
}

impl Metadata {
    /// Runs the simulation of a seed to its end.
    pub fn run(seed: u64, plant: Option<Plant>) -> Result<Self, Finding> {
        Self::begin(seed, plant, None)
    }

    /// Runs like `run`; bits also flip on the manager's disk, and stay flipped until the next power cut.
    pub fn run_with_flips(seed: u64, plant: Option<Plant>) -> Result<Self, Finding> {
        Self::begin(seed, plant, Some(plant != Some(Plant::NoSums)))
    }

    fn begin(seed: u64, plant: Option<Plant>, flips: Option<bool>) -> Result<Self, Finding> {
        let mut random = Random::new(seed);
        let clients = (0..random.between(1, 4))
            .map(|_| Client { left: random.between(10, 60), ..Client::default() })
            .collect();
        let mut world = Self {
            random,
            now_ns: 0,
            clock: WallClock::default(),
            clock_random: Random::new(!seed),
            link_random: Random::new(seed ^ 0x11CC),
            next: 0,
            queue: BinaryHeap::new(),
            happenings: HashMap::new(),
            manager: ManagerNode::new(1),
            clients,
            crashes: 0,
            flips,
            flip_random: Random::new(seed ^ 0x5EED),
            damaged: 0,
        };
        world.manager.answers_early = plant == Some(Plant::AnswerEarly);
        world.manager.reads_early = plant == Some(Plant::ReadEarly);
        world.manager.start().map_err(said)?;
        let at = world.random.between(1, 100) * MS;
        world.later(at, Happening::Crash);
        if flips.is_some() {
            world.later(1, Happening::Flip);
        }
        for client in 0..world.clients.len() {
            world.later(1, Happening::Think { client });
        }
        world.live()?;
        world.judge()?;
        Ok(world)
    }

    fn later(&mut self, after_ns: u64, what: Happening) {
        self.next += 1;
        self.queue.push(Reverse((self.now_ns + after_ns, self.next)));
        self.happenings.insert(self.next, what);
    }

    fn crash(&mut self) {
        self.manager.crash(&mut self.random);
        self.crashes += 1;
    }

    fn live(&mut self) -> Result<(), Finding> {
        let mut events = 0;
        while self.clients.iter().any(|client| client.left > 0 || client.op.is_some()) {
            events += 1;
            let Some(Reverse((at, number))) = self.queue.pop() else {
                return Err("nothing is under way, and a client still waits".into());
            };
            if events > MOST_EVENTS {
                return Err("it does not come to an end".into());
            }
            self.now_ns = at;
            if let Some(what) = self.happenings.remove(&number) {
                self.happens(what)?;
            }
        }
        Ok(())
    }

    fn happens(&mut self, what: Happening) -> Result<(), Finding> {
        match what {
            Happening::Think { client } => self.think(client),
            Happening::Patience { key } => self.send(key),
            Happening::Arrives { key } => self.arrives(key),
            Happening::Works { run } if run == self.manager.run => {
                let now = self.now();
                let wishes = self.manager.works(now).map_err(said)?;
                self.fulfil(wishes);
            }
            Happening::Synced { run, groups } if run == self.manager.run => {
                let wishes = self.manager.synced(groups);
                self.fulfil(wishes);
            }
            Happening::Works { .. } | Happening::Synced { .. } => {}
            Happening::Answered { key, reply } => return self.answered(key, &reply),
            Happening::Crash => {
                self.crash();
                let (down, up) = (self.random.between(1, 50) * MS, self.random.between(1, 100) * MS);
                self.later(down, Happening::Start);
                self.later(down + up, Happening::Crash);
            }
            Happening::Flip => {
                if self.manager.is_up() {
                    self.manager.flip(&mut self.flip_random, self.flips == Some(true));
                }
                let after = self.flip_random.between(1, 20) * MS;
                self.later(after, Happening::Flip);
            }
            Happening::Start => return self.manager.start().map_err(said),
        }
        Ok(())
    }

    fn think(&mut self, client: usize) {
        let whose = self.random.below(self.clients.len() as u64) as usize;
        let (least, links) = (self.clients[whose].known, self.clients[whose].links);
        let one = &mut self.clients[client];
        if one.left == 0 {
            return;
        }
        one.left -= 1;
        one.requests += 1;
        let draw = self.random.below(4);
        one.op = Some(match (draw, self.link_random.once_in(8)) {
            (0 | 1, true) if links > 0 => Op::ReadLink { whose, number: links - 1 },
            // The first file makes its directory.
            (2 | 3, true) if one.known.is_some() => Op::Link,
            (0 | 1, _) => Op::Look { whose, least },
            (2, _) if one.known.is_some() => {
                one.given += 1;
                Op::Number(one.given)
            }
            _ => Op::Make,
        });
        let key = RequestKey { client, number: one.requests };
        self.send(key);
    }

    /// Sends a request, and repeats it until it is answered.
    fn send(&mut self, key: RequestKey) {
        let client = &self.clients[key.client];
        if client.op.is_some() && client.requests == key.number {
            let after = self.random.between(MS / 50, 2 * MS);
            self.later(after, Happening::Arrives { key });
            self.later(PATIENCE_NS, Happening::Patience { key });
        }
    }

    fn request(&self, client: usize) -> Option<ManagerRequest> {
        let one = &self.clients[client];
        Some(match one.op.as_ref()? {
            Op::Make => ManagerRequest::Create {
                path: path(client, one.made.len()),
                hints: Hints::default(),
                mode: 0o644,
            },
            Op::Number(number) => ManagerRequest::SetAttributes {
                path: path(client, 0),
                mode: None,
                owner: None,
                group: None,
                modified_ns: Some(*number),
            },
            Op::Link => {
                ManagerRequest::MakeLink { path: link(client, one.links), target: target(client, one.links) }
            }
            Op::ReadLink { whose, number } => ManagerRequest::Stat { path: link(*whose, *number) },
            Op::Look { whose, .. } => ManagerRequest::Stat { path: path(*whose, 0) },
        })
    }

    fn arrives(&mut self, key: RequestKey) {
        let is_late = self.clients[key.client].requests != key.number;
        let Some(request) = self.request(key.client).filter(|_| !is_late) else { return };
        let now = self.now();
        let wishes = self.manager.arrives(now, key, request);
        self.fulfil(wishes);
    }

    fn fulfil(&mut self, wishes: Vec<ManagerWish>) {
        let run = self.manager.run;
        for wish in wishes {
            match wish {
                ManagerWish::Answer(key, reply) => self.reply(key, reply),
                ManagerWish::Work => self.later(MS / 10, Happening::Works { run }),
                ManagerWish::Sync(groups) => {
                    let after = self.random.between(MS / 10, 20 * MS);
                    self.later(after, Happening::Synced { run, groups });
                }
            }
        }
    }

    /// Sends an answer, which is sometimes lost.
    fn reply(&mut self, key: RequestKey, reply: ManagerReply) {
        if !self.random.once_in(20) {
            let after = self.random.between(MS / 50, 2 * MS);
            self.later(after, Happening::Answered { key, reply });
        }
    }

    fn answered(&mut self, key: RequestKey, reply: &ManagerReply) -> Result<(), Finding> {
        let RequestKey { client, number } = key;
        if self.clients[client].requests != number {
            return Ok(());
        }
        let Some(op) = self.clients[client].op.take() else { return Ok(()) };
        if let ManagerReply::Failed(error) = reply
            && error.kind == ErrorKind::Corrupt
            && self.flips.is_some()
        {
            // The request had no effect. The client repeats it until a power cut replaces the disk.
            self.damaged += 1;
            self.clients[client].op = Some(op);
            return Ok(());
        }
        let who = format!("client {client}, request {number}, {op:?}");
        match (op, reply) {
            (Op::Make, ManagerReply::Opened(opened)) => {
                let handle = opened.inode.handle;
                if self.clients.iter().any(|other| other.made.contains(&handle)) {
                    return Err(format!("{who}: handle {} was given before", handle.0));
                }
                let one = &mut self.clients[client];
                one.made.push(handle);
                one.known.get_or_insert(0);
            }
            (Op::Number(given), ManagerReply::Done) => {
                let known = &mut self.clients[client].known;
                *known = (*known).max(Some(given));
            }
            (Op::Link, ManagerReply::Done) => self.clients[client].links += 1,
            (Op::ReadLink { whose, number }, reply) => read_link(whose, number, reply, &who)?,
            (Op::Look { whose, least }, reply) => self.looked(whose, least, reply, &who)?,
            (_, reply) => return Err(format!("{who}: {reply:?}")),
        }
        let after = self.random.between(1, 3 * MS);
        self.later(after, Happening::Think { client });
        Ok(())
    }

    /// Checks the state of a client's first file that another client saw.
    fn looked(
        &mut self,
        whose: usize,
        least: Option<u64>,
        reply: &ManagerReply,
        who: &str,
    ) -> Result<(), Finding> {
        let found = match reply {
            // A file's first modification time comes from the manager's clock, which never shows such small
            // numbers except 0.
            ManagerReply::Inode(inode) => {
                Some(inode.modified_ns).map(|ns| if ns > MOST_GIVEN { 0 } else { ns })
            }
            ManagerReply::Failed(error) if error.kind == ErrorKind::NotFound => None,
            reply => return Err(format!("{who}: {reply:?}")),
        };
        let one = &mut self.clients[whose];
        if found < least || found > Some(one.given) {
            return Err(format!(
                "{who}: client {whose} has given {}, {least:?} was known, and {found:?} is there",
                one.given
            ));
        }
        one.known = one.known.max(found);
        Ok(())
    }

    /// Cuts the power again, and checks that everything confirmed is still there.
    fn judge(&mut self) -> Result<(), Finding> {
        self.crash();
        self.manager.start().map_err(said)?;
        for client in 0..self.clients.len() {
            for number in 0..self.clients[client].made.len() {
                let (handle, reply) = (self.clients[client].made[number], self.stat(&path(client, number)));
                let is_there = matches!(&reply, ManagerReply::Inode(inode) if inode.handle == handle);
                if !is_there {
                    return Err(format!("file {number} of client {client} was made, and is {reply:?}"));
                }
            }
            for number in 0..self.clients[client].links {
                let reply = self.stat(&link(client, number));
                read_link(client, number, &reply, "at the end")?;
            }
            let (reply, least) = (self.stat(&path(client, 0)), self.clients[client].known);
            self.looked(client, least, &reply, "at the end")?;
        }
        Ok(())
    }

    /// The time of the manager's clock, which may jump at any call.
    fn now(&mut self) -> Now {
        if self.clock_random.once_in(4) {
            self.clock.jump(&mut self.clock_random);
        }
        Now { unix_ns: self.clock.now_ns(BEGIN_NS + self.now_ns), running_ns: self.now_ns }
    }

    fn stat(&mut self, path: &str) -> ManagerReply {
        let now = self.now();
        self.manager.ask(now, ManagerRequest::Stat { path: path.into() })
    }
}

/// Checks the answer to the request for a link that is there.
fn read_link(whose: usize, number: usize, reply: &ManagerReply, who: &str) -> Result<(), Finding> {
    match reply {
        ManagerReply::Inode(inode) if inode.target.as_ref() == Some(&target(whose, number)) => Ok(()),
        reply => Err(format!("{who}: link {number} of client {whose} was made, and is {reply:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_found() {
        let mut crashes = 0;
        for seed in 0..300 {
            match Metadata::run(seed, None) {
                Ok(world) => crashes += world.crashes,
                Err(finding) => panic!("seed {seed}: {finding}"),
            }
        }
        assert!(crashes > 300, "{crashes}");
    }

    #[test]
    fn damaged_records_are_errors_and_never_other_records() {
        let mut damaged = 0;
        for seed in 0..200 {
            match Metadata::run_with_flips(seed, None) {
                Ok(world) => damaged += world.damaged,
                Err(finding) => panic!("seed {seed}: {finding}"),
            }
        }
        assert!(damaged > 200, "{damaged}");
    }

    #[test]
    fn a_store_without_checksums_is_found() {
        let found = (0..100).filter(|&seed| Metadata::run_with_flips(seed, Some(Plant::NoSums)).is_err());
        assert!(found.count() > 10);
    }

    #[test]
    fn an_answer_before_it_is_durable_is_found() {
        let found = |plant| -> Vec<Finding> {
            (0..400).filter_map(|seed| Metadata::run(seed, Some(plant)).err()).collect()
        };
        let (early, reads) = (found(Plant::AnswerEarly), found(Plant::ReadEarly));
        assert!(early.len() > 40);
        assert!(early.iter().any(|finding| finding.contains("link ")), "a link is a name too");
        assert!(reads.len() > 4, "a read that sees what is not durable yet");
    }
}
