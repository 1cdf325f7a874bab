//! The servers of a pool, as state machines over `Disk`, `Link` and `Clock`: they read no clock and open no
//! socket.
//!
//! An I/O server stores the data files of one directory; the manager stores names, layouts and rights. A driver
//! runs them: a runner with real disks, or a simulation.

#![forbid(unsafe_code)]

pub mod grants;
pub mod io_server;
pub mod manager;
pub mod store;
