//! How a server directs a collective: round after round, piece after piece, in the order of its data file.

use std::rc::Rc;

use outcore_core::{
    Buffer, CollectiveSpec, Error, Grant, IoReply, PlannedPiece, ROUND_PIECES, ROUNDS_AT_ONCE, Result, Share,
    Target,
};

use super::collective::{Collective, OpenPiece};
use super::files::File;
use super::format::BLOCK_BYTES;
use super::pieces::{Part, Piece};
use super::shared::Shared;
use super::wait::{Gate, Group};

impl<B: Buffer> Shared<B> {
    /// A process joins; the first one brings the collective about.
    pub async fn join(
        self: &Rc<Self>,
        target: Target,
        grant: &Grant,
        spec: CollectiveSpec,
        rank: u64,
    ) -> Result<IoReply> {
        self.admit(target, grant, spec.write)?;
        let (collective, is_first) = self.collectives.join(target, spec, rank, self.now_ns.get())?;
        if is_first {
            let (server, collective) = (self.clone(), collective.clone());
            self.begin(async move {
                let result = server.direct(&collective).await;
                // Remembered before anybody is told.
                server.collectives.end(collective.spec.id, result.clone());
                match result {
                    Ok(()) => collective.end.open(Ok(())),
                    Err(error) => collective.fail(error),
                }
            });
        }
        collective.all_joined.wait().await.map(|()| IoReply::Done)
    }

    /// A process waits until it may give or take its shares of a round, or for the end.
    pub async fn await_round(&self, id: u128, rank: u64, round: Option<u64>) -> Result<IoReply> {
        match self.collectives.get(id) {
            Ok(collective) if rank >= collective.spec.ranks => {
                Err(Error::invalid(format!("the collective has no process {rank}")))
            }
            Ok(collective) => match round {
                Some(round) if round >= collective.plan.rounds(collective.target.entry) => {
                    Err(Error::invalid(format!("the collective has no round {round} on this server")))
                }
                Some(round) => collective.round(round).wait().await,
                None => {
                    collective.ask_for_end(rank, self.now_ns.get());
                    collective.end.wait().await
                }
            },
            Err(ended) => ended,
        }
        .map(|()| IoReply::Done)
    }

