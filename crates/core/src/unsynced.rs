//! A client's changes that are not durable yet, by the runs of the servers that acknowledged them. A
//! restarted server may have lost changes that an earlier run acknowledged. The server cannot know that, but
//! the client can.

use std::collections::BTreeMap;

use crate::{Handle, IoReply, IoRequest, ServerId};

/// One run of a server, from start to stop: a random number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Incarnation(pub u64);

impl Incarnation {
    /// Marks changes that no run acknowledged, or not one run alone. No run has this number.
    pub const NONE: Self = Self(0);
}

/// One client's changes that servers acknowledged and that are not synced yet, by file.
#[derive(Debug, Default)]
pub struct Unsynced {
    /// One entry for each file and server with changes that are neither synced nor removed.
    notes: BTreeMap<(Handle, ServerId), Vec<Note>>,
    losses: BTreeMap<Handle, u64>,
    /// The number of the last change.
    last: u64,
}

/// Changes that one run acknowledged, and the number of the last of them.
#[derive(Clone, Copy, Debug)]
struct Note {
    run: Incarnation,
    last: u64,
}

/// A sent request. The caller returns it with the answer, to [`Unsynced::answered`].
#[derive(Clone, Debug)]
pub struct Sent(Effect);

#[derive(Clone, Debug)]
enum Effect {
    Nothing,
    Changes(Handle, ServerId),
    /// `last` is the number of the last change that was acknowledged before; `runs` acknowledged those
    /// changes.
    Syncs {
        handle: Handle,
        server: ServerId,
        last: u64,
        runs: Vec<Incarnation>,
    },
    Removes(Handle, ServerId),
}

impl Unsynced {
    /// Records that a request is about to be sent to a server.
    pub fn sent(&self, server: ServerId, request: &IoRequest) -> Sent {
        Sent(match request {
            IoRequest::Write { target, .. }
            | IoRequest::SetLength { target, .. }
            | IoRequest::Reserve { target, .. } => Effect::Changes(target.handle, server),
            IoRequest::Sync { target, .. } => {
                let notes = self.notes.get(&(target.handle, server));
                let runs = notes.into_iter().flatten().map(|note| note.run).collect();
                Effect::Syncs { handle: target.handle, server, last: self.last, runs }
            }
            IoRequest::Remove { target, .. } => Effect::Removes(target.handle, server),
            _ => Effect::Nothing,
        })
    }

    /// Records that a process is about to ask for the end of a collective that writes this file, but is not durable.
    /// If it ends well, one run of the server has made all of its changes there.
    pub fn ends_collective(&self, server: ServerId, handle: Handle) -> Sent {
        Sent(Effect::Changes(handle, server))
    }

    /// Records the answer of a run of the server to a request. Returns true if the request was a sync, and
    /// changes acknowledged before it was sent may be lost. Each loss is reported once; afterwards those
    /// changes count as never made.
    #[must_use]
    pub fn answered(&mut self, sent: Sent, run: Incarnation, reply: &IoReply) -> bool {
        let is_good = match sent.0 {
            Effect::Syncs { .. } => matches!(reply, IoReply::Synced { .. } | IoReply::Absent),
            _ => matches!(reply, IoReply::Done),
        };
        if !is_good {
            return false;
        }
        match sent.0 {
            Effect::Nothing => false,
            Effect::Changes(handle, server) => {
                self.changed((handle, server), run);
                false
            }
            Effect::Syncs { handle, server, last, runs } => {
                self.synced((handle, server), last);
                let is_lost = runs.iter().any(|before| *before != run || *before == Incarnation::NONE);
                if is_lost {
                    *self.losses.entry(handle).or_default() += 1;
                }
                is_lost
            }
            Effect::Removes(handle, server) => {
                self.notes.remove(&(handle, server));
                self.losses.remove(&handle);
                false
            }
        }
    }

    /// Number of reported losses of a file's changes.
    pub fn losses(&self, handle: Handle) -> u64 {
        self.losses.get(&handle).copied().unwrap_or(0)
    }

    fn changed(&mut self, of: (Handle, ServerId), run: Incarnation) {
        self.last += 1;
        let notes = self.notes.entry(of).or_default();
        match notes.iter_mut().find(|note| note.run == run) {
            Some(note) => note.last = self.last,
            None => notes.push(Note { run, last: self.last }),
        }
    }

