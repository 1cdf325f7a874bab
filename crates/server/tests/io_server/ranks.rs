//! Processes of a collective, simulated one message at a time, in random order.

use std::collections::VecDeque;

use outcore_core::crash_disk::MemoryBuffer;
use outcore_core::crash_disk::Random;
use outcore_core::{
    ChunkOrder, CollectivePlan, CollectiveSpec, Distribution, Error, GridSpec, Handle, IoReply, IoRequest,
    MemoryOffer, MemorySchema, PIECE_BYTES, ROUND_PIECES, Result, StorageOrder, Stripes, Target, Tile,
};
use outcore_server::io_server::{Caller, data_path};

use crate::world::{World, grant, noise, target};

pub const ITEM: u64 = 8;

/// 20 MiB in 7 chunks, the last of which has padding: three rounds of pieces.
pub fn grid() -> GridSpec {
    GridSpec {
        shape: vec![20, 256, 512],
        chunk: vec![3, 256, 512],
        item_bytes: ITEM,
        storage: StorageOrder::C,
        chunk_order: ChunkOrder::RowMajor,
        slot_align_bytes: 1 << 16,
        column_places: None,
        growing: false,
    }
}

pub fn spec(id: u128, write: bool, ranks: u64, schema: MemorySchema) -> CollectiveSpec {
    let (piece_bytes, round_pieces) = (PIECE_BYTES, ROUND_PIECES);
    CollectiveSpec {
        id,
        write,
        ranks,
        grid: grid(),
        shard: 0,
        schema,
        patience_s: 30,
        durable: true,
        skips_disk: false,
        piece_bytes,
        round_pieces,
    }
}

pub fn mesh(mesh: &[u64], dims: [Distribution; 3]) -> MemorySchema {
    MemorySchema::Mesh { mesh: mesh.to_vec(), dims: dims.to_vec() }
}

pub fn quarters() -> MemorySchema {
    mesh(&[2, 2], [Distribution::Whole, Distribution::Block, Distribution::Block])
}

pub fn stripes() -> Stripes {
    target(1).stripes
}

/// The offset in the file of each element of a tile, in transfer order. Here each data file is a whole file.
pub fn offsets(tile: &Tile, piece_offset: u64) -> Vec<usize> {
    tile.levels.iter().fold(vec![(piece_offset + tile.at) as usize], |found, level| {
        let step = level.piece_step as usize;
        found.iter().flat_map(|&at| (0..level.count as usize).map(move |i| at + i * step)).collect()
    })
}

pub enum Doing {
    Join,
    Round(usize),
    Share { round: usize, places: Vec<usize> },
    End,
}

/// A process: its pending calls, and its future ones.
pub struct Rank {
    pub rank: u64,
    pub spec: CollectiveSpec,
    pub rounds: Vec<(u64, Vec<u64>)>,
    pub asked: VecDeque<(u64, Doing)>,
    pub left: usize,
    pub messages: u64,
    pub result: Option<Result<()>>,
    /// Whether the test, rather than the process, asks for the result.
    pub holds_end: bool,
    memory: Option<MemoryOffer>,
    /// Whether the server reads its memory.
    pub is_read: bool,
}

impl Rank {
    pub fn join(world: &mut World, handle: u64, spec: &CollectiveSpec, rank: u64) -> Self {
        Self::join_with(world, handle, spec, rank, None, None)
    }

    /// Joins like `join`, with an offer of memory, and with the caller whose memory the server reads.
    pub fn join_with(
        world: &mut World,
        handle: u64,
        spec: &CollectiveSpec,
        rank: u64,
        memory: Option<MemoryOffer>,
        caller: Caller<MemoryBuffer>,
    ) -> Self {
        Self::join_as(world, target(handle), spec, rank, memory, caller)
    }

    /// Joins like `join`, and knows a generation of the data file.
    pub fn join_knowing(
        world: &mut World,
        handle: u64,
        generation: u64,
        of: &CollectiveSpec,
        rank: u64,
    ) -> Self {
        Self::join_as(world, Target { generation, ..target(handle) }, of, rank, None, None)
    }

    fn join_as(
        world: &mut World,
        target: Target,
        spec: &CollectiveSpec,
        rank: u64,
        memory: Option<MemoryOffer>,
        caller: Caller<MemoryBuffer>,
    ) -> Self {
        let plan = CollectivePlan::new(spec, stripes()).unwrap();
        let rounds = plan.rounds_of(0, rank);
        let left = rounds.iter().map(|(_, pieces)| pieces.len()).sum();
        let grant = grant(target.handle.0);
        let join =
            IoRequest::Join { target, grant, spec: Box::new(spec.clone()), rank, memory: memory.clone() };
        let asked = VecDeque::from([(world.call_of(caller, join, vec![]), Doing::Join)]);
        Self {
            rank,
            spec: spec.clone(),
            rounds,
            asked,
            left,
            messages: 1,
            result: None,
            holds_end: false,
            memory,
            is_read: false,
        }
    }

    fn ask(&mut self, world: &mut World, request: IoRequest, payload: Vec<u8>, doing: Doing) {
        self.messages += 1;
        let call = world.call(request, payload);
        self.asked.push_back((call, doing));
    }

