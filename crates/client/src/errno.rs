//! Error numbers of the system for kinds of errors.

use outcore_core::ErrorKind;

/// The error number for a kind of error. The mount and the C library replace some, for their callers.
pub fn errno_of(kind: ErrorKind) -> i32 {
    match kind {
        ErrorKind::NotFound => libc::ENOENT,
        ErrorKind::Exists => libc::EEXIST,
        ErrorKind::Denied => libc::EACCES,
        ErrorKind::ReadOnly => libc::EROFS,
        ErrorKind::DiskFull => libc::ENOSPC,
        ErrorKind::Busy => libc::EBUSY,
        ErrorKind::Budget => libc::ENOMEM,
        ErrorKind::Invalid => libc::EINVAL,
        ErrorKind::Loop => libc::ELOOP,
        ErrorKind::Closed | ErrorKind::Forked => libc::ENOTCONN,
        ErrorKind::Io | ErrorKind::Truncated | ErrorKind::Corrupt | ErrorKind::Lost => libc::EIO,
    }
}
