//! One process's part in a collective. It exchanges messages with each server independently, and with all
//! concurrently.
//!
//! The answers drive the process, on the thread of its call (Seamons et al. 1995: the servers direct).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use outcore_core::{
    Answer, CollectivePlan, CollectiveSpec, Error, ErrorKind, FileId, Grant, IoReply, IoRequest, Link,
    PIECE_BYTES, ROUNDS_AT_ONCE, Result, ServerId, Share,
};
use outcore_memory::{Arena, Region};

use crate::PoolVolume;
use crate::collective::offer::Offered;
use crate::collective::shares::{Carrier, LocalArray};
use crate::pool::call::unexpected;
use crate::pool::file::PoolFile;
use crate::pool::shared::TRIES;
use crate::trace::{Span, SpanKind, Trace};

/// Interval at which the caller can abort.
const INTERVAL: Duration = Duration::from_millis(50);

/// Margin of the wait for joins. A server aborts if a process does not join in time, but a restarted server
/// restarts that wait. So a process waits at most twice the patience, plus this margin.
const JOIN_MARGIN: Duration = Duration::from_secs(2);

/// Maximum wait for servers to acknowledge that a process does not take part.
const TELL_WAIT: Duration = Duration::from_secs(2);

/// The part of one process in a collective.
pub struct CollectivePart {
    /// The description, which is the same on all processes.
    pub spec: CollectiveSpec,
    /// The number of this process.
    pub rank: u64,
    /// Its arrays in memory, as the schema says. Nothing else may access them during the collective.
    pub arrays: Vec<LocalArray>,
    /// Maximum bytes of bounce buffers, for shares with short runs in memory; at least [`PIECE_BYTES`].
    pub memory_bytes: usize,
    /// Whether servers on this machine may read the memory of the arrays directly.
    pub offers_memory: bool,
    /// Records the messages to servers, if it is given.
    pub trace: Option<Trace>,
}

/// A process's exchange with one server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exchanged {
    /// Messages to the server.
    pub messages: u64,
    /// Shares sent or received in messages.
    pub shares: u64,
    /// Bytes of all shares.
    pub bytes: u64,
    /// Bytes of the shares that were copied in memory on the way.
    pub copied_bytes: u64,
    /// Bytes that the server read directly from the memory of the process.
    pub direct_bytes: u64,
}

impl<L: Link<Buffer = Region> + ?Sized + 'static> PoolVolume<L> {
    /// Takes part in a collective on an open file, and returns once all of it is done, and durable if its description
    /// says so. Otherwise, a sync by any of the processes makes it durable, or reports to this process that a server
    /// restarted before. Returns the exchange with each of the file's servers.
    ///
    /// Calls `go_on` first and then regularly. If `go_on` or anything else here fails, the other processes
    /// fail with the same reason.
    pub fn collective(
        &self,
        file: FileId,
        part: &CollectivePart,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) -> Result<Vec<Exchanged>> {
        let file = self.0.file(file)?;
        if part.spec.write {
            file.check_writable()?;
        }
        let grant = self.0.grant(&file)?;
        let asked_of = || file.asked_of(&file.length_calls(grant, &Region::empty()));
        if !self.0.is_compared(&file, &asked_of()) {
            self.0.know(&file)?;
        }
        let asked_of = asked_of();
        let (sender, receiver) = channel();
        let servers = file.layout.servers.iter().map(|_| Server::default()).collect();
        let mut work = Work {
            pool: self,
            file: &file,
            part,
            offered: (part.spec.write && part.offers_memory).then(|| Offered::new(&part.arrays)),
            sender,
            servers,
            ready: VecDeque::new(),
            unanswered: 0,
            began: Instant::now(),
            copies: 0,
            error: None,
        };
        for entry in 0..work.servers.len() {
            work.join(entry, grant);
        }
        // The work includes `go_on` and all checks, so that the other processes learn of any failure.
        let outcome = work.run(&receiver, go_on);
        if part.spec.write && work.servers.iter().any(|server| server.exchanged.bytes > 0) {
            self.0.note_written(&file);
        }
        outcome?;
        self.0.check_runs(&file, &asked_of)?;
        Ok(work.servers.into_iter().map(|server| server.exchanged).collect())
    }

    /// Reports through the servers of some collectives that this process cannot take part. This needs neither
    /// the file, nor a grant, nor a join. Collectives that have ended are not affected.
    ///
    /// Returns when the servers have answered, or after a short wait.
    pub fn abandon(&self, servers: &[ServerId], collectives: &[u128], rank: u64, error: &Error) {
        let (sender, receiver) = channel();
        for &server in servers {
            for &collective in collectives {
                let request = IoRequest::Abandon { collective, rank, error: error.clone() };
                let sender = sender.clone();
                // After the wait, nothing receives this.
                let done = Box::new(move |_: Answer<Region>| {
                    let _ = sender.send(());
                });
                self.0.servers.send(server, ("", None), request, Region::empty(), done);
            }
        }
        drop(sender);
        let until = Instant::now() + TELL_WAIT;
        while receiver.recv_timeout(until.saturating_duration_since(Instant::now())).is_ok() {}
    }
}

