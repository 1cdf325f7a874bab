//! An I/O server: the data files of one directory on one disk, the checksums of their blocks, and a write-intent
//! log.
//!
//! [`IoServer`] is the state machine. [`Runner`] drives it with a real disk on a thread of its own.

mod collective;
mod config;
mod direct;
mod durable;
mod event;
mod examine;
mod fetch;
mod files;
mod format;
mod inventory;
mod locks;
mod log;
mod notes;
mod pieces;
mod ranges;
mod record;
mod removed;
mod resize;
mod room;
mod runner;
mod scratch;
mod scrub;
mod seal;
mod server;
mod shared;
mod sums;
mod task;
mod time;
mod transfer;
mod wait;

pub use config::{Config, Factory, Limits, ManagerTime, Verify};
pub use event::{Effect, Event, NameAnswer, NameOperation, perform};
pub use fetch::{Caller, Fetch, Fetched, fetch};
pub use format::{
    BLOCK_BYTES, NAMES, REGION_BYTES, data_path, highest_handle, marked, plain_sums_path, sums_path,
};
pub use outcore_core::Names;
pub use runner::Runner;
pub use server::IoServer;
