//! The network link: frames over TCP, TLS and UNIX sockets. docs/protocol.md describes the bytes.
//!
//! [`NetLink`] is the client's side: it uses several connections to each server as one. [`listen`] is the
//! server's side: it passes requests to a [`Handler`] and sends the answers in any order.

mod address;
mod client;
mod frames;
mod handshake;
mod keys;
mod pool_url;
mod process_memory;
mod served;
mod server;
mod socket;
mod system;
mod tls;

pub use address::Address;
pub use client::{NetLink, Options};
pub use keys::{Credentials, Key, User};
pub use pool_url::PoolUrl;
pub use served::ServedLink;
pub use server::{Caller, ChannelCounts, Config, Handler, Listening, OnReply, Watcher, Who, listen, session};
pub use system::{MonotonicClock, wait_for_termination, wait_while};
