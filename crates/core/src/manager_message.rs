//! Requests of clients to the manager of a pool, and the replies.

use crate::{
    Error, FileLock, Grant, Handle, Hints, Inode, Known, LengthGrant, LockWish, Named, OddRecord, ServerId,
};

/// The addresses of a server. Several addresses are parallel channels to one server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerAddress {
    /// The server.
    pub id: ServerId,
    /// ``tcp:HOST:PORT`` or ``unix:PATH``, one for each channel.
    pub addresses: Vec<String>,
}

/// A file or directory that a search found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    /// Its path from the pool's root.
    pub path: String,
    /// Its record.
    pub inode: Inode,
    /// The attribute that describes an array, a group or a report; empty without one, or without the right to read
    /// it.
    pub description: Vec<u8>,
}

/// Identifies a request of a client. A retry has the same numbers, even after a restart of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// The client: a random number that it chose.
    pub client: u128,
    /// The number of the request, counted by the client.
    pub number: u64,
}

/// A request to the manager. Paths are relative to the pool's root, with `/` between names. A path may also begin at a
/// handle: see [`crate::path_at`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagerRequest {
    /// Returns the pool's identity and its I/O servers.
    Servers,
    /// Opens an existing file for reading or writing.
    Open {
        /// Path of the file.
        path: String,
        /// Whether to write, not only read.
        write: bool,
    },
    /// Creates a file, and the directories above it. Its data files appear when the client sets its length or
    /// writes.
    Create {
        /// Path of the file.
        path: String,
        /// Layout hints.
        hints: Hints,
        /// Permission bits.
        mode: u32,
    },
    /// Renews a grant.
    Renew {
        /// The file.
        handle: Handle,
        /// Whether to write, not only read.
        write: bool,
    },
    /// Returns the record of a name.
    Stat {
        /// Path of the file or directory.
        path: String,
    },
    /// Lists the names in a directory after `after`, sorted, at most `most` of them.
    List {
        /// The directory.
        path: String,
        /// The last name of the previous page; empty for the first page.
        after: String,
        /// Maximum number of entries of a page.
        most: u64,
    },
    /// Creates a directory, and the directories above it.
    MakeDirectory {
        /// Path of the directory.
        path: String,
        /// Permission bits.
        mode: u32,
    },
    /// Creates a symbolic link in an existing directory. The manager never follows links: it answers a request
    /// whose path leads through one with [`ManagerReply::Link`].
    MakeLink {
        /// Path of the link.
        path: String,
        /// The target: any text of 1 to 4095 bytes without zero bytes.
        target: String,
    },
    /// Removes a file or link, or a directory with its contents. The client removes the data files. The reply lists
    /// the first page of them; the client reports with `Orphans` that they are gone.
    Remove {
        /// Path of the file or directory.
        path: String,
        /// Whether a directory may have contents.
        recursive: bool,
    },
    /// Handles files without a name. The manager forgets those whose data files are gone. It returns a page
    /// of the others that the user removed; for root, of all. The manager keeps them listed even if the
    /// client dies.
    Orphans {
        /// Files whose data files are gone.
        gone: Vec<Handle>,
        /// The last handle of the previous page; 0 for the first page.
        after: Handle,
        /// Maximum number of entries of a page.
        most: u64,
    },
    /// Renames. If a file has the new name, it is replaced atomically. Directories above the new name are
    /// created.
    Rename {
        /// The old path.
        from: String,
        /// The new path.
        to: String,
        /// For a file that nobody shortened: the minimum durable lengths of its data files. May be empty.
        durable: Vec<u64>,
        /// The generations of the data files with these lengths. May be empty.
        generations: Vec<u64>,
        /// The description of the directory of the new name, if the file is the metadata of an array or a group. An empty
        /// one removes it.
        description: Option<Vec<u8>>,
    },
    /// Like `Rename`, but a directory may atomically replace a directory with contents. Those are removed as
    /// by `Remove`. The renamed directory takes over the default layout of the replaced one.
    Replace {
        /// The old path.
        from: String,
        /// The new path.
        to: String,
    },
    /// Like `Rename`, but never removes the data of a file: a mount has it open.
    Move {
        /// The old path.
        from: String,
        /// The new path.
        to: String,
        /// The path of a file that had the new name. `None` refuses to replace anything.
        kept: Option<String>,
    },
    /// Changes the attributes that are not `None`.
    SetAttributes {
        /// Path of the file or directory.
        path: String,
        /// Permission bits.
        mode: Option<u32>,
        /// User id.
        owner: Option<u32>,
        /// Group id.
        group: Option<u32>,
        /// The time of the last write, in nanoseconds since 1970.
        modified_ns: Option<u64>,
    },
    /// Sets the default layout hints for new files below a directory.
    SetDefaultLayout {
        /// The directory.
        path: String,
        /// The hints.
        hints: Hints,
    },
    /// Returns an extended attribute of at most 64 KiB.
    GetExtended {
        /// Path of the file or directory.
        path: String,
        /// The attribute's name. With an empty name, the reply lists all names, each as a value.
        name: String,
    },
    /// Sets an extended attribute, or removes it.
    SetExtended {
        /// Path of the file or directory.
        path: String,
        /// The attribute's name.
        name: String,
        /// The value; `None` removes the attribute.
        value: Option<Vec<u8>>,
    },
    /// Adds an I/O server to the pool, or changes its addresses. Only for root.
    AddServer {
        /// The server and its addresses.
        server: ServerAddress,
        /// The highest handle of a data file on the server. New files get higher handles only. 0 means that
        /// it has no data files.
        highest: Handle,
    },
    /// Returns a unique number for a new I/O server. Only for root.
    NewServer,
    /// Retires an I/O server. All its data count as lost, and new files use the other servers. Only for root.
    Retire {
        /// The server.
        server: ServerId,
        /// Whether to reverse the retirement.
        undo: bool,
    },
    /// Lists the files in the order of their handles, including files without a name whose data files may
    /// still exist. Only for root.
    Files {
        /// The last handle of the previous page; 0 for the first page.
        after: Handle,
        /// Maximum number of entries of a page.
        most: u64,
    },
    /// Checks the manager's data: records with wrong checksums, and names and directories that contradict
    /// each other. Only for root.
    Check {
        /// The key after which to start. With an empty key, for the first page, the check includes the store
        /// itself.
        after: Vec<u8>,
        /// Maximum number of records of a page.
        most: u64,
    },
    /// Returns the manager's knowledge of some handles. Only for root.
    Know {
        /// The handles, at most 1000.
        handles: Vec<Handle>,
    },
    /// Returns the paths of some files. Only for root.
    Paths {
        /// The handles, at most 100.
        handles: Vec<Handle>,
    },
    /// Like `List`, plus a grant for the files' lengths. For a file, the reply lists the file itself under an
    /// empty name.
    Look {
        /// The directory or file.
        path: String,
        /// The last name of the previous page; empty for the first page.
        after: String,
        /// Maximum number of entries of a page.
        most: u64,
    },
    /// Returns the manager's time, by which grants expire.
    Time,
    /// Reports that the caller wrote to a file, or made part of it durable. The reply is the file's new
    /// record.
    Wrote {
        /// The file.
        handle: Handle,
        /// Time of the write by the caller's clock, in nanoseconds since 1970. The file's time of the last
        /// write rises to it, but not past the manager's time, and at least by a nanosecond.
        modified_ns: Option<u64>,
        /// The caller's last known number of shortenings. If the file was shortened since, `durable` does not
        /// count.
        cuts: u64,
        /// Minimum durable lengths of the file's data files; may be empty.
        durable: Vec<u64>,
        /// The generations of the data files with these lengths; may be empty.
        generations: Vec<u64>,
    },
    /// Sets the time of the last write to the manager's time. Allowed for users who may write.
    Touch {
        /// Path of the file or directory.
        path: String,
    },
    /// Reports that the caller is about to shorten data files. The reply is the file's record.
    BeginCut {
        /// The file.
        handle: Handle,
        /// The new lengths of the data files.
        lengths: Vec<u64>,
    },
    /// Reports that the shortening is done. The reply is the file's record.
    EndCut {
        /// The file.
        handle: Handle,
    },
    /// Returns the record of an open file, whatever its name is now.
    Describe {
        /// The file.
        handle: Handle,
    },
    /// Takes or renews a lease, under which a mount holds locks.
    RenewLease {
        /// A random number of the mount.
        lease: u128,
    },
    /// Ends a lease, and with it its locks.
    EndLease {
        /// The number of the lease.
        lease: u128,
    },
    /// Takes or removes a lock on a range of a file. Never waits.
    SetLock {
        /// The lock.
        wish: LockWish,
    },
    /// Returns the lock that would exclude another.
    TestLock {
        /// The other one.
        wish: LockWish,
    },
    /// Searches a directory and everything below it.
    Find {
        /// The directory, or a file.
        path: String,
        /// The query; an empty one means everything.
        query: String,
        /// The end of the previous page; empty for the first page.
        after: Vec<u8>,
        /// Maximum number of records that the manager compares for a page.
        most: u64,
    },
    /// Repairs the index of attributes. Only for root.
    Mend {
        /// The last key of the previous page; empty for the first page.
        after: Vec<u8>,
        /// Maximum number of records of a page.
        most: u64,
    },
}

