//! The state that the tasks of a server share, and their access to the disk.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::rc::Rc;

use outcore_core::{
    Buffer, Completion, Error, ErrorKind, FileId, Handle, IoReply, IoStatus, Operation, Request, Result,
    ServerId,
};

use super::config::{Config, Factory, Limits, Verify};
use super::event::{Effect, NameAnswer, NameOperation};
use super::state::{Queues, Repair};
use super::task::Task;
use super::time::Time;
use super::wait::{Permits, Slot};
use crate::io_server::blocks::files::Files;
use crate::io_server::blocks::format::{BLOCK_BYTES, SCRATCH_BLOCKS, SUMS_PAGE_BYTES};
use crate::io_server::blocks::scratch::Scratch;
use crate::io_server::blocks::sums::Sums;
use crate::io_server::check::seal::State;
use crate::io_server::collective::fetch::Fetched;
use crate::io_server::collective::state::Collectives;
use crate::io_server::log::notes::Notes;
use crate::io_server::log::writer::Log;

/// Number of buffers for pages of checksums.
const SUMS_BUFFERS: usize = 16;
/// Maximum number of damaged blocks that are counted. Each block counts once.
const MAX_DAMAGED: usize = 1 << 16;

/// A server takes a step at least every second. A longer interval than this means that its clock was set or its
/// process was stopped.
const MOST_PASSED_NS: u64 = 5_000_000_000;

/// The state that the tasks of a server share.
pub(super) struct Shared<B> {
    pub server: ServerId,
    pub limits: Limits,
    pub verify: Box<dyn Verify>,
    /// Time of the last event, in nanoseconds.
    pub now_ns: Cell<u64>,
    /// Nanoseconds for which the server has run, without clock jumps and times when the process was stopped.
    pub running_ns: Cell<u64>,
    /// The time that decides when grants expire.
    pub time: Time,
    pub files: Files,
    pub sums: Sums<B>,
    pub notes: RefCell<Notes>,
    pub log: Log<B>,
    pub scratch: Scratch<B>,
    pub collectives: Collectives<B>,
    pub calls: Permits,
    pub pieces: Permits,
    pub status: RefCell<IoStatus>,
    /// Reads and writes of a part of a block. Messages do not carry this count.
    pub unaligned: Cell<u64>,
    /// Counts of checks and repairs since the start.
    pub repair: Cell<Repair>,
    pub begun: RefCell<Vec<Task>>,
    pub effects: RefCell<Vec<Effect<B>>>,
    /// Files that the disk failed to sync: writes to them may be lost.
    pub lost: RefCell<HashMap<Handle, Error>>,
    /// The closed files that changed since their seals. All of them are noted.
    pub unsealed: RefCell<HashMap<Handle, State>>,
    damaged: RefCell<BTreeSet<(Handle, u64)>>,
    next: Cell<u64>,
    requests: RefCell<HashMap<u64, Slot<Completion<B>>>>,
    operations: RefCell<HashMap<u64, Slot<Result<NameAnswer>>>>,
    turns: RefCell<HashMap<u64, Slot<()>>>,
    pub fetches: RefCell<HashMap<u64, Slot<Fetched>>>,
    pub make: Factory<B>,
    pub reads_memory: bool,
    /// Bytes of data to write before the server queries the free space again.
    pub room_left: Cell<u64>,
    empty: B,
}

impl<B: Buffer> Shared<B> {
    /// Advances the clocks to the time of an event.
    pub fn set_now(&self, now_ns: u64) {
        let passed_ns = now_ns.saturating_sub(self.now_ns.replace(now_ns));
        self.running_ns.set(self.running_ns.get() + passed_ns.min(MOST_PASSED_NS));
    }

