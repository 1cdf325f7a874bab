//! The elements of one array on a volume: boxes read and written in the background.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::{
    BoxRequest, Buffer, ChunkGrid, Error, ErrorKind, FileId, Hints, Limits, OpenMode, Operation, Regions,
    Result, Run, Slot, Volume, VolumeRequest, conformance, plan_box,
};
use outcore_memory::{Arena, Block, Region, Segment};

use crate::array::batch::Share;
use crate::array::bounce::BouncePool;
use crate::array::piece::MIN_BOUNCE_BYTES;
use crate::array::rows::ShortRuns;
use crate::array::shards::Shards;
use crate::ticket::after;
use crate::{Span, SpanKind, Ticket, Trace};

/// Maximum bytes of one request, and of a bounce buffer.
pub(crate) const MAX_PIECE_BYTES: u64 = 4 << 20;
/// Maximum number of file runs in one request to a plain disk, which takes each run separately.
const MAX_EXTENTS: u64 = 4096;
/// Maximum number of file runs in one request to a pool; its servers accept no more in a message.
const MAX_GATHERED_EXTENTS: u64 = 1 << 20;
const MAX_BOUNCE_BUFFERS: usize = 4;

/// The place of a box's elements in memory.
#[derive(Clone)]
pub struct Memory {
    /// The block.
    pub block: Arc<Block>,
    /// Byte of the box's first element in the block.
    pub origin: usize,
    /// Distance in bytes between elements along each dimension.
    pub strides: Vec<i64>,
}

/// The memory that an [`ArrayFile`] may use.
#[derive(Clone)]
pub struct MemoryUse {
    /// The arena whose budget limits the bounce buffers.
    pub arena: Arena,
    /// Maximum bytes of bounce buffers.
    pub bounce_bytes: usize,
}

/// Exact counts of transfers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes read from files, gaps and padding included.
    pub bytes_read: u64,
    /// Bytes written to files, padding included.
    pub bytes_written: u64,
    /// Read requests.
    pub reads: u64,
    /// Write requests.
    pub writes: u64,
}

#[derive(Default)]
pub(crate) struct AtomicCounters {
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) reads: AtomicU64,
    pub(crate) writes: AtomicU64,
}

/// An array's shard files, open.
pub struct ArrayFile {
    pub(crate) volume: Arc<dyn Volume<Buffer = Region>>,
    grid: ChunkGrid,
    pub(crate) shards: Arc<Shards>,
    pub(crate) align: u64,
    pub(crate) memory_align: u64,
    /// Maximum bytes of a piece in a bounce buffer.
    pub(crate) bounce_piece: u64,
    pub(crate) bounce: BouncePool,
    /// Limits for cutting boxes into pieces.
    pub(crate) limits: Limits,
    /// Whether one request may cover several pieces.
    pub(crate) gathers: bool,
    pub(crate) counters: AtomicCounters,
    trace: Option<(Trace, u32)>,
    /// The last unfinished write of each slot. Later requests for the slot wait for it.
    pub(crate) writers: Mutex<HashMap<Slot, Ticket>>,
}

impl ArrayFile {
    /// Creates the shard files of a new array below the directory `path`, each with its index. With
    /// `reserve`, their disk space is allocated now. On several disks, each file is striped as `wanted` says.
    /// Without a stripe unit in `wanted`, each block of chunks lies on one disk. The bytes after the last
    /// whole unit of chunks lie on the last disk.
    pub fn create(
        volume: &Arc<dyn Volume<Buffer = Region>>,
        path: &str,
        grid: &ChunkGrid,
        reserve: bool,
        wanted: Hints,
    ) -> Result<()> {
        if reserve {
            let (need, have) = (grid.shards() * grid.shard_bytes(), volume.free_bytes()?);
            if need > have {
                return Err(Error::new(
                    ErrorKind::DiskFull,
                    format!(
                        "need {need} bytes on disk for {path}; {have} are free; free some room or choose another directory"
                    ),
                ));
            }
        }
        let round_units = match wanted.stripe_unit_bytes {
            Some(unit) => Some(grid.index_offset().div_ceil(unit.max(1))),
            None => grid.round_units(),
        };
        let unit_bytes = wanted.stripe_unit_bytes.unwrap_or(grid.stripe_unit_bytes());
        let hints = Hints { stripe_unit_bytes: Some(unit_bytes), round_units, ..wanted };
        Self::lay_out(volume, path, grid, &|key| {
            volume.create(key, grid.shard_bytes(), reserve, hints.clone())
        })
    }

