//! Calls to the operating system, and what its errors mean.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use outcore_core::{Clock, Error, ErrorKind};
use outcore_memory::Region;

/// Most runs of memory in one vectored call (Linux: `UIO_MAXIOV`).
const MAX_VECTORS: usize = 1024;

/// The machine's monotonic clock; its origin is the first use in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// The bits that new files and directories of this process do not get. It is read, since to ask the system is to set it,
/// for other threads too.
pub fn umask() -> u32 {
    const USUAL: u32 = 0o022;
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let digits = status.lines().find_map(|line| line.strip_prefix("Umask:"));
    digits.and_then(|digits| u32::from_str_radix(digits.trim(), 8).ok()).unwrap_or(USUAL)
}

/// Refuses what to open would be to wait for others: a pipe.
pub(crate) fn check_kind(path: &Path) -> io::Result<()> {
    let is_pipe = path.metadata().is_ok_and(|found| found.file_type().is_fifo());
    if is_pipe { Err(io::Error::other("it is a pipe, and no file")) } else { Ok(()) }
}

/// An operating system error as one of ours.
pub(crate) fn describe(doing: &str, path: &Path, error: &io::Error) -> Error {
    let (kind, fix) = match error.raw_os_error() {
        Some(libc::ENOSPC | libc::EDQUOT) => {
            (ErrorKind::DiskFull, "free some room or choose another directory, and call again")
        }
        Some(libc::EROFS | libc::EACCES | libc::EPERM) => {
            (ErrorKind::ReadOnly, "check the permissions of the file and its directory")
        }
        Some(libc::ENOENT | libc::ENOTDIR) => (ErrorKind::NotFound, "check the path"),
        Some(libc::EEXIST | libc::ENOTEMPTY) => (ErrorKind::Exists, "remove it or choose another name"),
        Some(libc::EFBIG) => return too_large(doing, path, error, most_file_bytes()),
        _ => (ErrorKind::Io, "check the disk and the system log"),
    };
    Error::new(kind, format!("cannot {doing} {}: {error}; {fix}", path.display()))
}

/// Most bytes of a file that this process may write to; `None`: as many as the file system takes.
fn most_file_bytes() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call writes to `limit` alone, which is as the system has it.
    let failed = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &raw mut limit) };
    (failed == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The error for a file that would be longer than the process, or its file system, may have one.
fn too_large(doing: &str, path: &Path, error: &io::Error, most_bytes: Option<u64>) -> Error {
    let why = most_bytes.map_or_else(
        || "its file system has no files that long; choose another file system".to_owned(),
        |most| format!("this process may write to the first {most} bytes of a file; raise that by ulimit -f"),
    );
    Error::new(ErrorKind::Io, format!("cannot {doing} {}: {error}; {why}", path.display()))
}

/// Direct-I/O alignment in bytes of offsets and of memory, as `statx` reports it; `None` where the file system
/// does not do direct I/O on this file, 4096 where it does not say.
pub(crate) fn direct_alignment(file: &File) -> Option<(u64, u64)> {
    // SAFETY: `statx` is a plain C struct for which all zeros is a valid value.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, used with AT_EMPTY_PATH on an open descriptor; `status` outlives the call.
    let failed = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut status)
    };
    if failed != 0 || status.stx_mask & libc::STATX_DIOALIGN == 0 {
        return Some((4096, 4096));
    }
    match (status.stx_dio_offset_align, status.stx_dio_mem_align) {
        (0, _) | (_, 0) => None,
        (offset, memory) => Some((u64::from(offset), u64::from(memory))),
    }
}

/// The runs of memory of a region as system calls take them: as many as one may have.
pub(crate) fn vectors(region: &Region) -> Vec<libc::iovec> {
    let runs = region.pointers().take(MAX_VECTORS);
    runs.map(|(start, bytes)| libc::iovec { iov_base: start.cast(), iov_len: bytes }).collect()
}

/// One `preadv` or `pwritev`; may move fewer bytes than the region has.
pub(crate) fn transfer(file: &File, region: &Region, offset: u64, write: bool) -> io::Result<usize> {
    let vectors = vectors(region);
    if vectors.is_empty() {
        return Ok(0);
    }
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    loop {
        let call = if write { libc::pwritev } else { libc::preadv };
        // SAFETY: each vector lies in the region's block (checked when the region was made), which the region keeps
        // alive during the call.
        let moved = unsafe { call(file.as_raw_fd(), vectors.as_ptr(), vectors.len() as i32, offset) };
        if moved >= 0 {
            return Ok(moved as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Takes room for `bytes` bytes of `file` from the disk. File systems that cannot are left as they are.
pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(()); // which the system call refuses
    }
    // SAFETY: a plain system call on an open descriptor.
    let failed = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) };
    let error = io::Error::last_os_error();
    if failed == 0 || matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) {
        return Ok(());
    }
    Err(error)
}

/// Tells the kernel that the pages of a range will not be read again, so that they do not push out others.
pub(crate) fn drop_cached(file: &File, offset: u64, bytes: u64) {
    // SAFETY: advice on an open descriptor; its failure is harmless.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, bytes as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Bytes that this user can still write below `path`.
pub(crate) fn free_bytes(path: &Path) -> Result<u64, Error> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid(format!("the path {} holds a NUL byte", path.display())))?;
    // SAFETY: `statvfs` is a plain C struct for which all zeros is a valid value.
    let mut status: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is a C string and `status` outlives the call.
    if unsafe { libc::statvfs(name.as_ptr(), &mut status) } != 0 {
        return Err(describe("look at the file system of", path, &io::Error::last_os_error()));
    }
    Ok(status.f_bavail * status.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_may_not_be_so_long_is_said_to_be_that() {
        let error = io::Error::from_raw_os_error(libc::EFBIG);
        let described = describe("write", Path::new("/f"), &error);
        assert_eq!(described.kind, ErrorKind::Io);
        assert!(described.message.contains("cannot write /f: File too large"), "{described}");
        let limited = too_large("write", Path::new("/f"), &error, Some(1024)).message;
        assert!(limited.ends_with("the first 1024 bytes of a file; raise that by ulimit -f"), "{limited}");
        let unlimited = too_large("write", Path::new("/f"), &error, None).message;
        assert!(unlimited.ends_with("choose another file system"), "{unlimited}");
    }
}
