//! An I/O server as a state machine, and its handling of a call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

use outcore_core::{Buffer, Error, ErrorKind, Handle, IoReply, IoRequest, IoStatus, Regions, Result, Target};

use super::config::Config;
use super::event::{Effect, Event};
use super::shared::{Server, Shared};
use super::state::ServerState;
use super::task::Tasks;
use super::wait::{Group, Slot};
use crate::io_server::blocks::files::File;
use crate::io_server::blocks::pieces::{MANY_PARTS, Piece, Pieces, parts_of};
use crate::io_server::collective::fetch::Caller;

/// Maximum number of noted files. Beyond it the server makes one durable unprompted, so that there are few notes.
const MOST_NOTED: usize = 1024;

/// Parts of a long request planned before the task yields.
const PARTS_IN_A_TURN: usize = 4096;

/// Refuses lengths that no file can have.
fn check_length(length: u64) -> Result<()> {
    if length <= i64::MAX as u64 {
        return Ok(());
    }
    Err(Error::invalid(format!("need a length below 2^63 bytes, have {length}; choose a shorter one")))
}

/// The state machine of an I/O server: events come in, effects go out. It does no I/O and reads no clock.
pub struct IoServer<B> {
    shared: Server<B>,
    tasks: Tasks,
    /// The result of reading the log. Calls wait for it.
    started: Rc<Started>,
}

#[derive(Default)]
struct Started {
    result: RefCell<Option<Result<()>>>,
    waiting: RefCell<Vec<Slot<()>>>,
    /// Calls in progress.
    calls: Cell<u64>,
    idle: RefCell<Option<Slot<()>>>,
    /// Whether the server is currently making idle files durable.
    is_settling: Cell<bool>,
}

impl Started {
    async fn wait(&self) -> Result<()> {
        let known = self.result.borrow().clone();
        if let Some(result) = known {
            return result;
        }
        let slot = Slot::new();
        self.waiting.borrow_mut().push(slot.clone());
        slot.await;
        self.result.borrow().clone().unwrap_or(Ok(()))
    }

    fn call_done(&self) {
        self.calls.set(self.calls.get() - 1);
        if self.calls.get() == 0
            && let Some(slot) = self.idle.borrow_mut().take()
        {
            slot.give(());
        }
    }
}

impl<B: Buffer> IoServer<B> {
    /// Starts a server. `effects` receives the first steps, which read the log.
    pub fn start(config: Config<B>, effects: &mut Vec<Effect<B>>) -> Result<Self> {
        let shared = Rc::new(Shared::new(config)?);
        let mut server = Self { shared, tasks: Tasks::default(), started: Rc::default() };
        let (shared, started) = (server.shared.clone(), server.started.clone());
        server.shared.begin(async move {
            let result = shared.open_log().await;
            let is_good = result.is_ok();
            shared.effects.borrow_mut().push(Effect::Started(result.clone()));
            *started.result.borrow_mut() = Some(result);
            for slot in started.waiting.take() {
                slot.give(());
            }
            // On a read-only disk the results could not be recorded, so each file is examined when it is opened.
            if is_good && !shared.log_is_read_only() {
                shared.examine_all().await;
            }
        });
        server.go_on(effects);
        Ok(server)
    }

