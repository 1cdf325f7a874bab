//! Calls on an open file while a server has not answered earlier requests for the same bytes.

use std::fs;
use std::path::Path;
use std::sync::mpsc::channel;

use outcore_core::{
    Answer, Grant, Hints, Incarnation, Inode, IoReply, IoRequest, Layout, Link, ManagerReply, ManagerRequest,
    OnAnswer, Opened, ServerAddress, ServerId,
};

use super::*;

const MIB: usize = 1 << 20;

type Job = Box<dyn FnOnce(&SlowServer) + Send>;
/// A name, a call, and the content of the file after it.
type Case = (&'static str, fn(&Rig), Vec<u8>);

/// A pool of one server with one file. The server answers some requests late: it writes late, too, but reads at once.
struct SlowServer {
    inode: Mutex<Inode>,
    bytes: Mutex<Vec<u8>>,
    /// Kinds of the requests that read or change the file.
    seen: Mutex<Vec<&'static str>>,
    /// The first byte from which reads and writes get no answer; and those without.
    holds: Mutex<(u64, Vec<Job>)>,
}

impl SlowServer {
    /// Holds later reads and writes back that concern bytes from `byte` on.
    fn hold_from(&self, byte: u64) {
        self.seen.lock().unwrap().clear();
        self.holds.lock().unwrap().0 = byte;
    }

    /// Holds no more requests back. Returns the answers of those that it held.
    fn held(&self) -> Vec<Job> {
        std::mem::replace(&mut *self.holds.lock().unwrap(), (u64::MAX, vec![])).1
    }

    /// Answers all requests that it held back, the last one first.
    fn release(&self) {
        self.held().into_iter().rev().for_each(|answer| answer(self));
    }

    fn seen(&self) -> Vec<&'static str> {
        self.seen.lock().unwrap().clone()
    }

    fn serve(&self, request: &IoRequest, buffer: &mut Region) -> IoReply {
        let mut bytes = self.bytes.lock().unwrap();
        match request {
            IoRequest::Read { regions, .. } => {
                let mut at = 0;
                for run in regions.runs() {
                    buffer.copy_in(at, &bytes[run.offset as usize..][..run.length as usize]);
                    at += run.length as usize;
                }
            }
            IoRequest::Write { regions, .. } => {
                let mut at = 0;
                for run in regions.runs() {
                    let end = (run.offset + run.length) as usize;
                    let length = bytes.len().max(end);
                    bytes.resize(length, 0);
                    buffer.copy_out(at, &mut bytes[run.offset as usize..end]);
                    at += run.length as usize;
                }
            }
            IoRequest::SetLength { local_length, .. } => bytes.resize(*local_length as usize, 0),
            IoRequest::Length { .. } => return IoReply::Length(bytes.len() as u64),
            request => panic!("{request:?}"),
        }
        IoReply::Done
    }
}

impl Link for SlowServer {
    type Buffer = Region;

    fn io(&self, _: ServerId, request: IoRequest, mut buffer: Region, done: OnAnswer<Region>) {
        let (kind, first) = match &request {
            IoRequest::Read { regions, .. } => ("read", regions.runs().next().map(|run| run.offset)),
            IoRequest::Write { regions, .. } => ("write", regions.runs().next().map(|run| run.offset)),
            IoRequest::SetLength { .. } => ("set length", None),
            _ => ("", None),
        };
        if !kind.is_empty() {
            self.seen.lock().unwrap().push(kind);
        }
        let early = (kind == "read").then(|| self.serve(&request, &mut buffer));
        let answer = move |server: &Self| {
            let reply = early.unwrap_or_else(|| server.serve(&request, &mut buffer));
            done(Answer { reply, buffer, incarnation: Incarnation(1), started_ns: 0, finished_ns: 0 });
        };
        let mut holds = self.holds.lock().unwrap();
        if first.is_some_and(|first| first >= holds.0) {
            return holds.1.push(Box::new(answer));
        }
        drop(holds);
        answer(self);
    }

    fn manager(&self, request: ManagerRequest) -> Result<ManagerReply> {
        let mut inode = self.inode.lock().unwrap();
        match request {
            ManagerRequest::Servers => {
                let servers = vec![ServerAddress { id: ServerId(0), addresses: vec![] }];
                return Ok(ManagerReply::Servers { pool: 1, servers, retired: vec![] });
            }
            ManagerRequest::Create { .. } => {
                let grant = Grant { handle: inode.handle, write: true, expires_s: u64::MAX, mac: [0; 32] };
                return Ok(ManagerReply::Opened(Box::new(Opened { inode: inode.clone(), grant })));
            }
            ManagerRequest::BeginCut { .. } => inode.durable.cuts += 1,
            ManagerRequest::EndCut { .. } => inode.durable.cuts_done += 1,
            _ => {}
        }
        Ok(ManagerReply::Inode(Box::new(inode.clone())))
    }
}

/// An open file of 2 MiB that is read sequentially, and its server.
struct Rig {
    server: Arc<SlowServer>,
    files: OpenFiles,
    open: Arc<OpenFile>,
}

