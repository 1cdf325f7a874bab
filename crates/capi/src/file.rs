//! Files of a pool.

use std::ffi::{c_char, c_int, c_void};
use std::sync::Arc;

use outcore_client::Ticket;
use outcore_core::{Error, ErrorKind, FileId, OpenMode, Operation, Regions, Result, Volume as _};

use crate::boundary::{Handle, call, count, hand_out, release};
use crate::context::Context;
use crate::hints::Hints;
use crate::memory::Pieces;
use crate::pool::{Client, Pool};
use crate::signs::Signs;
use crate::text::text_of;

/// A file of a pool that is open.
pub struct File {
    pub(crate) context: Arc<Context>,
    pub(crate) client: Arc<Client>,
    pub(crate) file: FileId,
    pub(crate) signs: Arc<Signs>,
    /// A new file is open for writing in the client, whatever the flags.
    writable: bool,
}

impl Handle for File {
    fn context(&self) -> &Arc<Context> {
        &self.context
    }
}

/// Flags of `open` that files of pools have.
const FLAGS: c_int = libc::O_ACCMODE | libc::O_CREAT | libc::O_EXCL | libc::O_TRUNC | libc::O_CLOEXEC;

/// Opens a file as `flags` of `open` say.
fn open(pool: &Pool, path: &str, flags: c_int, mode: u32, hints: &outcore_core::Hints) -> Result<FileId> {
    if flags & !FLAGS != 0 {
        return Err(Error::invalid(format!(
            "need flags among O_RDONLY, O_WRONLY, O_RDWR, O_CREAT, O_EXCL, O_TRUNC and O_CLOEXEC, have {flags:#o}; leave \
             the others out"
        )));
    }
    let has = |flag| flags & flag != 0;
    let is_written = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if has(libc::O_TRUNC) && !is_written {
        return Err(Error::invalid(
            "need O_RDWR or O_WRONLY with O_TRUNC, have O_RDONLY; open it for writing",
        ));
    }
    let (file, is_new) = match (has(libc::O_CREAT), has(libc::O_EXCL)) {
        (true, true) => (pool.client.create_as(path, hints.clone(), mode)?, true),
        (true, false) => pool.client.open_or_create(path, is_written, hints, mode)?,
        (false, _) => {
            let how = if is_written { OpenMode::ReadWrite } else { OpenMode::Read };
            (pool.client.open(path, how)?, false)
        }
    };
    if has(libc::O_TRUNC) && !is_new {
        pool.client.set_length(file, 0).inspect_err(|_| pool.client.close(file))?;
    }
    Ok(file)
}

impl File {
    /// Starts a request between regions of the file and memory.
    ///
    /// # Safety
    /// As for [`Pieces::region`].
    pub(crate) unsafe fn start(
        &self,
        operation: Operation,
        regions: Regions,
        memory: &Pieces,
    ) -> Result<Ticket> {
        let (need, have) = (regions.total_bytes(), memory.bytes()?);
        if need != have {
            return Err(Error::invalid(format!(
                "need memory of {need} bytes for the regions, have {have}; pass as many bytes as the regions have"
            )));
        }
        if operation == Operation::Write {
            self.check_writable()?;
        }
        // SAFETY: as the caller promises.
        let memory = unsafe { memory.region()? };
        Ok(self.client.submit_regions(self.file, operation, regions, memory))
    }

    pub(crate) fn check_writable(&self) -> Result<()> {
        if self.writable {
            return Ok(());
        }
        Err(Error::new(ErrorKind::ReadOnly, "the file is open for reading only; open it with O_RDWR"))
    }

    /// Reads regions, and waits for the end.
    ///
    /// # Safety
    /// As for [`Pieces::region`].
    pub(crate) unsafe fn read(&self, regions: &Regions, memory: &Pieces) -> Result<()> {
        // SAFETY: as the caller promises.
        unsafe { self.start(Operation::Read, regions.clone(), memory)? }.finish()?;
        let end = regions.end();
        let last = regions.runs().find(|run| run.offset + run.length == end);
        let last = last.and_then(|run| memory.byte(run.at + run.length - 1));
        let Some(last) = last else { return Ok(()) };
        // If another client has made the file shorter, the client may know its old length: then zeros stand for the bytes behind
        // its end.
        // SAFETY: the memory has that byte, and the request has ended.
        let may_be_behind = unsafe { *last } == 0;
        if may_be_behind && self.client.length(self.file)? < end {
            let text =
                format!("need the bytes of the file up to {end}, it is shorter; read up to its length");
            return Err(Error::new(ErrorKind::Truncated, text));
        }
        Ok(())
    }

