//! The client's side of the network: several connections to each server, used as one.
//!
//! Each layer uses those before it: a `call`, the threads that read answers (`reader`), a connection (`wire`), a
//! server with its queue and connections (`peer`), receiving and sending (`answers`, `sending`), a connection that
//! is opened again (`channel`), the servers of a pool (`places`), the pool (`link`).

mod answers;
mod call;
mod channel;
mod divide;
mod link;
mod options;
mod peer;
mod places;
mod reader;
mod sending;
mod timeout;
mod wire;

pub use link::NetLink;
pub use options::Options;
