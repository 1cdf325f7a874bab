//! Memory of processes that servers on their machine read by themselves, without a socket in between.

use std::fmt;

use crate::{ByteRun, Result, Share};

/// Shares whose runs in memory are shorter, on average, travel by messages: each run costs the system as much as the copying
/// of some thousand bytes.
pub const LEAST_MEMORY_RUN_BYTES: u64 = 1024;

/// The same of runs in a piece, which cost less.
pub const LEAST_PIECE_RUN_BYTES: u64 = 64;

/// The memory of another process on the same machine.
pub trait PeerMemory<B>: fmt::Debug + Send + Sync {
    /// Copies the bytes of `runs`, which are places in the memory of that process, to the bytes of `places` in a buffer. There
    /// are as many of them, and each place lies in the buffer.
    ///
    /// An error says that not all of them could be read: the process has ended, does not have this memory, or the system
    /// does not allow it.
    fn read(&self, runs: &[ByteRun], buffer: &mut B, places: &[ByteRun]) -> Result<()>;
}

/// What a process offers to have read by servers on its machine while a collective goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOffer {
    /// Made at random for this offer. A server that finds it at `nonce_address` does read the memory of this process.
    pub nonce: u128,
    /// Where the process has it in memory, in 16 bytes, the lowest first.
    pub nonce_address: u64,
    /// Its arrays, in the order of the memory schema.
    pub arrays: Vec<OfferedArray>,
}

/// Where an array lies in the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedArray {
    /// Of its first element.
    pub address: u64,
    /// Bytes from one element to the next along each dimension.
    pub strides: Vec<i64>,
}

/// A share that is read from the memory of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectShare {
    /// Where it lies there.
    pub runs: Vec<ByteRun>,
    /// Where its bytes belong in the piece, in the same order.
    pub places: Vec<ByteRun>,
}

impl MemoryOffer {
    /// How a share is read from the memory, by a server that does that; `None` if it lies in short runs, and is given by a
    /// message all the same. Server and process decide it alike.
    pub fn direct(&self, share: &Share, item_bytes: u64) -> Option<DirectShare> {
        let array = |part: usize| (self.arrays[part].address as i64, self.arrays[part].strides.as_slice());
        let runs = share.runs_in_memory(item_bytes, LEAST_MEMORY_RUN_BYTES, array)?;
        let places = share.runs_in_piece(item_bytes, LEAST_PIECE_RUN_BYTES)?;
        Some(DirectShare { runs, places })
    }
}
