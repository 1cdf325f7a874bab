//! The manager of the world, which loses power, and the requests of clients to it. Its messages are late and lost
//! like others.

use outcore_core::{
    ErrorKind, Grant, GrantTime, Handle, Hints, IoReply, ManagerReply, ManagerRequest, Opened, Regions,
};
use outcore_server::manager::Now;

use super::{Finding, Happening, MS, PATIENCE_NS, Plant, World, said};
use crate::client::{Ask, Call, Kind, Purpose, SimFile};
use crate::manager_node::ManagerWish;
use crate::model::FileModel;
use crate::node::RequestKey;

/// An event at the manager, or on the way to or from it.
pub(super) enum Event {
    Arrives(RequestKey),
    Patience(RequestKey),
    Works { run: u64 },
    Synced { run: u64, groups: usize },
    Answered(RequestKey, ManagerReply),
    Crash,
    Start,
}

impl World {
    fn soon(&mut self, after_ns: u64, event: Event) {
        self.later(after_ns, Happening::Manager(event));
    }

    fn manager_now(&self) -> Now {
        Now { unix_ns: self.clocks.manager.now_ns(self.now_ns), running_ns: self.now_ns }
    }

    /// Calls the manager at once, as root. Used before and after the simulation of events.
    pub(super) fn ask(&mut self, request: ManagerRequest) -> ManagerReply {
        let now = self.manager_now();
        self.manager.ask(now, request)
    }

    pub(super) fn manager_happens(&mut self, event: Event) -> Result<(), Finding> {
        let (now, run_now) = (self.manager_now(), self.manager.run);
        match event {
            Event::Arrives(key) => {
                let asks = &self.clients[key.client].asks;
                if let Some(request) = asks.get(&key.number).map(|ask| ask.request.clone()) {
                    self.say(|| format!("the manager: request {key:?} arrives: {request:?}"));
                    let wishes = self.manager.arrives(now, key, request);
                    self.manager_wishes(wishes);
                }
            }
            Event::Patience(key) => self.send_ask(key),
            Event::Works { run } if run == run_now => {
                let wishes = self.manager.works(now).map_err(said)?;
                self.manager_wishes(wishes);
            }
            Event::Synced { run, groups } if run == run_now => {
                let wishes = self.manager.synced(groups);
                self.manager_wishes(wishes);
            }
            Event::Works { .. } | Event::Synced { .. } => {}
            Event::Answered(key, _) if self.clients[key.client].is_dead => {}
            Event::Answered(key, reply) => {
                if let Some(ask) = self.clients[key.client].asks.remove(&key.number) {
                    self.say(|| format!("the manager answers {key:?}: {reply:?}"));
                    return self.told(key.client, ask.purpose, reply);
                }
            }
            Event::Crash => {
                if !self.is_calm && self.manager.is_up() {
                    self.crash_manager();
                    let (down, up) = (self.random.between(1, 100) * MS, self.random.between(20, 400) * MS);
                    self.soon(down, Event::Start);
                    self.soon(down + up, Event::Crash);
                }
            }
            Event::Start => {
                self.say(|| "the manager starts".into());
                self.manager.start().map_err(said)?;
            }
        }
        Ok(())
    }

    pub(super) fn crash_manager(&mut self) {
        self.say(|| "the manager loses power".into());
        self.manager_crashes += 1;
        self.manager.crash(&mut self.random);
    }

    fn manager_wishes(&mut self, wishes: Vec<ManagerWish>) {
        let run = self.manager.run;
        for wish in wishes {
            match wish {
                ManagerWish::Answer(key, reply) => {
                    let is_lost = self.faults.network && !self.is_calm && self.random.once_in(30);
                    if !is_lost {
                        let after = self.delay();
                        self.soon(after, Event::Answered(key, reply));
                    }
                }
                ManagerWish::Work => self.soon(MS / 10, Event::Works { run }),
                ManagerWish::Sync(groups) => {
                    let after = self.random.between(MS / 10, 10 * MS);
                    self.soon(after, Event::Synced { run, groups });
                }
            }
        }
    }

