//! Calls of programs that concern locks, with two things that fuser 0.18 does not pass on: whether a call is flock(2), and
//! whether a signal interrupts it.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use fuser::{Errno, FileHandle, INodeNo, LockOwner, ReplyEmpty, ReplyLock, Request};
use outcore_core::{LockFamily, LockKind};

use crate::errors::Answer;
use crate::filesystem::PoolFilesystem;
use crate::lock_waits::Waiting;
use crate::locks::Locks;

/// Bytes of `struct fuse_in_header` in linux/fuse.h. In a call for a lock, `struct fuse_lk_in` follows.
const HEADER_BYTES: u64 = 40;
/// Bytes of `struct fuse_lk_in` up to its flags.
const LOCK_BYTES: usize = 40;
const FUSE_LK_FLOCK: u32 = 1;

/// A lock that a program wants.
#[derive(Clone, Copy)]
pub(crate) struct Wanted {
    pub number: INodeNo,
    /// The descriptor.
    pub handle: FileHandle,
    pub family: LockFamily,
    /// The process, or the open file of flock(2).
    pub owner: u64,
    pub process: u32,
    pub start: u64,
    pub end: u64,
    pub kind: LockKind,
}

impl Wanted {
    /// A lock of fcntl(2), as the kernel describes it.
    pub fn new(
        (number, handle, owner): (INodeNo, FileHandle, LockOwner),
        process: u32,
        (start, end): (u64, u64),
        kind: i32,
    ) -> Answer<Self> {
        let kind = match kind {
            libc::F_RDLCK => LockKind::Shared,
            libc::F_WRLCK => LockKind::Exclusive,
            libc::F_UNLCK => LockKind::None,
            _ => return Err(Errno::EINVAL),
        };
        Ok(Self { number, handle, family: LockFamily::Fcntl, owner: owner.0, process, start, end, kind })
    }

    /// This lock with the family of the call, fcntl(2) or flock(2). fuser gives a reference to the header of the
    /// request, and the fields of the lock behind it, but not their flags. The system reads these here, so that no
    /// `unsafe` code does. `ENOLCK` if fuser's memory is not as it is in version 0.18.
    pub fn of_call(self, request: &Request, kind: i32) -> Answer<Self> {
        let address = std::ptr::from_ref(request).addr() as u64;
        let mut found = [0; LOCK_BYTES + 4];
        let memory = File::open("/proc/self/mem");
        let read = memory.and_then(|memory| memory.read_exact_at(&mut found, address + HEADER_BYTES));
        let mut known = vec![];
        for field in [self.handle.0, self.owner, self.start, self.end] {
            known.extend(field.to_ne_bytes());
        }
        known.extend(kind.to_ne_bytes());
        known.extend(self.process.to_ne_bytes());
        let (fields, flags) = found.split_at(LOCK_BYTES);
        if read.is_err() || fields != known {
            return Err(Errno::ENOLCK);
        }
        let is_flock =
            flags.first_chunk().is_some_and(|flags| u32::from_ne_bytes(*flags) & FUSE_LK_FLOCK != 0);
        Ok(Self { family: if is_flock { LockFamily::Flock } else { LockFamily::Fcntl }, ..self })
    }
}

impl PoolFilesystem {
    /// The effect of a granted lock: the program sees all that other mounts wrote under theirs, to any file.
    fn granted(&self) -> impl Fn() + Send + use<> {
        let (refresh, notifier, shown) =
            (self.tree.files.refresher(), self.notifier.clone(), self.shown.clone());
        move || {
            refresh();
            let Some(notifier) = notifier.get() else { return };
            for number in shown.take() {
                // The kernel drops the attributes. It may have forgotten the file.
                let _ = notifier.inval_inode(number, -1, 0);
            }
        }
    }

    /// Refuses to use a file for a program that has lost locks on it.
    pub fn check_locks(&self, number: INodeNo, handle: FileHandle, owner: Option<LockOwner>) -> Answer<()> {
        let check = |locks: &Arc<Locks>| locks.check(number, handle, owner.map(|owner| owner.0));
        self.locks.as_ref().map_or(Ok(()), check)
    }

    /// Answers with the lock that would exclude another.
    pub fn test_lock(&self, wanted: Answer<Wanted>, reply: ReplyLock) {
        let Some(locks) = &self.locks else { return reply.error(Errno::ENOLCK) };
        match wanted {
            Ok(wanted) => locks.test(&wanted, reply),
            Err(error) => reply.error(error),
        }
    }

    /// Takes or removes a lock for a thread of a program, which `sleeps` until it gets the lock.
    pub fn set_lock(&self, wanted: Answer<Wanted>, thread: u32, sleeps: bool, reply: ReplyEmpty) {
        let Some(locks) = &self.locks else { return reply.error(Errno::ENOLCK) };
        let wanted = match wanted {
            Ok(wanted) => wanted,
            Err(error) => return reply.error(error),
        };
        // Others see what the program wrote under the lock that it releases, also to other files.
        self.tree.files.settle_all();
        match locks.set(&wanted) {
            Ok(true) => {
                if wanted.kind != LockKind::None {
                    self.granted()();
                }
                reply.ok();
            }
            Ok(false) if sleeps => {
                let granted = Box::new(self.granted());
                locks.wait(Waiting { wanted, thread, granted, reply });
            }
            Ok(false) => reply.error(Errno::EAGAIN),
            Err(error) => reply.error(error),
        }
    }

    /// Removes the locks that end when a process closes a descriptor.
    pub fn flushed_locks(&self, number: INodeNo, handle: FileHandle, owner: LockOwner) -> Answer<()> {
        let Some(locks) = &self.locks else { return Ok(()) };
        if locks.ends_at_flush(number, owner.0) {
            self.tree.files.settle_all();
        }
        let unlocked = locks.flushed(number, owner.0);
        // The last close cannot report a loss of the locks that it ends.
        unlocked.and(self.check_locks(number, handle, None))
    }

    /// Removes the locks that end at the last close of a descriptor.
    pub fn closed_locks(&self, number: INodeNo, handle: FileHandle) -> Answer<()> {
        let Some(locks) = &self.locks else { return Ok(()) };
        if locks.ends_at_close(number, handle) {
            self.tree.files.settle_all();
        }
        locks.closed(number, handle)
    }
}

/// Whether a signal waits for a thread of a program; `None` if this process cannot see that. The kernel would send
/// FUSE_INTERRUPT, but fuser answers that it does not know it.
pub(crate) fn is_interrupted(thread: u32) -> Option<bool> {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let signals = |name: &str| u64::from_str_radix(field(name)?, 16).ok();
    let (of_thread, of_process, blocked) = (signals("SigPnd:")?, signals("ShdPnd:")?, signals("SigBlk:")?);
    // Signals to a process go to its first thread, unless that blocks them. Other threads that wait must not answer
    // for it: the kernel would return the number of an error that programs do not know.
    let process = field("Tgid:")?;
    let of_process = if process.parse() == Ok(thread) {
        of_process
    } else {
        let first = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let blocked = first.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
        of_process & u64::from_str_radix(blocked.trim(), 16).ok()?
    };
    Some((of_thread | of_process) & !blocked != 0)
}
