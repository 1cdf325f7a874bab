//! The client's side of the network: several connections to each server, used as one.

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
