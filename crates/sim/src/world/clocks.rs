//! Clocks that jump, grants that expire by one of them, and clients that renew grants.

use outcore_core::{ErrorKind, Grant, GrantTime, Handle, IoReply, ManagerRequest};

use super::{Finding, Happening, MS, Plant, World};
use crate::client::{Call, Kind, Purpose, SimFile};
use crate::node::RequestKey;

/// Refusals of one request, each time with a new grant, at most.
const MOST_REFUSALS: u32 = 30;

impl World {
    /// Makes a random clock jump, and schedules the next jump.
    pub(super) fn jump(&mut self) {
        if !self.is_calm {
            let what = self.clocks.jump(&mut self.random);
            self.jumps += 1;
            self.say(|| what);
            let after = self.random.between(1, 150) * MS;
            self.later(after, Happening::Jump);
        }
    }

    /// Answers a server's query of the time, if the manager is reachable.
    pub(super) fn tell_time(&mut self, server: usize, incarnation: u64) {
        if self.nodes[server].incarnation != incarnation {
            return;
        }
        let own_s = self.clocks.servers[server].now_s(self.now_ns);
        let is_lost =
            !self.manager.is_up() || self.faults.network && !self.is_calm && self.random.once_in(10);
        let manager_s = match self.plant {
            Some(Plant::OwnClock) => Some(own_s),
            _ => Some(self.clocks.manager.now_s(self.now_ns)).filter(|_| !is_lost),
        };
        let wishes = self.nodes[server].told_time(self.now_ns, manager_s, own_s);
        self.fulfil(server, wishes);
    }

    /// The grant of a client for a file. Initially this is the grant from the file's creation, which all clients
    /// share.
    pub(super) fn grant(&mut self, client: usize, (handle, opened): (Handle, Grant)) -> Grant {
        let now_s = self.clocks.clients[client].now_s(self.now_ns);
        self.clients[client].grants.entry(handle).or_insert((opened, GrantTime::new(&opened, now_s))).0
    }

    /// Renews a grant that is due by the client's clock, before the client's next operation. Returns whether one
    /// was due.
    pub(super) fn renews(&mut self, client: usize) -> bool {
        let now_s = self.clocks.clients[client].now_s(self.now_ns);
        let is_due = |file: &&SimFile| {
            let found = self.clients[client].grants.get(&file.handle);
            !file.is_leaving && found.is_some_and(|(_, time)| time.is_due(now_s))
        };
        if self.plant == Some(Plant::KeepGrants) {
            return false;
        }
        let Some(handle) = self.files.iter().find(is_due).map(|file| file.handle) else { return false };
        self.ask_for(client, ManagerRequest::Renew { handle, write: true }, Purpose::Renew(handle));
        true
    }

    /// Requests a new grant if a server refused the grant of a call, to repeat the call with it. Returns whether
    /// it does.
    pub(super) fn is_refused(
        &mut self,
        key: RequestKey,
        incarnation: u64,
        call: &Call,
        reply: &IoReply,
    ) -> Result<bool, Finding> {
        let is_denied = matches!(reply, IoReply::Failed(error) if error.kind == ErrorKind::Denied);
        let op = self.clients[key.client].op.as_mut();
        let Some(op) = op.filter(|_| is_denied && self.plant != Some(Plant::KeepGrants)) else {
            return Ok(false);
        };
        self.refusals += 1;
        if call.refusals == MOST_REFUSALS {
            return Err(format!(
                "request {key:?} was refused {MOST_REFUSALS} times, with a new grant each: {reply:?}"
            ));
        }
        op.renewing += 1;
        let handle = op.handle;
        let request = if op.kind == Kind::Remove {
            ManagerRequest::Orphans { gone: vec![], after: Handle(handle.0 - 1), most: 1 }
        } else {
            ManagerRequest::Renew { handle, write: true }
        };
        let call = Box::new(call.clone());
        self.ask_for(key.client, request, Purpose::Again { key, incarnation, call });
        Ok(true)
    }
}
