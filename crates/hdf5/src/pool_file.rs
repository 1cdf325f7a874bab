//! A file in a pool, as HDF5 sees it: bytes up to an end of addresses.

use std::collections::HashSet;
use std::ffi::c_uint;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use outcore_core::{Error, ErrorKind, FileId, Hints, OpenMode, Operation, Result, Volume};

use crate::abi::{Kind, RAW, open};
use crate::connections::{Client, client};
use crate::pieces::{Piece, buffer, joined, regions};
use crate::place::PoolPlace;

/// Permission bits of a new file, before the umask.
const FILE_MODE: u32 = 0o666;

/// An open file of a pool.
pub struct PoolFile {
    client: Arc<Client>,
    file: FileId,
    path: String,
    /// The process that opened it.
    process: u32,
    /// Stripe unit in bytes.
    pub unit_bytes: u64,
    /// End of the addresses that HDF5 has allocated.
    pub end_of_addresses: u64,
    /// Length of the file in the pool.
    pub end_of_file: u64,
    /// Whether there were writes since the last sync.
    is_dirty: bool,
    /// Whether the superblock marks the file as open in SWMR mode.
    is_concurrent: bool,
}

/// Pool, handle and process.
type Identity = (u128, u64, u32);

/// Files whose last close reported that it could not sync.
fn closed_unsynced() -> MutexGuard<'static, HashSet<Identity>> {
    static FILES: OnceLock<Mutex<HashSet<Identity>>> = OnceLock::new();
    FILES.get_or_init(Mutex::default).lock().unwrap_or_else(PoisonError::into_inner)
}

impl PoolFile {
    /// Opens or creates a file, as HDF5's flags demand.
    ///
    /// # Errors
    ///
    /// If the pool refuses it, or the flags ask for concurrent readers.
    pub fn open(place: PoolPlace, flags: c_uint, key: Option<&str>) -> Result<Self> {
        let PoolPlace { pool, path, is_read_only } = place;
        let is_set = |flag| flags & flag != 0;
        if is_set(open::CONCURRENT) {
            return Err(concurrent());
        }
        let is_writable = is_set(open::WRITE);
        if is_writable && is_read_only {
            return Err(read_only(&path));
        }
        let client = client(&pool, key)?;
        let file = match (is_set(open::CREATE), is_set(open::EXCLUSIVE)) {
            (true, true) => create_new(&client, &path),
            (true, false) => {
                client.open_or_create(&path, true, &Hints::default(), FILE_MODE).map(|(file, _)| file)
            }
            (false, _) => client.open(&path, if is_writable { OpenMode::ReadWrite } else { OpenMode::Read }),
        }?;
        let begun = (|| {
            if is_set(open::TRUNCATE) {
                client.set_length(file, 0)?;
            }
            Ok((client.length(file)?, client.layout(file)?.stripes.unit_bytes()))
        })();
        let (end_of_file, unit_bytes) = begun.inspect_err(|_| client.close(file))?;
        let process = std::process::id();
        let opened = Self {
            client,
            file,
            path,
            process,
            unit_bytes,
            end_of_addresses: 0,
            end_of_file,
            is_dirty: false,
            is_concurrent: false,
        };
        if is_writable && closed_unsynced().remove(&opened.identity()) {
            // Without this, the first sync would report losses of writes before this opening again.
            let _ = opened.client.submit_sync_after(file, &[]).finish();
        }
        Ok(opened)
    }

    /// Numbers by which two files are the same one. A file of the process that this one was forked from is another.
    pub fn identity(&self) -> Identity {
        (self.client.id(), self.client.handle(self.file).map_or(0, |handle| handle.0), self.process)
    }

