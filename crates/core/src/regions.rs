//! The bytes of a file that a request covers: contiguous, strided, nested-strided or a list, all in one
//! record.

use std::sync::Arc;

use crate::{Error, Result, Stripes};

/// Maximum number of nested strides.
pub const MAX_LEVELS: usize = 16;

/// `count` starts at distances of `step_bytes`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    /// Number of starts.
    pub count: u64,
    /// Distance between starts in bytes.
    pub step_bytes: u64,
}

/// Runs of bytes at regular distances: a nested stride. With no levels it is one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nested {
    /// First byte of the first run.
    pub offset: u64,
    /// Bytes of each run.
    pub run_bytes: u64,
    /// The strides, outermost first.
    pub levels: Vec<Level>,
}

/// A run of bytes of a file, and its position among the bytes of the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// First byte in the file, or in a data file.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// Position of its first byte in the request's order.
    pub at: u64,
}

/// The bytes of one request, in the request's order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Regions {
    /// Shared, since the client sends all of them to each of the file's servers.
    parts: Arc<Vec<Nested>>,
    total_bytes: u64,
    end: u64,
    run_count: u64,
}

impl Regions {
    /// Combines nested strides in order. Refuses regions that no file can hold.
    pub fn new(mut parts: Vec<Nested>) -> Result<Self> {
        let (mut total_bytes, mut end, mut run_count) = (0_u64, 0_u64, 0_u64);
        let mut is_any_empty = false;
        let too_large = || Error::invalid("the regions of a request reach past 2^63 bytes");
        for part in &parts {
            if part.levels.len() > MAX_LEVELS {
                return Err(Error::invalid(format!(
                    "need at most {MAX_LEVELS} strides inside each other, have {}",
                    part.levels.len()
                )));
            }
            let (mut runs, mut last) = (1_u64, part.offset);
            for level in &part.levels {
                runs = runs.checked_mul(level.count).ok_or_else(too_large)?;
                let reach = level.count.saturating_sub(1).checked_mul(level.step_bytes);
                last = reach.and_then(|r| last.checked_add(r)).ok_or_else(too_large)?;
            }
            let bytes = runs.checked_mul(part.run_bytes).ok_or_else(too_large)?;
            if bytes == 0 {
                is_any_empty = true;
                continue;
            }
            run_count = run_count.saturating_add(runs);
            total_bytes = total_bytes.checked_add(bytes).ok_or_else(too_large)?;
            end = end.max(last.checked_add(part.run_bytes).ok_or_else(too_large)?);
        }
        if total_bytes > i64::MAX as u64 || end > i64::MAX as u64 {
            return Err(too_large());
        }
        if is_any_empty {
            parts.retain(|part| part.run_bytes > 0 && part.levels.iter().all(|level| level.count > 0));
        }
        Ok(Self { parts: Arc::new(parts), total_bytes, end, run_count })
    }

    /// One run of bytes.
    pub fn contiguous(offset: u64, length: u64) -> Result<Self> {
        Self::new(vec![Nested { offset, run_bytes: length, levels: vec![] }])
    }

    /// The strided request of PVFS (Cettei, Ligon & Ross 1997, section 3.2 and figure 2).
    ///
    /// It starts with a partial group of `first_bytes` at `location`. Then come `group_count` groups of
    /// `group_bytes`, `stride_bytes` from start to start, and a last, partial group of `last_bytes`. The
    /// first whole group begins at `location + first_bytes + (stride_bytes - group_bytes)`, or at `location`
    /// without a partial group before it.
    pub fn strided(
        location: u64,
        first_bytes: u64,
        group_bytes: u64,
        group_count: u64,
        stride_bytes: u64,
        last_bytes: u64,
    ) -> Result<Self> {
        let too_large = || Error::invalid("the regions of a request reach past 2^63 bytes");
        if (group_count > 0 || last_bytes > 0) && stride_bytes < group_bytes {
            return Err(Error::invalid(format!(
                "groups of {group_bytes} bytes overlap with a stride of {stride_bytes}; give a stride of at least their size"
            )));
        }
        if first_bytes.max(last_bytes) > group_bytes {
            return Err(Error::invalid(format!(
                "a partial group of {} bytes is larger than a group of {group_bytes}",
                first_bytes.max(last_bytes)
            )));
        }
        let mut parts = Vec::new();
        let mut groups = location;
        if first_bytes > 0 {
            parts.push(Nested { offset: location, run_bytes: first_bytes, levels: vec![] });
            groups = location
                .checked_add(first_bytes)
                .and_then(|at| at.checked_add(stride_bytes.saturating_sub(group_bytes)))
                .ok_or_else(too_large)?;
        }
        if group_count > 0 {
            let levels = vec![Level { count: group_count, step_bytes: stride_bytes }];
            parts.push(Nested { offset: groups, run_bytes: group_bytes, levels });
        }
        if last_bytes > 0 {
            let offset = group_count
                .checked_mul(stride_bytes)
                .and_then(|b| groups.checked_add(b))
                .ok_or_else(too_large)?;
            parts.push(Nested { offset, run_bytes: last_bytes, levels: vec![] });
        }
        Self::new(parts)
    }

