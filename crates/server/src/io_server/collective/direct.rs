//! How a server directs a collective: round by round, piece by piece, in the order of its data file.

use std::cell::OnceCell;
use std::rc::Rc;

use outcore_core::{
    Buffer, ByteRun, CollectiveSpec, Coverage, Error, IoReply, MemorySchema, PlannedPiece, ROUNDS_AT_ONCE,
    Result, Share, Target,
};

use crate::io_server::blocks::files::File;
use crate::io_server::blocks::format::BLOCK_BYTES;
use crate::io_server::blocks::pieces::{Part, Piece, Pieces};
use crate::io_server::blocks::scratch::Lease;
use crate::io_server::collective::fetch::{Fetch, ReadArrays};
use crate::io_server::collective::state::{Collective, OpenPiece};
use crate::io_server::shared::Shared;
use crate::io_server::wait::{Gate, Group};

/// Pieces in one disk request, at most.
pub(crate) const SPAN_PIECES: u64 = 4;

/// A piece of partial blocks with this many parts ends at the end of its current block.
const MOST_PARTS: usize = 1 << 15;

/// Pieces that are contiguous on the disk and in memory.
struct Span<B: Buffer> {
    offset: u64,
    bytes: u64,
    /// Whether it contains elements that no process owns.
    keeps_some: bool,
    /// Whether it contains any bytes that no process owns.
    has_padding: bool,
    opens: Vec<Rc<OpenPiece<B>>>,
}

impl<B: Buffer> Shared<B> {
    /// Adds a process to a collective. The first process starts it.
    pub async fn join(
        self: &Rc<Self>,
        target: Target,
        spec: CollectiveSpec,
        rank: u64,
        memory: Option<ReadArrays<B>>,
    ) -> Result<IoReply> {
        let (collective, is_first) =
            self.collectives.join(target, spec, rank, memory, self.running_ns.get())?;
        if is_first {
            let (server, collective) = (self.clone(), collective.clone());
            self.begin(async move {
                let result = server.direct(&collective).await;
                // The result is recorded before any process receives it.
                server.collectives.end(collective.spec.id, result.clone());
                match result {
                    Ok(()) => collective.end.open(Ok(())),
                    Err(error) => collective.fail(error),
                }
            });
        }
        collective.all_joined.wait().await?;
        let is_read = collective.memories.borrow().contains_key(&rank);
        Ok(if is_read { IoReply::ReadsMemory } else { IoReply::Done })
    }

    /// Waits until a process may give or take its shares of a round or, with `None`, until the collective ends.
    pub async fn await_round(&self, id: u128, rank: u64, round: Option<u64>) -> Result<IoReply> {
        match self.collectives.get(id) {
            Ok(collective) if rank >= collective.spec.ranks => {
                Err(Error::invalid(format!("the collective has no process {rank}")))
            }
            Ok(collective) => match round {
                Some(round) if round >= collective.plan().rounds(collective.target.entry) => {
                    Err(Error::invalid(format!("the collective has no round {round} on this server")))
                }
                // The server skips this round: the process has nothing to transfer.
                Some(round)
                    if collective.plan().next_round(collective.target.entry, round) != Some(round) =>
                {
                    collective.result()
                }
                Some(round) => collective.round(round).wait().await,
                None => {
                    collective.ask_for_end(rank, self.running_ns.get());
                    collective.end.wait().await
                }
            },
            Err(ended) => ended,
        }
        .map(|()| IoReply::Done)
    }

    /// Accepts a process's share of a piece. A repeated share, sent again because its answer was lost, changes
    /// nothing.
    pub async fn give(&self, id: u128, rank: u64, piece: u64, mut payload: B) -> Result<IoReply> {
        let collective = match self.collectives.get(id) {
            Ok(collective) => collective,
            Err(ended) => return ended.map(|()| IoReply::Done),
        };
        if !collective.spec.write || rank >= collective.spec.ranks {
            return Err(Error::invalid("nothing is given by this process in this collective"));
        }
        let Some(open) = self.open_piece(&collective, piece)? else { return Ok(IoReply::Done) };
        let share = share_of(&collective, &open.planned, rank, payload.len())?;
        if open.is_shared {
            // Otherwise a block could get bytes of both processes.
            open.fetched.wait().await?;
        }
        if open.seen.borrow_mut().insert(rank) {
            copy(&collective, &share, &mut open.buffer.borrow_mut(), &mut payload, false);
            self.status.borrow_mut().bytes_written += share.bytes;
            self.moved(&collective, &open, share.bytes);
        }
        Ok(IoReply::Done)
    }

