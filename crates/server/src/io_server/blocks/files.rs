//! The data files in use. The server opens and creates them, and closes idle ones when too many are open.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use outcore_core::{Buffer, Error, ErrorKind, FileId, Handle, Result, Target};

use crate::io_server::blocks::format::{BLOCK_BYTES, SUMS_PAGE_BYTES, data_path, plain_sums_path, sums_path};
use crate::io_server::blocks::locks::Locks;
use crate::io_server::check::seal::{Seal, State};
use crate::io_server::event::{NameAnswer, NameOperation};
use crate::io_server::log::ranges::RangeSet;
use crate::io_server::shared::{Opened, Shared};
use crate::io_server::wait::Permits;

/// An open data file, and the open file of its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ids {
    pub data: FileId,
    pub sums: FileId,
}

/// A data file in use.
pub(crate) struct File {
    pub handle: Handle,
    /// `None` if the file is not yet open, or does not exist.
    pub ids: Cell<Option<Ids>>,
    /// Whether the disk allows writing.
    pub is_writable: Cell<bool>,
    /// The file was removed while it was in use here.
    pub was_removed: Cell<bool>,
    /// Length of the data file in bytes, without a surplus.
    pub length: Cell<u64>,
    /// Bytes past the length that no write explains: something else lengthened the data file.
    pub surplus: Cell<u64>,
    /// The length by its seal of a data file that was shorter when it was opened; otherwise 0.
    pub need: Cell<u64>,
    /// Whether a client waits for the next sync.
    pub is_asked: Cell<bool>,
    /// The last durable seal.
    pub sealed: Cell<Seal>,
    /// Pages with seals before the checksums: one, or none in a file of format 1.
    pub seal_pages: Cell<u64>,
    /// The digest of the checksums as the server has set them.
    pub digest: Rc<Cell<u64>>,
    /// Whether clients have overwritten damaged blocks. If their checksums on the disk were wrong, so is the digest.
    pub was_repaired: Cell<bool>,
    /// Length of the checksums in bytes, when their file was opened.
    pub sums_length: Cell<u64>,
    /// End of the last block that had a checksum when the file was opened. It exceeds the length if the data file
    /// was truncated since.
    pub summed: Cell<u64>,
    pub locks: Locks,
    /// During a sync: regions with pending writes, or with writes that began since.
    pub touched: RefCell<Option<RangeSet>>,
    /// Serializes syncs.
    pub syncing: Permits,
    /// Number of sync requests; and the last of them that is done, with its result.
    pub syncs_wanted: Cell<u64>,
    pub synced: RefCell<(u64, Result<()>)>,
    /// Serializes opening, creation and removal.
    pub gate: Permits,
    used: Cell<u64>,
}

impl File {
    /// Byte of a page of checksums in their file.
    pub fn sums_offset(&self, page: u64) -> u64 {
        (self.seal_pages.get() + page) * SUMS_PAGE_BYTES as u64
    }

    /// The state that the next seal states.
    pub fn state(&self) -> State {
        State { digest: self.digest.get(), length: self.length.get().max(self.need.get()) }
    }

    /// Path of the checksum file.
    pub fn sums_path(&self) -> String {
        if self.seal_pages.get() > 0 { sums_path(self.handle) } else { plain_sums_path(self.handle) }
    }
}

/// The data files in use.
#[derive(Default)]
pub(crate) struct Files {
    table: RefCell<BTreeMap<Handle, Rc<File>>>,
    clock: Cell<u64>,
}

impl Files {
    pub fn get(&self, handle: Handle) -> Rc<File> {
        let mut table = self.table.borrow_mut();
        let file = table.entry(handle).or_insert_with(|| {
            Rc::new(File {
                handle,
                ids: Cell::new(None),
                is_writable: Cell::new(true),
                was_removed: Cell::new(false),
                length: Cell::new(0),
                surplus: Cell::new(0),
                need: Cell::new(0),
                is_asked: Cell::new(false),
                sealed: Cell::default(),
                seal_pages: Cell::new(1),
                digest: Rc::default(),
                was_repaired: Cell::new(false),
                sums_length: Cell::new(0),
                summed: Cell::new(0),
                locks: Locks::default(),
                touched: RefCell::default(),
                syncing: Permits::new(1),
                syncs_wanted: Cell::new(0),
                synced: RefCell::new((0, Ok(()))),
                gate: Permits::new(1),
                used: Cell::new(0),
            })
        });
        self.clock.set(self.clock.get() + 1);
        file.used.set(self.clock.get());
        file.clone()
    }

