//! Collectives that the server directs, and the shares that it fetches from processes of its machine.

pub(crate) mod direct;
pub(crate) mod fetch;
pub(crate) mod state;