    /// Returns a process's share of a piece. If a process asks again after the piece has left memory, the server
    /// reads it from disk.
    pub async fn take(self: &Rc<Self>, id: u128, rank: u64, piece: u64, mut payload: B) -> Result<IoReply> {
        let collective = match self.collectives.get(id) {
            Ok(collective) => collective,
            Err(Err(error)) => return Err(error),
            Err(Ok(())) => return Err(Error::invalid("the collective is over; begin another one")),
        };
        if collective.spec.write || rank >= collective.spec.ranks {
            return Err(Error::invalid("nothing is taken by this process in this collective"));
        }
        let open = self.open_piece(&collective, piece)?;
        match open.filter(|open| open.is_read.get()) {
            Some(open) => {
                let share = share_of(&collective, &open.planned, rank, payload.len())?;
                copy(&collective, &share, &mut open.buffer.borrow_mut(), &mut payload, true);
                if open.seen.borrow_mut().insert(rank) {
                    self.moved(&collective, &open, share.bytes);
                }
            }
            None => {
                let planned = collective.plan().piece(collective.target.entry, piece);
                let share = share_of(&collective, &planned, rank, payload.len())?;
                let lease = self.collectives.again.take().await?;
                let mut buffer = lease.view(0, planned.bytes as usize);
                self.with_file(collective.target.handle, async |file| {
                    // The server may have closed the file meanwhile to stay within its limit of open files.
                    self.open(file, false).await?;
                    let span = (planned.offset, planned.bytes);
                    self.read_span(&collective, file, span, &mut buffer).await?;
                    copy(&collective, &share, &mut buffer, &mut payload, true);
                    Ok(IoReply::Done)
                })
                .await?;
            }
        }
        self.status.borrow_mut().bytes_read += payload.len() as u64;
        Ok(IoReply::Done)
    }

    /// Aborts a collective because a process cannot continue.
    pub fn abandon(&self, id: u128, rank: u64, error: &Error) -> IoReply {
        let error = Error::new(error.kind, format!("process {rank} aborted: {error}"));
        match self.collectives.get(id) {
            Ok(collective) => collective.fail(error),
            Err(_) => self.collectives.end_unknown(id, error),
        }
        IoReply::Done
    }

    /// A piece in memory, or `None` if it is already done.
    fn open_piece(&self, collective: &Collective<B>, piece: u64) -> Result<Option<Rc<OpenPiece<B>>>> {
        collective.result()?;
        let open = collective.open.borrow().get(&piece).cloned();
        if open.is_none() && collective.plan().round_of(piece) >= collective.begun.get() {
            return Err(Error::invalid(format!("the server has not yet asked for shares of piece {piece}")));
        }
        Ok(open)
    }

    fn moved(&self, collective: &Collective<B>, open: &OpenPiece<B>, bytes: u64) {
        collective.note_progress(self.running_ns.get());
        open.left.set(open.left.get() - bytes);
        if open.left.get() == 0 {
            open.complete.open(Ok(()));
        }
    }

    async fn direct(self: &Rc<Self>, collective: &Rc<Collective<B>>) -> Result<()> {
        collective.all_joined.wait().await?;
        let turn = self.collectives.at_work.take().await;
        // The file is not in use while the server waits for the end: many collectives may wait at once.
        let rounds =
            async |file: &Rc<File>| self.direct_rounds(collective, file).await.map(|()| IoReply::Done);
        let result = self.with_file(collective.target.handle, rounds).await;
        drop(turn);
        result?;
        collective.is_done.set(true);
        collective.note_progress(self.running_ns.get());
        // Until all processes have asked, one can take a share again whose answer was lost, or abort the
        // collective for all.
        collective.all_asked.wait().await
    }