    /// Drops a file that nobody else uses and that is not open.
    pub fn let_go(&self, file: &Rc<File>) {
        // One reference is in the table, the other is the caller's.
        if file.ids.get().is_none() && Rc::strong_count(file) == 2 {
            self.table.borrow_mut().remove(&file.handle);
        }
    }

    /// The least recently used open file that nobody uses, if too many files are open.
    fn surplus(&self, most: usize) -> Option<Rc<File>> {
        let table = self.table.borrow();
        let open = || table.values().filter(|file| file.ids.get().is_some());
        if open().count() < most.max(1) {
            return None;
        }
        open().filter(|file| Rc::strong_count(file) == 1).min_by_key(|file| file.used.get()).cloned()
    }

    /// The open files that nobody uses.
    fn unused(&self) -> Vec<Rc<File>> {
        let table = self.table.borrow();
        let is_unused = |file: &&Rc<File>| file.ids.get().is_some() && Rc::strong_count(file) == 1;
        table.values().filter(is_unused).cloned().collect()
    }

    pub fn handles(&self) -> Vec<Handle> {
        self.table.borrow().keys().copied().collect()
    }
}

impl<B: Buffer> Shared<B> {
    /// Opens a file, or creates it if `make` is set. Returns whether it exists. After a crash, the server first
    /// examines the file's noted regions. With `make`, a read-only file is an error.
    pub async fn open(self: &Rc<Self>, file: &Rc<File>, make: bool) -> Result<bool> {
        let _gate = file.gate.take().await;
        let is_there = file.ids.get().is_some() || self.open_or_make_way(file, make).await?;
        if make && !file.is_writable.get() {
            let cause = format!("file {:016x} is open for reading only", file.handle.0);
            return Err(self.of_read_only(Error::new(ErrorKind::ReadOnly, cause)));
        }
        Ok(is_there)
    }

    /// Opens a closed file. If the system refuses, closes all unused files and retries: the process may have reached
    /// its limit of open files.
    async fn open_or_make_way(self: &Rc<Self>, file: &Rc<File>, make: bool) -> Result<bool> {
        match self.open_closed(file, make).await {
            Err(error) if error.kind == ErrorKind::Io && self.close_unused().await => {
                self.open_closed(file, make).await
            }
            opened => opened,
        }
    }

    async fn open_closed(self: &Rc<Self>, file: &Rc<File>, make: bool) -> Result<bool> {
        self.close_surplus().await;
        let handle = file.handle;
        let data = match self.opened(NameOperation::Open { path: data_path(handle) }).await {
            Ok(found) => found,
            Err(error) if error.kind == ErrorKind::NotFound => {
                // Notes on a file that no longer exists are obsolete.
                self.forget_notes(handle);
                if !make {
                    return Ok(false);
                }
                if self.notes.borrow().removed.holds(handle) {
                    return Err(self.gone(file));
                }
                let ids = self.make(handle).await.map_err(|error| self.of_read_only(error))?;
                file.is_writable.set(true);
                file.sealed.set(Seal::default());
                file.seal_pages.set(1);
                file.digest.set(0);
                for length in [&file.length, &file.surplus, &file.need, &file.sums_length, &file.summed] {
                    length.set(0);
                }
                file.ids.set(Some(ids));
                return Ok(true);
            }
            Err(error) => return Err(error),
        };
        let sums = match self.open_sums(file, &data).await {
            Ok(found) => found,
            Err(error) => {
                let _ = self.name(NameOperation::Close { file: data.file }).await;
                let missing = error.kind == ErrorKind::NotFound;
                let kind = if missing { ErrorKind::Corrupt } else { error.kind };
                let message = format!(
                    "server {}: the checksums of file {:016x} cannot be read: {error}",
                    self.server.0, handle.0
                );
                return Err(Error::new(kind, message));
            }
        };
        file.length.set(data.length);
        file.sums_length.set(sums.length.saturating_sub(file.sums_offset(0)));
        file.is_writable.set(data.is_writable && sums.is_writable);
        let ids = Ids { data: data.file, sums: sums.file };
        let is_unexamined = self.notes.borrow().unexamined.contains(&handle);
        match self.look_at_sums(file, ids, is_unexamined).await {
            Ok(summed) => file.summed.set(summed),
            Err(error) => {
                self.forget_sums(file.handle, 0).await;
                self.close_ids(ids).await;
                return Err(error);
            }
        }
        self.notes.borrow_mut().unexamined.remove(&handle);
        file.ids.set(Some(ids));
        Ok(true)
    }

