//! The write-intent log on disk. The server appends records in pages, one append at a time; records of concurrent
//! calls share an append.

use std::cell::RefCell;
use std::rc::Rc;

use outcore_core::{Buffer, Error, ErrorKind, FileId, Result};

use crate::io_server::blocks::format::LOGS;
use crate::io_server::config::Factory;
use crate::io_server::event::NameOperation;
use crate::io_server::log::notes::Notes;
use crate::io_server::log::record::{PAGE_BYTES, Page, RECORDS_PER_PAGE, Record};
use crate::io_server::shared::{Server, Shared};
use crate::io_server::wait::Slot;

/// Pages reserved on the disk. A longer log restarts in the other file.
const LEAST_PAGES: u64 = 256;
/// Pages of one disk request.
const WRITE_PAGES: usize = 16;

#[derive(Default)]
struct State<B> {
    files: Option<[FileId; 2]>,
    active: usize,
    generation: u64,
    /// Pages of the active file that are in use, and their maximum.
    pages: u64,
    most_pages: u64,
    pending: Vec<Record>,
    /// Numbers of the last record accepted, and of the last durable one.
    taken: u64,
    durable: u64,
    writing: bool,
    /// The active file must not grow, because an append to it failed or an earlier run wrote it.
    anew: bool,
    /// The error of the last write attempt, if it failed.
    stuck: Option<ErrorKind>,
    waiting: Vec<(u64, Slot<Result<()>>)>,
    buffer: Option<B>,
}

/// The log.
pub(crate) struct Log<B> {
    state: RefCell<State<B>>,
    make: Factory<B>,
}

impl<B: Buffer> Log<B> {
    pub fn new(make: Factory<B>) -> Self {
        let state = State {
            files: None,
            active: 0,
            generation: 0,
            pages: 0,
            most_pages: 0,
            pending: Vec::new(),
            taken: 0,
            durable: 0,
            writing: false,
            anew: true,
            stuck: None,
            waiting: Vec::new(),
            buffer: None,
        };
        Self { state: RefCell::new(state), make }
    }

    /// The number of the next record.
    pub fn next_number(&self) -> u64 {
        self.state.borrow().taken + 1
    }
}

impl<B: Buffer> Shared<B> {
    /// Reads the log and restores its notes. Then restarts it in the other file, so that no later start reads
    /// left-over records again. If the disk is too full for that, the old log remains valid, and the next write
    /// retries. On a read-only disk it remains valid until the server restarts.
    pub async fn open_log(self: &Rc<Self>) -> Result<()> {
        let buffer = (self.log.make)(WRITE_PAGES * PAGE_BYTES)?;
        let mut files = [FileId(0); 2];
        let mut best: Option<(u64, usize, Notes)> = None;
        let mut highest = 0;
        for (which, path) in LOGS.into_iter().enumerate() {
            let path = path.to_owned();
            let found = match self.opened(NameOperation::Open { path: path.clone() }).await {
                Err(error) if error.kind == ErrorKind::NotFound => {
                    self.opened(NameOperation::Make { path: path.clone() }).await?
                }
                found => found?,
            };
            files[which] = found.file;
            let length = LEAST_PAGES * PAGE_BYTES as u64;
            if found.length < length && found.is_writable {
                // Without reserved space the log grows as far as it can; the next start tries again.
                let _ = self.name(NameOperation::Resize { path, length, reserve: true }).await;
            }
            let pages = self.read_log(files[which], buffer.clone()).await?;
            highest = pages.iter().map(|(_, page)| page.generation).fold(highest, u64::max);
            if let Some((generation, notes)) = newest(self.limits.removals, &pages)
                && best.as_ref().is_none_or(|(other, ..)| generation > *other)
            {
                best = Some((generation, which, notes));
            }
        }
        {
            let mut state = self.log.state.borrow_mut();
            state.files = Some(files);
            state.buffer = Some(buffer);
            state.generation = highest;
            if let Some((_, which, notes)) = best {
                state.active = which;
                self.status.borrow_mut().noted_files = notes.count() as u64;
                *self.notes.borrow_mut() = notes;
            }
            state.taken += 1;
        }
        let number = self.log.state.borrow().taken;
        match self.log_durable(number).await {
            Err(error) if matches!(error.kind, ErrorKind::DiskFull | ErrorKind::ReadOnly) => Ok(()),
            begun => begun,
        }
    }