    async fn direct_rounds(self: &Rc<Self>, collective: &Rc<Collective<B>>, file: &Rc<File>) -> Result<()> {
        collective.result()?;
        let target = Target { generation: collective.generation.get(), ..collective.target };
        if collective.spec.write {
            self.open_to_change(file, target).await?;
        } else if !self.open(file, false).await? && self.is_removed(file) {
            return Err(self.gone(file));
        }
        self.check_age(file, target)?;
        let entry = collective.target.entry;
        if collective.spec.write && !collective.spec.skips_disk && collective.plan().covers_all() {
            // The whole file will be written, so one note and one wait for the log suffice.
            self.note(file, &(0..collective.plan().data_bytes(entry).div_ceil(BLOCK_BYTES))).await?;
        }
        let mut under_way = std::collections::VecDeque::new();
        let plan = collective.plan();
        for round in plan.rounds_with_shares(entry) {
            // Rounds may be without any share.
            self.let_others().await;
            collective.result()?;
            if under_way.len() as u64 == ROUNDS_AT_ONCE
                && let Some(group) = under_way.pop_front()
            {
                finished(&group).await?;
            }
            under_way.push_back(self.begin_round(collective, file, round).await?);
        }
        for group in under_way {
            finished(&group).await?;
        }
        if collective.spec.write && collective.spec.durable && !collective.spec.skips_disk {
            self.make_durable(file).await?;
        }
        collective.result()
    }

    /// Starts the pieces of a round. The returned group ends when all of them are done.
    async fn begin_round(
        self: &Rc<Self>,
        collective: &Rc<Collective<B>>,
        file: &Rc<File>,
        round: u64,
    ) -> Result<Group> {
        let (done, read) = (Group::new(), Group::new());
        let plan = collective.plan();
        let numbers: Vec<u64> = plan.pieces_of(collective.target.entry, round).collect();
        for numbers in numbers.chunks(SPAN_PIECES as usize) {
            let planned: Vec<(PlannedPiece, u64)> = numbers
                .iter()
                .map(|&number| {
                    let piece = plan.piece(collective.target.entry, number);
                    let left = plan.shared_bytes(&piece);
                    (piece, left)
                })
                .collect();
            if planned.iter().all(|(_, left)| *left == 0) {
                continue;
            }
            let lease = Rc::new(self.collectives.buffers.take().await?);
            collective.result()?;
            // Pieces in which no process owns any element stay unchanged.
            for pieces in planned.chunk_by(|(_, one), (_, next)| (*one == 0) == (*next == 0)) {
                if pieces[0].1 > 0 {
                    let from = (pieces[0].0.number - numbers[0]) * plan.piece_bytes();
                    self.begin_span(collective, file, pieces, (lease.clone(), from), [&done, &read]);
                }
            }
        }
        let (server, collective) = (self.clone(), collective.clone());
        self.begin(async move {
            read.at_most(0).await;
            if read.result().is_ok() {
                collective.begun.set(collective.begun.get().max(round + 1));
                collective.note_progress(server.running_ns.get());
                collective.round(round).open(Ok(()));
            }
        });
        Ok(done)
    }

