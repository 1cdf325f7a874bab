//! The checksums of blocks: on disk beside each data file, and a bounded number of pages in memory.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use outcore_core::{Buffer, FileId, Handle, Result};

use crate::io_server::blocks::files::{File, Ids};
use crate::io_server::blocks::format::{SUMS_PAGE_BYTES, SUMS_PER_PAGE};
use crate::io_server::blocks::scratch::Scratch;
use crate::io_server::check::seal::weight;
use crate::io_server::shared::Shared;
use crate::io_server::wait::Permits;

/// Pages that the server tries to evict when writing them fails, at most.
const MOST_FAILURES: usize = 8;

/// The checksums of [`SUMS_PER_PAGE`] blocks.
pub(crate) struct Page {
    file: FileId,
    number: u64,
    /// Byte of the page in its file.
    offset: u64,
    /// The digest of the file's checksums.
    digest: Rc<Cell<u64>>,
    sums: RefCell<Option<Box<[u32]>>>,
    dirty: Cell<bool>,
    used: Cell<u64>,
    /// Serializes reads and writes of the page.
    gate: Permits,
}

impl Page {
    pub fn get(&self, block: u64) -> u32 {
        self.sums.borrow().as_ref().map_or(0, |sums| sums[(block % SUMS_PER_PAGE) as usize])
    }

    fn own_digest(&self) -> u64 {
        let sums = self.sums.borrow();
        let sums = (self.number * SUMS_PER_PAGE..).zip(sums.iter().flatten());
        sums.fold(0, |digest: u64, (block, sum)| digest.wrapping_add(weight(block, *sum)))
    }

    pub fn set(&self, block: u64, sum: u32) {
        if let Some(sums) = self.sums.borrow_mut().as_mut() {
            let kept = &mut sums[(block % SUMS_PER_PAGE) as usize];
            if *kept != sum {
                let digest = self.digest.get().wrapping_sub(weight(block, *kept));
                self.digest.set(digest.wrapping_add(weight(block, sum)));
                *kept = sum;
                self.dirty.set(true);
            }
        }
    }
}

/// The pages in memory.
pub(crate) struct Sums<B> {
    most: usize,
    pages: RefCell<BTreeMap<(Handle, u64), Rc<Page>>>,
    buffers: Scratch<B>,
    clock: Cell<u64>,
}

impl<B: Buffer> Sums<B> {
    pub fn new(most: usize, buffers: Scratch<B>) -> Self {
        Self { most: most.max(1), pages: RefCell::default(), buffers, clock: Cell::new(0) }
    }

    /// The buffers for one page each.
    pub fn buffers(&self) -> &Scratch<B> {
        &self.buffers
    }

    fn page(&self, file: &File, ids: Ids, number: u64) -> Rc<Page> {
        let mut pages = self.pages.borrow_mut();
        let page = pages.entry((file.handle, number)).or_insert_with(|| {
            Rc::new(Page {
                file: ids.sums,
                number,
                offset: file.sums_offset(number),
                digest: file.digest.clone(),
                sums: RefCell::default(),
                dirty: Cell::new(false),
                used: Cell::new(0),
                gate: Permits::new(1),
            })
        });
        self.clock.set(self.clock.get() + 1);
        page.used.set(self.clock.get());
        page.clone()
    }

    /// The pages of a file, in order.
    fn of(&self, handle: Handle) -> Vec<(u64, Rc<Page>)> {
        let pages = self.pages.borrow();
        pages
            .range((handle, 0)..=(handle, u64::MAX))
            .map(|((_, number), page)| (*number, page.clone()))
            .collect()
    }

    /// The least recently used page that nobody uses, if there are too many.
    fn surplus(&self) -> Option<((Handle, u64), Rc<Page>)> {
        let pages = self.pages.borrow();
        if pages.len() <= self.most {
            return None;
        }
        let idle = pages.iter().filter(|(_, page)| Rc::strong_count(page) == 1);
        idle.min_by_key(|(_, page)| page.used.get()).map(|(key, page)| (*key, page.clone()))
    }
}

