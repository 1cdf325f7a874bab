//! A few threads per disk that do blocking transfers for everybody.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

/// Requests that one disk works on at once. More do not help a modern disk at transfers of megabytes, and each
/// costs the solver a little of its cores.
pub const DEFAULT_THREADS: usize = 4;

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    jobs: Mutex<(VecDeque<Job>, bool)>,
    wake: Condvar,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, (VecDeque<Job>, bool)> {
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// The threads of the disk with this device number: all users of a disk share them, so that its queue depth is
    /// bounded whatever they do.
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

    /// Whether this is the process the threads run in; they do not survive a fork.
    pub(crate) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }

    pub(crate) fn run(&self, job: Job) {
        self.queue.lock().0.push_back(job);
        self.queue.wake.notify_one();
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if self.is_ours() {
            self.queue.lock().1 = true;
            self.queue.wake.notify_all();
        }
    }
}

fn work(queue: &Queue) {
    loop {
        let mut jobs = queue.lock();
        let job = loop {
            if let Some(job) = jobs.0.pop_front() {
                break job;
            }
            if jobs.1 {
                return;
            }
            jobs = queue.wake.wait(jobs).unwrap_or_else(PoisonError::into_inner);
        };
        drop(jobs);
        job();
    }
}
