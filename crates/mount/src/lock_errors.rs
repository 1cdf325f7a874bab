//! Errors of requests for locks: whether the manager may have granted the lock, and the error numbers for programs.

use fuser::Errno;
use outcore_core::{Error, ErrorKind};

use crate::attributes::stale;
use crate::errors::errno_of;

/// Whether an error of this kind says that the manager has not granted a lock. After others it may have.
pub(crate) fn is_certain(kind: ErrorKind) -> bool {
    use ErrorKind::{Busy, Denied, Invalid, Lost, NotFound};
    matches!(kind, Busy | Denied | Invalid | Lost | NotFound)
}

/// The number of an error of a manager. One of an earlier version does not know the requests for locks.
pub(crate) fn refused_at_first(error: Error) -> Errno {
    if error.kind == ErrorKind::Corrupt { Errno::ENOLCK } else { refused(error) }
}

/// The number of an error of the manager.
pub(crate) fn refused(error: Error) -> Errno {
    match error.kind {
        // There are too many locks or leases.
        ErrorKind::Invalid | ErrorKind::Lost => Errno::ENOLCK,
        _ => stale(errno_of(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manager_that_knows_no_locks_has_none() {
        let unknown = || Error::new(ErrorKind::Corrupt, "need a known request, have number 32");
        assert_eq!(refused_at_first(unknown()).code(), libc::ENOLCK);
        assert_eq!(refused(unknown()).code(), libc::EIO);
    }
}
