//! Collectives of a server: their processes, their open pieces, and their results.

use std::cell::{Cell, OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use outcore_core::{
    Buffer, CollectivePlan, CollectiveSpec, Coverage, Error, ErrorKind, MemorySchema, PIECE_BYTES,
    PlannedPiece, Result, ServerId, Target,
};

use crate::io_server::blocks::scratch::Scratch;
use crate::io_server::collective::direct::SPAN_PIECES;
use crate::io_server::collective::fetch::ReadArrays;
use crate::io_server::config::Factory;
use crate::io_server::state::CollectiveState;
use crate::io_server::wait::{Gate, Permits};

/// Collectives that transfer data at once; others wait in order.
const MOST_AT_WORK: usize = 2;
/// Bytes of piece buffers, shared by all active collectives. They exceed the need of one collective, but not of
/// two.
const BUFFER_BYTES: usize = 48 << 20;
/// Collectives that processes have joined, at most.
const MOST_JOINED: usize = 256;
/// Ended collectives whose result the server remembers, for callers that ask late or twice.
const MOST_ENDED: usize = 256;

/// All collectives of a server.
pub(crate) struct Collectives<B> {
    server: ServerId,
    joined: RefCell<BTreeMap<u128, Rc<Collective<B>>>>,
    ended: RefCell<VecDeque<(u128, Result<()>)>>,
    is_stopping: Cell<bool>,
    pub at_work: Permits,
    /// Buffers for pieces. Rounds take them in order and return them without waiting for later rounds, so there is
    /// no deadlock.
    pub buffers: Scratch<B>,
    /// Buffer for a piece that a process reads a second time.
    pub again: Scratch<B>,
}

/// One collective.
pub(crate) struct Collective<B> {
    pub spec: CollectiveSpec,
    /// Complete once all processes have joined.
    plan: RefCell<Rc<CollectivePlan>>,
    pub target: Target,
    /// The latest generation of the data file that a process knows.
    pub generation: Cell<u64>,
    joined: RefCell<BTreeSet<u64>>,
    /// The processes whose memory the server reads directly.
    pub memories: RefCell<BTreeMap<u64, ReadArrays<B>>>,
    pub all_joined: Gate,
    rounds: RefCell<BTreeMap<u64, Gate>>,
    /// The first round that has not begun.
    pub begun: Cell<u64>,
    pub open: RefCell<BTreeMap<u64, Rc<OpenPiece<B>>>>,
    /// All pieces are done, and durable if the collective asks for that.
    pub is_done: Cell<bool>,
    asked_for_end: RefCell<BTreeSet<u64>>,
    /// Opens when every process has asked for the result, and so needs nothing more.
    pub all_asked: Gate,
    pub end: Gate,
    failed: RefCell<Option<Error>>,
    progress_ns: Cell<u64>,
}

/// A piece in memory.
pub(crate) struct OpenPiece<B> {
    pub planned: PlannedPiece,
    pub buffer: RefCell<B>,
    /// Bytes that processes have not yet given or taken.
    pub left: Cell<u64>,
    /// The processes that have given or taken their share.
    pub seen: RefCell<BTreeSet<u64>>,
    /// Whether the buffer contains the piece's bytes, ready to be taken.
    pub is_read: Cell<bool>,
    pub complete: Gate,
    /// The bytes that processes give, if the server has needed them.
    pub coverage: OnceCell<Coverage>,
    /// Whether a byte belongs to several processes, in a write.
    pub is_shared: bool,
    /// Opens when the server reads no more memory of processes into the buffer.
    pub fetched: Gate,
}

impl<B: Buffer> Collectives<B> {
    pub fn new(server: ServerId, make: Factory<B>) -> Self {
        let piece = PIECE_BYTES as usize;
        let span = piece * SPAN_PIECES as usize;
        Self {
            server,
            joined: RefCell::default(),
            ended: RefCell::default(),
            is_stopping: Cell::new(false),
            at_work: Permits::new(MOST_AT_WORK),
            buffers: Scratch::new(span, BUFFER_BYTES / span, make.clone()),
            again: Scratch::new(piece, 1, make),
        }
    }

    /// Adds a process to a collective. Returns the collective, and whether this process is its first.
    pub fn join(
        &self,
        target: Target,
        spec: CollectiveSpec,
        rank: u64,
        memory: Option<ReadArrays<B>>,
        now_ns: u64,
    ) -> Result<(Rc<Collective<B>>, bool)> {
        if rank >= spec.ranks {
            return Err(Error::invalid(format!("of {} processes none has number {rank}", spec.ranks)));
        }
        if let Some(result) = self.ended(spec.id) {
            let over = || Error::invalid("the collective is over; begin another one");
            return Err(result.err().unwrap_or_else(over));
        }
        let known = self.joined.borrow().get(&spec.id).cloned();
        if let Some(collective) = known {
            collective.take_in(target, &spec, rank, memory, now_ns)?;
            return Ok((collective, false));
        }
        if self.is_stopping.get() {
            return Err(self.stopping());
        }
        if self.joined.borrow().len() >= MOST_JOINED {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("{MOST_JOINED} collectives are under way on this server; wait for some of them"),
            ));
        }
        let mut plan = CollectivePlan::new(&spec, target.stripes)?;
        plan.tell(rank, &spec.schema)?;
        if let Some(memory) = &memory {
            plan.check_offer(&memory.offer, rank)?;
        }
        let id = spec.id;
        let collective = Rc::new(Collective {
            spec,
            plan: RefCell::new(Rc::new(plan)),
            target,
            generation: Cell::new(target.generation),
            joined: RefCell::default(),
            memories: RefCell::default(),
            all_joined: Gate::default(),
            rounds: RefCell::default(),
            begun: Cell::new(0),
            open: RefCell::default(),
            is_done: Cell::new(false),
            asked_for_end: RefCell::default(),
            all_asked: Gate::default(),
            end: Gate::default(),
            failed: RefCell::default(),
            progress_ns: Cell::new(now_ns),
        });
        self.joined.borrow_mut().insert(id, collective.clone());
        collective.note_joined(rank, memory, now_ns);
        Ok((collective, true))
    }

    /// The collective with this number, if it is running. Otherwise its result: `Err(Ok(()))` if it succeeded.
    pub fn get(&self, id: u128) -> std::result::Result<Rc<Collective<B>>, Result<()>> {
        if let Some(collective) = self.joined.borrow().get(&id) {
            return Ok(collective.clone());
        }
        Err(self.ended(id).unwrap_or_else(|| {
            Err(Error::new(
                ErrorKind::Lost,
                format!(
                    "server {} does not know this collective, since it restarted meanwhile; write or read the array again",
                    self.server.0
                ),
            ))
        }))
    }

    fn ended(&self, id: u128) -> Option<Result<()>> {
        self.ended.borrow().iter().find(|(ended, _)| *ended == id).map(|(_, result)| result.clone())
    }

    /// Removes a collective, and remembers only its result.
    pub fn end(&self, id: u128, result: Result<()>) {
        if self.joined.borrow_mut().remove(&id).is_some() {
            self.remember(id, result);
        }
    }

    /// Records the failure of a collective that a process abandoned before any process joined it here, so that
    /// later ones do not wait for it.
    pub fn end_unknown(&self, id: u128, error: Error) {
        if self.ended(id).is_none() {
            self.remember(id, Err(error));
        }
    }

    fn remember(&self, id: u128, result: Result<()>) {
        let mut ended = self.ended.borrow_mut();
        ended.push_back((id, result));
        if ended.len() > MOST_ENDED {
            ended.pop_front();
        }
    }

    /// The state of each collective in flight.
    pub fn states(&self) -> Vec<CollectiveState> {
        self.each().iter().map(|collective| collective.state()).collect()
    }

    fn each(&self) -> Vec<Rc<Collective<B>>> {
        self.joined.borrow().values().cloned().collect()
    }

    /// Ends the collectives in which a process has not answered for too long.
    pub fn look_at_clock(&self, now_ns: u64) {
        for collective in self.each() {
            collective.look_at_clock(now_ns);
        }
    }

    /// Ends the collectives for which `is_over` holds, and refuses new ones.
    pub fn stop(&self, is_over: impl Fn(&Collective<B>) -> bool) {
        self.is_stopping.set(true);
        for collective in self.each().into_iter().filter(|collective| is_over(collective)) {
            collective.fail(self.stopping());
        }
    }

    fn stopping(&self) -> Error {
        let text = format!(
            "I/O server {} is stopping, and ended the collective; try again when it is back",
            self.server.0
        );
        Error::new(ErrorKind::Io, text)
    }
}

