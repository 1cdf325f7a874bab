//! Error numbers of the system for errors of the pool.

use fuser::Errno;
use outcore_core::{Error, ErrorKind};

/// The error number that a program sees.
pub(crate) fn errno_of(error: &Error) -> Errno {
    match error.kind {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Exists => Errno::EEXIST,
        ErrorKind::Denied => Errno::EACCES,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::DiskFull => Errno::ENOSPC,
        ErrorKind::Busy => Errno::EBUSY,
        ErrorKind::Budget => Errno::ENOMEM,
        ErrorKind::Invalid => Errno::EINVAL,
        // Another client has put a link in the place of a directory: the kernel looks again.
        ErrorKind::Loop => Errno::ESTALE,
        ErrorKind::Closed | ErrorKind::Forked => Errno::ENOTCONN,
        ErrorKind::Io | ErrorKind::Truncated | ErrorKind::Corrupt | ErrorKind::Lost => Errno::EIO,
    }
}

/// Result of an operation of the mount.
pub(crate) type Answer<T> = Result<T, Errno>;

/// Converts errors of the pool.
pub(crate) trait OrErrno<T> {
    /// The value, or the error number.
    fn or_errno(self) -> Answer<T>;
}

impl<T> OrErrno<T> for outcore_core::Result<T> {
    fn or_errno(self) -> Answer<T> {
        self.map_err(|error| errno_of(&error))
    }
}
