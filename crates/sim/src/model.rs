//! The permitted contents of a file: a naive model of the promises in `docs/semantics-pools.md`.
//!
//! Each write has a number, and every byte remembers which writes it may show. An answered write replaces the
//! earlier contents; an unanswered one may or may not have happened. A sync makes the writes answered before it
//! safe. A crash of a byte's server may undo any unsafe write. After a successful sync, all writes that the same
//! client saw answered earlier are there, even if the server crashed in between. Otherwise the sync fails with a
//! warning of lost writes.

use std::collections::BTreeMap;

/// Number of a write; 0 stands for the zeros of a new file.
pub type WriteId = u64;

/// The byte that a write stores at an offset of a file.
pub fn pattern(write: WriteId, offset: u64) -> u8 {
    if write == 0 {
        return 0;
    }
    let mixed = (write.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ offset).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    (mixed >> 56) as u8
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Written {
    write: WriteId,
    client: usize,
    /// Time of the answer; `None` if there was none, or if a crash made the write uncertain again.
    answered: Option<u64>,
    /// Time when its client received the answer, regardless of later crashes; `None` if it did not, or if a failed
    /// sync warned the client.
    told: Option<u64>,
}

/// The writes that some bytes may show, in the order in which they were sent. The first one is the last safe
/// write.
type History = Vec<Written>;

/// The permitted contents of a file.
#[derive(Clone, Debug)]
pub struct FileModel {
    /// Histories, by the first byte of the run that they apply to. The last run ends with the file.
    runs: BTreeMap<u64, History>,
    length: u64,
}

impl FileModel {
    /// A new file of zeros.
    pub fn new(length: u64) -> Self {
        let zeros = vec![Written { write: 0, client: usize::MAX, answered: Some(0), told: None }];
        Self { runs: BTreeMap::from([(0, zeros)]), length }
    }

    /// Length of the file.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Splits the run that contains `offset`, so that a run begins there.
    fn split(&mut self, offset: u64) {
        if offset < self.length
            && let Some((_, history)) = self.runs.range(..=offset).next_back()
        {
            let history = history.clone();
            self.runs.entry(offset).or_insert(history);
        }
    }

    fn each(&mut self, start: u64, end: u64, mut change: impl FnMut(&mut History)) {
        self.split(start);
        self.split(end);
        for (_, history) in self.runs.range_mut(start..end) {
            change(history);
        }
    }

    /// Records that a client sent a write of `start..end`.
    pub fn sent(&mut self, write: WriteId, client: usize, start: u64, end: u64) {
        let written = Written { write, client, answered: None, told: None };
        self.each(start, end, |history| history.push(written));
    }

    /// Records that a client got the answer to a write at `now`. With `is_in_doubt`, its server has lost power since
    /// it performed the write.
    pub fn answered(
        &mut self,
        (write, client): (WriteId, usize),
        start: u64,
        end: u64,
        now: u64,
        is_in_doubt: bool,
    ) {
        self.each(start, end, |history| {
            for written in history.iter_mut().filter(|w| w.write == write) {
                if written.client == client {
                    written.told = Some(now);
                }
                if !is_in_doubt {
                    written.answered = Some(now);
                }
            }
        });
    }

    /// Records that the server of `start..end` answered a sync that a client sent at `sent`. Writes answered
    /// before are safe, including the client's own ones that a crash made uncertain.
    pub fn synced(&mut self, client: usize, start: u64, end: u64, sent: u64) {
        self.each(start, end, |history| {
            for written in history.iter_mut().filter(|w| w.client == client) {
                written.answered = written.answered.or(written.told.filter(|at| *at < sent));
            }
            if let Some(last) = history.iter().rposition(|w| w.answered.is_some_and(|at| at < sent)) {
                history.drain(..last);
            }
        });
    }

    /// Records that a write is done and safe: earlier contents never appear again, whatever crashes.
    pub fn safe(&mut self, write: WriteId, start: u64, end: u64, now: u64) {
        self.each(start, end, |history| {
            if let Some(at) = history.iter().position(|w| w.write == write) {
                history.drain(..at);
                history[0].answered.get_or_insert(now);
            }
        });
    }

    /// Records that a failed sync warned a client of lost writes to `start..end`.
    pub fn refused(&mut self, client: usize, start: u64, end: u64) {
        self.each(start, end, |history| {
            for written in history.iter_mut().filter(|w| w.client == client) {
                written.told = None;
            }
        });
    }

    /// Records that the server of `start..end` lost its unsafe writes.
    pub fn crashed(&mut self, start: u64, end: u64) {
        self.each(start, end, |history| {
            // No later write is certain any more: the bytes may show the last safe write, or any write after it.
            for written in history.iter_mut() {
                written.answered = None;
            }
        });
    }

    /// Finds the first byte of `bytes`, read at `start`, that no write explains. Returns its offset, its value,
    /// and the writes that it could show. The read was sent at `sent`, so it need not show writes answered later.
    pub fn unexplained(&self, start: u64, bytes: &[u8], sent: u64) -> Option<(u64, u8, Vec<WriteId>)> {
        let end = start + bytes.len() as u64;
        let first = self.runs.range(..=start).next_back().map_or(0, |(&at, _)| at);
        let mut runs = self.runs.range(first..end).peekable();
        while let Some((&at, history)) = runs.next() {
            let stop = runs.peek().map_or(end, |(next, _)| **next).min(end);
            let certain = history.iter().rposition(|w| w.answered.is_some_and(|at| at < sent)).unwrap_or(0);
            let shown = &history[certain..];
            for offset in at.max(start)..stop {
                let byte = bytes[(offset - start) as usize];
                if !shown.iter().any(|w| pattern(w.write, offset) == byte) {
                    return Some((offset, byte, shown.iter().map(|w| w.write).collect()));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of reads, after all other events.
    const LATE: u64 = 100;

    fn bytes(write: WriteId, start: u64, end: u64) -> Vec<u8> {
        (start..end).map(|offset| pattern(write, offset)).collect()
    }

    #[test]
    fn what_was_answered_is_there() {
        let mut file = FileModel::new(100);
        file.sent(1, 0, 10, 20);
        assert_eq!(file.unexplained(10, &[0; 10], LATE), None, "it may not be done yet");
        assert_eq!(file.unexplained(10, &bytes(1, 10, 20), LATE), None, "or it may be");
        file.answered((1, 0), 10, 20, 5, false);
        assert_eq!(file.unexplained(10, &bytes(1, 10, 20), LATE), None);
        assert!(file.unexplained(10, &[0; 10], LATE).is_some(), "now it must be");
        assert_eq!(file.unexplained(10, &[0; 10], 5), None, "but for a read that was sent before");
        assert!(file.unexplained(9, &bytes(1, 9, 20), LATE).is_some(), "and only where it was");
        assert_eq!(file.unexplained(0, &[0; 10], LATE), None);
    }

    #[test]
    fn a_crash_takes_what_was_not_synced_and_no_more() {
        let mut file = FileModel::new(100);
        file.sent(1, 0, 0, 50);
        file.answered((1, 0), 0, 50, 5, false);
        file.synced(0, 0, 100, 6);
        file.sent(2, 0, 20, 30);
        file.answered((2, 0), 20, 30, 7, false);
        file.crashed(0, 100);
        assert_eq!(file.unexplained(20, &bytes(1, 20, 30), LATE), None, "lost");
        assert_eq!(file.unexplained(20, &bytes(2, 20, 30), LATE), None, "or not");
        assert!(file.unexplained(20, &[0; 10], LATE).is_some(), "what was synced is not");
        assert_eq!(file.unexplained(0, &bytes(1, 0, 20), LATE), None);
        assert!(file.unexplained(0, &[0; 20], LATE).is_some());
    }

    #[test]
    fn what_is_safe_is_there_or_what_was_written_since() {
        let mut file = FileModel::new(10);
        file.sent(1, 0, 0, 10);
        file.sent(2, 0, 0, 5);
        file.answered((2, 0), 0, 5, 6, false);
        file.safe(1, 0, 10, 7);
        file.crashed(0, 10);
        assert!(file.unexplained(0, &[0; 5], LATE).is_some());
        assert_eq!(file.unexplained(0, &bytes(1, 0, 10), LATE), None, "the other one was not safe");
        assert_eq!(file.unexplained(0, &bytes(2, 0, 5), LATE), None);
    }

    #[test]
    fn a_sync_is_for_what_was_answered_before_it_was_sent() {
        let mut file = FileModel::new(10);
        file.sent(1, 0, 0, 10);
        file.answered((1, 0), 0, 10, 8, false);
        file.synced(0, 0, 10, 7);
        file.crashed(0, 10);
        assert_eq!(file.unexplained(0, &[0; 10], LATE), None);
    }

    #[test]
    fn who_syncs_after_a_crash_has_its_own_writes_or_is_told() {
        let written = |is_in_doubt| {
            let mut file = FileModel::new(10);
            file.sent(1, 7, 0, 10);
            file.answered((1, 7), 0, 10, 5, is_in_doubt);
            file.crashed(0, 10);
            file
        };
        for is_in_doubt in [false, true] {
            let mut file = written(is_in_doubt);
            file.synced(8, 0, 10, 6);
            assert_eq!(file.unexplained(0, &[0; 10], LATE), None, "another client's sync says nothing of it");
            file.synced(7, 0, 10, 6);
            assert!(file.unexplained(0, &[0; 10], LATE).is_some());
            let mut file = written(is_in_doubt);
            file.refused(7, 0, 10);
            file.synced(7, 0, 10, 6);
            assert_eq!(file.unexplained(0, &[0; 10], LATE), None);
        }
    }
}