impl<B: Buffer> Shared<B> {
    /// The page with the checksum of `block`, read from disk if necessary. It stays in memory while a caller holds
    /// it.
    pub async fn sums_of(&self, file: &File, ids: Ids, block: u64) -> Result<Rc<Page>> {
        let page = self.sums.page(file, ids, block / SUMS_PER_PAGE);
        if page.sums.borrow().is_some() {
            return Ok(page);
        }
        {
            let _gate = page.gate.take().await;
            if page.sums.borrow().is_none() {
                let read = self.read_sums(&page).await?;
                *page.sums.borrow_mut() = Some(read);
            }
        }
        let mut failures = 0;
        while let Some((key, surplus)) = self.sums.surplus() {
            if let Err(error) = self.flush_page(&surplus).await {
                // On a full disk the server tries to evict other pages. Too many unwritten pages are an error.
                surplus.used.set(self.sums.clock.get());
                failures += 1;
                if self.sums.pages.borrow().len() > 2 * self.sums.most {
                    return Err(error);
                }
                if failures < MOST_FAILURES {
                    continue;
                }
                break;
            }
            // Another task may have started using the page while it was written.
            if Rc::strong_count(&surplus) == 2 && !surplus.dirty.get() {
                self.sums.pages.borrow_mut().remove(&key);
            }
        }
        Ok(page)
    }

    async fn read_sums(&self, page: &Page) -> Result<Box<[u32]>> {
        let buffer = self.sums.buffers.take().await?;
        let read = self.read(page.file, page.offset, buffer.view(0, SUMS_PAGE_BYTES)).await?;
        // Past the end of the file, checksums read as 0.
        let mut bytes = vec![0; SUMS_PAGE_BYTES];
        buffer.copy_out(0, &mut bytes[..read]);
        let words =
            bytes.chunks_exact(4).map(|word| u32::from_le_bytes([word[0], word[1], word[2], word[3]]));
        Ok(words.collect())
    }

    /// Reloads a page from the disk, unless it contains changes that are not yet written.
    pub async fn refresh_sums(&self, page: &Page) -> Result<()> {
        let _gate = page.gate.take().await;
        if !page.dirty.get() {
            let read = self.read_sums(page).await?;
            // The page may have changed during the read.
            if !page.dirty.get() {
                *page.sums.borrow_mut() = Some(read);
            }
        }
        Ok(())
    }

    /// Writes a page if it has changed. Also waits for a pending write of it.
    async fn flush_page(&self, page: &Page) -> Result<()> {
        let _gate = page.gate.take().await;
        if !page.dirty.get() {
            return Ok(());
        }
        let mut buffer = self.sums.buffers.take().await?;
        let bytes: Vec<u8> = match &*page.sums.borrow() {
            Some(sums) => sums.iter().flat_map(|sum| sum.to_le_bytes()).collect(),
            None => return Ok(()),
        };
        buffer.copy_in(0, &bytes);
        page.dirty.set(false);
        let written = self.write(page.file, page.offset, buffer.view(0, SUMS_PAGE_BYTES)).await;
        if written.is_err() {
            page.dirty.set(true);
        }
        written
    }

    /// Writes the changed pages of a file.
    pub async fn flush_sums(&self, handle: Handle) -> Result<()> {
        for (_, page) in self.sums.of(handle) {
            self.flush_page(&page).await?;
        }
        Ok(())
    }

    /// Whether a file has changed pages.
    pub fn has_changed_sums(&self, handle: Handle) -> bool {
        self.sums.of(handle).iter().any(|(_, page)| page.dirty.get())
    }

    /// The digest of a page, if the page has changed and is not yet written.
    pub fn changed_digest(&self, handle: Handle, number: u64) -> Option<u64> {
        let pages = self.sums.pages.borrow();
        let page = pages.get(&(handle, number)).filter(|page| page.dirty.get())?;
        Some(page.own_digest())
    }

    /// The digest of all such pages from page `first` on.
    pub fn changed_digest_from(&self, handle: Handle, first: u64) -> u64 {
        let pages = self.sums.of(handle).into_iter();
        let changed = pages.filter(|(number, page)| *number >= first && page.dirty.get());
        changed.fold(0, |digest: u64, (_, page)| digest.wrapping_add(page.own_digest()))
    }

    /// Drops the pages of a file from page `first` on, changed or not, after pending writes of them.
    pub async fn forget_sums(&self, handle: Handle, first: u64) {
        for (number, page) in self.sums.of(handle) {
            if number >= first {
                let _gate = page.gate.take().await;
                page.dirty.set(false);
                self.sums.pages.borrow_mut().remove(&(handle, number));
            }
        }
    }
}
