//! Arrays on a volume: boxes, rows and streams of elements become requests for bytes.

pub(crate) mod batch;
pub(crate) mod bounce;
pub(crate) mod file;
pub(crate) mod mapped;
pub(crate) mod piece;
pub(crate) mod rows;
pub(crate) mod shards;
pub(crate) mod stream;
