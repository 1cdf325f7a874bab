//! A client of the simulation: it performs one operation at a time, as a call to every server that stores part of
//! the file.

use std::collections::BTreeMap;

use outcore_core::crash_disk::{MemoryBuffer, Random};
use outcore_core::{
    Grant, GrantTime, Handle, IoRequest, Layout, Level, ManagerRequest, Nested, Regions, Sent, ServerId,
    Stripes, Target, Unsynced,
};

use outcore_server::io_server::Caller;

use crate::collective::{Next, Rank};
use crate::model::{FileModel, WriteId, pattern};
use crate::node::RequestKey;

/// A file that clients share, and its model.
pub struct SimFile {
    /// Handle of the file.
    pub handle: Handle,
    /// Layout of the file.
    pub layout: Layout,
    /// A grant to write it, from its opening.
    pub grant: Grant,
    /// The permitted contents.
    pub model: FileModel,
    /// The ends of its parts. Each part has one client that writes it.
    pub parts: Vec<u64>,
    /// Whether its data files have their full length.
    pub is_made: bool,
    /// Whether a client is removing its name.
    pub is_leaving: bool,
    /// The generations of its data files, as the manager knows them.
    pub generations: BTreeMap<ServerId, u64>,
    /// Whether a client died while writing to it: messages in flight may still arrive at any time.
    pub is_haunted: bool,
}

impl SimFile {
    /// An entry, with the generation that the manager knows.
    pub fn target(&self, entry: u64) -> Target {
        let server = &self.layout.servers[entry as usize];
        let generation = self.generations.get(server).copied().unwrap_or(0);
        Target { handle: self.handle, stripes: self.layout.stripes, entry, generation }
    }

    /// The runs of `start..end` that are on one entry.
    pub fn on_entry(stripes: Stripes, entry: u64, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut at = start;
        while at < end {
            let stop = (at + stripes.left_in_unit(at)).min(end);
            if stripes.locate(at).0 == entry {
                found.push((at, stop));
            }
            at = stop;
        }
        found
    }
}

/// The kind of an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Sets the lengths of the data files.
    Make,
    /// Writes.
    Write(WriteId),
    /// Reads.
    Read,
    /// Syncs.
    Sync,
    /// Removes the data files of an orphan.
    Remove,
    /// Writes or reads an array in the file together with other clients.
    Collective(Option<WriteId>),
}

impl Kind {
    /// Whether it changes the content of the file.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Collective(Some(_)))
    }
}

/// A part of an operation: a request to one server.
#[derive(Clone, Debug)]
pub struct Call {
    /// The server.
    pub server: ServerId,
    /// Index of the server in the file's layout.
    pub entry: u64,
    /// The request.
    pub request: IoRequest,
    /// The payload of a write; for a read, as many zeros as bytes to read.
    pub payload: Vec<u8>,
    /// The sent request, to be returned to [`Unsynced::answered`] with the answer.
    pub sent: Sent,
    /// Number of times that its grant was refused.
    pub refusals: u32,
}

/// An operation in progress.
#[derive(Clone, Debug)]
pub struct Op {
    /// Its kind.
    pub kind: Kind,
    /// Index of the file; for `Remove`, index of the orphan.
    pub file: usize,
    /// Handle of the file. The file may be removed meanwhile, and another one may take its index.
    pub handle: Handle,
    /// The regions of the file.
    pub regions: Regions,
    /// Start time.
    pub begun_ns: u64,
    /// Whether a server could not perform its part.
    pub has_failed: bool,
    /// Its unanswered calls, by number.
    pub calls: BTreeMap<u64, Call>,
    /// Number of calls that wait for a new grant.
    pub renewing: u32,
    /// Its state in a collective.
    pub rank: Option<Box<Rank>>,
}

impl Op {
    /// Whether the request asks for the end of a collective that writes, and that a later sync makes durable.
    fn ends_undurable_write(&self, request: &IoRequest) -> bool {
        matches!(request, IoRequest::Await { round: None, .. })
            && self.rank.as_deref().is_some_and(Rank::needs_sync)
    }
}