impl<B: Buffer> Collective<B> {
    pub fn plan(&self) -> Rc<CollectivePlan> {
        self.plan.borrow().clone()
    }

    fn state(&self) -> CollectiveState {
        CollectiveState {
            id: self.spec.id,
            handle: self.target.handle,
            is_write: self.spec.write,
            ranks: self.spec.ranks,
            joined: self.joined.borrow().len() as u64,
            begun: self.begun.get(),
            rounds: self.plan().rounds(self.target.entry),
            is_done: self.is_done.get(),
        }
    }

    fn take_in(
        &self,
        target: Target,
        spec: &CollectiveSpec,
        rank: u64,
        memory: Option<ReadArrays<B>>,
        now_ns: u64,
    ) -> Result<()> {
        // Processes may have opened the file at different times.
        self.generation.set(self.generation.get().max(target.generation));
        let target = Target { generation: self.target.generation, ..target };
        let Some(what) = difference((self.target, &self.spec), (target, spec)) else {
            Rc::make_mut(&mut self.plan.borrow_mut())
                .tell(rank, &spec.schema)
                .inspect_err(|error| self.fail(error.clone()))?;
            if let Some(memory) = &memory {
                self.plan().check_offer(&memory.offer, rank)?;
            }
            self.note_joined(rank, memory, now_ns);
            return Ok(());
        };
        let first = self.joined.borrow().first().copied().unwrap_or(0);
        let error = Error::invalid(format!(
            "processes {first} and {rank} do not agree on {what}; call the collective with the same arguments everywhere"
        ));
        self.fail(error.clone());
        Err(error)
    }

