//! The bytes of one process in a collective on a file: collectives take them in ascending order, each once.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use outcore_client::{LocalArray, Memory};
use outcore_core::{Buffer as _, Error, Nested, Packing, Regions, Result, Run};
use outcore_memory::{Arena, Block, Region};

use crate::memory::block_of;

/// Runs of regions in another order, at most.
const MOST_RUNS: u64 = 1 << 16;

/// Regions in ascending order, and the memory of their bytes.
pub(crate) struct Ascending {
    pub(crate) regions: Regions,
    pub(crate) array: LocalArray,
    sorted: Option<Sorted>,
}

/// The caller's memory, if its bytes are in another order.
struct Sorted {
    given: Arc<Block>,
    copy: Arc<Block>,
    runs: Vec<Place>,
}

/// A run of bytes in the caller's memory, and in the copy.
struct Place {
    given: usize,
    copy: usize,
    run_bytes: u64,
}

impl Sorted {
    fn copy(&self, out: bool) {
        let (mut given, mut copy) = (Region::whole(self.given.clone()), Region::whole(self.copy.clone()));
        for place in &self.runs {
            let packing = Packing { run_bytes: place.run_bytes, levels: vec![] };
            given.copy_packed(place.given, &packing, &mut copy, place.copy, out);
        }
    }
}

impl Ascending {
    /// The bytes at `memory`, in the order of `regions`. A write takes a copy of them if the regions do not ascend.
    ///
    /// # Safety
    /// As for [`block_of`].
    pub(crate) unsafe fn new(
        regions: &Regions,
        memory: *mut c_void,
        bytes: u64,
        write: bool,
    ) -> Result<Self> {
        if regions.total_bytes() != bytes {
            return Err(Error::invalid(format!(
                "need memory of {} bytes, have {bytes}; pass as many bytes as the regions have",
                regions.total_bytes()
            )));
        }
        let given = if bytes == 0 {
            // SAFETY: nothing is read or written.
            unsafe { block_of(NonNull::<c_void>::dangling().as_ptr().cast(), 0)? }
        } else {
            // SAFETY: as the caller promises.
            unsafe { block_of(memory.cast(), bytes)? }
        };
        if regions.ascend() {
            return Ok(Self { regions: regions.clone(), array: array_of(given, bytes), sorted: None });
        }
        let (regions, runs) = sorted(regions, write)?;
        let bytes = regions.total_bytes();
        // As much as the caller has already.
        let copy = Arc::new(Arena::new(usize::MAX).allocate(bytes as usize)?);
        let sorted = Sorted { given, copy: copy.clone(), runs };
        if write {
            sorted.copy(true);
        }
        Ok(Self { regions, array: array_of(copy, bytes), sorted: Some(sorted) })
    }

    /// Gives the caller the bytes of a read.
    pub(crate) fn finish_read(&self) {
        if let Some(sorted) = &self.sorted {
            sorted.copy(false);
        }
    }
}

fn array_of(block: Arc<Block>, bytes: u64) -> LocalArray {
    LocalArray { memory: Memory { block, origin: 0, strides: vec![1] }, shape: vec![bytes] }
}

/// The bytes of regions in ascending order, each once, and the places of all runs.
fn sorted(regions: &Regions, write: bool) -> Result<(Regions, Vec<Place>)> {
    let mut runs: Vec<Run> = regions.runs().take(MOST_RUNS as usize + 1).collect();
    if runs.len() as u64 > MOST_RUNS {
        return Err(Error::invalid(format!(
            "need at most {MOST_RUNS} runs of regions whose bytes do not ascend, have more; sort them by their offsets, or \
             make several calls"
        )));
    }
    runs.sort_by_key(|run| run.offset);
    let (mut parts, mut places, mut before) = (Vec::<Nested>::new(), vec![], 0);
    for run in &runs {
        let end = run.offset + run.length;
        let start = match parts.last_mut() {
            Some(last) if run.offset < last.offset + last.run_bytes => {
                if write {
                    return Err(Error::invalid(format!(
                        "need each byte of a write once, have byte {} twice; make regions that do not overlap",
                        run.offset
                    )));
                }
                last.run_bytes = last.run_bytes.max(end - last.offset);
                last.offset
            }
            last => {
                before += last.map_or(0, |last| last.run_bytes);
                parts.push(Nested { offset: run.offset, run_bytes: run.length, levels: vec![] });
                run.offset
            }
        };
        let copy = (before + (run.offset - start)) as usize;
        places.push(Place { given: run.at as usize, copy, run_bytes: run.length });
    }
    Ok((Regions::new(parts)?, places))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn runs_lie_in_the_sorted_bytes(given in vec((0_u64..60, 0_u64..12), 1..8)) {
            let part = |&(offset, run_bytes): &(u64, u64)| Nested { offset, run_bytes, levels: vec![] };
            let regions = Regions::new(given.iter().map(part).collect()).unwrap();
            let (ascending, places) = sorted(&regions, false).unwrap();
            prop_assert!(ascending.ascend());
            let bytes: Vec<u64> = ascending.runs().flat_map(|run| run.offset..run.offset + run.length).collect();
            let mut found = vec![0; regions.total_bytes() as usize];
            for Place { given, copy, run_bytes } in places {
                let length = run_bytes as usize;
                found[given..given + length].copy_from_slice(&bytes[copy..copy + length]);
            }
            let expected: Vec<u64> = regions.runs().flat_map(|run| run.offset..run.offset + run.length).collect();
            let mut counts = expected.clone();
            counts.sort_unstable();
            let repeats = counts.windows(2).any(|pair| pair[0] == pair[1]);
            prop_assert_eq!(sorted(&regions, true).is_err(), repeats);
            prop_assert_eq!(found, expected);
        }
    }
}
