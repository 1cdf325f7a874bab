//! The clients' side of the wire: servers reached over several connections as one.

mod call;
mod channel;
mod link;
mod peer;
mod timeout;

pub use link::{NetLink, Options};
