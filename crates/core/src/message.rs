//! What clients say to the servers of a pool, and what these answer.
//!
//! A message is a record here, and a payload of bytes beside it: those of a read or a write, which no record holds.

use crate::{
    CollectiveSpec, DataFile, Error, Handle, Inspection, Known, Layout, MemoryOffer, Regions, ScrubPlace,
    Scrubbed, ServerId, Stripes,
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
    /// Of a data file, in bytes.
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
    /// Of a read or a length: the server has no data file of it, since nothing was written to it or since the file was
    /// removed, which the manager knows. A read gives zeros, which are not sent.
    Absent,
    /// Of several data files, in bytes, in the order of the request.
    Lengths(Vec<u64>),
    /// Of `Join`: done, and the server reads from the memory that was offered what lies there in long runs. No messages are
    /// exchanged about these shares.
    ReadsMemory,
}

/// Where a server listens: several addresses are parallel channels to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// Which server.
    pub id: ServerId,
    /// ``tcp:HOST:PORT`` or ``unix:PATH``, each another way to it.
    pub addresses: Vec<String>,
}

/// How a new file is laid out. What is `None` is the directory's default, and then the pool's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Bytes of a stripe unit (MPI's `striping_unit`).
    pub stripe_unit_bytes: Option<u64>,
    /// How many servers (MPI's `striping_factor`).
    pub stripe_count: Option<u64>,
    /// The first of the pool's servers in order (MPI's `start_iodevice`).
    pub base: Option<u64>,
    /// Hints that nobody here knows, kept as they are.
    pub others: Vec<(String, String)>,
}

/// What the manager keeps of a file or directory, besides its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// Which file; a directory has one too.
    pub handle: Handle,
    /// `None`: a directory.
    pub layout: Option<Layout>,
    /// User id.
    pub owner: u32,
    /// Group id.
    pub group: u32,
    /// Permission bits, as in POSIX: 0o1777 at most, of which 0o1000 is for directories in which only the owner of a
    /// name removes it.
    pub mode: u32,
    /// Nanoseconds since 1970, of the last change of content that the manager was told of.
    pub modified_ns: u64,
    /// Nanoseconds since 1970, of the last change of this record.
    pub changed_ns: u64,
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name, without its directory.
    pub name: String,
    /// What it is.
    pub inode: Inode,
}

/// Which request of which client it is. One that is sent again has the same numbers, whatever became of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The client: a random number that it gave itself.
    pub client: u128,
    /// The number of the request among the client's.
    pub number: u64,
}

/// A request to the manager. Paths are relative to the pool's root, with `/` between names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagerRequest {
    /// The pool's I/O servers, and which pool it is.
    Servers,
    /// A file that exists, to read or to write it.
    Open {
        /// Which.
        path: String,
        /// Whether to write it, not only to read it.
        write: bool,
    },
    /// A new file. Directories above it are made. Its data files are made when the client sets its length or writes.
    Create {
        /// Which.
        path: String,
        /// How it is laid out.
        hints: Hints,
        /// Permission bits.
        mode: u32,
    },
    /// A grant that goes on where one ends.
    Renew {
        /// The file.
        handle: Handle,
        /// Whether to write it, not only to read it.
        write: bool,
    },
    /// What a name is.
    Stat {
        /// Which.
        path: String,
    },
    /// The names in a directory after `after`, sorted, at most `most` of them.
    List {
        /// The directory.
        path: String,
        /// The last name of the page before; empty for the first page.
        after: String,
        /// Of a page.
        most: u64,
    },
    /// A new directory; those above it are made.
    MakeDirectory {
        /// Which.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// Removes a file, or a directory and what is below it. The data files are removed by the client: it is told which,
    /// at first a page of them, and says with `Orphans` that they are gone.
    Remove {
        /// Which.
        path: String,
        /// Whether a directory may have something in it.
        recursive: bool,
    },
    /// Of files without a name: forgets those whose data files are gone, and gives a page of those that the user
    /// removed, all of them if it is root. Until then they stay listed, whatever happens to the client.
    Orphans {
        /// Whose data files are gone.
        gone: Vec<Handle>,
        /// The last handle of the page before; 0 for the first page.
        after: Handle,
        /// Of a page.
        most: u64,
    },
    /// Renames; a file of the new name is replaced at once. Directories above the new name are made.
    Rename {
        /// Which.
        from: String,
        /// What it is called then.
        to: String,
    },
    /// Changes what is not `None`.
    SetAttributes {
        /// Which.
        path: String,
        /// Permission bits.
        mode: Option<u32>,
        /// User id.
        owner: Option<u32>,
        /// Group id.
        group: Option<u32>,
        /// Nanoseconds since 1970.
        modified_ns: Option<u64>,
    },
    /// The hints that new files below a directory begin with.
    SetDefaultLayout {
        /// The directory.
        path: String,
        /// What they begin with.
        hints: Hints,
    },
    /// An extended attribute of at most 64 KiB.
    GetExtended {
        /// Of which file or directory.
        path: String,
        /// Its name; with an empty one, all names are given, each as a value.
        name: String,
    },
    /// Sets an extended attribute, or removes it.
    SetExtended {
        /// Of which file or directory.
        path: String,
        /// Its name.
        name: String,
        /// `None` removes it.
        value: Option<Vec<u8>>,
    },
    /// Adds an I/O server to the pool, or changes where one listens. Only root may.
    AddServer {
        /// Which, and where.
        server: ServerAddress,
    },
    /// A number for a new I/O server, which nobody else gets. Only root may.
    NewServer,
    /// Retires an I/O server: it counts as gone, with all that lay on it, and new files lie on the others. Only root may.
    Retire {
        /// Which.
        server: ServerId,
        /// Whether it is to count as there again.
        undo: bool,
    },
    /// The files in the order of their handles, also those without a name whose data files may still be there. Only root
    /// may.
    Files {
        /// The last handle of the page before; 0 for the first page.
        after: Handle,
        /// Of a page.
        most: u64,
    },
    /// What is known of some handles. Only root may.
    Know {
        /// Which, at most 1000.
        handles: Vec<Handle>,
    },
    /// The paths of some files. Only root may.
    Paths {
        /// Whose, at most 100.
        handles: Vec<Handle>,
    },
    /// As `List`, and the right to ask how long the files are; of a file, itself under an empty name.
    Look {
        /// The directory or file.
        path: String,
        /// The last name of the page before; empty for the first page.
        after: String,
        /// Of a page.
        most: u64,
    },
    /// What time it is there: by that grants end.
    Time,
    /// A file was written to by who asks, at this time by his clock. Its time of the last write rises: to that, but not past
    /// the manager's time, and by a nanosecond at least. Answered with what is known of the file then.
    Wrote {
        /// The file.
        handle: Handle,
        /// Nanoseconds since 1970.
        modified_ns: u64,
    },
    /// Sets the time of the last write to the manager's. Who may write may do that, too.
    Touch {
        /// Which file or directory.
        path: String,
    },
}

