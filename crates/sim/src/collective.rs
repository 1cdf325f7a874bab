//! A collective of the simulation, and what each client does in it.

use std::collections::BTreeSet;

use std::sync::Arc;

use outcore_core::crash_disk::Random;
use outcore_core::{
    ChunkOrder, CollectivePlan, CollectiveSpec, Distribution, Error, ErrorKind, Grant, GridSpec, IoReply,
    IoRequest, MemorySchema, StorageOrder, Target, Tile,
};

use crate::client::SimFile;
use crate::model::{WriteId, pattern};
use crate::rank_memory::RankMemory;

/// Seconds of the simulation that servers wait for a client.
const PATIENCE_S: u64 = 3;

/// What all clients of a collective do together.
#[derive(Clone, Debug)]
pub struct Collective {
    /// As each of them describes it.
    pub spec: CollectiveSpec,
    /// Which file.
    pub file: usize,
    /// What is written; `None`: it is read.
    pub write: Option<WriteId>,
    /// The clients, in the order of their ranks.
    pub clients: Vec<usize>,
    /// Those that have not begun yet.
    pub missing: BTreeSet<usize>,
    /// Ranks that offer their memory.
    pub offering: BTreeSet<u64>,
}

impl Collective {
    /// A file of bytes, distributed over clients at random.
    pub fn new(
        random: &mut Random,
        id: u128,
        file: (usize, &SimFile),
        write: Option<WriteId>,
        clients: Vec<usize>,
    ) -> Self {
        let (number, file) = file;
        let length = file.model.length();
        let ranks = clients.len() as u64;
        let processes = random.between(1, ranks);
        let distribution = if random.once_in(2) {
            Distribution::Block
        } else {
            Distribution::Cyclic(random.between(1, length))
        };
        let grid = GridSpec {
            shape: vec![length],
            chunk: vec![length],
            item_bytes: 1,
            storage: StorageOrder::C,
            chunk_order: ChunkOrder::RowMajor,
            slot_align_bytes: 1,
            column_places: None,
            growing: false,
        };
        let schema = MemorySchema::Mesh { mesh: vec![processes], dims: vec![distribution] };
        let spec = CollectiveSpec {
            id,
            write: write.is_some(),
            ranks,
            grid,
            shard: 0,
            schema,
            patience_s: PATIENCE_S,
            skips_disk: false,
        };
        let missing = clients.iter().copied().collect();
        let offering = (0..ranks).filter(|_| random.once_in(2)).collect();
        Self { spec, file: number, write, clients, missing, offering }
    }
}

/// A request that a client sends next: to which entry, what, and its payload.
pub type Next = (u64, IoRequest, Vec<u8>);

/// One client in it.
#[derive(Clone, Debug)]
pub struct Rank {
    id: u128,
    rank: u64,
    write: Option<WriteId>,
    plan: CollectivePlan,
    memory: Option<Arc<RankMemory>>,
    /// Of each entry.
    parts: Vec<Part>,
    has_failed: bool,
}

/// What one server has for it.
#[derive(Clone, Debug)]
struct Part {
    /// Without those that the server reads itself.
    rounds: Vec<(u64, Vec<u64>)>,
    next_round: usize,
    shares_left: usize,
}

impl Rank {
    /// It joins at every server.
    pub fn join(
        collective: &Collective,
        client: usize,
        file: &SimFile,
        grant: Grant,
    ) -> Option<(Self, Vec<Next>)> {
        let rank = collective.clients.iter().position(|&other| other == client)? as u64;
        let stripes = file.layout.stripes;
        let plan = CollectivePlan::new(&collective.spec, stripes).ok()?;
        let offering = collective.write.filter(|_| collective.offering.contains(&rank));
        let memory = offering.map(|write| Arc::new(RankMemory::new(&collective.spec, &plan, rank, write)));
        let (mut parts, mut nexts) = (vec![], vec![]);
        for entry in 0..stripes.count() {
            let rounds = plan.rounds_of(entry, rank);
            let shares_left = rounds.iter().map(|(_, pieces)| pieces.len()).sum();
            parts.push(Part { rounds, next_round: 0, shares_left });
            let target = Target { handle: file.handle, stripes, entry };
            let spec = Box::new(collective.spec.clone());
            let offer = memory.as_ref().map(|memory| memory.offer.clone());
            nexts.push((entry, IoRequest::Join { target, grant, spec, rank, memory: offer }, vec![]));
        }
        let (id, write) = (collective.spec.id, collective.write);
        Some((Self { id, rank, write, plan, memory, parts, has_failed: false }, nexts))
    }

    /// What is written; `None`: it reads.
    pub fn write(&self) -> Option<WriteId> {
        self.write
    }

    /// What servers may read.
    pub fn memory(&self) -> Option<Arc<RankMemory>> {
        self.memory.clone()
    }

    /// Whether it still waits for the answer to a request: who has given up waits for shares, which have its memory, and
    /// until it is known that it has.
    pub fn waits_for(&self, request: &IoRequest) -> bool {
        !self.has_failed || !matches!(request, IoRequest::Join { .. } | IoRequest::Await { .. })
    }

    /// A request was answered: what it sends then.
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
        let Some(memory) = &self.memory else { return };
        let part = &mut self.parts[entry as usize];
        for (_, pieces) in &mut part.rounds {
            pieces.retain(|&piece| {
                let share = self.plan.share(&self.plan.piece(entry, piece), self.rank);
                memory.offer.direct(&share, 1).is_none()
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

    /// It tells every server why it does not go on, once.
    pub fn give_up(&mut self, error: &Error) -> Vec<Next> {
        if std::mem::replace(&mut self.has_failed, true) {
            return vec![];
        }
        let error = Error::new(ErrorKind::Io, error.message.clone());
        let (collective, rank) = (self.id, self.rank);
        let abandon = |entry| (entry, IoRequest::Abandon { collective, rank, error: error.clone() }, vec![]);
        (0..self.parts.len() as u64).map(abandon).collect()
    }

    /// Where in the file the bytes of its share of a piece are, in the order in which they travel.
    pub fn offsets(&self, entry: u64, piece: u64) -> Vec<u64> {
        let planned = self.plan.piece(entry, piece);
        let share = self.plan.share(&planned, self.rank);
        let locals = share.tiles.iter().flat_map(bytes_of);
        locals.filter_map(|at| self.plan.stripes().offset_of(entry, planned.offset + at)).collect()
    }
}

/// The bytes of a tile of elements of one byte, in a piece.
fn bytes_of(tile: &Tile) -> Vec<u64> {
    tile.levels.iter().fold(vec![tile.at], |found, level| {
        found.iter().flat_map(|&at| (0..level.count).map(move |i| at + i * level.piece_step)).collect()
    })
}