    /// Processes an event, and appends the resulting effects to `effects`. `now_ns` is the time of a monotonic
    /// clock with an arbitrary origin, in nanoseconds.
    pub fn step(&mut self, now_ns: u64, event: Event<B>, effects: &mut Vec<Effect<B>>) {
        self.shared.set_now(now_ns);
        match event {
            Event::Disk { token, completion } => self.shared.completed(token, completion),
            Event::Name { token, result } => self.shared.named(token, result),
            Event::GoOn { token } => self.shared.go_on(token),
            Event::Fetched { token, result } => self.shared.fetched(token, result),
            Event::Time { manager_s, own_s } => self.shared.time.told(now_ns, manager_s, own_s),
            Event::Call { call, request, buffer, caller } => {
                let (shared, started) = (self.shared.clone(), self.started.clone());
                started.calls.set(started.calls.get() + 1);
                self.shared.begin(async move {
                    let reply = match started.wait().await {
                        Ok(()) => shared.serve(request, buffer.clone(), caller).await,
                        Err(error) => Err(error),
                    };
                    shared.status.borrow_mut().requests += 1;
                    shared.answer(call, reply.unwrap_or_else(IoReply::Failed), buffer);
                    started.call_done();
                });
            }
            Event::Tick => {
                // Other programs may have written to the disk.
                self.shared.room_left.set(0);
                self.shared.collectives.look_at_clock(self.shared.running_ns.get());
                let (shared, started) = (self.shared.clone(), self.started.clone());
                if !started.is_settling.replace(true) {
                    self.shared.begin(async move {
                        if started.wait().await.is_ok() {
                            shared.settle_idle().await;
                        }
                        started.is_settling.set(false);
                    });
                }
            }
            Event::EndCollectives => self.shared.collectives.stop(|collective| collective.needs_calls()),
            Event::Stop => {
                self.shared.collectives.stop(|_| true);
                let (shared, started) = (self.shared.clone(), self.started.clone());
                self.shared.begin(async move {
                    if started.wait().await.is_ok() {
                        if started.calls.get() > 0 {
                            let slot = Slot::new();
                            *started.idle.borrow_mut() = Some(slot.clone());
                            slot.await;
                        }
                        shared.settle().await;
                    }
                    shared.effects.borrow_mut().push(Effect::Stopped);
                });
            }
        }
        self.go_on(effects);
    }

    /// Number of running tasks: calls and other work.
    pub fn under_way(&self) -> usize {
        self.tasks.count()
    }

    /// Number of reads and writes so far that covered a part of a block.
    pub fn unaligned(&self) -> u64 {
        self.shared.unaligned.get()
    }

    /// Queues, repairs and collectives at this moment.
    pub fn state(&self) -> ServerState {
        self.shared.state()
    }

    fn go_on(&mut self, effects: &mut Vec<Effect<B>>) {
        self.tasks.run(&self.shared.begun);
        effects.append(&mut self.shared.effects.borrow_mut());
    }
}

impl<B: Buffer> Shared<B> {
    async fn serve(self: &Rc<Self>, request: IoRequest, buffer: B, caller: Caller<B>) -> Result<IoReply> {
        self.admit(&request).await?;
        // Calls that wait for other calls take no permit, since they would keep those out.
        let _turn = match request {
            IoRequest::Join { .. } | IoRequest::Await { .. } => None,
            _ => Some(self.calls.take().await),
        };
        match request {
            IoRequest::Read { target, regions, .. } => {
                self.with_file(target.handle, async |file| {
                    self.read_regions(file, target, &regions, buffer).await
                })
                .await
            }
            IoRequest::Write { target, regions, .. } => {
                self.with_file(target.handle, async |file| {
                    self.write_regions(file, target, &regions, buffer).await
                })
                .await
            }
            IoRequest::Sync { target, .. } => {
                self.with_file(target.handle, async |file| {
                    if !self.open(file, false).await? {
                        return Ok(IoReply::Absent);
                    }
                    self.check_age(file, target)?;
                    self.check_whole(file, target)?;
                    // The length is read before the sync, because bytes written meanwhile may not be durable.
                    let length = file.length.get();
                    self.make_durable(file).await?;
                    Ok(IoReply::Synced { length, generation: file.sealed.get().generation })
                })
                .await
            }
            IoRequest::Length { target, .. } => {
                self.with_file(target.handle, async |file| {
                    if !self.open(file, false).await? {
                        return Ok(IoReply::Absent);
                    }
                    // The client reports how much is lost of an empty data file without a generation.
                    if file.length.get() > 0 || file.sealed.get().generation > 0 {
                        self.check_age(file, target)?;
                    }
                    self.check_whole(file, target)?;
                    Ok(IoReply::Length(file.length.get()))
                })
                .await
            }
            IoRequest::SetLength { target, local_length, reserve, .. } => {
                check_length(local_length)?;
                self.with_file(target.handle, async |file| {
                    self.open_to_change(file, target).await?;
                    self.set_length(file, target, local_length, reserve).await?;
                    self.bound_notes(file.handle);
                    Ok(IoReply::Done)
                })
                .await
            }
            IoRequest::Reserve { target, local_length, .. } => {
                check_length(local_length)?;
                self.with_file(target.handle, async |file| {
                    self.open_to_change(file, target).await?;
                    self.check_whole(file, target)?;
                    self.reserve(file, target, local_length).await?;
                    self.bound_notes(file.handle);
                    Ok(IoReply::Done)
                })
                .await
            }
            IoRequest::Remove { target, .. } => {
                self.with_file(target.handle, async |file| self.remove(file).await.map(|()| IoReply::Done))
                    .await
            }
            IoRequest::Status => self.status().await,
            IoRequest::Scrub { from, most_bytes } => self.scrub(from, most_bytes).await,
            IoRequest::DataFiles { after, most } => self.data_files(after, most).await,
            IoRequest::Inspect { handles } => self.inspect(&handles).await,
            IoRequest::Cut { handles } => self.cut(&handles).await,
            IoRequest::Lengths { handles, targets, .. } => {
                self.lengths(&handles, &targets).await.map(IoReply::Lengths)
            }
            IoRequest::Give { collective, rank, piece, .. } => {
                self.give(collective, rank, piece, buffer).await
            }
            IoRequest::Take { collective, rank, piece, .. } => {
                self.take(collective, rank, piece, buffer).await
            }
            IoRequest::Abandon { collective, rank, error } => Ok(self.abandon(collective, rank, &error)),
            IoRequest::Join { target, spec, rank, memory, .. } => {
                let is_read = spec.write && self.reads_memory;
                let memory = self.accept(memory.filter(|_| is_read), caller).await?;
                self.join(target, *spec, rank, memory).await
            }
            IoRequest::Await { collective, rank, round } => self.await_round(collective, rank, round).await,
            // The daemon around the server answers these; a pool in the process of its only client has no daemon.
            IoRequest::Metrics | IoRequest::Spans => Err(Error::invalid(
                "need a server that records its transfers, have one of an embedded pool; serve the pool",
            )),
        }
    }

