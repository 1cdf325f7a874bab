//! Shares that the server reads from the memory of processes on its machine, by threads of their own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use outcore_core::{Buffer, DirectShare, Error, ErrorKind, MemoryOffer, PeerMemory, Result};

use super::event::{Effect, Event};
use super::shared::Shared;
use super::wait::Slot;

/// The memory of who calls, if it is a process on this machine that the server may read.
pub type Caller<B> = Option<Arc<dyn PeerMemory<B>>>;

/// Most threads that copy: more than this do not fill memory's bandwidth better.
const MOST_THREADS: usize = 4;

/// A share on its way from the memory of a process to a piece.
#[derive(Debug)]
pub struct Fetch<B> {
    /// Whose memory.
    pub memory: Arc<dyn PeerMemory<B>>,
    /// Which bytes of it, and where they go.
    pub share: DirectShare,
}

/// What came of some fetches: an error, with the number of the one that failed.
pub type Fetched = std::result::Result<(), (usize, Error)>;

/// Does some fetches, all into one buffer.
pub fn fetch<B: Buffer>(fetches: &[Fetch<B>], buffer: &mut B) -> Fetched {
    fetches.iter().enumerate().try_for_each(|(number, Fetch { memory, share })| {
        memory.read(&share.runs, buffer, &share.places).map_err(|error| (number, error))
    })
}

/// The arrays of a process, as the server reads them.
#[derive(Clone, Debug)]
pub(super) struct ReadArrays<B> {
    pub memory: Arc<dyn PeerMemory<B>>,
    pub offer: MemoryOffer,
}

impl<B: Buffer> Shared<B> {
    /// Does some fetches; the buffer is not used otherwise until then.
    pub async fn fetch(&self, fetches: Vec<Fetch<B>>, buffer: B) -> Fetched {
        let (token, slot) = (self.token(), Slot::new());
        self.fetches.borrow_mut().insert(token, slot.clone());
        self.effects.borrow_mut().push(Effect::Fetch { token, fetches, buffer });
        slot.await
    }

    /// Whether what a process offers is read: if the server finds the number there that it says. Where the system does not
    /// allow it, or it is not the memory of that process, shares come by messages.
    pub async fn accept(
        &self,
        offer: Option<MemoryOffer>,
        caller: Caller<B>,
    ) -> Result<Option<ReadArrays<B>>> {
        let (Some(offer), Some(memory)) = (offer, caller) else { return Ok(None) };
        let nonce = offer.nonce.to_le_bytes();
        let mut buffer = (self.make)(nonce.len())?;
        // What it is read over is another one.
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

/// What the threads are given.
struct Job<B> {
    token: u64,
    fetches: Vec<Fetch<B>>,
    buffer: B,
}

/// Threads that copy. They are started when there is something to do for the first time, and end when this is dropped.
pub(super) struct Fetchers<B> {
    done: Arc<dyn Fn(Event<B>) + Send + Sync>,
    jobs: Option<Sender<Job<B>>>,
}

impl<B: Buffer> Fetchers<B> {
    /// `done` is called on their threads.
    pub fn new(done: impl Fn(Event<B>) + Send + Sync + 'static) -> Self {
        Self { done: Arc::new(done), jobs: None }
    }

    /// Begins with some fetches; `done` is told.
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

    /// As many threads as there are processors, or as can be started.
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
        // Who hears of it has the buffer to himself.
        drop((fetches, buffer));
        done(Event::Fetched { token, result });
    }
}
