//! A collective of the simulation, and the part of each client in it.

use std::collections::BTreeSet;

use std::sync::Arc;

use outcore_core::crash_disk::Random;
use outcore_core::{
    CollectivePlan, CollectiveSpec, Error, ErrorKind, Grant, IoReply, IoRequest, MemorySchema,
    PIECE_UNIT_BYTES,
};

use crate::client::SimFile;
use crate::elements::{draw, draw_own, offsets_of, owned, padding_of, runs_of};
use crate::model::{WriteId, pattern};
use crate::rank_memory::RankMemory;

/// Seconds of simulated time for which servers wait for a client.
pub const PATIENCE_S: u64 = 3;

/// A collective operation of several clients.
#[derive(Clone, Debug)]
pub struct Collective {
    /// The description that every client sends, apart from `own`.
    pub spec: CollectiveSpec,
    /// The memory schema of each client, if clients describe their own.
    own: Vec<MemorySchema>,
    /// Index of the file.
    pub file: usize,
    /// The write; `None` if the collective reads.
    pub write: Option<WriteId>,
    /// The clients, in the order of their ranks.
    pub clients: Vec<usize>,
    /// The clients that have not begun yet.
    pub missing: BTreeSet<usize>,
    /// The ranks that offer their memory.
    pub offering: BTreeSet<u64>,
    /// Runs of the file's bytes that clients own.
    pub covered: Arc<[(u64, u64)]>,
    /// Runs within chunks that belong to no element. A write may replace them by zeros.
    pub padding: Vec<(u64, u64)>,
}

impl Collective {
    /// Draws an array in a file and its random distribution over clients.
    pub fn new(
        random: &mut Random,
        id: u128,
        file: (usize, &SimFile),
        write: Option<WriteId>,
        clients: Vec<usize>,
    ) -> Self {
        let (number, file) = file;
        let ranks = clients.len() as u64;
        let ((grid, schema), own) = if random.once_in(3) {
            let (grid, own) = draw_own(random, file.model.length(), ranks);
            ((grid, own[0].clone()), own)
        } else {
            (draw(random, file.model.length(), ranks), vec![])
        };
        let parts = |rank| owned(own.get(rank as usize).unwrap_or(&schema), &grid.shape, rank);
        let offsets = (0..ranks).flat_map(parts).flat_map(|axes| offsets_of(&grid, &axes));
        let covered = runs_of(&offsets.collect::<Vec<_>>());
        let padding = padding_of(&grid);
        let spec = CollectiveSpec {
            id,
            write: write.is_some(),
            ranks,
            grid,
            shard: 0,
            schema,
            patience_s: PATIENCE_S,
            durable: random.once_in(2),
            skips_disk: false,
            piece_bytes: PIECE_UNIT_BYTES << random.below(2),
            round_pieces: random.between(1, 2),
        };
        let missing = clients.iter().copied().collect();
        let offering = (0..ranks).filter(|_| random.once_in(2)).collect();
        Self { spec, own, file: number, write, clients, missing, offering, covered: covered.into(), padding }
    }

    /// The description that a client sends.
    fn spec_of(&self, rank: u64) -> CollectiveSpec {
        let schema = self.own.get(rank as usize).unwrap_or(&self.spec.schema).clone();
        CollectiveSpec { schema, ..self.spec.clone() }
    }
}

/// The next request of a client: entry, request and payload.
pub type Next = (u64, IoRequest, Vec<u8>);

/// A client's part in a collective.
#[derive(Clone, Debug)]
pub struct Rank {
    id: u128,
    rank: u64,
    write: Option<WriteId>,
    plan: CollectivePlan,
    memory: Arc<RankMemory>,
    is_offering: bool,
    needs_sync: bool,
    covered: Arc<[(u64, u64)]>,
    /// The parts of the servers, by entry.
    parts: Vec<Part>,
    has_failed: bool,
}

/// A client's exchange with one server.
#[derive(Clone, Debug)]
struct Part {
    /// Its rounds with their pieces, without those that the server reads directly.
    rounds: Vec<(u64, Vec<u64>)>,
    next_round: usize,
    shares_left: usize,
}

impl Rank {
    /// Starts a client's part. Returns it with the requests that join every server.
    pub fn join(
        collective: &Collective,
        client: usize,
        file: &SimFile,
        grant: Grant,
    ) -> Option<(Self, Vec<Next>)> {
        let rank = collective.clients.iter().position(|&other| other == client)? as u64;
        let stripes = file.layout.stripes;
        let spec = collective.spec_of(rank);
        let mut plan = CollectivePlan::new(&spec, stripes).ok()?;
        plan.tell(rank, &spec.schema).ok()?;
        let is_offering = collective.write.is_some() && collective.offering.contains(&rank);
        let memory = Arc::new(RankMemory::new(&spec, rank, collective.write.unwrap_or(0)));
        let (mut parts, mut nexts) = (vec![], vec![]);
        for entry in 0..stripes.count() {
            let rounds = plan.rounds_of(entry, rank);
            let shares_left = rounds.iter().map(|(_, pieces)| pieces.len()).sum();
            parts.push(Part { rounds, next_round: 0, shares_left });
            let target = file.target(entry);
            let spec = Box::new(spec.clone());
            let offer = is_offering.then(|| memory.offer.clone());
            nexts.push((entry, IoRequest::Join { target, grant, spec, rank, memory: offer }, vec![]));
        }
        let (id, write, covered) = (collective.spec.id, collective.write, collective.covered.clone());
        let needs_sync = spec.needs_sync();
        let has_failed = false;
        Some((
            Self { id, rank, write, plan, memory, is_offering, needs_sync, covered, parts, has_failed },
            nexts,
        ))
    }

