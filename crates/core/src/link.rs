//! The link seam: how a client reaches the servers of a pool.

use crate::{Buffer, Incarnation, IoReply, IoRequest, ManagerReply, ManagerRequest, Result, ServerId};

/// The answer to a call, and its buffer back.
#[derive(Debug)]
pub struct Answer<B> {
    /// What the server said; `IoReply::Failed` if it could not be reached.
    pub reply: IoReply,
    /// The buffer of the call: of a read that was done, filled.
    pub buffer: B,
    /// The run of the server that answered: another one may not have what this one has not made durable.
    pub incarnation: Incarnation,
    /// When the call began, by the link's clock.
    pub started_ns: u64,
    /// When it was answered.
    pub finished_ns: u64,
}

/// Called once, on a thread of the link's choosing, when a call is answered. It must not block.
pub type OnAnswer<B> = Box<dyn FnOnce(Answer<B>) + Send>;

/// The way to the manager and the I/O servers of one pool.
pub trait Link: Send + Sync {
    /// The memory that travels.
    type Buffer: Buffer;

    /// Sends a request to an I/O server: one message. Of a write, `buffer` is what is written, of a read, where the
    /// bytes go; its length is [`crate::Regions::local_bytes`] of the request. Otherwise it is empty. `done` is
    /// always called, exactly once. Payloads are checked on the way: what arrives is what was sent, or an error.
    fn io(&self, server: ServerId, request: IoRequest, buffer: Self::Buffer, done: OnAnswer<Self::Buffer>);

    /// Whether a server may be another process on this machine, which could read the memory of this one.
    fn is_local(&self, server: ServerId) -> bool {
        let _ = server;
        false
    }

    /// Whether a server is retired, as far as is known here: then nothing is sent to it.
    fn is_retired(&self, server: ServerId) -> bool {
        let _ = server;
        false
    }

    /// Asks the manager, and waits. Rare and small: no data path does it.
    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply>;
}
