//! Collectives: arrays and files that all processes of a parallel program write or read in one call.

use std::ffi::{c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use outcore_core::{Error, Result};

use crate::array::Array;
use crate::boundary::{Handle, call};
use crate::file::File;
use crate::regions::Regions;
use crate::together::{array_all, file_all};

/// The function by which a process sends bytes to all others: it copies `bytes` bytes at `memory` of the process `root` to
/// `memory` of all others. All processes call it in the same order. It returns 0, or another number as an error. It must
/// return: neither `longjmp` nor an exception may leave it.
pub type Broadcast =
    Option<unsafe extern "C" fn(argument: *mut c_void, memory: *mut c_void, bytes: u64, root: u64) -> c_int>;

/// The processes of a parallel program. Each of them describes the same group. A process that passes an unusable group, or none,
/// gets -EINVAL, and the others wait for it.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Group {
    /// Number of this process, from 0 on.
    pub rank: u64,
    /// Number of processes, at most 65536.
    pub size: u64,
    /// The function by which they meet, such as MPI_Bcast. NULL will do for one process.
    pub broadcast: Broadcast,
    /// Its first argument.
    pub argument: *mut c_void,
    /// Seconds until a process that does not take part counts as lost, the same on all; 0 means 600.
    pub timeout_s: f64,
}

/// A process's exchange with all servers in a collective.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Exchange {
    /// Messages to the servers.
    pub messages: u64,
    /// Shares of pieces of a file, sent or received in messages.
    pub shares: u64,
    /// Bytes of all shares.
    pub bytes: u64,
    /// Bytes of the shares that were copied in memory on the way.
    pub copied_bytes: u64,
    /// Bytes that servers read directly from the memory of the process.
    pub direct_bytes: u64,
    /// Always 0.
    pub reserved: [u64; 3],
}

/// Runs an entry point that all processes of a group call. If the handle is unusable, the other processes learn that, since
/// they would wait for this one.
///
/// # Safety
/// The pointers are NULL, or valid.
unsafe fn collective<H: Handle>(
    handle: *const H,
    group: *const Group,
    work: impl FnOnce(&H) -> Result<()>,
) -> c_int {
    // SAFETY: as the caller promises.
    let handle = unsafe { handle.as_ref() };
    let missing = || Err(Error::invalid("need an array or file, have NULL; pass one"));
    let usable = handle.map_or_else(missing, |handle| handle.context().check_process());
    // A panic would leave the library.
    let _ = catch_unwind(AssertUnwindSafe(|| {
        // SAFETY: as the caller promises.
        if let (Err(error), Ok(group)) = (usable, Group::checked(unsafe { group.as_ref() })) {
            let _ = group.agree(Err(error));
        }
    }));
    call(handle, work)
}

/// Writes an array from the memory of all processes of a group; each of them makes this call with the same array.
///
/// This process gives `boxes` boxes, or 0. Box number i begins at index `start[i * dims]` and has `count[i * dims]` elements
/// along the first dimension, and so on. The elements lie in `memory` in C order, one box after the other; `bytes` is the
/// size of all of them. Boxes must not overlap, also those of several processes. Elements in no box stay as they are.
///
/// The call returns on every process when the whole array is durable. Until then the array is marked incomplete on disk.
/// After a failure it stays incomplete, and the call fails on every process. `exchange` gets counts, unless it is NULL.
///
/// Errors: -EINVAL (the processes do not agree, or boxes that overlap or leave the array), -EROFS, -EIO (a process or a
/// server failed or is missing), and the error of any process on all of them.
///
/// # Safety
/// `array` is an array, or NULL; `group` is NULL, or valid; `start` and `count` have one number for each dimension of each
/// box; `memory` has at least `bytes` bytes; `exchange` is NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_write_all(
    array: *const Array,
    group: *const Group,
    boxes: usize,
    start: *const u64,
    count: *const u64,
    memory: *const c_void,
    bytes: u64,
    exchange: *mut Exchange,
) -> c_int {
    // SAFETY: as the caller promises; a write only reads the memory, and this waits for the end.
    unsafe {
        collective(array, group, |array| {
            array_all(array, true, group, boxes, start, count, memory.cast_mut(), bytes, exchange)
        })
    }
}

/// Reads an array into the memory of all processes of a group; see `outcore_array_write_all`. Boxes may overlap, as ghost
/// cells do.
///
/// # Safety
/// As for `outcore_array_write_all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_array_read_all(
    array: *const Array,
    group: *const Group,
    boxes: usize,
    start: *const u64,
    count: *const u64,
    memory: *mut c_void,
    bytes: u64,
    exchange: *mut Exchange,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    unsafe {
        collective(array, group, |array| {
            array_all(array, false, group, boxes, start, count, memory, bytes, exchange)
        })
    }
}

/// Writes a file from the memory of all processes of a group; each of them makes this call with the same file.
///
/// This process gives the bytes of `regions`, one after the other in `memory`; `bytes` is the size of both. Regions without
/// bytes give nothing. No process learns the regions of the others. If several processes give the same byte, each block of
/// 64 KiB gets the bytes of one of them. The regions have at most 524288 nested strides and runs of a list, all processes
/// together, and end at 4 TiB or before. Their bytes ascend; if they do not, the call copies them, and they have at most 65536
/// runs. The call returns on every process when all of it is written. A later `outcore_file_sync` by any process makes it
/// durable; on each process, it reports a server that restarted between.
///
/// Errors: those of `outcore_array_write_all`, and -EINVAL (regions of one process that overlap). After a failure, some regions
/// may be written.
///
/// # Safety
/// `file` is a file, or NULL; `group` and `regions` are NULL, or valid; `memory` has at least `bytes` bytes; `exchange` is
/// NULL, or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_write_all(
    file: *const File,
    group: *const Group,
    regions: *const Regions,
    memory: *const c_void,
    bytes: u64,
    exchange: *mut Exchange,
) -> c_int {
    // SAFETY: as the caller promises; a write only reads the memory, and this waits for the end.
    unsafe {
        collective(file, group, |file| {
            file_all(file, true, group, regions, memory.cast_mut(), bytes, exchange)
        })
    }
}

/// Reads a file into the memory of all processes of a group; see `outcore_file_write_all`. Regions may overlap.
///
/// Errors: those of `outcore_array_read_all`, and -ENODATA (the file ends before the regions of a process).
///
/// # Safety
/// As for `outcore_file_write_all`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_read_all(
    file: *const File,
    group: *const Group,
    regions: *const Regions,
    memory: *mut c_void,
    bytes: u64,
    exchange: *mut Exchange,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    unsafe { collective(file, group, |file| file_all(file, false, group, regions, memory, bytes, exchange)) }
}
