//! The operations of the clients, and checks of the answers that they get.

use outcore_core::{Error, ErrorKind, Incarnation, IoReply, IoRequest, Regions};

use super::{BEGIN_NS, Finding, Happening, MS, Plant, World};
use crate::client::{Call, Kind, SimFile, random_regions};
use crate::collective::{Collective, Next, Rank};
use crate::model::pattern;
use crate::node::RequestKey;

/// Time limit of a collective, which one that makes progress never reaches.
const CLIENT_PATIENCE_NS: u64 = 10_000 * MS;

/// Whether an operation of this kind tolerates the removal of its file by another client.
fn goes_on_without_it(kind: &Kind) -> bool {
    matches!(kind, Kind::Remove | Kind::Read | Kind::Write(_) | Kind::Sync)
}

/// The generation that a request names.
fn generation_of(request: &IoRequest) -> u64 {
    match request {
        IoRequest::Read { target, .. } | IoRequest::Sync { target, .. } => target.generation,
        _ => 0,
    }
}

/// The circumstances of an answer: its client, and the incarnation of the server.
struct Told {
    client: usize,
    incarnation: u64,
    /// Whether it is a sync whose earlier writes may have been lost.
    is_refused: bool,
    begun_ns: u64,
}

impl World {
    pub(super) fn begin(&mut self, client: usize, file: usize, kind: Kind, regions: Regions) {
        let files = if kind == Kind::Remove { &self.orphans } else { &self.files };
        let opened = (files[file].handle, files[file].grant);
        // Only a removal grant allows removal, and it allows nothing else. The client's other grant is for the
        // open file.
        let grant = if kind == Kind::Remove { opened.1 } else { self.grant(client, opened) };
        let files = if kind == Kind::Remove { &self.orphans } else { &self.files };
        let op = self.clients[client].begin((&files[file], grant), file, kind, regions, self.now_ns);
        let numbers: Vec<u64> = op.calls.keys().copied().collect();
        let about = (op.kind.clone(), op.regions.parts().to_vec());
        if let Kind::Write(write) = op.kind {
            for run in op.regions.runs() {
                self.files[file].model.sent(write, client, run.offset, run.offset + run.length);
            }
        }
        self.say(|| {
            format!("client {client}: {:?} of file {file}, {:?}, requests {numbers:?}", about.0, about.1)
        });
        for number in numbers {
            self.send(RequestKey { client, number });
        }
    }

    /// Starts a client's next operation.
    pub(super) fn think(&mut self, client: usize) -> Result<(), Finding> {
        if let Some(unfinished) = self.clients[client].unfinished.take() {
            return self.go_on_with(client, unfinished);
        }
        if self.clients[client].is_dead
            || !self.clients[client].is_idle()
            || self.renews(client)
            || self.joins(client)
        {
            return Ok(());
        }
        if self.clients[client].left == 0 {
            return Ok(());
        }
        self.clients[client].left -= 1;
        self.damage();
        let mut others = self.clients.iter().filter_map(|other| other.op.as_ref());
        if !self.orphans.is_empty() && self.random.once_in(3) && others.all(|op| op.kind != Kind::Remove) {
            self.begin(client, 0, Kind::Remove, Regions::default());
            return Ok(());
        }
        let number = self.random.below(self.files.len() as u64) as usize;
        if !self.files[number].is_made {
            self.later(MS, Happening::Think { client });
            self.clients[client].left += 1;
            return Ok(());
        }
        if self.collective.as_ref().is_some_and(|collective| collective.file == number) {
            // While a collective on this file is pending, the client draws no other one.
        } else if self.collective.is_none()
            // No client hears the generation of data that a collective made durable.
            && !self.faults.old_copies
            && !self.files[number].is_leaving
            && self.random.once_in(12)
        {
            self.draw_collective(client, number);
            return Ok(());
        }
        let is_awaited = self.collective.as_ref().is_some_and(|collective| collective.file == number);
        let mut others = self.clients.iter().filter_map(|other| other.op.as_ref());
        if !is_awaited
            && !self.files[number].is_leaving
            && self.random.once_in(20)
            && others.all(|op| op.file != number || goes_on_without_it(&op.kind))
        {
            self.replace(client, number);
            return Ok(());
        }
        let file = &self.files[number];
        let (kind, start, end) = match self.random.below(10) {
            0..5 => {
                // Clients write only their own parts of a file, so writes never overlap.
                let own: Vec<usize> =
                    (0..file.parts.len()).filter(|part| part % self.owners == client).collect();
                if own.is_empty() {
                    (Kind::Read, 0, file.model.length())
                } else {
                    let part = *self.random.pick(&own);
                    let start = if part == 0 { 0 } else { file.parts[part - 1] };
                    self.next_write += 1;
                    (Kind::Write(self.next_write), start, file.parts[part])
                }
            }
            5..8 => (Kind::Read, 0, file.model.length()),
            _ => (Kind::Sync, 0, file.model.length()),
        };
        let regions = random_regions(&mut self.random, start, end);
        self.begin(client, number, kind, regions);
        Ok(())
    }

