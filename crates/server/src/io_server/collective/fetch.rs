//! Shares that the server reads directly from the memory of processes on its machine, in separate threads.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use outcore_core::{Buffer, DirectShare, Error, ErrorKind, MemoryOffer, PeerMemory, Result};

use crate::io_server::event::{Effect, Event};
use crate::io_server::shared::Shared;
use crate::io_server::wait::Slot;

/// The caller's memory, if the caller is a process on this machine whose memory the server may read.
pub type Caller<B> = Option<Arc<dyn PeerMemory<B>>>;

/// Copying threads, at most: more do not increase memory bandwidth.
const MOST_THREADS: usize = 4;

/// A transfer of a share from the memory of a process to a piece.
#[derive(Debug)]
pub struct Fetch<B> {
    /// The memory of the process.
    pub memory: Arc<dyn PeerMemory<B>>,
    /// The bytes to read, and their places in the buffer.
    pub share: DirectShare,
}

/// The result of several fetches: an error comes with the index of the fetch that failed.
pub type Fetched = std::result::Result<(), (usize, Error)>;

/// Performs some fetches into one buffer.
pub fn fetch<B: Buffer>(fetches: &[Fetch<B>], buffer: &mut B) -> Fetched {
    fetches.iter().enumerate().try_for_each(|(number, Fetch { memory, share })| {
        memory.read(&share.runs, buffer, &share.places).map_err(|error| (number, error))
    })
}

/// The arrays of a process, as the server accesses them.
#[derive(Clone, Debug)]
pub(crate) struct ReadArrays<B> {
    pub memory: Arc<dyn PeerMemory<B>>,
    pub offer: MemoryOffer,
}

impl<B: Buffer> Shared<B> {
    /// Performs some fetches. Nobody else may use the buffer until they are done.
    pub async fn fetch(&self, fetches: Vec<Fetch<B>>, buffer: B) -> Fetched {
        let (token, slot) = (self.token(), Slot::new());
        self.fetches.borrow_mut().insert(token, slot.clone());
        self.effects.borrow_mut().push(Effect::Fetch { token, fetches, buffer });
        slot.await
    }

    /// Accepts an offer of memory if the server finds the offered nonce at its address. Otherwise, because the
    /// system forbids it or the memory belongs to another process, shares come by messages.
    pub async fn accept(
        &self,
        offer: Option<MemoryOffer>,
        caller: Caller<B>,
    ) -> Result<Option<ReadArrays<B>>> {
        let (Some(offer), Some(memory)) = (offer, caller) else { return Ok(None) };
        let nonce = offer.nonce.to_le_bytes();
        let mut buffer = (self.make)(nonce.len())?;
        // The buffer starts with a different value, so a read that copies nothing does not pass.
        buffer.copy_in(0, &(!offer.nonce).to_le_bytes());
        let bytes = nonce.len() as u64;
        let share = DirectShare {
            runs: vec![outcore_core::ByteRun { start: offer.nonce_address, bytes }],
            places: vec![outcore_core::ByteRun { start: 0, bytes }],
        };
        let fetches = vec![Fetch { memory: memory.clone(), share }];
        let is_read = self.fetch(fetches, buffer.clone()).await.is_ok();
        let mut found = [0; 16];
        buffer.copy_out(0, &mut found);
        Ok((is_read && found == nonce).then_some(ReadArrays { memory, offer }))
    }
}

/// Work for the threads.
struct Job<B> {
    token: u64,
    fetches: Vec<Fetch<B>>,
    buffer: B,
}

/// Copying threads. The first fetch starts them; they end when this value is dropped.
pub(crate) struct Fetchers<B> {
    done: Arc<dyn Fn(Event<B>) + Send + Sync>,
    jobs: Option<Sender<Job<B>>>,
}

impl<B: Buffer> Fetchers<B> {
    /// The threads call `done` with each result.
    pub fn new(done: impl Fn(Event<B>) + Send + Sync + 'static) -> Self {
        Self { done: Arc::new(done), jobs: None }
    }

    /// Starts some fetches; `done` gets the result.
    pub fn begin(&mut self, token: u64, fetches: Vec<Fetch<B>>, buffer: B) {
        let job = Job { token, fetches, buffer };
        let jobs = match &self.jobs {
            Some(jobs) => jobs,
            None => match self.start() {
                Ok(jobs) => self.jobs.insert(jobs),
                Err(error) => {
                    let error =
                        Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; raise its limit"));
                    return (self.done)(Event::Fetched { token, result: Err((0, error)) });
                }
            },
        };
        // The threads live as long as the sender.
        let _ = jobs.send(job);
    }

    /// Starts one thread per processor, up to the limit, or as many as the system allows.
    fn start(&self) -> std::io::Result<Sender<Job<B>>> {
        let (sender, receiver) = channel();
        let receiver = Arc::new(Mutex::new(receiver));
        let count = thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
        for number in 0..count {
            let (receiver, done) = (receiver.clone(), self.done.clone());
            let thread = thread::Builder::new().name(format!("outcore-memory-{number}"));
            match thread.spawn(move || work(&receiver, &*done)) {
                Err(error) if number == 0 => return Err(error),
                _ => {}
            }
        }
        Ok(sender)
    }
}

fn work<B: Buffer>(jobs: &Mutex<Receiver<Job<B>>>, done: &dyn Fn(Event<B>)) {
    loop {
        let job = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { token, fetches, mut buffer }) = job else { return };
        let result = fetch(&fetches, &mut buffer);
        // The receiver of the event must be the only owner of the buffer.
        drop((fetches, buffer));
        done(Event::Fetched { token, result });
    }
}