    /// The number of the collective.
    pub fn id(&self) -> u128 {
        self.id
    }

    /// The write; `None` if the collective reads.
    pub fn write(&self) -> Option<WriteId> {
        self.write
    }

    /// Whether it writes, and a sync must make its write durable.
    pub fn needs_sync(&self) -> bool {
        self.needs_sync
    }

    /// The memory that servers may read.
    pub fn memory(&self) -> Option<Arc<RankMemory>> {
        self.is_offering.then(|| self.memory.clone())
    }

    /// Whether a server needs several rounds.
    pub fn has_rounds(&self) -> bool {
        (0..self.plan.stripes().count()).any(|entry| self.plan.rounds(entry) > 1)
    }

    /// Runs of the file's bytes that clients own.
    pub fn covered(&self) -> Arc<[(u64, u64)]> {
        self.covered.clone()
    }

    /// Whether the client still waits for the answer to a request. After giving up, it waits only for shares,
    /// which use its memory, and for the answers to its abort.
    pub fn waits_for(&self, request: &IoRequest) -> bool {
        !self.has_failed || !matches!(request, IoRequest::Join { .. } | IoRequest::Await { .. })
    }

    /// Handles an answer. Returns the next requests.
    pub fn answered(&mut self, entry: u64, request: &IoRequest, reply: &IoReply) -> Vec<Next> {
        if let IoReply::Failed(error) = reply {
            return self.give_up(error);
        }
        if self.has_failed {
            return vec![];
        }
        let mut nexts = vec![];
        let (collective, rank) = (self.id, self.rank);
        match request {
            IoRequest::Join { .. } => {
                if *reply == IoReply::ReadsMemory {
                    self.leave_out_what_is_read(entry);
                }
                nexts.extend(self.await_next(entry));
                nexts.extend(self.await_next(entry));
            }
            IoRequest::Await { round: Some(round), .. } => {
                let rounds = &self.parts[entry as usize].rounds;
                let pieces = rounds.iter().find(|(number, _)| number == round);
                for &piece in pieces.map(|(_, pieces)| pieces).into_iter().flatten() {
                    let offsets = self.offsets(entry, piece);
                    let bytes = offsets.len() as u64;
                    nexts.push(match self.write {
                        Some(write) => {
                            let payload = offsets.iter().map(|&offset| pattern(write, offset)).collect();
                            (entry, IoRequest::Give { collective, rank, piece, bytes }, payload)
                        }
                        None => (
                            entry,
                            IoRequest::Take { collective, rank, piece, bytes },
                            vec![0; offsets.len()],
                        ),
                    });
                }
                nexts.extend(self.await_next(entry));
            }
            IoRequest::Give { .. } | IoRequest::Take { .. } => self.parts[entry as usize].shares_left -= 1,
            _ => return vec![],
        }
        let is_about_end = !matches!(request, IoRequest::Await { .. });
        if is_about_end && self.parts[entry as usize].shares_left == 0 {
            nexts.push((entry, IoRequest::Await { collective, rank, round: None }, vec![]));
        }
        nexts
    }

    fn leave_out_what_is_read(&mut self, entry: u64) {
        let part = &mut self.parts[entry as usize];
        for (_, pieces) in &mut part.rounds {
            pieces.retain(|&piece| {
                let share = self.plan.share(&self.plan.piece(entry, piece), self.rank);
                self.memory.offer.direct(&share, 1).is_none()
            });
        }
        part.rounds.retain(|(_, pieces)| !pieces.is_empty());
        part.shares_left = part.rounds.iter().map(|(_, pieces)| pieces.len()).sum();
    }

    fn await_next(&mut self, entry: u64) -> Option<Next> {
        let (collective, rank) = (self.id, self.rank);
        let part = &mut self.parts[entry as usize];
        let (round, _) = part.rounds.get(part.next_round)?;
        part.next_round += 1;
        Some((entry, IoRequest::Await { collective, rank, round: Some(*round) }, vec![]))
    }

    /// Aborts the collective once, and tells every server why.
    pub fn give_up(&mut self, error: &Error) -> Vec<Next> {
        if std::mem::replace(&mut self.has_failed, true) {
            return vec![];
        }
        let error = Error::new(ErrorKind::Io, error.message.clone());
        let (collective, rank) = (self.id, self.rank);
        let abandon = |entry| (entry, IoRequest::Abandon { collective, rank, error: error.clone() }, vec![]);
        (0..self.parts.len() as u64).map(abandon).collect()
    }

    /// The offsets in the file of the bytes in its share of a piece, in transfer order, which is their order in
    /// memory.
    pub fn offsets(&self, entry: u64, piece: u64) -> Vec<u64> {
        let share = self.plan.share(&self.plan.piece(entry, piece), self.rank);
        share.tiles.iter().flat_map(|tile| self.memory.offsets_of(tile)).collect()
    }
}
