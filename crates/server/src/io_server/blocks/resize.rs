//! Changes of the length of data files.

use std::rc::Rc;

use outcore_core::{Buffer, Result, Target};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::{BLOCK_BYTES, SUMS_PAGE_BYTES, SUMS_PER_PAGE, data_path, sum};
use crate::io_server::event::NameOperation;
use crate::io_server::shared::Shared;

impl<B: Buffer> Shared<B> {
    /// Sets the length of a data file. New bytes are zeros.
    pub async fn set_length(
        self: &Rc<Self>,
        file: &Rc<File>,
        target: Target,
        length: u64,
        reserve: bool,
    ) -> Result<()> {
        let _lock = file.locks.take(0..u64::MAX, true).await;
        self.set_length_alone(file, target, length, reserve).await
    }

    /// Reserves the disk space of a data file up to a length, and makes it so long if it is shorter.
    pub async fn reserve(self: &Rc<Self>, file: &Rc<File>, target: Target, length: u64) -> Result<()> {
        let _lock = file.locks.take(0..u64::MAX, true).await;
        // The end of the checksums is that of a block, and may be behind that of the file.
        let length = length.max(file.length.get());
        self.set_length_alone(file, target, length, true).await
    }

    /// Sets the length while the caller keeps others out.
    async fn set_length_alone(
        self: &Rc<Self>,
        file: &Rc<File>,
        target: Target,
        length: u64,
        reserve: bool,
    ) -> Result<()> {
        let ids = file.ids.get().ok_or_else(|| self.gone(file))?;
        self.cut_surplus(file).await?;
        let taken = if reserve { self.check_reserved(file, ids, length).await? } else { 0 };
        if length < file.length.get().max(file.summed.get()) {
            self.shorten(file, ids, target, length, reserve).await?;
        } else {
            if length > file.length.get() {
                // No other record says that the file may become longer.
                let last = (length - 1) / BLOCK_BYTES;
                self.note(file, &(last..last + 1)).await?;
            }
            let path = data_path(file.handle);
            let longer = NameOperation::Resize { path: path.clone(), length, reserve };
            let made = match self.name(longer).await {
                Ok(_) => self.check_taken(file, taken).await,
                Err(error) => Err(error),
            };
            if let Err(error) = made {
                // The file became longer, but without the reserved space, so this restores its length.
                let before = NameOperation::Resize { path, length: file.length.get(), reserve: false };
                let _ = self.name(before).await;
                return Err(error);
            }
            file.length.set(length);
            file.need.set(0);
        }
        if reserve {
            let sums = file.sums_offset(length.div_ceil(BLOCK_BYTES * SUMS_PER_PAGE));
            self.name(NameOperation::Resize { path: file.sums_path(), length: sums, reserve }).await?;
        }
        Ok(())
    }

    /// Cuts the bytes of a data file that no write explains. The caller keeps others out.
    pub async fn cut_surplus(&self, file: &File) -> Result<()> {
        if file.surplus.get() > 0 {
            let (path, length) = (data_path(file.handle), file.length.get());
            self.name(NameOperation::Resize { path, length, reserve: false }).await?;
            file.surplus.set(0);
        }
        Ok(())
    }

    async fn shorten(
        self: &Rc<Self>,
        file: &Rc<File>,
        ids: Ids,
        target: Target,
        length: u64,
        reserve: bool,
    ) -> Result<()> {
        let last = length / BLOCK_BYTES;
        // If the data file was truncated, the checksums past its end go too.
        let end = file.length.get().max(file.summed.get()).div_ceil(BLOCK_BYTES);
        self.note(file, &(last..end)).await?;
        // The server checks the block that it cuts, so that damage in the kept part does not get a valid checksum.
        let kept = (length % BLOCK_BYTES) as usize;
        let mut cut = None;
        if kept > 0 {
            let page = self.sums_of(file, ids, last).await?;
            let mut scratch = self.read_checked(file, ids, target, &page, last).await?;
            scratch.zero(kept, BLOCK_BYTES as usize);
            cut = Some((page, sum(scratch.crc32c(0, BLOCK_BYTES as usize))));
        }
        self.name(NameOperation::Resize { path: data_path(file.handle), length, reserve }).await?;
        file.length.set(length);
        file.need.set(0);
        if let Some((page, sum)) = cut {
            page.set(last, sum);
        }
        // Truncating the checksum file removes whole pages. The rest of the page before them is cleared.
        let first_gone = length.div_ceil(BLOCK_BYTES);
        let page_end = first_gone.next_multiple_of(SUMS_PER_PAGE);
        file.sums_length
            .set(file.sums_length.get().max(end.div_ceil(SUMS_PER_PAGE) * SUMS_PAGE_BYTES as u64));
        self.forget_past_end(file, ids, first_gone..page_end.min(end)).await?;
        if end > page_end {
            let pages = page_end / SUMS_PER_PAGE;
            let gone =
                if pages == 0 { file.digest.get() } else { self.digest_from(file, ids, pages).await? };
            self.forget_sums(file.handle, pages).await;
            let length = file.sums_offset(pages);
            self.name(NameOperation::Resize { path: file.sums_path(), length, reserve: false }).await?;
            file.digest.set(file.digest.get().wrapping_sub(gone));
            file.sums_length.set(pages * SUMS_PAGE_BYTES as u64);
        }
        file.summed.set(file.summed.get().min(length.next_multiple_of(BLOCK_BYTES)));
        Ok(())
    }
}
