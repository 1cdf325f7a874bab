//! One error type for all layers: a stable `kind`, and a message with the need, the finding and one fix.

use std::fmt;

/// The kind of an error, as a stable name. Append only: Python's error tree is keyed by [`ErrorKind::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// A request for more memory than the budget has.
    Budget,
    /// The disk has no space for a write.
    DiskFull,
    /// The operating system refused or failed a request.
    Io,
    /// A required file or array does not exist.
    NotFound,
    /// A file ends before its last required byte.
    Truncated,
    /// Bytes on disk are damaged or inconsistent.
    Corrupt,
    /// A write to something that is open or mounted read-only.
    ReadOnly,
    /// The target exists already.
    Exists,
    /// An argument is unusable.
    Invalid,
    /// Another process or call holds the lock.
    Busy,
    /// Use in a process that was forked from the creator.
    Forked,
    /// Use after it was closed.
    Closed,
    /// The user's rights or the grant do not permit the request.
    Denied,
    /// Acknowledged writes that were not synced may be lost: the caller must write them again.
    Lost,
    /// A path leads through too many symbolic links.
    Loop,
}

impl ErrorKind {
    /// Every kind, in the order of its declaration.
    pub const ALL: [Self; 15] = [
        Self::Budget,
        Self::DiskFull,
        Self::Io,
        Self::NotFound,
        Self::Truncated,
        Self::Corrupt,
        Self::ReadOnly,
        Self::Exists,
        Self::Invalid,
        Self::Busy,
        Self::Forked,
        Self::Closed,
        Self::Denied,
        Self::Lost,
        Self::Loop,
    ];

    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Budget => "budget",
            Self::DiskFull => "disk_full",
            Self::Io => "io",
            Self::NotFound => "not_found",
            Self::Truncated => "truncated",
            Self::Corrupt => "corrupt",
            Self::ReadOnly => "read_only",
            Self::Exists => "exists",
            Self::Invalid => "invalid",
            Self::Busy => "busy",
            Self::Forked => "forked",
            Self::Closed => "closed",
            Self::Denied => "denied",
            Self::Lost => "lost",
            Self::Loop => "loop",
        }
    }
}

/// An error of any layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The stable kind.
    pub kind: ErrorKind,
    /// Need, finding and one fix, in a sentence or two.
    pub message: String,
}

impl Error {
    /// An error of `kind` with `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An error for an unusable argument.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, message)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)
    }
}

impl std::error::Error for Error {}

/// Result type of all layers.
pub type Result<T> = std::result::Result<T, Error>;
