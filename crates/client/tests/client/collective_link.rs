//! A link to servers that take part in collectives, with data files in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use outcore_core::{
    Answer, Buffer, CollectivePlan, CollectiveSpec, Error, ErrorKind, Incarnation, IoReply, IoRequest, Link,
    ManagerReply, ManagerRequest, MemoryOffer, OnAnswer, Result, ServerId, Stripes,
};
use outcore_memory::Region;

use crate::pool_link::{self, MemoryLink};

pub const ITEM_BYTES: u64 = 8;

/// An unanswered call.
type Waiting = (Region, OnAnswer<Region>);

/// A collective on one server.
pub struct Joined {
    spec: CollectiveSpec,
    plan: CollectivePlan,
    entry: u64,
    pub ranks: BTreeSet<u64>,
    offers: BTreeMap<u64, MemoryOffer>,
    at_join: Vec<(u64, Waiting)>,
    at_end: Vec<Waiting>,
    /// The data file from the first piece with a share to the last.
    data: Vec<u8>,
    first: u64,
    left: u64,
    failed: Option<Error>,
}

/// Servers with data files in memory, so that every round is ready immediately.
#[derive(Default)]
pub struct Servers {
    pub joined: Mutex<BTreeMap<ServerId, Joined>>,
    /// The data files before and after the collective.
    pub files: Mutex<BTreeMap<u64, Vec<u8>>>,
    /// Whether the servers are on the same machine as the processes, and read their memory.
    pub is_local: AtomicBool,
    /// The error with which a server answers to the share of a rank.
    pub fault: Mutex<Option<(ServerId, u64, Error)>>,
    /// Number of joins that are still refused, as if their grants had expired.
    pub refused_joins: Mutex<u32>,
    /// The server and the rank of each abort.
    pub abandoned: Mutex<Vec<(ServerId, u64)>>,
}

pub struct CollectiveLink {
    pub names: MemoryLink,
    pub servers: Servers,
}

impl Servers {
    fn serve(
        &self,
        server: ServerId,
        incarnation: Incarnation,
        request: IoRequest,
        mut buffer: Region,
        done: OnAnswer<Region>,
    ) {
        if let IoRequest::Join { .. } = request {
            let mut left = self.refused_joins.lock().unwrap();
            if *left > 0 {
                *left -= 1;
                drop(left);
                let reply = IoReply::Failed(Error::new(ErrorKind::Denied, "the grant is over"));
                return done(Answer { reply, buffer, incarnation, started_ns: 0, finished_ns: 0 });
            }
        }
        let mut all = self.joined.lock().unwrap();
        let mut answers: Vec<(Waiting, Result<IoReply>)> = vec![];
        match request {
            IoRequest::Join { target, spec, rank, memory, .. } => {
                let joined =
                    all.entry(server).or_insert_with(|| self.begin(&spec, target.stripes, target.entry));
                joined.ranks.insert(rank);
                joined.at_join.push((rank, (buffer, done)));
                assert!(memory.is_none() || self.is_local.load(Ordering::Relaxed), "others need not know");
                joined.offers.extend(memory.map(|memory| (rank, memory)));
                let is_full = joined.ranks.len() as u64 == spec.ranks;
                if *spec != joined.spec && joined.failed.is_none() {
                    joined.failed = Some(Error::invalid(format!("process {rank} does not agree")));
                }
                if is_full && joined.failed.is_none() {
                    joined.read_memory();
                    let joining = std::mem::take(&mut joined.at_join).into_iter();
                    answers.extend(joining.map(|(rank, waiting)| {
                        let is_read = joined.offers.contains_key(&rank);
                        (waiting, Ok(if is_read { IoReply::ReadsMemory } else { IoReply::Done }))
                    }));
                }
            }
            IoRequest::Await { round, .. } => {
                let joined = all.get_mut(&server).unwrap();
                match (&joined.failed, round) {
                    (Some(error), _) => answers.push(((buffer, done), Err(error.clone()))),
                    (None, Some(_)) => answers.push(((buffer, done), Ok(IoReply::Done))),
                    (None, None) => joined.at_end.push((buffer, done)),
                }
            }
            IoRequest::Give { rank, piece, bytes, .. } | IoRequest::Take { rank, piece, bytes, .. } => {
                let joined = all.get_mut(&server).unwrap();
                let fault = self.fault.lock().unwrap().clone();
                let fault = fault.filter(|(of, whose, _)| (*of, *whose) == (server, rank));
                if let Some((_, _, error)) = fault {
                    joined.failed.get_or_insert(error);
                }
                if let Some(error) = joined.failed.clone() {
                    answers.push(((buffer, done), Err(error)));
                } else {
                    assert_eq!((buffer.len() as u64, bytes), (bytes, bytes));
                    joined.move_share(rank, piece, &mut buffer);
                    joined.left -= bytes;
                    answers.push(((buffer, done), Ok(IoReply::Done)));
                }
            }
            IoRequest::Abandon { rank, error, .. } => {
                self.abandoned.lock().unwrap().push((server, rank));
                // It may have ended.
                if let Some(joined) = all.get_mut(&server) {
                    joined.failed.get_or_insert(Error::new(error.kind, format!("process {rank}: {error}")));
                }
                answers.push(((buffer, done), Ok(IoReply::Done)));
            }
            request => panic!("{request:?}"),
        }
        if let Some(joined) = all.get_mut(&server)
            && joined.left == 0
            && joined.at_end.len() as u64 == joined.spec.ranks
        {
            self.files.lock().unwrap().insert(joined.entry, std::mem::take(&mut joined.data));
            answers.extend(joined.at_end.drain(..).map(|waiting| (waiting, Ok(IoReply::Done))));
            all.remove(&server);
        }
        if let Some(joined) = all.get_mut(&server)
            && let Some(error) = joined.failed.clone()
        {
            let joining = joined.at_join.drain(..).map(|(_, waiting)| waiting);
            let waiting = joining.chain(joined.at_end.drain(..));
            answers.extend(waiting.map(|waiting| (waiting, Err(error.clone()))));
        }
        drop(all);
        for ((buffer, done), result) in answers {
            let reply = result.unwrap_or_else(IoReply::Failed);
            done(Answer { reply, buffer, incarnation, started_ns: 0, finished_ns: 0 });
        }
    }