    /// Starts contiguous pieces, each with the number of its bytes that processes own. They begin at byte `from` of
    /// the buffer.
    fn begin_span(
        self: &Rc<Self>,
        collective: &Rc<Collective<B>>,
        file: &Rc<File>,
        pieces: &[(PlannedPiece, u64)],
        (lease, from): (Rc<Lease<B>>, u64),
        [done, read]: [&Group; 2],
    ) {
        let offset = pieces[0].0.offset;
        let mut span = Span { offset, bytes: 0, keeps_some: false, has_padding: false, opens: vec![] };
        let plan = collective.plan();
        for (planned, left) in pieces {
            let may_repeat = collective.spec.write && matches!(collective.spec.schema, MemorySchema::Own(_));
            let coverage =
                may_repeat.then(|| plan.coverage(planned)).map_or_else(OnceCell::new, OnceCell::from);
            let owned = coverage.get().map_or(*left, Coverage::count);
            span.keeps_some |= owned < plan.element_bytes(planned);
            span.has_padding |= owned < planned.bytes;
            let view = lease.view((from + span.bytes) as usize, planned.bytes as usize);
            span.bytes += planned.bytes;
            let open = Rc::new(OpenPiece {
                planned: planned.clone(),
                buffer: view.into(),
                left: (*left).into(),
                seen: Default::default(),
                is_read: false.into(),
                complete: Gate::default(),
                is_shared: coverage.get().is_some_and(Coverage::has_repeats),
                coverage,
                fetched: Gate::default(),
            });
            collective.open.borrow_mut().insert(planned.number, open.clone());
            span.opens.push(open);
        }
        let buffer = lease.view(from as usize, span.bytes as usize);
        let (server, collective, file) = (self.clone(), collective.clone(), file.clone());
        let (done, read) = (done.clone(), read.clone());
        done.begin();
        read.begin();
        self.begin(async move {
            let result = server.do_span(&collective, &file, &span, (buffer, &lease), &read).await;
            for open in &span.opens {
                collective.open.borrow_mut().remove(&open.planned.number);
            }
            if let Err(error) = &result {
                collective.fail(error.clone());
            }
            drop((span, lease));
            done.end(result);
        });
    }

    /// Transfers some pieces from their buffer to the disk, or from the disk to their buffer. `read` ends when
    /// processes may take them.
    async fn do_span(
        self: &Rc<Self>,
        collective: &Rc<Collective<B>>,
        file: &Rc<File>,
        span: &Span<B>,
        (mut buffer, lease): (B, &Rc<Lease<B>>),
        read: &Group,
    ) -> Result<()> {
        let prepared = if !collective.spec.write {
            self.read_span(collective, file, (span.offset, span.bytes), &mut buffer).await
        } else {
            if span.has_padding && !span.keeps_some {
                buffer.zero(0, span.bytes as usize);
            }
            Ok(())
        };
        for open in &span.opens {
            open.is_read.set(prepared.is_ok());
        }
        read.end(prepared.clone());
        prepared?;
        if collective.spec.write {
            for open in &span.opens {
                self.begin_fetch(collective, open, lease);
            }
        }
        for open in &span.opens {
            open.complete.wait().await?;
        }
        if collective.spec.write && !collective.spec.skips_disk {
            let pieces: Vec<Piece> = if span.keeps_some {
                Pieces::new(parts_of_shares(collective, span).into_iter(), MOST_PARTS).collect()
            } else {
                pieces_of(span.offset, span.bytes).collect()
            };
            for piece in pieces {
                self.write_piece(file, collective.target, piece, buffer.clone()).await?;
            }
            self.bound_notes(file.handle);
        }
        Ok(())
    }

    /// Reads the shares of a piece that lie in the memory of processes on this machine.
    fn begin_fetch(
        self: &Rc<Self>,
        collective: &Rc<Collective<B>>,
        open: &Rc<OpenPiece<B>>,
        lease: &Rc<Lease<B>>,
    ) {
        let (mut fetches, mut ranks, mut bytes) = (vec![], vec![], 0);
        for (&rank, arrays) in &*collective.memories.borrow() {
            let share = collective.plan().share(&open.planned, rank);
            let direct = arrays.offer.direct(&share, collective.spec.grid.item_bytes);
            if let Some(direct) = direct.filter(|_| share.bytes > 0)
                // The server waits for no message with this share.
                && open.seen.borrow_mut().insert(rank)
            {
                fetches.push(Fetch { memory: arrays.memory.clone(), share: direct });
                ranks.push(rank);
                bytes += share.bytes;
            }
        }
        if fetches.is_empty() {
            return open.fetched.open(Ok(()));
        }
        let (server, collective, open, lease) =
            (self.clone(), collective.clone(), open.clone(), lease.clone());
        self.begin(async move {
            let buffer = open.buffer.borrow().clone();
            match server.fetch(fetches, buffer).await {
                Ok(()) => {
                    let mut status = server.status.borrow_mut();
                    status.bytes_written += bytes;
                    status.direct_bytes += bytes;
                    drop(status);
                    open.fetched.open(Ok(()));
                    server.moved(&collective, &open, bytes);
                }
                Err((number, error)) => collective.fail(Error::new(
                    error.kind,
                    format!("the memory of process {} cannot be read: {error}", ranks[number]),
                )),
            }
            // The lease ends only here: until then the fetch may still fill the buffer.
            drop(lease);
        });
    }

