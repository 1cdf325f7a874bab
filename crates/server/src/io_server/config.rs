//! What an I/O server is given when it is made.

use std::sync::Arc;

use outcore_core::{Clock, Grant, Handle, LengthGrant, Result, ServerId};

use crate::grants::Key;

/// Whether grants allow what is asked for.
pub trait Verify: Send {
    /// An error of kind `denied` unless the manager made this grant, for this file, for writing if `write`, and it has
    /// not ended at `now_s`, in seconds since 1970.
    fn verify(&self, grant: &Grant, handle: Handle, write: bool, now_s: u64) -> Result<()>;

    /// The same, of the right to remove the data files of a file.
    fn verify_removal(&self, grant: &Grant, handle: Handle, now_s: u64) -> Result<()>;

    /// The same, of the right to ask how long these files are.
    fn verify_lengths(&self, grant: &LengthGrant, handles: &[Handle], now_s: u64) -> Result<()>;
}

impl Verify for Key {
    fn verify(&self, grant: &Grant, handle: Handle, write: bool, now_s: u64) -> Result<()> {
        self.verify(grant, handle, write, now_s)
    }

    fn verify_removal(&self, grant: &Grant, handle: Handle, now_s: u64) -> Result<()> {
        self.verify_removal(grant, handle, now_s)
    }

    fn verify_lengths(&self, grant: &LengthGrant, handles: &[Handle], now_s: u64) -> Result<()> {
        self.verify_lengths(grant, handles, now_s)
    }
}

/// Makes a buffer of so many bytes.
pub type Factory<B> = Arc<dyn Fn(usize) -> Result<B> + Send + Sync>;

/// What an I/O server may take for itself. Calls that find it used up wait in line.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the buffers in which parts of blocks are checked and merged.
    pub scratch_bytes: usize,
    /// Bytes of the checksums kept in memory, for data of 16,384 times as many bytes.
    pub sums_bytes: usize,
    /// Most data files open at once, beside those in use. Each takes up to four file descriptors.
    pub open_files: usize,
    /// Most calls in work at once.
    pub calls: usize,
    /// Most transfers in work at once, each of at most 4 MiB.
    pub pieces: usize,
    /// Most transfers of one call in work at once.
    pub pieces_of_call: usize,
    /// Most removed files that are remembered, so that no write that comes late makes them anew.
    pub removals: usize,
    /// Bytes of the disk that data leave free: for checksums, the log, and metadata that are on the same disk.
    pub spare_bytes: u64,
}

/// File descriptors of an open data file, at most: it and its checksums, each by two ways.
const DESCRIPTORS_OF_A_FILE: usize = 4;
/// Fewer calls at once would hardly use a disk.
const LEAST_CALLS: usize = 4;

impl Limits {
    /// The same, with so few data files open at once that they take about `descriptors` file descriptors: half of the files
    /// are in use by calls, and half are idle or being closed.
    pub fn within(self, descriptors: usize) -> Self {
        let files = (descriptors / DESCRIPTORS_OF_A_FILE / 2).max(LEAST_CALLS);
        Self { open_files: self.open_files.min(files), calls: self.calls.min(files), ..self }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            scratch_bytes: 16 << 20,
            sums_bytes: 8 << 20,
            open_files: 32,
            calls: 64,
            pieces: 64,
            pieces_of_call: 16,
            removals: 1 << 16,
            spare_bytes: 0,
        }
    }
}

/// Seconds since 1970 as the manager says, `None` if it does not answer. It may wait.
pub type ManagerTime = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// What an I/O server is given.
pub struct Config<B> {
    /// Which pool it is of.
    pub pool: u128,
    /// Which server of the pool it is.
    pub server: ServerId,
    /// Who verifies grants.
    pub verify: Box<dyn Verify>,
    /// Makes its scratch buffers, aligned as the disk likes it.
    pub scratch: Factory<B>,
    /// Whether it reads what processes on its machine offer of their memory.
    pub reads_memory: bool,
    /// What it may take.
    pub limits: Limits,
    /// The clock of the times in answers.
    pub clock: Arc<dyn Clock>,
    /// Asks the manager for its time, by which grants end. Of `None` that is the time of this machine.
    pub manager_time: Option<ManagerTime>,
}