    /// Gives existing shard files another layout: a new length and index. Elements stay in place.
    pub fn adopt(volume: &Arc<dyn Volume<Buffer = Region>>, path: &str, grid: &ChunkGrid) -> Result<()> {
        let mode = OpenMode::Resize { length: grid.shard_bytes(), reserve: true };
        Self::lay_out(volume, path, grid, &|key| volume.open(key, mode))
    }

    fn lay_out(
        volume: &Arc<dyn Volume<Buffer = Region>>,
        path: &str,
        grid: &ChunkGrid,
        open: &dyn Fn(&str) -> Result<FileId>,
    ) -> Result<()> {
        for shard in 0..grid.shards() {
            let file = open(&format!("{path}/{}", grid.shard_key(shard)))?;
            let written = Self::write_index(volume.as_ref(), file, grid);
            volume.close(file);
            written?;
        }
        Ok(())
    }

    fn write_index(volume: &dyn Volume<Buffer = Region>, file: FileId, grid: &ChunkGrid) -> Result<()> {
        let index = grid.index();
        let regions = Regions::contiguous(grid.index_offset(), index.len() as u64)?;
        let mut buffer = Region::whole(Arc::new(Arena::new(usize::MAX).allocate(index.len())?));
        buffer.copy_in(0, &index);
        conformance::complete(volume, VolumeRequest { file, operation: Operation::Write, regions, buffer })?;
        let nothing = Regions::default();
        let sync =
            VolumeRequest { file, operation: Operation::Sync, regions: nothing, buffer: Region::empty() };
        conformance::complete(volume, sync).map(|_| ())
    }

    /// Opens an array's shard files and checks their lengths and indexes.
    pub fn open(
        volume: Arc<dyn Volume<Buffer = Region>>,
        path: &str,
        grid: ChunkGrid,
        writable: bool,
        memory: MemoryUse,
        trace: Option<(Trace, u32)>,
    ) -> Result<Self> {
        let preference = volume.preference();
        let shards = Shards::open(volume.clone(), path, &grid, writable)?;
        let mut file = Self {
            limits: Limits {
                piece_bytes: MAX_PIECE_BYTES,
                read_gap_bytes: preference.read_gap_bytes,
                gather_bytes: if preference.gathers { MAX_PIECE_BYTES } else { MIN_BOUNCE_BYTES },
                piece_extents: if preference.gathers { MAX_GATHERED_EXTENTS } else { MAX_EXTENTS },
            },
            gathers: preference.gathers,
            align: 1,
            memory_align: 1,
            bounce_piece: MAX_PIECE_BYTES,
            bounce: BouncePool::new(memory.arena.clone(), 0, 1),
            shards: Arc::new(shards),
            counters: AtomicCounters::default(),
            writers: Mutex::default(),
            volume,
            grid,
            trace,
        };
        let alignment = file.shards.alignment();
        (file.align, file.memory_align) = (alignment.offset_bytes, alignment.memory_bytes);
        // A bounce buffer has space for a piece, or several, and for rounding to whole blocks at both ends.
        let largest = if file.gathers { file.grid.shard_bytes() } else { file.grid.slot_bytes() };
        let wanted = MAX_PIECE_BYTES.min(largest) + 2 * file.align;
        let buffer = wanted.min((memory.bounce_bytes as u64).max(4 * file.align)).next_multiple_of(4096);
        file.bounce_piece = (buffer - 2 * file.align).max(1);
        // Reads with gaps go through a buffer, piece by piece. With few runs in a buffer, that would not pay.
        file.limits.read_gap_bytes = preference.read_gap_bytes.min(file.bounce_piece / 4);
        let most = (memory.bounce_bytes as u64 / buffer).clamp(1, MAX_BOUNCE_BUFFERS as u64) as usize;
        file.bounce = BouncePool::new(memory.arena, buffer as usize, most);
        Ok(file)
    }

    /// The layout.
    pub fn grid(&self) -> &ChunkGrid {
        &self.grid
    }

    /// The granularity of reads in bytes: the largest gap that a read includes, and the block size to which a
    /// read through a buffer is rounded. A read includes no gap over a quarter of a buffer.
    pub fn read_granularity(&self) -> (u64, u64) {
        (self.volume.preference().read_gap_bytes, self.align)
    }

