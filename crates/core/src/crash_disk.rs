//! A disk in memory that can lose power. It then loses, keeps or tears data that were not durable.

use std::any::Any;
use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::{
    Alignment, Buffer, Completion, Disk, Entry, Error, ErrorKind, FileId, Names, OnDone, OpenMode, Operation,
    Request, Result, crc32c,
};

/// A disk writes a sector whole or not at all, even at a power loss.
const SECTOR_BYTES: u64 = 512;

thread_local! {
    /// Whether every checksum of a [`MemoryBuffer`] is that of zeros: a bug that simulations inject and must
    /// find.
    pub static SKIPS_CHECKSUMS: Cell<bool> = const { Cell::new(false) };
}

/// A [`Buffer`] in the memory of a test.
#[derive(Clone, Debug)]
pub struct MemoryBuffer {
    bytes: Arc<Mutex<Vec<u8>>>,
    start: usize,
    end: usize,
}

impl MemoryBuffer {
    /// A buffer with these bytes.
    pub fn new(bytes: Vec<u8>) -> Self {
        let end = bytes.len();
        Self { bytes: Arc::new(Mutex::new(bytes)), start: 0, end }
    }

    /// A copy of the bytes.
    pub fn to_vec(&self) -> Vec<u8> {
        lock(&self.bytes)[self.start..self.end].to_vec()
    }

    /// Number of views of the memory.
    pub fn views(&self) -> usize {
        Arc::strong_count(&self.bytes)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Buffer for MemoryBuffer {
    fn len(&self) -> usize {
        self.end - self.start
    }

    fn advance(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "advance by {bytes} in a buffer of {} bytes", self.len());
        self.start += bytes;
    }

    fn truncate(&mut self, bytes: usize) {
        assert!(bytes <= self.len(), "truncate a buffer of {} bytes to {bytes}", self.len());
        self.end = self.start + bytes;
    }

    fn copy_in(&mut self, at: usize, from: &[u8]) {
        assert!(at + from.len() <= self.len(), "{} bytes at {at} of {}", from.len(), self.len());
        lock(&self.bytes)[self.start + at..][..from.len()].copy_from_slice(from);
    }

    fn copy_out(&self, at: usize, to: &mut [u8]) {
        assert!(at + to.len() <= self.len(), "{} bytes at {at} of {}", to.len(), self.len());
        to.copy_from_slice(&lock(&self.bytes)[self.start + at..][..to.len()]);
    }

    fn crc32c(&self, at: usize, bytes: usize) -> u32 {
        if SKIPS_CHECKSUMS.get() {
            return crc32c(&vec![0; bytes]);
        }
        crc32c(&lock(&self.bytes)[self.start + at..][..bytes])
    }
}

#[derive(Clone, Debug)]
enum Change {
    Write { offset: u64, bytes: Vec<u8> },
    Resize { length: u64 },
}

#[derive(Debug, Default)]
struct Content {
    now: Vec<u8>,
    durable: Vec<u8>,
    /// Changes that turn `durable` into `now`.
    changes: Vec<Change>,
}

fn apply(content: &mut Vec<u8>, change: &Change) {
    match change {
        Change::Write { offset, bytes } => {
            let (start, end) = (*offset as usize, *offset as usize + bytes.len());
            if content.len() < end {
                content.resize(end, 0);
            }
            content[start..end].copy_from_slice(bytes);
        }
        Change::Resize { length } => content.resize(*length as usize, 0),
    }
}

impl Content {
    fn change(&mut self, change: Change) {
        apply(&mut self.now, &change);
        self.changes.push(change);
    }

    fn sync(&mut self) {
        for change in self.changes.drain(..) {
            apply(&mut self.durable, &change);
        }
    }

    fn crash(&mut self, random: &mut Random) {
        self.lose(random);
        self.now.clone_from(&self.durable);
    }

    /// Makes some of the pending changes durable, and drops the others.
    fn lose(&mut self, random: &mut Random) {
        for change in std::mem::take(&mut self.changes) {
            match (random.below(3), change) {
                (0, _) => {}
                (1, Change::Write { offset, bytes }) => {
                    // A torn write: it may lose any of its sectors.
                    let (mut at, end) = (offset, offset + bytes.len() as u64);
                    while at < end {
                        let next = end.min((at / SECTOR_BYTES + 1) * SECTOR_BYTES);
                        if random.below(2) == 0 {
                            let bytes = bytes[(at - offset) as usize..(next - offset) as usize].to_vec();
                            apply(&mut self.durable, &Change::Write { offset: at, bytes });
                        }
                        at = next;
                    }
                }
                (_, change) => apply(&mut self.durable, &change),
            }
        }
    }
}

/// Random numbers that depend on a seed only: the generator `splitmix64` (Steele, Lea & Flood 2014).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The generator for `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// The next number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// The next number of `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// True once in `times` calls on average.
    pub fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// A random item of several.
    pub fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len() as u64) as usize]
    }
}

