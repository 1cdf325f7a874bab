//! Files mapped into memory, for fast copies of short runs.
//!
//! A short run costs a system call of 0.4 µs otherwise, and a copy of 0.03 µs here. Only reads use mappings. A
//! write through a mapping would make the system read whole pages and write them back, including bytes of other
//! writers.
//!
//! **How readers survive.** The system raises SIGBUS if a mapped page cannot be read: another process truncated
//! the file, or the disk failed. Our handler replaces the rest of the mapping by zeros and marks it broken. A
//! reader checks the mark after its copy; if it is set, the reader discards the copy and repeats it by requests,
//! which return the error. Files are therefore mapped only while our handler is installed. It passes faults
//! elsewhere to the previous handler.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use outcore_core::{Piece, Run};
use outcore_memory::{Block, Level, copy_strided};

use crate::short_writes::{GAP_BYTES, needed};

/// Mapped files of this process, at most.
const MOST_MAPPINGS: usize = 1024;

/// Number of bytes to read from the disk ahead of the copy.
const AHEAD_BYTES: u64 = 16 << 20;

/// The page tables of a mapping take 1/512 of the bytes read through it. After this many bytes the file is mapped
/// again.
const MOST_TOUCHED_BYTES: u64 = 4 << 30;

/// Granularity for counting the resident pages of a mapping, in bytes: the range of one page table.
const UNIT_BYTES: u64 = 2 << 20;

/// The resident pages of a mapping count as memory of the process, outside of any budget. Beyond this many bytes,
/// they are unmapped. Reading a mapped page again costs nothing extra; an unmapped one costs 0.1 to 0.6 µs.
static MOST_RESIDENT_BYTES: AtomicU64 = AtomicU64::new(4 << 20);

/// Sets the number of bytes that one mapping may keep resident.
pub fn set_most_resident_bytes(bytes: u64) {
    MOST_RESIDENT_BYTES.store(bytes, Ordering::Relaxed);
}

/// Address range of a mapping, for the SIGBUS handler. `start` is 0 in a free slot.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    is_broken: AtomicBool,
}

static SLOTS: [Slot; MOST_MAPPINGS] = [const {
    Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_broken: AtomicBool::new(false) }
}; MOST_MAPPINGS];

/// Serializes the allocation of slots.
static TAKING: Mutex<()> = Mutex::new(());

/// The previous handler.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A file mapped for reading, in whole or from its start.
pub(crate) struct Mapping {
    block: Block,
    slot: &'static Slot,
    resident: Resident,
    /// Bytes unmapped so far.
    touched: AtomicU64,
}

/// The units of a mapping that may have resident pages.
struct Resident {
    units: Vec<AtomicU64>,
    bytes: AtomicU64,
}

impl Resident {
    fn new(bytes: u64) -> Self {
        let words = bytes.div_ceil(64 * UNIT_BYTES);
        Self { units: (0..words).map(|_| AtomicU64::new(0)).collect(), bytes: AtomicU64::new(0) }
    }

    /// Adds the units of a range of the file. Returns the total bytes of all units.
    fn add(&self, start: u64, bytes: u64) -> u64 {
        let (first, end) = (start / UNIT_BYTES, (start + bytes).div_ceil(UNIT_BYTES));
        let is_new = |unit: &u64| {
            let bit = 1 << (unit % 64);
            let word = self.units.get((unit / 64) as usize);
            word.is_some_and(|word| {
                word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
            })
        };
        let added = (first..end).filter(is_new).count() as u64 * UNIT_BYTES;
        self.bytes.fetch_add(added, Ordering::Relaxed) + added
    }