    pub fn await_round(&mut self, world: &mut World, round: Option<usize>) {
        let number = round.map(|round| self.rounds[round].0);
        let request = IoRequest::Await { collective: self.spec.id, rank: self.rank, round: number };
        self.ask(world, request, vec![], round.map_or(Doing::End, Doing::Round));
    }

    /// Handles one answer that has arrived; returns `false` if there is none. `image` is the content of the file
    /// before a read or after a write.
    pub fn step(&mut self, world: &mut World, image: &mut [u8]) -> bool {
        for i in 0..self.asked.len() {
            if let Some((reply, payload)) = world.answer(self.asked[i].0) {
                let (_, doing) = self.asked.remove(i).unwrap();
                if let IoReply::Failed(error) = reply {
                    self.result.get_or_insert(Err(error));
                } else if self.result.is_none() {
                    if reply == IoReply::ReadsMemory {
                        self.leave_out_what_is_read();
                    }
                    self.answered(world, doing, &payload.to_vec(), image);
                }
                return true;
            }
        }
        false
    }

    /// Removes the shares that the server reads. Only shares in short runs travel by message.
    fn leave_out_what_is_read(&mut self) {
        self.is_read = true;
        let plan = CollectivePlan::new(&self.spec, stripes()).unwrap();
        let offer = self.memory.as_ref().unwrap();
        for (_, pieces) in &mut self.rounds {
            pieces.retain(|&piece| {
                let share = plan.share(&plan.piece(0, piece), self.rank);
                offer.direct(&share, ITEM).is_none()
            });
        }
        self.rounds.retain(|(_, pieces)| !pieces.is_empty());
        self.left = self.rounds.iter().map(|(_, pieces)| pieces.len()).sum();
    }

    fn answered(&mut self, world: &mut World, doing: Doing, payload: &[u8], image: &mut [u8]) {
        let id = self.spec.id;
        match doing {
            Doing::Join => {
                for round in 0..self.rounds.len().min(2) {
                    self.await_round(world, Some(round));
                }
            }
            Doing::Round(round) => {
                let plan = CollectivePlan::new(&self.spec, stripes()).unwrap();
                for piece in self.rounds[round].1.clone() {
                    let planned = plan.piece(0, piece);
                    let share = plan.share(&planned, self.rank);
                    let places: Vec<usize> =
                        share.tiles.iter().flat_map(|tile| offsets(tile, planned.offset)).collect();
                    let (rank, bytes) = (self.rank, share.bytes);
                    let item = |&at: &usize| image[at..at + ITEM as usize].to_vec();
                    let (request, payload) = if self.spec.write {
                        (
                            IoRequest::Give { collective: id, rank, piece, bytes },
                            places.iter().flat_map(item).collect(),
                        )
                    } else {
                        (IoRequest::Take { collective: id, rank, piece, bytes }, vec![0xEE; bytes as usize])
                    };
                    self.ask(world, request, payload, Doing::Share { round, places });
                }
            }
            Doing::Share { round, places, .. } => {
                if !self.spec.write {
                    for (at, item) in places.iter().zip(payload.chunks(ITEM as usize)) {
                        image[*at..at + item.len()].copy_from_slice(item);
                    }
                }
                self.left -= 1;
                let others = self
                    .asked
                    .iter()
                    .any(|(_, doing)| matches!(doing, Doing::Share { round: r, .. } if *r == round));
                if !others && round + 2 < self.rounds.len() {
                    self.await_round(world, Some(round + 2));
                }
            }
            Doing::End => self.result = Some(Ok(())),
        }
        let has_asked_for_end = self.asked.iter().any(|(_, doing)| matches!(doing, Doing::End));
        if self.left == 0 && self.result.is_none() && !has_asked_for_end && !self.holds_end {
            self.await_round(world, None);
        }
    }
}

/// Runs all processes in random order until nothing more happens.
pub fn settle(world: &mut World, ranks: &mut [Rank], image: &mut [u8]) {
    loop {
        let mut moved = false;
        let first = world.random.below(ranks.len() as u64) as usize;
        for i in 0..ranks.len() {
            let number = (first + i) % ranks.len();
            if world.random.below(3) > 0 {
                moved |= ranks[number].step(world, image);
            }
        }
        for _ in 0..world.random.below(8) {
            moved |= world.turn();
        }
        if !moved {
            let stuck = !ranks.iter_mut().any(|rank| rank.step(world, image));
            if stuck && !world.turn() {
                return;
            }
        }
    }
}

pub fn run(world: &mut World, handle: u64, spec: &CollectiveSpec, image: &mut [u8]) -> Vec<Rank> {
    let mut ranks: Vec<Rank> = (0..spec.ranks).map(|rank| Rank::join(world, handle, spec, rank)).collect();
    settle(world, &mut ranks, image);
    ranks
}

pub fn results(ranks: &[Rank]) -> Vec<Result<()>> {
    ranks.iter().map(|rank| rank.result.clone().unwrap_or(Err(Error::invalid("waits")))).collect()
}

/// The content of a file with the array, without the padding at its end, which nobody writes.
pub fn image(seed: u64) -> Vec<u8> {
    noise(&mut Random::new(seed), 20 << 20)
}

pub fn content(world: &World, handle: u64) -> Vec<u8> {
    world.disk.content(&data_path(Handle(handle))).unwrap()
}
