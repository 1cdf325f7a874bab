//! Calls to the operating system that belong to no other file.

use std::io;
use std::mem::MaybeUninit;

use outcore_core::{Clock, Error, ErrorKind, Result};

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
    let signals = block_signals();
    let started = start()?;
    let mut which = 0;
    // SAFETY: the set is initialized, and `which` outlives the call.
    while unsafe { libc::sigwait(&signals, &mut which) } != 0 {}
    Ok(started)
}

/// Like [`wait_for_termination`], for a task that can also end by itself: returns early once `goes_on` is false, which
/// it asks a few times a second.
pub fn wait_while<T>(start: impl FnOnce() -> Result<T>, goes_on: impl Fn(&T) -> Result<bool>) -> Result<T> {
    let signals = block_signals();
    let started = start()?;
    let time = libc::timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    // SAFETY: the set is initialized, and `time` outlives the call, which allows a null pointer in place of the signal's details.
    while goes_on(&started)? && unsafe { libc::sigtimedwait(&signals, std::ptr::null_mut(), &time) } <= 0 {}
    Ok(started)
}

/// Blocks SIGTERM and SIGINT in this thread, and returns their set.
fn block_signals() -> libc::sigset_t {
    let mut signals = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigemptyset` initializes the set, which the other calls change and read.
    unsafe {
        libc::sigemptyset(signals.as_mut_ptr());
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGTERM);
        libc::sigaddset(signals.as_mut_ptr(), libc::SIGINT);
        libc::pthread_sigmask(libc::SIG_BLOCK, signals.as_ptr(), std::ptr::null_mut());
        signals.assume_init()
    }
}
