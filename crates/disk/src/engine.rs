//! A few threads per disk that perform blocking transfers.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use outcore_core::Clock;
use outcore_memory::Region;

use crate::short_reads::{MOST_READS, ShortReads};
use crate::system::MonotonicClock;

/// Concurrent requests of one disk. More do not speed up a modern disk at transfers of megabytes, and each takes
/// some processor time from the solver.
pub const DEFAULT_THREADS: usize = 4;

/// A blocking transfer.
pub(crate) trait Job: Send {
    /// Performs the transfer.
    fn run(self: Box<Self>);

    /// File, memory and offset, if this is a short direct read.
    fn short_read(&self) -> Option<(&File, &Region, u64)> {
        None
    }

    /// Completes a short read that moved `bytes` bytes and began at `started_ns`. The engine calls this only for
    /// short reads.
    fn moved(self: Box<Self>, bytes: usize, started_ns: u64) {
        let _ = (bytes, started_ns);
    }
}

#[derive(Default)]
struct State {
    jobs: VecDeque<Box<dyn Job>>,
    /// Threads that wait for a job.
    idle: usize,
    is_over: bool,
}

#[derive(Default)]
struct Queue {
    state: Mutex<State>,
    wake: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next job, together with the short reads that follow it if it is one. Empty at the end.
    fn next(&self) -> Vec<Box<dyn Job>> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let mut jobs = vec![job];
                // One thread does not take more than its share of the queue.
                let most = (state.jobs.len() / 2).min(MOST_READS - 1);
                if jobs[0].short_read().is_some() {
                    while jobs.len() <= most && state.jobs.front().is_some_and(|j| j.short_read().is_some()) {
                        jobs.extend(state.jobs.pop_front());
                    }
                }
                return jobs;
            }
            if state.is_over {
                return Vec::new();
            }
            state.idle += 1;
            state = self.wake.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}

/// The threads of one disk.
pub(crate) struct Engine {
    queue: Arc<Queue>,
    process: u32,
}

impl Engine {
    fn new(threads: usize) -> std::io::Result<Self> {
        let queue = Arc::<Queue>::default();
        let engine = Self { queue: queue.clone(), process: std::process::id() };
        for number in 0..threads.max(1) {
            let queue = queue.clone();
            thread::Builder::new().name(format!("outcore-disk-{number}")).spawn(move || work(&queue))?;
        }
        Ok(engine)
    }

    /// The threads of the disk with this device number. All users of a disk share them, which bounds its queue
    /// depth.
    pub(crate) fn shared(device: u64, threads: usize) -> std::io::Result<Arc<Self>> {
        type Registry = HashMap<(u32, u64, usize), Weak<Engine>>;
        static ENGINES: Mutex<Option<Registry>> = Mutex::new(None);
        let mut engines = ENGINES.lock().unwrap_or_else(PoisonError::into_inner);
        let engines = engines.get_or_insert_default();
        let key = (std::process::id(), device, threads);
        if let Some(engine) = engines.get(&key).and_then(Weak::upgrade) {
            return Ok(engine);
        }
        let engine = Arc::new(Self::new(threads)?);
        engines.insert(key, Arc::downgrade(&engine));
        Ok(engine)
    }

    /// Whether this is the process of the threads: they do not survive a fork.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn run(&self, jobs: Vec<Box<dyn Job>>) {
        let count = jobs.len();
        let mut state = self.queue.lock();
        state.jobs.extend(jobs);
        let wanted = state.idle.min(count);
        drop(state);
        for _ in 0..wanted {
            self.queue.wake.notify_one();
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_ours() {
            self.queue.lock().is_over = true;
            self.queue.wake.notify_all();
        }
    }
}

fn work(queue: &Queue) {
    let mut short_reads = None;
    loop {
        let mut jobs = queue.next();
        match jobs.len() {
            0 => return,
            1 => jobs.into_iter().for_each(Job::run),
            _ => {
                let context = short_reads.get_or_insert_with(ShortReads::new);
                read_together(context.as_ref(), std::mem::take(&mut jobs));
            }
        }
    }
}

/// Performs short reads by one system call, if there is a context for it.
fn read_together(context: Option<&ShortReads>, jobs: Vec<Box<dyn Job>>) {
    let started_ns = MonotonicClock.now_ns();
    let moved = context.map_or_else(Vec::new, |context| {
        let reads: Vec<_> = jobs.iter().filter_map(|job| job.short_read()).collect();
        context.read(&reads)
    });
    let done = moved.into_iter().chain(std::iter::repeat(None));
    for (job, bytes) in jobs.into_iter().zip(done) {
        match bytes {
            Some(bytes) => job.moved(bytes, started_ns),
            None => job.run(),
        }
    }
}
