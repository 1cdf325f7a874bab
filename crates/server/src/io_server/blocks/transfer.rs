//! Reads and writes of pieces: each is checked, merged and checksummed under its lock.

use std::ops::Range;
use std::rc::Rc;

use outcore_core::{Buffer, Error, ErrorKind, Result, Target};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::{BLOCK_BYTES, REGION_BLOCKS, sum};
use crate::io_server::blocks::pieces::{Part, Piece};
use crate::io_server::blocks::scratch::{Lease, part};
use crate::io_server::blocks::sums::Page;
use crate::io_server::shared::Shared;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Number of bytes in `blocks` that a data file of `length` bytes contains.
pub(crate) fn present(blocks: &Range<u64>, length: u64) -> usize {
    (length.min(blocks.end * BLOCK_BYTES)).saturating_sub(blocks.start * BLOCK_BYTES) as usize
}

fn bytes_of(blocks: &Range<u64>) -> usize {
    (blocks.end - blocks.start) as usize * BLOCK
}

/// The checksums of whole blocks that begin at byte `at` of a buffer.
fn sums_in<B: Buffer>(buffer: &B, at: usize, blocks: &Range<u64>) -> Vec<u32> {
    let count = (blocks.end - blocks.start) as usize;
    (0..count).map(|block| sum(buffer.crc32c(at + block * BLOCK, BLOCK))).collect()
}

impl<B: Buffer> Shared<B> {
    /// Reads the bytes of `piece` into the call's buffer.
    pub async fn read_piece(&self, file: &File, target: Target, piece: Piece, mut buffer: B) -> Result<()> {
        self.check_surplus(file, &piece)?;
        match piece {
            Piece::Direct { blocks, at } => {
                let _lock = file.locks.take(blocks.clone(), false).await;
                let mut place = part(&buffer, at as usize, bytes_of(&blocks));
                let Some(ids) = file.ids.get() else {
                    place.zero(0, bytes_of(&blocks));
                    return Ok(());
                };
                let page = self.sums_of(file, ids, blocks.start).await?;
                self.fill(file, ids, &blocks, &mut place).await?;
                self.check(target, &page, &blocks, &place)
            }
            Piece::Mixed { blocks, parts } => {
                let _lock = file.locks.take(blocks.clone(), false).await;
                let Some(ids) = file.ids.get() else {
                    for Part { at, bytes, .. } in parts {
                        buffer.zero(at as usize, (at + bytes) as usize);
                    }
                    return Ok(());
                };
                let page = self.sums_of(file, ids, blocks.start).await?;
                let scratch = self.read_blocks(file, ids, target, &page, &blocks).await?;
                let mut bytes = vec![0; parts.iter().map(|p| p.bytes).max().unwrap_or(0) as usize];
                for part in parts {
                    let bytes = &mut bytes[..part.bytes as usize];
                    scratch.copy_out((part.offset - blocks.start * BLOCK_BYTES) as usize, bytes);
                    buffer.copy_in(part.at as usize, bytes);
                }
                Ok(())
            }
        }
    }

    /// Sets the checksums of written blocks.
    fn set_all(&self, file: &File, page: &Page, blocks: &Range<u64>, sums: &[u32]) {
        for (block, sum) in blocks.clone().zip(sums) {
            page.set(block, *sum);
        }
        if self.repaired(file.handle, blocks) {
            file.was_repaired.set(true);
        }
    }

    /// Refuses a piece that reaches bytes which no write explains.
    fn check_surplus(&self, file: &File, piece: &Piece) -> Result<()> {
        let reaches = file.surplus.get() > 0 && piece.end() > file.length.get();
        if reaches { Err(self.too_long(file)) } else { Ok(()) }
    }

    /// Writes the bytes of `piece` from the call's buffer to the disk.
    pub async fn write_piece(
        self: &Rc<Self>,
        file: &File,
        target: Target,
        piece: Piece,
        buffer: B,
    ) -> Result<()> {
        let ids = file.ids.get().ok_or_else(|| self.gone(file))?;
        self.check_surplus(file, &piece)?;
        self.check_room(file, ids, &piece).await?;
        match piece {
            Piece::Direct { blocks, at } => {
                let _lock = file.locks.take(blocks.clone(), true).await;
                let ids = file.ids.get().ok_or_else(|| self.gone(file))?;
                self.note(file, &blocks).await?;
                let page = self.sums_of(file, ids, blocks.start).await?;
                let bytes = part(&buffer, at as usize, bytes_of(&blocks));
                let sums = sums_in(&bytes, 0, &blocks);
                match self.put(file, ids, blocks.start, bytes).await {
                    Ok(()) => {
                        self.set_all(file, &page, &blocks, &sums);
                        file.length.set(file.length.get().max(blocks.end * BLOCK_BYTES));
                        Ok(())
                    }
                    Err(error) => {
                        let scratch = self.scratch.take().await?;
                        self.examine_failed(file, ids, &page, blocks, scratch).await;
                        Err(error)
                    }
                }
            }
            Piece::Mixed { blocks, parts } => {
                let _lock = file.locks.take(blocks.clone(), true).await;
                let ids = file.ids.get().ok_or_else(|| self.gone(file))?;
                let page = self.sums_of(file, ids, blocks.start).await?;
                self.merge(file, ids, target, &page, blocks, &parts, &buffer).await
            }
        }
    }