    /// Whether the log cannot be written. The server then refuses all writes.
    pub fn log_is_stuck(&self) -> bool {
        self.log.state.borrow().stuck.is_some()
    }

    /// Whether the log cannot be written because the disk is read-only.
    pub fn log_is_read_only(&self) -> bool {
        self.log.state.borrow().stuck == Some(ErrorKind::ReadOnly)
    }

    /// Every valid page, with its number.
    async fn read_log(&self, file: FileId, buffer: B) -> Result<Vec<(u64, Page)>> {
        let (mut pages, mut number) = (Vec::new(), 0);
        let mut bytes = vec![0; PAGE_BYTES];
        loop {
            let read = self.read(file, number * PAGE_BYTES as u64, buffer.clone()).await?;
            for at in (0..read / PAGE_BYTES).map(|page| page * PAGE_BYTES) {
                buffer.copy_out(at, &mut bytes);
                pages.extend(Page::decode(&bytes, number).map(|page| (number, page)));
                number += 1;
            }
            if read < buffer.len() {
                return Ok(pages);
            }
        }
    }

    /// Queues a record, to be written soon.
    pub fn log(self: &Rc<Self>, record: Record) {
        let mut state = self.log.state.borrow_mut();
        state.pending.push(record);
        state.taken += 1;
        drop(state);
        self.write_log();
    }

    /// Waits until the record with this number is durable.
    pub async fn log_durable(self: &Rc<Self>, number: u64) -> Result<()> {
        let slot = {
            let mut state = self.log.state.borrow_mut();
            if state.durable >= number {
                return Ok(());
            }
            let slot = Slot::new();
            state.waiting.push((number, slot.clone()));
            slot
        };
        self.write_log();
        slot.await
    }

    /// Waits until every record is durable.
    pub async fn log_idle(self: &Rc<Self>) {
        let number = self.log.state.borrow().taken;
        let _ = self.log_durable(number).await;
    }

    /// Starts the writing task unless it is running.
    fn write_log(self: &Rc<Self>) {
        let is_written = std::mem::replace(&mut self.log.state.borrow_mut().writing, true);
        if !is_written {
            let server: Server<B> = self.clone();
            self.begin(async move {
                // Records of calls that have already arrived go out with the same append.
                server.let_others().await;
                while server.write_batch().await {}
            });
        }
    }

    /// Writes the pending records. Returns whether more arrived meanwhile.
    async fn write_batch(self: &Rc<Self>) -> bool {
        let (batch, number, anew) = {
            let mut state = self.log.state.borrow_mut();
            let batch = std::mem::take(&mut state.pending);
            let pages = batch.len().div_ceil(RECORDS_PER_PAGE) as u64;
            (batch, state.taken, state.anew || state.pages + pages > state.most_pages)
        };
        let written = if anew { self.begin_log_anew().await } else { self.append(&batch).await };
        let written = written.map_err(|error| {
            if error.kind == ErrorKind::ReadOnly {
                return self.of_read_only(error);
            }
            let message = format!(
                "server {}: refused a write, since its log cannot note it: {}",
                self.server.0, error.message
            );
            Error::new(error.kind, message)
        });
        let mut state = self.log.state.borrow_mut();
        let state = &mut *state;
        state.stuck = written.as_ref().err().map(|error| error.kind);
        match &written {
            Ok(()) => {
                state.anew = false;
                state.durable = number;
            }
            Err(_) => {
                // The written records of the batch may be read after a crash. They are true, but no more records
                // may follow them.
                state.anew = true;
                state.pending.splice(0..0, batch);
            }
        }
        // Answer the callers whose records are in this batch. Callers with later records wait for the next batch.
        state.waiting.retain(|(wanted, slot)| {
            let is_done = *wanted <= number;
            if is_done {
                slot.give(written.clone());
            }
            !is_done
        });
        let more = !state.waiting.is_empty() || (written.is_ok() && !state.pending.is_empty());
        state.writing = more;
        more
    }

