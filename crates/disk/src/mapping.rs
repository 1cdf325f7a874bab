//! Files mapped into memory, out of which short runs are copied.
//!
//! A short run costs a system call of 0.4 µs otherwise, and a copy of 0.03 µs here. Only reading maps files: a write
//! through a mapping would have the system read whole pages and write them back, with bytes of others in them.
//!
//! **Why no reader dies.** The system raises SIGBUS where a mapped page cannot be read: another process truncated the
//! file, or the disk failed. A handler then puts zeros in the place of the rest of the mapping and marks it broken. A
//! reader looks at the mark after its copy, drops what it copied, and reads by requests, which return the error. So
//! files are mapped only while this handler is the one that the system calls. Faults elsewhere go to the handler that
//! was there before.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use outcore_core::{Piece, Run};
use outcore_memory::{Block, Level, copy_strided};

use crate::short_writes::{GAP_BYTES, needed};

/// Most files that are mapped at once in this process.
const MOST_MAPPINGS: usize = 1024;

/// So many bytes ahead of the copy are read from the disk.
const AHEAD_BYTES: u64 = 16 << 20;

/// Page tables of a mapping take a 512th of what was read through it: after so many bytes the file is mapped anew.
const MOST_TOUCHED_BYTES: u64 = 4 << 30;

/// Pages of a mapping are counted by units of so many bytes: those of one table of pages.
const UNIT_BYTES: u64 = 2 << 20;

/// Pages of a mapping count as memory of the process, outside of any budget: after so many bytes they are let go. A
/// page that is still mapped costs nothing to read again, and a missing one 0.1 to 0.6 µs.
static MOST_RESIDENT_BYTES: AtomicU64 = AtomicU64::new(4 << 20);

/// Sets how many bytes of files one mapping may keep in the process's memory.
pub fn set_most_resident_bytes(bytes: u64) {
    MOST_RESIDENT_BYTES.store(bytes, Ordering::Relaxed);
}

/// Where a mapping lies, for the handler of SIGBUS. `start` is 0 in a slot that is free.
struct Slot {
    start: AtomicUsize,
    end: AtomicUsize,
    is_broken: AtomicBool,
}

static SLOTS: [Slot; MOST_MAPPINGS] = [const {
    Slot { start: AtomicUsize::new(0), end: AtomicUsize::new(0), is_broken: AtomicBool::new(false) }
}; MOST_MAPPINGS];

/// Held by whoever takes a slot.
static TAKING: Mutex<()> = Mutex::new(());

/// The handler that was there before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A file, or its first bytes, mapped for reading.
pub(crate) struct Mapping {
    block: Block,
    slot: &'static Slot,
    resident: Resident,
    /// Bytes that were let go.
    touched: AtomicU64,
}

/// The units of a mapping that may have pages in the process's memory.
struct Resident {
    units: Vec<AtomicU64>,
    bytes: AtomicU64,
}

impl Resident {
    fn new(bytes: u64) -> Self {
        let words = bytes.div_ceil(64 * UNIT_BYTES);
        Self { units: (0..words).map(|_| AtomicU64::new(0)).collect(), bytes: AtomicU64::new(0) }
    }

    /// Adds the units of a range of the file. Returns the bytes of all units.
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

    /// Forgets all units. Returns the bytes that they had.
    fn clear(&self) -> u64 {
        self.units.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.bytes.swap(0, Ordering::Relaxed)
    }
}

impl Mapping {
    /// The first `bytes` bytes of `file`; `None` where the system refuses, or a reader could die of it.
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
        // SAFETY: the mapping is there until `drop`; nothing is ever written to this block, which stays in here.
        let block = unsafe { Block::foreign(start, bytes, Box::new(())) };
        Some(Self { block, slot, resident: Resident::new(bytes as u64), touched: AtomicU64::new(0) })
    }

    /// Bytes of the file that are mapped.
    pub(crate) fn bytes(&self) -> u64 {
        self.block.len() as u64
    }

    /// Whether another mapping should take its place: a page could not be read, or its page tables are large.
    pub(crate) fn is_worn(&self) -> bool {
        self.is_broken() || self.touched.load(Ordering::Relaxed) > MOST_TOUCHED_BYTES
    }

    fn is_broken(&self) -> bool {
        self.slot.is_broken.load(Ordering::Acquire)
    }

    /// Copies pieces of the file to a block of memory, from whose byte `origin` their places count. Returns those that
    /// it did not copy.
    ///
    /// With `ahead`, the disk reads ahead of the copy what that file needs, page by page. Otherwise the system reads
    /// when a page is missing, by large units of the page cache. Reading takes less time so, but a short write to such
    /// a unit takes 4 µs, and one to a page 0.6 µs.
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

    /// Starts reading what a piece needs, unless that seems to be in memory.
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

    /// Starts reading the pages that the system needs to write a piece, unless they seem to be in memory.
    pub(crate) fn ask_to_write(&self, file: &File, piece: &Piece) {
        let is_whole = |bytes: u64| bytes.is_multiple_of(page_bytes() as u64);
        let are_pages = is_whole(piece.file_offset)
            && is_whole(piece.run_bytes)
            && piece.strides.iter().all(|stride| is_whole(stride.file));
        if !are_pages {
            self.ask_for(file, piece);
        }
    }

    /// Starts reading the pages that the system needs to write runs of the file, unless they seem to be in memory.
    pub(crate) fn ask_for_runs(&self, file: &File, runs: &[Run]) {
        for (start, end) in needed(runs, page_bytes() as u64) {
            if self.lacks(start, end) {
                will_need(file, start, end - start);
            }
        }
    }

    /// Whether the first or the last page of a range is not in memory.
    fn lacks(&self, start: u64, end: u64) -> bool {
        let is_inside = start < end && end <= self.bytes();
        is_inside && !(self.is_in_memory(start) && self.is_in_memory(end - 1))
    }

    /// Whether the page with this byte of the file is in the page cache.
    fn is_in_memory(&self, offset: u64) -> bool {
        let page = offset as usize & !(page_bytes() - 1);
        let mut found = 0_u8;
        // SAFETY: the page is one of the mapping's, and `found` has the one byte that the call writes to.
        let failed =
            unsafe { libc::mincore(self.block.as_ptr().wrapping_add(page).cast(), 1, &raw mut found) };
        failed == 0 && found & 1 == 1
    }
}

