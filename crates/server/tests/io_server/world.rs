//! A server on a simulated disk, whose requests finish in random order.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use outcore_core::crash_disk::{CrashDisk, MemoryBuffer, Random};
use outcore_core::{
    Buffer, Clock, Completion, Disk, Error, ErrorKind, Grant, Handle, IoReply, IoRequest, IoStatus, Names,
    Operation, Regions, Request, Result, ScrubPlace, Scrubbed, ServerId, Stripes, Target,
};
use outcore_server::grants::Key;
use outcore_server::io_server::{
    Caller, Config, Effect, Event, IoServer, Limits, NameAnswer, NameOperation, fetch, perform,
    plain_sums_path,
};

use crate::read_only::{ReadOnlyDisk, read_only};

pub const MAX: u64 = 1536 << 10;
pub const NOW_S: u64 = 1_800_000_000;

pub struct NoClock;

impl Clock for NoClock {
    fn now_ns(&self) -> u64 {
        0
    }
}

/// Faults of the disk.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One of this many transfers is cut short; 0 for none.
    pub short_of: u64,
    /// One of this many writes fails after half of its bytes; 0 for none.
    pub full_of: u64,
    /// Every write fails, because the disk is full.
    pub is_full: bool,
    /// The disk is mounted read-only.
    pub is_read_only: bool,
    /// No checksum file of format 1 can be replaced.
    pub is_unsealed: bool,
    /// After a replacement of a checksum file of format 1, the old one cannot be removed.
    pub is_half_sealed: bool,
    /// Every sync fails with an error.
    pub sync_fails: bool,
    /// Reads of this byte of any file fail; 0 for none.
    pub unreadable: u64,
    /// The free bytes that the disk reports, and the allocated bytes of each file; `None` for the actual ones.
    pub room: Option<(u64, u64)>,
}

pub struct World {
    pub disk: Arc<CrashDisk>,
    pub random: Random,
    pub faults: Faults,
    pub limits: Limits,
    server: IoServer<MemoryBuffer>,
    pending: Vec<Effect<MemoryBuffer>>,
    answers: HashMap<u64, (IoReply, MemoryBuffer)>,
    next_call: u64,
    pub disk_requests: u64,
    /// The true time, in seconds, by which the server's event clock runs.
    pub now_s: u64,
    /// Difference between the manager's clock and the true time.
    manager_ahead_s: i128,
    pub is_manager_up: bool,
    /// Time of the clock of the server's machine, in seconds since 1970.
    pub own_s: u64,
    /// Number of queries of the manager's time.
    pub asked: u64,
    pub syncs: u64,
    /// Total bytes of scratch buffers that the server has allocated.
    pub scratch: Arc<Mutex<usize>>,
    stopped: bool,
    started: bool,
}

/// Limits so small that the tests reach each of them.
pub fn small_limits() -> Limits {
    Limits {
        scratch_bytes: 512 << 10,
        sums_bytes: 2 * 4096,
        open_files: 2,
        calls: 8,
        pieces: 4,
        pieces_of_call: 3,
        ..Limits::default()
    }
}

pub fn key() -> Key {
    Key::new([7; 32])
}

pub fn config(limits: Limits, scratch: Arc<Mutex<usize>>) -> Config<MemoryBuffer> {
    Config {
        pool: 5,
        server: ServerId(3),
        verify: Box::new(key()),
        scratch: Arc::new(move |bytes| {
            *scratch.lock().unwrap() += bytes;
            Ok(MemoryBuffer::new(vec![0xDD; bytes]))
        }),
        reads_memory: true,
        limits,
        clock: Arc::new(NoClock),
        manager_time: None,
    }
}

/// A file on one server.
pub fn target(handle: u64) -> Target {
    Target { handle: Handle(handle), stripes: Stripes::new(1 << 40, 1).unwrap(), entry: 0, generation: 0 }
}

pub fn grant(handle: u64) -> Grant {
    key().sign(Handle(handle), true, NOW_S + 100)
}

/// A grant to remove the data files.
pub fn removal_grant(handle: u64) -> Grant {
    key().sign_removal(Handle(handle), NOW_S + 100)
}

impl World {
    pub fn new(seed: u64, limits: Limits) -> Self {
        Self::with(seed, limits, true)
    }

    /// A server that reads no memory of other processes.
    pub fn without_memory(seed: u64) -> Self {
        Self::with(seed, Limits::default(), false)
    }

