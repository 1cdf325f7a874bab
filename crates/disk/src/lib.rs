//! The real disk: direct I/O on plain files by a few threads, and the directory that contains the files.

mod directory;
mod engine;
mod freeing;
mod local;
mod mapping;
mod names;
mod reserve;
mod short_reads;
mod short_writes;
mod small;
mod system;

pub use directory::Directory;
pub use engine::DEFAULT_THREADS;
pub use local::LocalDisk;
pub use mapping::set_most_resident_bytes;
pub use reserve::Reserve;
pub use system::{MonotonicClock, clocks, most_open_files, umask};