    pub fn new(config: Config<B>) -> Result<Self> {
        let limits = config.limits;
        let group = SCRATCH_BLOCKS as usize * BLOCK_BYTES as usize;
        let mut empty = (config.scratch)(SUMS_PAGE_BYTES)?;
        empty.truncate(0);
        Ok(Self {
            server: config.server,
            limits,
            verify: config.verify,
            now_ns: Cell::new(0),
            running_ns: Cell::new(0),
            time: Time::default(),
            files: Files::default(),
            sums: Sums::new(
                limits.sums_bytes / SUMS_PAGE_BYTES,
                Scratch::new(SUMS_PAGE_BYTES, SUMS_BUFFERS, config.scratch.clone()),
            ),
            notes: Notes::new(limits.removals).into(),
            log: Log::new(config.scratch.clone()),
            collectives: Collectives::new(config.server, config.scratch.clone()),
            scratch: Scratch::new(group, limits.scratch_bytes / group, config.scratch.clone()),
            fetches: RefCell::default(),
            make: config.scratch,
            reads_memory: config.reads_memory,
            room_left: Cell::new(0),
            calls: Permits::new(limits.calls.max(1)),
            pieces: Permits::new(limits.pieces.max(1)),
            status: RefCell::default(),
            unaligned: Cell::new(0),
            repair: Cell::default(),
            begun: RefCell::default(),
            effects: RefCell::default(),
            lost: RefCell::default(),
            unsealed: RefCell::default(),
            damaged: RefCell::default(),
            next: Cell::new(0),
            requests: RefCell::default(),
            operations: RefCell::default(),
            turns: RefCell::default(),
            empty,
        })
    }

    pub fn begin(&self, task: impl Future<Output = ()> + 'static) {
        self.begun.borrow_mut().push(Box::pin(task));
    }

    pub fn answer(&self, call: u64, reply: IoReply, buffer: B) {
        self.effects.borrow_mut().push(Effect::Answer { call, reply, buffer });
    }

    pub fn token(&self) -> u64 {
        self.next.set(self.next.get() + 1);
        self.next.get()
    }

    pub fn completed(&self, token: u64, completion: Completion<B>) {
        let slot = self.requests.borrow_mut().remove(&token);
        if let Some(slot) = slot {
            slot.give(completion);
        }
    }

    pub fn named(&self, token: u64, result: Result<NameAnswer>) {
        let slot = self.operations.borrow_mut().remove(&token);
        if let Some(slot) = slot {
            slot.give(result);
        }
    }

    /// Yields in the middle of long work.
    pub async fn let_others(&self) {
        let (token, slot) = (self.token(), Slot::new());
        self.turns.borrow_mut().insert(token, slot.clone());
        self.effects.borrow_mut().push(Effect::LetOthers { token });
        slot.await;
    }

    pub fn go_on(&self, token: u64) {
        let slot = self.turns.borrow_mut().remove(&token);
        if let Some(slot) = slot {
            slot.give(());
        }
    }

    pub fn fetched(&self, token: u64, result: Fetched) {
        let slot = self.fetches.borrow_mut().remove(&token);
        if let Some(slot) = slot {
            slot.give(result);
        }
    }

    /// Performs an operation on names.
    pub async fn name(&self, operation: NameOperation) -> Result<NameAnswer> {
        let (token, slot) = (self.token(), Slot::new());
        self.operations.borrow_mut().insert(token, slot.clone());
        self.effects.borrow_mut().push(Effect::Name { token, operation });
        slot.await
    }

    /// Performs an operation that opens or creates a file.
    pub async fn opened(&self, operation: NameOperation) -> Result<Opened> {
        match self.name(operation).await? {
            NameAnswer::Opened { file, length, is_writable } => Ok(Opened { file, length, is_writable }),
            other => Err(Error::new(ErrorKind::Io, format!("an opened file was answered by {other:?}"))),
        }
    }

    async fn request(&self, request: Request<B>) -> Result<usize> {
        let (token, slot) = (self.token(), Slot::new());
        self.requests.borrow_mut().insert(token, slot.clone());
        self.effects.borrow_mut().push(Effect::Disk { token, request });
        slot.await.result
    }