    /// The counts so far.
    pub fn counters(&self) -> Counters {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Counters {
            bytes_read: get(&self.counters.bytes_read),
            bytes_written: get(&self.counters.bytes_written),
            reads: get(&self.counters.reads),
            writes: get(&self.counters.writes),
        }
    }

    /// Starts moving a box between the array and `memory`. A request that touches a chunk waits for earlier
    /// unfinished writes to that chunk, so requests take effect in the order of their submission. The caller
    /// must not overwrite memory or elements that an unfinished read still needs.
    pub fn submit(
        self: &Arc<Self>,
        operation: Operation,
        request: &BoxRequest,
        memory: Memory,
    ) -> Result<Ticket> {
        let pieces = self.plan(operation, request, memory)?;
        self.submit_pieces(operation, pieces, Vec::new())
    }

    /// The pieces of a box.
    pub(crate) fn plan(
        &self,
        operation: Operation,
        request: &BoxRequest,
        memory: Memory,
    ) -> Result<Vec<Share>> {
        let planned = plan_box(&self.grid, request, operation, &self.limits)?;
        let shares = std::iter::repeat_n(memory, planned.len());
        Ok(planned.into_iter().zip(shares).collect())
    }

    /// Starts moving pieces and reading short runs, with one ticket for all.
    pub(crate) fn submit_pieces(
        self: &Arc<Self>,
        operation: Operation,
        pieces: Vec<Share>,
        short: Vec<ShortRuns>,
    ) -> Result<Ticket> {
        let of_pieces = pieces.iter().map(|(p, _)| Slot { shard: p.shard, offset: p.slot_offset });
        let slots: Vec<Slot> =
            of_pieces.chain(short.iter().flat_map(|runs| runs.slots.iter().copied())).collect();
        let shards = self.shards.pin(slots.iter().map(|slot| slot.shard), operation)?;
        let batches = self.batches(operation, pieces);
        let file = self.clone();
        let ticket = Ticket::new(batches.len() + short.len());
        let work = ticket.clone();
        self.shards.unpin_after(&ticket, shards);
        self.in_order(operation, slots, &ticket, move || {
            for batch in batches {
                file.launch(operation, batch, work.clone());
            }
            for runs in short {
                file.launch_short(runs, work.clone());
            }
        });
        Ok(ticket)
    }

    /// Starts reading a whole chunk's slot, as it is on disk, into the start of `block`.
    pub(crate) fn submit_slot(self: &Arc<Self>, chunk: &[u64], block: Arc<Block>) -> Result<Ticket> {
        let slot = self.grid.locate(chunk);
        let bytes = self.slot_read_bytes();
        let region = Region::new(block, vec![Segment { offset: 0, bytes }])?;
        let shards = self.shards.pin(std::iter::once(slot.shard), Operation::Read)?;
        let (file, ticket) = (self.clone(), Ticket::new(1));
        self.shards.unpin_after(&ticket, shards);
        let work = ticket.clone();
        self.in_order(Operation::Read, vec![slot], &ticket, move || {
            file.move_bytes(
                Operation::Read,
                slot.shard,
                slot.offset,
                region,
                Box::new(move |r| work.part_done(r)),
            );
        });
        Ok(ticket)
    }

    /// Bytes that [`Self::submit_slot`] reads: the chunk, rounded up to the disk's alignment if its slot
    /// allows that.
    pub(crate) fn slot_read_bytes(&self) -> usize {
        self.grid.chunk_bytes().next_multiple_of(self.align).min(self.grid.slot_bytes()) as usize
    }

    /// Starts a sync of completed writes, after the unfinished writes have completed.
    pub fn submit_sync(self: &Arc<Self>) -> Ticket {
        let shards = self.shards.pin_unsynced();
        let ticket = Ticket::new(shards.len());
        self.shards.unpin_after(&ticket, shards.clone());
        let mut before: Vec<Ticket> = Vec::new();
        for writer in self.writers.lock().unwrap_or_else(PoisonError::into_inner).values() {
            if !before.iter().any(|t| t.is_same(writer)) {
                before.push(writer.clone());
            }
        }
        let (file, work) = (self.clone(), ticket.clone());
        after(&before, move || {
            for shard in shards {
                let (work, shards) = (work.clone(), file.shards.clone());
                let done = move |result: Result<()>| {
                    if result.is_err() {
                        shards.not_synced(shard);
                    }
                    work.part_done(result);
                };
                file.move_bytes(Operation::Sync, shard, 0, Region::empty(), Box::new(done));
            }
        });
        ticket
    }

