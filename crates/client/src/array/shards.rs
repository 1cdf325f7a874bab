//! The shard files of one array: opened, checked, and kept open while requests need them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::{
    Alignment, Buffer, ChunkGrid, Error, ErrorKind, FileId, OpenMode, Operation, Regions, Result, Volume,
    VolumeRequest, conformance,
};
use outcore_memory::{Arena, Region};

use crate::Ticket;

/// For an array that grows: the number of idle shard files that stay open. A process may have about a
/// thousand files open, and each shard file of a plain directory takes two of them.
const KEPT_OPEN: usize = 16;

/// The open shard files. A fixed array has all of them open. An array that grows opens its last one first,
/// and the others when requests need them.
pub(crate) struct Shards {
    volume: Arc<dyn Volume<Buffer = Region>>,
    path: String,
    grid: ChunkGrid,
    mode: OpenMode,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    open: HashMap<u64, Shard>,
    uses: u64,
}

struct Shard {
    file: FileId,
    /// Number of requests in flight.
    users: usize,
    last_use: u64,
    /// Whether there was a write since the last sync. If so, the file must stay open until the next sync.
    is_unsynced: bool,
}

impl Shard {
    fn new(file: FileId) -> Self {
        Self { file, users: 0, last_use: 0, is_unsynced: false }
    }

    fn take(&mut self, operation: Operation, now: u64) {
        self.users += 1;
        self.last_use = now;
        self.is_unsynced |= operation == Operation::Write;
    }
}

