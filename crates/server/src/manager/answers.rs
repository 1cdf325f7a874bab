//! Requests that were done, by the numbers that clients gave them: one that is sent again, to a manager that was started
//! again since, is not done again. The note of it is a part of the commit that did it.

use std::collections::HashMap;

use outcore_core::wire::{Record, Source};
use outcore_core::{Handle, ManagerReply, ManagerRequest, Origin, Result};

use sha2::{Digest, Sha256};

use super::keys::{self, Client};
use super::walk::not_found;
use super::{MAX_PAGE, Manager, Now, User, record};
use crate::store::{MAX_RANGE, Store, Write};

/// Requests of one client that are noted: a later one takes the place of that which is so many numbers older.
const MOST_OF_A_CLIENT: u64 = 16;
/// No client sends a request again after so many seconds.
const KEPT_S: u64 = 3600;
/// Between two requests no more time counts than this: the clock jumps.
const MOST_PASSED_S: u64 = 1;
/// Notes are looked through for old ones once for so many requests; of these some go with each.
const LOOK_EVERY: u64 = 256;
const FORGOTTEN_AT_ONCE: usize = 4;

/// What is hashed begins with what it is for.
const OF_CLIENTS: &[u8] = b"outcore client of user 1\0";

/// What is noted of a request that was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// Of the request.
    pub number: u64,
    /// The user id of who made it.
    pub uid: u32,
    /// When it was done, in seconds since 1970, for people.
    pub at_s: u64,
    /// The file that it made.
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

/// Whose request is in which of the client's places.
type Place = (Client, u8);

/// A client is a user and the number that the client gave itself: whoever learns the number of another user's client
/// gets neither its answers nor its places.
fn place(origin: Origin, uid: u32) -> Place {
    let digest = Sha256::new().chain_update(OF_CLIENTS).chain_update(uid.to_le_bytes());
    let digest = digest.chain_update(origin.client.to_le_bytes()).finalize();
    let mut first = [0; 16];
    first.copy_from_slice(&digest[..16]);
    (Client(u128::from_be_bytes(first)), (origin.number % MOST_OF_A_CLIENT) as u8)
}

/// All notes, as the store has them.
#[derive(Debug, Default)]
pub(super) struct Answers {
    /// With when each of them was taken in, in seconds for which there were requests.
    notes: HashMap<Place, (Note, u64)>,
    /// Notes that are to be forgotten, with later commits.
    old: Vec<Place>,
    requests: u64,
    /// Seconds for which there were requests, whatever becomes of the clock, which said this last.
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

    /// What the commit that does a request writes besides: the note, and others that go. At most `room`.
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

    /// That was committed, with so many notes that went.
    pub(super) fn written(&mut self, origin: Origin, note: Note, forgotten: usize) {
        self.notes.insert(place(origin, note.uid), (note, self.running_s));
        let left = self.old.len().saturating_sub(forgotten);
        for place in self.old.drain(left..) {
            self.notes.remove(&place);
        }
    }
}

/// Whether a request that is done twice is refused, or does harm.
fn is_noted(request: &ManagerRequest) -> bool {
    matches!(
        request,
        ManagerRequest::Create { .. }
            | ManagerRequest::MakeDirectory { .. }
            | ManagerRequest::Remove { .. }
            | ManagerRequest::Rename { .. }
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
    /// Answers a request; `origin` says which it is, if it may be sent again.
    pub fn handle_from(
        &mut self,
        now: Now,
        who: &User,
        origin: Option<Origin>,
        request: ManagerRequest,
    ) -> ManagerReply {
        let origin = origin.filter(|_| is_noted(&request));
        if let Some(note) = origin.and_then(|origin| self.answers.find(origin, who)) {
            return self.again(now, who, &request, &note).unwrap_or_else(ManagerReply::Failed);
        }
        self.origin = origin;
        let reply = self.handle(now, who, request);
        self.origin = None;
        reply
    }

    /// Answers a request that was done before, by what there is of it now.
    fn again(&mut self, now: Now, who: &User, request: &ManagerRequest, note: &Note) -> Result<ManagerReply> {
        match request {
            ManagerRequest::Create { path, .. } => {
                let made = note.made.ok_or_else(|| not_found(path))?;
                let node = self.view(now, who, |step| step.get_node(made))?;
                // It may have been removed since.
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
