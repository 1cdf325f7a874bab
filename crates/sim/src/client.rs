//! A client of the simulation: one operation at a time, each a call to every server that has a part of it.

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

/// A file that clients share, and what it may be.
pub struct SimFile {
    /// Which.
    pub handle: Handle,
    /// Where it lies.
    pub layout: Layout,
    /// The right to write it, as it was opened with.
    pub grant: Grant,
    /// What its bytes may be.
    pub model: FileModel,
    /// Where the parts of it end that one client each writes.
    pub parts: Vec<u64>,
    /// Whether its data files are as long as they must be.
    pub is_made: bool,
    /// Whether somebody removes its name.
    pub is_leaving: bool,
    /// Whether somebody died who was writing to it: what was on its way may come at any time.
    pub is_haunted: bool,
}

impl SimFile {
    /// Runs of the file's bytes, of `start..end`, that lie on one entry.
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

/// What an operation does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Makes the data files as long as they must be.
    Make,
    /// Writes.
    Write(WriteId),
    /// Reads.
    Read,
    /// Makes safe.
    Sync,
    /// Removes the data files of a file that has no name any more.
    Remove,
    /// Writes or reads an array in the file with other clients.
    Collective(Option<WriteId>),
}

impl Kind {
    /// Whether it changes what is in the file.
    pub fn writes(&self) -> bool {
        matches!(self, Self::Write(_) | Self::Collective(Some(_)))
    }
}

/// A part of an operation: a request to one server.
#[derive(Clone, Debug)]
pub struct Call {
    /// Which server.
    pub server: ServerId,
    /// Which entry of the file's servers that is.
    pub entry: u64,
    /// What is asked.
    pub request: IoRequest,
    /// The payload of a write; of a read, zeros as many as are read.
    pub payload: Vec<u8>,
    /// For what the client notes when it is answered.
    pub sent: Sent,
    /// How often its grant was refused.
    pub refusals: u32,
}

/// An operation under way.
#[derive(Clone, Debug)]
pub struct Op {
    /// What it does.
    pub kind: Kind,
    /// Which file; of `Remove`, which of those without a name.
    pub file: usize,
    /// Its handle: it may be removed meanwhile, and another one be in its place.
    pub handle: Handle,
    /// Of the file.
    pub regions: Regions,
    /// When it began.
    pub begun_ns: u64,
    /// Whether a server could not do its part.
    pub has_failed: bool,
    /// Its calls that are not answered, by their numbers.
    pub calls: BTreeMap<u64, Call>,
    /// How many others wait for a new grant.
    pub renewing: u32,
    /// What it does in a collective.
    pub rank: Option<Box<Rank>>,
}

/// What a client asks the manager, and has no answer to.
#[derive(Clone, Debug)]
pub struct Ask {
    /// What it asks.
    pub request: ManagerRequest,
    /// What it does with the answer.
    pub purpose: Purpose,
}

/// Why a client asks the manager.
#[derive(Clone, Debug)]
pub enum Purpose {
    /// For a new grant, before it does the next thing.
    Renew(Handle),
    /// For a new grant, since a server has refused that of a request.
    Again {
        /// The request.
        key: RequestKey,
        /// Which run of the server refused it.
        incarnation: u64,
        /// The same.
        call: Box<Call>,
    },
    /// To remove the name of a file.
    Unname {
        /// Which file.
        number: usize,
        /// Whether another client may have done so, and died.
        again: bool,
    },
    /// To make a new file of that name.
    Name {
        /// Which file.
        number: usize,
        /// The right to remove the old one.
        grant: Grant,
        /// Whether another client may have done so, and died.
        again: bool,
    },
    /// To forget a file whose data files are gone.
    Forget(Handle),
}

/// What a client goes on with that another one had begun, and died.
#[derive(Clone, Debug)]
pub enum Unfinished {
    /// Data files of a file that was made.
    Make(usize),
    /// What it asked the manager.
    Ask(Purpose),
}

/// See the module.
#[derive(Debug, Default)]
pub struct Client {
    /// Numbers of requests that were used.
    pub last_number: u64,
    /// Operations that are still to come.
    pub left: u64,
    /// Whether it has died. What it asked the manager may still arrive.
    pub is_dead: bool,
    /// What it begins with.
    pub unfinished: Option<Unfinished>,
    /// What it does now.
    pub op: Option<Op>,
    /// Numbers of requests to the manager that were used.
    pub last_asked: u64,
    /// What it asks the manager, by these.
    pub asks: BTreeMap<u64, Ask>,
    /// What it was answered and has not synced.
    pub unsynced: Unsynced,
    /// Its grants, and until when it takes them to be good.
    pub grants: BTreeMap<Handle, (Grant, GrantTime)>,
}

impl Client {
    /// Whether it does nothing.
    pub fn is_idle(&self) -> bool {
        self.is_dead || (self.op.is_none() && self.asks.is_empty() && self.unfinished.is_none())
    }

    /// What others must go on with if it dies now.
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

    /// It dies. Returns what it did, and the one that comes in its place.
    pub fn die(&mut self) -> (Option<Op>, Self) {
        let next = Self { left: self.left, unfinished: self.unfinished(), ..Self::default() };
        self.is_dead = true;
        self.left = 0;
        (self.op.take(), next)
    }

    /// Begins an operation.
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
            let target = Target { handle: file.handle, stripes, entry };
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

    /// Adds requests to what it does now; their numbers.
    pub fn add(&mut self, servers: &[ServerId], nexts: Vec<Next>) -> Vec<u64> {
        let mut numbers = vec![];
        for (entry, request, payload) in nexts {
            let server = servers[entry as usize];
            let sent = self.unsynced.sent(server, &request);
            self.last_number += 1;
            numbers.push(self.last_number);
            if let Some(op) = &mut self.op {
                op.calls
                    .insert(self.last_number, Call { server, entry, request, payload, sent, refusals: 0 });
            }
        }
        numbers
    }

    /// Makes a request that was refused once more, with another grant; its new number.
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

    /// Its memory, if it offers that in a collective.
    pub fn memory(&self) -> Caller<MemoryBuffer> {
        let memory = self.op.as_ref()?.rank.as_ref()?.memory()?;
        Some(memory)
    }

    /// The oldest request that is not answered.
    pub fn oldest(&self) -> u64 {
        let first = self.op.as_ref().and_then(|op| op.calls.keys().next());
        first.map_or(self.last_number + 1, |number| *number)
    }
}

/// Random regions within `start..end`, which is not empty: one run, or a stride.
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
