//! The daemons of a pool: a manager or an I/O server in a directory, listening; or a mount.

#![forbid(unsafe_code)]

mod backup;
mod charts;
mod embedded;
mod exposition;
mod histogram;
mod http;
mod io;
mod io_metrics;
mod joining;
mod line;
mod manager;
mod metadata;
mod metrics;
mod migration;
mod mounting;
mod notify;
mod pool_page;
mod pool_site;
mod recorder;
mod requests;
mod samples;
mod settings;
mod standing_by;
mod turn;
mod watch;

pub use backup::{backup_metadata, restore_metadata};
pub use embedded::{EmbeddedLink, retire_server};
pub use http::PageServer;
pub use io::{IoDaemon, IoSettings, serve_io};
pub use manager::{ManagerDaemon, ManagerSettings, PageSettings, serve_manager, serve_manager_under};
pub use migration::{Migrated, migrate_from_database, migrate_to_database};
pub use mounting::{MountSettings, mount};
pub use notify::notify_ready;
pub use settings::Settings;
pub use standing_by::{Turned, wait_for_lease};
