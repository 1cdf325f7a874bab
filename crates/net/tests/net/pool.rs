//! A pool for tests: one process is manager and I/O server, with files in memory.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use outcore_core::wire::Role;
use outcore_core::*;
use outcore_memory::{Arena, Region};
use outcore_net::{
    Address, Caller, ChannelCounts, Config, Credentials, Handler, Key, Listening, NetLink, OnReply, Options,
    Who, listen,
};

pub const SERVER: ServerId = ServerId(3);
pub const KEY: [u8; 32] = [9; 32];

/// Files in memory. Each request runs on its own thread, in any order.
#[derive(Default)]
pub struct Files {
    files: Mutex<HashMap<Handle, Vec<u8>>>,
    pub writes: AtomicUsize,
    pub reads: AtomicUsize,
    pub creates: AtomicUsize,
    pub under_way: AtomicUsize,
    pub most_under_way: AtomicUsize,
    /// Microseconds that each request takes.
    pub delay_us: AtomicU64,
    /// While it is shut, requests wait.
    pub gate: (Mutex<bool>, Condvar),
    /// Requests of collectives that wait for other processes, until the test answers them.
    pub waits: Mutex<Vec<OnAnswer<Region>>>,
    pub callers: Mutex<Vec<Who>>,
    pub addresses: Mutex<Vec<String>>,
    pub is_retired: AtomicBool,
    /// Whether a server is about to stop.
    pub is_stopping: AtomicBool,
}

impl Files {
    pub fn shut_gate(&self, is_shut: bool) {
        *self.gate.0.lock().unwrap() = is_shut;
        self.gate.1.notify_all();
    }

    /// Number of requests to the manager.
    pub fn asked(&self) -> usize {
        self.callers.lock().unwrap().len()
    }

    /// Number of requests that run.
    pub fn under_way(&self) -> usize {
        self.under_way.load(Ordering::SeqCst)
    }

    /// Answers the requests that wait for other processes.
    pub fn end_waits(&self) {
        for done in std::mem::take(&mut *self.waits.lock().unwrap()) {
            answer(done, IoReply::Done, Region::empty());
        }
    }

    fn pass(&self) {
        let mut is_shut = self.gate.0.lock().unwrap();
        while *is_shut {
            is_shut = self.gate.1.wait(is_shut).unwrap();
        }
        drop(is_shut);
        thread::sleep(Duration::from_micros(self.delay_us.load(Ordering::SeqCst)));
    }

    fn act(&self, request: &IoRequest, buffer: &mut Region) -> IoReply {
        let mut files = self.files.lock().unwrap();
        match request {
            IoRequest::Read { target, regions, .. } => {
                self.reads.fetch_add(1, Ordering::SeqCst);
                let file = files.entry(target.handle).or_default();
                let mut at = 0;
                for run in regions.local_runs(target.stripes, target.entry) {
                    let mut bytes = vec![0; run.length as usize];
                    for (i, byte) in bytes.iter_mut().enumerate() {
                        *byte = file.get(run.offset as usize + i).copied().unwrap_or(0);
                    }
                    buffer.copy_in(at, &bytes);
                    at += bytes.len();
                }
                IoReply::Done
            }
            IoRequest::Write { target, regions, .. } => {
                self.writes.fetch_add(1, Ordering::SeqCst);
                let file = files.entry(target.handle).or_default();
                let mut at = 0;
                for run in regions.local_runs(target.stripes, target.entry) {
                    let (from, to) = (run.offset as usize, (run.offset + run.length) as usize);
                    if file.len() < to {
                        file.resize(to, 0);
                    }
                    buffer.copy_out(at, &mut file[from..to]);
                    at += to - from;
                }
                IoReply::Done
            }
            IoRequest::Length { target, .. } => {
                IoReply::Length(files.get(&target.handle).map_or(0, |file| file.len() as u64))
            }
            IoRequest::Take { piece, bytes, .. } => {
                buffer.copy_in(0, &pattern(*piece as usize, *bytes as usize));
                IoReply::Done
            }
            _ => IoReply::Failed(Error::invalid("not in this test")),
        }
    }
}

fn answer(done: OnAnswer<Region>, reply: IoReply, buffer: Region) {
    done(Answer { reply, buffer, incarnation: Incarnation::NONE, started_ns: 0, finished_ns: 0 });
}

pub struct Served(pub Arc<Files>);

impl Handler for Served {
    fn io(&self, _caller: &Caller, request: IoRequest, mut buffer: Region, done: OnAnswer<Region>) {
        let files = self.0.clone();
        if matches!(request, IoRequest::Join { .. } | IoRequest::Await { .. }) {
            files.waits.lock().unwrap().push(done);
            return;
        }
        let now = files.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        files.most_under_way.fetch_max(now, Ordering::SeqCst);
        thread::spawn(move || {
            files.pass();
            let reply = files.act(&request, &mut buffer);
            files.under_way.fetch_sub(1, Ordering::SeqCst);
            answer(done, reply, buffer);
        });
    }

    fn end_waits(&self) {
        self.0.is_stopping.store(true, Ordering::SeqCst);
    }

    fn manager(&self, who: &Who, _: Origin, request: ManagerRequest, done: OnReply) {
        self.0.callers.lock().unwrap().push(who.clone());
        let reply = match request {
            ManagerRequest::Servers if self.0.is_retired.load(Ordering::SeqCst) => {
                ManagerReply::Servers { pool: 77, servers: vec![], retired: vec![SERVER] }
            }
            ManagerRequest::Servers => ManagerReply::Servers {
                pool: 77,
                servers: vec![ServerAddress {
                    id: SERVER,
                    addresses: self.0.addresses.lock().unwrap().clone(),
                }],
                retired: vec![],
            },
            ManagerRequest::MakeDirectory { .. } => {
                let files = self.0.clone();
                files.under_way.fetch_add(1, Ordering::SeqCst);
                thread::spawn(move || {
                    files.pass();
                    files.creates.fetch_add(1, Ordering::SeqCst);
                    files.under_way.fetch_sub(1, Ordering::SeqCst);
                    done(ManagerReply::Done);
                });
                return;
            }
            _ => ManagerReply::Failed(Error::invalid("not in this test")),
        };
        done(reply);
    }
}