    pub(super) async fn with_file(
        self: &Rc<Self>,
        handle: Handle,
        work: impl AsyncFnOnce(&Rc<File>) -> Result<IoReply>,
    ) -> Result<IoReply> {
        let file = self.files.get(handle);
        let reply = work(&file).await;
        self.files.let_go(&file);
        reply
    }

    /// The lengths of data files.
    async fn lengths(self: &Rc<Self>, handles: &[Handle], targets: &[Target]) -> Result<Vec<u64>> {
        let allowed: BTreeSet<Handle> = handles.iter().copied().collect();
        let mut lengths = Vec::with_capacity(targets.len());
        for &target in targets {
            check_entry(target)?;
            if !allowed.contains(&target.handle) {
                return Err(Error::new(
                    ErrorKind::Denied,
                    format!("need a grant for file {}, have one for others; list it again", target.handle.0),
                ));
            }
            let file = self.files.get(target.handle);
            let is_there = self.open(&file, false).await;
            let length = file.length.get();
            self.files.let_go(&file);
            lengths.push(if is_there? { length } else { 0 });
        }
        Ok(lengths)
    }

    async fn read_regions(
        self: &Rc<Self>,
        file: &Rc<File>,
        target: Target,
        regions: &Regions,
        mut buffer: B,
    ) -> Result<IoReply> {
        let bytes = buffer.len();
        if self.open(file, false).await? {
            self.check_age(file, target)?;
            let server = self.clone();
            self.move_pieces(file, target, regions, buffer, async move |file, piece, buffer| {
                server.read_piece(&file, target, piece, buffer).await
            })
            .await?;
        } else {
            buffer.zero(0, bytes);
        }
        self.status.borrow_mut().bytes_read += bytes as u64;
        // If the file was removed meanwhile, some of the bytes may read as zeros.
        let is_there = file.ids.get().is_some() && !file.was_removed.get();
        Ok(if is_there { IoReply::Done } else { IoReply::Absent })
    }

    async fn write_regions(
        self: &Rc<Self>,
        file: &Rc<File>,
        target: Target,
        regions: &Regions,
        buffer: B,
    ) -> Result<IoReply> {
        let bytes = buffer.len();
        self.open_to_change(file, target).await?;
        let server = self.clone();
        self.move_pieces(file, target, regions, buffer, async move |file, piece, buffer| {
            server.write_piece(&file, target, piece, buffer).await
        })
        .await?;
        self.status.borrow_mut().bytes_written += bytes as u64;
        self.bound_notes(file.handle);
        Ok(IoReply::Done)
    }

