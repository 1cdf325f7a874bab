//! Bytes of small writes, gathered until one request carries them.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

use outcore_core::{Nested, Regions, Result};

/// Runs of bytes of a file, which neither overlap nor touch.
#[derive(Default)]
pub(crate) struct Gathered {
    runs: BTreeMap<u64, Vec<u8>>,
    bytes: usize,
}

impl Gathered {
    /// Number of bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Number of runs.
    pub fn runs(&self) -> usize {
        self.runs.len()
    }

    /// Adds bytes, which replace earlier ones. The sum of both must be below 2^64.
    pub fn add(&mut self, offset: u64, data: &[u8]) {
        let before = self.runs.range(..=offset).next_back();
        let start = before.map(|(&start, run)| (start, start + run.len() as u64));
        let start = start.filter(|&(_, end)| end >= offset).map_or(offset, |(start, _)| start);
        let run = self.runs.entry(start).or_default();
        let (at, had) = ((offset - start) as usize, run.len());
        let over = data.len().min(had - at);
        run[at..at + over].copy_from_slice(&data[..over]);
        run.extend_from_slice(&data[over..]);
        let (mut grown, end) = (run.len() - had, start + run.len() as u64);
        let mut tail = Vec::new();
        let later = self.runs.range((Excluded(start), Included(end))).map(|(&at, _)| at);
        for at in later.collect::<Vec<_>>() {
            let covered = self.runs.remove(&at).unwrap_or_default();
            let kept = (end - at).min(covered.len() as u64) as usize;
            grown = grown.wrapping_sub(covered.len());
            tail = covered[kept..].to_vec();
        }
        if let Some(run) = self.runs.get_mut(&start) {
            grown = grown.wrapping_add(tail.len());
            run.append(&mut tail);
        }
        self.bytes = self.bytes.wrapping_add(grown);
    }

    /// Takes all runs: their place in the file, and their bytes in its order.
    pub fn take(&mut self) -> Result<(Regions, Vec<Vec<u8>>)> {
        self.bytes = 0;
        let runs = std::mem::take(&mut self.runs);
        let place =
            |(&offset, run): (&u64, &Vec<u8>)| Nested { offset, run_bytes: run.len() as u64, levels: vec![] };
        Ok((Regions::new(runs.iter().map(place).collect())?, runs.into_values().collect()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn later_bytes_replace_earlier_ones(
            writes in prop::collection::vec((0_u64..200, prop::collection::vec(any::<u8>(), 1..50)), 1..30),
        ) {
            let (mut gathered, mut model) = (Gathered::default(), BTreeMap::new());
            for (offset, data) in &writes {
                gathered.add(*offset, data);
                model.extend((*offset..).zip(data.iter().copied()));
                prop_assert_eq!(gathered.bytes(), model.len());
            }
            let (regions, runs) = gathered.take().unwrap();
            let bytes = regions.runs().flat_map(|run| run.offset..run.offset + run.length);
            let found: BTreeMap<u64, u8> = bytes.zip(runs.iter().flatten().copied()).collect();
            prop_assert_eq!(found, model);
            let ends: Vec<_> = regions.runs().map(|run| (run.offset, run.offset + run.length)).collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?} touch", ends);
            prop_assert_eq!((gathered.bytes(), gathered.runs()), (0, 0));
        }
    }
}
