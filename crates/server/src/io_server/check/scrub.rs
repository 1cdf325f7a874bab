//! Scrubbing: the server compares blocks with their checksums, a bounded number per call, while it serves other
//! calls. The caller sets the pace and the position; the server remembers nothing.

use std::ops::Range;
use std::rc::Rc;

use outcore_core::{
    Buffer, Damage, DataFile, Error, ErrorKind, Handle, IoReply, Result, ScrubPlace, Scrubbed,
};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::{BLOCK_BYTES, SCRATCH_BLOCKS, SUMS_PER_PAGE, sum};
use crate::io_server::blocks::transfer::present;
use crate::io_server::event::{NameAnswer, NameOperation};
use crate::io_server::shared::Shared;

/// Bytes of one call, at most.
const MOST_BYTES: u64 = 64 << 20;
/// Files of one call, at most.
const MOST_FILES: u64 = 256;

/// The remaining budget of a call, and its findings.
struct Left {
    bytes: u64,
    found: Scrubbed,
}

impl<B: Buffer> Shared<B> {
    /// Compares blocks with their checksums, beginning at a place.
    pub async fn scrub(self: &Rc<Self>, from: ScrubPlace, most_bytes: u64) -> Result<IoReply> {
        let found = Scrubbed { next: None, files: 0, bytes: 0, damage: vec![] };
        let mut left = Left { bytes: most_bytes.clamp(BLOCK_BYTES, MOST_BYTES), found };
        let mut next = self.scrub_file(from.handle, from.offset, &mut left).await?;
        let mut at = from.handle;
        while next.is_none() {
            let most = (MOST_FILES.saturating_sub(left.found.files)) as usize;
            if left.bytes == 0 || most == 0 {
                next = Some(u64::MAX);
                break;
            }
            let (files, more) = self.list_files(at, most).await?;
            for file in files {
                at = file.handle;
                next = self.scrub_file(at, 0, &mut left).await?;
                if next.is_some() {
                    break;
                }
            }
            if !more {
                break;
            }
        }
        left.found.next = next.map(|offset| ScrubPlace { handle: at, offset });
        self.count_repairs(|repair| {
            repair.scrubbed_bytes += left.found.bytes;
            repair.scrubs += u64::from(left.found.next.is_none());
        });
        Ok(IoReply::Scrubbed(Box::new(left.found)))
    }

    /// The data files after a given handle, in order, and whether there may be more.
    pub async fn list_files(&self, after: Handle, most: usize) -> Result<(Vec<DataFile>, bool)> {
        let mut found = Vec::new();
        for directory in after.0 as u8..=u8::MAX {
            let after = if directory == after.0 as u8 { after } else { Handle(0) };
            let most = most - found.len();
            if most == 0 {
                return Ok((found, true));
            }
            match self.name(NameOperation::List { directory, after, most }).await? {
                NameAnswer::Files(files) => found.extend(files),
                other => {
                    return Err(Error::new(ErrorKind::Io, format!("a list was answered by {other:?}")));
                }
            }
        }
        let more = found.len() == most;
        Ok((found, more))
    }

    /// Compares the blocks of a data file from `offset` on. Returns where it stopped, unless it reached the end.
    async fn scrub_file(
        self: &Rc<Self>,
        handle: Handle,
        offset: u64,
        left: &mut Left,
    ) -> Result<Option<u64>> {
        let file = self.files.get(handle);
        let was_open = file.ids.get().is_some();
        let next = match self.open(&file, false).await {
            Ok(true) => self.scrub_open(&file, offset, left).await,
            Ok(false) => Ok(None),
            // A file that cannot be opened counts as damage, and the scrub continues with other files.
            Err(error) if matches!(error.kind, ErrorKind::Corrupt | ErrorKind::Io) => {
                left.found.damage.push(Damage { handle, offset: 0, bytes: 0, what: error.message });
                Ok(None)
            }
            Err(error) => Err(error),
        };
        if !was_open && matches!(next, Ok(None)) {
            // The scrub closes the file, to leave the slot to files in use.
            self.close(&file).await;
        }
        self.files.let_go(&file);
        next
    }

