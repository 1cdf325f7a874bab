//! The pure part of outcore: no I/O, no clock, no threads, no `unsafe`.
//!
//! Client, server and simulation share this crate. It contains the errors, the chunk grid, the order of chunks
//! in a shard, and the plan that turns a box of an array into file requests. It also contains the traits
//! between the layers ([`Disk`], [`Volume`], [`Clock`], [`Buffer`]).

#![forbid(unsafe_code)]

mod checksum;
mod clock;
mod collective;
pub mod conformance;
pub mod crash_disk;
mod cut;
mod disk;
pub mod doubles;
pub mod element_types;
mod error;
mod grant_time;
mod grid;
mod inode;
mod inventory;
mod layout;
mod link;
mod locks;
mod manager_message;
mod message;
mod names;
mod order;
mod packing;
mod peer_memory;
mod pool_path;
mod regions;
mod room;
mod schema;
mod share;
mod transfer;
mod unsynced;
mod volume;
pub mod wire;

pub use checksum::{Crc32c, crc32c};
pub use clock::Clock;
pub use collective::{
    CollectivePlan, CollectiveSpec, Coverage, PIECE_BYTES, PIECE_UNIT_BYTES, PlannedPiece, ROUND_PIECES,
    ROUNDS_AT_ONCE, piece_bytes,
};
pub use disk::{
    Alignment, Buffer, Completion, Disk, DiskSize, Due, FileId, Gather, OnDone, OpenMode, Operation, Request,
    SHORT_RUN_BYTES,
};
pub use error::{Error, ErrorKind, Result};
pub use grant_time::GrantTime;
pub use grid::{ChunkGrid, GridSpec, MAX_CHUNK_BYTES, MAX_CHUNKS_PER_SHARD, Slot, StorageOrder};
pub use inode::{Durable, Hints, Inode, Named, files_among};
pub use inventory::{Damage, DataFile, Inspection, Known, OddRecord, ScrubPlace, Scrubbed};
pub use layout::{Handle, Layout, MAX_STRIPE_COUNT, ServerId, Stripes};
pub use link::{Answer, Link, OnAnswer};
pub use locks::{FileLock, FileLocks, LockFamily, LockKind, LockOwner, LockWish};
pub use manager_message::{Hit, ManagerReply, ManagerRequest, Opened, Origin, ServerAddress};
pub use message::{Grant, IoReply, IoRequest, IoStatus, LengthGrant, ServerSpan, ServerSpans, Target};
pub use names::Names;
pub use order::ChunkOrder;
pub use packing::{PackedLevel, Packing};
pub use peer_memory::{
    DirectShare, LEAST_MEMORY_RUN_BYTES, LEAST_PIECE_RUN_BYTES, MemoryOffer, OfferedArray, PeerMemory,
};
pub use pool_path::{handle_in, path_at};
pub use regions::{Level, LocalRuns, MAX_LEVELS, Nested, Regions, Run, Runs};
pub use room::Room;
pub use schema::{Axis, Distribution, ElementBox, MAX_RANKS, MemorySchema};
pub use share::{ByteRun, Share, Tile, TileLevel};
pub use transfer::{BoxRequest, Limits, Piece, Stride, plan_box};
pub use unsynced::{Incarnation, Sent, Unsynced};
pub use volume::{Entry, Preference, Volume, VolumeRequest};
