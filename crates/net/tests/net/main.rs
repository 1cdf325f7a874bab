//! Clients and servers over real sockets of this machine.

#![allow(clippy::unwrap_used, reason = "an error where none is expected is a test that fails")]

mod at_once;
mod bytes;
mod callers;
mod crowded;
mod faults;
mod greetings;
mod memory;
mod moved;
mod pool;
mod proxy;
mod stopping;
mod tls;
mod tls_peer;
mod transfers;
mod waits;