    /// Draws a collective on a file, for all clients that still work. This client begins.
    fn draw_collective(&mut self, client: usize, number: usize) {
        let is_write = self.random.once_in(2) && !self.files[number].is_haunted;
        let write = is_write.then_some(self.next_write + 1);
        self.next_write += u64::from(write.is_some());
        let at_work = |&other: &usize| {
            let other = &self.clients[other];
            other.left > 0 || !other.is_idle()
        };
        let mut clients: Vec<usize> = (0..self.clients.len()).filter(at_work).collect();
        if !clients.contains(&client) {
            clients.push(client);
        }
        let id = u128::from(self.random.bits());
        let file = (number, &self.files[number]);
        let mut collective = Collective::new(&mut self.random, id, file, write, clients);
        if self.plant == Some(Plant::WaitForever) {
            collective.spec.patience_s = u64::MAX;
        }
        self.collective = Some(collective);
        self.joins(client);
    }

    /// Whether a client begins its part in a pending collective.
    fn joins(&mut self, client: usize) -> bool {
        let Some(mut collective) = self.collective.take_if(|it| it.missing.contains(&client)) else {
            return false;
        };
        let (number, kind) = (collective.file, Kind::Collective(collective.write));
        let grant = self.grant(client, (self.files[number].handle, self.files[number].grant));
        let file = &mut self.files[number];
        let Some((rank, nexts)) = Rank::join(&collective, client, file, grant) else { return false };
        if let Some(write) = collective.write.filter(|_| collective.missing.len() == collective.clients.len())
        {
            // The first client records the write for all of them.
            for &(start, end) in collective.covered.iter() {
                file.model.sent(write, collective.clients[0], start, end);
            }
            for &(start, end) in &collective.padding {
                file.model.sent(0, collective.clients[0], start, end);
            }
        }
        let all = Regions::contiguous(0, file.model.length()).unwrap_or_default();
        collective.missing.remove(&client);
        if !collective.missing.is_empty() {
            self.collective = Some(collective);
        }
        self.begin(client, number, kind, all);
        if let Some(op) = &mut self.clients[client].op {
            op.rank = Some(Box::new(rank));
        }
        self.ask_next(client, nexts);
        let begun_ns = self.now_ns;
        self.later(CLIENT_PATIENCE_NS, Happening::GiveUp { client, begun_ns });
        true
    }

    /// Sends a client's next requests of a collective.
    fn ask_next(&mut self, client: usize, nexts: Vec<Next>) {
        let Some(op) = &self.clients[client].op else { return };
        let servers = self.files[op.file].layout.servers.clone();
        let notes = self.plant != Some(Plant::ForgetCollectives);
        for number in self.clients[client].add(&servers, nexts, notes) {
            self.send(RequestKey { client, number });
        }
    }

