//! Arrays and pools in one process: files on real and simulated disks, and links with simulated servers.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod array_file;
mod collective;
mod collective_link;
mod collective_refusals;
mod gathered;
mod mapped;
mod model;
mod pool;
mod pool_check;
mod pool_files;
mod pool_grants;
mod pool_link;
mod pool_link_names;
mod pool_listing;
mod pool_lost;
mod pool_lost_writes;
mod pool_older;
mod rows;
mod stream;
