//! A file driver of HDF5 for files in pools, as a plugin.
//!
//! HDF5 loads the plugin if a program or the variable `HDF5_DRIVER` names the driver "outcore". A name below a mount
//! of a pool, or an address of a file in a pool, becomes requests to the servers of the pool (`pool_file`), past the
//! kernel. HDF5's own driver handles every other file (`plain_file`). The plugin is not linked with HDF5: it finds the
//! library that called it (`library`).

#![allow(non_snake_case, reason = "HDF5 names the functions that a plugin exports")]

mod abi;
mod callbacks;
mod connections;
mod library;
mod pieces;
mod place;
mod plain_file;
mod pool_file;

use std::ffi::{c_int, c_void};

/// The type of this plugin: a file driver.
#[unsafe(no_mangle)]
pub extern "C" fn H5PLget_plugin_type() -> c_int {
    abi::PLUGIN_TYPE
}

/// The class of the driver, which HDF5 copies.
#[unsafe(no_mangle)]
pub extern "C" fn H5PLget_plugin_info() -> *const c_void {
    (&raw const callbacks::CLASS).cast()
}
