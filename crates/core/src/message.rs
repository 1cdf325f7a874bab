//! Requests of clients to the I/O servers of a pool, and the replies.
//!
//! A message is a record of this module. The bytes of a read or a write travel beside it as the payload.

use crate::{
    CollectiveSpec, DataFile, DiskSize, Error, Handle, Inspection, MemoryOffer, Regions, ScrubPlace,
    Scrubbed, Stripes,
};

/// The target of a request to an I/O server: one entry of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The file.
    pub handle: Handle,
    /// The file's division into stripe units.
    pub stripes: Stripes,
    /// The server's entry among the file's servers.
    pub entry: u64,
    /// A generation that the data file has had, as far as the client knows, or 0. The server refuses to use an older
    /// copy of the data file.
    pub generation: u64,
}

/// The manager's permission for a client to use a file, until a given time. I/O servers verify it without the
/// manager.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Grant {
    /// The file.
    pub handle: Handle,
    /// Whether the client may write, not only read.
    pub write: bool,
    /// When the grant expires, by the pool's clock: seconds since 1970.
    pub expires_s: u64,
    /// HMAC-SHA256 of the other fields, with the pool's key.
    pub mac: [u8; 32],
}

/// Permission to read the lengths of some files, until a given time. As in POSIX, a user who may see the
/// names may know the lengths, even without the right to read the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthGrant {
    /// When it expires, by the pool's clock: seconds since 1970.
    pub expires_s: u64,
    /// HMAC-SHA256 of the expiry and the handles, with the pool's key.
    pub mac: [u8; 32],
}

/// A request to an I/O server. Each request is one message, however many regions it describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoRequest {
    /// Reads the bytes of `regions` on this entry. Bytes past the end of a data file, but within the file,
    /// read as zeros.
    Read {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
        /// Regions of the whole file.
        regions: Regions,
    },
    /// Writes the payload to the bytes of `regions` on this entry.
    Write {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
        /// Regions of the whole file.
        regions: Regions,
    },
    /// Syncs the file. The server answers once all completed writes survive power loss.
    Sync {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
    },
    /// Returns the length of the data file.
    Length {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
    },
    /// Makes the data file longer or shorter. New bytes read as zeros.
    SetLength {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
        /// Length of the data file in bytes.
        local_length: u64,
        /// Whether to allocate the disk space now, so that later writes cannot fail on a full disk.
        reserve: bool,
    },
    /// Allocates the disk space of the first `local_length` bytes of the data file, and makes it so long if it is
    /// shorter. Never makes it shorter.
    Reserve {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
        /// Least length of the data file in bytes.
        local_length: u64,
    },
    /// Removes the data file, if it exists.
    Remove {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
    },
    /// Returns the server's free space and counters.
    Status,
    /// Compares a bounded number of blocks with their checksums, starting at `from`, in the order of
    /// [`DataFile`]s. Allowed for holders of the pool's key and for the user who runs the server.
    Scrub {
        /// Where the previous request stopped; initially handle 0, byte 0.
        from: ScrubPlace,
        /// Approximate number of bytes, rounded up to groups of blocks. The server has its own limit.
        most_bytes: u64,
    },
    /// Lists the data files. Allowed for holders of the pool's key and for the user who runs the server.
    DataFiles {
        /// The last handle of the previous page; 0 for the first page.
        after: Handle,
        /// Maximum number of entries of a page.
        most: u64,
    },
    /// Describes some data files. Allowed for holders of the pool's key and for the user who runs the server.
    Inspect {
        /// The handles, at most 1000.
        handles: Vec<Handle>,
    },
    /// Cuts the bytes of data files that no write explains. Allowed for holders of the pool's key and for the user
    /// who runs the server.
    Cut {
        /// The handles, at most 1000.
        handles: Vec<Handle>,
    },
    /// Returns the lengths of the data files of several files; 0 for a file without one.
    Lengths {
        /// All handles of the grant.
        handles: Vec<Handle>,
        /// The grant for their lengths.
        grant: LengthGrant,
        /// The requested files, on this server.
        targets: Vec<Target>,
    },
    /// Joins a collective. The server answers once all processes have joined. The other requests identify the
    /// collective by the number in its description, which only its processes know.
    Join {
        /// The file, on this server.
        target: Target,
        /// The grant for the file.
        grant: Grant,
        /// The description, which is the same from each process.
        spec: Box<CollectiveSpec>,
        /// The number of the process.
        rank: u64,
        /// The memory offered by a writing process that may be on the server's machine.
        memory: Option<MemoryOffer>,
    },
    /// Waits for the server to be ready for shares of a round. Without a round, waits until all is done and
    /// durable.
    Await {
        /// The collective.
        collective: u128,
        /// The number of the process.
        rank: u64,
        /// A round in which the process has a share; `None` for the end.
        round: Option<u64>,
    },
    /// Sends a share of a piece to write. The share is the payload.
    Give {
        /// The collective.
        collective: u128,
        /// The number of the process that owns the share.
        rank: u64,
        /// The number of the piece.
        piece: u64,
        /// Length of the share in bytes.
        bytes: u64,
    },
    /// Reads a share of a piece.
    Take {
        /// The collective.
        collective: u128,
        /// The number of the process that owns the share.
        rank: u64,
        /// The number of the piece.
        piece: u64,
        /// Length of the share in bytes.
        bytes: u64,
    },
    /// Aborts a collective after an error of one process. All others get the reason.
    Abandon {
        /// The collective.
        collective: u128,
        /// The number of the failed process.
        rank: u64,
        /// The error of that process.
        error: Error,
    },
    /// Returns the server's metrics. Allowed for holders of the pool's key and for the user who runs the server.
    Metrics,
    /// Returns the server's last transfers, for a trace.
    Spans,
}