/// An unanswered request of a client to the manager.
#[derive(Clone, Debug)]
pub struct Ask {
    /// The request.
    pub request: ManagerRequest,
    /// The purpose of the request.
    pub purpose: Purpose,
}

/// The purpose of a request to the manager.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// A new grant, before the client's next operation.
    Renew(Handle),
    /// A new grant, because a server refused the grant of a call.
    Again {
        /// Key of the refused call.
        key: RequestKey,
        /// Incarnation of the server that refused it.
        incarnation: u64,
        /// The refused call.
        call: Box<Call>,
    },
    /// Removes the name of a file.
    Unname {
        /// Index of the file.
        number: usize,
        /// Whether a client that died may already have done so.
        again: bool,
    },
    /// Creates a new file with the same name.
    Name {
        /// Index of the file.
        number: usize,
        /// The grant to remove the old file.
        grant: Grant,
        /// Whether a client that died may already have done so.
        again: bool,
    },
    /// Makes the manager forget a file whose data files are gone.
    Forget(Handle),
}

/// Unfinished work of a dead client, which its successor continues.
#[derive(Clone, Debug)]
pub enum Unfinished {
    /// Sets the lengths of the data files of a new file.
    Make(usize),
    /// Repeats a request to the manager.
    Ask(Purpose),
}

/// A client of the simulation.
#[derive(Debug, Default)]
pub struct Client {
    /// Number of the last request to a server.
    pub last_number: u64,
    /// Number of operations to come.
    pub left: u64,
    /// Whether it has died. Its requests to the manager may still arrive.
    pub is_dead: bool,
    /// Work of a dead client, to do first.
    pub unfinished: Option<Unfinished>,
    /// The current operation.
    pub op: Option<Op>,
    /// Number of the last request to the manager.
    pub last_asked: u64,
    /// Unanswered requests to the manager, by number.
    pub asks: BTreeMap<u64, Ask>,
    /// Answered writes that it has not synced.
    pub unsynced: Unsynced,
    /// Its grants, and how long it considers them valid.
    pub grants: BTreeMap<Handle, (Grant, GrantTime)>,
}

impl Client {
    /// Whether it has nothing to do.
    pub fn is_idle(&self) -> bool {
        self.is_dead || (self.op.is_none() && self.asks.is_empty() && self.unfinished.is_none())
    }

    /// The work that another client must continue if this one dies now.
    fn unfinished(&self) -> Option<Unfinished> {
        let mut asked = self.asks.values().map(|ask| &ask.purpose);
        match &self.op {
            Some(op) if op.kind == Kind::Make => Some(Unfinished::Make(op.file)),
            Some(_) => None,
            None => self.unfinished.clone().or_else(|| {
                let is_renewal =
                    |purpose: &&Purpose| matches!(purpose, Purpose::Renew(_) | Purpose::Again { .. });
                asked.find(|purpose| !is_renewal(purpose)).cloned().map(Unfinished::Ask)
            }),
        }
    }

    /// Kills the client. Returns its current operation, and its successor.
    pub fn die(&mut self) -> (Option<Op>, Self) {
        let next = Self { left: self.left, unfinished: self.unfinished(), ..Self::default() };
        self.is_dead = true;
        self.left = 0;
        (self.op.take(), next)
    }