    fn begin(&self, spec: &CollectiveSpec, stripes: Stripes, entry: u64) -> Joined {
        let plan = CollectivePlan::new(spec, stripes).unwrap();
        let pieces: Vec<_> = (0..spec.ranks)
            .flat_map(|rank| plan.rounds_of(entry, rank).into_iter().map(move |(_, pieces)| (rank, pieces)))
            .flat_map(|(rank, pieces)| pieces.into_iter().map(move |number| (rank, number)))
            .map(|(rank, number)| (rank, plan.piece(entry, number)))
            .collect();
        let left = pieces.iter().map(|(rank, piece)| plan.share(piece, *rank).bytes).sum();
        let first = pieces.iter().map(|(_, piece)| piece.offset).min().unwrap_or(0);
        let end = pieces.iter().map(|(_, piece)| piece.offset + piece.bytes).max().unwrap_or(0);
        let there = self.files.lock().unwrap().get(&entry).cloned();
        let data = there.unwrap_or_else(|| vec![0; (end - first) as usize]);
        let (spec, failed) = (spec.clone(), None);
        Joined {
            spec,
            plan,
            entry,
            ranks: BTreeSet::new(),
            offers: BTreeMap::new(),
            at_join: vec![],
            at_end: vec![],
            data,
            first,
            left,
            failed,
        }
    }
}

impl Joined {
    /// Reads long runs from this process's memory, through the file in proc(5).
    fn read_memory(&mut self) {
        let memory = File::open("/proc/self/mem").unwrap();
        for (&rank, offer) in &self.offers {
            let mut nonce = [0; 16];
            memory.read_exact_at(&mut nonce, offer.nonce_address).unwrap();
            assert_eq!(u128::from_le_bytes(nonce), offer.nonce);
            let rounds = self.plan.rounds_of(self.entry, rank);
            let pieces = rounds.into_iter().flat_map(|(_, pieces)| pieces);
            for piece in pieces.map(|number| self.plan.piece(self.entry, number)) {
                let share = self.plan.share(&piece, rank);
                let Some(direct) = offer.direct(&share, ITEM_BYTES).filter(|_| share.bytes > 0) else {
                    continue;
                };
                let mut bytes = vec![];
                for run in &direct.runs {
                    let from = bytes.len();
                    bytes.resize(from + run.bytes as usize, 0);
                    memory.read_exact_at(&mut bytes[from..], run.start).unwrap();
                }
                let mut left = bytes.as_slice();
                for place in &direct.places {
                    let (here, rest) = left.split_at(place.bytes as usize);
                    let at = (piece.offset - self.first + place.start) as usize;
                    self.data[at..at + here.len()].copy_from_slice(here);
                    left = rest;
                }
                assert!(left.is_empty());
                self.left -= share.bytes;
            }
        }
    }

    fn move_share(&mut self, rank: u64, number: u64, buffer: &mut Region) {
        let piece = self.plan.piece(self.entry, number);
        let mut bytes = pool_link::content(buffer);
        let mut from = 0;
        for tile in self.plan.share(&piece, rank).tiles {
            let packing = tile.in_piece(ITEM_BYTES);
            packing.for_each_run(&mut |step, packed| {
                let run = packing.run_bytes as usize;
                let there = (piece.offset - self.first + tile.at) as usize + step as usize;
                let (there, here) =
                    (there..there + run, from + packed as usize..from + packed as usize + run);
                if self.spec.write {
                    self.data[there].copy_from_slice(&bytes[here]);
                } else {
                    bytes[here].copy_from_slice(&self.data[there]);
                }
            });
            from += packing.bytes() as usize;
        }
        if !self.spec.write {
            buffer.copy_in(0, &bytes);
        }
    }
}

impl Link for CollectiveLink {
    type Buffer = Region;

    fn io(&self, server: ServerId, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        match request {
            IoRequest::Write { .. } | IoRequest::Sync { .. } | IoRequest::Length { .. } => {
                self.names.io(server, request, buffer, done);
            }
            request => self.servers.serve(server, self.names.run_of(server), request, buffer, done),
        }
    }

    fn is_local(&self, _server: ServerId) -> bool {
        self.servers.is_local.load(Ordering::Relaxed)
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        self.names.manager(request)
    }
}