    fn with(seed: u64, limits: Limits, reads_memory: bool) -> Self {
        let disk = Arc::new(CrashDisk::default());
        let scratch = Arc::new(Mutex::new(0));
        let mut pending = Vec::new();
        let config = Config { reads_memory, ..config(limits, scratch.clone()) };
        let server = IoServer::start(config, &mut pending).unwrap();
        Self {
            disk,
            random: Random::new(seed),
            faults: Faults::default(),
            limits,
            server,
            pending,
            answers: HashMap::new(),
            next_call: 0,
            disk_requests: 0,
            now_s: NOW_S,
            manager_ahead_s: 0,
            is_manager_up: true,
            own_s: NOW_S,
            asked: 0,
            syncs: 0,
            scratch,
            stopped: false,
            started: false,
        }
    }

    pub fn call(&mut self, request: IoRequest, buffer: Vec<u8>) -> u64 {
        self.call_of(None, request, buffer)
    }

    pub fn call_of(&mut self, caller: Caller<MemoryBuffer>, request: IoRequest, buffer: Vec<u8>) -> u64 {
        self.next_call += 1;
        let (call, buffer) = (self.next_call, MemoryBuffer::new(buffer));
        self.step(Event::Call { call, request, buffer, caller });
        call
    }

    pub fn answer(&mut self, call: u64) -> Option<(IoReply, MemoryBuffer)> {
        self.answers.remove(&call)
    }

    pub fn step(&mut self, event: Event<MemoryBuffer>) {
        let mut effects = Vec::new();
        self.server.step(self.now_s * 1_000_000_000, event, &mut effects);
        for effect in effects {
            match effect {
                Effect::Answer { call, reply, buffer } => {
                    assert_eq!(buffer.views(), 1, "a view of a buffer is left when it goes back");
                    assert!(self.answers.insert(call, (reply, buffer)).is_none(), "answered twice");
                }
                Effect::Stopped => self.stopped = true,
                Effect::Started(result) => {
                    assert_eq!(result, Ok(()));
                    self.started = true;
                }
                effect => self.pending.push(effect),
            }
        }
    }

    fn fault(&mut self, request: &Request<MemoryBuffer>) -> std::result::Result<usize, (usize, Error)> {
        let (operation, length) = (request.operation, request.buffer.len());
        let faults = self.faults;
        let bytes = request.offset..request.offset + length as u64;
        if operation == Operation::Read && faults.unreadable > 0 && bytes.contains(&faults.unreadable) {
            return Err((0, Error::new(ErrorKind::Io, "injected: cannot read")));
        }
        if operation == Operation::Sync && faults.sync_fails {
            return Err((0, Error::new(ErrorKind::Io, "injected: cannot sync")));
        }
        if operation == Operation::Write && faults.is_full {
            return Err((0, Error::new(ErrorKind::DiskFull, "injected: the disk is full")));
        }
        if operation == Operation::Write && faults.is_read_only {
            return Err((0, read_only()));
        }
        if operation == Operation::Write && faults.full_of > 0 && self.random.below(faults.full_of) == 0 {
            return Err((length / 2, Error::new(ErrorKind::DiskFull, "injected: the disk is full")));
        }
        if operation != Operation::Sync && faults.short_of > 0 && self.random.below(faults.short_of) == 0 {
            return Ok(1 + self.random.below(length as u64) as usize);
        }
        Ok(length)
    }