    async fn scrub_open(
        self: &Rc<Self>,
        file: &Rc<File>,
        offset: u64,
        left: &mut Left,
    ) -> Result<Option<u64>> {
        // A truncated data file still has checksums past its end.
        let summed = file.sums_length.get() / 4;
        let end = file.length.get().div_ceil(BLOCK_BYTES).max(summed);
        let first = offset / BLOCK_BYTES;
        let mut block = first;
        while block < end {
            if left.bytes == 0 {
                return Ok(Some(block * BLOCK_BYTES));
            }
            let blocks = block..end.min((block / SCRATCH_BLOCKS + 1) * SCRATCH_BLOCKS);
            let is_new_page = block == first || block.is_multiple_of(SUMS_PER_PAGE);
            if !self.scrub_blocks(file, blocks.clone(), is_new_page, left).await? {
                break;
            }
            left.bytes = left.bytes.saturating_sub((blocks.end - blocks.start) * BLOCK_BYTES);
            block = blocks.end;
        }
        // The file counts only once, not again if an earlier call already reached its end.
        if first < end || first == 0 {
            self.scrub_seal(file, left).await?;
            left.found.files += 1;
        }
        Ok(None)
    }

    /// Compares a file whose end was reached with its seal.
    async fn scrub_seal(self: &Rc<Self>, file: &Rc<File>, left: &mut Left) -> Result<()> {
        let _permit = self.pieces.take().await;
        let _lock = file.locks.take(0..u64::MAX, false).await;
        let Some(ids) = file.ids.get() else { return Ok(()) };
        let (handle, length) = (file.handle, file.length.get());
        if let surplus @ 1.. = self.surplus(file, ids).await? {
            let what = format!("{surplus} bytes follow the end of the file, and no write explains them");
            left.found.damage.push(Damage { handle, offset: length, bytes: surplus, what });
        }
        if !self.sums_are_current(file, ids).await? {
            let what = "checksums are old: the disk lost the last ones; restore the file from a copy".into();
            left.found.damage.push(Damage { handle, offset: 0, bytes: 0, what });
        }
        Ok(())
    }

    /// Compares some blocks under their lock, so a pending write does not count as damage. Returns false if the
    /// file is gone.
    async fn scrub_blocks(
        self: &Rc<Self>,
        file: &Rc<File>,
        blocks: Range<u64>,
        is_new_page: bool,
        left: &mut Left,
    ) -> Result<bool> {
        // Waits in the same queue as the transfers of callers.
        let _permit = self.pieces.take().await;
        let _lock = file.locks.take(blocks.clone(), false).await;
        let Some(ids) = file.ids.get() else { return Ok(false) };
        let page = self.sums_of(file, ids, blocks.start).await?;
        if is_new_page {
            self.refresh_sums(&page).await?;
        }
        let scratch = self.scratch.take().await?;
        let mut readable = vec![blocks.clone()];
        let mut view = scratch.view(0, (blocks.end - blocks.start) as usize * BLOCK_BYTES as usize);
        if self.fill(file, ids, &blocks, &mut view).await.is_err() {
            readable = self.readable(file, ids, &blocks, &scratch.view(0, view.len()), left).await?;
        }
        for part in readable {
            left.found.bytes += present(&part, file.length.get()) as u64;
            for block in part {
                let at = (block - blocks.start) as usize * BLOCK_BYTES as usize;
                let (need, have) = (page.get(block), sum(view.crc32c(at, BLOCK_BYTES as usize)));
                if need != have {
                    self.count_damage(file.handle, block);
                    let place = if block * BLOCK_BYTES < file.length.get() {
                        "is damaged"
                    } else {
                        "is missing: the data file was cut short"
                    };
                    let what = format!(
                        "block {block} {place}: need checksum {need:08x}, have {have:08x}; write it again from a copy"
                    );
                    left.damage(file, block, what);
                }
            }
        }
        Ok(true)
    }

    /// Reads blocks one at a time, after reading them together failed. Returns the readable ones.
    async fn readable(
        &self,
        file: &File,
        ids: Ids,
        blocks: &Range<u64>,
        buffer: &B,
        left: &mut Left,
    ) -> Result<Vec<Range<u64>>> {
        let mut readable = Vec::new();
        for block in blocks.clone() {
            let mut view = buffer.clone();
            view.advance(((block - blocks.start) * BLOCK_BYTES) as usize);
            view.truncate(BLOCK_BYTES as usize);
            match self.fill(file, ids, &(block..block + 1), &mut view).await {
                Ok(()) => readable.push(block..block + 1),
                Err(error) if error.kind == ErrorKind::Io => {
                    self.count_damage(file.handle, block);
                    left.damage(file, block, error.message);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(readable)
    }
}

impl Left {
    fn damage(&mut self, file: &File, block: u64, what: String) {
        let (handle, offset) = (file.handle, block * BLOCK_BYTES);
        self.found.damage.push(Damage { handle, offset, bytes: BLOCK_BYTES, what });
    }
}
