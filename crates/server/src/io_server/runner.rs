//! A driver that runs an I/O server with a real disk: one thread for the state machine, and one for blocking
//! operations on names.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use outcore_core::{
    Answer, Clock, Disk, Error, ErrorKind, Incarnation, IoReply, IoRequest, Names, OnAnswer, Result, ServerId,
};

use super::config::{Config, ManagerTime};
use super::event::{Effect, Event, NameOperation, perform};
use super::manager_time::Queries;
use super::server::IoServer;
use super::state::ServerState;
use crate::io_server::blocks::format::{DATA, FORMAT, LOCK, MARKER, marker};
use crate::io_server::collective::fetch::{Caller, Fetchers};

/// Interval between ticks.
const TICK: Duration = Duration::from_secs(1);

/// Called with the state of a server.
type OnState = Box<dyn FnOnce(ServerState) + Send>;

struct Call<B> {
    request: IoRequest,
    buffer: B,
    caller: Caller<B>,
    started_ns: u64,
    done: OnAnswer<B>,
}

enum Message<B> {
    Call(Call<B>),
    Event(Event<B>),
    /// The manager's time, or `None` if it is unreachable.
    ManagerTime(Option<u64>),
    Look(OnState),
}

/// A running I/O server.
pub struct Runner<D: Disk> {
    messages: Sender<Message<D::Buffer>>,
    clock: Arc<dyn Clock>,
    incarnation: Incarnation,
    unaligned: Arc<AtomicU64>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl<D: Disk + 'static> Runner<D> {
    /// Starts a server on the directory that both `disk` and `directory` serve, and returns once the log is read.
    /// The directory must be empty or belong to this server of this pool. It stays locked until the server stops.
    pub fn start(disk: Arc<D>, directory: Arc<dyn Names>, config: Config<D::Buffer>) -> Result<Self> {
        let lock = directory.lock(LOCK)?;
        claim(directory.as_ref(), config.pool, config.server)?;
        let clock = config.clock.clone();
        let (sender, receiver) = channel();
        let (ready, is_ready) = channel();
        let incarnation = new_incarnation();
        let unaligned = Arc::new(AtomicU64::new(0));
        let driver = Driver {
            disk,
            directory,
            messages: sender.clone(),
            clock: clock.clone(),
            incarnation,
            unaligned: unaligned.clone(),
        };
        let name = format!("outcore-io-{}", config.server.0);
        let spawned = thread::Builder::new().name(name).spawn(move || {
            let _lock = lock;
            driver.run(config, &receiver, &ready);
        });
        let thread = spawned.map_err(|e| cannot_start(&e))?;
        let runner =
            Self { messages: sender, clock, incarnation, unaligned, thread: Mutex::new(Some(thread)) };
        is_ready.recv().unwrap_or_else(|_| Err(stopped()))?;
        Ok(runner)
    }

    /// The incarnation of this run, which accompanies its answers.
    pub fn incarnation(&self) -> Incarnation {
        self.incarnation
    }

    /// Number of reads and writes so far that covered a part of a block. It includes each answered one.
    pub fn unaligned(&self) -> u64 {
        self.unaligned.load(Ordering::Relaxed)
    }

    /// Passes the server's state to `done`, on the server's thread. A server that stops drops `done`.
    pub fn look(&self, done: impl FnOnce(ServerState) + Send + 'static) {
        let _ = self.messages.send(Message::Look(Box::new(done)));
    }

    /// Calls the server without blocking. The server's thread calls `done` once; it must not block. For a read or
    /// a write, the buffer has as many bytes as the request has on this server. For other requests it is empty.
    pub fn call(&self, request: IoRequest, buffer: D::Buffer, done: OnAnswer<D::Buffer>) {
        self.call_of(None, request, buffer, done);
    }

    /// Calls the server like `call`, for a caller whose memory the server may read if the caller offers it.
    pub fn call_of(
        &self,
        caller: Caller<D::Buffer>,
        request: IoRequest,
        buffer: D::Buffer,
        done: OnAnswer<D::Buffer>,
    ) {
        let call = Call { request, buffer, caller, started_ns: self.clock.now_ns(), done };
        if let Err(unsent) = self.messages.send(Message::Call(call))
            && let Message::Call(call) = unsent.0
        {
            call.refuse(self.clock.now_ns());
        }
    }
}

