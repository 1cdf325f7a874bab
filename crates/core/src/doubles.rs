//! Disks that misbehave, for tests: each wraps a real or simulated one.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crate::{
    Alignment, Buffer, Completion, Disk, Error, ErrorKind, FileId, OnDone, OpenMode, Operation, Request,
    Result,
};

/// The fault of a [`FaultyDisk`].
#[derive(Debug)]
pub enum Fault {
    /// Every transfer moves at most this many bytes (at least 1).
    Short(usize),
    /// After this many requests, every request fails with an I/O error.
    FailAfter(AtomicUsize),
    /// After this many written bytes the disk is full; a write that crosses the limit is short.
    FullAfter(AtomicU64),
    /// Reads past this file offset find the end of the file.
    EndsAt(u64),
}

/// A disk that behaves like its inner disk, except for one [`Fault`].
#[derive(Debug)]
pub struct FaultyDisk<D> {
    inner: D,
    fault: Fault,
}

impl<D: Disk> FaultyDisk<D> {
    /// `inner` with `fault`.
    pub fn new(inner: D, fault: Fault) -> Self {
        Self { inner, fault }
    }

    /// Number of bytes of the request that may pass, or the error for the request.
    fn allowed(&self, request: &Request<D::Buffer>) -> Result<usize> {
        let length = request.buffer.len();
        match (&self.fault, request.operation) {
            (Fault::Short(most), Operation::Read | Operation::Write) => Ok(length.min((*most).max(1))),
            (Fault::FailAfter(left), _) => {
                let had =
                    left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| Some(n.saturating_sub(1)));
                if had == Ok(0) { Err(Error::new(ErrorKind::Io, "injected I/O error")) } else { Ok(length) }
            }
            (Fault::FullAfter(left), Operation::Write) => {
                let had = left.load(Ordering::SeqCst);
                let taken = (length as u64).min(had);
                left.store(had - taken, Ordering::SeqCst);
                if taken == 0 && length > 0 {
                    return Err(Error::new(ErrorKind::DiskFull, "injected full disk; free some room"));
                }
                Ok(taken as usize)
            }
            (Fault::EndsAt(end), Operation::Read) => {
                Ok(length.min(end.saturating_sub(request.offset) as usize))
            }
            _ => Ok(length),
        }
    }
}

impl<D: Disk> Disk for FaultyDisk<D> {
    type Buffer = D::Buffer;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        self.inner.open(path, mode)
    }

    fn close(&self, file: FileId) {
        self.inner.close(file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        self.inner.length(file)
    }

    fn submit(&self, mut request: Request<Self::Buffer>, done: OnDone<Self::Buffer>) {
        match self.allowed(&request) {
            Err(error) => done(Completion::failed(request.buffer, error, 0)),
            Ok(0) if request.operation != Operation::Sync => {
                done(Completion { buffer: request.buffer, result: Ok(0), started_ns: 0, finished_ns: 0 });
            }
            Ok(bytes) => {
                request.buffer.truncate(bytes);
                self.inner.submit(request, done);
            }
        }
    }

    fn alignment(&self, file: FileId) -> Alignment {
        self.inner.alignment(file)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.inner.free_bytes()
    }

    fn allocated_bytes(&self, file: FileId) -> Result<u64> {
        self.inner.allocated_bytes(file)
    }
}
