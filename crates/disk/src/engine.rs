//! A few threads per disk that perform blocking transfers.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use outcore_core::{Buffer, Clock};

use crate::short_reads::{MOST_READS, ShortReads};
use crate::small::{Direct, MOST_JOINED_BYTES, transfer_joined};
use crate::system::MonotonicClock;

/// Concurrent requests of one disk. More do not speed up a modern disk at transfers of megabytes, and each takes
/// some processor time from the solver.
pub const DEFAULT_THREADS: usize = 4;

/// A blocking transfer.
pub(crate) trait Job: Send {
    /// Performs the transfer.
    fn run(self: Box<Self>);

    /// The transfer, if it is direct, and so small that the engine may combine it with others.
    fn small(&self) -> Option<Direct<'_>> {
        None
    }

    /// Completes a transfer that moved `bytes` bytes and began at `started_ns`. The engine calls this only for
    /// small transfers that it combined.
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

    /// The next job, together with small ones that follow it in the queue: after a short read all short reads,
    /// after another small transfer those that continue it in its file. Empty at the end.
    fn next(&self) -> Vec<Box<dyn Job>> {
        let mut state = self.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                let mut jobs = vec![job];
                // One thread does not take more than its share of the queue.
                let most = (state.jobs.len() / 2).min(MOST_READS - 1);
                while jobs.len() <= most && state.jobs.front().is_some_and(|job| can_join(&jobs, &**job)) {
                    jobs.extend(state.jobs.pop_front());
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
        let jobs = queue.next();
        match jobs.len() {
            0 => return,
            1 => jobs.into_iter().for_each(Job::run),
            _ if jobs.iter().all(|job| is_short_read(&**job)) => {
                let context = short_reads.get_or_insert_with(ShortReads::new);
                read_together(context.as_ref(), jobs);
            }
            _ => move_joined(jobs),
        }
    }
}

fn is_short_read(job: &dyn Job) -> bool {
    job.small().is_some_and(|small| small.is_short_read())
}

/// Whether `next` can be combined with these jobs.
fn can_join(jobs: &[Box<dyn Job>], next: &dyn Job) -> bool {
    let last = jobs.last().and_then(|job| job.small());
    let (Some(last), Some(next)) = (last, next.small()) else { return false };
    if last.is_short_read() || next.is_short_read() {
        return last.is_short_read() && next.is_short_read();
    }
    let bytes: usize = jobs.iter().filter_map(|job| job.small()).map(|small| small.region.len()).sum();
    next.follows(&last) && bytes + next.region.len() <= MOST_JOINED_BYTES
}

/// Performs transfers of adjacent parts of a file by one system call.
fn move_joined(jobs: Vec<Box<dyn Job>>) {
    let started_ns = MonotonicClock.now_ns();
    let parts: Vec<Direct> = jobs.iter().filter_map(|job| job.small()).collect();
    let is_moved = parts.len() == jobs.len() && transfer_joined(&parts);
    let lengths: Vec<usize> = parts.iter().map(|part| part.region.len()).collect();
    drop(parts);
    for (number, job) in jobs.into_iter().enumerate() {
        // After an error or a short transfer, each job runs again and reports its own bytes.
        if is_moved { job.moved(lengths[number], started_ns) } else { job.run() }
    }
}

