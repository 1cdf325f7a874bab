//! The daemons of a pool, put together: a manager or an I/O server in a directory, listening.

#![forbid(unsafe_code)]

mod io;
mod manager;
mod settings;

pub use io::{IoDaemon, IoSettings, serve_io};
pub use manager::{ManagerDaemon, ManagerSettings, serve_manager};
pub use settings::Settings;