    /// Records that a process has joined. If it joins again because the answer was lost, its first offer of memory
    /// stays valid.
    fn note_joined(&self, rank: u64, memory: Option<ReadArrays<B>>, now_ns: u64) {
        // The timeout of processes that have not joined runs from the moment the first one joined.
        let mut joined = self.joined.borrow_mut();
        if joined.insert(rank)
            && let Some(memory) = memory
        {
            self.memories.borrow_mut().insert(rank, memory);
        }
        if joined.len() as u64 == self.spec.ranks {
            drop(joined);
            self.progress_ns.set(now_ns);
            self.all_joined.open(Ok(()));
        }
    }

    /// Records that a process has transferred everything and asks for the result.
    pub fn ask_for_end(&self, rank: u64, now_ns: u64) {
        self.progress_ns.set(now_ns);
        let mut asked = self.asked_for_end.borrow_mut();
        asked.insert(rank);
        if asked.len() as u64 == self.spec.ranks {
            drop(asked);
            self.all_asked.open(Ok(()));
        }
    }

    /// Whether processes still have calls to make: the last call of each asks for the result.
    pub fn needs_calls(&self) -> bool {
        (self.asked_for_end.borrow().len() as u64) < self.spec.ranks
    }

    /// Restarts the timeout: a process did its part, or the server now waits for other processes.
    pub fn note_progress(&self, now_ns: u64) {
        self.progress_ns.set(now_ns);
    }

    /// The gate that opens when the server is ready for a round.
    pub fn round(&self, round: u64) -> Gate {
        let gate = self.rounds.borrow_mut().entry(round).or_default().clone();
        if let Some(error) = &*self.failed.borrow() {
            gate.open(Err(error.clone()));
        }
        gate
    }