    /// Starts an operation.
    pub fn begin(
        &mut self,
        (file, grant): (&SimFile, Grant),
        number: usize,
        kind: Kind,
        regions: Regions,
        now_ns: u64,
    ) -> &Op {
        let stripes = file.layout.stripes;
        let mut calls = BTreeMap::new();
        for (&server, entry) in file.layout.servers.iter().zip(0..) {
            let target = file.target(entry);
            let regions = regions.clone();
            let runs: Vec<_> = regions.local_runs(stripes, entry).collect();
            let bytes: u64 = runs.iter().map(|run| run.length).sum();
            let is_transfer = matches!(kind, Kind::Write(_) | Kind::Read);
            if is_transfer && bytes == 0 {
                continue;
            }
            let mut payload = if is_transfer { vec![0; bytes as usize] } else { vec![] };
            if let Kind::Write(write) = kind {
                payload.clear();
                for run in &runs {
                    let offsets = (0..run.length).filter_map(|i| stripes.offset_of(entry, run.offset + i));
                    payload.extend(offsets.map(|offset| pattern(write, offset)));
                }
            }
            let request = match kind {
                Kind::Make => IoRequest::SetLength {
                    target,
                    grant,
                    local_length: stripes.local_length(entry, file.model.length()),
                    reserve: false,
                },
                Kind::Write(_) => IoRequest::Write { target, grant, regions },
                Kind::Read => IoRequest::Read { target, grant, regions },
                Kind::Sync => IoRequest::Sync { target, grant },
                Kind::Remove => IoRequest::Remove { target, grant },
                Kind::Collective(_) => continue,
            };
            self.last_number += 1;
            let sent = self.unsynced.sent(server, &request);
            calls.insert(self.last_number, Call { server, entry, request, payload, sent, refusals: 0 });
        }
        self.op.insert(Op {
            kind,
            file: number,
            handle: file.handle,
            regions,
            begun_ns: now_ns,
            has_failed: false,
            calls,
            renewing: 0,
            rank: None,
        })
    }

    /// Adds requests to the current operation. Returns their numbers. `notes` says whether the client notes collectives
    /// that a sync must make durable.
    pub fn add(&mut self, servers: &[ServerId], nexts: Vec<Next>, notes: bool) -> Vec<u64> {
        let mut numbers = vec![];
        for (entry, request, payload) in nexts {
            let server = servers[entry as usize];
            let op = self.op.as_ref().filter(|op| notes && op.ends_undurable_write(&request));
            let sent = match op {
                Some(op) => self.unsynced.ends_collective(server, op.handle),
                None => self.unsynced.sent(server, &request),
            };
            self.last_number += 1;
            numbers.push(self.last_number);
            if let Some(op) = &mut self.op {
                op.calls
                    .insert(self.last_number, Call { server, entry, request, payload, sent, refusals: 0 });
            }
        }
        numbers
    }

    /// Repeats a refused request with another grant. Returns its new number.
    pub fn again(&mut self, call: Call, new: Grant) -> u64 {
        let mut request = call.request;
        match &mut request {
            IoRequest::Read { grant, .. }
            | IoRequest::Write { grant, .. }
            | IoRequest::Sync { grant, .. }
            | IoRequest::SetLength { grant, .. }
            | IoRequest::Remove { grant, .. }
            | IoRequest::Join { grant, .. } => *grant = new,
            _ => {}
        }
        self.last_number += 1;
        let (sent, refusals) = (self.unsynced.sent(call.server, &request), call.refusals + 1);
        if let Some(op) = &mut self.op {
            op.calls.insert(self.last_number, Call { request, sent, refusals, ..call });
        }
        self.last_number
    }

    /// Its memory, if it offers it in a collective.
    pub fn memory(&self) -> Caller<MemoryBuffer> {
        let memory = self.op.as_ref()?.rank.as_ref()?.memory()?;
        Some(memory)
    }

    /// The number of the oldest unanswered request.
    pub fn oldest(&self) -> u64 {
        let first = self.op.as_ref().and_then(|op| op.calls.keys().next());
        first.map_or(self.last_number + 1, |number| *number)
    }
}

/// Random regions within the non-empty range `start..end`: one run, or a stride.
pub fn random_regions(random: &mut Random, start: u64, end: u64) -> Regions {
    let length = end - start;
    let first = start + random.below(length);
    let room = end - first;
    let nested = if random.once_in(3) && room > 8 {
        let run_bytes = random.between(1, room / 4);
        let step_bytes = run_bytes + random.below(room / 4);
        let count = ((room - run_bytes) / step_bytes + 1).min(random.between(1, 40));
        Nested { offset: first, run_bytes, levels: vec![Level { count, step_bytes }] }
    } else {
        let most = if random.once_in(2) { room } else { room.min(5000) };
        Nested { offset: first, run_bytes: random.between(1, most), levels: vec![] }
    };
    Regions::new(vec![nested]).unwrap_or_default()
}
