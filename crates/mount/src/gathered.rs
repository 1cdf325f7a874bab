//! Bytes of writes, gathered until one request carries them.

use std::collections::BTreeMap;

use outcore_core::{Nested, Regions, Result};
use outcore_memory::Region;

use crate::buffers::{Lent, MOST_BYTES};

/// Runs of gathered writes in one request, at most.
const MOST_RUNS: usize = 1024;

/// Runs of bytes of a file, which do not overlap.
pub(crate) struct Gathered {
    memory: Lent,
    /// Number of bytes, which are the first ones of the memory.
    used: usize,
    /// The place in memory and the length of each run, by its offset in the file.
    runs: BTreeMap<u64, (usize, usize)>,
}

/// Gathered bytes for one request.
pub(crate) struct Request {
    /// Their place in the file.
    pub regions: Regions,
    /// The bytes, in the order of the file.
    pub bytes: Region,
    pub extents: Extents,
}

impl Gathered {
    pub fn new(memory: Lent) -> Self {
        Self { memory, used: 0, runs: BTreeMap::new() }
    }

    /// Whether it can take no more bytes.
    pub fn is_full(&self) -> bool {
        self.used == MOST_BYTES || self.runs.len() >= MOST_RUNS
    }

    /// Adds bytes, which replace earlier ones, as far as there is room. Returns their number. The sum of offset and
    /// length must be below 2^64.
    pub fn add(&mut self, offset: u64, data: &[u8]) -> usize {
        let mut done = 0;
        while done < data.len() {
            let (place, rest) = (offset + done as u64, &data[done..]);
            let before = self.runs.range(..=place).next_back();
            let before = before.map(|(&start, &(at, bytes))| (start, at, bytes, (place - start) as usize));
            if let Some((_, at, bytes, skipped)) = before
                && skipped < bytes
            {
                let count = rest.len().min(bytes - skipped);
                self.memory.copy_in(at + skipped, &rest[..count]);
                done += count;
                continue;
            }
            let next = self.runs.range(place..).next().map_or(u64::MAX, |(&start, _)| start);
            let room = if self.is_full() { 0 } else { MOST_BYTES - self.used };
            let count = rest.len().min(room).min(usize::try_from(next - place).unwrap_or(usize::MAX));
            if count == 0 {
                break;
            }
            self.memory.copy_in(self.used, &rest[..count]);
            // Bytes that follow the last run in the file and in memory extend it.
            let (start, at) = match before {
                Some((start, at, bytes, skipped)) if skipped == bytes && at + bytes == self.used => {
                    (start, at)
                }
                _ => (place, self.used),
            };
            self.used += count;
            self.runs.insert(start, (at, self.used - at));
            done += count;
        }
        done
    }

    /// The request that carries all runs.
    pub fn request(&self) -> Result<Request> {
        let (mut extents, mut parts) = (Vec::<(u64, u64)>::new(), Vec::<(usize, usize)>::new());
        for (&start, &(at, bytes)) in &self.runs {
            match extents.last_mut() {
                Some((_, end)) if *end == start => *end += bytes as u64,
                _ => extents.push((start, start + bytes as u64)),
            }
            match parts.last_mut() {
                Some((first, before)) if *first + *before == at => *before += bytes,
                _ => parts.push((at, bytes)),
            }
        }
        let nested = |&(offset, end): &(u64, u64)| Nested { offset, run_bytes: end - offset, levels: vec![] };
        let regions = Regions::new(extents.iter().map(nested).collect())?;
        let bytes =
            Region::joined(parts.into_iter().map(|(at, bytes)| self.memory.part(at, bytes)).collect());
        Ok(Request { regions, bytes, extents: Extents(extents) })
    }

    /// The memory. No request may use it any more when it is given back.
    pub fn into_memory(self) -> Lent {
        self.memory
    }
}

/// Where runs begin and end in a file, in its order. They do not touch.
pub(crate) struct Extents(Vec<(u64, u64)>);

impl Extents {
    /// Whether some byte is in both.
    pub fn overlap(&self, other: &Self) -> bool {
        let (mut these, mut those) = (self.0.iter().peekable(), other.0.iter().peekable());
        while let (Some(this), Some(that)) = (these.peek(), those.peek()) {
            if this.0 < that.1 && that.0 < this.1 {
                return true;
            }
            if this.1 < that.1 {
                these.next()
            } else {
                those.next()
            };
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outcore_core::Buffer;
    use proptest::prelude::*;

    use super::*;
    use crate::buffers::{Buffers, Lender};

    fn empty() -> Gathered {
        Gathered::new(Lender::new(Arc::<Buffers>::default(), 1).lend().unwrap())
    }

    proptest! {
        #[test]
        fn later_bytes_replace_earlier_ones(
            writes in prop::collection::vec((0_u64..200, prop::collection::vec(any::<u8>(), 1..50)), 1..30),
        ) {
            let (mut gathered, mut model) = (empty(), BTreeMap::new());
            for (offset, data) in &writes {
                prop_assert_eq!(gathered.add(*offset, data), data.len());
                model.extend((*offset..).zip(data.iter().copied()));
                prop_assert_eq!(gathered.used, model.len());
            }
            let Request { regions, bytes, extents } = gathered.request().unwrap();
            let mut content = vec![0; bytes.len()];
            bytes.copy_out(0, &mut content);
            let places = regions.runs().flat_map(|run| run.offset..run.offset + run.length);
            let found: BTreeMap<u64, u8> = places.zip(content).collect();
            prop_assert_eq!(found, model);
            let ends: Vec<_> = regions.runs().map(|run| (run.offset, run.offset + run.length)).collect();
            prop_assert!(ends.windows(2).all(|pair| pair[0].1 < pair[1].0), "{:?} touch", ends);
            prop_assert_eq!(ends, extents.0);
        }

        #[test]
        fn extents_overlap_if_they_share_a_byte(
            pairs in prop::array::uniform2(prop::collection::btree_set(0_u64..60, 0..20)),
        ) {
            let extents = pairs.each_ref().map(|bytes| {
                let mut extents = Vec::<(u64, u64)>::new();
                for &at in bytes {
                    match extents.last_mut() {
                        Some((_, end)) if *end == at => *end += 1,
                        _ => extents.push((at, at + 1)),
                    }
                }
                Extents(extents)
            });
            prop_assert_eq!(extents[0].overlap(&extents[1]), !pairs[0].is_disjoint(&pairs[1]));
        }
    }

    #[test]
    fn full_memory_takes_no_more_bytes_but_replaces_its_own() {
        let mut gathered = empty();
        assert_eq!(gathered.add(10, &vec![1; MOST_BYTES - 1]), MOST_BYTES - 1);
        assert!(!gathered.is_full());
        assert_eq!(gathered.add(9, &[2, 2, 2]), 3);
        assert!(gathered.is_full());
        assert_eq!(gathered.add(MOST_BYTES as u64, &[3; 20]), 9);
        assert_eq!(gathered.request().unwrap().extents.0, [(9, 9 + MOST_BYTES as u64)]);
    }

    #[test]
    fn the_number_of_runs_is_limited() {
        let mut gathered = empty();
        let taken = (0..2000).take_while(|run| gathered.add(10 * run, b"a") == 1).count();
        assert_eq!(taken, MOST_RUNS);
    }
}