    /// Reads until the buffer is full or the file ends. Returns the number of bytes read.
    pub async fn read(&self, file: FileId, offset: u64, mut buffer: B) -> Result<usize> {
        let mut done = 0;
        while !buffer.is_empty() {
            let (operation, offset) = (Operation::Read, offset + done as u64);
            match self.request(Request { file, operation, offset, buffer: buffer.clone() }).await? {
                0 => break,
                moved => {
                    buffer.advance(moved);
                    done += moved;
                }
            }
        }
        Ok(done)
    }

    /// Writes the whole buffer.
    pub async fn write(&self, file: FileId, offset: u64, mut buffer: B) -> Result<()> {
        let mut done = 0;
        while !buffer.is_empty() {
            let (operation, offset) = (Operation::Write, offset + done as u64);
            match self.request(Request { file, operation, offset, buffer: buffer.clone() }).await? {
                0 => return Err(Error::new(ErrorKind::Io, "the disk took no bytes; check the disk")),
                moved => {
                    buffer.advance(moved);
                    done += moved;
                }
            }
        }
        Ok(())
    }

    /// Makes completed writes of a file durable.
    pub async fn sync_disk(&self, file: FileId) -> Result<()> {
        let (operation, buffer) = (Operation::Sync, self.empty.clone());
        self.request(Request { file, operation, offset: 0, buffer }).await.map(|_| ())
    }

    /// Adds a fix to the error of a change that a read-only disk refused. Other errors pass unchanged.
    pub fn of_read_only(&self, error: Error) -> Error {
        if error.kind != ErrorKind::ReadOnly {
            return error;
        }
        let cause = error.message.split_once("; ").map_or(error.message.as_str(), |(cause, _)| cause);
        Error::new(
            ErrorKind::ReadOnly,
            format!(
                "server {}: need a disk that takes writes, have one that is only read ({cause}); copy its data elsewhere, or make the disk writable and restart the server",
                self.server.0
            ),
        )
    }

    /// Counts a damaged block.
    pub fn count_damage(&self, handle: Handle, block: u64) {
        let mut damaged = self.damaged.borrow_mut();
        if damaged.len() < MAX_DAMAGED && damaged.insert((handle, block)) {
            self.status.borrow_mut().damaged_blocks += 1;
        }
    }

    /// Whether damaged blocks of a file are known.
    pub fn has_damage(&self, handle: Handle) -> bool {
        self.damaged.borrow().range((handle, 0)..=(handle, u64::MAX)).next().is_some()
    }

    /// Forgets the damage of overwritten blocks. Returns whether there was any.
    pub fn repaired(&self, handle: Handle, blocks: &Range<u64>) -> bool {
        let mut damaged = self.damaged.borrow_mut();
        let of_blocks = damaged.range((handle, blocks.start)..(handle, blocks.end));
        let known: Vec<_> = of_blocks.copied().collect();
        for block in &known {
            damaged.remove(block);
        }
        self.count_repairs(|repair| repair.repaired_blocks += known.len() as u64);
        !known.is_empty()
    }

    /// Number of damaged blocks that nobody has overwritten since.
    pub fn known_damage(&self) -> usize {
        self.damaged.borrow().len()
    }

    /// Changes the counts of checks and repairs.
    pub fn count_repairs(&self, change: impl FnOnce(&mut Repair)) {
        let mut repair = self.repair.get();
        change(&mut repair);
        self.repair.set(repair);
    }

    /// Requests to the disk, and operations on names, that have no result yet.
    pub fn disk_queues(&self) -> Queues {
        let (disk, names) = (self.requests.borrow().len(), self.operations.borrow().len());
        Queues { disk: disk as u64, names: names as u64, ..Queues::default() }
    }
}

/// An open file of the disk.
pub(super) struct Opened {
    pub file: FileId,
    /// Length in bytes.
    pub length: u64,
    pub is_writable: bool,
}

/// A reference to the shared state, for tasks.
pub(super) type Server<B> = Rc<Shared<B>>;