impl ManagerRequest {
    /// Whether the request may change the state of the manager. If so, the manager must not execute it twice.
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
            | Self::Describe { .. }
            | Self::RenewLease { .. }
            | Self::Find { .. }
            | Self::TestLock { .. } => false,
            Self::Create { .. }
            | Self::MakeDirectory { .. }
            | Self::MakeLink { .. }
            | Self::Remove { .. }
            | Self::Orphans { .. }
            | Self::Rename { .. }
            | Self::Replace { .. }
            | Self::Move { .. }
            | Self::SetAttributes { .. }
            | Self::SetDefaultLayout { .. }
            | Self::SetExtended { .. }
            | Self::Wrote { .. }
            | Self::Touch { .. }
            | Self::AddServer { .. }
            | Self::NewServer
            | Self::Retire { .. }
            | Self::BeginCut { .. }
            | Self::EndCut { .. }
            | Self::EndLease { .. }
            | Self::Mend { .. }
            | Self::SetLock { .. } => true,
        }
    }

    /// Whether the request may change the metadata store. Locks are in the manager's memory only.
    pub fn is_stored(&self) -> bool {
        self.is_change() && !matches!(self, Self::SetLock { .. } | Self::EndLease { .. })
    }

    /// The paths in the request.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let (first, others) = match self {
            Self::Open { path, .. }
            | Self::Create { path, .. }
            | Self::Stat { path }
            | Self::List { path, .. }
            | Self::MakeDirectory { path, .. }
            | Self::MakeLink { path, .. }
            | Self::Remove { path, .. }
            | Self::SetAttributes { path, .. }
            | Self::SetDefaultLayout { path, .. }
            | Self::GetExtended { path, .. }
            | Self::SetExtended { path, .. }
            | Self::Look { path, .. }
            | Self::Touch { path }
            | Self::Find { path, .. } => (Some(path), [None, None]),
            Self::Rename { from, to, .. } | Self::Replace { from, to } => (Some(from), [Some(to), None]),
            Self::Move { from, to, kept } => (Some(from), [Some(to), kept.as_ref()]),
            Self::Servers
            | Self::Renew { .. }
            | Self::Orphans { .. }
            | Self::AddServer { .. }
            | Self::NewServer
            | Self::Retire { .. }
            | Self::Files { .. }
            | Self::Check { .. }
            | Self::Know { .. }
            | Self::Paths { .. }
            | Self::Time
            | Self::Wrote { .. }
            | Self::BeginCut { .. }
            | Self::EndCut { .. }
            | Self::Describe { .. }
            | Self::RenewLease { .. }
            | Self::EndLease { .. }
            | Self::SetLock { .. }
            | Self::TestLock { .. }
            | Self::Mend { .. } => (None, [None, None]),
        };
        first.into_iter().chain(others.into_iter().flatten()).map(String::as_str)
    }

    /// Whether the request creates something that takes space in the metadata store. Other requests need
    /// little space, for a short time.
    pub fn takes_room(&self) -> bool {
        match self {
            Self::Create { .. }
            | Self::MakeDirectory { .. }
            | Self::MakeLink { .. }
            | Self::SetDefaultLayout { .. }
            | Self::Mend { .. }
            | Self::NewServer => true,
            Self::SetExtended { value, .. } => value.is_some(),
            _ => false,
        }
    }
}

