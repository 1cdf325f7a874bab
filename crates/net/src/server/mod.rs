//! The server's side of the network: clients, their requests, and memory for payloads.

mod admission;
mod answer;
mod channel;
mod connection;
mod connections;
mod listening;
mod requests;
pub mod session;

use std::sync::Arc;

use outcore_core::{Buffer, IoRequest, ManagerReply, ManagerRequest, OnAnswer, Origin, PeerMemory};
use outcore_memory::Region;

pub use channel::ChannelCounts;
pub use listening::{Config, Listening, Watcher, listen};

/// The authenticated identity of a client.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Who {
    /// The name, for messages.
    pub name: String,
    /// User id.
    pub uid: u32,
    /// Group ids, with the main one first.
    pub gids: Vec<u32>,
    /// Whether permissions do not restrict it.
    pub is_root: bool,
}

/// The origin of a request.
#[derive(Debug)]
pub struct Caller {
    /// The client's identity.
    pub who: Who,
    /// The memory of the client's process, if it runs on this machine, for the same user as the server.
    pub memory: Option<Arc<dyn PeerMemory<Region>>>,
}

/// Called with the manager's reply.
pub type OnReply = Box<dyn FnOnce(ManagerReply) + Send>;

/// The service at a server's addresses: an I/O server, or a manager.
pub trait Handler: Send + Sync + 'static {
    /// Executes a request to an I/O server. For a write, `buffer` contains the bytes; for a read, it receives
    /// them. `done` must be called exactly once; a dropped request is answered with an error. The method must
    /// not block for long, because the connection reads nothing meanwhile.
    fn io(&self, caller: &Caller, request: IoRequest, buffer: Region, done: OnAnswer<Region>) {
        let _ = (caller, request);
        done(refusal("I/O server", buffer));
    }

    /// Answers all waiting requests. The server is about to stop, and accepts no more requests.
    fn end_waits(&self) {}

    /// Executes a request to the manager. Each request arrives once, unless the server has restarted since.
    /// `done` is as in `io`. Requests of one connection arrive in order.
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
