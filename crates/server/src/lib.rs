//! The servers of a pool, as state machines over Disk, Link and Clock: they read no clock and open no socket.
//!
//! An I/O server keeps the data files of one directory; the manager keeps names, layouts and rights. Both are driven
//! from outside: by a runner with real disks, or by a simulation.

#![forbid(unsafe_code)]

pub mod grants;
pub mod io_server;
pub mod manager;
pub mod store;
