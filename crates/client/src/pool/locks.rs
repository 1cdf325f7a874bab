//! Leases of mounts, and the locks on files that they hold at the manager.

use outcore_core::{FileLock, Gather, Link, LockWish, ManagerReply, ManagerRequest, Result};

use crate::PoolVolume;
use crate::pool::call::unexpected;

impl<L: Link + ?Sized + 'static> PoolVolume<L>
where
    L::Buffer: Gather + Sync,
{
    /// Takes or renews the lease of this random number. Returns its term in seconds, and whether it has no locks, as a
    /// new one.
    pub fn renew_lease(&self, lease: u128) -> Result<(u64, bool)> {
        match self.0.manager(ManagerRequest::RenewLease { lease })? {
            ManagerReply::Lease { seconds, is_new } => Ok((seconds, is_new)),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Ends a lease, and with it its locks.
    pub fn end_lease(&self, lease: u128) -> Result<()> {
        match self.0.manager(ManagerRequest::EndLease { lease })? {
            ManagerReply::Done => Ok(()),
            reply => Err(unexpected(&reply)),
        }
    }

    /// Takes or removes a lock, and never waits. Returns the lock of another owner that excludes it.
    ///
    /// # Errors
    ///
    /// `Lost` if the manager does not know the lease, or cannot restore the lock. `Busy` if the manager has restarted
    /// and waits for locks from before. `Invalid` if the lease has too many locks.
    pub fn set_lock(&self, wish: LockWish) -> Result<Option<FileLock>> {
        self.locked(ManagerRequest::SetLock { wish })
    }

    /// Returns the lock of another owner that would exclude this one.
    ///
    /// # Errors
    ///
    /// `Busy` if the manager knows of none, but waits for locks from before its restart.
    pub fn test_lock(&self, wish: LockWish) -> Result<Option<FileLock>> {
        self.locked(ManagerRequest::TestLock { wish })
    }

    fn locked(&self, request: ManagerRequest) -> Result<Option<FileLock>> {
        match self.0.manager(request)? {
            ManagerReply::Locked(excluded) => Ok(excluded),
            reply => Err(unexpected(&reply)),
        }
    }
}