    /// Opens the checksum file. Upgrades one of format 1, unless the disk takes no writes.
    async fn open_sums(&self, file: &File, data: &Opened) -> Result<Opened> {
        let handle = file.handle;
        file.seal_pages.set(1);
        let found = self.opened(NameOperation::Open { path: sums_path(handle) }).await;
        if !matches!(&found, Err(error) if error.kind == ErrorKind::NotFound) {
            return found;
        }
        let plain = self.opened(NameOperation::Open { path: plain_sums_path(handle) }).await;
        let Ok(plain) = plain else { return found };
        // The seal states a length, which must be durable. The server may examine some of the checksums later; the
        // log says which.
        if data.is_writable && plain.is_writable && self.sync_or_lose(file, data.file).await.is_ok() {
            let length = data.length;
            let _: Result<NameAnswer> = self.name(NameOperation::Seal { handle, length }).await;
            // The operation may have failed only after the new file was complete. Then the new file counts.
            let sealed = self.opened(NameOperation::Open { path: sums_path(handle) }).await;
            if !matches!(&sealed, Err(error) if error.kind == ErrorKind::NotFound) {
                let _ = self.name(NameOperation::Close { file: plain.file }).await;
                return sealed;
            }
        }
        file.seal_pages.set(0);
        Ok(plain)
    }

    /// Reads the seal, and after a crash examines the noted regions of a file. Returns the end of the last block past
    /// the end of the file that has a checksum.
    async fn look_at_sums(self: &Rc<Self>, file: &Rc<File>, ids: Ids, is_unexamined: bool) -> Result<u64> {
        let has_seal = file.seal_pages.get() > 0;
        file.sealed.set(if has_seal { self.read_seal(file.handle, ids).await? } else { Seal::default() });
        let unsealed = self.unsealed.borrow().get(&file.handle).copied();
        file.digest.set(unsealed.map_or(file.sealed.get().digest, |state| state.digest));
        self.compare_length(file, unsealed.map(|state| state.length));
        self.count_summed(file, ids).await?;
        if is_unexamined {
            self.examine_noted(file, ids).await?;
            if has_seal {
                // Nobody knows which checksums were written since the seal.
                file.digest.set(self.digest_from(file, ids, 0).await?);
            }
        }
        self.summed_past(file, ids, file.length.get().div_ceil(BLOCK_BYTES)).await
    }

    /// Opens a file that a client changes, or creates it unless it has existed.
    pub async fn open_to_change(self: &Rc<Self>, file: &Rc<File>, target: Target) -> Result<()> {
        if target.generation > 0
            && !self.open(file, false).await?
            && !self.notes.borrow().removed.holds(file.handle)
        {
            return Err(self.too_old(file, target, "none"));
        }
        self.open(file, true).await?;
        self.check_age(file, target)
    }

    /// Returns an error if the client knows a newer copy of the data file.
    pub fn check_age(&self, file: &File, target: Target) -> Result<()> {
        let have = file.sealed.get().generation;
        if target.generation <= have { Ok(()) } else { Err(self.too_old(file, target, &have.to_string())) }
    }

