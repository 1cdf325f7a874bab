//! Inventory of data files, and checks that each is complete.

use std::rc::Rc;

use outcore_core::{Buffer, DataFile, Error, ErrorKind, Handle, Inspection, IoReply, Result};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::{
    BLOCK_BYTES, SUMS_PAGE_BYTES, SUMS_PER_PAGE, data_path, plain_sums_path, sums_path,
};
use crate::io_server::event::NameOperation;
use crate::io_server::shared::{Opened, Shared};

/// Data files in one answer, at most.
const MAX_PAGE: usize = 1000;

impl<B: Buffer> Shared<B> {
    /// A page of the list of data files.
    pub async fn data_files(&self, after: Handle, most: u64) -> Result<IoReply> {
        let most = most.clamp(1, MAX_PAGE as u64) as usize;
        let (files, more) = self.list_files(after, most).await?;
        Ok(IoReply::DataFiles { files, more })
    }

    /// The state of some data files on the disk.
    pub async fn inspect(self: &Rc<Self>, handles: &[Handle]) -> Result<IoReply> {
        check_count(handles)?;
        let mut found = Vec::with_capacity(handles.len());
        for handle in handles {
            let file = self.files.get(*handle);
            let was_open = file.ids.get().is_some();
            let inspected = self.inspect_one(&file).await;
            if !was_open {
                self.close(&file).await;
            }
            self.files.let_go(&file);
            found.push(inspected?);
        }
        Ok(IoReply::Inspected(found))
    }

    /// Cuts the bytes of data files that no write explains.
    pub async fn cut(self: &Rc<Self>, handles: &[Handle]) -> Result<IoReply> {
        check_count(handles)?;
        for handle in handles {
            self.with_file(*handle, async |file| {
                if self.open(file, false).await? {
                    let _lock = file.locks.take(0..u64::MAX, true).await;
                    if let Some(ids) = file.ids.get() {
                        self.surplus(file, ids).await?;
                        self.cut_surplus(file).await?;
                    }
                }
                Ok(IoReply::Done)
            })
            .await?;
        }
        Ok(IoReply::Done)
    }

    async fn inspect_one(self: &Rc<Self>, file: &Rc<File>) -> Result<Inspection> {
        let handle = file.handle;
        match self.open(file, false).await {
            Ok(true) => {}
            // The data file or its checksum file is missing.
            Ok(false) => return self.inspect_parts(handle).await,
            Err(error) if error.kind == ErrorKind::Corrupt => return self.inspect_parts(handle).await,
            Err(error) => return Err(error),
        }
        let _lock = file.locks.take(0..u64::MAX, false).await;
        // From the disk, even if the file was open: it may have been truncated or removed since.
        let mut inspection = self.inspect_parts(handle).await?;
        if let (Some(length), Some(sums_length), Some(ids)) =
            (inspection.file.length, inspection.sums_length, file.ids.get())
        {
            file.sums_length.set(file.sums_length.get().max(sums_length));
            inspection.summed_past_end = self.summed_past(file, ids, length.div_ceil(BLOCK_BYTES)).await?;
            inspection.generation = file.sealed.get().generation;
            inspection.surplus = self.surplus(file, ids).await?;
            inspection.sums_are_old = !self.sums_are_current(file, ids).await?;
        }
        Ok(inspection)
    }

    /// The end in bytes of the last block at or after block `end` that has a checksum; 0 if none has one.
    pub async fn summed_past(&self, file: &File, ids: Ids, end: u64) -> Result<u64> {
        let mut summed = 0;
        let mut block = end;
        while block < file.sums_length.get().div_ceil(4) {
            let page = self.sums_of(file, ids, block).await?;
            let page_end = (block / SUMS_PER_PAGE + 1) * SUMS_PER_PAGE;
            for block in (block..page_end).filter(|block| page.get(*block) != 0) {
                summed = (block + 1) * BLOCK_BYTES;
            }
            block = page_end;
        }
        Ok(summed)
    }

    async fn inspect_parts(&self, handle: Handle) -> Result<Inspection> {
        let length = self.length_of(data_path(handle)).await?;
        let sums_length = match self.length_of(sums_path(handle)).await? {
            Some(length) => Some(length.saturating_sub(SUMS_PAGE_BYTES as u64)),
            None => self.length_of(plain_sums_path(handle)).await?,
        };
        Ok(Inspection {
            file: DataFile { handle, length },
            sums_length,
            summed_past_end: 0,
            generation: 0,
            surplus: 0,
            sums_are_old: false,
        })
    }

    async fn length_of(&self, path: String) -> Result<Option<u64>> {
        match self.opened(NameOperation::Open { path }).await {
            Ok(Opened { file, length, .. }) => {
                self.name(NameOperation::Close { file }).await?;
                Ok(Some(length))
            }
            Err(error) if error.kind == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn check_count(handles: &[Handle]) -> Result<()> {
    if handles.len() <= MAX_PAGE {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need at most {MAX_PAGE} handles at once, have {}; ask for them in parts",
        handles.len()
    )))
}