impl Shards {
    pub(crate) fn open(
        volume: Arc<dyn Volume<Buffer = Region>>,
        path: &str,
        grid: &ChunkGrid,
        writable: bool,
    ) -> Result<Self> {
        let mode = if writable { OpenMode::ReadWrite } else { OpenMode::Read };
        let (path, grid, state) = (path.to_string(), grid.clone(), Mutex::default());
        let shards = Self { volume, path, grid, mode, state };
        let count = shards.grid.shards();
        let first = if shards.grid.spec().growing { count.saturating_sub(1) } else { 0 };
        for shard in first..count {
            let file = shards.open_one(shard)?;
            shards.state().open.insert(shard, Shard::new(file));
        }
        Ok(shards)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens and checks a shard file. Runs without the lock, which completions take.
    fn open_one(&self, shard: u64) -> Result<FileId> {
        let key = format!("{}/{}", self.path, self.grid.shard_key(shard));
        let file = self.volume.open(&key, self.mode).map_err(|e| match e.kind {
            ErrorKind::NotFound => Error::new(
                ErrorKind::NotFound,
                format!("the shard file {key} is missing; restore it from a copy, or create the array again"),
            ),
            _ => e,
        })?;
        if let Err(error) = self.check(file, &key) {
            self.volume.close(file);
            return Err(error);
        }
        Ok(file)
    }

    fn check(&self, file: FileId, key: &str) -> Result<()> {
        let (need, have) = (self.grid.shard_bytes(), self.volume.length(file)?);
        if have != need {
            return Err(Error::new(
                ErrorKind::Truncated,
                format!(
                    "need {need} bytes in the shard file {key}, have {have}; restore it from a copy, or create the array again"
                ),
            ));
        }
        let length = need - self.grid.index_offset();
        let buffer = Region::whole(Arc::new(Arena::new(usize::MAX).allocate(length as usize)?));
        let regions = Regions::contiguous(self.grid.index_offset(), length)?;
        let request = VolumeRequest { file, operation: Operation::Read, regions, buffer };
        let buffer = conformance::complete(self.volume.as_ref(), request)?;
        let mut index = vec![0; length as usize];
        buffer.copy_out(0, &mut index);
        self.grid.check_index(&index).map_err(|e| Error::new(e.kind, format!("{key}: {e}")))
    }

    /// The alignment for transfers.
    pub(crate) fn alignment(&self) -> Alignment {
        let state = self.state();
        state.open.values().map(|s| self.volume.alignment(s.file)).fold(Alignment::NONE, Alignment::max)
    }

    /// Opens the missing shards among `numbers`, and keeps all of them open until [`Self::unpin_after`].
    pub(crate) fn pin(&self, numbers: impl Iterator<Item = u64>, operation: Operation) -> Result<Vec<u64>> {
        let mut shards: Vec<u64> = numbers.collect();
        shards.sort_unstable();
        shards.dedup();
        let (missing, now) = self.use_open(&shards, operation);
        if !missing.is_empty() {
            for file in self.spare() {
                self.volume.close(file);
            }
        }
        for (at, &shard) in missing.iter().enumerate() {
            let file = match self.open_one(shard) {
                Ok(file) => file,
                Err(error) => {
                    shards.retain(|shard| !missing[at..].contains(shard));
                    self.unpin(&shards);
                    return Err(error);
                }
            };
            let mut state = self.state();
            // Another request may have opened it meanwhile.
            let spare = state.open.contains_key(&shard).then_some(file);
            state.open.entry(shard).or_insert_with(|| Shard::new(file)).take(operation, now);
            drop(state);
            if let Some(spare) = spare {
                self.volume.close(spare);
            }
        }
        Ok(shards)
    }

    /// Pins the open shards among `shards`. Returns the others, and the number of this use.
    fn use_open(&self, shards: &[u64], operation: Operation) -> (Vec<u64>, u64) {
        let mut state = self.state();
        state.uses += 1;
        let now = state.uses;
        let mut missing = Vec::new();
        for &number in shards {
            match state.open.get_mut(&number) {
                Some(shard) => shard.take(operation, now),
                None => missing.push(number),
            }
        }
        (missing, now)
    }

    /// Pins the shards to sync: for an array that grows, those with writes since the last sync; otherwise
    /// all.
    pub(crate) fn pin_unsynced(&self) -> Vec<u64> {
        let all = !self.grid.spec().growing;
        let mut shards = Vec::new();
        for (&number, shard) in &mut self.state().open {
            if all || shard.is_unsynced {
                shard.is_unsynced = false;
                shard.users += 1;
                shards.push(number);
            }
        }
        shards.sort_unstable();
        shards
    }

    /// Records that a sync of a shard failed.
    pub(crate) fn not_synced(&self, shard: u64) {
        if let Some(found) = self.state().open.get_mut(&shard) {
            found.is_unsynced = true;
        }
    }

    /// Unpins shards once the work is done.
    pub(crate) fn unpin_after(self: &Arc<Self>, ticket: &Ticket, shards: Vec<u64>) {
        let this = self.clone();
        // Unpinning closes nothing, because completions must not block.
        ticket.then(Box::new(move || this.unpin(&shards)));
    }

    fn unpin(&self, shards: &[u64]) {
        let mut state = self.state();
        for shard in shards {
            if let Some(found) = state.open.get_mut(shard) {
                found.users -= 1;
            }
        }
    }

    /// The open file of a pinned shard.
    pub(crate) fn file(&self, shard: u64) -> Option<FileId> {
        self.state().open.get(&shard).map(|found| found.file)
    }

    /// Removes the least recently used of the idle shards, and returns their files to close.
    fn spare(&self) -> Vec<FileId> {
        if !self.grid.spec().growing {
            return Vec::new();
        }
        let mut state = self.state();
        let idle = state.open.iter().filter(|(_, shard)| shard.users == 0 && !shard.is_unsynced);
        let mut idle: Vec<(u64, u64)> = idle.map(|(&number, shard)| (shard.last_use, number)).collect();
        idle.sort_unstable();
        let spare = &idle[..idle.len().saturating_sub(KEPT_OPEN)];
        spare.iter().filter_map(|(_, number)| state.open.remove(number).map(|shard| shard.file)).collect()
    }
}

impl Drop for Shards {
    fn drop(&mut self) {
        for shard in self.state().open.values() {
            self.volume.close(shard.file);
        }
    }
}