impl Rig {
    fn new() -> Self {
        let inode = Inode {
            handle: Handle(1),
            layout: Some(Layout::new(MIB as u64, vec![ServerId(0)]).unwrap()),
            owner: 0,
            group: 0,
            mode: 0o644,
            modified_ns: 0,
            changed_ns: 0,
            durable: Default::default(),
            target: None,
        };
        let (bytes, seen, holds) = (Mutex::default(), Mutex::default(), Mutex::new((u64::MAX, vec![])));
        let server = Arc::new(SlowServer { inode: Mutex::new(inode), bytes, seen, holds });
        let link: Arc<dyn Link<Buffer = Region>> = server.clone();
        let client = Arc::new(Client::new(link, Arc::new(|| 1)).unwrap());
        let file = client.create_as("f", Hints::default(), 0o644).unwrap();
        let files = OpenFiles::new(client, true).unwrap();
        let handle = files.add(INodeNo(1), file, true);
        let open = files.get(handle).unwrap();
        files.write(&open, 0, 0, &vec![b'o'; 2 * MIB]).unwrap();
        files.flush(&open).unwrap();
        let rig = Self { server, files, open };
        assert_eq!(rig.read(0, 10), b"oooooooooo");
        rig
    }

    fn read(&self, offset: usize, bytes: usize) -> Vec<u8> {
        let mut found = vec![];
        self.files.read(&self.open, 0, offset as u64, bytes as u32, &mut found).unwrap();
        found
    }

    fn write(&self, flags: i32, offset: usize, bytes: &[u8]) {
        self.files.write(&self.open, flags, offset as u64, bytes).unwrap();
    }

    /// Writes bytes that are so many that the mount sends them at once. They get no answer yet.
    fn write_slowly(&self) {
        self.server.hold_from(0);
        self.write(0, 0, &[b'a'; MIB]);
        assert_eq!(self.server.seen(), ["write"]);
    }

    fn flush(&self) {
        self.files.flush(&self.open).unwrap();
    }

    fn content(&self) -> Vec<u8> {
        self.server.bytes.lock().unwrap().clone()
    }
}

/// Returns once a thread, a path in `/proc`, sleeps or has ended. It sleeps if it waits for the server.
fn until_it_waits(thread: &Path) {
    let stat = Path::new("/proc").join(thread).join("stat");
    while fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") S ")) {
        thread::yield_now();
    }
}

#[test]
fn no_call_overtakes_a_pending_write_of_the_same_bytes() {
    let pending = [vec![b'a'; MIB], vec![b'o'; MIB]].concat();
    let written = [&pending[..100], b"new", &pending[103..]].concat();
    let cases: [Case; 6] = [
        ("flush", Rig::flush, pending.clone()),
        ("read", |rig| assert_eq!(rig.read(10, 100), [b'a'; 100]), pending.clone()),
        (
            "small write",
            |rig| {
                rig.write(0, 100, b"new");
                rig.flush();
            },
            written.clone(),
        ),
        ("write at once", |rig| rig.write(libc::O_DIRECT, 100, b"new"), written),
        ("append", |rig| rig.write(libc::O_APPEND, 0, b"new"), [&pending, &b"new"[..]].concat()),
        ("truncation", |rig| rig.files.resize(&rig.open, 100).unwrap(), pending[..100].to_vec()),
    ];
    for (name, call, expected) in cases {
        let rig = Rig::new();
        rig.write_slowly();
        let (send, numbers) = channel();
        thread::scope(|scope| {
            let caller = scope.spawn(|| {
                send.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
                call(&rig);
            });
            until_it_waits(&numbers.recv().unwrap());
            let found = (rig.server.seen(), caller.is_finished());
            rig.server.release();
            assert_eq!(found, (vec!["write"], false), "{name}");
        });
        rig.flush();
        assert!(rig.content() == expected, "{name}");
    }
}

#[test]
fn old_writes_wait_for_those_of_the_same_bytes() {
    let rig = Rig::new();
    rig.write_slowly();
    rig.write(0, 100, b"new");
    assert!(rig.open.body.send_older(rig.files.client(), Duration::ZERO));
    assert_eq!(rig.server.seen(), ["write"]);
    rig.server.release();
    assert!(rig.open.body.send_older(rig.files.client(), Duration::ZERO));
    assert_eq!(rig.read(99, 5), b"anewa");
}

#[test]
fn writes_of_other_bytes_wait_for_none() {
    let rig = Rig::new();
    rig.write_slowly();
    rig.write(0, MIB, &[b'b'; MIB]);
    assert_eq!(rig.server.seen(), ["write", "write"]);
    rig.server.release();
    rig.flush();
    assert!(rig.content() == [vec![b'a'; MIB], vec![b'b'; MIB]].concat());
}

#[test]
fn a_read_finds_a_write_that_overtook_its_read_ahead() {
    let rig = Rig::new();
    // The first 128 KiB are there; after the next block, the mount reads ahead.
    rig.server.hold_from(256 << 10);
    assert_eq!(rig.read(10, 200 << 10), vec![b'o'; 200 << 10]);
    let old = rig.server.held();
    assert_eq!(old.len(), 1);
    rig.write(0, 0, &[b'a'; MIB]);
    rig.flush();
    old.into_iter().for_each(|answer| answer(&rig.server));
    assert_eq!(rig.read((200 << 10) + 10, MIB / 2), vec![b'a'; MIB / 2]);
}
