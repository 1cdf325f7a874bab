//! The write-intent log, and how files become durable.

pub(crate) mod durable;
pub(crate) mod notes;
pub(crate) mod ranges;
pub(crate) mod record;
pub(crate) mod writer;