impl<D: Disk> Runner<D> {
    /// Ends the collectives that need more calls, because no more calls are expected: their processes would wait
    /// for calls that never come. Calls that still arrive are served until the server stops.
    pub fn end_collectives(&self) {
        let _ = self.messages.send(Message::Event(Event::EndCollectives));
    }

    /// Finishes the calls in progress, makes everything durable, and stops. Later calls are refused.
    pub fn stop(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return };
        let _ = self.messages.send(Message::Event(Event::Stop));
        // A caller inside an answer runs on the server's thread, so it cannot wait for that thread.
        if thread.thread().id() != thread::current().id() {
            let _ = thread.join();
        }
    }
}

impl<D: Disk> Drop for Runner<D> {
    fn drop(&mut self) {
        self.stop();
    }
}

impl<B> Call<B> {
    fn refuse(self, finished_ns: u64) {
        let (reply, incarnation) = (IoReply::Failed(stopped()), Incarnation::NONE);
        let Self { buffer, started_ns, done, .. } = self;
        done(Answer { reply, buffer, incarnation, started_ns, finished_ns });
    }
}

/// A call in progress, without its request.
struct Answered<B> {
    done: OnAnswer<B>,
    started_ns: u64,
}

struct Driver<D: Disk> {
    disk: Arc<D>,
    directory: Arc<dyn Names>,
    messages: Sender<Message<D::Buffer>>,
    clock: Arc<dyn Clock>,
    incarnation: Incarnation,
    unaligned: Arc<AtomicU64>,
}