    fn too_old(&self, file: &File, target: Target, have: &str) -> Error {
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "server {}: the data file of file {:016x} is older than its last sync: need generation {} or a later one, \
                 have {have}; restore the newer copy of the server's directory, or the file from a copy",
                self.server.0, file.handle.0, target.generation,
            ),
        )
    }

    /// Returns an error if the data file was truncated: then blocks past its end have checksums.
    pub fn check_whole(&self, file: &File, target: Target) -> Result<()> {
        let (length, summed, need) = (file.length.get(), file.summed.get(), file.need.get());
        if file.surplus.get() > 0 {
            return Err(self.too_long(file));
        }
        if length.next_multiple_of(BLOCK_BYTES) >= summed && length >= need {
            return Ok(());
        }
        // Blocks up to the end of the last one have checksums, or the seal says so.
        let least = need.max((summed + 1).saturating_sub(BLOCK_BYTES));
        let in_file = target
            .stripes
            .offset_of(target.entry, length)
            .map_or(String::new(), |offset| format!(" (byte {offset} of the file)"));
        Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "server {}: the data file of file {:016x} was cut short: need {least} bytes or more by its checksums and its \
                 seal, have {length}{in_file}; restore the file from a copy, and check the disk",
                self.server.0, file.handle.0,
            ),
        ))
    }

    /// The error for a data file that something else than a write lengthened.
    pub fn too_long(&self, file: &File) -> Error {
        let (length, surplus) = (file.length.get(), file.surplus.get());
        Error::new(
            ErrorKind::Corrupt,
            format!(
                "server {}: the data file of file {:016x} is too long: need {length} bytes by its seal, have {}, and no write \
                 explains the rest; cut it by `outcore pool fsck --repair`, and check the disk",
                self.server.0,
                file.handle.0,
                length + surplus,
            ),
        )
    }

    /// Creates a data file. Its checksum file comes first, so a data file always has one.
    async fn make(&self, handle: Handle) -> Result<Ids> {
        let path = sums_path(handle);
        let made = match self.opened(NameOperation::Make { path: path.clone() }).await {
            Err(error) if error.kind == ErrorKind::Exists => {
                // A checksum file from a creation or removal that did not finish.
                self.name(NameOperation::Remove { path: path.clone() }).await?;
                self.opened(NameOperation::Make { path }).await
            }
            other => other,
        };
        let sums = made?.file;
        match self.opened(NameOperation::Make { path: data_path(handle) }).await {
            Ok(data) => Ok(Ids { data: data.file, sums }),
            Err(error) => {
                let _ = self.name(NameOperation::Close { file: sums }).await;
                Err(error)
            }
        }
    }

    /// Closes unused files until the number of open files is within the limit.
    async fn close_surplus(&self) {
        // A few attempts suffice: others may start using a file while its checksums are written.
        for _ in 0..4 {
            let Some(file) = self.files.surplus(self.limits.open_files) else { return };
            self.close(&file).await;
        }
    }

    /// Closes all unused files. Returns whether there were any.
    async fn close_unused(&self) -> bool {
        let unused = self.files.unused();
        for file in &unused {
            self.close(file).await;
        }
        !unused.is_empty()
    }

    /// Closes a file if nobody else uses it and its checksums can be written.
    pub async fn close(&self, file: &Rc<File>) {
        let _gate = file.gate.take().await;
        if self.flush_sums(file.handle).await.is_err() {
            if file.is_writable.get() || Rc::strong_count(file) > 2 {
                return;
            }
            // The checksums changed only by an examination, which the next opening repeats.
            self.notes.borrow_mut().unexamined.insert(file.handle);
            self.forget_sums(file.handle, 0).await;
        }
        if Rc::strong_count(file) > 2 {
            return;
        }
        // Others wait at the gate from here on, so no checksum changes.
        if let Some(ids) = file.ids.get().filter(|_| file.was_repaired.get()) {
            // An error is found again at the next opening.
            let _: Result<bool> = self.sums_are_current(file, ids).await;
        }
        if Rc::strong_count(file) > 2 || self.has_changed_sums(file.handle) {
            return;
        }
        let Some(ids) = file.ids.take() else { return };
        let state = file.state();
        if file.seal_pages.get() > 0 && state != file.sealed.get().state() {
            self.unsealed.borrow_mut().insert(file.handle, state);
        } else {
            self.unsealed.borrow_mut().remove(&file.handle);
        }
        self.forget_sums(file.handle, 0).await;
        self.close_ids(ids).await;
        self.files.let_go(file);
    }

    pub async fn close_ids(&self, ids: Ids) {
        for file in [ids.data, ids.sums] {
            // Closing has no result.
            let _: Result<NameAnswer> = self.name(NameOperation::Close { file }).await;
        }
    }

    /// Removes a file. Queued requests find it gone, and cannot recreate it.
    pub async fn remove(self: &Rc<Self>, file: &Rc<File>) -> Result<()> {
        // In the order of a sync, which takes the lock to read the checksums again.
        let _sync = file.syncing.take().await;
        let _lock = file.locks.take(0..u64::MAX, true).await;
        let _gate = file.gate.take().await;
        let record = self.notes.borrow_mut().removed.insert(file.handle);
        // Several clients may remove the same left-over file; then the log already has the record, or will have
        // it.
        if let Some(record) = record {
            self.log(record);
        }
        let number = self.log.next_number() - 1;
        // If the disk has no room for the record, the removal itself makes room. The running server remembers it
        // in any case.
        let _: Result<()> = self.log_durable(number).await;
        self.remove_if_there(data_path(file.handle)).await?;
        file.was_removed.set(true);
        self.forget_sums(file.handle, 0).await;
        if let Some(ids) = file.ids.take() {
            self.close_ids(ids).await;
        }
        file.length.set(0);
        self.forget_notes(file.handle);
        self.lost.borrow_mut().remove(&file.handle);
        self.unsealed.borrow_mut().remove(&file.handle);
        self.remove_sums(file.handle).await
    }

    async fn remove_sums(&self, handle: Handle) -> Result<()> {
        // An upgrade that failed may have left both.
        let plain = self.remove_if_there(plain_sums_path(handle)).await;
        self.remove_if_there(sums_path(handle)).await.and(plain)
    }

    async fn remove_if_there(&self, path: String) -> Result<()> {
        match self.name(NameOperation::Remove { path }).await {
            Err(error) if error.kind != ErrorKind::NotFound => Err(self.of_read_only(error)),
            _ => Ok(()),
        }
    }
}
