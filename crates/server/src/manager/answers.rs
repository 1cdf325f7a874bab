//! Completed requests, by the numbers that clients gave them. If a client repeats a request, the manager does not
//! execute it a second time, even after a restart. The note on a request is part of the commit that executed it.

use std::collections::HashMap;

use outcore_core::wire::{Record, Source};
use outcore_core::{Handle, ManagerReply, ManagerRequest, Origin, Result};

use sha2::{Digest, Sha256};

use super::keys::{self, Client};
use super::walk::not_found;
use super::{MAX_PAGE, Manager, Now, User, record};
use crate::store::{MAX_RANGE, Store, Write};

/// Noted requests per client. Each new note replaces the one whose number is this much lower.
const MOST_OF_A_CLIENT: u64 = 16;
/// Seconds after which no client repeats a request.
const KEPT_S: u64 = 3600;
/// Seconds that count between two requests, at most, because the clock may jump.
const MOST_PASSED_S: u64 = 1;
/// The manager looks for old notes once in this many requests. Each later request removes a few of them.
const LOOK_EVERY: u64 = 256;
const FORGOTTEN_AT_ONCE: usize = 4;

/// Purpose of the hash, at the start of the hashed bytes.
const OF_CLIENTS: &[u8] = b"outcore client of user 1\0";

/// The note on a completed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// Number of the request.
    pub number: u64,
    /// User id of the caller.
    pub uid: u32,
    /// Time of execution in seconds since 1970, for administrators.
    pub at_s: u64,
    /// The file that the request created.
    pub made: Option<Handle>,
}

impl Record for Note {
    fn put(&self, to: &mut Vec<u8>) {
        self.number.put(to);
        self.uid.put(to);
        self.at_s.put(to);
        self.made.put(to);
    }

    fn take(from: &mut Source<'_>) -> Result<Self> {
        Ok(Self {
            number: u64::take(from)?,
            uid: u32::take(from)?,
            at_s: u64::take(from)?,
            made: Record::take(from)?,
        })
    }
}

/// A slot for a note: the client, and the index of the slot.
type Place = (Client, u8);

/// The slot of a request. It depends on the user and on the number that the client chose for itself: a user who
/// learns the number of another user's client gets neither its answers nor its slots.
fn place(origin: Origin, uid: u32) -> Place {
    let digest = Sha256::new().chain_update(OF_CLIENTS).chain_update(uid.to_le_bytes());
    let digest = digest.chain_update(origin.client.to_le_bytes()).finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    (Client(u128::from_be_bytes(first)), (origin.number % MOST_OF_A_CLIENT) as u8)
}

/// All notes, as the store contains them.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// Each note, and when it was loaded or written, in seconds of `running_s`.
    notes: HashMap<Place, (Note, u64)>,
    /// Old notes, which later commits remove.
    old: Vec<Place>,
    requests: u64,
    /// Seconds of activity, independent of clock jumps; and the last time of the clock.
    running_s: u64,
    at_s: u64,
}

impl Answers {
    pub(super) fn load<S: Store>(store: &S) -> Result<Self> {
        let mut answers = Self::default();
        let (mut from, until) = keys::all_answers();
        loop {
            let found = store.range(&from, &until, MAX_RANGE)?;
            let Some((last, _)) = found.last() else { return Ok(answers) };
            from = [last.as_slice(), &[0]].concat();
            for (key, versioned) in &found {
                if let Some(place) = keys::answer_in(key) {
                    answers.notes.insert(place, (record::read(key, &versioned.value)?, 0));
                }
            }
        }
    }

    fn find(&self, origin: Origin, who: &User) -> Option<Note> {
        let (note, _) = self.notes.get(&place(origin, who.uid))?;
        (note.number == origin.number && note.uid == who.uid).then_some(*note)
    }

