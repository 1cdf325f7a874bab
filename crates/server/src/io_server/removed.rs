//! Files that were removed, as long as somebody may still have the right to write them.

use std::collections::BTreeMap;

use outcore_core::Handle;

use super::record::{Record, What};

/// The files, and until when, in seconds since 1970, a grant to write each of them may be good.
///
/// Grants are good for the same time, and a file that is removed has no new ones but for who removes it: the grant of the
/// removal is the last to end. Until then a write that comes late must not make the data file anew: nobody would
/// ever remove it.
#[derive(Clone, Debug)]
pub(super) struct Removed {
    files: BTreeMap<Handle, u64>,
    /// So many are remembered; of more, those are forgotten first whose grants end first.
    most: usize,
}

impl Removed {
    pub fn new(most: usize) -> Self {
        Self { files: BTreeMap::new(), most }
    }

    /// Remembers a file; the record that says so, if there is none that does.
    pub fn insert(&mut self, handle: Handle, until_s: u64, now_s: u64) -> Option<Record> {
        if self.files.get(&handle).is_some_and(|known| *known >= until_s) {
            return None;
        }
        self.files.insert(handle, until_s);
        let record = record(handle, until_s);
        if self.files.len() > self.most {
            self.forget_ended(now_s);
            self.forget_half();
        }
        Some(record)
    }

    /// Takes what a record of the log says.
    pub fn replay(&mut self, record: &Record) {
        self.files.insert(record.handle, record.first);
        self.forget_half();
    }

    /// Whether a file was removed, and may not be made anew.
    pub fn holds(&self, handle: Handle, now_s: u64) -> bool {
        self.files.get(&handle).is_some_and(|until_s| *until_s > now_s)
    }

    /// Forgets files whose grants have ended.
    pub fn forget_ended(&mut self, now_s: u64) {
        self.files.retain(|_, until_s| *until_s > now_s);
    }

    /// Forgets those that end first, if there are too many.
    fn forget_half(&mut self) {
        if self.files.len() > self.most {
            let mut ends: Vec<u64> = self.files.values().copied().collect();
            let middle = *ends.select_nth_unstable(self.most / 2).1;
            let mut left = (self.most / 2).saturating_sub(ends.iter().filter(|end| **end > middle).count());
            self.files.retain(|_, until_s| {
                let is_one_more = *until_s == middle && left > 0;
                left -= usize::from(is_one_more);
                is_one_more || *until_s > middle
            });
        }
    }

    /// Records that say the same.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.files.iter().map(|(handle, until_s)| record(*handle, *until_s))
    }
}

fn record(handle: Handle, until_s: u64) -> Record {
    Record { what: What::Removed, handle, first: until_s, count: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_until_its_grants_have_ended() {
        let mut removed = Removed::new(8);
        assert!(removed.insert(Handle(1), 100, 50).is_some());
        assert!(removed.insert(Handle(1), 90, 50).is_none());
        assert!(
            removed.holds(Handle(1), 99) && !removed.holds(Handle(1), 100) && !removed.holds(Handle(2), 0)
        );
        let mut again = Removed::new(8);
        removed.records().for_each(|record| again.replay(&record));
        assert!(again.holds(Handle(1), 99));
        again.forget_ended(100);
        assert_eq!(again.records().count(), 0);
    }

    #[test]
    fn there_are_never_too_many() {
        const MOST: usize = 1000;
        let mut removed = Removed::new(MOST);
        for number in 0..3 * MOST as u64 {
            removed.insert(Handle(number), 1000 + number / 7, 0);
            assert!(removed.files.len() <= MOST && removed.holds(Handle(number), 0));
        }
    }
}