/// Performs short reads by one system call, if there is a context for it.
fn read_together(context: Option<&ShortReads>, jobs: Vec<Box<dyn Job>>) {
    let started_ns = MonotonicClock.now_ns();
    let moved = context.map_or_else(Vec::new, |context| {
        let reads: Vec<_> = jobs.iter().filter_map(|job| job.small()).collect();
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

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;
    use std::sync::mpsc::{Receiver, Sender, channel};

    use outcore_memory::{Arena, Region};

    use super::*;

    /// Occupies the only thread of an engine until the test has filled its queue.
    struct Wait(Receiver<()>);

    impl Job for Wait {
        fn run(self: Box<Self>) {
            let _ = self.0.recv();
        }
    }

    /// Sends its offset, its memory, and whether it was moved with others.
    struct Part {
        file: Arc<File>,
        offset: u64,
        write: bool,
        region: Region,
        done: Sender<(u64, bool, Region)>,
    }

    impl Job for Part {
        fn run(self: Box<Self>) {
            self.done.send((self.offset, false, self.region)).unwrap();
        }

        fn small(&self) -> Option<Direct<'_>> {
            let Self { file, offset, write, region, .. } = self;
            Some(Direct { file, region, offset: *offset, write: *write })
        }

        fn moved(self: Box<Self>, bytes: usize, _: u64) {
            assert_eq!(bytes, self.region.len());
            self.done.send((self.offset, true, self.region)).unwrap();
        }
    }

    const BYTES: usize = 128 << 10;

    fn filled(bytes: usize, with: impl Fn(usize) -> u8) -> Region {
        let mut region = Region::whole(Arc::new(Arena::new(1 << 20).allocate(bytes).unwrap()));
        region.copy_in(0, &(0..bytes).map(with).collect::<Vec<_>>());
        region
    }

    fn byte(at: usize) -> u8 {
        (at * 7 + at / 251) as u8
    }

    /// Queues parts of these files at these offsets. Returns which of them were moved with others, and their bytes.
    fn moved(parts: Vec<(Arc<File>, u64, bool, Region)>) -> Vec<(bool, Region)> {
        let engine = Engine::new(1).unwrap();
        let (go, wait) = channel();
        let (sender, receiver) = channel();
        engine.run(vec![Box::new(Wait(wait))]);
        let places: Vec<u64> = parts.iter().map(|part| part.1).collect();
        let job = |(file, offset, write, region)| -> Box<dyn Job> {
            Box::new(Part { file, offset, write, region, done: sender.clone() })
        };
        engine.run(parts.into_iter().map(job).collect());
        go.send(()).unwrap();
        let all: Vec<_> = receiver.iter().take(places.len()).collect();
        assert!(all.iter().map(|part| part.0).eq(places), "one thread keeps the order");
        all.into_iter().map(|(_, joined, region)| (joined, region)).collect()
    }

    #[test]
    fn adjacent_parts_of_a_file_are_moved_together() {
        let bytes: Vec<u8> = (0..16 * BYTES).map(byte).collect();
        for write in [true, false] {
            let file = Arc::new(tempfile::tempfile().unwrap());
            if !write {
                file.write_all_at(&bytes, 0).unwrap();
            }
            let part = |i: usize| {
                let region = filled(BYTES, |at| if write { byte(i * BYTES + at) } else { 0 });
                (file.clone(), (i * BYTES) as u64, write, region)
            };
            // The thread takes half of the queue at once: 8, 4 and 2 parts, then the last two.
            let found = moved((0..16).map(part).collect());
            let joined: Vec<bool> = found.iter().map(|(joined, _)| *joined).collect();
            assert_eq!(joined, [[true; 14].as_slice(), &[false; 2]].concat());
            if write {
                let mut content = vec![0; 14 * BYTES];
                file.read_exact_at(&mut content, 0).unwrap();
                assert!(content == bytes[..14 * BYTES]);
            }
            for (i, (_, region)) in found.iter().enumerate().take(14).filter(|_| !write) {
                let mut content = vec![0; BYTES];
                region.copy_out(0, &mut content);
                assert!(content == bytes[i * BYTES..(i + 1) * BYTES], "{i}");
            }
        }
    }

    #[test]
    fn other_parts_are_moved_one_by_one() {
        let files = [(); 2].map(|()| Arc::new(tempfile::tempfile().unwrap()));
        for file in &files {
            file.set_len(1 << 30).unwrap();
        }
        let part = |file: usize, at: usize, write| {
            (files[file].clone(), (at * BYTES) as u64, write, filled(BYTES, |_| 0))
        };
        // A gap, the same place again, the way back, another operation, another file.
        let places = [(0, 1, true), (0, 3, true), (0, 3, true), (0, 2, true), (0, 3, false), (1, 4, false)];
        let apart = places.into_iter().chain((0..20).map(|i| (0, 100 - 2 * i, true)));
        let found = moved(apart.map(|(file, at, write)| part(file, at, write)).collect());
        assert!(found.iter().all(|(joined, _)| !joined));
    }

    #[test]
    fn one_call_moves_a_bounded_number_of_bytes() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let part = |i: usize| (file.clone(), (i * BYTES) as u64, true, filled(BYTES, |_| 1));
        let jobs = (0..100).map(part).collect::<Vec<_>>();
        let parts: Vec<Box<dyn Job>> = jobs
            .into_iter()
            .map(|(file, offset, write, region)| -> Box<dyn Job> {
                Box::new(Part { file, offset, write, region, done: channel().0 })
            })
            .collect();
        let queue = Queue::default();
        queue.lock().jobs.extend(parts);
        assert_eq!(queue.next().len(), MOST_JOINED_BYTES / BYTES);
    }

    #[test]
    fn parts_that_cannot_be_moved_together_are_repeated_alone() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        file.set_len(3 * BYTES as u64).unwrap();
        let part = |i: usize| (file.clone(), (i * BYTES) as u64, false, filled(BYTES, |_| 1));
        let found = moved((0..8).map(part).collect());
        assert!(!found[0].0 && !found[1].0, "the first call meets the end of the file");
    }
}