    /// The extra writes of the commit that executes a request: its note, and the removal of old notes. At most
    /// `room` of them.
    pub(super) fn writes(&mut self, origin: Origin, note: &Note, room: usize) -> Vec<Write> {
        self.requests += 1;
        let passed_s = note.at_s.saturating_sub(std::mem::replace(&mut self.at_s, note.at_s));
        self.running_s += passed_s.min(MOST_PASSED_S);
        if self.requests.is_multiple_of(LOOK_EVERY) && self.old.is_empty() {
            let running_s = self.running_s;
            let is_old = |(_, (_, since_s)): &(&Place, &(Note, u64))| since_s + KEPT_S < running_s;
            self.old = self.notes.iter().filter(is_old).map(|(place, _)| *place).collect();
        }
        let here = place(origin, note.uid);
        self.old.retain(|place| *place != here);
        let forgotten = self.old.iter().rev().take(FORGOTTEN_AT_ONCE);
        let forgotten = forgotten.map(|&place| Write { key: keys::answer(place), value: None });
        let noted = Write { key: keys::answer(here), value: Some(record::write(note)) };
        std::iter::once(noted).chain(forgotten).take(room).collect()
    }

    /// Records that the commit succeeded, with this many old notes removed.
    pub(super) fn written(&mut self, origin: Origin, note: Note, forgotten: usize) {
        self.notes.insert(place(origin, note.uid), (note, self.running_s));
        let left = self.old.len().saturating_sub(forgotten);
        for place in self.old.drain(left..) {
            self.notes.remove(&place);
        }
    }
}

/// Whether executing the request twice would fail or do harm.
fn is_noted(request: &ManagerRequest) -> bool {
    matches!(
        request,
        ManagerRequest::Create { .. }
            | ManagerRequest::MakeDirectory { .. }
            | ManagerRequest::MakeLink { .. }
            | ManagerRequest::Remove { .. }
            | ManagerRequest::Rename { .. }
            | ManagerRequest::Move { .. }
            | ManagerRequest::Replace { .. }
            | ManagerRequest::SetAttributes { .. }
            | ManagerRequest::SetDefaultLayout { .. }
            | ManagerRequest::SetExtended { .. }
            | ManagerRequest::Touch { .. }
            | ManagerRequest::BeginCut { .. }
            | ManagerRequest::EndCut { .. }
    )
}

impl<S: Store> Manager<S> {
    /// Answers a request. `origin` identifies it if the client may repeat it.
    pub fn handle_from(
        &mut self,
        now: Now,
        who: &User,
        origin: Option<Origin>,
        request: ManagerRequest,
    ) -> ManagerReply {
        let origin = origin.filter(|_| is_noted(&request));
        if self.has_lost_answers {
            match Answers::load(&self.store) {
                Ok(answers) => (self.answers, self.has_lost_answers) = (answers, false),
                Err(error) => return ManagerReply::Failed(error),
            }
        }
        if let Some(note) = origin.and_then(|origin| self.answers.find(origin, who)) {
            return self.again(now, who, &request, &note).unwrap_or_else(ManagerReply::Failed);
        }
        self.origin = origin;
        let reply = self.handle(now, who, request);
        self.origin = None;
        reply
    }

    /// Answers a request that was executed earlier, from the current state.
    fn again(&mut self, now: Now, who: &User, request: &ManagerRequest, note: &Note) -> Result<ManagerReply> {
        match request {
            ManagerRequest::Create { path, .. } => {
                let made = note.made.ok_or_else(|| not_found(path))?;
                let node = self.view(now, who, |step| step.get_node(made))?;
                // The file may have been removed since.
                Ok(self.opened(now, node.ok_or_else(|| not_found(path))?.inode, true))
            }
            ManagerRequest::Remove { .. }
            | ManagerRequest::Rename { .. }
            | ManagerRequest::Replace { .. } => self.page_of_orphans(now, who, Handle(0), MAX_PAGE),
            ManagerRequest::BeginCut { handle, .. } | ManagerRequest::EndCut { handle } => {
                self.describe(now, who, *handle)
            }
            _ => Ok(ManagerReply::Done),
        }
    }
}