type Node = Arc<Mutex<Content>>;

#[derive(Debug, Default)]
struct State {
    files: BTreeMap<String, Node>,
    open: HashMap<FileId, (Node, bool)>,
    next: u64,
    is_locked: bool,
}

/// Files in memory. Names are durable at once, as in a real directory; lengths and bytes are durable after a
/// sync.
#[derive(Debug, Default)]
pub struct CrashDisk {
    state: Arc<Mutex<State>>,
}

impl CrashDisk {
    /// Simulates a power loss and a restart. Every file is closed and every lock released. For each pending
    /// write, `random` decides whether all of it, nothing, or some sectors survive.
    pub fn crash(&self, random: &mut Random) {
        let mut state = lock(&self.state);
        state.open.clear();
        state.is_locked = false;
        for file in state.files.values() {
            lock(file).crash(random);
        }
    }

    /// Simulates a failed sync of a file, as Linux behaves (Rebello et al. 2020, *Can Applications Recover from
    /// fsync Failures?*). Reads see the written data until the power loss. The next sync does not report the
    /// data that this one lost.
    pub fn fail_sync(&self, file: FileId, random: &mut Random) {
        if let Ok((node, _)) = self.node(file) {
            lock(&node).lose(random);
        }
    }

    /// The contents of a file.
    pub fn content(&self, path: &str) -> Option<Vec<u8>> {
        lock(&self.state).files.get(path).map(|file| lock(file).now.clone())
    }

    /// Flips a bit of a file, as a bad disk does. Returns whether the file has the byte.
    pub fn flip(&self, path: &str, offset: usize, bit: u8) -> bool {
        let state = lock(&self.state);
        let Some(file) = state.files.get(path) else { return false };
        let file = &mut *lock(file);
        for content in [&mut file.now, &mut file.durable] {
            if let Some(byte) = content.get_mut(offset) {
                *byte ^= 1 << bit;
            }
        }
        offset < file.now.len()
    }

    /// The durable contents of all files.
    pub fn copy(&self) -> BTreeMap<String, Vec<u8>> {
        let state = lock(&self.state);
        state.files.iter().map(|(path, file)| (path.clone(), lock(file).durable.clone())).collect()
    }

    /// Replaces all files by those of a copy. Every file is closed.
    pub fn put_back(&self, copy: &BTreeMap<String, Vec<u8>>) {
        let mut state = lock(&self.state);
        state.open.clear();
        let file = |bytes: &Vec<u8>| {
            let (now, durable) = (bytes.clone(), bytes.clone());
            Arc::new(Mutex::new(Content { now, durable, ..Content::default() }))
        };
        state.files = copy.iter().map(|(path, bytes)| (path.clone(), file(bytes))).collect();
    }

    /// Appends zeros to a file, as another program might. Returns whether the file exists.
    pub fn lengthen(&self, path: &str, zeros: usize) -> bool {
        let state = lock(&self.state);
        let Some(file) = state.files.get(path) else { return false };
        let file = &mut *lock(file);
        for content in [&mut file.now, &mut file.durable] {
            content.resize(content.len() + zeros, 0);
        }
        true
    }

    /// The paths of all files.
    pub fn paths(&self) -> Vec<String> {
        lock(&self.state).files.keys().cloned().collect()
    }

    fn node(&self, file: FileId) -> Result<(Node, bool)> {
        let state = lock(&self.state);
        state.open.get(&file).cloned().ok_or_else(|| Error::new(ErrorKind::Closed, "the file was closed"))
    }

    fn run(&self, request: &mut Request<MemoryBuffer>) -> Result<usize> {
        let (node, writable) = self.node(request.file)?;
        let mut content = lock(&node);
        let offset = request.offset;
        match request.operation {
            Operation::Sync => {
                content.sync();
                Ok(0)
            }
            Operation::Write if !writable => Err(Error::new(ErrorKind::ReadOnly, "open for reading only")),
            Operation::Write => {
                let bytes = request.buffer.to_vec();
                content.change(Change::Write { offset, bytes });
                Ok(request.buffer.len())
            }
            Operation::Read => {
                let from = content.now.len().min(offset as usize);
                let bytes = request.buffer.len().min(content.now.len() - from);
                request.buffer.copy_in(0, &content.now[from..from + bytes]);
                Ok(bytes)
            }
        }
    }
}

fn missing(path: &str) -> Error {
    Error::new(ErrorKind::NotFound, format!("there is no {path}"))
}