    /// Ends the collective with an error, which all current and later waiters receive.
    pub fn fail(&self, error: Error) {
        if self.failed.borrow().is_some() {
            return;
        }
        *self.failed.borrow_mut() = Some(error.clone());
        let open = self.open.take();
        let rounds = self.rounds.take();
        let gates = [&self.all_joined, &self.all_asked, &self.end].into_iter().chain(rounds.values());
        let of_pieces = open.values().flat_map(|piece| [&piece.complete, &piece.fetched]);
        for gate in gates.chain(of_pieces) {
            gate.open(Err(error.clone()));
        }
    }

    pub fn result(&self) -> Result<()> {
        self.failed.borrow().clone().map_or(Ok(()), Err)
    }

    fn look_at_clock(&self, now_ns: u64) {
        let silent_s = now_ns.saturating_sub(self.progress_ns.get()) / 1_000_000_000;
        if silent_s < self.spec.patience_s {
            return;
        }
        let missing = self.missing();
        if !missing.is_empty() {
            self.fail(Error::new(
                ErrorKind::Io,
                format!(
                    "nothing was heard of {} for {silent_s} s; look what became of them, and try again, with a longer \
                     timeout if they only were slow",
                    named(&missing)
                ),
            ));
        }
    }

    /// The processes that the server waits for.
    fn missing(&self) -> Vec<u64> {
        let joined = self.joined.borrow();
        if (joined.len() as u64) < self.spec.ranks {
            return (0..self.spec.ranks).filter(|rank| !joined.contains(rank)).collect();
        }
        if self.is_done.get() {
            let asked = self.asked_for_end.borrow();
            return (0..self.spec.ranks).filter(|rank| !asked.contains(rank)).collect();
        }
        let open: Vec<Rc<OpenPiece<B>>> = self.open.borrow().values().cloned().collect();
        let (mut missing, plan) = (BTreeSet::new(), self.plan());
        for piece in
            open.iter().filter(|piece| piece.left.get() > 0 && (self.spec.write || piece.is_read.get()))
        {
            let seen = piece.seen.borrow();
            let has_share = |rank: &u64| plan.share(&piece.planned, *rank).bytes > 0;
            missing.extend((0..self.spec.ranks).filter(|rank| !seen.contains(rank)).filter(has_share));
        }
        missing.into_iter().collect()
    }
}

/// A list of processes, for error messages.
fn named(ranks: &[u64]) -> String {
    const MOST: usize = 8;
    let mut numbers: Vec<String> = ranks.iter().take(MOST).map(u64::to_string).collect();
    if ranks.len() > MOST {
        numbers.push(format!("{} others", ranks.len() - MOST));
    }
    match numbers.split_last() {
        Some((last, [])) => format!("process {last}"),
        Some((last, before)) => format!("processes {} and {last}", before.join(", ")),
        None => String::from("no process"),
    }
}

/// The first difference between two descriptions of one collective.
fn difference(a: (Target, &CollectiveSpec), b: (Target, &CollectiveSpec)) -> Option<&'static str> {
    let ((target, spec), (other_target, other)) = (a, b);
    // Each process may describe bytes of its own.
    let has_same_schema = match (&spec.schema, &other.schema) {
        (MemorySchema::Own(_), MemorySchema::Own(_)) => true,
        (schema, other) => schema == other,
    };
    let sizes = |spec: &CollectiveSpec| (spec.piece_bytes, spec.round_pieces);
    Some(match () {
        () if target != other_target => "the array",
        () if spec.write != other.write => "whether they read or write",
        () if spec.ranks != other.ranks => "how many they are",
        () if spec.grid != other.grid || spec.shard != other.shard => "the array's shape, type and chunks",
        () if !has_same_schema => "the memory schema",
        () if spec.patience_s != other.patience_s => "the timeout",
        () if spec.durable != other.durable => "whether they sync",
        () if spec.skips_disk != other.skips_disk => "whether disks are used",
        () if sizes(spec) != sizes(other) => "the sizes of pieces and rounds",
        () => return None,
    })
}