    /// Reads blocks, merges parts into them, computes their checksums, and writes them up to the new end of the
    /// file.
    #[expect(clippy::too_many_arguments, reason = "the parts of a write under its lock")]
    async fn merge(
        self: &Rc<Self>,
        file: &File,
        ids: Ids,
        target: Target,
        page: &Rc<Page>,
        blocks: Range<u64>,
        parts: &[Part],
        buffer: &B,
    ) -> Result<()> {
        let start = blocks.start * BLOCK_BYTES;
        let before = present(&blocks, file.length.get());
        let covers = |part: &Part| part.offset == start && part.bytes as usize >= before;
        let mut scratch = if parts.iter().any(covers) {
            let mut scratch = self.scratch.take().await?;
            scratch.zero(0, bytes_of(&blocks));
            scratch
        } else {
            self.read_blocks(file, ids, target, page, &blocks).await?
        };
        // The note comes after the read, so a block that was already damaged stays detectable after any crash.
        self.note(file, &blocks).await?;
        let mut bytes = vec![0; parts.iter().map(|p| p.bytes).max().unwrap_or(0) as usize];
        let mut end = before;
        for part in parts {
            let (bytes, at) = (&mut bytes[..part.bytes as usize], (part.offset - start) as usize);
            buffer.copy_out(part.at as usize, bytes);
            scratch.copy_in(at, bytes);
            end = end.max(at + bytes.len());
        }
        let sums = sums_in(&*scratch, 0, &blocks);
        match self.put(file, ids, blocks.start, scratch.view(0, end)).await {
            Ok(()) => {
                self.set_all(file, page, &blocks, &sums);
                file.length.set(file.length.get().max(start + end as u64));
                Ok(())
            }
            Err(error) => {
                self.examine_failed(file, ids, page, blocks, scratch).await;
                Err(error)
            }
        }
    }

    /// Reads one block into a scratch buffer, and checks it.
    pub async fn read_checked(
        &self,
        file: &File,
        ids: Ids,
        target: Target,
        page: &Page,
        block: u64,
    ) -> Result<Lease<B>> {
        self.read_blocks(file, ids, target, page, &(block..block + 1)).await
    }

    /// Reads blocks into a scratch buffer, and checks them.
    async fn read_blocks(
        &self,
        file: &File,
        ids: Ids,
        target: Target,
        page: &Page,
        blocks: &Range<u64>,
    ) -> Result<Lease<B>> {
        let scratch = self.scratch.take().await?;
        let mut view = scratch.view(0, bytes_of(blocks));
        self.fill(file, ids, blocks, &mut view).await?;
        self.check(target, page, blocks, &view)?;
        Ok(scratch)
    }

    /// Reads blocks into the start of a buffer. Bytes past the end of the file are zeros.
    pub async fn fill(&self, file: &File, ids: Ids, blocks: &Range<u64>, buffer: &mut B) -> Result<()> {
        let view = part(buffer, 0, present(blocks, file.length.get()));
        let read = self.read(ids.data, blocks.start * BLOCK_BYTES, view).await;
        buffer.zero(read.map_err(|error| self.at(file, "read", blocks.start, &error))?, bytes_of(blocks));
        Ok(())
    }

    /// Writes a buffer at the start of a block.
    async fn put(&self, file: &File, ids: Ids, block: u64, buffer: B) -> Result<()> {
        let written = self.write(ids.data, block * BLOCK_BYTES, buffer).await;
        written.map_err(|error| self.at(file, "written", block, &error))
    }

    /// Adds the place to an error of the disk.
    fn at(&self, file: &File, doing: &str, block: u64, error: &Error) -> Error {
        let (server, handle, byte) = (self.server.0, file.handle.0, block * BLOCK_BYTES);
        let message = format!(
            "server {server}: file {handle:016x} cannot be {doing} at byte {byte} of its data file: {error}"
        );
        Error::new(error.kind, message)
    }

    /// Checks blocks at the start of a buffer.
    fn check(&self, target: Target, page: &Page, blocks: &Range<u64>, buffer: &B) -> Result<()> {
        let mut damage = Ok(());
        for (block, found) in blocks.clone().zip(sums_in(buffer, 0, blocks)) {
            let kept = page.get(block);
            if found != kept {
                self.count_damage(target.handle, block);
                damage = damage.and_then(|()| Err(self.damaged(target, block, kept, found)));
            }
        }
        damage
    }

    /// The error for a block whose checksum is wrong.
    pub fn damaged(&self, target: Target, block: u64, kept: u32, found: u32) -> Error {
        let local = block * BLOCK_BYTES;
        let in_file = target
            .stripes
            .offset_of(target.entry, local)
            .map_or(String::new(), |offset| format!(" (byte {offset} of the file)"));
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "server {}: block {block} of file {:016x}, at byte {local} of its data file{in_file}, is damaged: need \
                 checksum {kept:08x}, have {found:08x}; write these {BLOCK_BYTES} bytes again from a copy, and check the disk",
                self.server.0, target.handle.0
            ),
        )
    }

    pub fn gone(&self, file: &File) -> Error {
        Error::new(
            ErrorKind::NotFound,
            format!("server {}: file {:016x} was removed; open it again", self.server.0, file.handle.0),
        )
    }

    /// Notes blocks that are about to be written, durably.
    pub async fn note(self: &Rc<Self>, file: &File, blocks: &Range<u64>) -> Result<()> {
        let regions = blocks.start / REGION_BLOCKS..blocks.end.div_ceil(REGION_BLOCKS);
        if let Some(touched) = file.touched.borrow_mut().as_mut() {
            touched.insert(regions.clone());
        }
        let (number, now_ns) = (self.log.next_number(), self.running_ns.get());
        let record = self.notes.borrow_mut().note(file.handle, regions, number, now_ns);
        if let Some(record) = record {
            self.log(record);
        }
        let number = self.notes.borrow().of(file.handle).map_or(0, |noted| noted.last);
        self.log_durable(number).await
    }
}
