//! Daemons as threads and as processes, with clients over real sockets of this machine.

#![allow(clippy::unwrap_used, reason = "an error where none is expected is a test that fails")]

mod daemon;
mod daemons;
mod memory;
mod mounting;
mod stopping;
mod units;