    /// Makes a client abandon a collective that takes too long, because servers that restart repeatedly forget it.
    pub(super) fn give_up(&mut self, client: usize, begun_ns: u64) {
        let op = self.clients[client].op.as_mut().filter(|op| op.begun_ns == begun_ns);
        if let Some((op, rank)) = op.and_then(|op| op.rank.take().map(|rank| (op, rank))) {
            let mut rank = rank;
            let nexts = rank.give_up(&Error::new(ErrorKind::Io, "it takes too long"));
            op.has_failed = true;
            op.rank = Some(rank);
            self.ask_next(client, nexts);
        }
    }

    pub(super) fn answered(
        &mut self,
        key: RequestKey,
        incarnation: u64,
        reply: IoReply,
        bytes: &[u8],
    ) -> Result<(), Finding> {
        let client = &mut self.clients[key.client];
        let Some(op) = &mut client.op else { return Ok(()) };
        let Some(call) = op.calls.remove(&key.number) else { return Ok(()) };
        if self.is_refused(key, incarnation, &call, &reply)? {
            return Ok(());
        }
        self.concluded(key, call, incarnation, reply, bytes)
    }

    /// Continues a client's operation after an answer.
    pub(super) fn concluded(
        &mut self,
        key: RequestKey,
        call: Call,
        incarnation: u64,
        reply: IoReply,
        bytes: &[u8],
    ) -> Result<(), Finding> {
        let client = &mut self.clients[key.client];
        let Some(op) = &mut client.op else { return Ok(()) };
        let (kind, begun_ns, file) = (op.kind.clone(), op.begun_ns, op.file);
        // After the removal of a file that is still in use, only the answers themselves are checked.
        let is_gone =
            kind != Kind::Remove && (op.handle != self.files[file].handle || self.files[file].is_leaving);
        if self.trace {
            println!(
                "{:>10.3} ms  {key:?} is answered: {reply:?}",
                (self.now_ns - BEGIN_NS) as f64 / MS as f64
            );
        }
        let regions = op.regions.clone();
        op.has_failed |=
            !matches!(reply, IoReply::Done | IoReply::Absent | IoReply::Synced { .. } | IoReply::ReadsMemory);
        let run = if self.plant == Some(Plant::IgnoreIncarnation) { 1 } else { incarnation };
        if let Some(rank) = &mut op.rank {
            let nexts = rank.answered(call.entry, &call.request, &reply);
            self.ask_next(key.client, nexts);
        }
        let client = &mut self.clients[key.client];
        let Some(op) = &mut client.op else { return Ok(()) };
        let rank = op.rank.clone();
        op.calls.retain(|_, call| rank.as_ref().is_none_or(|rank| rank.waits_for(&call.request)));
        let is_refused = client.unsynced.answered(call.sent.clone(), Incarnation(run), &reply);
        let (is_done, has_failed) = (op.calls.is_empty() && op.renewing == 0, op.has_failed);
        if is_done {
            client.op = None;
            self.operations += 1;
            let after = self.random.between(1, 5 * MS);
            self.later(after, Happening::Think { client: key.client });
        }
        if is_done && has_failed && kind == Kind::Make {
            self.begin(key.client, file, Kind::Make, regions.clone());
        } else if is_done && !has_failed {
            match kind {
                Kind::Make => self.files[file].is_made = true,
                Kind::Remove => {
                    let gone = self.orphans.remove(file).handle;
                    self.forget(key.client, gone);
                }
                _ => {}
            }
        }
        if is_refused && self.crashes == 0 {
            return Err(format!("file {file} may have lost writes, though no server was started again"));
        }
        if is_done && !has_failed && matches!(kind, Kind::Collective(_)) {
            self.collectives += 1;
            self.collectives_in_rounds += u64::from(rank.as_ref().is_some_and(|rank| rank.has_rounds()));
        }
        if is_gone {
            return self.check_gone(&reply);
        }
        if let (Some(rank), IoReply::Done | IoReply::ReadsMemory) = (&rank, &reply) {
            let told = Told { client: key.client, incarnation, is_refused, begun_ns };
            return self.check_collective(rank, &call, file, &told, bytes);
        }
        if reply == IoReply::Absent && generation_of(&call.request) > 0 {
            // The client learns that the data file is lost.
            let why = if self.flipped { None } else { Some("though no disk lost it") };
            return why.map_or(Ok(()), |why| Err(format!("a data file of file {file} is absent, {why}")));
        }
        self.learn(file, call.server, &reply);
        let told = Told { client: key.client, incarnation, is_refused, begun_ns };
        match reply {
            // If the server has no data file, the bytes are zeros.
            IoReply::Done | IoReply::Absent | IoReply::Synced { .. } => {
                if kind == Kind::Sync {
                    self.check_durable(&call, file, begun_ns, &reply)?;
                }
                self.check(&call, &kind, file, &regions, &told, bytes)
            }
            IoReply::Failed(error) => {
                self.excuse(&error, matches!(kind, Kind::Collective(_))).map_or(Ok(()), |why| {
                    Err(format!("{kind:?} of file {file} on server {} failed {why}: {error}", call.server.0))
                })
            }
            other => Err(format!("the answer to {kind:?} is {other:?}")),
        }
    }

