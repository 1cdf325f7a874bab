//! `liboutcore`: the C library. It converts arguments and errors; the other crates do the work.
//!
//! The header `include/outcore.h` is made from these files, in the order of `header.rs`. Their comments are its
//! documentation.

mod agreement;
mod array;
mod ascending;
mod boundary;
mod collective;
mod context;
mod errors;
mod file;
#[cfg(test)]
mod header;
mod hints;
mod locks;
mod memory;
mod names;
mod pool;
mod regions;
mod request;
mod signs;
mod text;
mod together;
mod vectored;
mod zarr;
