//! `outcore._core`: the compiled extension module. This crate only converts arguments and releases the
//! interpreter lock; the other crates do the work.

mod array_file;
mod collective;
mod columns;
mod daemon;
mod error;
mod key;
mod layout;
mod memory;
mod mount;
mod pool;
mod pool_check;
mod pool_file;
mod pool_url;
mod stream;
mod volume;

use std::borrow::Cow;

use pyo3::prelude::*;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::array_file::{ArrayFile, Grid, Ticket};
    #[pymodule_export]
    use super::collective::{Collective, MemorySchema};
    #[pymodule_export]
    use super::columns::{add_sums, column_extremes, swap_rows};
    #[pymodule_export]
    use super::crc32c;
    #[pymodule_export]
    use super::daemon::{
        Daemon, backup_metadata, migrate_metadata, restore_metadata, retire_server, server_mark,
    };
    #[pymodule_export]
    use super::description_of;
    #[pymodule_export]
    use super::error::error_kinds;
    #[pymodule_export]
    use super::key::derive_key;
    #[pymodule_export]
    use super::layout::Stripes;
    #[pymodule_export]
    use super::memory::{Arena, Buffer, limit_mapped_bytes};
    #[pymodule_export]
    use super::mount::{Mount, manager_in, pool_directory_of};
    #[pymodule_export]
    use super::pool::{Pool, SilentServers};
    #[pymodule_export]
    use super::pool_check::PoolCheck;
    #[pymodule_export]
    use super::pool_file::{PoolFile, Regions};
    #[pymodule_export]
    use super::pool_url::{parse_pool_url, split_pool_url};
    #[pymodule_export]
    use super::stream::{Stream, Trace};
    #[pymodule_export]
    use super::volume::Volume;
}

/// The description of an array or a group with this `zarr.json`, in JSON; `None` for anything else.
#[pyfunction]
fn description_of(metadata: &[u8]) -> Option<Cow<'static, [u8]>> {
    outcore_client::description_of(metadata).map(Cow::Owned)
}

/// CRC-32C of bytes.
#[pyfunction]
fn crc32c(py: Python<'_>, data: &[u8]) -> u32 {
    py.detach(|| outcore_core::crc32c(data))
}
