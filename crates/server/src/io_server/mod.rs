//! An I/O server: the data files of one directory on one disk, the checksums of their blocks, and a write-intent
//! log.
//!
//! [`IoServer`] is the state machine. [`Runner`] drives it with a real disk on a thread of its own.

mod blocks;
mod check;
mod collective;
mod config;
mod event;
mod log;
mod manager_time;
mod runner;
mod server;
mod shared;
mod state;
mod task;
mod time;
mod wait;

pub use blocks::format::{
    BLOCK_BYTES, NAMES, REGION_BYTES, data_path, highest_handle, marked, plain_sums_path, sums_path,
};
pub use collective::fetch::{Caller, Fetch, Fetched, fetch};
pub use config::{Config, Factory, Limits, ManagerTime, Verify};
pub use event::{Effect, Event, NameAnswer, NameOperation, perform};
pub use outcore_core::Names;
pub use runner::Runner;
pub use server::IoServer;
pub use state::{CollectiveState, Queues, Repair, ServerState};