/// The progress of a process with one server.
#[derive(Default)]
struct Server {
    /// Number of join requests, each with another grant.
    joins: u32,
    /// Whether the server has reported that all processes joined.
    has_begun: bool,
    /// Whether the server reads long runs directly from the memory of the process.
    reads_memory: bool,
    /// The first round that was not examined yet.
    next_round: u64,
    /// Number of requested rounds without an answer.
    awaited: u64,
    /// Number of shares that are ready or in flight.
    moving: usize,
    /// Whether the end was requested.
    is_ending: bool,
    /// Whether the server needs no more messages: it has ended, or does not answer.
    is_over: bool,
    exchanged: Exchanged,
}

/// A share of a piece.
struct Move {
    entry: usize,
    piece: u64,
    share: Share,
}

/// The request that was answered.
enum Step {
    Join(Grant),
    Round(Vec<Move>),
    /// With the bounce buffer, if the share uses one.
    Share(Move, Option<Region>),
    End,
    Abandon,
}

struct Event {
    entry: usize,
    step: Step,
    reply: IoReply,
}

struct Work<'a, L: Link + ?Sized> {
    pool: &'a PoolVolume<L>,
    file: &'a Arc<PoolFile>,
    part: &'a CollectivePart,
    /// The offer to servers on this machine. It is valid until all of them have answered.
    offered: Option<Offered>,
    sender: Sender<Event>,
    servers: Vec<Server>,
    ready: VecDeque<Move>,
    unanswered: usize,
    began: Instant,
    /// Number of bounce buffers in flight.
    copies: usize,
    error: Option<Error>,
}

