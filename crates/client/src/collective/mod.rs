//! One process's part in a collective: what it exchanges with the servers, and its memory.

pub(crate) mod offer;
pub(crate) mod part;
pub(crate) mod shares;
