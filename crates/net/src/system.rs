//! Calls to the operating system that belong to no other file.

use std::io;
use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::time::Instant;

use outcore_core::{Clock, Error, ErrorKind, Result};

/// The machine's monotonic clock. Its origin is the first use in this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct MonotonicClock;

impl Clock for MonotonicClock {
    fn now_ns(&self) -> u64 {
        static ORIGIN: OnceLock<Instant> = OnceLock::new();
        ORIGIN.get_or_init(Instant::now).elapsed().as_nanos() as u64
    }
}

/// Cryptographic random bytes.
pub(crate) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    // SAFETY: the call writes at most N bytes to an array of N.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if got != N as isize {
        let why = io::Error::last_os_error();
        return Err(Error::new(ErrorKind::Io, format!("the system gives no random numbers: {why}")));
    }
    Ok(bytes)
}

/// The user id of this process.
pub(crate) fn own_uid() -> u32 {
    // SAFETY: this call has no preconditions.
    unsafe { libc::geteuid() }
}

/// The user id of this process, and its group ids with the main one first.
pub(crate) fn own_ids() -> (u32, Vec<u32>) {
    // SAFETY: this call has no preconditions.
    let (uid, gid) = (own_uid(), unsafe { libc::getegid() });
    let mut gids = vec![0; 65_536];
    // SAFETY: the call writes at most as many group ids as the vector has.
    let count = unsafe { libc::getgroups(gids.len() as i32, gids.as_mut_ptr()) };
    gids.truncate(count.max(0) as usize);
    gids.retain(|g| *g != gid);
    gids.insert(0, gid);
    (uid, gids)
}

/// Blocks SIGTERM and SIGINT, calls `start`, and waits for one of the signals. Threads that `start` creates
/// also block the signals, so that this thread receives them. Returns the result of `start` after the signal.
pub fn wait_for_termination<T>(start: impl FnOnce() -> Result<T>) -> Result<T> {
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initializes the set that the other calls change and read.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut());
    }
    let started = start()?;
    let mut which = 0;
    // SAFETY: the set was initialized above, and `which` outlives the call.
    while unsafe { libc::sigwait(signals.as_ptr(), &mut which) } != 0 {}
    Ok(started)
}
