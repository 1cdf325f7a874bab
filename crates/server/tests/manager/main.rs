//! The manager, compared with a naive model and with POSIX, beside other managers, and with invalid requests.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod again;
mod ahead;
mod batches;
mod durable;
mod handles;
mod inventory;
mod leases;
mod links;
mod model;
mod old_copy;
mod operations;
mod orphans;
mod pool;
mod races;
mod rejections;
mod rights;
mod search;
mod search_reads;
mod servers;
mod tree;