    /// Completes one pending effect; returns `false` if there is none.
    pub fn turn(&mut self) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let which = self.random.below(self.pending.len() as u64) as usize;
        match self.pending.swap_remove(which) {
            Effect::Disk { token, mut request } => {
                self.disk_requests += 1;
                self.syncs += u64::from(request.operation == Operation::Sync);
                let fault = self.fault(&request);
                let (bytes, error) = match fault {
                    Ok(bytes) => (bytes, None),
                    Err((bytes, error)) => (bytes, Some(error)),
                };
                request.buffer.truncate(bytes);
                let skip = error.is_some() && bytes == 0;
                let done: Arc<Mutex<Option<Completion<MemoryBuffer>>>> = Arc::default();
                if skip {
                    let error = error.unwrap();
                    let completion = Completion::failed(request.buffer, error, 0);
                    return self.finish(token, completion);
                }
                let sink = done.clone();
                self.disk.submit(request, Box::new(move |c| *sink.lock().unwrap() = Some(c)));
                let mut completion = done.lock().unwrap().take().unwrap();
                if let Some(error) = error {
                    completion.result = Err(error);
                }
                self.finish(token, completion)
            }
            Effect::Name { token, operation } => {
                let result = match (&operation, self.faults.room) {
                    (NameOperation::Free, Some((free, _))) => Ok(NameAnswer::Bytes(free)),
                    (NameOperation::Allocated { .. }, Some((_, allocated))) => {
                        Ok(NameAnswer::Bytes(allocated))
                    }
                    (NameOperation::Seal { .. }, _) if self.faults.is_unsealed => {
                        Err(Error::new(ErrorKind::DiskFull, "injected: the disk is full"))
                    }
                    (NameOperation::Seal { handle, .. }, _) if self.faults.is_half_sealed => {
                        let (path, names) = (plain_sums_path(*handle), self.disk.as_ref());
                        let plain = names.read_small(&path).unwrap();
                        perform(names, names, operation).unwrap();
                        names.replace_small(&path, &plain).unwrap();
                        Err(Error::new(ErrorKind::Io, "injected: cannot remove"))
                    }
                    _ if self.faults.is_read_only => {
                        let disk = ReadOnlyDisk(self.disk.clone());
                        perform(&disk, &disk, operation)
                    }
                    _ => perform(self.disk.as_ref(), self.disk.as_ref(), operation),
                };
                self.step(Event::Name { token, result });
                true
            }
            Effect::Fetch { token, fetches, mut buffer } => {
                let result = fetch(&fetches, &mut buffer);
                drop((fetches, buffer));
                self.step(Event::Fetched { token, result });
                true
            }
            Effect::LetOthers { token } => {
                self.step(Event::GoOn { token });
                true
            }
            Effect::AskTime => {
                self.asked += 1;
                let manager_s = (i128::from(self.now_s) + self.manager_ahead_s) as u64;
                let (manager_s, own_s) = (Some(manager_s).filter(|_| self.is_manager_up), self.own_s);
                self.step(Event::Time { manager_s, own_s });
                true
            }
            _ => unreachable!("answers are not pending"),
        }
    }

    /// Completes one pending effect while long work yields; returns `false` if no work yields or nothing else is
    /// pending.
    pub fn turn_of_others(&mut self) -> bool {
        let is_of_others = |effect: &Effect<MemoryBuffer>| !matches!(effect, Effect::LetOthers { .. });
        let (others, mut long): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.pending).into_iter().partition(is_of_others);
        self.pending = others;
        let has_turned = !long.is_empty() && self.turn();
        self.pending.append(&mut long);
        has_turned
    }

    /// Performs the first pending read of memory, after everything else.
    pub fn turn_of_fetch(&mut self) {
        self.run_without_fetches();
        let others = self.pending.split_off(1.min(self.pending.len()));
        self.turn();
        self.pending.splice(0..0, others);
    }

    /// Runs everything except reads of memory, which stay pending.
    pub fn run_without_fetches(&mut self) {
        let mut fetches = vec![];
        loop {
            let is_fetch = |effect: &Effect<MemoryBuffer>| matches!(effect, Effect::Fetch { .. });
            let (found, others): (Vec<_>, Vec<_>) =
                std::mem::take(&mut self.pending).into_iter().partition(is_fetch);
            fetches.extend(found);
            self.pending = others;
            if !self.turn() {
                break;
            }
        }
        self.pending.append(&mut fetches);
    }

    fn finish(&mut self, token: u64, completion: Completion<MemoryBuffer>) -> bool {
        self.step(Event::Disk { token, completion });
        true
    }

    pub fn run(&mut self) {
        while self.turn() {}
    }

    /// Calls the server, and runs until nothing is pending.
    pub fn ask(&mut self, request: IoRequest, buffer: Vec<u8>) -> (IoReply, Vec<u8>) {
        let call = self.call(request, buffer);
        self.run();
        let (reply, buffer) = self.answer(call).expect("a call was not answered");
        (reply, buffer.to_vec())
    }

    pub fn done(&mut self, request: IoRequest, buffer: Vec<u8>) -> Result<Vec<u8>> {
        match self.ask(request, buffer) {
            // Absent bytes read as zeros.
            (IoReply::Done | IoReply::Absent | IoReply::Length(_) | IoReply::Synced { .. }, bytes) => {
                Ok(bytes)
            }
            (IoReply::Failed(error), _) => Err(error),
            (other, _) => panic!("answered by {other:?}"),
        }
    }

    pub fn write(&mut self, handle: u64, offset: u64, bytes: &[u8]) -> Result<()> {
        let request = write_request(handle, Regions::contiguous(offset, bytes.len() as u64).unwrap());
        self.done(request, bytes.to_vec()).map(|_| ())
    }

    pub fn read(&mut self, handle: u64, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let request = read_request(handle, Regions::contiguous(offset, bytes).unwrap());
        self.done(request, vec![0xEE; bytes as usize])
    }

    pub fn sync(&mut self, handle: u64) -> Result<()> {
        let request = IoRequest::Sync { target: target(handle), grant: grant(handle) };
        self.done(request, vec![]).map(|_| ())
    }

    pub fn length(&mut self, handle: u64) -> u64 {
        match self.ask(IoRequest::Length { target: target(handle), grant: grant(handle) }, vec![]).0 {
            IoReply::Length(length) => length,
            IoReply::Absent => 0,
            other => panic!("answered by {other:?}"),
        }
    }

    pub fn set_length(&mut self, handle: u64, local_length: u64, reserve: bool) -> Result<()> {
        let (target, grant) = (target(handle), grant(handle));
        self.done(IoRequest::SetLength { target, grant, local_length, reserve }, vec![]).map(|_| ())
    }

    pub fn reserve(&mut self, handle: u64, local_length: u64) -> Result<()> {
        let (target, grant) = (target(handle), grant(handle));
        self.done(IoRequest::Reserve { target, grant, local_length }, vec![]).map(|_| ())
    }

    /// Removes a file.
    pub fn remove(&mut self, handle: u64) -> Result<()> {
        let (target, grant) = (target(handle), removal_grant(handle));
        self.done(IoRequest::Remove { target, grant }, vec![]).map(|_| ())
    }

    pub fn status(&mut self) -> IoStatus {
        match self.ask(IoRequest::Status, vec![]).0 {
            IoReply::Status(status) => status,
            other => panic!("answered by {other:?}"),
        }
    }

    pub fn scrub(&mut self, from: ScrubPlace, most_bytes: u64) -> Scrubbed {
        match self.ask(IoRequest::Scrub { from, most_bytes }, vec![]).0 {
            IoReply::Scrubbed(scrubbed) => *scrubbed,
            other => panic!("answered by {other:?}"),
        }
    }

    /// Cuts the power at an arbitrary moment, and restarts the server.
    pub fn crash(&mut self) {
        // Pending disk writes may or may not have happened.
        for effect in std::mem::take(&mut self.pending) {
            if let Effect::Disk { request, .. } = effect
                && request.operation == Operation::Write
                && self.random.below(2) == 0
            {
                self.disk.submit(request, Box::new(drop));
            }
        }
        self.disk.crash(&mut self.random);
        self.restart();
    }

    /// Restarts the server on the existing files, with a working disk.
    pub fn restart(&mut self) {
        // A server does not start if the disk fails so that it cannot write the log.
        let faults = std::mem::take(&mut self.faults);
        self.restart_with_faults();
        self.faults = faults;
    }

    /// Restarts the server on the existing files, with the current faults of the disk.
    pub fn restart_with_faults(&mut self) {
        self.answers.clear();
        self.pending.clear();
        (self.stopped, self.started) = (false, false);
        let mut effects = Vec::new();
        self.server = IoServer::start(config(self.limits, self.scratch.clone()), &mut effects).unwrap();
        self.pending = effects;
        while !self.started && self.turn() {}
    }

    /// Lets time pass.
    pub fn tick(&mut self, seconds: u64) {
        for _ in 0..seconds {
            self.now_s += 1;
            self.step(Event::Tick);
        }
        self.run();
    }

    /// Sets the clock of the manager.
    pub fn set_manager(&mut self, manager_s: u64) {
        self.manager_ahead_s = i128::from(manager_s) - i128::from(self.now_s);
    }

    /// Sets the clock.
    pub fn set_clock(&mut self, by_s: i64) {
        self.now_s = self.now_s.saturating_add_signed(by_s);
    }

    pub fn stop(&mut self) {
        self.step(Event::Stop);
        self.run();
        assert!(self.stopped, "the server does not stop");
    }
}

pub fn read_request(handle: u64, regions: Regions) -> IoRequest {
    IoRequest::Read { target: target(handle), grant: grant(handle), regions }
}

pub fn write_request(handle: u64, regions: Regions) -> IoRequest {
    IoRequest::Write { target: target(handle), grant: grant(handle), regions }
}

pub fn noise(random: &mut Random, bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes + 8);
    while out.len() < bytes {
        out.extend(random.bits().to_le_bytes());
    }
    out.truncate(bytes);
    out
}