impl Disk for CrashDisk {
    type Buffer = MemoryBuffer;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        let mut state = lock(&self.state);
        let node = match (state.files.get(path), mode) {
            (Some(_), OpenMode::Create { .. }) => {
                return Err(Error::new(ErrorKind::Exists, format!("{path} exists")));
            }
            (None, OpenMode::Create { length, .. }) => {
                let node = Node::default();
                lock(&node).change(Change::Resize { length });
                state.files.insert(path.into(), node.clone());
                node
            }
            (None, _) => return Err(missing(path)),
            (Some(node), OpenMode::Resize { length, .. }) => {
                lock(node).change(Change::Resize { length });
                node.clone()
            }
            (Some(node), OpenMode::Read | OpenMode::ReadWrite) => node.clone(),
        };
        state.next += 1;
        let file = FileId(state.next);
        state.open.insert(file, (node, mode != OpenMode::Read));
        Ok(file)
    }

    fn close(&self, file: FileId) {
        lock(&self.state).open.remove(&file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        Ok(lock(&self.node(file)?.0).now.len() as u64)
    }

    fn submit(&self, mut request: Request<MemoryBuffer>, done: OnDone<MemoryBuffer>) {
        let result = self.run(&mut request);
        done(Completion { buffer: request.buffer, result, started_ns: 0, finished_ns: 0 });
    }

    fn alignment(&self, _file: FileId) -> Alignment {
        Alignment::NONE
    }

    fn free_bytes(&self) -> Result<u64> {
        Ok(1 << 40)
    }
}

struct Unlock(Arc<Mutex<State>>);

impl Drop for Unlock {
    fn drop(&mut self) {
        lock(&self.0).is_locked = false;
    }
}

impl Names for CrashDisk {
    fn read_small(&self, path: &str) -> Result<Vec<u8>> {
        self.content(path).ok_or_else(|| missing(path))
    }

    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        let node = Node::default();
        {
            let mut content = lock(&node);
            content.change(Change::Write { offset: 0, bytes: bytes.to_vec() });
            content.sync();
        }
        lock(&self.state).files.insert(path.into(), node);
        Ok(())
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        let below = if path.is_empty() { String::new() } else { format!("{path}/") };
        let state = lock(&self.state);
        let mut entries: Vec<Entry> = Vec::new();
        for (path, node) in &state.files {
            let Some(rest) = path.strip_prefix(&below) else { continue };
            let (name, is_directory) = match rest.split_once('/') {
                Some((name, _)) => (name, true),
                None => (rest, false),
            };
            let length = if is_directory { 0 } else { lock(node).now.len() as u64 };
            if entries.last().is_none_or(|last| last.name != name) {
                entries.push(Entry { name: name.into(), is_directory, length });
            }
        }
        entries.sort();
        entries.dedup();
        Ok(entries)
    }

    fn remove(&self, path: &str) -> Result<()> {
        lock(&self.state).files.remove(path).map(|_| ()).ok_or_else(|| missing(path))
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Any + Send>> {
        let mut state = lock(&self.state);
        if std::mem::replace(&mut state.is_locked, true) {
            return Err(Error::new(
                ErrorKind::Busy,
                format!("{path} is locked; stop the process that uses it"),
            ));
        }
        Ok(Box::new(Unlock(self.state.clone())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(disk: &CrashDisk, file: FileId, operation: Operation, offset: u64, bytes: Vec<u8>) {
        let request = Request { file, operation, offset, buffer: MemoryBuffer::new(bytes) };
        disk.submit(request, Box::new(|done| assert!(done.result.is_ok())));
    }

    #[test]
    fn what_was_synced_survives_and_the_rest_may_be_torn() {
        let (mut kept, mut lost, mut torn) = (0, 0, 0);
        for seed in 0..200 {
            let disk = CrashDisk::default();
            let file = disk.open("f", OpenMode::Create { length: 0, reserve: false }).unwrap();
            run(&disk, file, Operation::Write, 100, vec![1; 5000]);
            run(&disk, file, Operation::Sync, 0, vec![]);
            run(&disk, file, Operation::Write, 1000, vec![2; 3000]);
            assert_eq!(disk.content("f").unwrap()[999..1001], [1, 2]);
            disk.crash(&mut Random::new(seed));
            let content = disk.content("f").unwrap();
            assert_eq!((&content[..100], &content[4000..]), (&[0; 100][..], &[1; 1100][..]));
            match content[1000..4000].iter().filter(|&&byte| byte == 2).count() {
                0 => lost += 1,
                3000 => kept += 1,
                _ => torn += 1,
            }
            assert!(disk.length(file).is_err(), "files are closed");
        }
        assert!(kept > 20 && lost > 20 && torn > 20, "{kept} {lost} {torn}");
    }
}
