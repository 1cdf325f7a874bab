//! One error type for all layers: a stable `kind` and a message that says need, have, and one fix.

use std::fmt;

/// What went wrong, as a stable name. Append only: Python's error tree is keyed by [`ErrorKind::name`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// More memory was asked for than the budget holds.
    Budget,
    /// The disk has no room for what must be written.
    DiskFull,
    /// The operating system refused or failed a request.
    Io,
    /// A file or array that must exist does not.
    NotFound,
    /// A file ends before the data it must hold.
    Truncated,
    /// Bytes on disk are not what they must be.
    Corrupt,
    /// A write to something opened or mounted read-only.
    ReadOnly,
    /// A target that must not exist does.
    Exists,
    /// An argument is unusable.
    Invalid,
    /// Another process or call holds it.
    Busy,
    /// Used in a process forked from the one that made it.
    Forked,
    /// Used after it was closed.
    Closed,
    /// The rights of the user, or a grant, do not allow it.
    Denied,
    /// What was written and answered, but not synced, may be gone: it must be written again.
    Lost,
}

impl ErrorKind {
    /// Every kind, in the order of its declaration.
    pub const ALL: [Self; 14] = [
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
        }
    }
}

/// An error of any layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Stable kind.
    pub kind: ErrorKind,
    /// Need, have, and one fix, in a sentence or two.
    pub message: String,
}

impl Error {
    /// An error of `kind` that says `message`.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into() }
    }

    /// An unusable argument.
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

/// Result of any layer.
pub type Result<T> = std::result::Result<T, Error>;
