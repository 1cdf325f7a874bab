//! The API of a volume's user: arrays as boxes of elements, scheduled streams, and a trace of the transfers.

mod array;
mod collective;
mod errno;
mod local;
mod pool;
mod ticket;
mod trace;

pub use array::file::{ArrayFile, Counters, Memory, MemoryUse};
pub use array::stream::{Stream, StreamBlock};
pub use collective::part::{CollectivePart, Exchanged};
pub use collective::shares::LocalArray;
pub use errno::errno_of;
pub use local::LocalVolume;
pub use pool::attributes::Attributes;
pub use pool::description::description_of;
pub use pool::listing::{Listed, Silent};
pub use pool::volume::{PoolVolume, WallClock, system_clock};
pub use ticket::Ticket;
pub use trace::{Span, SpanKind, Totals, Trace};
