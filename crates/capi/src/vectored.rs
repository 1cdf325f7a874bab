//! Requests between a file and several pieces of memory.

use std::ffi::c_int;

use libc::iovec;
use outcore_core::Operation;

use crate::boundary::{call, count};
use crate::file::File;
use crate::memory::Pieces;
use crate::regions::Regions;
use crate::request::{Request, regions_of, start, started};

/// Reads from byte `offset` on into `count` pieces of memory, one after the other, as preadv(2) does. Returns the number of
/// bytes, which is smaller than that of the pieces only at the end of the file, or -errno. The pieces must not overlap.
/// Any number of them is one request.
///
/// # Safety
/// `file` is a file, or NULL; `memory` has `count` structures, and each piece as many bytes as its structure says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_readv_at(
    file: *const File,
    offset: u64,
    memory: *const iovec,
    count: usize,
) -> i64 {
    // SAFETY: as the caller promises.
    self::count(unsafe { file.as_ref() }, |file| unsafe {
        file.read_up_to(offset, &Pieces::listed(memory, count)?)
    })
}

/// Writes `count` pieces of memory, one after the other, from byte `offset` on. Returns 0 once all are written, or -errno as
/// `outcore_file_write_at`; pwritev(2) returns the number of bytes.
///
/// # Safety
/// As for `outcore_file_readv_at`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_writev_at(
    file: *const File,
    offset: u64,
    memory: *const iovec,
    count: usize,
) -> c_int {
    // SAFETY: as the caller promises; a write only reads the memory.
    call(unsafe { file.as_ref() }, |file| unsafe { file.write_from(offset, &Pieces::listed(memory, count)?) })
}

/// Reads regions of a file, one after the other, into `count` pieces of memory, one after the other. Regions and pieces have
/// the same number of bytes, but need not end at the same places. See `outcore_file_read`.
///
/// # Safety
/// As for `outcore_file_readv_at`; `regions` is NULL, or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_readv(
    file: *const File,
    regions: *const Regions,
    memory: *const iovec,
    count: usize,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    call(unsafe { file.as_ref() }, |file| unsafe {
        file.read(&regions_of(regions.as_ref())?, &Pieces::listed(memory, count)?)
    })
}

/// Writes `count` pieces of memory to regions of a file; see `outcore_file_readv` and `outcore_file_write`.
///
/// # Safety
/// As for `outcore_file_readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_writev(
    file: *const File,
    regions: *const Regions,
    memory: *const iovec,
    count: usize,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    call(unsafe { file.as_ref() }, |file| unsafe {
        start(file, Operation::Write, regions, &Pieces::listed(memory, count)?)?.finish()
    })
}

/// Starts `outcore_file_readv`; see `outcore_file_start_read`. The list of the pieces is not used after the call.
///
/// # Safety
/// As for `outcore_file_readv`, until the request has ended; `request` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_start_readv(
    file: *const File,
    regions: *const Regions,
    memory: *const iovec,
    count: usize,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        started(file, request, |file| start(file, Operation::Read, regions, &Pieces::listed(memory, count)?))
    }
}

/// Starts `outcore_file_writev`; see `outcore_file_start_write`. The list of the pieces is not used after the call.
///
/// # Safety
/// As for `outcore_file_start_readv`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_start_writev(
    file: *const File,
    regions: *const Regions,
    memory: *const iovec,
    count: usize,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        started(file, request, |file| start(file, Operation::Write, regions, &Pieces::listed(memory, count)?))
    }
}