    /// Clears all units. Returns their total bytes.
    fn clear(&self) -> u64 {
        self.units.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

impl Mapping {
    /// Maps the first `bytes` bytes of `file`. Returns `None` if the system refuses, or if a reader would not
    /// survive SIGBUS.
    pub(crate) fn new(file: &File, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)?;
        if !handles_bus_errors() {
            return None;
        }
        let taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = SLOTS.iter().find(|slot| slot.start.load(Ordering::Acquire) == 0)?;
        // SAFETY: a new mapping at a place of the system's choosing touches no existing memory.
        let start = unsafe {
            libc::mmap(ptr::null_mut(), bytes, libc::PROT_READ, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        let start = NonNull::new(start.cast::<u8>()).filter(|_| start != libc::MAP_FAILED)?;
        slot.is_broken.store(false, Ordering::Relaxed);
        slot.end.store(start.as_ptr() as usize + bytes, Ordering::Release);
        slot.start.store(start.as_ptr() as usize, Ordering::Release);
        drop(taking);
        // SAFETY: the mapping exists until `drop`; nothing ever writes to this block, which never leaves this
        // struct.
        let block = unsafe { Block::foreign(start, bytes, Box::new(())) };
        Some(Self { block, slot, resident: Resident::new(bytes as u64), touched: AtomicU64::new(0) })
    }

    /// Number of mapped bytes of the file.
    pub(crate) fn bytes(&self) -> u64 {
        self.block.len() as u64
    }

    /// Whether the mapping should be replaced: a page could not be read, or its page tables are large.
    pub(crate) fn is_worn(&self) -> bool {
        self.is_broken() || self.touched.load(Ordering::Relaxed) > MOST_TOUCHED_BYTES
    }

    fn is_broken(&self) -> bool {
        self.slot.is_broken.load(Ordering::Acquire)
    }

    /// Copies pieces of the file to a block of memory; their memory offsets count from byte `origin`. Returns the
    /// pieces that were not copied.
    ///
    /// With `ahead`, which is the same file, the disk reads the required pages ahead of the copy. Otherwise the
    /// system reads missing pages on demand, in large units of the page cache. That takes less time for reading,
    /// but a later short write to such a unit takes 4 µs, and one to a single page 0.6 µs.
    pub(crate) fn copy(
        &self,
        ahead: Option<&File>,
        pieces: Vec<Piece>,
        memory: &Block,
        origin: i64,
    ) -> Vec<Piece> {
        let (mut asked, mut asked_bytes, mut copied_bytes) = (0, 0, 0);
        let mut left = Vec::new();
        for piece in &pieces {
            while let (Some(file), Some(next)) = (ahead, pieces.get(asked))
                && asked_bytes <= copied_bytes + AHEAD_BYTES
            {
                self.ask_for(file, next);
                asked_bytes += next.extent_bytes;
                asked += 1;
            }
            copied_bytes += piece.extent_bytes;
            let levels: Vec<Level> = piece
                .strides
                .iter()
                .map(|s| Level { count: s.count, from: s.file as i64, to: s.memory })
                .collect();
            let from = (&self.block, piece.file_offset as i64);
            let to = (memory, origin + piece.memory_offset);
            if copy_strided(from, to, piece.run_bytes as usize, &levels).is_err() {
                left.push(piece.clone());
            }
            self.let_go_after(piece);
        }
        if self.is_broken() { pieces } else { left }
    }

    /// Starts reading the pages of a piece, unless they seem to be in memory.
    fn ask_for(&self, file: &File, piece: &Piece) {
        if !self.lacks(piece.file_offset, piece.file_offset + reach_bytes(piece)) {
            return;
        }
        let (mut extent, mut inner) = (piece.run_bytes, 0);
        while let Some(stride) = piece.strides.get(inner)
            && stride.file.saturating_sub(extent) <= GAP_BYTES
        {
            extent += (stride.count - 1) * stride.file;
            inner += 1;
        }
        let far_apart = Piece { strides: piece.strides[inner..].to_vec(), ..piece.clone() };
        far_apart.for_each_run(|from, _| {
            will_need(file, piece.file_offset + from, extent);
        });
    }

    /// Starts reading the pages that a write of a piece needs, unless they seem to be in memory.
    pub(crate) fn ask_to_write(&self, file: &File, piece: &Piece) {
        let is_whole = |bytes: u64| bytes.is_multiple_of(page_bytes() as u64);
        let are_pages = is_whole(piece.file_offset)
            && is_whole(piece.run_bytes)
            && piece.strides.iter().all(|stride| is_whole(stride.file));
        if !are_pages {
            self.ask_for(file, piece);
        }
    }

    /// Starts reading the pages that a write of runs needs, unless they seem to be in memory.
    pub(crate) fn ask_for_runs(&self, file: &File, runs: &[Run]) {
        for (start, end) in needed(runs, page_bytes() as u64) {
            if self.lacks(start, end) {
                will_need(file, start, end - start);
            }
        }
    }

    /// Whether the first or the last page of a range is missing from memory.
    fn lacks(&self, start: u64, end: u64) -> bool {
        let is_inside = start < end && end <= self.bytes();
        is_inside && !(self.is_in_memory(start) && self.is_in_memory(end - 1))
    }

    /// Whether the page with this byte of the file is in the page cache.
    fn is_in_memory(&self, offset: u64) -> bool {
        let page = offset as usize & !(page_bytes() - 1);
        let mut found = 0_u8;
        // SAFETY: the page belongs to the mapping, and `found` has the one byte that the call writes to.
        let failed =
            unsafe { libc::mincore(self.block.as_ptr().wrapping_add(page).cast(), 1, &raw mut found) };
        failed == 0 && found & 1 == 1
    }
}

impl Mapping {
    /// Counts the pages of a copied piece. If there are many, unmaps all pages from the process's memory; they
    /// stay in the page cache.
    fn let_go_after(&self, piece: &Piece) {
        let resident = self.resident.add(piece.file_offset, reach_bytes(piece));
        if resident > MOST_RESIDENT_BYTES.load(Ordering::Relaxed) {
            self.touched.fetch_add(self.resident.clear(), Ordering::Relaxed);
            // SAFETY: the range is this mapping of a file, which is never written to: a later read finds the same
            // bytes.
            unsafe { libc::madvise(self.block.as_ptr().cast(), self.block.len(), libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
        // SAFETY: the range is the one that `mmap` returned, unmapped once; no copy from it is in progress.
        unsafe { libc::munmap(self.block.as_ptr().cast(), self.block.len()) };
    }
}

/// Length of a piece in the file, from its first byte to its last.
fn reach_bytes(piece: &Piece) -> u64 {
    piece.run_bytes + piece.strides.iter().map(|stride| (stride.count - 1) * stride.file).sum::<u64>()
}

/// Starts reading a range of a file into the page cache, without waiting for it.
fn will_need(file: &File, offset: u64, bytes: u64) {
    // SAFETY: advice on an open descriptor; its failure is harmless.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, bytes as i64, libc::POSIX_FADV_WILLNEED) };
}

fn page_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    // SAFETY: `sysconf` only returns a number.
    *BYTES.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// Installs `on_bus_error` as the handler of SIGBUS, once. Returns whether it is installed now: other code may
/// have replaced it.
fn handles_bus_errors() -> bool {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let ours = on_bus_error as *const () as usize;
    page_bytes();
    // SAFETY: `sigaction` is a plain C struct for which all zeros is a valid value.
    let mut found: libc::sigaction = unsafe { std::mem::zeroed() };
    let is_installed = *INSTALLED.get_or_init(|| {
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = ours;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: the handler is async-signal-safe; both structs outlive the call.
        let failed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut found) };
        failed == 0 && BEFORE.set(found).is_ok()
    });
    // SAFETY: without a new action the call only fills `found`.
    let failed = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut found) };
    is_installed && failed == 0 && found.sa_sigaction == ours
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes a valid `siginfo_t`.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &SLOTS {
        let (start, end) = (slot.start.load(Ordering::Acquire), slot.end.load(Ordering::Acquire));
        if start != 0 && (start..end).contains(&address) {
            // Set before the zeros appear, so that no reader takes them for bytes of the file.
            slot.is_broken.store(true, Ordering::SeqCst);
            if put_zeros(address, end) {
                return;
            }
        }
    }
    pass_on(signal, info, context);
}

/// Replaces the pages of a mapping by zeros, from the page of `address` to the end.
fn put_zeros(address: usize, end: usize) -> bool {
    let page = address & !(page_bytes() - 1);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: `errno` belongs to the thread, and the interrupted code may need it.
    let error = unsafe { *libc::__errno_location() };
    // SAFETY: the range is part of one of our mappings, whose bytes readers expect to change at any time.
    let made = unsafe { libc::mmap(page as *mut libc::c_void, end - page, libc::PROT_READ, flags, -1, 0) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
    made != libc::MAP_FAILED
}

/// Passes a fault outside of our mappings to the previous handler.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    match BEFORE.get() {
        Some(before) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction) => {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: with this flag the address is a function with these arguments.
                let handler: WithInfo = unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: without the flag, the address is a function of the signal's number alone.
                let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal);
            }
        }
        // SAFETY: both are async-signal-safe; the process ends when this handler returns.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        },
    }
}
