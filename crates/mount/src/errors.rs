//! Error numbers of the system for errors of the pool.

use fuser::Errno;
use outcore_core::{Error, ErrorKind};

/// The error number that a program sees.
pub(crate) fn errno_of(error: &Error) -> Errno {
    match error.kind {
        // Another client has put a link in the place of a directory: the kernel looks again.
        ErrorKind::Loop => Errno::ESTALE,
        kind => Errno::from_i32(outcore_client::errno_of(kind)),
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
