//! What clients say to the I/O servers of a pool, and what these answer.
//!
//! A message is a record here, and a payload of bytes beside it: those of a read or a write, which no record holds.

use crate::{
    CollectiveSpec, DataFile, Error, Handle, Inspection, MemoryOffer, Regions, ScrubPlace, Scrubbed, Stripes,
};

/// What a request to an I/O server is for: one entry of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The file.
    pub handle: Handle,
    /// How it is cut into stripes.
    pub stripes: Stripes,
    /// Which entry of its servers the one asked is.
    pub entry: u64,
}

/// What the manager lets a client do with a file until a time. The I/O servers verify it without asking the manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The file.
    pub handle: Handle,
    /// Whether it may write, not only read.
    pub write: bool,
    /// Seconds of the pool's clock since 1970 at which it ends.
    pub expires_s: u64,
    /// HMAC-SHA256 of the other fields, by the pool's key.
    pub mac: [u8; 32],
}

/// The right to ask how long some files are, until a time. Who may see their names may know that, as in POSIX, whether or
/// not they may be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthGrant {
    /// Seconds of the pool's clock since 1970 at which it ends.
    pub expires_s: u64,
    /// HMAC-SHA256 of that and the handles, by the pool's key.
    pub mac: [u8; 32],
}

/// A request to an I/O server. It is one message, whatever it describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoRequest {
    /// The bytes of `regions` that lie on this entry. Bytes past the end of a data file within the file read as zeros.
    Read {
        /// The file, on this server.
        target: Target,
        /// The right to.
        grant: Grant,
        /// Of the whole file.
        regions: Regions,
    },
    /// The payload to the bytes of `regions` that lie on this entry.
    Write {
        /// The file, on this server.
        target: Target,
        /// The right to.
        grant: Grant,
        /// Of the whole file.
        regions: Regions,
    },
    /// Answered once completed writes of the file survive power loss.
    Sync {
        /// The file, on this server.
        target: Target,
        /// The right to.
        grant: Grant,
    },
    /// How long the data file is.
    Length {
        /// The file, on this server.
        target: Target,
        /// The right to.
        grant: Grant,
    },
    /// Makes the data file longer or shorter; new bytes read as zeros.
    SetLength {
        /// The file, on this server.
        target: Target,
        /// The right to.
        grant: Grant,
        /// Of the data file, in bytes.
        local_length: u64,
        /// Whether the room is taken from the disk now, so that later writes cannot find it full.
        reserve: bool,
    },
    /// Removes the data file, if there is one.
    Remove {
        /// The file, on this server.
        target: Target,
        /// The right to.
        grant: Grant,
    },
    /// How much room is left, and what the server did so far.
    Status,
    /// Compares blocks with their checksums, from a place on: a bounded number of them, in the order of [`DataFile`]s.
    /// Who holds the pool's key, or runs the server, may ask.
    Scrub {
        /// Where the request before came to; first handle 0, byte 0.
        from: ScrubPlace,
        /// About how many, rounded up to groups of blocks; the server has a bound of its own.
        most_bytes: u64,
    },
    /// Which data files there are. Who holds the pool's key, or runs the server, may ask.
    DataFiles {
        /// The last one of the page before; handle 0 for the first page.
        after: Handle,
        /// Of a page.
        most: u64,
    },
    /// What there is of some data files. Who holds the pool's key, or runs the server, may ask.
    Inspect {
        /// Which, at most 1000.
        handles: Vec<Handle>,
    },
    /// How long the data files of several files are, each 0 if there is none.
    Lengths {
        /// All that the right is for.
        handles: Vec<Handle>,
        /// The right to.
        grant: LengthGrant,
        /// Those that are asked for, on this server.
        targets: Vec<Target>,
    },
    /// Takes part in a collective; answered once all processes do. The other requests of a collective name it by the number
    /// in its description, which nobody else knows.
    Join {
        /// The file, on this server.
        target: Target,
        /// The right to.
        grant: Grant,
        /// What each process describes in the same way.
        spec: Box<CollectiveSpec>,
        /// Which of the processes it is.
        rank: u64,
        /// Of one that writes, and may be on the server's machine.
        memory: Option<MemoryOffer>,
    },
    /// Answered once the server is ready for shares of a round, or, without one, once all is done and durable.
    Await {
        /// Which.
        collective: u128,
        /// Which of the processes it is.
        rank: u64,
        /// A round in which it has a share; `None`: the end.
        round: Option<u64>,
    },
    /// The payload is the share of a piece that is written.
    Give {
        /// Which.
        collective: u128,
        /// Whose.
        rank: u64,
        /// Of which piece.
        piece: u64,
        /// How long it is.
        bytes: u64,
    },
    /// The share of a piece that is read.
    Take {
        /// Which.
        collective: u128,
        /// Whose.
        rank: u64,
        /// Of which piece.
        piece: u64,
        /// How long it is.
        bytes: u64,
    },
    /// A process cannot go on: all others are told why.
    Abandon {
        /// Which.
        collective: u128,
        /// Whose fault it is.
        rank: u64,
        /// What happened to it.
        error: Error,
    },
}

impl IoRequest {
    /// Whether the payload goes with the request.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Give { .. })
    }

    /// Whether the payload comes with the answer.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Take { .. })
    }
}

/// What an I/O server says of itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStatus {
    /// Bytes that can still be written.
    pub free_bytes: u64,
    /// Requests answered, of all kinds.
    pub requests: u64,
    /// Bytes sent to readers.
    pub bytes_read: u64,
    /// Bytes taken from writers.
    pub bytes_written: u64,
    /// Those of them that the server read from the memory of processes itself.
    pub direct_bytes: u64,
    /// Blocks whose checksum was found wrong.
    pub damaged_blocks: u64,
    /// Files of which regions were noted as being written when the server started.
    pub noted_files: u64,
    /// Whether the log can be written; if not, since the disk is full, nothing else is written either.
    pub is_writable: bool,
}

/// The answer of an I/O server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoReply {
    /// Done; of a read, the bytes are the payload.
    Done,
    /// Of a length or a sync: of a data file, in bytes. Of a sync, what it had when that began, and now has durably.
    Length(u64),
    /// Of the server.
    Status(IoStatus),
    /// Not done.
    Failed(Error),
    /// Of `Scrub`.
    Scrubbed(Box<Scrubbed>),
    /// Of `DataFiles`.
    DataFiles {
        /// In their order.
        files: Vec<DataFile>,
        /// Whether there are more after them.
        more: bool,
    },
    /// Of `Inspect`, in the order of the handles.
    Inspected(Vec<Inspection>),
    /// Of a read, a length or a sync: the server has no data file of it, since nothing was written to it, since the file was
    /// removed, or since it is lost, which the manager knows. A read gives zeros, which are not sent.
    Absent,
    /// Of several data files, in bytes, in the order of the request.
    Lengths(Vec<u64>),
    /// Of `Join`: done, and the server reads from the memory that was offered what lies there in long runs. No messages are
    /// exchanged about these shares.
    ReadsMemory,
}
