//! Comparison of data with checksums: after a crash, on request, and when the server or the manager has another state.

pub(crate) mod examine;
pub(crate) mod inventory;
pub(crate) mod scrub;
pub(crate) mod seal;
