//! The bytes of a connection: frames and their records. docs/protocol.md describes them in words.
//!
//! A frame consists of a [`Header`], a control part, which is one [`Record`], and a payload of file bytes.

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
