//! Disk space that data leave free for checksums, the log, and metadata on the same disk.

use outcore_core::{Buffer, DiskSize, Error, ErrorKind, Result};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::pieces::Piece;
use crate::io_server::event::{NameAnswer, NameOperation};
use crate::io_server::shared::Shared;

/// After writing this part of the free space, a server queries the disk again, because other servers write too.
const PART: u64 = 8;

impl<B: Buffer> Shared<B> {
    /// Bytes that data may still take from the disk.
    pub async fn room(&self) -> Result<u64> {
        Ok(self.bytes_of_name(NameOperation::Free).await?.saturating_sub(self.limits.spare_bytes))
    }

    /// The size of the disk.
    pub async fn disk_size(&self) -> Result<DiskSize> {
        match self.name(NameOperation::Size).await? {
            NameAnswer::Size(size) => Ok(size),
            other => Err(Error::new(ErrorKind::Io, format!("a size of the disk was answered by {other:?}"))),
        }
    }

    pub async fn bytes_of_name(&self, operation: NameOperation) -> Result<u64> {
        match self.name(operation).await? {
            NameAnswer::Bytes(bytes) => Ok(bytes),
            other => Err(Error::new(ErrorKind::Io, format!("a number of bytes was answered by {other:?}"))),
        }
    }

    /// Refuses a piece for which the disk has no space. Bytes whose space is already allocated always pass.
    pub async fn check_room(&self, file: &File, ids: Ids, piece: &Piece) -> Result<()> {
        if self.limits.spare_bytes == 0 {
            return Ok(());
        }
        let need = piece.bytes();
        if let Some(left) = self.room_left.get().checked_sub(need) {
            self.room_left.set(left);
            return Ok(());
        }
        let have = self.room().await?;
        if let Some(left) = have.checked_sub(need) {
            self.room_left.set(left / PART);
            return Ok(());
        }
        let length = file.length.get();
        if piece.end() <= length
            && self.bytes_of_name(NameOperation::Allocated { file: ids.data }).await? >= length
        {
            return Ok(());
        }
        Err(self.full(file, need, have))
    }

    /// Checks that the disk has space to reserve for a file of `length` bytes. Returns the number of bytes not yet
    /// allocated.
    pub async fn check_reserved(&self, file: &File, ids: Ids, length: u64) -> Result<u64> {
        if self.limits.spare_bytes == 0 {
            return Ok(0);
        }
        let need =
            length.saturating_sub(self.bytes_of_name(NameOperation::Allocated { file: ids.data }).await?);
        let have = self.room().await?;
        if need > have { Err(self.full(file, need, have)) } else { Ok(need) }
    }

    /// Refuses a reservation of `taken` bytes if another server on the disk took the same space meanwhile.
    pub async fn check_taken(&self, file: &File, taken: u64) -> Result<()> {
        if taken > 0 && self.bytes_of_name(NameOperation::Free).await? < self.limits.spare_bytes {
            return Err(self.full(file, taken, 0));
        }
        Ok(())
    }

    fn full(&self, file: &File, need: u64, have: u64) -> Error {
        Error::new(
            ErrorKind::DiskFull,
            format!(
                "server {}: need {need} bytes on disk for file {:016x}, have {have} beside {} that are kept for metadata; \
                 free some room, or use another disk",
                self.server.0, file.handle.0, self.limits.spare_bytes
            ),
        )
    }
}
