//! Error numbers of the system for errors of the pool.

use outcore_core::ErrorKind;

/// The error number that HDF5 and its users get.
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
