//! Requests that move regions: at once, or started and waited for.

use std::ffi::{c_int, c_void};
use std::fs::File as Descriptor;
use std::io::Write;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use outcore_client::Ticket;
use outcore_core::{Error, Operation, Result};

use crate::boundary::{Handle, call, count, hand_out, release, unusable_time};
use crate::context::Context;
use crate::errors::keep;
use crate::file::File;
use crate::memory::Pieces;
use crate::regions::Regions;

/// Maximum wait before the time is looked at again.
const TURN: Duration = Duration::from_secs(60);

/// A request that was started.
pub struct Request {
    context: Arc<Context>,
    ticket: Ticket,
}

impl Handle for Request {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

pub(crate) fn regions_of(regions: Option<&Regions>) -> Result<outcore_core::Regions> {
    let missing =
        || Error::invalid("need regions of the file, have NULL; make them by outcore_regions_strided");
    regions.map(|regions| regions.inner.clone()).ok_or_else(missing)
}

/// Starts a request between regions of a file and memory.
///
/// # Safety
/// The pointer is NULL, or valid; the memory stays valid until the request has ended.
pub(crate) unsafe fn start(
    file: &File,
    operation: Operation,
    regions: *const Regions,
    memory: &Pieces,
) -> Result<Ticket> {
    // SAFETY: as the caller promises.
    unsafe { file.start(operation, regions_of(regions.as_ref())?, memory) }
}

/// Runs an entry point that starts a request: hands out the handle of what `begin` starts.
///
/// # Safety
/// The pointers are NULL, or valid.
pub(crate) unsafe fn started<H: Handle>(
    handle: *const H,
    request: *mut *mut Request,
    begin: impl FnOnce(&H) -> Result<Ticket>,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { handle.as_ref() }, |handle| unsafe {
        hand_out(request, || Ok(Request { context: handle.context().clone(), ticket: begin(handle)? }))
    })
}

/// Reads regions of a file into `memory`, one after the other. `bytes` is the size of the memory and of the regions.
///
/// Errors: -ENODATA (the file ends before the regions), -EINVAL (another number of bytes), -EBADMSG (a wrong checksum), -EIO.
///
/// # Safety
/// The pointers are NULL, or valid; `memory` has at least `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_read(
    file: *const File,
    regions: *const Regions,
    memory: *mut c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    call(unsafe { file.as_ref() }, |file| unsafe {
        file.read(&regions_of(regions.as_ref())?, &Pieces::one(memory, bytes))
    })
}

/// Writes `memory` to regions of a file, one after the other. `bytes` is the size of the memory and of the regions.
///
/// Errors: those of `outcore_file_write_at`, and -EINVAL (another number of bytes).
///
/// # Safety
/// The pointers are NULL, or valid; `memory` has at least `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_write(
    file: *const File,
    regions: *const Regions,
    memory: *const c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the caller promises; this waits for the end.
    call(unsafe { file.as_ref() }, |file| unsafe {
        start(file, Operation::Write, regions, &Pieces::one(memory.cast_mut(), bytes))?.finish()
    })
}

/// Starts `outcore_file_read`. The memory belongs to the library until the request has ended. Bytes behind the end of a file
/// that another client made shorter may be zeros, without an error.
///
/// # Safety
/// The pointers are NULL, or valid; `memory` has at least `bytes` bytes until the request has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_start_read(
    file: *const File,
    regions: *const Regions,
    memory: *mut c_void,
    bytes: u64,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        started(file, request, |file| start(file, Operation::Read, regions, &Pieces::one(memory, bytes)))
    }
}

/// Starts `outcore_file_write`. The memory must not change until the request has ended.
///
/// # Safety
/// The pointers are NULL, or valid; `memory` has at least `bytes` bytes until the request has ended.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_start_write(
    file: *const File,
    regions: *const Regions,
    memory: *const c_void,
    bytes: u64,
    request: *mut *mut Request,
) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        started(file, request, |file| {
            start(file, Operation::Write, regions, &Pieces::one(memory.cast_mut(), bytes))
        })
    }
}

