//! Freeing the space of large removed files in the background. Freeing takes as long as the disk needs to discard
//! blocks, and concurrent syncs wait for it. It therefore happens in small steps, with pauses.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::{ErrorKind, Result};

/// Smaller files are freed immediately.
pub(crate) const LEAST_BYTES: u64 = 8 << 20;
/// Bytes freed in one step.
const STEP_BYTES: u64 = 4 << 20;
/// A pause lasts this many times as long as the step before it, up to the limit below.
const PAUSE: u32 = 3;
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// Queued files, at most. A caller with another one waits.
const MOST_FILES: usize = 64;

/// How to free the space of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    /// Truncate it in small steps. Nobody uses the file.
    Shorten,
    /// Close it. While other users have it open, all of it stays on the disk.
    Close,
}

#[derive(Default)]
struct State {
    /// Each file with its size in bytes when it was queued; other users of the file may change that.
    waiting: VecDeque<(File, Then, u64)>,
    /// Number of queued files and their bytes to be freed, including the current file.
    files: usize,
    bytes: u64,
    came: u64,
    has_thread: bool,
    /// Callers that wait for free space. While there are any, the thread makes no pauses.
    in_a_hurry: usize,
}

/// The queue of files to be freed on one disk.
pub(crate) struct Freeing {
    state: Mutex<State>,
    changed: Condvar,
    /// Number of files done.
    done: AtomicU64,
    process: u32,
}

impl Freeing {
    /// The queue of the disk with this device number. All its users in this process share it.
    pub(crate) fn shared(device: u64) -> Arc<Self> {
        type Registry = HashMap<(u32, u64), Weak<Freeing>>;
        static ALL: Mutex<Option<Registry>> = Mutex::new(None);
        let mut all = ALL.lock().unwrap_or_else(PoisonError::into_inner);
        let known = all.get_or_insert_default();
        let key = (std::process::id(), device);
        if let Some(freeing) = known.get(&key).and_then(Weak::upgrade) {
            return freeing;
        }
        let freeing = Arc::new(Self::new());
        known.insert(key, Arc::downgrade(&freeing));
        freeing
    }