/// A manager and an I/O server.
pub struct Pool {
    pub files: Arc<Files>,
    pub manager: Listening,
    pub server: Listening,
}

pub fn config(role: Role) -> Config {
    Config { working: Duration::from_millis(30), ..Config::new(role, Some(Key::new(KEY))) }
}

pub fn tcp() -> Vec<Address> {
    vec!["tcp:127.0.0.1:0".parse().unwrap()]
}

pub fn tls() -> Vec<Address> {
    vec!["tls:127.0.0.1:0".parse().unwrap()]
}

/// All network tests run with and without encryption.
pub fn networks() -> [Vec<Address>; 2] {
    [tcp(), tls()]
}

impl Pool {
    pub fn new(places: &[Address]) -> Self {
        Self::with(places, config(Role::IoServer(SERVER)))
    }

    pub fn with(places: &[Address], of_server: Config) -> Self {
        Self::listening(&tcp(), places, of_server)
    }

    /// A pool whose manager listens at `places`.
    pub fn with_manager_at(places: &[Address]) -> Self {
        Self::listening(places, &tcp(), config(Role::IoServer(SERVER)))
    }

    fn listening(of_manager: &[Address], places: &[Address], of_server: Config) -> Self {
        let files = Arc::<Files>::default();
        let handler = Arc::new(Served(files.clone()));
        let manager = listen(of_manager, handler.clone(), config(Role::Manager)).unwrap();
        let server = listen(places, handler, of_server).unwrap();
        *files.addresses.lock().unwrap() = server.addresses().iter().map(Address::to_string).collect();
        Self { files, manager, server }
    }

    pub fn link(&self) -> NetLink {
        NetLink::connect(self.manager.addresses(), options()).unwrap()
    }
}

/// Counts the traffic at the first address of a server.
pub fn traffic(server: &Listening) -> impl Fn() -> ChannelCounts + Send + 'static {
    let watcher = server.watcher();
    move || watcher.channels().remove(0)
}

/// Only a call that hangs takes this long.
pub const LONG: Duration = Duration::from_secs(60);

pub fn options() -> Options {
    let user = outcore_net::User { name: "ada".into(), uid: 1815, gids: vec![10] };
    Options { patience: 2 * LONG, ..Options::new(Credentials::Pool { key: Key::new(KEY), user }) }
}

pub fn target(handle: u64) -> Target {
    Target { handle: Handle(handle), stripes: Stripes::new(1 << 20, 1).unwrap(), entry: 0, generation: 0 }
}

pub fn grant() -> Grant {
    Grant { handle: Handle(1), write: true, expires_s: u64::MAX, mac: [0; 32] }
}

pub fn write_of(handle: u64, offset: u64, bytes: u64) -> IoRequest {
    let regions = Regions::contiguous(offset, bytes).unwrap();
    IoRequest::Write { target: target(handle), grant: grant(), regions }
}

pub fn read_of(handle: u64, offset: u64, bytes: u64) -> IoRequest {
    let regions = Regions::contiguous(offset, bytes).unwrap();
    IoRequest::Read { target: target(handle), grant: grant(), regions }
}

pub fn region(bytes: &[u8]) -> Region {
    if bytes.is_empty() {
        return Region::empty();
    }
    let arena = Arena::new(bytes.len().next_multiple_of(4096));
    let mut region = Region::whole(Arc::new(arena.allocate(bytes.len()).unwrap()));
    region.copy_in(0, bytes);
    region
}

pub fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.copy_out(0, &mut bytes);
    bytes
}

/// Starts a call; the receiver gets its answer.
pub fn start(link: &NetLink, request: IoRequest, buffer: Region) -> mpsc::Receiver<Answer<Region>> {
    let (sender, receiver) = mpsc::channel();
    link.io(SERVER, request, buffer, Box::new(move |answer| sender.send(answer).unwrap_or(())));
    receiver
}

/// Waits for the answer, which must arrive.
pub fn wait(receiver: &mpsc::Receiver<Answer<Region>>) -> Answer<Region> {
    receiver.recv_timeout(3 * LONG).expect("an answer")
}

pub fn call(link: &NetLink, request: IoRequest, buffer: Region) -> Answer<Region> {
    wait(&start(link, request, buffer))
}

pub fn write(link: &NetLink, handle: u64, offset: u64, bytes: &[u8]) -> IoReply {
    call(link, write_of(handle, offset, bytes.len() as u64), region(bytes)).reply
}

pub fn read(link: &NetLink, handle: u64, offset: u64, bytes: usize) -> Vec<u8> {
    let answer = call(link, read_of(handle, offset, bytes as u64), region(&vec![0xEE; bytes]));
    assert_eq!(answer.reply, IoReply::Done);
    bytes_of(&answer.buffer)
}

pub fn failure(reply: IoReply) -> Error {
    match reply {
        IoReply::Failed(error) => error,
        other => panic!("{other:?} where an error was expected"),
    }
}

/// Waits until a condition holds.
pub fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + LONG;
    while Instant::now() < end {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
    panic!("{what}: not within {LONG:?}");
}

pub fn pattern(seed: usize, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251 + seed * 7) as u8).collect()
}
