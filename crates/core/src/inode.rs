//! The manager's records of names: files, directories and symbolic links.

use crate::{Handle, Layout};

/// Layout hints for a new file. `None` selects the directory's default, or else the pool's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// Bytes of a stripe unit (MPI's `striping_unit`).
    pub stripe_unit_bytes: Option<u64>,
    /// Number of stripe units that are distributed over the servers, if the file has a tail: see
    /// [`crate::Stripes`]. It applies to one file; directories have no default for it.
    pub round_units: Option<u64>,
    /// Number of servers (MPI's `striping_factor`).
    pub stripe_count: Option<u64>,
    /// The first server, by its place in the pool's order (MPI's `start_iodevice`).
    pub base: Option<u64>,
    /// Unknown hints, kept unchanged.
    pub others: Vec<(String, String)>,
}

/// Known minimum lengths of a file's data files: those bytes are durable and must exist. A client that
/// shortens data files reports this before and after, because lengths reported meanwhile may be obsolete.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Durable {
    /// Length of each entry's data file in bytes; empty if none was reported.
    pub lengths: Vec<u64>,
    /// Number of shortenings that began.
    pub cuts: u64,
    /// Number of shortenings that ended. While it is below `cuts`, reported lengths do not count.
    pub cuts_done: u64,
    /// A generation that each entry's data file had when it was durable, so that an older copy of it shows; empty if
    /// none was reported. Each shortening forgets them.
    pub generations: Vec<u64>,
}

/// The manager's record of a file, directory or symbolic link, except its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inode {
    /// The handle; a directory has one too.
    pub handle: Handle,
    /// The layout of a file; `None` for a directory or a link.
    pub layout: Option<Layout>,
    /// User id.
    pub owner: u32,
    /// Group id.
    pub group: u32,
    /// Permission bits as in POSIX, at most 0o1777; for a directory 0o3777. The sticky bit 0o1000 applies to
    /// directories: only the owner of a name may remove it. The set-group-ID bit 0o2000 of a directory gives its
    /// group to new names in it, and the bit itself to new directories.
    pub mode: u32,
    /// Last change of content that was reported to the manager, in nanoseconds since 1970.
    pub modified_ns: u64,
    /// Last change of this record, in nanoseconds since 1970.
    pub changed_ns: u64,
    /// The durable lengths of a file.
    pub durable: Durable,
    /// The target of a symbolic link, as its creator wrote it; `None` for a file or directory.
    pub target: Option<String>,
}

impl Inode {
    /// Whether it is a file.
    pub fn is_file(&self) -> bool {
        self.layout.is_some()
    }

    /// Whether it is a symbolic link.
    pub fn is_link(&self) -> bool {
        self.target.is_some()
    }

    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        !self.is_file() && !self.is_link()
    }

    /// The minimum length of a file in bytes by its durable lengths; 0 for anything else.
    pub fn durable_length(&self) -> u64 {
        let Some(layout) = &self.layout else { return 0 };
        let ends = self.durable.lengths.iter().zip(0..);
        ends.filter_map(|(&local, entry)| layout.stripes.length_from(entry, local)).max().unwrap_or(0)
    }
}

/// One name of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// The name, without its directory.
    pub name: String,
    /// The record of the name.
    pub inode: Inode,
}

/// The handles of the files among some names, in their order: the subject of a [`crate::LengthGrant`].
pub fn files_among(names: &[Named]) -> Vec<Handle> {
    names.iter().filter(|named| named.inode.is_file()).map(|named| named.inode.handle).collect()
}