impl Mapping {
    /// Counts the pages of a piece that was copied. When there are many, takes all pages out of the process's memory;
    /// they stay in the page cache.
    fn let_go_after(&self, piece: &Piece) {
        let resident = self.resident.add(piece.file_offset, reach_bytes(piece));
        if resident > MOST_RESIDENT_BYTES.load(Ordering::Relaxed) {
            self.touched.fetch_add(self.resident.clear(), Ordering::Relaxed);
            // SAFETY: the range is this mapping, of a file and never written to: a later look finds the same bytes.
            unsafe { libc::madvise(self.block.as_ptr().cast(), self.block.len(), libc::MADV_DONTNEED) };
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        self.slot.start.store(0, Ordering::Release);
        // SAFETY: the range is the one that `mmap` returned, unmapped once; no copy out of it is under way.
        unsafe { libc::munmap(self.block.as_ptr().cast(), self.block.len()) };
    }
}

/// Bytes from the first one of a piece in the file to its last one.
fn reach_bytes(piece: &Piece) -> u64 {
    piece.run_bytes + piece.strides.iter().map(|stride| (stride.count - 1) * stride.file).sum::<u64>()
}

/// Starts reading a range of a file into the page cache, and does not wait for it.
fn will_need(file: &File, offset: u64, bytes: u64) {
    // SAFETY: advice on an open descriptor; its failure is harmless.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, bytes as i64, libc::POSIX_FADV_WILLNEED) };
}

fn page_bytes() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    // SAFETY: a plain question to the system.
    *BYTES.get_or_init(|| usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096))
}

/// Makes sure, once, that `on_bus_error` is the handler of SIGBUS. Whether it is: others may have taken its place.
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
        // SAFETY: the handler does only what a handler of signals may; both structs outlive the call.
        let failed = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut found) };
        failed == 0 && BEFORE.set(found).is_ok()
    });
    // SAFETY: without a new action the call only fills `found`.
    let failed = unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut found) };
    is_installed && failed == 0 && found.sa_sigaction == ours
}

extern "C" fn on_bus_error(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the system passes the description of the signal.
    let address = unsafe { (*info).si_addr() } as usize;
    for slot in &SLOTS {
        let (start, end) = (slot.start.load(Ordering::Acquire), slot.end.load(Ordering::Acquire));
        if start != 0 && (start..end).contains(&address) {
            // Before the zeros are there, so that no reader takes them for the file's.
            slot.is_broken.store(true, Ordering::SeqCst);
            if put_zeros(address, end) {
                return;
            }
        }
    }
    pass_on(signal, info, context);
}

/// Replaces the pages of a mapping from that of `address` on by zeros.
fn put_zeros(address: usize, end: usize) -> bool {
    let page = address & !(page_bytes() - 1);
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
    // SAFETY: `errno` belongs to the thread, and what the signal interrupted may need it.
    let error = unsafe { *libc::__errno_location() };
    // SAFETY: the range is a part of one mapping of ours, which readers take for bytes that may change at any time.
    let made = unsafe { libc::mmap(page as *mut libc::c_void, end - page, libc::PROT_READ, flags, -1, 0) };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = error };
    made != libc::MAP_FAILED
}

/// Has the handler that was there before deal with a fault that is none of ours.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
    match BEFORE.get() {
        Some(before) if ![libc::SIG_DFL, libc::SIG_IGN].contains(&before.sa_sigaction) => {
            if before.sa_flags & libc::SA_SIGINFO != 0 {
                // SAFETY: with this flag the address is that of a function with these arguments.
                let handler: WithInfo = unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal, info, context);
            } else {
                // SAFETY: without it, of one with the number of the signal alone.
                let handler: extern "C" fn(libc::c_int) = unsafe { std::mem::transmute(before.sa_sigaction) };
                handler(signal);
            }
        }
        // SAFETY: both may be called in a handler; the process ends when this one returns.
        _ => unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        },
    }
}
