//! A scheduled stream: the blocks are known in advance, so read-ahead is exact.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use outcore_core::{BoxRequest, Error, ErrorKind, Operation, Result, StorageOrder};
use outcore_memory::{ALIGN_BYTES, Arena, Block};

use crate::{ArrayFile, Memory, Ticket};

/// Blocks of an array in a known order, read ahead as far as the stream's memory allows.
#[derive(Clone)]
pub struct Stream(Arc<Shared>);

struct Shared {
    file: Arc<ArrayFile>,
    arena: Arena,
    memory_bytes: usize,
    /// Minimum size of a block in memory: the arena reuses blocks of one size without new pages.
    least_bytes: usize,
    state: Mutex<State>,
}

struct Scheduled {
    request: BoxRequest,
    /// Whether to read a whole chunk as it is on disk, even if little of it is inside the array.
    as_on_disk: bool,
}

#[derive(Default)]
struct State {
    /// Blocks whose reads have not started.
    schedule: VecDeque<Scheduled>,
    /// Blocks whose reads have started, in order.
    ahead: VecDeque<(StreamBlock, Ticket)>,
    /// Bytes of the blocks that are in flight or held by the user.
    held_bytes: usize,
}

/// A block of a stream. Its memory returns to the stream when the last clone is dropped.
#[derive(Clone)]
pub struct StreamBlock {
    /// The memory.
    pub block: Arc<Block>,
    /// First index along each dimension.
    pub start: Vec<u64>,
    /// Elements along each dimension.
    pub count: Vec<u64>,
    /// Distance in bytes between elements along each dimension. The first element is at byte 0.
    pub strides: Vec<i64>,
    _lease: Arc<Lease>,
}

/// Bytes of a stream's memory, returned on drop.
struct Lease {
    stream: Weak<Shared>,
    bytes: usize,
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.upgrade() {
            stream.state().held_bytes -= self.bytes;
            stream.read_ahead();
        }
    }
}

impl Stream {
    /// A stream over `file` that holds at most `memory_bytes` of `arena`. Every block takes at least
    /// `least_bytes` of memory. If blocks differ in size, the largest size keeps the arena from mapping new
    /// pages for each block.
    pub fn new(file: Arc<ArrayFile>, arena: Arena, memory_bytes: usize, least_bytes: usize) -> Self {
        Self(Arc::new(Shared { file, arena, memory_bytes, least_bytes, state: Mutex::default() }))
    }

    /// Appends blocks (first index and count along each dimension) to the schedule. Starts as many reads as
    /// fit.
    pub fn extend(&self, boxes: impl IntoIterator<Item = (Vec<u64>, Vec<u64>)>) -> Result<()> {
        let dims = self.0.file.grid().dims();
        let mut added = VecDeque::new();
        for (start, count) in boxes {
            if start.len() != dims || count.len() != dims || count.contains(&0) {
                return Err(Error::invalid(format!(
                    "a block from {start:?} of {count:?} elements does not fit an array of {dims} dimensions; \
                     give start and count, at least 1, for each"
                )));
            }
            let memory_strides = vec![0; dims];
            let request = BoxRequest { start, count, step: vec![1; dims], memory_strides };
            added.push_back(Scheduled { request, as_on_disk: false });
        }
        self.0.state().schedule.append(&mut added);
        self.0.read_ahead();
        Ok(())
    }

    /// Like [`Stream::extend`], for chunks given by their coordinates. Each chunk is read as it is on disk:
    /// its block starts with the whole chunk, including elements beyond the array's edge.
    pub fn extend_chunks(&self, chunks: impl IntoIterator<Item = Vec<u64>>) -> Result<()> {
        let (spec, counts) = (self.0.file.grid().spec(), self.0.file.grid().counts());
        let mut added = VecDeque::new();
        for chunk in chunks {
            if chunk.len() != counts.len() || chunk.iter().zip(counts).any(|(at, n)| at >= n) {
                return Err(Error::invalid(format!("chunk {chunk:?} is not in a grid of {counts:?} chunks")));
            }
            let start: Vec<u64> = chunk.iter().zip(&spec.chunk).map(|(at, size)| at * size).collect();
            let rest = start.iter().zip(&spec.shape).map(|(start, extent)| extent - start);
            let count = rest.zip(&spec.chunk).map(|(rest, &size)| rest.min(size)).collect();
            let dims = counts.len();
            let request = BoxRequest { start, count, step: vec![1; dims], memory_strides: vec![0; dims] };
            added.push_back(Scheduled { request, as_on_disk: true });
        }
        self.0.state().schedule.append(&mut added);
        self.0.read_ahead();
        Ok(())
    }