    /// Sends a client's request to the manager, until it is answered.
    pub(super) fn ask_for(&mut self, client: usize, request: ManagerRequest, purpose: Purpose) {
        let one = &mut self.clients[client];
        one.last_asked += 1;
        let key = RequestKey { client, number: one.last_asked };
        one.asks.insert(key.number, Ask { request, purpose });
        self.send_ask(key);
    }

    fn send_ask(&mut self, key: RequestKey) {
        if self.clients[key.client].is_dead || !self.clients[key.client].asks.contains_key(&key.number) {
            return;
        }
        let is_lost = self.faults.network && !self.is_calm && self.random.once_in(30);
        if !is_lost {
            let after = self.delay();
            self.soon(after, Event::Arrives(key));
        }
        self.soon(PATIENCE_NS, Event::Patience(key));
    }

    /// Handles the manager's answer to a client.
    fn told(&mut self, client: usize, purpose: Purpose, reply: ManagerReply) -> Result<(), Finding> {
        match purpose {
            Purpose::Renew(handle) => {
                if self.renewed(client, handle, &reply).is_none() {
                    self.clients[client].grants.remove(&handle);
                }
                self.later(1, Happening::Think { client });
            }
            Purpose::Again { key, incarnation, call } => {
                return self.goes_on_with(key, incarnation, *call, &reply);
            }
            Purpose::Unname { number, again: true } if is_failed(&reply, ErrorKind::NotFound) => {
                let after = Handle(self.files[number].handle.0 - 1);
                let request = ManagerRequest::Orphans { gone: vec![], after, most: 1 };
                self.ask_for(client, request, Purpose::Unname { number, again: false });
            }
            Purpose::Unname { number, .. } => {
                let ManagerReply::Orphans(orphans) = reply else {
                    return Err(format!("file {number} cannot be removed: {reply:?}"));
                };
                let handle = self.files[number].handle;
                let Some(orphan) = orphans.iter().find(|orphan| orphan.inode.handle == handle) else {
                    return Err(format!("file {number}, {handle:?}, is not among the orphans {orphans:?}"));
                };
                let (request, grant) = (self.make_request(number), orphan.grant);
                self.ask_for(client, request, Purpose::Name { number, grant, again: false });
            }
            Purpose::Name { number, grant, again: true } if is_failed(&reply, ErrorKind::Exists) => {
                let request = ManagerRequest::Open { path: path(number), write: true };
                self.ask_for(client, request, Purpose::Name { number, grant, again: false });
            }
            Purpose::Name { number, grant, .. } => {
                let ManagerReply::Opened(opened) = reply else {
                    return Err(format!("file {number} cannot be made: {reply:?}"));
                };
                self.replaced(client, number, grant, *opened)?;
            }
            Purpose::Forget(_) => match reply {
                ManagerReply::Orphans(_) => self.later(1, Happening::Think { client }),
                reply => return Err(format!("the manager cannot forget a file that is gone: {reply:?}")),
            },
        }
        Ok(())
    }

    /// Stores a new grant, unless the file is gone.
    fn renewed(&mut self, client: usize, handle: Handle, reply: &ManagerReply) -> Option<Grant> {
        let grant = match reply {
            ManagerReply::Granted(grant) => *grant,
            ManagerReply::Orphans(orphans) => orphans.first()?.grant,
            _ => return None,
        };
        if grant.handle != handle {
            return None;
        }
        let now_s = self.clocks.clients[client].now_s(self.now_ns);
        self.clients[client].grants.insert(handle, (grant, GrantTime::new(&grant, now_s)));
        Some(grant)
    }

    /// Repeats a refused request with the new grant, if there is one.
    fn goes_on_with(
        &mut self,
        key: RequestKey,
        incarnation: u64,
        call: Call,
        reply: &ManagerReply,
    ) -> Result<(), Finding> {
        let Some(op) = &mut self.clients[key.client].op else { return Ok(()) };
        op.renewing -= 1;
        let is_awaited = op.rank.as_ref().is_none_or(|rank| rank.waits_for(&call.request));
        let handle = op.handle;
        let grant = self.renewed(key.client, handle, reply);
        match grant.filter(|_| is_awaited) {
            Some(grant) => {
                let number = self.clients[key.client].again(call, grant);
                self.send(RequestKey { number, ..key });
                Ok(())
            }
            None if is_awaited => self.concluded(key, call, incarnation, IoReply::Failed(super::gone()), &[]),
            None => self.concluded(key, call, incarnation, IoReply::Done, &[]),
        }
    }

