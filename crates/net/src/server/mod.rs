//! The servers' side of the wire: who comes in, what they ask, and memory for what they send.

mod admission;
mod answer;
mod channel;
mod connection;
mod listening;
mod requests;
pub mod session;

use std::sync::Arc;

use outcore_core::{Buffer, IoRequest, ManagerReply, ManagerRequest, OnAnswer, Origin, PeerMemory};
use outcore_memory::Region;

pub use channel::ChannelCounts;
pub use listening::{Config, Listening, Watcher, listen};

/// Who asks. It was proved.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// For people.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group ids, the main one first.
    pub gids: Vec<u32>,
    /// Whether permissions do not bind it.
    pub is_root: bool,
}

/// Where a request comes from.
#[derive(Debug)]
pub struct Caller {
    /// Who asks.
    pub who: Who,
    /// The memory of the process that connected: of one on this machine, whose user this process runs as.
    pub memory: Option<Arc<dyn PeerMemory<Region>>>,
}

/// Called with the manager's reply.
pub type OnReply = Box<dyn FnOnce(ManagerReply) + Send>;

/// What is behind a server's addresses: an I/O server, or a manager.
pub trait Handler: Send + Sync + 'static {
    /// Does a request to an I/O server. Of a write, `buffer` is what is written, of a read, where the bytes go.
    /// `done` must be called, exactly once; a request that is dropped without is answered with an error. It must
    /// not block for long: while it does, nothing else comes in over this connection.
    fn io(&self, caller: &Caller, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let _ = (caller, request);
        done(refusal("I/O server", buffer));
    }

    /// The server is about to stop, and takes no more requests: what waits for some is to be answered now.
    fn end_waits(&self) {}

    /// Does a request to the manager; it comes once, unless the server was started again since. `done` as above; what
    /// comes in over one connection is done in this order.
    fn manager(&self, who: &Who, origin: Origin, request: ManagerRequest, done: OnReply) {
        let _ = (who, origin, request);
        done(ManagerReply::Failed(not_here("manager")));
    }
}

fn not_here(what: &str) -> outcore_core::Error {
    outcore_core::Error::invalid(format!("this server is no {what}; check the addresses of the pool"))
}

fn refusal<B: Buffer>(what: &str, buffer: B) -> outcore_core::Answer<B> {
    let reply = outcore_core::IoReply::Failed(not_here(what));
    let incarnation = outcore_core::Incarnation::NONE;
    outcore_core::Answer { reply, buffer, incarnation, started_ns: 0, finished_ns: 0 }
}