    /// Removes changes up to `last`: they are durable, or reported as lost. Later changes stay.
    fn synced(&mut self, of: (Handle, ServerId), last: u64) {
        let Some(notes) = self.notes.get_mut(&of) else { return };
        notes.retain(|note| note.last > last);
        if notes.is_empty() {
            self.notes.remove(&of);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Grant, Regions, Stripes, Target};

    const ONE: Incarnation = Incarnation(11);
    const TWO: Incarnation = Incarnation(22);
    const SERVER: ServerId = ServerId(3);

    fn target(handle: u64) -> (Target, Grant) {
        let stripes = Stripes::new(65_536, 2).unwrap_or_else(|error| panic!("{error}"));
        let grant = Grant { handle: Handle(handle), write: true, expires_s: 0, mac: [0; 32] };
        (Target { handle: Handle(handle), stripes, entry: 0, generation: 0 }, grant)
    }

    fn write() -> IoRequest {
        let (target, grant) = target(5);
        IoRequest::Write { target, grant, regions: Regions::default() }
    }

    fn sync() -> IoRequest {
        let (target, grant) = target(5);
        IoRequest::Sync { target, grant }
    }

    const SYNCED: IoReply = IoReply::Synced { length: 10, generation: 1 };

    fn done(notes: &mut Unsynced, request: &IoRequest, run: Incarnation) -> bool {
        let sent = notes.sent(SERVER, request);
        let reply = if matches!(request, IoRequest::Sync { .. }) { SYNCED } else { IoReply::Done };
        notes.answered(sent, run, &reply)
    }

    #[test]
    fn a_sync_by_the_run_that_answered_the_writes_is_good() {
        let mut notes = Unsynced::default();
        assert!(!done(&mut notes, &sync(), ONE));
        assert!(!done(&mut notes, &write(), ONE));
        assert!(!done(&mut notes, &write(), ONE));
        assert!(!done(&mut notes, &sync(), ONE));
        assert!(!done(&mut notes, &sync(), TWO), "what was synced is safe");
        assert_eq!((notes.notes.len(), notes.losses(Handle(5))), (0, 0));
    }

    #[test]
    fn a_sync_by_another_run_is_told_once() {
        let (target, grant) = target(5);
        let longer = IoRequest::SetLength { target, grant, local_length: 9, reserve: false };
        for change in [write(), longer] {
            let mut notes = Unsynced::default();
            done(&mut notes, &change, ONE);
            assert!(done(&mut notes, &sync(), TWO));
            assert_eq!(notes.losses(Handle(5)), 1);
            assert!(!done(&mut notes, &sync(), TWO));
            assert!(!done(&mut notes, &change, TWO), "written again");
            assert!(!done(&mut notes, &sync(), TWO));
        }
    }

    #[test]
    fn one_lost_write_of_many_is_enough() {
        for runs in [[ONE, TWO], [TWO, ONE], [Incarnation::NONE, TWO], [TWO, Incarnation::NONE]] {
            let mut notes = Unsynced::default();
            for run in runs {
                done(&mut notes, &write(), run);
            }
            assert!(done(&mut notes, &sync(), TWO), "{runs:?}");
        }
        let mut notes = Unsynced::default();
        done(&mut notes, &write(), Incarnation::NONE);
        assert!(done(&mut notes, &sync(), Incarnation::NONE), "nobody knows that it was the same");
    }

    #[test]
    fn what_is_answered_after_a_sync_was_sent_waits_for_the_next() {
        let mut notes = Unsynced::default();
        done(&mut notes, &write(), ONE);
        let racing = notes.sent(SERVER, &sync());
        done(&mut notes, &write(), ONE);
        assert!(!notes.answered(racing, ONE, &SYNCED));
        assert!(done(&mut notes, &sync(), TWO), "the second write");
        // A late answer to a sync of an earlier run removes no change of a later run.
        let late = notes.sent(SERVER, &sync());
        done(&mut notes, &write(), TWO);
        assert!(!notes.answered(late, ONE, &SYNCED));
        assert!(done(&mut notes, &sync(), ONE));
    }

    #[test]
    fn syncs_at_once_are_all_told() {
        let mut notes = Unsynced::default();
        done(&mut notes, &write(), ONE);
        let (a, b) = (notes.sent(SERVER, &sync()), notes.sent(SERVER, &sync()));
        assert!(notes.answered(a, TWO, &SYNCED));
        assert!(notes.answered(b, TWO, &SYNCED));
    }

    #[test]
    fn what_failed_changes_nothing() {
        let mut notes = Unsynced::default();
        let failed = IoReply::Failed(Error::invalid("no"));
        let sent = notes.sent(SERVER, &write());
        assert!(!notes.answered(sent, ONE, &failed));
        assert!(!done(&mut notes, &sync(), TWO), "nobody was told that it is written");
        done(&mut notes, &write(), ONE);
        let sent = notes.sent(SERVER, &sync());
        assert!(!notes.answered(sent, TWO, &failed));
        assert!(done(&mut notes, &sync(), TWO), "the next one tells it");
    }

    #[test]
    fn files_and_servers_are_apart() {
        let mut notes = Unsynced::default();
        done(&mut notes, &write(), ONE);
        let (other, grant) = target(6);
        assert!(!done(&mut notes, &IoRequest::Sync { target: other, grant }, TWO));
        let elsewhere = notes.sent(ServerId(4), &sync());
        assert!(!notes.answered(elsewhere, TWO, &SYNCED));
        let (target, grant) = target(5);
        done(&mut notes, &IoRequest::Remove { target, grant }, TWO);
        assert!(!done(&mut notes, &sync(), TWO), "of a file that is gone nothing is to be told");
    }
}