/// A file that was opened or created, with everything that a client needs to use its I/O servers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The file.
    pub inode: Inode,
    /// The grant for the file.
    pub grant: Grant,
}

/// The answer of the manager.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ManagerReply {
    /// The request succeeded.
    Done,
    /// The pool's identity, and its I/O servers in order.
    Servers {
        /// A random number from the creation of the pool.
        pool: u128,
        /// All I/O servers that are not retired.
        servers: Vec<ServerAddress>,
        /// The retired I/O servers.
        retired: Vec<ServerId>,
    },
    /// For `Open` and `Create`.
    Opened(Box<Opened>),
    /// For `Renew`.
    Granted(Grant),
    /// For `Stat`, `Wrote`, `BeginCut`, `EndCut` and `Describe`.
    Inode(Box<Inode>),
    /// For `List`.
    Names {
        /// The names, sorted.
        names: Vec<Named>,
        /// Whether more follow.
        more: bool,
    },
    /// For `Remove`, `Orphans`, `Rename` and `Replace`: files that no longer have a name, with grants to
    /// remove their data files.
    Orphans(Vec<Opened>),
    /// For `GetExtended`.
    Values(Vec<Vec<u8>>),
    /// The request failed.
    Failed(Error),
    /// For `NewServer`.
    NewServer(ServerId),
    /// For `Files`, and for `Know` in the order of the handles.
    Known {
        /// The manager's knowledge of each handle.
        known: Vec<Known>,
        /// For `Files`: whether more follow.
        more: bool,
    },
    /// For `Paths`, in the order of the handles; `None` for a file that is not reachable from the root.
    Paths(Vec<Option<String>>),
    /// For `Look`.
    Looked {
        /// The names, sorted.
        names: Vec<Named>,
        /// Whether more follow.
        more: bool,
        /// The grant for the lengths of the listed files, in the order of the names.
        grant: LengthGrant,
    },
    /// For `Time`.
    Time {
        /// Seconds since 1970.
        now_s: u64,
        /// A number of this run of the manager. I/O servers report their files again to a new run.
        run: u64,
    },
    /// For `Check` and `Mend`.
    Checked {
        /// Records that contradict others, or contradicted them, in the order of their keys.
        odd: Vec<OddRecord>,
        /// The key after which to continue; `None` at the end.
        next: Option<Vec<u8>>,
    },
    /// A path of the request leads through a symbolic link, or is one where the request needs a file or a
    /// directory. Nothing was done.
    Link {
        /// Path of the link: the beginning of the requested path.
        path: String,
        /// Its target.
        target: String,
    },
    /// For `RenewLease`.
    Lease {
        /// Seconds after which it ends without a renewal.
        seconds: u64,
        /// Whether it has no locks, as a new one.
        is_new: bool,
    },
    /// For `SetLock` and `TestLock`: the lock of another owner that excludes the wanted one.
    Locked(Option<FileLock>),
    /// For `Find`.
    Found {
        /// The hits of this page, in no order. Another page may have the same ones again.
        hits: Vec<Hit>,
        /// The end of this page; `None` at the end of the search.
        next: Option<Vec<u8>>,
    },
}
