//! What the log says: which regions of which files are noted.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use outcore_core::Handle;

use super::ranges::RangeSet;
use super::record::{Page, Record, What};
use super::removed::Removed;

/// Ranges of one file that are kept apart; with more, all from the first to the last is noted.
const MAX_RANGES: usize = 1024;
/// A noted file that is not written for so long is made durable unasked, and its notes go.
const IDLE_NS: u64 = 10_000_000_000;
/// Most regions noted beyond what is written now, where a file is written in order.
const MAX_AHEAD: u64 = 256;

/// The notes on one file.
#[derive(Clone, Debug, Default)]
pub(super) struct Noted {
    pub regions: RangeSet,
    /// The number of the last record about it.
    pub last: u64,
    /// When it was last going to be written, in nanoseconds for which the server runs.
    written_ns: u64,
}

/// The regions noted.
#[derive(Clone, Debug)]
pub(super) struct Notes {
    files: BTreeMap<Handle, Noted>,
    /// Files that were noted when the server started, and have not been examined since.
    pub unexamined: BTreeSet<Handle>,
    pub removed: Removed,
}

impl Notes {
    /// None, with room for so many removals.
    pub fn new(removals: usize) -> Self {
        Self { files: BTreeMap::new(), unexamined: BTreeSet::new(), removed: Removed::new(removals) }
    }

    /// The notes that the pages of a log file leave, in order.
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

    /// Records that say the same.
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

    /// The files that have not been written for a while.
    pub fn idle(&self, now_ns: u64) -> Vec<Handle> {
        let is_idle = |noted: &Noted| now_ns.saturating_sub(noted.written_ns) >= IDLE_NS;
        self.files.iter().filter(|(_, noted)| is_idle(noted)).map(|(handle, _)| *handle).collect()
    }

    /// How many files are noted.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    /// Notes `regions`; the record to be written, if they were not noted yet.
    pub fn note(&mut self, handle: Handle, regions: Range<u64>, number: u64, now_ns: u64) -> Option<Record> {
        let noted = self.files.entry(handle).or_default();
        noted.written_ns = now_ns;
        if noted.regions.covers(&regions) {
            return None;
        }
        // A file that is written in order is noted further and further ahead, so that there are few records.
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

    /// Forgets `regions`.
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
