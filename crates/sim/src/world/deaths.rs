//! Clients that die, the continuation of their work, and the state that servers keep for them.

use outcore_core::Regions;

use super::{Finding, Happening, MS, Plant, TICK_NS, World, said};
use crate::client::{Kind, Op, Purpose, Unfinished};
use crate::collective::PATIENCE_S;
use crate::wall_clock::WallClock;

/// Longest time that a message is in flight, including its execution.
const LATEST_NS: u64 = 400 * MS;

impl World {
    /// Kills a client in the middle of its work, and adds its successor. The messages of the dead client stay in
    /// flight.
    pub(super) fn dies(&mut self, client: usize) {
        let one = &self.clients[client];
        if self.is_calm || one.is_dead {
            return;
        }
        if one.op.is_none() && one.asks.is_empty() {
            // The client is idle, so its death is postponed.
            let after = self.random.between(1, 20) * MS;
            return self.later(after, Happening::Dies { client });
        }
        self.deaths += 1;
        self.say(|| format!("client {client} dies; client {} comes", self.clients.len()));
        let (op, next) = self.clients[client].die();
        for file in &mut self.files {
            let is_its = |op: &Op| op.handle == file.handle && op.kind.writes();
            file.is_haunted |= op.as_ref().is_some_and(is_its);
        }
        // Clients that have already begun the collective wait for this one until they time out.
        self.collective.take_if(|collective| collective.missing.contains(&client));
        // The successor starts after all messages in flight have arrived or are lost.
        let after = if next.unfinished.is_some() { LATEST_NS } else { MS };
        self.taken_over += u64::from(next.unfinished.is_some());
        let heir = self.clients.len();
        self.clients.push(next);
        self.clocks.clients.push(WallClock::default());
        self.later(after, Happening::Think { client: heir });
        if self.random.once_in(2) {
            let until = self.random.between(1, 1000) * MS;
            self.later(until, Happening::Dies { client: heir });
        }
        for server in 0..self.nodes.len() {
            let after = self.delay();
            self.later(after, Happening::Leaves { server, client });
        }
        let job = |op: &Option<Op>| Some(op.as_ref()?.rank.as_ref()?.id());
        if let Some(id) = job(&op)
            && self.random.once_in(2)
        {
            // All clients of the collective are killed together.
            let others: Vec<usize> =
                (1..self.clients.len()).filter(|&other| job(&self.clients[other].op) == Some(id)).collect();
            others.into_iter().for_each(|other| self.dies(other));
        }
    }

    /// Tells a server that a client's connection has ended.
    pub(super) fn leaves(&mut self, server: usize, client: usize) {
        if self.plant != Some(Plant::KeepConnections) {
            self.nodes[server].leaves(self.now_ns, client);
        }
    }

    /// Continues the work of a dead client.
    pub(super) fn go_on_with(&mut self, client: usize, unfinished: Unfinished) -> Result<(), Finding> {
        self.say(|| format!("client {client} continues {unfinished:?}"));
        match unfinished {
            Unfinished::Make(number) => {
                let all = Regions::contiguous(0, self.files[number].model.length()).map_err(said)?;
                self.begin(client, number, Kind::Make, all);
            }
            Unfinished::Ask(Purpose::Unname { number, .. }) => self.unname(client, number, true),
            Unfinished::Ask(Purpose::Name { number, grant, .. }) => {
                let request = self.make_request(number);
                self.ask_for(client, request, Purpose::Name { number, grant, again: true });
            }
            Unfinished::Ask(Purpose::Forget(gone)) if self.plant != Some(Plant::LeaveOrphans) => {
                self.forget(client, gone);
            }
            Unfinished::Ask(_) => self.later(1, Happening::Think { client }),
        }
        Ok(())
    }

    /// Checks that servers drop the state of dead clients once the timeouts have expired.
    pub(super) fn give_up_the_gone(&mut self) -> Result<(), Finding> {
        if self.deaths == 0 {
            return Ok(());
        }
        for _ in 0..PATIENCE_S + 2 {
            self.now_ns += TICK_NS;
            for server in 0..self.nodes.len() {
                let wishes = self.nodes[server].tick(self.now_ns);
                self.fulfil(server, wishes);
            }
            self.go_on(|world| world.queue.is_empty())?;
        }
        let is_gone = |client: usize| self.clients[client].is_dead;
        let held = self.nodes.iter().find_map(|node| node.holds_of_gone(self.now_ns, is_gone));
        held.map_or(Ok(()), |what| Err(format!("after clients died, {what}")))
    }
}
