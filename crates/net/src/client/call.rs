//! A call in flight: the frame to send, the memory for the answer's payload, and the callback.

use std::sync::Arc;
use std::time::Instant;

use outcore_core::wire::{Header, Kind};
use outcore_core::{Buffer, Error, ErrorKind, Incarnation, Result};
use outcore_memory::Region;

use crate::frames::is_small;

/// A received reply.
pub(crate) struct Reply {
    pub(crate) control: Vec<u8>,
    /// The run of the server that replied.
    pub(crate) incarnation: Incarnation,
}

/// Callback that gets the answer, or the error, and the memory.
pub(crate) type Done = Box<dyn FnOnce(Result<Reply>, Region) + Send>;

/// Bytes of a call in a channel's window, in addition to its payload. Waits have none.
const WEIGHT_BYTES: u64 = 4096;

/// The direction of a call's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moves {
    /// To the server.
    Out,
    /// From the server.
    In,
    /// No payload.
    Nothing,
}

pub(crate) struct Call {
    pub(crate) header: Header,
    pub(crate) control: Arc<Vec<u8>>,
    /// The memory to write from or read into. The thread that sends the call holds it meanwhile.
    pub(crate) region: Region,
    pub(crate) region_bytes: usize,
    pub(crate) moves: Moves,
    /// Whether a channel over a UNIX socket is preferred, if there is one.
    pub(crate) is_for_local: bool,
    /// Whether its answer may depend on later calls, as those of a collective that wait for other processes do.
    /// It moves no payload.
    pub(crate) is_wait: bool,
    pub(crate) attempts: u32,
    /// The time of the call, and of its last sending.
    pub(crate) called: Instant,
    pub(crate) sent: Instant,
    pub(crate) done: Done,
}

impl Call {
    /// A call that is not sent yet.
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
            is_wait: false,
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
        if self.is_wait {
            return 0;
        }
        WEIGHT_BYTES + u64::from(self.header.control_bytes) + self.region_bytes as u64
    }

    /// Whether the calling thread may send it.
    pub(crate) fn is_small(&self) -> bool {
        is_small(self.control.len() + if self.moves == Moves::Out { self.region_bytes } else { 0 })
    }

    /// The kind of its answer.
    pub(crate) fn answered_by(&self) -> Kind {
        if self.header.kind == Kind::IoRequest { Kind::IoReply } else { Kind::ManagerReply }
    }
}

/// The error of a call that cannot be answered any more.
pub(crate) fn closed() -> Error {
    Error::new(ErrorKind::Closed, "the pool was closed; connect again")
}