impl IoRequest {
    /// Whether the request has a payload.
    pub fn is_write(&self) -> bool {
        matches!(self, Self::Write { .. } | Self::Give { .. })
    }

    /// Whether the answer has a payload.
    pub fn is_read(&self) -> bool {
        matches!(self, Self::Read { .. } | Self::Take { .. })
    }
}

/// An I/O server's report on itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoStatus {
    /// Free disk space in bytes.
    pub free_bytes: u64,
    /// The file system of the server's directory.
    pub disk: DiskSize,
    /// Answered requests of all kinds.
    pub requests: u64,
    /// Bytes sent to clients.
    pub bytes_read: u64,
    /// Bytes received from clients.
    pub bytes_written: u64,
    /// The part of `bytes_written` that the server read directly from the memory of processes.
    pub direct_bytes: u64,
    /// Blocks with a wrong checksum.
    pub damaged_blocks: u64,
    /// Files with logged regions (unfinished writes) when the server started.
    pub noted_files: u64,
    /// Whether the log is writable. If it is not, because the disk is full, the server refuses all writes.
    pub is_writable: bool,
}

/// A transfer of an I/O server's disk, or a request that it answered. Times are nanoseconds of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSpan {
    /// The place of its name in [`ServerSpans::names`].
    pub name: u8,
    /// Start.
    pub start_ns: u64,
    /// End.
    pub end_ns: u64,
    /// First byte in a data file; 0 for a request.
    pub offset: u64,
    /// Bytes moved.
    pub bytes: u64,
}

/// The last transfers of an I/O server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSpans {
    /// The present time of the server's clock, in nanoseconds.
    pub now_ns: u64,
    /// The same moment by the clock of the server's machine, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// Spans that ended before this time of the server's clock may be missing.
    pub complete_after_ns: u64,
    /// Names of the spans.
    pub names: Vec<String>,
    /// The spans, in the order of their ends.
    pub spans: Vec<ServerSpan>,
}

/// The answer of an I/O server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IoReply {
    /// The request succeeded. For a read, the bytes are the payload.
    Done,
    /// Length of a data file in bytes, for `Length`.
    Length(u64),
    /// For `Status`.
    Status(IoStatus),
    /// The request failed.
    Failed(Error),
    /// For `Scrub`.
    Scrubbed(Box<Scrubbed>),
    /// For `DataFiles`.
    DataFiles {
        /// The data files, in their order.
        files: Vec<DataFile>,
        /// Whether more follow.
        more: bool,
    },
    /// For `Inspect`, in the order of the handles.
    Inspected(Vec<Inspection>),
    /// For a read, a length or a sync: the server has no data file of this file. Either nothing was written
    /// to it, or the file was removed, or the data file is lost, which the manager knows. The result of a
    /// read is zeros, which are not sent.
    Absent,
    /// For `Lengths`: lengths of data files in bytes, in the order of the request.
    Lengths(Vec<u64>),
    /// For `Join`: the request succeeded, and the server reads long runs directly from the offered memory.
    /// Client and server exchange no messages about these shares.
    ReadsMemory,
    /// For `Sync`.
    Synced {
        /// Length of the data file in bytes when the sync began, which is now durable.
        length: u64,
        /// The data file's generation, which is durable too. It rises with each sync of new data.
        generation: u64,
    },
    /// For `Metrics`: a page in Prometheus' text format, with the collectives in flight.
    Metrics(String),
    /// For `Spans`.
    Spans(Box<ServerSpans>),
}