    /// Runs `start` once every unfinished write to `slots` is done.
    fn in_order(
        self: &Arc<Self>,
        operation: Operation,
        mut slots: Vec<Slot>,
        ticket: &Ticket,
        start: impl FnOnce() + Send + 'static,
    ) {
        slots.sort_unstable();
        slots.dedup();
        let mut before: Vec<Ticket> = Vec::new();
        let writers = self.writers.lock().unwrap_or_else(PoisonError::into_inner);
        for slot in &slots {
            if let Some(writer) = writers.get(slot).filter(|w| !w.is_done())
                && !before.iter().any(|t| t.is_same(writer))
            {
                before.push(writer.clone());
            }
        }
        if operation == Operation::Write {
            self.write_before_others(writers, slots, ticket);
        } else {
            drop(writers);
        }
        after(&before, start);
    }

    /// Makes later requests for `slots` wait for a write, until its ticket is done.
    pub(crate) fn write_before_others(
        self: &Arc<Self>,
        mut writers: MutexGuard<'_, HashMap<Slot, Ticket>>,
        slots: Vec<Slot>,
        ticket: &Ticket,
    ) {
        for slot in &slots {
            writers.insert(*slot, ticket.clone());
        }
        drop(writers);
        let (file, this) = (Arc::downgrade(self), ticket.clone());
        ticket.then(Box::new(move || {
            if let Some(file) = file.upgrade() {
                let mut writers = file.writers.lock().unwrap_or_else(PoisonError::into_inner);
                for slot in slots {
                    if writers.get(&slot).is_some_and(|w| w.is_same(&this)) {
                        writers.remove(&slot);
                    }
                }
            }
        }));
    }

    /// Requests contiguous bytes, or none.
    pub(crate) fn move_bytes(
        self: &Arc<Self>,
        operation: Operation,
        shard: u64,
        offset: u64,
        region: Region,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) {
        match Regions::contiguous(offset, region.len() as u64) {
            Ok(regions) => self.move_regions(operation, shard, regions, region, done),
            Err(error) => done(Err(error)),
        }
    }

    /// Sends one request to the volume, and counts and traces it.
    pub(crate) fn move_regions(
        self: &Arc<Self>,
        operation: Operation,
        shard: u64,
        regions: Regions,
        region: Region,
        done: Box<dyn FnOnce(Result<()>) + Send>,
    ) {
        let bytes = region.len() as u64;
        let first = regions.parts().first().map_or(0, |first| first.offset);
        // If the volume does not gather, each run is a request to a disk.
        let runs = if !self.gathers && regions.run_count() > 1 {
            regions.runs().collect()
        } else {
            vec![Run { offset: first, length: bytes, at: 0 }]
        };
        let requests = runs.len() as u64;
        let kind = match operation {
            Operation::Read => {
                self.counters.bytes_read.fetch_add(bytes, Ordering::Relaxed);
                self.counters.reads.fetch_add(requests, Ordering::Relaxed);
                SpanKind::Read
            }
            Operation::Write => {
                self.counters.bytes_written.fetch_add(bytes, Ordering::Relaxed);
                self.counters.writes.fetch_add(requests, Ordering::Relaxed);
                SpanKind::Write
            }
            Operation::Sync => SpanKind::Sync,
        };
        let Some(file) = self.shards.file(shard) else {
            return done(Err(Error::invalid(format!("the shard file {shard} was not opened for a request"))));
        };
        let request = VolumeRequest { file, operation, regions, buffer: region };
        let file = self.clone();
        self.volume.submit(
            request,
            Box::new(move |completion| {
                if let Some((trace, array)) = &file.trace {
                    let (start_ns, end_ns) = (completion.started_ns, completion.finished_ns);
                    trace.record_all(runs.into_iter().map(|Run { offset, length: bytes, .. }| Span {
                        kind,
                        array: *array,
                        start_ns,
                        end_ns,
                        offset,
                        bytes,
                    }));
                }
                // The caller may reuse the memory as soon as it learns that the work is done.
                drop(completion.buffer);
                done(completion.result.map(|_| ()));
            }),
        );
    }
}