    /// Checks an answer about a removed file.
    fn check_gone(&self, reply: &IoReply) -> Result<(), Finding> {
        match reply {
            IoReply::Done | IoReply::Absent | IoReply::Synced { .. } => Ok(()),
            IoReply::Failed(error) if error.kind == ErrorKind::NotFound => Ok(()),
            IoReply::Failed(error) => self.excuse(error, false).map_or(Ok(()), |why| {
                Err(format!("a request of a file that was removed failed {why}: {error}"))
            }),
            other => Err(format!("the answer of a file that was removed is {other:?}")),
        }
    }

    /// Returns why an error is not permitted, or `None` if it is.
    fn excuse(&self, error: &Error, is_collective: bool) -> Option<&'static str> {
        match error.kind {
            // A block that cannot be read after a crash or a failed write counts as damaged.
            ErrorKind::Io | ErrorKind::Corrupt if self.faults.errors => None,
            ErrorKind::Corrupt if self.flipped => None,
            ErrorKind::Corrupt => Some("though no disk changed a bit"),
            ErrorKind::DiskFull if self.faults.full => None,
            ErrorKind::Io if self.faults.sync_errors => None,
            // Servers may forget a collective when they lose power.
            _ if is_collective && (self.faults.full || self.flipped || self.crashes > 0) => None,
            // A collective cannot complete if one of its clients has died.
            _ if is_collective && self.deaths > 0 => None,
            _ => Some("without reason"),
        }
    }

    /// Checks the durable length that a server reports. It must not fall below an earlier report, since nobody
    /// truncates files here.
    fn check_durable(
        &mut self,
        call: &Call,
        file: usize,
        begun_ns: u64,
        reply: &IoReply,
    ) -> Result<(), Finding> {
        let handle = self.files[file].handle;
        let mut have = if let IoReply::Synced { length, .. } = reply { *length } else { 0 };
        if self.nodes[call.server.0 as usize].trusts_lengths {
            have = have.max(self.on_disk(call.server.0 as usize, handle));
        }
        let stripes = self.files[file].layout.stripes;
        let most = stripes.local_length(call.entry, self.files[file].model.length());
        if have > most {
            return Err(format!("server {} has {have} bytes of file {file}, need {most}", call.server.0));
        }
        let said = self.durable.entry((handle, call.server)).or_default();
        let before = said.iter().filter(|(at_ns, _)| *at_ns < begun_ns);
        let need = before.map(|(_, length)| *length).max().unwrap_or(0);
        said.push((self.now_ns, have));
        if have < need {
            return Err(format!(
                "server {} has {have} bytes of file {file}, and said that {need} were durable",
                call.server.0
            ));
        }
        Ok(())
    }

    /// Whether the server has lost power since it answered: then it may have lost anything that it did before.
    fn is_in_doubt(&self, call: &Call, incarnation: u64) -> bool {
        let node = &self.nodes[call.server.0 as usize];
        !node.is_up() || node.incarnation != incarnation
    }

    /// Checks the answer of a server against the model.
    fn check(
        &mut self,
        call: &Call,
        kind: &Kind,
        file: usize,
        regions: &Regions,
        told: &Told,
        bytes: &[u8],
    ) -> Result<(), Finding> {
        if *kind == Kind::Remove {
            return Ok(());
        }
        let Told { client, incarnation, is_refused, begun_ns } = *told;
        let is_in_doubt = self.is_in_doubt(call, incarnation);
        // The model keeps contents that an operation in progress may still see.
        let ops = self.clients.iter().filter_map(|client| client.op.as_ref());
        let oldest_ns = ops.map(|op| op.begun_ns).fold(begun_ns, u64::min);
        let SimFile { layout, model, .. } = &mut self.files[file];
        let (stripes, entry) = (layout.stripes, call.entry);
        match kind {
            Kind::Make | Kind::Remove | Kind::Collective(_) => {}
            Kind::Write(write) => {
                for run in regions.runs() {
                    for (start, end) in SimFile::on_entry(stripes, entry, run.offset, run.offset + run.length)
                    {
                        model.answered((*write, client), start, end, self.now_ns, is_in_doubt);
                    }
                }
            }
            Kind::Sync => {
                for (start, end) in SimFile::on_entry(stripes, entry, 0, model.length()) {
                    if is_refused {
                        model.refused(client, start, end);
                    } else {
                        model.synced(client, start, end, oldest_ns);
                    }
                }
            }
            Kind::Read => {
                let mut at = 0;
                for run in regions.runs() {
                    for (start, end) in SimFile::on_entry(stripes, entry, run.offset, run.offset + run.length)
                    {
                        let part = &bytes[at..at + (end - start) as usize];
                        at += part.len();
                        if let Some((offset, byte, writes)) = model.unexplained(start, part, begun_ns) {
                            return Err(format!(
                                "byte {offset} of file {file}, on server {}, reads as {byte}; it could be of \
                                 the writes {writes:?}, which are {:?}",
                                call.server.0,
                                writes.iter().map(|w| pattern(*w, offset)).collect::<Vec<_>>(),
                            ));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Checks a server's answer in a collective: the bytes taken are correct, and at the end the written bytes are
    /// written, or safe.
    fn check_collective(
        &mut self,
        rank: &Rank,
        call: &Call,
        file: usize,
        told: &Told,
        bytes: &[u8],
    ) -> Result<(), Finding> {
        let is_in_doubt = self.is_in_doubt(call, told.incarnation);
        let SimFile { layout, model, .. } = &mut self.files[file];
        match (&call.request, rank.write()) {
            (IoRequest::Take { piece, .. }, _) => {
                for (offset, byte) in rank.offsets(call.entry, *piece).into_iter().zip(bytes) {
                    if let Some((offset, byte, writes)) = model.unexplained(offset, &[*byte], told.begun_ns) {
                        return Err(format!(
                            "byte {offset} of file {file} is taken as {byte}; it could be of the writes {writes:?}"
                        ));
                    }
                }
            }
            (IoRequest::Give { piece, .. }, Some(write)) if self.plant == Some(Plant::TrustShares) => {
                for offset in rank.offsets(call.entry, *piece) {
                    model.safe(write, offset, offset + 1, self.now_ns);
                }
            }
            (IoRequest::Await { round: None, .. }, Some(write)) => {
                for &(start, end) in rank.covered().iter() {
                    for (start, end) in SimFile::on_entry(layout.stripes, call.entry, start, end) {
                        if rank.needs_sync() {
                            model.answered((write, told.client), start, end, self.now_ns, is_in_doubt);
                        } else {
                            model.safe(write, start, end, self.now_ns);
                        }
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }
}