    /// The nested strides, without empty ones.
    pub fn parts(&self) -> &[Nested] {
        &self.parts
    }

    /// Number of bytes.
    pub fn total_bytes(&self) -> u64 {
        self.total_bytes
    }

    /// Number of runs as described: at least as many as [`Regions::runs`] yields.
    pub fn run_count(&self) -> u64 {
        self.run_count
    }

    /// The byte after the last one in the file.
    pub fn end(&self) -> u64 {
        self.end
    }

    /// The runs, in the request's order. Adjacent runs are merged.
    pub fn runs(&self) -> Runs {
        Runs { parts: self.parts.clone(), part: 0, index: [0; MAX_LEVELS], at: 0, next: None }
    }

    /// The part of the request on one entry of a striped file: runs of its data file. Client and server
    /// exchange their bytes in this order; `at` is their position in the whole request.
    pub fn local_runs(&self, stripes: Stripes, entry: u64) -> LocalRuns {
        LocalRuns { runs: self.runs(), stripes, entry, rest: None, next: None }
    }

    /// Number of bytes of the request on one entry.
    pub fn local_bytes(&self, stripes: Stripes, entry: u64) -> u64 {
        if stripes.count() == 1 {
            return self.total_bytes;
        }
        let before = |end| stripes.local_length(entry, end);
        self.runs().map(|run| before(run.offset + run.length) - before(run.offset)).sum()
    }
}

/// See [`Regions::runs`].
#[derive(Clone, Debug)]
pub struct Runs {
    parts: Arc<Vec<Nested>>,
    part: usize,
    index: [u64; MAX_LEVELS],
    at: u64,
    next: Option<Run>,
}

impl Runs {
    /// The next run as described, without merging.
    fn single(&mut self) -> Option<Run> {
        loop {
            let part = self.parts.get(self.part)?;
            if part.run_bytes == 0 || part.levels.iter().any(|level| level.count == 0) {
                self.part += 1;
                continue;
            }
            let steps = part.levels.iter().zip(&self.index).map(|(level, i)| level.step_bytes * i);
            let run = Run { offset: part.offset + steps.sum::<u64>(), length: part.run_bytes, at: self.at };
            self.at += run.length;
            for (level, i) in part.levels.iter().zip(&mut self.index).rev() {
                *i += 1;
                if *i < level.count {
                    return Some(run);
                }
                *i = 0;
            }
            self.part += 1;
            return Some(run);
        }
    }
}

impl Iterator for Runs {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let mut run = self.next.take().or_else(|| self.single())?;
        while let Some(following) = self.single() {
            if following.offset != run.offset + run.length {
                self.next = Some(following);
                break;
            }
            run.length += following.length;
        }
        Some(run)
    }
}

/// See [`Regions::local_runs`].
#[derive(Clone, Debug)]
pub struct LocalRuns {
    runs: Runs,
    stripes: Stripes,
    entry: u64,
    rest: Option<Run>,
    next: Option<Run>,
}

impl LocalRuns {
    /// The next part of a run on the entry.
    fn single(&mut self) -> Option<Run> {
        loop {
            let run = match self.rest.take() {
                Some(run) => run,
                None => self.runs.next()?,
            };
            // Skip to the entry's next byte directly: a run may span many rounds.
            let Some(skip) = self.stripes.until_entry(self.entry, run.offset) else { continue };
            if skip > 0 {
                if skip < run.length {
                    self.rest =
                        Some(Run { offset: run.offset + skip, length: run.length - skip, at: run.at + skip });
                }
                continue;
            }
            let length = run.length.min(self.stripes.left_in_unit(run.offset));
            if length < run.length {
                self.rest = Some(Run {
                    offset: run.offset + length,
                    length: run.length - length,
                    at: run.at + length,
                });
            }
            let (_, local) = self.stripes.locate(run.offset);
            return Some(Run { offset: local, length, at: run.at });
        }
    }
}

impl Iterator for LocalRuns {
    type Item = Run;