impl<'a, L: Link<Buffer = Region> + ?Sized + 'static> Work<'a, L> {
    fn join(&mut self, entry: usize, grant: Grant) {
        let (spec, rank) = (Box::new(self.part.spec.clone()), self.part.rank);
        let layout = &self.file.layout;
        let target = self.file.target(entry as u64);
        let is_local = self.pool.0.servers.link().is_local(layout.servers[entry]);
        let memory = self.offered.as_ref().filter(|_| is_local).map(|offered| offered.offer.clone());
        let request = IoRequest::Join { target, grant, spec, rank, memory };
        self.servers[entry].joins += 1;
        self.send(entry, request, Region::empty(), Step::Join(grant));
    }

    /// Joins with a new grant after a server refused the old one.
    fn join_again(&mut self, entry: usize, grant: &Grant) -> Result<()> {
        self.file.refused(grant);
        let grant = self.pool.0.grant(self.file)?;
        self.join(entry, grant);
        Ok(())
    }

    fn run(&mut self, events: &Receiver<Event>, go_on: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        match go_on().and_then(|()| self.prepare()) {
            Ok((plan, carrier)) => self.exchange(&plan, &carrier, events, go_on),
            Err(error) => self.fail(error),
        }
        // The memory of requests in flight returns to the caller only after the answers.
        while self.unanswered > 0 && events.recv().is_ok() {
            self.unanswered -= 1;
        }
        self.error.take().map_or(Ok(()), Err)
    }

    /// Checks the arrays of the process against the description.
    fn prepare(&self) -> Result<(CollectivePlan, Carrier<'a>)> {
        let CollectivePart { spec, rank, arrays, memory_bytes, .. } = self.part;
        let mut plan = CollectivePlan::new(spec, self.file.layout.stripes)?;
        plan.tell(*rank, &spec.schema)?;
        if *rank >= spec.ranks {
            return Err(Error::invalid(format!("of {} processes none has number {rank}", spec.ranks)));
        }
        let parts = spec.schema.parts(&spec.grid.shape, *rank);
        let need: Vec<Vec<u64>> =
            parts.iter().map(|axes| axes.iter().map(outcore_core::Axis::count).collect()).collect();
        let have: Vec<&[u64]> = arrays.iter().map(|array| array.shape.as_slice()).collect();
        if need != have {
            return Err(Error::invalid(format!(
                "by the memory schema process {rank} has arrays of the shapes {need:?}, have {have:?}"
            )));
        }
        if (*memory_bytes as u64) < PIECE_BYTES {
            return Err(Error::new(
                ErrorKind::Budget,
                format!(
                    "need {PIECE_BYTES} bytes of memory for a collective, have {memory_bytes}; raise memory="
                ),
            ));
        }
        let arena = Arena::new(*memory_bytes);
        Ok((plan, Carrier { arrays, item_bytes: spec.grid.item_bytes, arena }))
    }

    /// Handles answers until all servers have ended, or until an error.
    fn exchange(
        &mut self,
        plan: &CollectivePlan,
        carrier: &Carrier<'_>,
        events: &Receiver<Event>,
        go_on: &mut dyn FnMut() -> Result<()>,
    ) {
        let mut asked = Instant::now();
        while self.error.is_none() && self.unanswered > 0 {
            let done = match events.recv_timeout(INTERVAL) {
                Ok(event) => self.answered(plan, carrier, event).and_then(|()| self.start_moves(carrier)),
                Err(RecvTimeoutError::Timeout) => Ok(()),
                Err(RecvTimeoutError::Disconnected) => {
                    Err(Error::new(ErrorKind::Io, "a request of a collective was dropped unanswered"))
                }
            };
            // The caller can abort even if answers keep arriving.
            let is_due = asked.elapsed() >= INTERVAL;
            if is_due {
                asked = Instant::now();
            }
            if let Err(error) =
                done.and_then(|()| if is_due { go_on().and_then(|()| self.check_begun()) } else { Ok(()) })
            {
                self.fail(error);
            }
        }
    }

    fn answered(&mut self, plan: &CollectivePlan, carrier: &Carrier<'_>, event: Event) -> Result<()> {
        self.unanswered -= 1;
        let Event { entry, step, reply } = event;
        let server = &mut self.servers[entry];
        let is_copy = matches!(step, Step::Share(_, Some(_)));
        self.copies -= usize::from(is_copy);
        server.reads_memory |= matches!(step, Step::Join(_)) && reply == IoReply::ReadsMemory;
        if let (Step::Join(grant), IoReply::Failed(error)) = (&step, &reply)
            && error.kind == ErrorKind::Denied
            && server.joins < TRIES
        {
            return self.join_again(entry, grant);
        }
        if reply != IoReply::Done && !matches!((&step, &reply), (Step::Join(_), IoReply::ReadsMemory)) {
            let error = match reply {
                IoReply::Failed(error) => error,
                reply => unexpected(&reply),
            };
            // This server knows the error, or is unreachable. After a restart (`Lost`) it may have other
            // processes that wait.
            server.is_over = error.kind != ErrorKind::Lost;
            return Err(error);
        }
        match step {
            Step::Join(_) => server.has_begun = true,
            Step::Abandon => {}
            Step::Round(moves) => {
                server.awaited -= 1;
                self.ready.extend(moves);
            }
            Step::Share(moved, copy) => {
                server.moving -= 1;
                if let Some(mut buffer) = copy.filter(|_| !self.part.spec.write) {
                    carrier.scatter(&moved.share, &mut buffer)?;
                }
            }
            Step::End => server.is_over = true,
        }
        self.ask_on(plan, entry);
        Ok(())
    }

    /// Checks that the wait for all processes to join is not too long.
    fn check_begun(&self) -> Result<()> {
        let most = Duration::from_secs(self.part.spec.patience_s).saturating_mul(2) + JOIN_MARGIN;
        let servers = self.file.layout.servers.iter().zip(&self.servers);
        let missing: Vec<String> =
            servers.filter(|(_, server)| !server.has_begun).map(|(id, _)| id.0.to_string()).collect();
        if missing.is_empty() || self.began.elapsed() < most {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Io,
            format!(
                "server {} did not begin within {} s and gave no reason; check whether it restarts repeatedly, then write or read the array again",
                missing.join(" and server "),
                most.as_secs()
            ),
        ))
    }

    /// Requests the next rounds from a server, and the end after the last round.
    fn ask_on(&mut self, plan: &CollectivePlan, entry: usize) {
        let (collective, rank) = (self.part.spec.id, self.part.rank);
        while self.servers[entry].awaited < ROUNDS_AT_ONCE {
            let Some((round, moves)) = self.next_round(plan, entry) else { break };
            let server = &mut self.servers[entry];
            server.awaited += 1;
            server.moving += moves.len();
            let request = IoRequest::Await { collective, rank, round: Some(round) };
            self.send(entry, request, Region::empty(), Step::Round(moves));
        }
        let server = &mut self.servers[entry];
        if server.moving == 0 && !server.is_ending {
            server.is_ending = true;
            let request = IoRequest::Await { collective, rank, round: None };
            self.send(entry, request, Region::empty(), Step::End);
        }
    }

    /// The next round of a server in which the process has a share that needs a message.
    fn next_round(&mut self, plan: &CollectivePlan, entry: usize) -> Option<(u64, Vec<Move>)> {
        let server = &mut self.servers[entry];
        let item_bytes = self.part.spec.grid.item_bytes;
        let offer = self.offered.as_ref().map(|offered| &offered.offer).filter(|_| server.reads_memory);
        let number = entry as u64;
        while let Some(round) = plan.next_round(number, server.next_round) {
            server.next_round = round + 1;
            let exchanged = &mut server.exchanged;
            let share_of = |piece| {
                let share = plan.share(&plan.piece(number, piece), self.part.rank);
                if offer.is_some_and(|offer| offer.direct(&share, item_bytes).is_some()) {
                    exchanged.bytes += share.bytes;
                    exchanged.direct_bytes += share.bytes;
                    return None;
                }
                (share.bytes > 0).then_some(Move { entry, piece, share })
            };
            let moves: Vec<Move> = plan.pieces_of(number, round).filter_map(share_of).collect();
            if !moves.is_empty() {
                return Some((round, moves));
            }
        }
        None
    }

    /// Sends or requests ready shares, as far as memory allows.
    fn start_moves(&mut self, carrier: &Carrier<'_>) -> Result<()> {
        let (collective, rank, write) = (self.part.spec.id, self.part.rank, self.part.spec.write);
        while let Some(next) = self.ready.pop_front() {
            let carried = match carrier.carry(&next.share, write) {
                Err(error) if error.kind == ErrorKind::Budget && self.copies > 0 => {
                    self.ready.push_front(next);
                    break;
                }
                carried => carried?,
            };
            let (entry, piece, bytes) = (next.entry, next.piece, next.share.bytes);
            let exchanged = &mut self.servers[entry].exchanged;
            exchanged.shares += 1;
            exchanged.bytes += bytes;
            exchanged.copied_bytes += if carried.is_copy { bytes } else { 0 };
            self.copies += usize::from(carried.is_copy);
            let request = if write {
                IoRequest::Give { collective, rank, piece, bytes }
            } else {
                IoRequest::Take { collective, rank, piece, bytes }
            };
            let copy = carried.is_copy.then(|| carried.buffer.clone());
            self.send(entry, request, carried.buffer, Step::Share(next, copy));
        }
        Ok(())
    }

    /// Reports the error to the other processes, through all servers that may not know it.
    fn fail(&mut self, error: Error) {
        let (collective, rank) = (self.part.spec.id, self.part.rank);
        self.ready.clear();
        for entry in 0..self.servers.len() {
            if !self.servers[entry].is_over {
                let request = IoRequest::Abandon { collective, rank, error: error.clone() };
                self.send(entry, request, Region::empty(), Step::Abandon);
            }
        }
        self.error = Some(error);
    }

    /// Records the time of a request in the trace: shares are transfers, and all others are waits.
    fn recorder(&self, entry: usize, request: &IoRequest) -> impl FnOnce(&Answer<Region>) + use<L> {
        let (kind, piece, bytes) = match request {
            IoRequest::Give { piece, bytes, .. } => (SpanKind::Write, *piece, *bytes),
            IoRequest::Take { piece, bytes, .. } => (SpanKind::Read, *piece, *bytes),
            _ => (SpanKind::Wait, 0, 0),
        };
        let (trace, offset) = (self.part.trace.clone(), piece * self.part.spec.piece_bytes);
        move |answer| {
            if let Some(trace) = trace {
                let (start_ns, end_ns) = (answer.started_ns, answer.finished_ns);
                trace.record(Span { kind, array: entry as u32, start_ns, end_ns, offset, bytes });
            }
        }
    }

    fn send(&mut self, entry: usize, request: IoRequest, buffer: Region, step: Step) {
        self.unanswered += 1;
        self.servers[entry].exchanged.messages += 1;
        let sender = self.sender.clone();
        let record = self.recorder(entry, &request);
        let done = Box::new(move |answer: Answer<Region>| {
            record(&answer);
            let Answer { reply, buffer, .. } = answer;
            // The receiver may reuse the memory as soon as it learns of the answer.
            drop(buffer);
            // The receiver is gone only if its thread has panicked.
            let _ = sender.send(Event { entry, step, reply });
        });
        let is_change =
            self.part.spec.needs_sync() && matches!(request, IoRequest::Await { round: None, .. });
        let about = (&*self.file.path, is_change.then_some(self.file.handle));
        self.pool.0.servers.send(self.file.layout.servers[entry], about, request, buffer, done);
    }
}
