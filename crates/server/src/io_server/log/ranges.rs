//! A set of numbers, stored as ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of numbers, stored as ranges that neither overlap nor touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        while let Some((&first, &last)) = self.0.range(..=end).next_back() {
            if last < start {
                break;
            }
            start = start.min(first);
            end = end.max(last);
            self.0.remove(&first);
        }
        self.0.insert(start, end);
    }

    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&first, &last)) = self.0.range(..range.end).next_back() {
            if last <= range.start {
                break;
            }
            self.0.remove(&first);
            if last > range.end {
                self.0.insert(range.end, last);
            }
            if first < range.start {
                self.0.insert(first, range.start);
            }
        }
    }

    pub fn covers(&self, range: &Range<u64>) -> bool {
        range.is_empty()
            || self.0.range(..=range.start).next_back().is_some_and(|(_, &last)| last >= range.end)
    }

    /// Length of the contiguous range that ends just before `end`.
    pub fn row_before(&self, end: u64) -> u64 {
        match self.0.range(..end).next_back() {
            Some((&first, &last)) if last >= end => end - first,
            _ => 0,
        }
    }

    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.0.iter().map(|(&first, &last)| first..last)
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The range from the first number to the last.
    pub fn span(&self) -> Range<u64> {
        match (self.0.first_key_value(), self.0.last_key_value()) {
            (Some((&first, _)), Some((_, &last))) => first..last,
            _ => 0..0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn it_is_a_set(changes in prop::collection::vec((any::<bool>(), 0_u64..40, 0_u64..12), 0..30)) {
            let (mut set, mut model) = (RangeSet::default(), BTreeSet::new());
            for (insert, start, count) in changes {
                let range = start..start + count;
                if insert {
                    set.insert(range.clone());
                    model.extend(range);
                } else {
                    set.remove(range.clone());
                    model.retain(|n| !range.contains(n));
                }
                let found: Vec<u64> = set.iter().flatten().collect();
                prop_assert_eq!(&found, &model.iter().copied().collect::<Vec<_>>());
                let ranges: Vec<_> = set.iter().collect();
                prop_assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                prop_assert_eq!(set.is_empty(), model.is_empty());
                prop_assert_eq!(set.len(), ranges.len());
                for start in 0..50 {
                    for end in start..52 {
                        prop_assert_eq!(set.covers(&(start..end)), (start..end).all(|n| model.contains(&n)));
                    }
                    let row = (0..start).rev().take_while(|n| model.contains(n)).count() as u64;
                    prop_assert_eq!(set.row_before(start), row);
                }
            }
        }
    }
}
