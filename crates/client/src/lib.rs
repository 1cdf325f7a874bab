//! The API of a volume's user: arrays as boxes of elements, scheduled streams, and a trace of the transfers.

mod array_file;
mod batch;
mod bounce;
mod collective;
mod local;
mod mapped;
mod offer;
mod piece;
mod pool;
mod pool_attributes;
mod pool_call;
mod pool_check;
mod pool_durable;
mod pool_file;
mod pool_listing;
mod pool_names;
mod pool_runs;
mod pool_shared;
mod pool_transfer;
mod rows;
mod shards;
mod shares;
mod stream;
mod ticket;
mod trace;

pub use array_file::{ArrayFile, Counters, Memory, MemoryUse};
pub use collective::{CollectivePart, Exchanged};
pub use local::LocalVolume;
pub use pool::{PoolVolume, WallClock};
pub use pool_attributes::Attributes;
pub use pool_listing::{Listed, Silent};
pub use shares::LocalArray;
pub use stream::{Stream, StreamBlock};
pub use ticket::Ticket;
pub use trace::{Span, SpanKind, Totals, Trace};
