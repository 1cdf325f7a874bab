//! Locks on bytes of a file, as programs of a mount take them by fcntl(2). The manager keeps them under the lease of the signs of
//! life.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_core::{Error, ErrorKind, FileId, LockFamily, LockKind, LockOwner, LockWish, Result};

use crate::boundary::call;
use crate::file::File;
use crate::signs::{FIRST, Sign, Signs, State};

fn is_held() -> Error {
    Error::new(ErrorKind::Busy, "another owner has a lock on these bytes; try again later")
}

fn has_ended() -> Error {
    let text = "the lock has ended before, and others may have taken it; check that this process reaches the manager";
    Error::new(ErrorKind::Lost, text)
}

/// Whether an error of this kind says that the manager has not granted a lock. After others it may have.
fn is_certain(kind: ErrorKind) -> bool {
    use ErrorKind::{Busy, Denied, Invalid, Lost, NotFound};
    matches!(kind, Busy | Denied | Invalid | Lost | NotFound)
}

impl Signs {
    /// Takes a lock on bytes of a file, and never waits. Returns its number.
    fn lock(self: &Arc<Self>, file: FileId, offset: u64, bytes: u64, kind: LockKind) -> Result<u64> {
        let last = offset.checked_add(bytes).filter(|&end| end > offset && end <= FIRST).ok_or_else(|| {
            Error::invalid(format!(
                "need at least one byte before 2^63 for a lock, have {bytes} from {offset} on; pass others"
            ))
        })? - 1;
        let number = self.last_lock.fetch_add(1, Ordering::Relaxed);
        let (handle, place) = (self.client.handle(file)?, (Some(file), number));
        // Each lock has an owner of its own, so that locks of one process exclude each other.
        let owner = LockOwner { lease: self.lease, family: LockFamily::Fcntl, number };
        let process = std::process::id();
        let wish = LockWish { handle, owner, process, start: offset, end: last, kind, reclaims: false };
        let mut given = self.given();
        self.begin(&mut given)?;
        let mut taken = self.client.set_lock(wish);
        if taken.as_ref().is_err_and(|error| error.kind == ErrorKind::Lost) {
            self.renew(&mut given)?;
            taken = self.client.set_lock(wish);
        }
        match taken {
            Ok(None) => {
                given.insert(place, Sign { wish, state: State::Known });
                Ok(number)
            }
            Ok(Some(_)) => Err(is_held()),
            Err(error) => {
                if !is_certain(error.kind) {
                    given.insert(place, Sign { wish, state: State::Withdrawn });
                }
                Err(error)
            }
        }
    }

    /// Gets a lock back that the manager has forgotten in a restart.
    pub(crate) fn reclaim(&self, wish: LockWish) -> Result<()> {
        self.client.set_lock(LockWish { reclaims: true, ..wish })?.map_or(Ok(()), |_| Err(is_held()))
    }

    /// Removes a lock.
    fn unlock(&self, file: FileId, number: u64) -> Result<()> {
        let (mut given, place) = (self.given(), (Some(file), number));
        let Some(Sign { wish, state }) = given.get(&place).copied().filter(|_| number >= FIRST) else {
            return Err(Error::invalid(format!(
                "need a lock of this file, have the number {number}; pass one"
            )));
        };
        let unlock = || self.client.set_lock(LockWish { kind: LockKind::None, ..wish }).map(drop);
        let is_lost = |done: &Result<()>| done.as_ref().is_err_and(|error| error.kind == ErrorKind::Lost);
        let mut done = if state == State::Forgotten { Err(has_ended()) } else { unlock() };
        if is_lost(&done) {
            done = match self.renew(&mut given).and_then(|_| self.reclaim(wish)) {
                // The manager may have restored the lock before, although the answer was lost.
                Err(error) if is_certain(error.kind) => unlock().and(Err(has_ended())),
                Err(error) => Err(error),
                Ok(()) => unlock(),
            };
        }
        if done.is_ok() || is_lost(&done) {
            given.remove(&place);
            return done.map_err(|_| has_ended());
        }
        given.insert(place, Sign { wish, state: State::Withdrawn });
        done
    }
}

/// Locks `bytes` bytes of a file from `offset` on against all other locks on them, of this process too, except that shared locks
/// do not exclude each other. It never waits. Programs of a mount take such locks by `fcntl`. No lock hinders reads and writes.
///
/// `lock` gets a number for `outcore_file_unlock`. The lock ends with the close of the file, too. If this process dies or is
/// stopped, it ends within the term of a lease, as a sign of life does (`outcore_sign_give`).
///
/// Errors: -EBUSY (another lock excludes it, or the manager has restarted and waits for earlier locks: try again), -EINVAL (no
/// byte, or bytes behind 2^63; the user has too many leases or locks), -EACCES (a shared lock needs the right to read the file,
/// another one the right to write), -EIO.
///
/// # Safety
/// `file` is a file, or NULL; `lock` is valid for a write, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_lock(
    file: *const File,
    offset: u64,
    bytes: u64,
    is_shared: c_int,
    lock: *mut u64,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { file.as_ref() }, |file| {
        // SAFETY: as the caller promises.
        let Some(lock) = (unsafe { lock.as_mut() }) else {
            return Err(Error::invalid("need a place for the number of a lock, have NULL; pass one"));
        };
        let kind = if is_shared == 0 { LockKind::Exclusive } else { LockKind::Shared };
        *lock = file.signs.lock(file.file, offset, bytes, kind)?;
        Ok(())
    })
}

/// Removes a lock of `outcore_file_lock`.
///
/// Errors: -EREMOTEIO (the lock had ended, and others may have locked these bytes meanwhile), -EINVAL (no lock of this file),
/// -EIO.
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_unlock(file: *const File, lock: u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { file.as_ref() }, |file| file.signs.unlock(file.file, lock))
}

#[cfg(test)]
#[path = "lock_tests.rs"]
mod tests;
