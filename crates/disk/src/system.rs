//! System calls, and the translation of their errors.

use std::cell::RefCell;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use outcore_core::{Alignment, Clock, DiskSize, Error, ErrorKind};
use outcore_memory::Region;

/// Runs of memory in one transfer, at most.
const MOST_RUNS: usize = 1024;

/// Runs of memory in one vectored call, at most.
///
/// A disk takes about 127 (NVMe) or 254 (virtual disks) runs in one request. A call with slightly more becomes a
/// large request and a tiny one. On a virtual disk each of them waits until the queue has room for all its runs,
/// and others take that room first. With 256 runs per call, some writes took 100 ms, and all writes together took
/// a third longer than with 128.
pub(crate) const MOST_RUNS_AT_ONCE: usize = 128;

/// The machine's monotonic clock, which all of its processes share: their traces have one axis of time.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `now` is a valid structure to write to.
        let failed = unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
        // The call fails only for a clock that the system lacks, and Linux has this one.
        debug_assert_eq!(failed, 0);
        now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
    }
}

/// The same moment by [`MonotonicClock`], and by the machine's clock in nanoseconds since 1970. A thread that the system
/// interrupts between the two reads tries again.
pub fn clocks() -> (u64, u64) {
    const TRIES: usize = 16;
    const CLOSE_NS: u64 = 20_000;
    let mut best = (u64::MAX, 0, 0);
    for _ in 0..TRIES {
        let before_ns = MonotonicClock.now_ns();
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let apart_ns = MonotonicClock.now_ns() - before_ns;
        let unix_ns = u64::try_from(unix.as_nanos()).unwrap_or(u64::MAX);
        best = best.min((apart_ns, before_ns + apart_ns / 2, unix_ns));
        if apart_ns <= CLOSE_NS {
            break;
        }
    }
    (best.1, best.2)
}

/// The umask of this process. It is read from `/proc`, because the system call would also set it, for other
/// threads too.
pub fn umask() -> u32 {
    const USUAL: u32 = 0o022;
    thread_local! {
        // Opening the file takes as long as reading it, so it stays open. After a fork it would still describe the
        // parent process.
        static STATUS: RefCell<Option<(u32, File)>> = const { RefCell::new(None) };
    }
    let process = std::process::id();
    let mut text = [0; 256];
    let read = STATUS.with_borrow_mut(|status| {
        if status.as_ref().is_none_or(|(of, _)| *of != process) {
            *status = File::open("/proc/self/status").ok().map(|file| (process, file));
        }
        status.as_ref().and_then(|(_, file)| file.read_at(&mut text, 0).ok())
    });
    mask_in(&text[..read.unwrap_or(0)]).unwrap_or(USUAL)
}

/// The umask in the first lines of a process's status.
fn mask_in(status: &[u8]) -> Option<u32> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"Umask:"))?;
    u32::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 8).ok()
}

/// Refuses a pipe, since opening it would wait for another process.
pub(crate) fn check_kind(path: &Path) -> io::Result<()> {
    let is_pipe = path.metadata().is_ok_and(|found| found.file_type().is_fifo());
    if is_pipe { Err(io::Error::other("it is a pipe, and no file")) } else { Ok(()) }
}

/// Translates an error of the operating system.
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
        Some(libc::EMFILE | libc::ENFILE) => {
            (ErrorKind::Io, "close files and connections of this process, or raise its limit by ulimit -n")
        }
        Some(libc::EFBIG) => return too_large(doing, path, error, most_file_bytes()),
        _ => (ErrorKind::Io, "check the disk and the system log"),
    };
    Error::new(kind, format!("cannot {doing} {}: {error}; {fix}", path.display()))
}

/// Maximum length in bytes of a file that this process may write; `None` if only the file system limits it.
fn most_file_bytes() -> Option<u64> {
    limit_of(libc::RLIMIT_FSIZE)
}

/// Maximum number of open files, including sockets, of this process.
pub fn most_open_files() -> usize {
    limit_of(libc::RLIMIT_NOFILE).map_or(usize::MAX, |most| most as usize)
}

