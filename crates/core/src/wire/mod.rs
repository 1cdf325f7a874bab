//! What goes over a connection, byte for byte: frames, and the records in them. docs/protocol.md is this in words.
//!
//! A frame is a [`Header`], a control part, which is one [`Record`], and a payload, which is bytes of a file.

mod collective;
mod header;
mod hello;
mod manager;
mod message;
mod record;
mod regions;

pub use header::{
    HEADER_BYTES, Header, Kind, MAGIC, MAX_CONTROL_BYTES, MAX_PAYLOAD_BYTES, MAX_RUNS, VERSION,
};
pub use hello::{Challenge, Hello, KeyKind, Proof, Refused, Role, Welcome};
pub use record::{Record, Source, decode, encode};