    fn new() -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        Self { state, changed, done: AtomicU64::new(0), process: std::process::id() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_on<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        self.changed.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Frees the space of a durably removed file that is open for writing.
    pub(crate) fn give_back(self: &Arc<Self>, file: File, then: Then) {
        let Ok(status) = file.metadata() else { return };
        // The file may have another hard link.
        if status.nlink() > 0 || !self.is_ours() {
            return;
        }
        let mut state = self.state();
        state.in_a_hurry += 1;
        while state.files >= MOST_FILES {
            self.changed.notify_all();
            state = self.wait_on(state);
        }
        state.in_a_hurry -= 1;
        if !state.has_thread {
            let freeing = self.clone();
            let spawned = thread::Builder::new().name("outcore-freeing".into()).spawn(move || freeing.work());
            if spawned.is_err() {
                // Closing the file frees its space.
                return;
            }
            state.has_thread = true;
        }
        state.files += 1;
        state.came += 1;
        let bytes = status.blocks() * 512;
        state.bytes += bytes;
        state.waiting.push_back((file, then, bytes));
    }

    fn work(&self) {
        let mut state = self.state();
        while let Some((file, then, bytes)) = state.waiting.pop_front() {
            drop(state);
            self.end(file, then, bytes);
            state = self.state();
            state.files -= 1;
            self.done.fetch_add(1, Ordering::Release);
            self.changed.notify_all();
        }
        state.has_thread = false;
    }

    fn end(&self, file: File, then: Then, bytes: u64) {
        let look = || file.metadata().map_or((0, 0), |status| (status.len(), status.blocks() * 512));
        let (mut length, mut left) = (look().0, bytes);
        if then == Then::Close {
            // Closing cannot be done in steps. A delay lets syncs finish that directly follow the removal.
            self.pause(self.state(), LONGEST_PAUSE);
        }
        while then == Then::Shorten && length > 0 {
            let began = Instant::now();
            length = length.saturating_sub(STEP_BYTES);
            if file.set_len(length).is_err() {
                break;
            }
            let now = look().1.min(left);
            let mut state = self.state();
            state.bytes -= left - now;
            left = now;
            self.pause(state, (PAUSE * began.elapsed()).min(LONGEST_PAUSE));
        }
        // The rest is freed when the last user closes the file.
        drop(file);
        self.state().bytes -= left;
    }

    /// Waits, unless callers wait for free space.
    fn pause(&self, state: MutexGuard<'_, State>, pause: Duration) {
        let waited = self.changed.wait_timeout_while(state, pause, |state| state.in_a_hurry == 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    /// Bytes still to be freed.
    pub(crate) fn bytes(&self) -> u64 {
        if self.is_ours() { self.state().bytes } else { 0 }
    }

    /// Returns once all files queued before this call are freed. The result says whether there were any.
    pub(crate) fn wait(&self) -> bool {
        if !self.is_ours() {
            return false;
        }
        let mut state = self.state();
        let (came, had_some) = (state.came, state.files > 0);
        state.in_a_hurry += 1;
        self.changed.notify_all();
        while self.done() < came {
            state = self.wait_on(state);
        }
        state.in_a_hurry -= 1;
        had_some
    }

    /// Performs work that needs disk space. If the disk is full, waits until the files queued earlier are freed,
    /// and retries once.
    pub(crate) fn with_room<T>(&self, work: impl Fn() -> Result<T>) -> Result<T> {
        let done = self.done();
        match work() {
            Err(error) if error.kind == ErrorKind::DiskFull && (self.wait() || self.done() > done) => work(),
            result => result,
        }
    }

    fn done(&self) -> u64 {
        self.done.load(Ordering::Acquire)
    }

    /// Whether this is the process of the thread: it does not survive a fork.
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    use super::*;
    use crate::system::reserve;
    use outcore_core::Error;

    const PATIENCE: Duration = Duration::from_secs(120);

    /// A file of this size. It is removed unless it keeps its name.
    fn file(bytes: u64, has_name: bool) -> (tempfile::NamedTempFile, File) {
        let named = tempfile::NamedTempFile::new().unwrap();
        reserve(named.as_file(), bytes).unwrap();
        let file = named.reopen().unwrap();
        if !has_name {
            std::fs::remove_file(named.path()).unwrap();
        }
        (named, file)
    }

    fn length(named: &tempfile::NamedTempFile) -> u64 {
        named.as_file().metadata().unwrap().len()
    }

    /// A queue whose thread never runs, as if it were busy.
    fn held() -> Arc<Freeing> {
        let freeing = Arc::new(Freeing::new());
        freeing.state().has_thread = true;
        freeing
    }

    fn work(freeing: &Arc<Freeing>) -> thread::JoinHandle<()> {
        let freeing = freeing.clone();
        thread::spawn(move || freeing.work())
    }

    #[test]
    fn room_is_given_back_of_what_has_no_name() {
        let freeing = held();
        let (named, kept) = file(3 * STEP_BYTES / 2, true);
        freeing.give_back(kept, Then::Shorten);
        assert_eq!((freeing.bytes(), freeing.wait()), (0, false));
        assert_eq!(length(&named), 3 * STEP_BYTES / 2, "another name");
        let (removed, given) = file(3 * STEP_BYTES / 2, false);
        freeing.give_back(given, Then::Shorten);
        assert!(freeing.bytes() >= 3 * STEP_BYTES / 2);
        let working = work(&freeing);
        assert!(freeing.wait() || freeing.done() == 1);
        assert_eq!((length(&removed), freeing.bytes(), freeing.wait()), (0, 0, false));
        working.join().unwrap();
        // A new thread replaces the one that ended.
        let (again, given) = file(STEP_BYTES, false);
        freeing.give_back(given, Then::Shorten);
        freeing.wait();
        assert_eq!((length(&again), freeing.bytes(), freeing.done()), (0, 0, 2));
    }

    #[test]
    fn who_has_a_file_open_that_was_closed_keeps_all_of_it() {
        let freeing = held();
        let (removed, given) = file(3 * STEP_BYTES / 2, false);
        freeing.give_back(given, Then::Close);
        assert!(freeing.bytes() >= 3 * STEP_BYTES / 2);
        work(&freeing).join().unwrap();
        assert_eq!((length(&removed), freeing.bytes(), freeing.done()), (3 * STEP_BYTES / 2, 0, 1));
    }

    #[test]
    fn a_file_that_grows_before_it_is_closed_counts_as_it_came() {
        for length in [0, 9 * STEP_BYTES] {
            let freeing = held();
            let (removed, given) = file(STEP_BYTES, false);
            freeing.give_back(given, Then::Close);
            removed.as_file().set_len(0).unwrap();
            reserve(removed.as_file(), length.max(1)).unwrap();
            work(&freeing).join().unwrap();
            assert_eq!((freeing.bytes(), freeing.done()), (0, 1));
        }
    }

    #[test]
    fn who_finds_no_room_tries_once_more_when_there_is_all_of_it() {
        for (kind, is_pending, times) in
            [(ErrorKind::DiskFull, false, 1), (ErrorKind::Io, true, 1), (ErrorKind::DiskFull, true, 2)]
        {
            let (freeing, tries) = (held(), Cell::new(0));
            let (removed, given) = file(STEP_BYTES, false);
            if is_pending {
                freeing.give_back(given, Then::Shorten);
            }
            let working = Cell::new(None);
            let failed = freeing.with_room(|| {
                tries.set(tries.get() + 1);
                if tries.get() == 1 {
                    working.set(Some(work(&freeing)));
                } else {
                    assert_eq!((length(&removed), freeing.bytes()), (0, 0));
                }
                Err::<(), Error>(Error::new(kind, "no"))
            });
            assert_eq!((failed.unwrap_err().kind, tries.get()), (kind, times));
            working.take().unwrap().join().unwrap();
        }
    }

    #[test]
    fn what_was_given_back_between_a_failure_and_the_look_at_it_counts() {
        let (freeing, tries) = (held(), Cell::new(0));
        freeing.give_back(file(STEP_BYTES, false).1, Then::Shorten);
        let failed = freeing.with_room(|| {
            tries.set(tries.get() + 1);
            freeing.work();
            Err::<(), Error>(Error::new(ErrorKind::DiskFull, "no"))
        });
        assert_eq!((failed.unwrap_err().kind, tries.get()), (ErrorKind::DiskFull, 2));
    }

    #[test]
    fn few_files_wait() {
        let freeing = held();
        for _ in 0..MOST_FILES {
            freeing.give_back(file(4096, false).1, Then::Close);
        }
        let (sender, is_done) = channel();
        let other = freeing.clone();
        let waiting = thread::spawn(move || {
            other.give_back(file(4096, false).1, Then::Close);
            sender.send(()).unwrap();
        });
        assert!(is_done.recv_timeout(Duration::from_millis(50)).is_err(), "it waits for one of them");
        assert_eq!(freeing.state().files, MOST_FILES);
        let working = work(&freeing);
        is_done.recv_timeout(PATIENCE).unwrap();
        waiting.join().unwrap();
        working.join().unwrap();
        freeing.wait();
        assert_eq!((freeing.bytes(), freeing.done()), (0, MOST_FILES as u64 + 1));
    }
}