/// A resource limit of this process; `None` if it is unlimited.
fn limit_of(resource: libc::__rlimit_resource_t) -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: libc::RLIM_INFINITY, rlim_max: libc::RLIM_INFINITY };
    // SAFETY: the call writes only to `limit`, which has the layout that it expects.
    let failed = unsafe { libc::getrlimit(resource, &raw mut limit) };
    (failed == 0 && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

/// The error for a file that would exceed the limit of the process or of its file system.
fn too_large(doing: &str, path: &Path, error: &io::Error, most_bytes: Option<u64>) -> Error {
    let why = most_bytes.map_or_else(
        || "its file system has no files that long; choose another file system".to_owned(),
        |most| format!("this process may write to the first {most} bytes of a file; raise that by ulimit -f"),
    );
    Error::new(ErrorKind::Io, format!("cannot {doing} {}: {error}; {why}", path.display()))
}

/// Alignment for direct I/O, as `statx` reports it; `None` if the file system does not support direct I/O on this
/// file.
///
/// Linux before 6.1 does not report it. Then offsets that are multiples of 4096, and memory aligned to the disk's
/// logical blocks, suffice.
pub(crate) fn direct_alignment(file: &File) -> Option<Alignment> {
    // SAFETY: `statx` is a plain C struct for which all zeros is a valid value.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: the path is an empty C string, used with AT_EMPTY_PATH on an open descriptor; `status` outlives the call.
    let failed = unsafe {
        libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, libc::STATX_DIOALIGN, &mut status)
    };
    if failed != 0 || status.stx_mask & libc::STATX_DIOALIGN == 0 {
        let memory_bytes = file.metadata().ok().and_then(|m| logical_block_bytes(m.dev())).unwrap_or(4096);
        return Some(Alignment { offset_bytes: 4096, memory_bytes });
    }
    match (status.stx_dio_offset_align, status.stx_dio_mem_align) {
        (0, _) | (_, 0) => None,
        (offset, memory) => {
            let memory_bytes = u64::from(memory);
            Some(Alignment { offset_bytes: u64::from(offset).max(memory_bytes), memory_bytes })
        }
    }
}

/// Size of the logical blocks of a disk, in bytes; `None` if the device is not a single disk, or the blocks are
/// larger than 4096 bytes.
fn logical_block_bytes(device: u64) -> Option<u64> {
    let of = format!("/sys/dev/block/{}:{}", libc::major(device), libc::minor(device));
    // For a partition, the directory above describes its disk.
    let found = ["queue", "../queue"].iter().find_map(|queue| {
        std::fs::read_to_string(format!("{of}/{queue}/logical_block_size")).ok()?.trim().parse().ok()
    });
    found.filter(|bytes: &u64| bytes.is_power_of_two() && (512..=4096).contains(bytes))
}

/// The first runs of memory of a region, in the form that system calls take.
pub(crate) fn vectors(region: &Region) -> Vec<libc::iovec> {
    let runs = region.pointers().take(MOST_RUNS);
    runs.map(|(start, bytes)| libc::iovec { iov_base: start.cast(), iov_len: bytes }).collect()
}

/// Reads or writes a region, with several calls if it has many runs. May transfer fewer bytes than requested.
pub(crate) fn transfer(file: &File, region: &Region, offset: u64, write: bool) -> io::Result<usize> {
    transfer_runs(file, &vectors(region), offset, write)
}

/// Reads or writes runs of memory, with several calls if there are many. May transfer fewer bytes than requested.
pub(crate) fn transfer_runs(
    file: &File,
    runs: &[libc::iovec],
    offset: u64,
    write: bool,
) -> io::Result<usize> {
    let calls = runs.len().div_ceil(MOST_RUNS_AT_ONCE).max(1);
    let mut moved = 0;
    // Calls of equal size: a call with a few remaining runs would cost as much as a full one.
    for part in runs.chunks(runs.len().div_ceil(calls).max(1)) {
        let bytes: usize = part.iter().map(|run| run.iov_len).sum();
        match transfer_once(file, part, offset + moved as u64, write) {
            Ok(some) if some == bytes => moved += bytes,
            Ok(some) => return Ok(moved + some),
            // A later call for the rest reports the error.
            Err(_) if moved > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(moved)
}

/// Performs one `preadv` or `pwritev`.
fn transfer_once(file: &File, runs: &[libc::iovec], offset: u64, write: bool) -> io::Result<usize> {
    let offset = i64::try_from(offset).map_err(|_| io::Error::from_raw_os_error(libc::EINVAL))?;
    loop {
        let call = if write { libc::pwritev } else { libc::preadv };
        // SAFETY: each run lies in the block of a region (checked when the region was created), which the caller
        // keeps alive during the call.
        let moved = unsafe { call(file.as_raw_fd(), runs.as_ptr(), runs.len() as i32, offset) };
        if moved >= 0 {
            return Ok(moved as usize);
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

/// Reserves disk space for `bytes` bytes of `file`. File systems without support for that reserve nothing.
pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Ok(()); // the system call refuses 0 bytes
    }
    // SAFETY: a plain system call on an open descriptor.
    let failed = unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, bytes as i64) };
    let error = io::Error::last_os_error();
    if failed == 0 || matches!(error.raw_os_error(), Some(libc::EOPNOTSUPP | libc::ENOSYS)) {
        return Ok(());
    }
    Err(error)
}

/// Drops the pages of a range from the page cache, since they will not be read again and would displace others.
pub(crate) fn drop_cached(file: &File, offset: u64, bytes: u64) {
    // SAFETY: advice on an open descriptor; its failure is harmless.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), offset as i64, bytes as i64, libc::POSIX_FADV_DONTNEED) };
}

/// Size of the machine's memory in bytes.
pub(crate) fn memory_bytes() -> u64 {
    // SAFETY: `sysconf` only returns numbers.
    let [pages, page] = unsafe { [libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)] };
    u64::try_from(pages).unwrap_or(0) * u64::try_from(page).unwrap_or(0)
}

