//! Configuration of an I/O server.

use std::sync::Arc;

use outcore_core::{Clock, Grant, Handle, LengthGrant, Result, ServerId};

use crate::grants::Key;

/// Verification of grants.
pub trait Verify: Send {
    /// Returns an error of kind `denied` unless the manager made this grant for this file. The grant must also
    /// allow writing if `write` is set, and must not have expired at `now_s`, in seconds since 1970.
    fn verify(&self, grant: &Grant, handle: Handle, write: bool, now_s: u64) -> Result<()>;

    /// Verifies a grant to remove the data files of a file; otherwise like `verify`.
    fn verify_removal(&self, grant: &Grant, handle: Handle, now_s: u64) -> Result<()>;

    /// Verifies a grant to query the lengths of these files; otherwise like `verify`.
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

/// Allocates a buffer of the given size in bytes.
pub type Factory<B> = Arc<dyn Fn(usize) -> Result<B> + Send + Sync>;

/// Resources that an I/O server may use. Calls that find one exhausted wait in order.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Bytes of the buffers in which the server checks and merges partial blocks.
    pub scratch_bytes: usize,
    /// Bytes of cached checksums. They cover 16,384 times as many bytes of data.
    pub sums_bytes: usize,
    /// Open data files, at most, unless more are in use. Each takes up to four file descriptors.
    pub open_files: usize,
    /// Calls in progress, at most.
    pub calls: usize,
    /// Transfers in progress, at most, each of at most 4 MiB.
    pub pieces: usize,
    /// Transfers in progress for one call, at most.
    pub pieces_of_call: usize,
    /// Removed files that the server remembers, at most, so that a late write does not recreate them.
    pub removals: usize,
    /// Bytes of the disk that data leave free, for checksums, the log, and metadata on the same disk.
    pub spare_bytes: u64,
}

/// File descriptors of an open data file, at most: the file and its checksums, each opened in two ways.
const DESCRIPTORS_OF_A_FILE: usize = 4;
/// With fewer concurrent calls, the disk would be idle most of the time.
const LEAST_CALLS: usize = 4;

impl Limits {
    /// The same limits, with so few open data files that they need about `descriptors` file descriptors. Half of
    /// the files are in use by calls; the other half are idle or closing.
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

/// Returns the manager's time in seconds since 1970, or `None` if the manager does not answer. It may block.
pub type ManagerTime = Arc<dyn Fn() -> Option<u64> + Send + Sync>;

/// Configuration of an I/O server.
pub struct Config<B> {
    /// The pool that the server belongs to.
    pub pool: u128,
    /// The server's number in the pool.
    pub server: ServerId,
    /// Verifies grants.
    pub verify: Box<dyn Verify>,
    /// Allocates the scratch buffers, aligned for the disk.
    pub scratch: Factory<B>,
    /// Whether the server reads memory that processes on its machine offer.
    pub reads_memory: bool,
    /// The resources that the server may use.
    pub limits: Limits,
    /// The clock for the times in answers.
    pub clock: Arc<dyn Clock>,
    /// Asks the manager for its time, which decides when grants expire. With `None` the server uses this machine's
    /// time.
    pub manager_time: Option<ManagerTime>,
}
