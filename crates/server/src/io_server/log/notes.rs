//! The contents of the log: the noted regions of each file.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use outcore_core::Handle;

use crate::io_server::blocks::removed::Removed;
use crate::io_server::log::ranges::RangeSet;
use crate::io_server::log::record::{Page, Record, What};

/// Ranges kept apart per file. Beyond that, one range from the first to the last replaces them.
const MAX_RANGES: usize = 1024;
/// The server makes a noted file durable, and clears its notes, after it has not been written for this long.
const IDLE_NS: u64 = 10_000_000_000;
/// Regions noted ahead of a sequential write, at most.
const MAX_AHEAD: u64 = 256;

/// The notes on one file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noted {
    pub regions: RangeSet,
    /// The number of the last record about it.
    pub last: u64,
    /// Time of the last write, in nanoseconds since the server started.
    written_ns: u64,
}

/// All noted regions.
#[derive(Clone, Debug)]
pub(crate) struct Notes {
    files: BTreeMap<Handle, Noted>,
    /// Files that were noted when the server started and have not been examined since.
    pub unexamined: BTreeSet<Handle>,
    pub removed: Removed,
}

impl Notes {
    /// Empty notes that remember at most `removals` removed files.
    pub fn new(removals: usize) -> Self {
        Self { files: BTreeMap::new(), unexamined: BTreeSet::new(), removed: Removed::new(removals) }
    }

    /// Replays the pages of a log file in order.
    pub fn replay<'a>(removals: usize, pages: impl Iterator<Item = &'a Page>) -> Self {
        let mut notes = Self::new(removals);
        for record in pages.flat_map(|page| &page.records) {
            let regions = record.first..record.first.saturating_add(record.count);
            match record.what {
                What::Note => notes.files.entry(record.handle).or_default().regions.insert(regions),
                What::Clear => notes.clear(record.handle, regions),
                What::Removed => notes.removed.replay(record),
            }
        }
        notes.unexamined = notes.files.keys().copied().collect();
        notes
    }

    /// The records that reproduce these notes.
    pub fn records(&self) -> Vec<Record> {
        let of = |(handle, noted): (&Handle, &Noted)| {
            let handle = *handle;
            let record = move |regions: Range<u64>| Record {
                what: What::Note,
                handle,
                first: regions.start,
                count: regions.end - regions.start,
            };
            noted.regions.iter().map(record).collect::<Vec<_>>()
        };
        self.files.iter().flat_map(of).chain(self.removed.records()).collect()
    }

    pub fn of(&self, handle: Handle) -> Option<&Noted> {
        self.files.get(&handle)
    }

    pub fn handles(&self) -> Vec<Handle> {
        self.files.keys().copied().collect()
    }

    /// The noted files that have not been written for a while.
    pub fn idle(&self, now_ns: u64) -> Vec<Handle> {
        let is_idle = |noted: &Noted| now_ns.saturating_sub(noted.written_ns) >= IDLE_NS;
        self.files.iter().filter(|(_, noted)| is_idle(noted)).map(|(handle, _)| *handle).collect()
    }

    /// Number of noted files.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Notes `regions`. Returns the record to write, unless they were already noted.
    pub fn note(&mut self, handle: Handle, regions: Range<u64>, number: u64, now_ns: u64) -> Option<Record> {
        let noted = self.files.entry(handle).or_default();
        noted.written_ns = now_ns;
        if noted.regions.covers(&regions) {
            return None;
        }
        // For a sequential write, each note extends further ahead, so that there are few records.
        let ahead = noted.regions.row_before(regions.start).min(MAX_AHEAD);
        let mut range = regions.start..regions.end.saturating_add(ahead);
        noted.regions.insert(range.clone());
        if noted.regions.len() > MAX_RANGES {
            range = noted.regions.span();
            noted.regions.insert(range.clone());
        }
        noted.last = number;
        Some(Record { what: What::Note, handle, first: range.start, count: range.end - range.start })
    }

    /// Clears the notes on `regions`.
    pub fn clear(&mut self, handle: Handle, regions: Range<u64>) {
        if let Some(noted) = self.files.get_mut(&handle) {
            noted.regions.remove(regions);
            if noted.regions.is_empty() {
                self.files.remove(&handle);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_written_in_order_is_noted_ahead() {
        let mut notes = Notes::new(8);
        let records = (0..10_000).filter(|&n| notes.note(Handle(1), n..n + 1, n, 0).is_some()).count();
        assert!(records < 60, "{records} records");
        let noted = &notes.of(Handle(1)).unwrap().regions;
        assert!(noted.covers(&(0..10_000)) && noted.span().end <= 10_000 + MAX_AHEAD);
    }

    #[test]
    fn memory_is_bounded_where_a_file_is_written_here_and_there() {
        let mut notes = Notes::new(8);
        for n in 0..10_000 {
            notes.note(Handle(1), 3 * n..3 * n + 1, n, 0);
            assert!(notes.of(Handle(1)).unwrap().regions.covers(&(3 * n..3 * n + 1)));
        }
        assert!(notes.of(Handle(1)).unwrap().regions.len() <= MAX_RANGES);
    }

    #[test]
    fn replay_gives_what_was_noted() {
        let mut notes = Notes::new(8);
        let mut records = vec![];
        records.extend(notes.note(Handle(1), 0..4, 1, 0));
        records.extend(notes.note(Handle(2), 7..8, 2, 0));
        records.extend(notes.note(Handle(1), 9..12, 3, 0));
        notes.clear(Handle(1), 1..10);
        records.push(Record { what: What::Clear, handle: Handle(1), first: 1, count: 9 });
        let pages = [Page { generation: 1, first_pages: 0, records }];
        let replayed = Notes::replay(8, pages.iter());
        assert_eq!(replayed.records(), notes.records());
        assert_eq!(replayed.unexamined, BTreeSet::from([Handle(1), Handle(2)]));
    }
}
