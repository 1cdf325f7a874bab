//! The clients' side of the wire: servers reached over several connections as one.

mod answers;
mod call;
mod channel;
mod divide;
mod link;
mod peer;
mod places;
mod reader;
mod sending;
mod timeout;
mod wire;

pub use link::{NetLink, Options};
