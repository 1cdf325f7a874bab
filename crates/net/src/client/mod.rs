//! The clients' side of the wire: servers reached over several connections as one.

mod call;
mod channel;
mod divide;
mod link;
mod peer;
mod timeout;

pub use link::{NetLink, Options};
