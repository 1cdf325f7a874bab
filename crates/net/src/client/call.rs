//! A call under way: what is sent, where the answer's payload goes, and who waits for it.

use std::sync::Arc;
use std::time::Instant;

use outcore_core::wire::{Header, Kind};
use outcore_core::{Buffer, Incarnation, Result};
use outcore_memory::Region;

use crate::frames::is_small;

/// What came back.
pub(crate) struct Reply {
    pub(crate) control: Vec<u8>,
    /// The run of the server that sent it.
    pub(crate) incarnation: Incarnation,
}

/// Called with the answer, or the error, and with the memory.
pub(crate) type Done = Box<dyn FnOnce(Result<Reply>, Region) + Send>;

/// What a call takes in the account of a channel, beside its payload.
const WEIGHT_BYTES: u64 = 4096;

/// Which way the bytes of a call's memory go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// To the server.
    Out,
    /// From it.
    In,
    /// There are none.
    Nothing,
}

pub(crate) struct Call {
    pub(crate) header: Header,
    pub(crate) control: Arc<Vec<u8>>,
    /// What is written, or where what is read goes. A thread that sends it has it meanwhile.
    pub(crate) region: Region,
    pub(crate) region_bytes: usize,
    pub(crate) moves: Moves,
    /// Whether it goes over a UNIX socket if there is one, and not over another channel to the same server.
    pub(crate) is_for_local: bool,
    pub(crate) attempts: u32,
    /// When it was called; and when it was sent last.
    pub(crate) called: Instant,
    pub(crate) sent: Instant,
    pub(crate) done: Done,
}

impl Call {
    /// Not sent yet.
    pub(crate) fn new(kind: Kind, control: Vec<u8>, region: Region, moves: Moves, done: Done) -> Self {
        let sent = if moves == Moves::Out { region.len() } else { 0 };
        let header = Header {
            payload_bytes: sent as u64,
            payload_crc: region.crc32c(0, sent),
            ..Header::of(kind, &control)
        };
        let now = Instant::now();
        Self {
            header,
            control: Arc::new(control),
            region_bytes: region.len(),
            region,
            moves,
            is_for_local: false,
            attempts: 0,
            called: now,
            sent: now,
            done,
        }
    }

    pub(crate) fn number(&self) -> u64 {
        self.header.request
    }

    pub(crate) fn weight(&self) -> u64 {
        WEIGHT_BYTES + u64::from(self.header.control_bytes) + self.region_bytes as u64
    }

    /// Whether who makes it sends it.
    pub(crate) fn is_small(&self) -> bool {
        is_small(self.control.len() + if self.moves == Moves::Out { self.region_bytes } else { 0 })
    }

    /// What the answer must be.
    pub(crate) fn answered_by(&self) -> Kind {
        if self.header.kind == Kind::IoRequest { Kind::IoReply } else { Kind::ManagerReply }
    }
}
