//! Blocks whose checksums may be outdated, after a crash or a failed write. The server recomputes them from the
//! disk.

use std::ops::Range;
use std::rc::Rc;

use outcore_core::{Buffer, ErrorKind, Result};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::{
    BLOCK_BYTES, REGION_BLOCKS, SCRATCH_BLOCKS, SUMS_PAGE_BYTES, SUMS_PER_PAGE, sum,
};
use crate::io_server::blocks::scratch::Lease;
use crate::io_server::blocks::sums::Page;
use crate::io_server::event::{NameAnswer, NameOperation};
use crate::io_server::shared::Shared;
use crate::io_server::wait::Group;

/// Groups of blocks examined concurrently.
const AT_ONCE: usize = 8;

impl<B: Buffer> Shared<B> {
    /// After a failed write, recomputes the checksums of `blocks`, which may contain old bytes, new bytes, or some
    /// of each.
    pub async fn examine_failed(
        &self,
        file: &File,
        ids: Ids,
        page: &Page,
        blocks: Range<u64>,
        scratch: Lease<B>,
    ) {
        if file.surplus.get() == 0
            && let Ok(NameAnswer::Bytes(length)) = self.name(NameOperation::Length { file: ids.data }).await
        {
            file.length.set(file.length.get().max(length));
        }
        let mut start = blocks.start;
        while start < blocks.end {
            let some = start..blocks.end.min(start + SCRATCH_BLOCKS);
            start = some.end;
            // A block that cannot be read now keeps its checksum. A later read reports it as damaged if it
            // differs.
            let _ = self.examine_group(file, ids, page, some, &scratch).await;
        }
    }

    async fn examine_group(
        &self,
        file: &File,
        ids: Ids,
        page: &Page,
        blocks: Range<u64>,
        scratch: &Lease<B>,
    ) -> Result<()> {
        let bytes = BLOCK_BYTES as usize;
        let mut view = scratch.view(0, (blocks.end - blocks.start) as usize * bytes);
        self.fill(file, ids, &blocks, &mut view).await?;
        for (at, block) in blocks.enumerate() {
            page.set(block, sum(view.crc32c(at * bytes, bytes)));
        }
        Ok(())
    }

    /// After a crash, examines all noted regions of a file before anybody else uses it.
    pub async fn examine_noted(self: &Rc<Self>, file: &Rc<File>, ids: Ids) -> Result<()> {
        let noted: Vec<Range<u64>> = match self.notes.borrow().of(file.handle) {
            Some(noted) => noted.regions.iter().collect(),
            None => return Ok(()),
        };
        let end = file.length.get().div_ceil(BLOCK_BYTES);
        let group = Group::new();
        for regions in noted {
            let blocks =
                regions.start.saturating_mul(REGION_BLOCKS)..regions.end.saturating_mul(REGION_BLOCKS);
            let mut start = blocks.start;
            while start < blocks.end.min(end) {
                let some = start..blocks.end.min(end).min(start + SCRATCH_BLOCKS);
                start = some.end;
                group.at_most(AT_ONCE - 1).await;
                group.begin();
                let (server, file, done) = (self.clone(), file.clone(), group.clone());
                self.begin(async move {
                    let result = server.examine_one(&file, ids, some).await;
                    drop(file);
                    done.end(result);
                });
            }
            self.forget_past_end(file, ids, blocks.start.max(end)..blocks.end).await?;
        }
        group.at_most(0).await;
        group.result()
    }

    async fn examine_one(&self, file: &File, ids: Ids, blocks: Range<u64>) -> Result<()> {
        let page = self.sums_of(file, ids, blocks.start).await?;
        let scratch = self.scratch.take().await?;
        match self.examine_group(file, ids, &page, blocks, &scratch).await {
            // A later read of a block that the disk cannot read reports the damage.
            Err(error) if error.kind == ErrorKind::Io => Ok(()),
            other => other,
        }
    }

    /// Clears the checksums of blocks past the end of a data file.
    pub async fn forget_past_end(&self, file: &File, ids: Ids, blocks: Range<u64>) -> Result<()> {
        let end = blocks.end.min(file.sums_length.get().div_ceil(SUMS_PAGE_BYTES as u64) * SUMS_PER_PAGE);
        let mut block = blocks.start;
        while block < end {
            let page = self.sums_of(file, ids, block).await?;
            let page_end = (block / SUMS_PER_PAGE + 1) * SUMS_PER_PAGE;
            for block in block..page_end.min(end) {
                page.set(block, 0);
            }
            block = page_end;
        }
        Ok(())
    }
}