    /// A process gives its share of a piece. One that is given again, since an answer was lost, changes nothing.
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
        if open.seen.borrow_mut().insert(rank) {
            copy(&collective, &share, &mut open.buffer.borrow_mut(), &mut payload, false);
            self.status.borrow_mut().bytes_written += share.bytes;
            self.moved(&collective, &open, share.bytes);
        }
        Ok(IoReply::Done)
    }

    /// A process takes its share of a piece. For one that takes it again, the piece is read again if it must be.
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
                let planned = collective.plan.piece(collective.target.entry, piece);
                let share = share_of(&collective, &planned, rank, payload.len())?;
                let file = self.files.get(collective.target.handle);
                let lease = self.collectives.again.take().await?;
                let mut buffer = lease.view(0, planned.bytes as usize);
                self.read_planned(&collective, &file, &planned, &mut buffer).await?;
                copy(&collective, &share, &mut buffer, &mut payload, true);
            }
        }
        self.status.borrow_mut().bytes_read += payload.len() as u64;
        Ok(IoReply::Done)
    }

    /// A process cannot go on.
    pub fn abandon(&self, id: u128, rank: u64, error: &Error) -> IoReply {
        let error = Error::new(error.kind, format!("process {rank} gave up: {error}"));
        match self.collectives.get(id) {
            Ok(collective) => collective.fail(error),
            Err(_) => self.collectives.end_unknown(id, error),
        }
        IoReply::Done
    }

    /// A piece that is in memory; `None` if it was, and is done.
    fn open_piece(&self, collective: &Collective<B>, piece: u64) -> Result<Option<Rc<OpenPiece<B>>>> {
        collective.result()?;
        let open = collective.open.borrow().get(&piece).cloned();
        if open.is_none() && piece / ROUND_PIECES >= collective.begun.get() {
            return Err(Error::invalid(format!("nobody was asked for shares of piece {piece} yet")));
        }
        Ok(open)
    }

    fn moved(&self, collective: &Collective<B>, open: &OpenPiece<B>, bytes: u64) {
        collective.note_progress(self.now_ns.get());
        open.left.set(open.left.get() - bytes);
        if open.left.get() == 0 {
            open.complete.open(Ok(()));
        }
    }

    async fn direct(self: &Rc<Self>, collective: &Rc<Collective<B>>) -> Result<()> {
        collective.all_joined.wait().await?;
        let turn = self.collectives.at_work.take().await;
        let file = self.files.get(collective.target.handle);
        let result = self.direct_rounds(collective, &file).await;
        self.files.let_go(&file);
        drop(turn);
        result?;
        collective.is_done.set(true);
        collective.note_progress(self.now_ns.get());
        // Until then a share whose answer was lost can be taken again, and who gives up fails it for all.
        collective.all_asked.wait().await
    }

    async fn direct_rounds(self: &Rc<Self>, collective: &Rc<Collective<B>>, file: &Rc<File>) -> Result<()> {
        collective.result()?;
        if !self.open(file, collective.spec.write).await? {
            return Err(self.gone(file));
        }
        let entry = collective.target.entry;
        let mut under_way = std::collections::VecDeque::new();
        for round in 0..collective.plan.rounds(entry) {
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
        if collective.spec.write && !collective.spec.skips_disk {
            self.make_durable(file).await?;
        }
        collective.result()
    }

    /// Begins with the pieces of a round; the group ends when all of them are done.
    async fn begin_round(
        self: &Rc<Self>,
        collective: &Rc<Collective<B>>,
        file: &Rc<File>,
        round: u64,
    ) -> Result<Group> {
        let (done, read) = (Group::new(), Group::new());
        for number in collective.plan.pieces_of(collective.target.entry, round) {
            let planned = collective.plan.piece(collective.target.entry, number);
            let left = collective.shared_bytes(&planned);
            if left == 0 {
                continue;
            }
            let lease = self.collectives.buffers.take().await?;
            let buffer = lease.view(0, planned.bytes as usize);
            let open = Rc::new(OpenPiece {
                planned,
                buffer: buffer.into(),
                left: left.into(),
                seen: Default::default(),
                is_read: false.into(),
                complete: Gate::default(),
            });
            collective.result()?;
            collective.open.borrow_mut().insert(number, open.clone());
            let (server, collective, file) = (self.clone(), collective.clone(), file.clone());
            let (done, read) = (done.clone(), read.clone());
            done.begin();
            read.begin();
            self.begin(async move {
                let result = server.do_piece(&collective, &file, &open, &read).await;
                collective.open.borrow_mut().remove(&open.planned.number);
                if let Err(error) = &result {
                    collective.fail(error.clone());
                }
                drop((open, lease));
                done.end(result);
            });
        }
        let (server, collective) = (self.clone(), collective.clone());
        self.begin(async move {
            read.at_most(0).await;
            if read.result().is_ok() {
                collective.begun.set(collective.begun.get().max(round + 1));
                collective.note_progress(server.now_ns.get());
                collective.round(round).open(Ok(()));
            }
        });
        Ok(done)
    }

    /// One piece, from its buffer to the disk or from the disk to its buffer. `read` ends when processes may have it.
    async fn do_piece(
        self: &Rc<Self>,
        collective: &Collective<B>,
        file: &Rc<File>,
        open: &OpenPiece<B>,
        read: &Group,
    ) -> Result<()> {
        let planned = &open.planned;
        // What is not written stays: elements that no process has are read before, and padding is zeros.
        let keeps_some = open.left.get() < collective.plan.element_bytes(planned);
        let prepared = if !collective.spec.write || keeps_some {
            let mut view = open.buffer.borrow().clone();
            self.read_planned(collective, file, planned, &mut view).await
        } else {
            if open.left.get() < planned.bytes {
                open.buffer.borrow_mut().zero(0, planned.bytes as usize);
            }
            Ok(())
        };
        open.is_read.set(prepared.is_ok());
        read.end(prepared.clone());
        prepared?;
        open.complete.wait().await?;
        if collective.spec.write && !collective.spec.skips_disk {
            let view = open.buffer.borrow().clone();
            for piece in pieces_of(planned) {
                self.write_piece(file, collective.target, piece, view.clone()).await?;
            }
            self.bound_notes(file.handle);
        }
        Ok(())
    }

    async fn read_planned(
        self: &Rc<Self>,
        collective: &Collective<B>,
        file: &Rc<File>,
        planned: &PlannedPiece,
        buffer: &mut B,
    ) -> Result<()> {
        if collective.spec.skips_disk {
            buffer.zero(0, planned.bytes as usize);
            return Ok(());
        }
        for piece in pieces_of(planned) {
            self.read_piece(file, collective.target, piece, buffer.clone()).await?;
        }
        if file.ids.get().is_some() && !file.was_removed.get() { Ok(()) } else { Err(self.gone(file)) }
    }
}

async fn finished(group: &Group) -> Result<()> {
    group.at_most(0).await;
    group.result()
}

/// What a process has of a piece, if it is as long as it says.
fn share_of<B: Buffer>(
    collective: &Collective<B>,
    planned: &PlannedPiece,
    rank: u64,
    bytes: usize,
) -> Result<Share> {
    let share = collective.plan.share(planned, rank);
    if share.bytes != bytes as u64 || bytes == 0 {
        return Err(Error::invalid(format!(
            "the share of process {rank} of piece {} is {} bytes, not {bytes}",
            planned.number, share.bytes
        )));
    }
    Ok(share)
}

/// Copies a share between a piece and its packed form: into the piece, or `out` of it.
fn copy<B: Buffer>(collective: &Collective<B>, share: &Share, piece: &mut B, packed: &mut B, out: bool) {
    let item_bytes = collective.spec.grid.item_bytes;
    let mut from = 0;
    for tile in &share.tiles {
        let packing = tile.in_piece(item_bytes);
        piece.copy_packed(tile.at as usize, &packing, packed, from, out);
        from += packing.bytes() as usize;
    }
}

/// The whole blocks of a piece, and what is left of its last one.
fn pieces_of(planned: &PlannedPiece) -> impl Iterator<Item = Piece> {
    let (first, end) = (planned.offset / BLOCK_BYTES, planned.offset + planned.bytes);
    let (whole, rest) = (end / BLOCK_BYTES, end % BLOCK_BYTES);
    let direct = (whole > first).then_some(Piece::Direct { blocks: first..whole, at: 0 });
    let at = (whole - first) * BLOCK_BYTES;
    let part = Part { offset: whole * BLOCK_BYTES, bytes: rest, at };
    let mixed = (rest > 0).then(|| Piece::Mixed { blocks: whole..whole + 1, parts: vec![part] });
    direct.into_iter().chain(mixed)
}