impl ManagerRequest {
    /// Whether it may change what the manager keeps: then it must not be done twice.
    pub fn is_change(&self) -> bool {
        match self {
            Self::Servers
            | Self::Open { .. }
            | Self::Renew { .. }
            | Self::Stat { .. }
            | Self::List { .. }
            | Self::GetExtended { .. }
            | Self::Files { .. }
            | Self::Know { .. }
            | Self::Paths { .. }
            | Self::Look { .. }
            | Self::Time => false,
            Self::Create { .. }
            | Self::MakeDirectory { .. }
            | Self::Remove { .. }
            | Self::Orphans { .. }
            | Self::Rename { .. }
            | Self::SetAttributes { .. }
            | Self::SetDefaultLayout { .. }
            | Self::SetExtended { .. }
            | Self::Wrote { .. }
            | Self::Touch { .. }
            | Self::AddServer { .. }
            | Self::NewServer
            | Self::Retire { .. } => true,
        }
    }
}

/// A file that was opened or made: what a client needs to go to the I/O servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The file.
    pub inode: Inode,
    /// The right to.
    pub grant: Grant,
}

/// The answer of the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagerReply {
    /// Done.
    Done,
    /// Which pool, and its I/O servers in their order.
    Servers {
        /// Made once, at random, when the pool was.
        pool: u128,
        /// Of every I/O server that is not retired.
        servers: Vec<ServerAddress>,
        /// Those that are.
        retired: Vec<ServerId>,
    },
    /// Of `Open`, `Create`.
    Opened(Box<Opened>),
    /// Of `Renew`.
    Granted(Grant),
    /// Of `Stat`.
    Inode(Box<Inode>),
    /// Of `List`.
    Names {
        /// Sorted.
        names: Vec<Named>,
        /// Whether there are more after them.
        more: bool,
    },
    /// Of `Remove`, `Orphans` and `Rename`: files that have no name any more, with the right to remove their data files.
    Orphans(Vec<Opened>),
    /// Of `GetExtended`.
    Values(Vec<Vec<u8>>),
    /// Not done.
    Failed(Error),
    /// Of `NewServer`.
    NewServer(ServerId),
    /// Of `Files`, and of `Know` in the order of the handles.
    Known {
        /// What is known.
        known: Vec<Known>,
        /// Of `Files`: whether there are more after them.
        more: bool,
    },
    /// Of `Paths`, in the order of the handles; `None`: there is no way to it from the root.
    Paths(Vec<Option<String>>),
    /// Of `Look`.
    Looked {
        /// Sorted.
        names: Vec<Named>,
        /// Whether there are more after them.
        more: bool,
        /// For the handles of those that are files, in the order of the names.
        grant: LengthGrant,
    },
    /// Of `Time`: seconds since 1970.
    Time(u64),
}

/// The handles that a [`LengthGrant`] is for: of the files among some names, in their order.
pub fn files_among(names: &[Named]) -> Vec<Handle> {
    names.iter().filter(|named| named.inode.layout.is_some()).map(|named| named.inode.handle).collect()
}
