//! What clients say to the manager of a pool, and what it answers.

use crate::{Error, Grant, Handle, Known, Layout, LengthGrant, OddRecord, ServerId};

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
    /// How many stripe units go round the servers, if not all do: see [`crate::Stripes`]. Of one file, no directory has it
    /// for those in it.
    pub round_units: Option<u64>,
    /// How many servers (MPI's `striping_factor`).
    pub stripe_count: Option<u64>,
    /// The first of the pool's servers in order (MPI's `start_iodevice`).
    pub base: Option<u64>,
    /// Hints that nobody here knows, kept as they are.
    pub others: Vec<(String, String)>,
}

/// How long the data files of a file are at least, as far as the manager was told: what is durable there, and not to be
/// missing. Who shortens them says so before and after, since what others tell meanwhile may not be there any more.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// Of each entry, in bytes; empty if nothing was told.
    pub lengths: Vec<u64>,
    /// How often somebody began to shorten them.
    pub cuts: u64,
    /// How often that was done. As long as it is less, nothing that is told counts.
    pub cuts_done: u64,
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
    /// Of a file: what is durable of it.
    pub durable: Durable,
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
        /// Of a file that nobody shortened: how long its data files are at least, durably; may be empty.
        durable: Vec<u64>,
    },
    /// As `Rename`, and a directory takes the place of one at once that has something in it, all of which is removed as by
    /// `Remove`. It takes over what new files below that began with.
    Replace {
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
        /// The highest handle of a data file there: no new file gets it, or one below. 0: there are none.
        highest: Handle,
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
    /// Looks for damage in what the manager keeps: records that are not as they were written, and names and directories
    /// that do not fit together. Only root may.
    Check {
        /// The key after which to begin; empty for the first page, which also looks at the store itself.
        after: Vec<u8>,
        /// Records of a page.
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
    /// A file was written to by who asks, or some of it made durable. Answered with what is known of the file then.
    Wrote {
        /// The file.
        handle: Handle,
        /// When, by his clock, in nanoseconds since 1970. Its time of the last write rises: to that, but not past the manager's
        /// time, and by a nanosecond at least.
        modified_ns: Option<u64>,
        /// How often it was said to have been shortened before. If it is more often now, what follows does not count.
        cuts: u64,
        /// How long its data files are at least, durably; may be empty.
        durable: Vec<u64>,
    },
    /// Sets the time of the last write to the manager's. Who may write may do that, too.
    Touch {
        /// Which file or directory.
        path: String,
    },
    /// Its data files are about to be shortened; answered by what is known of it then.
    BeginCut {
        /// Of which file.
        handle: Handle,
        /// How long they will be.
        lengths: Vec<u64>,
    },
    /// That is done; answered by what is known of it then.
    EndCut {
        /// Of which file.
        handle: Handle,
    },
    /// What is known of an open file, whatever its name is.
    Describe {
        /// Which.
        handle: Handle,
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
            | Self::Check { .. }
            | Self::Look { .. }
            | Self::Time
            | Self::Describe { .. } => false,
            Self::Create { .. }
            | Self::MakeDirectory { .. }
            | Self::Remove { .. }
            | Self::Orphans { .. }
            | Self::Rename { .. }
            | Self::Replace { .. }
            | Self::SetAttributes { .. }
            | Self::SetDefaultLayout { .. }
            | Self::SetExtended { .. }
            | Self::Wrote { .. }
            | Self::Touch { .. }
            | Self::AddServer { .. }
            | Self::NewServer
            | Self::Retire { .. }
            | Self::BeginCut { .. }
            | Self::EndCut { .. } => true,
        }
    }

    /// Whether it makes something that takes room in the metadata store. Others need little, and for a short time.
    pub fn takes_room(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::MakeDirectory { .. }
            | Self::SetDefaultLayout { .. }
            | Self::NewServer => true,
            Self::SetExtended { value, .. } => value.is_some(),
            _ => false,
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
    /// Of `Stat`, `Wrote`, `BeginCut`, `EndCut` and `Describe`.
    Inode(Box<Inode>),
    /// Of `List`.
    Names {
        /// Sorted.
        names: Vec<Named>,
        /// Whether there are more after them.
        more: bool,
    },
    /// Of `Remove`, `Orphans`, `Rename` and `Replace`: files that have no name any more, with the right to remove their data files.
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
    /// Of `Time`.
    Time {
        /// Seconds since 1970.
        now_s: u64,
        /// A number of this run of the manager: I/O servers tell another run about their files again.
        run: u64,
    },
    /// Of `Check`.
    Checked {
        /// Records that do not fit to others, in the order of their keys.
        odd: Vec<OddRecord>,
        /// The key after which to go on; `None`: all were looked at.
        next: Option<Vec<u8>>,
    },
}

/// The handles that a [`LengthGrant`] is for: of the files among some names, in their order.
pub fn files_among(names: &[Named]) -> Vec<Handle> {
    names.iter().filter(|named| named.inode.layout.is_some()).map(|named| named.inode.handle).collect()
}
