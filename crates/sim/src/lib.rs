//! Whole pools in one thread, under one seed: servers crash, disks lose and tear what was not synced, messages are
//! late, lost and sent twice, clocks jump; what clients read is judged by a naive model.

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
