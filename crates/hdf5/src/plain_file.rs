//! A file outside pools, which HDF5's own driver for the file system handles.

use std::ffi::{c_ulong, c_void};

use crate::abi::{Class, FAILED, Head, Id, Kind, Status, UNDEFINED};
use crate::pieces::{Piece, spans};

/// A file that HDF5's driver has opened.
pub struct PlainFile {
    class: &'static Class,
    file: *mut Head,
}

/// Calls a callback of HDF5's driver; without it, returns what HDF5 does then.
macro_rules! call {
    ($self:ident.$callback:ident($($argument:expr),*), $without:expr) => {
        match $self.class.$callback {
            // SAFETY: the file is open, and the arguments are those that HDF5 gave to this driver.
            Some(callback) => unsafe { callback($self.file, $($argument),*) },
            None => $without,
        }
    };
}

impl PlainFile {
    /// Takes a file that the driver `class` has opened.
    ///
    /// # Safety
    ///
    /// The driver has returned `file`, which nothing else uses.
    pub unsafe fn new(class: &'static Class, file: *mut Head) -> Self {
        Self { class, file }
    }

    pub fn close(&self) -> Status {
        call!(self.close(), FAILED)
    }

    pub fn compare(&self, other: &Self) -> i32 {
        call!(self.compare(other.file), self.file.cmp(&other.file) as i32)
    }

    pub fn query(&self, features: *mut c_ulong) -> Status {
        call!(self.query(features), FAILED)
    }

    pub fn end_of_addresses(&self, kind: Kind) -> u64 {
        call!(self.get_end_of_addresses(kind), UNDEFINED)
    }

    pub fn set_end_of_addresses(&self, kind: Kind, end: u64) -> Status {
        call!(self.set_end_of_addresses(kind, end), FAILED)
    }

    pub fn end_of_file(&self, kind: Kind) -> u64 {
        call!(self.get_end_of_file(kind), UNDEFINED)
    }

    pub fn handle(&self, access: Id, handle: *mut *mut c_void) -> Status {
        call!(self.get_handle(access, handle), FAILED)
    }

    /// Reads pieces, those that lie close together by one call. HDF5 does so itself for drivers without lists of pieces.
    ///
    /// # Safety
    ///
    /// The memory of the pieces must be valid for writes.
    pub unsafe fn read(&self, kind: Kind, transfer: Id, pieces: impl Iterator<Item = Piece>) -> Status {
        let pieces: Vec<Piece> = pieces.collect();
        let mut buffer = Vec::new();
        for span in spans(&pieces) {
            let [first, .., last] = span else {
                let Piece { offset, bytes, memory } = span[0];
                let status = call!(self.read(kind, transfer, offset, bytes, memory.cast()), FAILED);
                if status < 0 {
                    return status;
                }
                continue;
            };
            buffer.resize((last.offset - first.offset) as usize + last.bytes, 0_u8);
            let status = call!(
                self.read(kind, transfer, first.offset, buffer.len(), buffer.as_mut_ptr().cast()),
                FAILED
            );
            if status < 0 {
                return status;
            }
            for piece in span {
                let found = &buffer[(piece.offset - first.offset) as usize..][..piece.bytes];
                // SAFETY: the caller says that the memory is valid; the buffer is another one.
                unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), piece.memory, piece.bytes) };
            }
        }
        0
    }

    /// Writes pieces, each by itself.
    pub fn write(&self, kind: Kind, transfer: Id, pieces: impl Iterator<Item = Piece>) -> Status {
        for Piece { offset, bytes, memory } in pieces {
            let status = call!(self.write(kind, transfer, offset, bytes, memory.cast_const().cast()), FAILED);
            if status < 0 {
                return status;
            }
        }
        0
    }

    pub fn flush(&self, transfer: Id, is_closing: bool) -> Status {
        call!(self.flush(transfer, is_closing), 0)
    }

    pub fn truncate(&self, transfer: Id, is_closing: bool) -> Status {
        call!(self.truncate(transfer, is_closing), 0)
    }

    pub fn lock(&self, is_exclusive: bool) -> Status {
        call!(self.lock(is_exclusive), 0)
    }

    pub fn unlock(&self) -> Status {
        call!(self.unlock(), 0)
    }
}
