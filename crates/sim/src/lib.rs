//! Whole pools in one thread, under one seed. Servers crash, disks lose and tear unsynced writes, messages are
//! late, lost and repeated, and clocks jump. A naive model judges the bytes that clients read.

#![forbid(unsafe_code)]

pub mod client;
pub mod collective;
pub mod elements;
pub mod manager_node;
pub mod metadata;
pub mod model;
pub mod node;
pub mod power_store;
pub mod rank_memory;
pub mod seeds;
pub mod wall_clock;
pub mod world;