    /// Refuses the use in a process that was forked after the file was opened.
    fn check_process(&self) -> Result<()> {
        if self.process == std::process::id() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Forked,
            format!(
                "need {} opened in this process, have one of the process that it was forked from; open it again",
                self.path
            ),
        ))
    }

    /// Reads bytes. Bytes after the end of the file are zero.
    ///
    /// # Safety
    ///
    /// The memory of the pieces must be valid for writes.
    pub unsafe fn read(&mut self, pieces: impl Iterator<Item = Piece>) -> Result<()> {
        self.check_process()?;
        let mut found = Vec::new();
        for piece in pieces {
            piece.end()?;
            let there = self.end_of_file.saturating_sub(piece.offset).min(piece.bytes as u64);
            let (there, after) = piece.split(there as usize);
            found.push(there);
            if after.bytes > 0 {
                // SAFETY: the caller says that the memory is valid.
                unsafe { std::ptr::write_bytes(after.memory, 0, after.bytes) };
            }
        }
        // SAFETY: as above.
        unsafe { self.transfer(Operation::Read, &joined(found)) }
    }

    /// Writes bytes.
    ///
    /// # Safety
    ///
    /// The memory of the pieces must be valid for reads.
    pub unsafe fn write(&mut self, kind: Kind, pieces: impl Iterator<Item = Piece>) -> Result<()> {
        self.check_process()?;
        let pieces = joined(pieces);
        if kind != RAW {
            for piece in &pieces {
                // SAFETY: the caller says that the memory is valid.
                self.is_concurrent = unsafe { marks_concurrent(piece) }.unwrap_or(self.is_concurrent);
            }
        }
        let ends = pieces.iter().map(Piece::end).collect::<Result<Vec<_>>>()?;
        // A failed write may have written some bytes.
        self.is_dirty = true;
        // SAFETY: the caller says that the memory is valid.
        let written = unsafe { self.transfer(Operation::Write, &pieces) };
        self.unless_removed(written)?;
        self.end_of_file = ends.into_iter().fold(self.end_of_file, u64::max);
        Ok(())
    }

    /// Moves all pieces by one request to each server.
    ///
    /// # Safety
    ///
    /// The memory of the pieces must be valid for this operation.
    unsafe fn transfer(&self, operation: Operation, pieces: &[Piece]) -> Result<()> {
        if pieces.is_empty() {
            return Ok(());
        }
        let regions = regions(pieces)?;
        let (held, released) = channel::<()>();
        // SAFETY: this function returns only after every clone of `held` is gone.
        let buffer = unsafe { buffer(pieces, &held)? };
        drop(held);
        let moved = self.client.submit_regions(self.file, operation, regions, buffer).finish();
        // The result is an error, because nothing sends: it says that nobody holds the memory any more.
        let _ = released.recv();
        moved
    }

    /// The result of a change, which a removed file takes as the file system does: it vanishes at the close. HDF5 would
    /// leave a file half closed after an error.
    fn unless_removed(&self, changed: Result<()>) -> Result<()> {
        match changed {
            Err(error) if error.kind == ErrorKind::NotFound => {
                let own = self.client.handle(self.file)?;
                match self.client.stat(&self.path) {
                    Ok(found) if found.handle == own => Err(error),
                    Ok(_) => Ok(()),
                    Err(missing) if missing.kind == ErrorKind::NotFound => Ok(()),
                    Err(_) => Err(error),
                }
            }
            changed => changed,
        }
    }

    /// Returns once all writes survive power loss.
    pub fn sync(&mut self) -> Result<()> {
        if self.is_dirty {
            self.check_process()?;
            let synced = self.client.submit_sync_after(self.file, &[]).finish();
            self.unless_removed(synced)?;
            self.is_dirty = false;
        }
        Ok(())
    }

    /// Makes the file as long as the addresses that HDF5 has allocated.
    pub fn truncate(&mut self) -> Result<()> {
        if self.end_of_addresses != self.end_of_file {
            self.check_process()?;
            self.unless_removed(self.client.set_length(self.file, self.end_of_addresses))?;
            self.end_of_file = self.end_of_addresses;
            self.is_dirty = true;
        }
        Ok(())
    }

    /// Does nothing, because pools have no locks. HDF5 unlocks a file when a program switches it to SWMR mode: this is
    /// the only call of the switch that may fail without harm to the file.
    pub fn unlock(&self) -> Result<()> {
        if self.is_concurrent { Err(concurrent()) } else { Ok(()) }
    }

    /// Syncs and closes the file. In a forked process, it leaves the file to the process that opened it.
    pub fn close(mut self) -> Result<()> {
        if self.check_process().is_err() {
            let is_dirty = self.is_dirty;
            // Its connections belong to threads that the fork does not have.
            let refused = self.check_process();
            std::mem::forget(self);
            return if is_dirty { refused } else { Ok(()) };
        }
        let synced = self.sync();
        if synced.is_err() {
            closed_unsynced().insert(self.identity());
        }
        self.client.tell_written();
        self.client.close(self.file);
        synced
    }
}

/// The error for SWMR: the readers of a pool's file may see a part of a write.
fn concurrent() -> Error {
    Error::invalid(
        "need a file for one writer or for readers, have one in SWMR mode, which pools do not support; open it without swmr",
    )
}

/// Whether a superblock marks the file as open for writing in SWMR mode (HDF5 file format 3.0, section II.A); `None`
/// for any other piece.
///
/// # Safety
///
/// The memory must be valid for reads.
unsafe fn marks_concurrent(piece: &Piece) -> Option<bool> {
    const SIGNATURE: &[u8] = b"\x89HDF\r\n\x1a\n";
    const VERSION: usize = 8;
    const FLAGS: usize = 11;
    const FLAG: u8 = 0x04;
    if piece.bytes <= FLAGS {
        return None;
    }
    // SAFETY: the caller says that the memory is valid.
    let start = unsafe { std::slice::from_raw_parts(piece.memory, FLAGS + 1) };
    start.starts_with(SIGNATURE).then(|| start[VERSION] >= 3 && start[FLAGS] & FLAG != 0)
}

/// Creates a file. As on Linux, a name that exists is the error also where the user may not create files.
fn create_new(client: &Client, path: &str) -> Result<FileId> {
    client.create_as(path, Hints::default(), FILE_MODE).map_err(|error| {
        if error.kind == ErrorKind::Denied && client.stat(path).is_ok() {
            let message = format!("need a new name, have something at {path:?} already; choose another name");
            return Error::new(ErrorKind::Exists, message);
        }
        error
    })
}

fn read_only(path: &str) -> Error {
    let message =
        format!("need a mount for writing, {path} is below a read-only one; mount it without --read-only");
    Error::new(ErrorKind::ReadOnly, message)
}

/// Removes a file.
pub fn remove(place: &PoolPlace, key: Option<&str>) -> Result<()> {
    if place.is_read_only {
        return Err(read_only(&place.path));
    }
    client(&place.pool, key)?.remove_one(&place.path)
}
