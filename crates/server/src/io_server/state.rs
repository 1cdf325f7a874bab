//! The report of a server for people and monitoring: its queues, its repairs, and the collectives in flight.

use outcore_core::{Buffer, Handle};

use super::shared::Shared;

/// The state of a server at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerState {
    /// The waiting work.
    pub queues: Queues,
    /// The known damage, and its repair.
    pub repair: Repair,
    /// The collectives in flight.
    pub collectives: Vec<CollectiveState>,
}

/// Lengths of a server's queues.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Queues {
    /// Calls that wait until others end.
    pub calls: u64,
    /// Transfers of blocks that wait until others end.
    pub pieces: u64,
    /// Requests to the disk without a completion.
    pub disk: u64,
    /// Operations on names without a result.
    pub names: u64,
}

/// Damage that a server knows, and the bytes that it has checked and repaired since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// Blocks with a wrong checksum that nobody has overwritten since.
    pub damaged_blocks: u64,
    /// Damaged blocks that a write replaced.
    pub repaired_blocks: u64,
    /// Files of which the disk may have lost writes.
    pub lost_files: u64,
    /// Files with logged regions: after a crash, the server examines these.
    pub noted_files: u64,
    /// Bytes that scrubs compared with their checksums.
    pub scrubbed_bytes: u64,
    /// Scrubs that reached the last file.
    pub scrubs: u64,
}

/// A collective in flight on a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CollectiveState {
    /// Its random number.
    pub id: u128,
    /// Its file.
    pub handle: Handle,
    /// Whether processes write.
    pub is_write: bool,
    /// Number of processes.
    pub ranks: u64,
    /// Number of processes that have joined.
    pub joined: u64,
    /// Rounds that have begun.
    pub begun: u64,
    /// All rounds on this server.
    pub rounds: u64,
    /// Whether all data are transferred.
    pub is_done: bool,
}

impl<B: Buffer> Shared<B> {
    /// The present state.
    pub fn state(&self) -> ServerState {
        let queues = Queues {
            calls: self.calls.waiting() as u64,
            pieces: self.pieces.waiting() as u64,
            ..self.disk_queues()
        };
        let repair = Repair {
            damaged_blocks: self.known_damage() as u64,
            lost_files: self.lost.borrow().len() as u64,
            noted_files: self.notes.borrow().count() as u64,
            ..self.repair.get()
        };
        ServerState { queues, repair, collectives: self.collectives.states() }
    }
}
