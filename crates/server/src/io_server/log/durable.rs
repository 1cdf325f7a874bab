//! Making files durable: first the data, then the checksums with a seal; then the server clears the log's notes.

use std::rc::Rc;

use outcore_core::{Buffer, Handle, Result};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::REGION_BLOCKS;
use crate::io_server::log::ranges::RangeSet;
use crate::io_server::log::record::{Record, What};
use crate::io_server::shared::Shared;

impl<B: Buffer> Shared<B> {
    /// Returns once every write to the file that was answered before this call survives power loss. Calls that
    /// arrive during a sync share the next one.
    pub async fn make_durable(self: &Rc<Self>, file: &Rc<File>) -> Result<()> {
        file.is_asked.set(true);
        self.make_durable_unheard(file).await
    }

    /// The same for a file whose clients do not hear of it.
    pub async fn make_durable_unheard(self: &Rc<Self>, file: &Rc<File>) -> Result<()> {
        file.syncs_wanted.set(file.syncs_wanted.get() + 1);
        let wanted = file.syncs_wanted.get();
        let _turn = file.syncing.take().await;
        let done = file.synced.borrow().clone();
        if done.0 >= wanted {
            return done.1;
        }
        let covers = file.syncs_wanted.get();
        let Some(ids) = file.ids.get() else { return Ok(()) };
        let lost = self.lost.borrow().get(&file.handle).cloned();
        let result = match lost {
            Some(error) => Err(error),
            None => self.sync_file(file, ids).await,
        };
        *file.synced.borrow_mut() = (covers, result.clone());
        result
    }

    async fn sync_file(self: &Rc<Self>, file: &Rc<File>, ids: Ids) -> Result<()> {
        let mut touched = RangeSet::default();
        for blocks in file.locks.held_alone() {
            touched.insert(blocks.start / REGION_BLOCKS..blocks.end.div_ceil(REGION_BLOCKS));
        }
        *file.touched.borrow_mut() = Some(touched);
        let result = self.sync_data_and_sums(file, ids).await;
        let touched = file.touched.take().unwrap_or_default();
        result?;
        // Regions written meanwhile stay noted: their checksums may not be durable.
        let noted = self.notes.borrow().of(file.handle).map(|noted| noted.regions.clone());
        let mut clean = noted.unwrap_or_default();
        for regions in touched.iter() {
            clean.remove(regions);
        }
        for regions in clean.iter() {
            self.clear_notes(file.handle, regions);
        }
        Ok(())
    }

    async fn sync_data_and_sums(&self, file: &Rc<File>, ids: Ids) -> Result<()> {
        // Callers that arrive later share the next sync.
        let is_asked = file.is_asked.replace(false);
        if file.was_repaired.get() {
            let _lock = file.locks.take(0..u64::MAX, false).await;
            self.sums_are_current(file, ids).await?;
        }
        // The seal covers no later write, since the data of one may not be durable: the next sync seals that one.
        let state = file.state();
        self.sync_or_lose(file, ids.data).await?;
        self.flush_sums(file.handle).await?;
        let seal = self.write_seal(file, ids, state, is_asked).await?;
        self.sync_or_lose(file, ids.sums).await?;
        file.sealed.set(seal);
        Ok(())
    }

    /// Syncs a file. If the sync fails, the server records its writes as lost: the disk may have dropped them, and will not
    /// report that again.
    pub async fn sync_or_lose(&self, file: &File, id: outcore_core::FileId) -> Result<()> {
        let synced = self.sync_disk(id).await;
        if let Err(error) = &synced {
            let mut lost = error.clone();
            lost.message = format!(
                "server {}: writes to file {:016x} since its last sync may be lost; repeat them: {}",
                self.server.0, file.handle.0, error.message
            );
            self.lost.borrow_mut().insert(file.handle, lost);
        }
        synced
    }

    fn clear_notes(self: &Rc<Self>, handle: Handle, regions: std::ops::Range<u64>) {
        let (first, count) = (regions.start, regions.end - regions.start);
        self.notes.borrow_mut().clear(handle, regions);
        self.log(Record { what: What::Clear, handle, first, count });
    }

    /// Clears the notes on a file that no longer exists.
    pub fn forget_notes(self: &Rc<Self>, handle: Handle) {
        self.notes.borrow_mut().unexamined.remove(&handle);
        if self.notes.borrow().of(handle).is_some() {
            self.clear_notes(handle, 0..u64::MAX);
        }
    }
}
