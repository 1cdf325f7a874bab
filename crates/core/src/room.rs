//! The seam for room that a metadata store keeps on its disk.

use crate::Result;

/// Room on one disk, part of which can be kept in a file until it is needed.
pub trait Room: Send {
    /// Bytes that can be written now.
    fn free_bytes(&self) -> Result<u64>;

    /// Bytes of the whole disk.
    fn total_bytes(&self) -> Result<u64>;

    /// Takes so many bytes from the disk, and keeps them.
    fn keep(&mut self, bytes: u64) -> Result<()>;

    /// Gives back what is kept, if anything is.
    fn release(&mut self) -> Result<()>;
}
