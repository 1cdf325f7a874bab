//! Room on the disk that data leave free, so that checksums, the log, and metadata on the same disk can still be written.

use outcore_core::{Buffer, Error, ErrorKind, Result};

use super::event::{NameAnswer, NameOperation};
use super::files::{File, Ids};
use super::pieces::Piece;
use super::shared::Shared;

/// A server writes this part of the room that it found before it looks at the disk again: other servers write, too.
const PART: u64 = 8;

impl<B: Buffer> Shared<B> {
    /// Bytes that data may still take from the disk.
    pub async fn room(&self) -> Result<u64> {
        Ok(self.bytes_of_name(NameOperation::Free).await?.saturating_sub(self.limits.spare_bytes))
    }

    async fn bytes_of_name(&self, operation: NameOperation) -> Result<u64> {
        match self.name(operation).await? {
            NameAnswer::Bytes(bytes) => Ok(bytes),
            other => Err(Error::new(ErrorKind::Io, format!("a number of bytes was answered by {other:?}"))),
        }
    }

    /// Refuses a piece for which the disk has no room. Bytes that have their room already are always taken.
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

    /// Refuses to reserve room that the disk does not have for data; else the bytes that a file of `length` bytes lacks.
    pub async fn check_reserved(&self, file: &File, ids: Ids, length: u64) -> Result<u64> {
        if self.limits.spare_bytes == 0 {
            return Ok(0);
        }
        let need =
            length.saturating_sub(self.bytes_of_name(NameOperation::Allocated { file: ids.data }).await?);
        let have = self.room().await?;
        if need > have { Err(self.full(file, need, have)) } else { Ok(need) }
    }

    /// Refuses `taken` bytes that were reserved while another server of the disk took the same room.
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