    /// Number of blocks that the caller has not taken yet.
    pub fn remaining(&self) -> usize {
        let state = self.0.state();
        state.schedule.len() + state.ahead.len()
    }

    /// Waits at most `at_most` for the next block. `Ok(None)` means that it has not arrived yet.
    ///
    /// # Errors
    /// The error of its read; `budget` if the blocks that the user holds leave no memory for it; `closed` at
    /// the end of the schedule.
    pub fn next(&self, at_most: Duration) -> Result<Option<StreamBlock>> {
        self.0.read_ahead();
        let state = self.0.state();
        let Some((_, ticket)) = state.ahead.front() else {
            return Err(match state.schedule.front() {
                None => Error::new(ErrorKind::Closed, "the stream's schedule is at its end"),
                Some(next) => {
                    let need = self.0.block_layout(next).1;
                    Error::new(
                        ErrorKind::Budget,
                        format!(
                            "need {need} bytes for the next block of the stream; {} of its {} bytes are held by \
                             blocks still in use; raise memory=, or drop (or copy) blocks before taking the next",
                            state.held_bytes, self.0.memory_bytes
                        ),
                    )
                }
            });
        };
        let ticket = ticket.clone();
        drop(state);
        let Some(outcome) = ticket.wait(at_most) else { return Ok(None) };
        let block = self.0.state().ahead.pop_front();
        outcome?;
        Ok(block.map(|(block, _)| block))
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The chunk that equals a box, if it is worth reading with its padding: at the array's edge, most of a
    /// chunk may be padding.
    fn chunk_of(&self, scheduled: &Scheduled) -> Option<Vec<u64>> {
        let Scheduled { request, as_on_disk } = scheduled;
        let spec = self.file.grid().spec();
        let box_bytes = request.count.iter().fold(spec.item_bytes, |bytes, &n| bytes.saturating_mul(n));
        if !as_on_disk && box_bytes.saturating_mul(2) < self.file.grid().chunk_bytes() {
            return None;
        }
        (0..spec.shape.len())
            .map(|dim| {
                let (start, size) = (request.start[dim], spec.chunk[dim]);
                let end = start.checked_add(size)?.min(spec.shape[dim]);
                (start.is_multiple_of(size) && start.checked_add(request.count[dim])? == end)
                    .then_some(start / size)
            })
            .collect()
    }

    /// Memory strides and size in bytes of a block: a chunk as on disk, or any other box packed.
    fn block_layout(&self, scheduled: &Scheduled) -> (Vec<i64>, usize) {
        let spec = self.file.grid().spec();
        let is_chunk = self.chunk_of(scheduled).is_some();
        let extents = if is_chunk { &spec.chunk } else { &scheduled.request.count };
        let mut strides = vec![0; extents.len()];
        let mut bytes = spec.item_bytes;
        let mut lay = |dim: usize| {
            strides[dim] = bytes as i64;
            bytes = bytes.saturating_mul(extents[dim]);
        };
        match spec.storage {
            StorageOrder::C => (0..extents.len()).rev().for_each(&mut lay),
            StorageOrder::F => (0..extents.len()).for_each(&mut lay),
        }
        let size = if is_chunk { self.file.slot_read_bytes() } else { bytes as usize }.max(self.least_bytes);
        (strides, size)
    }

    fn read_ahead(self: &Arc<Self>) {
        loop {
            let mut state = self.state();
            let Some(next) = state.schedule.front() else { return };
            let (strides, bytes) = self.block_layout(next);
            // Round as the arena does. Otherwise the bounce buffers would lack the difference.
            let bytes = bytes.checked_next_multiple_of(ALIGN_BYTES).unwrap_or(bytes);
            if bytes > self.memory_bytes.saturating_sub(state.held_bytes) {
                return;
            }
            let Ok(block) = self.arena.allocate(bytes) else { return };
            let block = Arc::new(block);
            let chunk = self.chunk_of(next);
            let Some(Scheduled { mut request, .. }) = state.schedule.pop_front() else { return };
            state.held_bytes += bytes;
            request.memory_strides.clone_from(&strides);
            let lease = Arc::new(Lease { stream: Arc::downgrade(self), bytes });
            let submitted = match chunk {
                Some(chunk) => self.file.submit_slot(&chunk, block.clone()),
                None => {
                    let memory = Memory { block: block.clone(), origin: 0, strides: strides.clone() };
                    self.file.submit(Operation::Read, &request, memory)
                }
            };
            let ticket = submitted.unwrap_or_else(|error| {
                let failed = Ticket::new(1);
                failed.part_done(Err(error));
                failed
            });
            let item =
                StreamBlock { block, start: request.start, count: request.count, strides, _lease: lease };
            state.ahead.push_back((item, ticket));
        }
    }
}
