//! What the content of a file may be: a naive model of the promises in docs/semantics.md.
//!
//! Each write has a number, and every byte remembers which writes it may show. A write that was answered replaces
//! what was before it; one that was not may or may not have been done. A sync makes what was answered before it
//! safe; a crash of a byte's server brings back anything written since. But whose sync is answered has all that it was
//! answered before, whatever crashed: or it is told that this may be lost.

use std::collections::BTreeMap;

/// A write; 0 is the zeros of a new file.
pub type WriteId = u64;

/// The byte that a write puts at an offset of a file.
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
    /// When it was answered; `None`: it was not, or a crash put it in doubt again.
    answered: Option<u64>,
    /// When its client was answered, whatever crashed since; `None`: it was not, or was told that it may be lost.
    told: Option<u64>,
}

/// Writes that some bytes may show, in the order in which they were sent. The first is what was safe last.
type History = Vec<Written>;

/// What the bytes of a file may be.
#[derive(Clone, Debug)]
pub struct FileModel {
    /// First byte of a run of bytes with the same history; the last one ends with the file.
    runs: BTreeMap<u64, History>,
    length: u64,
}

impl FileModel {
    /// A new file: zeros.
    pub fn new(length: u64) -> Self {
        let zeros = vec![Written { write: 0, client: usize::MAX, answered: Some(0), told: None }];
        Self { runs: BTreeMap::from([(0, zeros)]), length }
    }

    /// How long the file is.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Makes a run begin at `offset`.
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

    /// A client sent a write of `start..end`.
    pub fn sent(&mut self, write: WriteId, client: usize, start: u64, end: u64) {
        let written = Written { write, client, answered: None, told: None };
        self.each(start, end, |history| history.push(written));
    }

    /// A write was answered at `now`: it was done, by a server that lost power since if `is_in_doubt`.
    pub fn answered(&mut self, write: WriteId, start: u64, end: u64, now: u64, is_in_doubt: bool) {
        self.each(start, end, |history| {
            for written in history.iter_mut().filter(|w| w.write == write) {
                written.told = Some(now);
                written.answered = Some(now).filter(|_| !is_in_doubt);
            }
        });
    }

    /// A sync that a client sent at `sent` was answered, by the server of `start..end`: what was answered before is safe,
    /// and of the client's own also what a crash put in doubt.
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

    /// A write is done and safe: what was before it is not shown any more, whatever crashes.
    pub fn safe(&mut self, write: WriteId, start: u64, end: u64, now: u64) {
        self.each(start, end, |history| {
            if let Some(at) = history.iter().position(|w| w.write == write) {
                history.drain(..at);
                history[0].answered.get_or_insert(now);
            }
        });
    }

    /// A client was told that what it wrote to `start..end` may be lost.
    pub fn refused(&mut self, client: usize, start: u64, end: u64) {
        self.each(start, end, |history| {
            for written in history.iter_mut().filter(|w| w.client == client) {
                written.told = None;
            }
        });
    }

    /// The server of `start..end` lost what was not safe.
    pub fn crashed(&mut self, start: u64, end: u64) {
        self.each(start, end, |history| {
            // Nothing but what was safe is certain, and of that only that it may be what is there.
            for written in history.iter_mut() {
                written.answered = None;
            }
        });
    }

    /// The first byte of `bytes`, which were read at `start`, that no write explains: its offset, what was read, and
    /// which writes it could show. The read was sent at `sent`: what was answered later it need not show.
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

    /// The time of reads, after all else.
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
        file.answered(1, 10, 20, 5, false);
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
        file.answered(1, 0, 50, 5, false);
        file.synced(0, 0, 100, 6);
        file.sent(2, 0, 20, 30);
        file.answered(2, 20, 30, 7, false);
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
        file.answered(2, 0, 5, 6, false);
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
        file.answered(1, 0, 10, 8, false);
        file.synced(0, 0, 10, 7);
        file.crashed(0, 10);
        assert_eq!(file.unexplained(0, &[0; 10], LATE), None);
    }

    #[test]
    fn who_syncs_after_a_crash_has_its_own_writes_or_is_told() {
        let written = |is_in_doubt| {
            let mut file = FileModel::new(10);
            file.sent(1, 7, 0, 10);
            file.answered(1, 0, 10, 5, is_in_doubt);
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