    /// Transfers the pieces of a request, several at once, and waits for them. No view of the buffer remains
    /// afterwards.
    async fn move_pieces(
        self: &Rc<Self>,
        file: &Rc<File>,
        target: Target,
        regions: &Regions,
        buffer: B,
        work: impl AsyncFn(Rc<File>, Piece, B) -> Result<()> + Clone + 'static,
    ) -> Result<()> {
        let group = Group::new();
        let (mut total, mut planned, mut is_aligned) = (0, 0, true);
        let mut pieces = Pieces::new(parts_of(regions.local_runs(target.stripes, target.entry)), MANY_PARTS);
        while group.result().is_ok() {
            group.at_most(self.limits.pieces_of_call.max(1) - 1).await;
            // The permit comes before the next piece, so the number of pieces is bounded.
            let permit = self.pieces.take().await;
            let Some(piece) = pieces.next() else {
                if total != buffer.len() as u64 {
                    group.fail(mismatch(total, buffer.len()));
                }
                break;
            };
            if is_aligned && matches!(piece, Piece::Mixed { .. }) {
                is_aligned = false;
                self.unaligned.set(self.unaligned.get() + 1);
            }
            total += piece.bytes();
            planned += piece.parts();
            if planned >= PARTS_IN_A_TURN {
                planned = 0;
                self.let_others().await;
            }
            if piece.buffer_end() > buffer.len() as u64 {
                group.fail(mismatch(piece.buffer_end(), buffer.len()));
                break;
            }
            group.begin();
            let (group, file, buffer, work) = (group.clone(), file.clone(), buffer.clone(), work.clone());
            self.begin(async move {
                let result = work(file, piece, buffer).await;
                drop(permit);
                group.end(result);
            });
        }
        group.at_most(0).await;
        group.result()
    }

    async fn status(&self) -> Result<IoReply> {
        let (free_bytes, disk) = (self.room().await?, self.disk_size().await?);
        let is_writable = !self.log_is_stuck();
        Ok(IoReply::Status(IoStatus { free_bytes, disk, is_writable, ..*self.status.borrow() }))
    }

    /// Examines the files that were noted when the server started, in order, while it already serves calls.
    async fn examine_all(self: &Rc<Self>) {
        let noted = self.notes.borrow().handles();
        for handle in noted {
            // The next call that needs the file gets the error; the notes stay.
            self.make_durable_unasked(handle).await;
        }
    }

    /// Makes a file durable if too many are noted.
    pub(super) fn bound_notes(self: &Rc<Self>, written: Handle) {
        let notes = self.notes.borrow();
        if notes.count() <= MOST_NOTED {
            return;
        }
        if let Some(handle) = notes.handles().into_iter().find(|handle| *handle != written) {
            let server = self.clone();
            self.begin(async move { server.make_durable_unasked(handle).await });
        }
    }

    /// Makes idle files durable, in order.
    async fn settle_idle(self: &Rc<Self>) {
        if self.log_is_read_only() {
            return;
        }
        let idle = self.notes.borrow().idle(self.running_ns.get());
        for handle in idle {
            self.make_durable_unasked(handle).await;
        }
    }

    async fn make_durable_unasked(self: &Rc<Self>, handle: Handle) {
        let file = self.files.get(handle);
        if let Ok(true) = self.open(&file, false).await {
            // The error is stored, and the next caller that syncs the file gets it.
            let _ = self.make_durable_unheard(&file).await;
        }
        self.files.let_go(&file);
    }

    /// Makes everything durable and closes all files.
    async fn settle(self: &Rc<Self>) {
        let is_read_only = self.log_is_read_only();
        let noted = if is_read_only { vec![] } else { self.notes.borrow().handles() };
        for handle in noted {
            let file = self.files.get(handle);
            if let Ok(true) = self.open(&file, false).await {
                let _ = self.make_durable_unheard(&file).await;
            }
        }
        for handle in self.files.handles() {
            self.close(&self.files.get(handle)).await;
        }
        self.log_idle().await;
    }
}

fn mismatch(need: u64, have: usize) -> Error {
    Error::invalid(format!("the regions of a request are {need} bytes or more here, its payload {have}"))
}

pub(super) fn check_entry(target: Target) -> Result<()> {
    if target.entry >= target.stripes.count() {
        return Err(Error::invalid(format!(
            "a file on {} servers has no entry {}",
            target.stripes.count(),
            target.entry
        )));
    }
    Ok(())
}
