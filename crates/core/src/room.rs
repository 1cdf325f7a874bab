//! The trait for disk space that a metadata store reserves.

use crate::Result;

/// Space on one disk, part of which a file can reserve until it is needed.
pub trait Room: Send {
    /// Free space in bytes.
    fn free_bytes(&self) -> Result<u64>;

    /// Size of the disk in bytes.
    fn total_bytes(&self) -> Result<u64>;

    /// Reserves `bytes` bytes of the disk.
    fn keep(&mut self, bytes: u64) -> Result<()>;

    /// Releases the reserved space, if any.
    fn release(&mut self) -> Result<()>;
}
