//! A pool as a volume: names from its manager, bytes from its I/O servers.

pub(crate) mod attributes;
pub(crate) mod call;
pub(crate) mod check;
pub(crate) mod creation;
pub(crate) mod description;
pub(crate) mod durable;
pub(crate) mod file;
pub(crate) mod links;
pub(crate) mod listing;
pub(crate) mod locks;
pub(crate) mod names;
pub(crate) mod runs;
pub(crate) mod shared;
pub(crate) mod transfer;
pub(crate) mod volume;
