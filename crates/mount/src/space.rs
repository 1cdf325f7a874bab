//! Disk space: how much the servers have, and its reservation.

use fuser::{Errno, FileHandle};
use outcore_core::{DiskSize, IoStatus};

use crate::errors::{Answer, OrErrno};
use crate::tree::Tree;

/// Disk space of all servers.
pub(crate) struct Space {
    /// Bytes of the file systems of all servers.
    pub total_bytes: u64,
    /// Free bytes of all servers.
    pub free_bytes: u64,
    /// Free bytes for files that are striped over all servers: the fullest server limits them.
    pub available_bytes: u64,
    /// The files of the server that can take the fewest new ones.
    pub disk: DiskSize,
}

impl Tree {
    /// The disk space of all servers.
    pub fn space(&self) -> Answer<Space> {
        let servers = self.client.status().into_iter().map(|(_, status)| status);
        let servers = servers.collect::<outcore_core::Result<Vec<IoStatus>>>().or_errno()?;
        let fullest = servers.iter().map(|server| server.free_bytes).min().unwrap_or(0);
        let disks = servers.iter().map(|server| server.disk);
        Ok(Space {
            total_bytes: disks.clone().map(|disk| disk.total_bytes).sum(),
            free_bytes: servers.iter().map(|server| server.free_bytes).sum(),
            available_bytes: fullest.saturating_mul(servers.len() as u64),
            disk: disks.min_by_key(|disk| disk.free_files).unwrap_or_default(),
        })
    }

    /// Reserves space for a file up to the end of a range, and makes the file so long if it is shorter: `fallocate`
    /// without flags. A pool can do nothing else.
    pub fn reserve(&self, handle: FileHandle, offset: u64, length: u64, mode: i32) -> Answer<()> {
        if mode != 0 {
            return Err(Errno::EOPNOTSUPP);
        }
        let open = self.files.get(handle)?;
        let end = offset.checked_add(length).filter(|end| i64::try_from(*end).is_ok());
        self.files.reserve(&open, end.ok_or(Errno::EFBIG)?).or_errno()
    }
}
