//! What a user of a volume needs: arrays as boxes of elements, scheduled streams, and a trace of what was moved.

mod array_file;
mod bounce;
mod local;
mod piece;
mod stream;
mod ticket;
mod trace;

pub use array_file::{ArrayFile, Counters, Memory, MemoryUse};
pub use local::LocalVolume;
pub use stream::{Stream, StreamBlock};
pub use ticket::Ticket;
pub use trace::{Span, SpanKind, Totals, Trace};