    /// Reads as many bytes as the memory has, fewer at the end of the file. Returns their number.
    ///
    /// # Safety
    /// As for [`Pieces::region`].
    pub(crate) unsafe fn read_up_to(&self, offset: u64, memory: &Pieces) -> Result<u64> {
        let mut bytes = memory.bytes()?;
        loop {
            let regions = Regions::contiguous(offset, bytes)?;
            // SAFETY: as the caller promises; there are fewer bytes in each turn.
            match unsafe { self.read(&regions, &memory.first(bytes)) } {
                Ok(()) => return Ok(bytes),
                Err(error) if error.kind == ErrorKind::Truncated => {
                    let there = self.client.length(self.file)?.saturating_sub(offset);
                    if there >= bytes {
                        // The length is that of a file whose data files are too short.
                        return Err(error);
                    }
                    bytes = there;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Writes all bytes of the memory from `offset` on, and waits for the end.
    ///
    /// # Safety
    /// As for [`Pieces::region`].
    pub(crate) unsafe fn write_from(&self, offset: u64, memory: &Pieces) -> Result<()> {
        let regions = Regions::contiguous(offset, memory.bytes()?)?;
        // SAFETY: as the caller promises.
        unsafe { self.start(Operation::Write, regions, memory)? }.finish()
    }
}

/// Opens a file of a pool, or creates it.
///
/// `path` is its name in the pool, with "/" between names. `flags` are those of open(2): O_RDONLY, O_WRONLY or O_RDWR,
/// with O_CREAT, O_EXCL, O_TRUNC and O_CLOEXEC. For a new file, `mode` has the permission bits, before the umask, and
/// `hints` its layout, or NULL; missing directories above it are created.
///
/// Errors: -ENOENT, -EEXIST (O_EXCL), -EACCES, -EINVAL (a directory, or other flags).
///
/// # Safety
/// The pointers are NULL, or valid; `path` ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_open(
    pool: *const Pool,
    path: *const c_char,
    flags: c_int,
    mode: u32,
    hints: *const Hints,
    file: *mut *mut File,
) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { pool.as_ref() }, |pool| unsafe {
        hand_out(file, || {
            let hints = Hints::or_none(hints.as_ref());
            let opened = open(pool, text_of(path, "path of a file")?, flags, mode, &hints)?;
            let writable = flags & libc::O_ACCMODE != libc::O_RDONLY;
            let (context, client, signs) = (pool.context.clone(), pool.client.clone(), pool.signs.clone());
            Ok(File { context, client, file: opened, signs, writable })
        })
    })
}

/// Reads `bytes` bytes from byte `offset` on into `memory`. Returns their number, which is smaller only at the end of the
/// file, or -errno.
///
/// # Safety
/// `file` is a file, or NULL; `memory` has at least `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_read_at(
    file: *const File,
    offset: u64,
    memory: *mut c_void,
    bytes: u64,
) -> i64 {
    // SAFETY: as the caller promises.
    count(unsafe { file.as_ref() }, |file| unsafe { file.read_up_to(offset, &Pieces::one(memory, bytes)) })
}

/// Writes `bytes` bytes of `memory` from byte `offset` on. Returns 0 once all are written, or -errno.
///
/// The bytes survive a power loss after `outcore_file_sync`.
///
/// Errors: -EROFS (the file is open for reading), -ENOSPC, -EIO, -EREMOTEIO (earlier writes may be lost: write them again).
///
/// # Safety
/// `file` is a file, or NULL; `memory` has at least `bytes` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_write_at(
    file: *const File,
    offset: u64,
    memory: *const c_void,
    bytes: u64,
) -> c_int {
    // SAFETY: as the caller promises; a write only reads the memory.
    call(unsafe { file.as_ref() }, |file| unsafe {
        file.write_from(offset, &Pieces::one(memory.cast_mut(), bytes))
    })
}

/// Returns the length of a file in bytes, or -errno.
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_length(file: *const File) -> i64 {
    // SAFETY: as the caller promises.
    count(unsafe { file.as_ref() }, |file| file.client.length(file.file))
}

/// Makes a file longer or shorter. New bytes read as zeros.
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_truncate(file: *const File, length: u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { file.as_ref() }, |file| {
        file.check_writable()?;
        file.client.set_length(file.file, length)
    })
}

/// Reserves the disk space of the first `length` bytes of a file on its servers, and makes it so long if it is shorter. It
/// never makes a file shorter. A server whose file system cannot reserve only makes the file longer.
///
/// Errors: -EROFS (the file is open for reading), -ENOSPC (some servers may have reserved their part by then).
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_reserve(file: *const File, length: u64) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { file.as_ref() }, |file| {
        file.check_writable()?;
        file.client.reserve(file.file, length)
    })
}

/// Returns once all completed writes to the file survive a power loss.
///
/// Errors: -EREMOTEIO (earlier writes may be lost: write them again), -EIO, -ENOSPC.
///
/// # Safety
/// `file` is a file, or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_sync(file: *const File) -> c_int {
    // SAFETY: as the caller promises.
    call(unsafe { file.as_ref() }, |file| file.client.submit_sync_after(file.file, &[]).finish())
}

/// Closes a file, and frees the handle. It does not sync. NULL is ignored.
///
/// # Safety
/// `file` is NULL, or a file that is not used again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn outcore_file_close(file: *mut File) -> c_int {
    // SAFETY: as the caller promises.
    unsafe {
        release(file, |file| {
            file.signs.withdraw(Some(file.file), |_| true);
            file.client.close(file.file);
            Ok(())
        })
    }
}