/// Starts `outcore_file_sync` of all writes that have ended.
///
/// # Safety
/// The pointers are NULL, or valid.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_start_sync(file: *const File, request: *mut *mut Request) -> c_int {
    // SAFETY: as the caller promises.
    unsafe { started(file, request, |file| Ok(file.client.submit_sync_after(file.file, &[]))) }
}

/// Waits for the end of a request, at most `timeout_s` seconds; a negative time means without limit. Returns its outcome,
/// or -ETIMEDOUT if it has not ended.
///
/// # Safety
/// `request` is a request, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_request_wait(request: *const Request, timeout_s: f64) -> c_int {
    let mut ended = false;
    // SAFETY: as the caller promises.
    let outcome = call(unsafe { request.as_ref() }, |request| {
        if timeout_s.is_nan() {
            return Err(unusable_time(timeout_s));
        }
        // A time beyond the range of the clock means no limit.
        let time = if timeout_s < 0.0 { None } else { Duration::try_from_secs_f64(timeout_s).ok() };
        let until = time.and_then(|time| Instant::now().checked_add(time));
        loop {
            let left = until.map_or(TURN, |until| until.saturating_duration_since(Instant::now()));
            if let Some(outcome) = request.ticket.wait(left.min(TURN)) {
                ended = true;
                return outcome;
            }
            if left.is_zero() {
                return Ok(());
            }
        }
    });
    // SAFETY: as above.
    match unsafe { request.as_ref() } {
        Some(request) if outcome == 0 && !ended => {
            keep(&request.context, &format!("the request has not ended within {timeout_s} s; wait longer"));
            -libc::ETIMEDOUT
        }
        _ => outcome,
    }
}

/// Returns 1 if a request has ended, and 0 if it has not.
///
/// # Safety
/// `request` is a request, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_request_done(request: *const Request) -> c_int {
    // SAFETY: as the caller promises. The number is 0, 1, or that of an error, which is small.
    count(unsafe { request.as_ref() }, |request| Ok(request.ticket.is_done().into())) as c_int
}

/// Adds 1 to an event descriptor, made by eventfd(2), once a request has ended. Several requests may use one descriptor. The
/// caller may close it at any time.
///
/// Errors: -EINVAL (no event descriptor).
///
/// # Safety
/// `request` is a request, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_request_notify(request: *const Request, descriptor: c_int) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { request.as_ref() }, |request| {
        let unusable = |error: &dyn std::fmt::Display| {
            Error::invalid(format!(
                "need an event descriptor, have {descriptor} ({error}); make one by eventfd"
            ))
        };
        if descriptor < 0 {
            return Err(unusable(&"it is negative"));
        }
        // SAFETY: the descriptor is only borrowed to make a copy of it; the system checks its number.
        let copy = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
        let mut copy = Descriptor::from(copy.map_err(|error| unusable(&error))?);
        // A write to another kind of descriptor could block, or end the program by a signal.
        let kind = std::fs::read_link(format!("/proc/self/fd/{}", copy.as_raw_fd()));
        let kind = kind.map_err(|error| unusable(&error))?;
        if kind.as_os_str() != "anon_inode:[eventfd]" {
            return Err(unusable(&kind.display()));
        }
        request.ticket.then(Box::new(move || {
            let mut poll = libc::pollfd { fd: copy.as_raw_fd(), events: libc::POLLOUT, revents: 0 };
            // SAFETY: the call writes to the one structure that it gets.
            let has_room = unsafe { libc::poll(&raw mut poll, 1, 0) } == 1;
            // A full counter wakes the reader without this.
            if has_room {
                let _ = copy.write_all(&1_u64.to_ne_bytes());
            }
        }));
        Ok(())
    })
}

/// Waits for the end of a request, and frees the handle. Its outcome is lost unless `outcore_request_wait` returned it. NULL
/// is ignored.
///
/// # Safety
/// `request` is NULL, or a request that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_request_free(request: *mut Request) {
    // SAFETY: as the caller promises.
    unsafe {
        release(request, |request| {
            // The memory of the request returns to the caller.
            let _ = request.ticket.finish();
            Ok(())
        })
    };
}
