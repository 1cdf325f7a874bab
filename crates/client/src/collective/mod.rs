//! One process's part in a collective: its messages to and from the servers, and its memory.

pub(crate) mod offer;
pub(crate) mod part;
pub(crate) mod shares;