    fn next(&mut self) -> Option<Run> {
        let mut run = self.next.take().or_else(|| self.single())?;
        while let Some(following) = self.single() {
            // Merge only runs that are adjacent in the data file and in the request.
            if following.offset != run.offset + run.length || following.at != run.at + run.length {
                self.next = Some(following);
                break;
            }
            run.length += following.length;
        }
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spans(regions: &Regions) -> Vec<(u64, u64)> {
        regions.runs().map(|run| (run.offset, run.offset + run.length)).collect()
    }

    #[test]
    fn figure_2_of_the_paper() {
        // Cettei, Ligon & Ross 1997, section 3.2: rl = 400, fs = 300, gs = 500, gc = 2, sd = 800, ls = 400.
        let regions = Regions::strided(400, 300, 500, 2, 800, 400).unwrap();
        assert_eq!(spans(&regions), [(400, 700), (1000, 1500), (1800, 2300), (2600, 3000)]);
        assert_eq!((regions.total_bytes(), regions.end()), (1700, 3000));
    }

    #[test]
    fn figure_3_of_the_paper() {
        // A block of 1000 bytes from each of three rows, starting at the fourth of nine rows of 6000 bytes.
        let regions = Regions::strided(3 * 6000 + 2000, 0, 1000, 3, 6000, 0).unwrap();
        assert_eq!(spans(&regions), [(20_000, 21_000), (26_000, 27_000), (32_000, 33_000)]);
    }

    #[test]
    fn what_no_file_can_hold_is_refused() {
        assert!(Regions::contiguous(u64::MAX, 1).is_err());
        assert!(Regions::contiguous(0, 1 << 63).is_err());
        let level = Level { count: u64::MAX, step_bytes: 2 };
        assert!(Regions::new(vec![Nested { offset: 0, run_bytes: 1, levels: vec![level; 2] }]).is_err());
        assert!(Regions::new(vec![Nested { offset: 0, run_bytes: 0, levels: vec![level; 17] }]).is_err());
        assert!(Regions::strided(0, 0, 500, 2, 400, 0).is_err(), "groups that overlap");
        assert!(Regions::strided(0, 600, 500, 2, 800, 0).is_err(), "a partial group larger than a group");
        assert_eq!(Regions::new(vec![]).unwrap().runs().next(), None);
        let nothing = Nested { offset: u64::MAX, run_bytes: 0, levels: vec![] };
        assert_eq!(Regions::new(vec![nothing]).unwrap().total_bytes(), 0);
    }

    fn nested() -> impl Strategy<Value = Nested> {
        let level = (0_u64..4, 0_u64..40).prop_map(|(count, step_bytes)| Level { count, step_bytes });
        (0_u64..60, 0_u64..20, prop::collection::vec(level, 0..3))
            .prop_map(|(offset, run_bytes, levels)| Nested { offset, run_bytes, levels })
    }

    /// Every byte of the request, by explicit loops.
    fn bytes(parts: &[Nested]) -> Vec<u64> {
        let mut all = vec![];
        for part in parts {
            let mut starts = vec![part.offset];
            for level in &part.levels {
                starts = starts
                    .iter()
                    .flat_map(|start| (0..level.count).map(move |i| start + i * level.step_bytes))
                    .collect();
            }
            all.extend(starts.iter().flat_map(|start| (0..part.run_bytes).map(move |i| start + i)));
        }
        all
    }

    proptest! {
        #[test]
        fn runs_are_the_bytes_in_order(parts in prop::collection::vec(nested(), 0..4)) {
            let regions = Regions::new(parts.clone()).unwrap();
            let expected = bytes(&parts);
            prop_assert_eq!(regions.total_bytes(), expected.len() as u64);
            prop_assert_eq!(regions.end(), expected.iter().max().map_or(0, |last| last + 1));
            let mut found = vec![];
            for run in regions.runs() {
                prop_assert_eq!(run.at, found.len() as u64);
                found.extend(run.offset..run.offset + run.length);
            }
            prop_assert_eq!(found, expected);
        }

        #[test]
        fn entries_share_the_bytes(
            parts in prop::collection::vec(nested(), 0..4), unit in 1_u64..30, count in 1_u64..5,
            units in prop::option::of(1_u64..8),
        ) {
            let regions = Regions::new(parts.clone()).unwrap();
            let stripes = Stripes::new(unit, count).unwrap().with_round_units(units).unwrap();
            let mut found = vec![None; regions.total_bytes() as usize];
            for entry in 0..count {
                let mut local_bytes = 0;
                for run in regions.local_runs(stripes, entry) {
                    local_bytes += run.length;
                    for i in 0..run.length {
                        let byte = stripes.offset_of(entry, run.offset + i);
                        prop_assert!(byte.is_some());
                        prop_assert_eq!(found[(run.at + i) as usize].replace(byte.unwrap()), None);
                    }
                }
                prop_assert_eq!(regions.local_bytes(stripes, entry), local_bytes);
            }
            let expected: Vec<_> = bytes(&parts).into_iter().map(Some).collect();
            prop_assert_eq!(found, expected);
        }
    }
}
