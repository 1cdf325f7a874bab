//! Memory of processes that servers on the same machine read directly, without a socket.

use std::fmt;

use crate::{ByteRun, Result, Share};

/// Shares with shorter runs in memory, on average, travel in messages. For the system, each run costs as much
/// as copying a few thousand bytes.
pub const LEAST_MEMORY_RUN_BYTES: u64 = 1024;

/// The same for runs in a piece, which cost less.
pub const LEAST_PIECE_RUN_BYTES: u64 = 64;

/// The memory of another process on the same machine.
pub trait PeerMemory<B>: fmt::Debug + Send + Sync {
    /// Copies bytes of that process to a buffer: `runs` are addresses in the process, `places` are offsets in
    /// `buffer`. Both have the same number of bytes, and each place lies in the buffer.
    ///
    /// An error means that not all bytes could be read: the process has ended, it does not have this memory,
    /// or the system refuses.
    fn read(&self, runs: &[ByteRun], buffer: &mut B, places: &[ByteRun]) -> Result<()>;
}

/// Memory that a process offers to servers on its machine for reading, while a collective runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryOffer {
    /// A random number for this offer. A server that finds it at `nonce_address` reads the memory of the
    /// right process.
    pub nonce: u128,
    /// The address of the nonce in the process: 16 bytes, little-endian.
    pub nonce_address: u64,
    /// The process's arrays, in the order of the memory schema.
    pub arrays: Vec<OfferedArray>,
}

/// The place of an array in the memory of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OfferedArray {
    /// Address of the first element.
    pub address: u64,
    /// Distance in bytes between elements along each dimension.
    pub strides: Vec<i64>,
}

/// A share that a server reads from the memory of its process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectShare {
    /// The share's runs in that memory.
    pub runs: Vec<ByteRun>,
    /// The place of its bytes in the piece, in the same order.
    pub places: Vec<ByteRun>,
}

impl MemoryOffer {
    /// The runs by which a server reads a share from the memory. `None` if the runs are short: then the
    /// process sends the share in a message. Server and process make the same decision.
    pub fn direct(&self, share: &Share, item_bytes: u64) -> Option<DirectShare> {
        let array = |part: usize| (self.arrays[part].address as i64, self.arrays[part].strides.as_slice());
        let runs = share.runs_in_memory(item_bytes, LEAST_MEMORY_RUN_BYTES, array)?;
        let places = share.runs_in_piece(item_bytes, LEAST_PIECE_RUN_BYTES)?;
        Some(DirectShare { runs, places })
    }
}