impl<D: Disk + 'static> Driver<D> {
    fn run(
        self,
        config: Config<D::Buffer>,
        messages: &Receiver<Message<D::Buffer>>,
        ready: &Sender<Result<()>>,
    ) {
        let names = match self.names_thread() {
            Ok(names) => names,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let mut time = match self.time_queries(config.manager_time.clone()) {
            Ok(time) => time,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let mut effects = Vec::new();
        let mut server = match IoServer::start(config, &mut effects) {
            Ok(server) => server,
            Err(error) => return drop(ready.send(Err(error))),
        };
        let messages_to_self = self.messages.clone();
        let mut fetchers = Fetchers::new(move |event| drop(messages_to_self.send(Message::Event(event))));
        let (mut calls, mut next, mut is_stopping) = (HashMap::new(), 0_u64, false);
        let began = Instant::now();
        let mut ticked = began;
        loop {
            for effect in effects.drain(..) {
                match effect {
                    Effect::Disk { token, request } => {
                        let messages = self.messages.clone();
                        let done = move |completion| {
                            drop(messages.send(Message::Event(Event::Disk { token, completion })));
                        };
                        self.disk.submit(request, Box::new(done));
                    }
                    Effect::Fetch { token, fetches, buffer } => fetchers.begin(token, fetches, buffer),
                    Effect::Name { token, operation } => drop(names.send((token, operation))),
                    Effect::AskTime => time.ask(),
                    Effect::LetOthers { token } => {
                        drop(self.messages.send(Message::Event(Event::GoOn { token })));
                    }
                    Effect::Answer { call, reply, buffer } => {
                        let answered: Option<Answered<D::Buffer>> = calls.remove(&call);
                        if let Some(Answered { done, started_ns }) = answered {
                            let (incarnation, finished_ns) = (self.incarnation, self.clock.now_ns());
                            done(Answer { reply, buffer, incarnation, started_ns, finished_ns });
                        }
                    }
                    Effect::Started(result) => drop(ready.send(result)),
                    Effect::Stopped => {
                        self.directory.wait_for_room();
                        self.refuse(messages);
                        return;
                    }
                }
            }
            let until_tick = TICK.saturating_sub(ticked.elapsed());
            let left = time.left().map_or(until_tick, |left| left.min(until_tick));
            let message = if left.is_zero() { None } else { messages.recv_timeout(left).ok() };
            let event = match message {
                None if time.is_over() => Event::Time { manager_s: None, own_s: now_s() },
                // This is always a timeout: the driver itself owns a sender, so the channel never closes.
                None => {
                    ticked = Instant::now();
                    Event::Tick
                }
                Some(Message::Event(event)) => {
                    is_stopping |= matches!(event, Event::Stop);
                    event
                }
                Some(Message::ManagerTime(manager_s)) => {
                    time.answered();
                    Event::Time { manager_s, own_s: now_s() }
                }
                Some(Message::Look(done)) => {
                    done(server.state());
                    continue;
                }
                Some(Message::Call(call)) if is_stopping => {
                    call.refuse(self.clock.now_ns());
                    continue;
                }
                Some(Message::Call(Call { request, buffer, caller, started_ns, done })) => {
                    next += 1;
                    calls.insert(next, Answered { done, started_ns });
                    Event::Call { call: next, request, buffer, caller }
                }
            };
            server.step(began.elapsed().as_nanos() as u64, event, &mut effects);
            self.unaligned.store(server.unaligned(), Ordering::Relaxed);
        }
    }

    /// Starts the thread for operations on names. It ends when the sender is dropped.
    fn names_thread(&self) -> Result<Sender<(u64, NameOperation)>> {
        let (sender, receiver) = channel::<(u64, NameOperation)>();
        let (disk, directory, messages) = (self.disk.clone(), self.directory.clone(), self.messages.clone());
        let work = move || {
            for (token, operation) in receiver {
                let result = perform(disk.as_ref(), directory.as_ref(), operation);
                if messages.send(Message::Event(Event::Name { token, result })).is_err() {
                    return;
                }
            }
        };
        let spawned = thread::Builder::new().name("outcore-io-names".into()).spawn(work);
        spawned.map(|_| sender).map_err(|e| cannot_start(&e))
    }

    fn time_queries(&self, manager_time: Option<ManagerTime>) -> Result<Queries> {
        let messages = self.messages.clone();
        let answered = move |manager_s| messages.send(Message::ManagerTime(manager_s)).is_ok();
        let manager_time = manager_time.unwrap_or_else(|| Arc::new(|| Some(now_s())));
        Queries::start(manager_time, answered).map_err(|e| cannot_start(&e))
    }

    /// Refuses calls that arrived after the server began to stop.
    fn refuse(&self, messages: &Receiver<Message<D::Buffer>>) {
        while let Ok(message) = messages.try_recv() {
            if let Message::Call(call) = message {
                call.refuse(self.clock.now_ns());
            }
        }
    }
}

/// A random number that identifies this run.
fn new_incarnation() -> Incarnation {
    Incarnation(RandomState::new().hash_one(now_s()).max(1))
}

/// Checks that the directory belongs to this server, or claims it if it is empty.
fn claim(directory: &dyn Names, pool: u128, server: ServerId) -> Result<()> {
    let ours = marker(FORMAT, pool, server);
    match directory.read_small(MARKER) {
        Ok(found) if found == ours.as_bytes() => Ok(()),
        // Earlier versions refuse the directory from now on. Its files are upgraded when they are opened.
        Ok(found) if found == marker(1, pool, server).as_bytes() => {
            match directory.replace_small(MARKER, ours.as_bytes()) {
                Err(error) if matches!(error.kind, ErrorKind::ReadOnly | ErrorKind::DiskFull) => Ok(()),
                upgraded => upgraded,
            }
        }
        Ok(found) => Err(Error::invalid(format!(
            "the directory is of another server, pool or format: need {}, have {}; give the directory of this server, or an \
             empty one",
            ours.trim(),
            String::from_utf8_lossy(&found[..found.len().min(200)]).trim()
        ))),
        Err(error) if error.kind == ErrorKind::NotFound => {
            if directory.list("").is_ok_and(|entries| entries.iter().any(|entry| entry.name == DATA)) {
                return Err(Error::new(
                    ErrorKind::Corrupt,
                    format!(
                        "need {MARKER}, which names the server of the data files, have none; restore it from a copy: {}",
                        ours.trim()
                    ),
                ));
            }
            directory.replace_small(MARKER, ours.as_bytes())
        }
        Err(error) => Err(error),
    }
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn cannot_start(error: &std::io::Error) -> Error {
    Error::new(ErrorKind::Io, format!("cannot start a thread: {error}; close other programs"))
}

fn stopped() -> Error {
    Error::new(ErrorKind::Closed, "the I/O server was stopped; start it again")
}
