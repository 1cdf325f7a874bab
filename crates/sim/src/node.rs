//! One I/O server of the simulation: its state machine, its disk, and what is under way between them.

use std::collections::BTreeMap;
use std::sync::Arc;

use outcore_core::{Buffer, Clock, Completion, IoReply, Request, Result, ServerId};
use outcore_server::grants::Key;
use outcore_server::io_server::{Config, Effect, Event, IoServer, Limits, NameOperation};
use outcore_server::once::Once;

use crate::buffer::SimBuffer;
use crate::disk::SimDisk;
use crate::random::Random;

/// The simulation's pool.
pub const POOL: u128 = 0x0123_4567;

/// A request of a client, as the network knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RequestKey {
    /// Which client.
    pub client: usize,
    /// Its number for the request.
    pub number: u64,
}

struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// What an I/O server wants of the world around it.
pub enum Wish {
    /// A disk request to be done some time, then [`Node::disk_done`].
    Disk(u64),
    /// An operation on names likewise, then [`Node::name_done`].
    Name(u64),
    /// An answer for a client.
    Answer(RequestKey, IoReply, SimBuffer),
}

/// See the module.
pub struct Node {
    id: ServerId,
    key: Key,
    limits: Limits,
    /// Its disk.
    pub disk: SimDisk,
    /// How often it has started: what was sent to an earlier one is lost.
    pub incarnation: u64,
    machine: Option<IoServer<SimBuffer>>,
    transfers: BTreeMap<u64, Request<SimBuffer>>,
    names: BTreeMap<u64, NameOperation>,
    calls: BTreeMap<u64, RequestKey>,
    next_call: u64,
    /// What was done of what clients sent.
    pub once: Once<IoReply>,
}

impl Node {
    /// A server that is not started yet.
    pub fn new(id: ServerId, key: Key, limits: Limits) -> Self {
        Self {
            id,
            key,
            limits,
            disk: SimDisk::default(),
            incarnation: 0,
            machine: None,
            transfers: BTreeMap::new(),
            names: BTreeMap::new(),
            calls: BTreeMap::new(),
            next_call: 0,
            once: Once::new(64),
        }
    }

    /// Whether it runs.
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
            // What was in memory before: never zeros.
            scratch: Arc::new(|bytes| Ok(SimBuffer::new(vec![0xAA; bytes]))),
            limits: self.limits,
            clock: Arc::new(NoClock),
        };
        let mut effects = Vec::new();
        self.machine = Some(IoServer::start(config, &mut effects)?);
        Ok(self.wishes(effects))
    }

    /// Ends it as a power cut does.
    pub fn crash(&mut self, random: &mut Random) {
        self.machine = None;
        let under_way: Vec<_> = std::mem::take(&mut self.transfers).into_values().collect();
        self.disk.crash(&under_way, random);
        self.names.clear();
        self.calls.clear();
        self.once = Once::new(64);
    }

    /// A call that is new arrives.
    pub fn call(
        &mut self,
        now_ns: u64,
        key: RequestKey,
        request: outcore_core::IoRequest,
        buffer: SimBuffer,
    ) -> Vec<Wish> {
        self.next_call += 1;
        self.calls.insert(self.next_call, key);
        self.step(now_ns, Event::Call { call: self.next_call, request, buffer })
    }

    /// Its disk has done a request, or failed with an error.
    pub fn disk_done(&mut self, now_ns: u64, token: u64, fault: Option<outcore_core::Error>) -> Vec<Wish> {
        let Some(mut request) = self.transfers.remove(&token) else { return vec![] };
        let result = match fault {
            Some(error) => Err(error),
            None => self.disk.transfer(&mut request),
        };
        let completion =
            Completion { buffer: request.buffer, result, started_ns: now_ns, finished_ns: now_ns };
        self.step(now_ns, Event::Disk { token, completion })
    }

    /// Its disk has done an operation on names.
    pub fn name_done(&mut self, now_ns: u64, token: u64) -> Vec<Wish> {
        let Some(operation) = self.names.remove(&token) else { return vec![] };
        let result = self.disk.name(operation);
        self.step(now_ns, Event::Name { token, result })
    }

    fn step(&mut self, now_ns: u64, event: Event<SimBuffer>) -> Vec<Wish> {
        let mut effects = Vec::new();
        if let Some(machine) = &mut self.machine {
            machine.step(now_ns, event, &mut effects);
        }
        self.wishes(effects)
    }

    fn wishes(&mut self, effects: Vec<Effect<SimBuffer>>) -> Vec<Wish> {
        let mut wishes = Vec::new();
        for effect in effects {
            match effect {
                Effect::Disk { token, request } => {
                    debug_assert!(request.buffer.len() < 1 << 30);
                    self.transfers.insert(token, request);
                    wishes.push(Wish::Disk(token));
                }
                Effect::Name { token, operation } => {
                    self.names.insert(token, operation);
                    wishes.push(Wish::Name(token));
                }
                Effect::Answer { call, reply, buffer } => {
                    if let Some(key) = self.calls.remove(&call) {
                        wishes.push(Wish::Answer(key, reply, buffer));
                    }
                }
                _ => {}
            }
        }
        wishes
    }
}