    /// Starts the replacement of a file by a new one with the same name.
    pub(super) fn replace(&mut self, client: usize, number: usize) {
        self.files[number].is_leaving = true;
        self.unname(client, number, false);
    }

    /// Removes the name of a file.
    pub(super) fn unname(&mut self, client: usize, number: usize, again: bool) {
        let request = ManagerRequest::Remove { path: path(number), recursive: false };
        self.ask_for(client, request, Purpose::Unname { number, again });
    }

    /// Makes the manager forget a file whose data files a client has removed.
    pub(super) fn forget(&mut self, client: usize, gone: Handle) {
        let request = ManagerRequest::Orphans { gone: vec![gone], after: gone, most: 1 };
        self.ask_for(client, request, Purpose::Forget(gone));
    }

    pub(super) fn make_request(&mut self, number: usize) -> ManagerRequest {
        let units = [700, 4096, 5000, 65_536, 100_000];
        let unit = *self.random.pick(&units);
        // In some files, most or all of the end is on the last server.
        let round_units = (self.random.below(2) == 0).then(|| self.random.between(1, 300_000 / unit + 1));
        let hints = Hints {
            stripe_unit_bytes: Some(unit),
            round_units,
            stripe_count: Some(self.random.between(1, self.nodes.len() as u64)),
            ..Hints::default()
        };
        ManagerRequest::Create { path: path(number), hints, mode: 0o644 }
    }

    pub(super) fn new_file(&mut self, opened: Opened) -> Result<SimFile, Finding> {
        if !self.handles.insert(opened.inode.handle) {
            return Err(format!("{:?} was given to a file before", opened.inode.handle));
        }
        let length = self.random.between(1, 300_000);
        let mut parts: Vec<u64> = (0..self.random.below(8)).map(|_| self.random.between(1, length)).collect();
        parts.push(length);
        parts.sort_unstable();
        parts.dedup();
        Ok(SimFile {
            handle: opened.inode.handle,
            layout: opened.inode.layout.ok_or("a file without a layout")?,
            grant: opened.grant,
            model: FileModel::new(length),
            parts,
            is_made: false,
            is_leaving: false,
            is_haunted: false,
            generations: std::collections::BTreeMap::new(),
        })
    }

    /// Installs a new file in the place of one whose name was removed.
    fn replaced(
        &mut self,
        client: usize,
        number: usize,
        grant: Grant,
        opened: Opened,
    ) -> Result<(), Finding> {
        let mut file = self.new_file(opened)?;
        if self.plant == Some(Plant::ReuseHandle) {
            file.handle = self.files[number].handle;
            file.grant = self.files[number].grant;
            file.layout = self.files[number].layout.clone();
        }
        let mut old = std::mem::replace(&mut self.files[number], file);
        old.grant = grant;
        self.orphans.push(old);
        let all = Regions::contiguous(0, self.files[number].model.length()).map_err(said)?;
        self.begin(client, number, Kind::Make, all);
        Ok(())
    }

    /// Cuts the power of the manager again, and checks that every file has its name.
    pub(super) fn judge_names(&mut self) -> Result<(), Finding> {
        if self.faults.crashes {
            self.crash_manager();
            self.manager.start().map_err(said)?;
        }
        for number in 0..self.files.len() {
            let (handle, reply) =
                (self.files[number].handle, self.ask(ManagerRequest::Stat { path: path(number) }));
            let is_there = matches!(&reply, ManagerReply::Inode(inode) if inode.handle == handle);
            if !is_there && self.plant != Some(Plant::ReuseHandle) {
                return Err(format!("file {number} is {handle:?}, and the manager says {reply:?}"));
            }
        }
        Ok(())
    }
}

fn is_failed(reply: &ManagerReply, kind: ErrorKind) -> bool {
    matches!(reply, ManagerReply::Failed(error) if error.kind == kind)
}

fn path(number: usize) -> String {
    format!("f{number}")
}