    async fn append(&self, batch: &[Record]) -> Result<()> {
        let (file, generation, first) = self.log_place(|state| state.active)?;
        self.write_pages(file, generation, 0, first, batch).await?;
        self.sync_disk(file).await?;
        self.log.state.borrow_mut().pages += batch.len().div_ceil(RECORDS_PER_PAGE) as u64;
        Ok(())
    }

    /// Writes the current notes to the other file, and continues there. Until that is durable, the old file remains
    /// valid.
    async fn begin_log_anew(&self) -> Result<()> {
        let records = self.notes.borrow().records();
        let pages = records.len().div_ceil(RECORDS_PER_PAGE).max(1);
        let (file, ..) = self.log_place(|state| 1 - state.active)?;
        let generation = {
            // The number increases even if this attempt fails, so that no two attempts look alike.
            let mut state = self.log.state.borrow_mut();
            state.generation += 1;
            state.generation
        };
        self.write_pages(file, generation, pages as u32, 0, &records).await?;
        self.sync_disk(file).await?;
        let mut state = self.log.state.borrow_mut();
        state.active = 1 - state.active;
        state.pages = pages as u64;
        state.most_pages = LEAST_PAGES.max(4 * pages as u64);
        Ok(())
    }

    fn log_place(&self, which: impl Fn(&State<B>) -> usize) -> Result<(FileId, u64, u64)> {
        let state = self.log.state.borrow();
        let files = state.files.ok_or_else(|| Error::new(ErrorKind::Closed, "the log is not open yet"))?;
        Ok((files[which(&state)], state.generation, state.pages))
    }

    async fn write_pages(
        &self,
        file: FileId,
        generation: u64,
        first_pages: u32,
        first: u64,
        records: &[Record],
    ) -> Result<()> {
        let taken = self.log.state.borrow().buffer.clone();
        let mut buffer = taken.ok_or_else(|| Error::new(ErrorKind::Closed, "the log is not open yet"))?;
        let mut pages: Vec<&[Record]> = records.chunks(RECORDS_PER_PAGE).collect();
        if pages.is_empty() && first_pages > 0 {
            pages.push(&[]);
        }
        for (turn, some) in pages.chunks(WRITE_PAGES).enumerate() {
            let start = first + (turn * WRITE_PAGES) as u64;
            for (at, records) in some.iter().enumerate() {
                let page = Page { generation, first_pages, records: records.to_vec() };
                buffer.copy_in(at * PAGE_BYTES, &page.encode(start + at as u64));
            }
            let view = crate::io_server::blocks::scratch::part(&buffer, 0, some.len() * PAGE_BYTES);
            self.write(file, start * PAGE_BYTES as u64, view).await?;
        }
        Ok(())
    }
}

/// The newest generation in a file whose first pages are all present, and its notes.
fn newest(removals: usize, pages: &[(u64, Page)]) -> Option<(u64, Notes)> {
    let began = |generation: u64| {
        let of = || pages.iter().filter(move |(_, page)| page.generation == generation);
        let first_pages = of().map(|(_, page)| u64::from(page.first_pages)).max()?;
        let found = of().filter(|(number, page)| page.first_pages > 0 && *number < first_pages).count();
        (first_pages > 0 && found as u64 == first_pages)
            .then(|| (generation, Notes::replay(removals, of().map(|(_, page)| page))))
    };
    let mut generations: Vec<u64> = pages.iter().map(|(_, page)| page.generation).collect();
    generations.sort_unstable();
    generations.dedup();
    generations.into_iter().rev().find_map(began)
}