    async fn read_span(
        self: &Rc<Self>,
        collective: &Collective<B>,
        file: &Rc<File>,
        (offset, bytes): (u64, u64),
        buffer: &mut B,
    ) -> Result<()> {
        if collective.spec.skips_disk {
            buffer.zero(0, bytes as usize);
            return Ok(());
        }
        for piece in pieces_of(offset, bytes) {
            self.read_piece(file, collective.target, piece, buffer.clone()).await?;
        }
        // A data file to which nothing was written is absent, and reads as zeros.
        if self.is_removed(file) { Err(self.gone(file)) } else { Ok(()) }
    }

    fn is_removed(&self, file: &File) -> bool {
        file.was_removed.get() || self.notes.borrow().removed.holds(file.handle)
    }
}

async fn finished(group: &Group) -> Result<()> {
    group.at_most(0).await;
    group.result()
}

/// A process's share of a piece, if its length is the one that the process named.
fn share_of<B: Buffer>(
    collective: &Collective<B>,
    planned: &PlannedPiece,
    rank: u64,
    bytes: usize,
) -> Result<Share> {
    let share = collective.plan().share(planned, rank);
    if share.bytes != bytes as u64 || bytes == 0 {
        return Err(Error::invalid(format!(
            "the share of process {rank} of piece {} is {} bytes, not {bytes}",
            planned.number, share.bytes
        )));
    }
    Ok(share)
}

/// Copies a share between a piece and its packed form: out of the piece if `out` is set, otherwise into it.
fn copy<B: Buffer>(collective: &Collective<B>, share: &Share, piece: &mut B, packed: &mut B, out: bool) {
    let item_bytes = collective.spec.grid.item_bytes;
    let mut from = 0;
    for tile in &share.tiles {
        let packing = tile.in_piece(item_bytes);
        piece.copy_packed(tile.at as usize, &packing, packed, from, out);
        from += packing.bytes() as usize;
    }
}

/// The shares of all processes in a span. Whole blocks of them go to the disk as they are. Elements that no process owns
/// keep their values even if others write there concurrently: the server reads each partial block and merges its parts
/// under the block's lock.
fn parts_of_shares<B: Buffer>(collective: &Collective<B>, span: &Span<B>) -> Vec<Part> {
    let plan = collective.plan();
    let parts = |open: &Rc<OpenPiece<B>>| {
        let begin = open.planned.offset;
        let part = |run: ByteRun| {
            let offset = begin + run.start;
            Part { offset, bytes: run.bytes, at: offset - span.offset }
        };
        let coverage = open.coverage.get_or_init(|| plan.coverage(&open.planned));
        coverage.runs().map(part).collect::<Vec<_>>()
    };
    span.opens.iter().flat_map(parts).collect()
}

/// The whole blocks of a byte range that begins at a block boundary, and the remainder in the last block.
fn pieces_of(offset: u64, bytes: u64) -> impl Iterator<Item = Piece> {
    let (first, end) = (offset / BLOCK_BYTES, offset + bytes);
    let (whole, rest) = (end / BLOCK_BYTES, end % BLOCK_BYTES);
    let direct = (whole > first).then_some(Piece::Direct { blocks: first..whole, at: 0 });
    let at = (whole - first) * BLOCK_BYTES;
    let part = Part { offset: whole * BLOCK_BYTES, bytes: rest, at };
    let mixed = (rest > 0).then(|| Piece::Mixed { blocks: whole..whole + 1, parts: vec![part] });
    direct.into_iter().chain(mixed)
}
