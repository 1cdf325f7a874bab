//! The link trait: a client's connection to the servers of a pool.

use crate::{Buffer, Incarnation, IoReply, IoRequest, ManagerReply, ManagerRequest, Result, ServerId};

/// The answer to a call. It returns the call's buffer.
#[derive(Debug)]
pub struct Answer<B> {
    /// The server's reply; `IoReply::Failed` if the server could not be reached.
    pub reply: IoReply,
    /// The buffer of the call. A successful read has filled it.
    pub buffer: B,
    /// The run of the server that answered. Another run may lack changes that this run has not made durable.
    pub incarnation: Incarnation,
    /// When the call started, by the link's clock.
    pub started_ns: u64,
    /// When the answer arrived.
    pub finished_ns: u64,
}

/// Called once with the answer to a call, on a thread that the link chooses. It must not block.
pub type OnAnswer<B> = Box<dyn FnOnce(Answer<B>) + Send>;

/// The connection to the manager and the I/O servers of one pool.
pub trait Link: Send + Sync {
    /// The memory that travels with requests.
    type Buffer: Buffer;

    /// Sends a request to an I/O server, as one message. For a write, `buffer` contains the bytes; for a
    /// read, it receives them. Its length is [`crate::Regions::local_bytes`] of the request. For other
    /// requests it is empty. `done` is called exactly once. The link checks payloads: it delivers the sent
    /// bytes, or an error.
    fn io(&self, server: ServerId, request: IoRequest, buffer: Self::Buffer, done: OnAnswer<Self::Buffer>);

    /// Whether a server may be another process on this machine, which could read this process's memory.
    fn is_local(&self, server: ServerId) -> bool {
        let _ = server;
        false
    }

    /// Whether the link knows that a server is retired. The client sends nothing to retired servers.
    fn is_retired(&self, server: ServerId) -> bool {
        let _ = server;
        false
    }

    /// Sends a request to the manager and waits for the reply. This is rare and small; no data path does it.
    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply>;
}
