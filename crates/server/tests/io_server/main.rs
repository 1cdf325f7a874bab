//! The I/O server against a simulated disk that loses power, and against a real one.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod basics;
mod collectives;
mod crashes;
mod damage;
mod direct;
mod format;
mod full_log;
mod inventory;
mod ranks;
mod read_only;
mod room;
mod runner;
mod scrub;
mod seals;
mod upgrades;
mod world;
