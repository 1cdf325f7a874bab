//! Aligned memory under a budget.
//!
//! Every buffer of a long call comes from one [`Arena`]. A request beyond its budget is an error, before any
//! work. A [`Region`] is the owned buffer that travels with a disk request: one or more runs of bytes of a
//! [`Block`], which stays alive until the request is done.

mod arena;
mod block;
mod columns;
mod parts;
mod prefetch;
mod region;
mod row_swaps;
mod strided;
mod triangle;

pub use arena::{Arena, Waiter};
pub use block::{ALIGN_BYTES, Block};
pub use columns::{Columns, Extremes, Real, column_extremes};
pub use region::{Region, Segment};
pub use row_swaps::Rows;
pub use strided::{Level, copy_strided};
pub use triangle::add_sums;