/// Bytes that this user can still write below `path`.
pub(crate) fn free_bytes(path: &Path) -> Result<u64, Error> {
    file_system(path).map(|status| status.f_bavail * status.f_frsize)
}

/// Size in bytes of the file system that contains `path`.
pub(crate) fn total_bytes(path: &Path) -> Result<u64, Error> {
    file_system(path).map(|status| status.f_blocks * status.f_frsize)
}

/// Size of the file system that contains `path`.
pub(crate) fn size(path: &Path) -> Result<DiskSize, Error> {
    file_system(path).map(|status| DiskSize {
        total_bytes: status.f_blocks * status.f_frsize,
        total_files: status.f_files,
        free_files: status.f_favail,
    })
}

fn file_system(path: &Path) -> Result<libc::statvfs, Error> {
    use std::os::unix::ffi::OsStrExt;
    let name = std::ffi::CString::new(path.as_os_str().as_bytes())
        .map_err(|_| Error::invalid(format!("the path {} holds a NUL byte", path.display())))?;
    // SAFETY: `statvfs` is a plain C struct for which all zeros is a valid value.
    let mut status: libc::statvfs = unsafe { std::mem::zeroed() };
    // SAFETY: `name` is a C string and `status` outlives the call.
    if unsafe { libc::statvfs(name.as_ptr(), &mut status) } != 0 {
        return Err(describe("look at the file system of", path, &io::Error::last_os_error()));
    }
    Ok(status)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::OpenOptionsExt;
    use std::sync::Arc;

    use outcore_core::Buffer;
    use outcore_memory::{Arena, Segment};

    use super::*;

    /// A region of this many runs of 3 bytes, with gaps between them.
    fn scattered(runs: usize) -> Region {
        let block = Arc::new(Arena::new(1 << 20).allocate(5 * runs).unwrap());
        Region::new(block, (0..runs).map(|i| Segment { offset: 5 * i, bytes: 3 }).collect()).unwrap()
    }

    #[test]
    fn memory_for_direct_transfers_is_aligned_as_blocks_of_the_disk() {
        let named = tempfile::NamedTempFile::new().unwrap();
        let Some(block) = logical_block_bytes(named.as_file().metadata().unwrap().dev()) else {
            return; // not a single disk
        };
        named.as_file().write_all_at(&[7; 8192], 0).unwrap();
        let direct = File::options().read(true).custom_flags(libc::O_DIRECT).open(named.path()).unwrap();
        let memory = Arc::new(Arena::new(1 << 20).allocate(16384).unwrap());
        let region = Region::new(memory, vec![Segment { offset: block as usize, bytes: 8192 }]).unwrap();
        assert_eq!(transfer(&direct, &region, 0, false).unwrap(), 8192);
    }

    #[test]
    fn many_runs_are_moved_by_several_calls() {
        for runs in [1, 127, 128, 129, 256, 300, MOST_RUNS] {
            let file = tempfile::tempfile().unwrap();
            let bytes: Vec<u8> = (0..3 * runs as u32).map(|i| (i * 7 + i / 251) as u8).collect();
            let mut given = scattered(runs);
            given.copy_in(0, &bytes);
            assert_eq!(transfer(&file, &given, 11, true).unwrap(), bytes.len());
            let content = std::fs::read(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
            assert!(content[11..] == bytes, "{runs}");

            let taken = scattered(runs);
            assert_eq!(transfer(&file, &taken, 11, false).unwrap(), bytes.len());
            let mut found = vec![0; bytes.len()];
            taken.copy_out(0, &mut found);
            assert!(found == bytes, "{runs}");

            // The file ends in the middle of the runs, and exactly at the end of one call.
            for left in [bytes.len() / 2 + 1, bytes.len().min(3 * MOST_RUNS_AT_ONCE), 0] {
                file.set_len(11 + left as u64).unwrap();
                assert_eq!(transfer(&file, &taken, 11, false).unwrap(), left);
            }
        }
    }

    #[test]
    fn a_call_that_fails_after_others_leaves_its_bytes_to_the_next_try() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let file = File::options().write(true).open(&path).unwrap();
        // All runs except the last are valid memory of this process.
        let region = scattered(2 * MOST_RUNS_AT_ONCE);
        let mut given = vectors(&region);
        given.last_mut().unwrap().iov_base = std::ptr::null_mut();
        let moved = transfer_runs(&file, &given, 0, true).unwrap();
        assert!((3 * MOST_RUNS_AT_ONCE..6 * MOST_RUNS_AT_ONCE).contains(&moved), "{moved}");
        let none = transfer_runs(&file, &given[given.len() - 1..], 0, true).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::EFAULT));
    }

    #[test]
    fn the_mask_is_found_in_the_first_lines_of_a_status() {
        assert_eq!(mask_in(b"Name:\ta program\nUmask:\t0077\nState:\tR (running)\nTg"), Some(0o077));
        assert_eq!(mask_in(b"Name:\tUmask:\nUmask:\t1\n"), Some(1));
        assert_eq!(mask_in(b"Name:\ta program\nState:\tR"), None);
        assert_eq!(mask_in(b""), None);
    }

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
