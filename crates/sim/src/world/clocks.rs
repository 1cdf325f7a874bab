//! Clocks that jump, grants that are over by one of them, and clients that renew them.

use outcore_core::{ErrorKind, Grant, GrantTime, Handle, IoReply, ManagerReply, ManagerRequest};

use super::{Finding, Happening, MS, Plant, World};
use crate::client::{Call, Kind};
use crate::node::RequestKey;

/// No request is refused so often, each time with a new grant.
const MOST_REFUSALS: u32 = 30;

impl World {
    /// Somebody's clock jumps, and again some time later.
    pub(super) fn jump(&mut self) {
        if !self.is_calm {
            let what = self.clocks.jump(&mut self.random);
            self.jumps += 1;
            self.say(|| what);
            let after = self.random.between(1, 150) * MS;
            self.later(after, Happening::Jump);
        }
    }

    /// A server that asked for the time is told it, if the manager is reached.
    pub(super) fn tell_time(&mut self, server: usize, incarnation: u64) {
        if self.nodes[server].incarnation != incarnation {
            return;
        }
        let own_s = self.clocks.servers[server].now_s(self.now_ns);
        let is_lost = self.faults.network && !self.is_calm && self.random.once_in(10);
        let manager_s = match self.plant {
            Some(Plant::OwnClock) => Some(own_s),
            _ => Some(self.clocks.manager.now_s(self.now_ns)).filter(|_| !is_lost),
        };
        let wishes = self.nodes[server].told_time(self.now_ns, manager_s, own_s);
        self.fulfil(server, wishes);
    }

    /// The grant that a client has for a file, renewed if its clock says so.
    pub(super) fn grant(&mut self, client: usize, (handle, opened): (Handle, Grant), kind: &Kind) -> Grant {
        let now_s = self.clocks.clients[client].now_s(self.now_ns);
        let grants = &mut self.clients[client].grants;
        let (grant, time) = *grants.entry(handle).or_insert((opened, GrantTime::new(&opened, now_s)));
        if time.is_due(now_s) && self.plant != Some(Plant::KeepGrants) {
            // Of what has been removed meanwhile, the servers say so.
            return self.renewed(client, handle, kind).unwrap_or(grant);
        }
        grant
    }

    /// A new grant, unless the file is gone.
    fn renewed(&mut self, client: usize, handle: Handle, kind: &Kind) -> Option<Grant> {
        let grant = if *kind == Kind::Remove {
            let after = Handle(handle.0 - 1);
            match self.ask(ManagerRequest::Orphans { gone: vec![], after, most: 1 }) {
                ManagerReply::Orphans(orphans) => orphans.first().map(|orphan| orphan.grant),
                _ => None,
            }
        } else {
            match self.ask(ManagerRequest::Renew { handle, write: true }) {
                ManagerReply::Granted(grant) => Some(grant),
                _ => None,
            }
        };
        let grant = grant.filter(|grant| grant.handle == handle)?;
        let now_s = self.clocks.clients[client].now_s(self.now_ns);
        self.clients[client].grants.insert(handle, (grant, GrantTime::new(&grant, now_s)));
        Some(grant)
    }

    /// A server refused the grant of a request: it is made again with a new one. `Some` if there is none, and the answer
    /// that the client goes on with.
    pub(super) fn refused(
        &mut self,
        key: RequestKey,
        call: &Call,
        reply: &IoReply,
    ) -> Result<Option<IoReply>, Finding> {
        let is_denied = matches!(reply, IoReply::Failed(error) if error.kind == ErrorKind::Denied);
        let op = self.clients[key.client].op.as_ref();
        let Some(op) = op.filter(|_| is_denied && self.plant != Some(Plant::KeepGrants)) else {
            return Ok(Some(reply.clone()));
        };
        self.refusals += 1;
        if call.refusals == MOST_REFUSALS {
            return Err(format!(
                "request {key:?} was refused {MOST_REFUSALS} times, with a new grant each: {reply:?}"
            ));
        }
        if op.rank.as_ref().is_some_and(|rank| !rank.waits_for(&call.request)) {
            return Ok(Some(IoReply::Done));
        }
        let (handle, kind) = (op.handle, op.kind.clone());
        let Some(grant) = self.renewed(key.client, handle, &kind) else {
            return Ok(Some(IoReply::Failed(super::gone())));
        };
        let number = self.clients[key.client].again(call.clone(), grant);
        self.send(RequestKey { number, ..key });
        Ok(None)
    }
}
