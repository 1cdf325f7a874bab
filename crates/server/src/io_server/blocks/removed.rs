//! Removed files, which no write may recreate.

use std::collections::{BTreeSet, VecDeque};

use outcore_core::Handle;

use crate::io_server::log::record::{Record, What};

/// The most recently removed files.
///
/// A late write with a valid grant must not recreate the data file, since nobody would ever remove it. The expiry
/// of grants plays no role here: clocks jump, so an expired grant may become valid again.
#[derive(Clone, Debug)]
pub(crate) struct Removed {
    files: BTreeSet<Handle>,
    /// The same files, in the order of their removal.
    order: VecDeque<Handle>,
    /// Number of files remembered, at most.
    most: usize,
}

impl Removed {
    pub fn new(most: usize) -> Self {
        Self { files: BTreeSet::new(), order: VecDeque::new(), most }
    }

    /// Remembers a file. Returns the record to write, unless the file was already remembered.
    pub fn insert(&mut self, handle: Handle) -> Option<Record> {
        if !self.files.insert(handle) {
            return None;
        }
        self.order.push_back(handle);
        if self.order.len() > self.most
            && let Some(oldest) = self.order.pop_front()
        {
            self.files.remove(&oldest);
        }
        Some(record(handle))
    }

    /// Applies a record of the log.
    pub fn replay(&mut self, record: &Record) {
        let _ = self.insert(record.handle);
    }

    /// Whether a file was removed, so no write may recreate it.
    pub fn holds(&self, handle: Handle) -> bool {
        self.files.contains(&handle)
    }

    /// The records that reproduce this set.
    pub fn records(&self) -> impl Iterator<Item = Record> + '_ {
        self.order.iter().map(|handle| record(*handle))
    }
}

fn record(handle: Handle) -> Record {
    Record { what: What::Removed, handle, first: 0, count: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_held_and_noted_once() {
        let mut removed = Removed::new(8);
        assert!(removed.insert(Handle(1)).is_some());
        assert!(removed.insert(Handle(1)).is_none());
        assert!(removed.holds(Handle(1)) && !removed.holds(Handle(2)));
        let mut again = Removed::new(8);
        removed.records().for_each(|record| again.replay(&record));
        assert!(again.holds(Handle(1)));
    }

    #[test]
    fn the_last_ones_are_held_and_never_too_many() {
        const MOST: u64 = 1000;
        let mut removed = Removed::new(MOST as usize);
        // The handles are not in ascending order.
        let handle = |number: u64| Handle(number.wrapping_mul(0x9E37_79B9_7F4A_7C15));
        for number in 0..3 * MOST {
            removed.insert(handle(number));
            assert!(removed.files.len() <= MOST as usize && removed.order.len() == removed.files.len());
        }
        let mut again = Removed::new(MOST as usize);
        removed.records().for_each(|record| again.replay(&record));
        for number in 0..3 * MOST {
            assert_eq!(again.holds(handle(number)), number >= 2 * MOST);
        }
    }
}
