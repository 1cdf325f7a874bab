//! Elements that are packed in one place, and lie in nested strides in another one.

use crate::Buffer;

/// Runs of bytes that are packed one after the other on one side, and in nested strides on the other side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Bytes of each run.
    pub run_bytes: u64,
    /// The fastest first.
    pub levels: Vec<PackedLevel>,
}

/// One level of a [`Packing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLevel {
    /// Repetitions.
    pub count: u64,
    /// Bytes from one to the next on the strided side.
    pub step: i64,
    /// Bytes from one to the next on the packed side.
    pub packed: u64,
}

impl Packing {
    /// Elements of `item_bytes` bytes, in strides each of a count and bytes from one to the next, the slowest first. What
    /// follows each other is put together.
    pub fn new(item_bytes: u64, strides: impl DoubleEndedIterator<Item = (u64, i64)>) -> Self {
        let (mut run_bytes, mut levels) = (item_bytes, Vec::<PackedLevel>::new());
        let mut packed = item_bytes;
        for (count, step) in strides.rev().filter(|&(count, _)| count != 1) {
            match levels.last_mut() {
                None if step == run_bytes as i64 => run_bytes *= count,
                Some(last) if step == last.step.wrapping_mul(last.count as i64) => last.count *= count,
                _ => levels.push(PackedLevel { count, step, packed }),
            }
            packed *= count;
        }
        Self { run_bytes, levels }
    }

    /// All bytes.
    pub fn bytes(&self) -> u64 {
        self.levels.iter().fold(self.run_bytes, |bytes, level| bytes * level.count)
    }

    /// Copies between two buffers, run by run: [`Buffer::copy_packed`] of those who know nothing faster.
    pub fn copy_by_runs<B: Buffer>(
        &self,
        strided: &mut B,
        at: usize,
        packed: &mut B,
        from: usize,
        out: bool,
    ) {
        let mut run = vec![0; self.run_bytes as usize];
        self.for_each_run(&mut |step, done| {
            let (here, there) = (at.wrapping_add_signed(step as isize), from + done as usize);
            if out {
                strided.copy_out(here, &mut run);
                packed.copy_in(there, &run);
            } else {
                packed.copy_out(there, &mut run);
                strided.copy_in(here, &run);
            }
        });
    }

    /// Visits each run: how far it is from the first one on the strided side, and on the packed side, in whose order they
    /// come.
    pub fn for_each_run(&self, visit: &mut impl FnMut(i64, u64)) {
        walk(&self.levels, 0, 0, visit);
    }
}

fn walk(levels: &[PackedLevel], strided: i64, packed: u64, visit: &mut impl FnMut(i64, u64)) {
    match levels {
        [] => visit(strided, packed),
        [faster @ .., slowest] => {
            for i in 0..slowest.count {
                // Steps may come from elsewhere: places that are nowhere are found by who goes there.
                let step = (i as i64).wrapping_mul(slowest.step);
                walk(faster, strided.wrapping_add(step), packed + i * slowest.packed, visit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_element_is_where_its_strides_say(
            strides in vec((0_u64..4, -40_i64..40), 0..4), item in 1_u64..5,
        ) {
            let packing = Packing::new(item, strides.iter().copied());
            let mut found = vec![];
            packing.for_each_run(&mut |strided, packed| {
                for byte in 0..packing.run_bytes {
                    found.push((packed + byte, strided + byte as i64));
                }
            });
            let places = strides.iter().fold(vec![0], |places: Vec<i64>, &(count, step)| {
                places.iter().flat_map(|&at| (0..count as i64).map(move |i| at + i * step)).collect()
            });
            let bytes = places.iter().flat_map(|&at| (0..item as i64).map(move |byte| at + byte));
            let expected: Vec<(u64, i64)> = (0..).zip(bytes).collect();
            prop_assert_eq!(packing.bytes(), expected.len() as u64);
            prop_assert_eq!(found, expected);
        }
    }

    #[test]
    fn what_follows_each_other_is_one_run() {
        assert_eq!(
            Packing::new(8, [(3, 64), (8, 8)].into_iter()),
            Packing { run_bytes: 192, levels: vec![] }
        );
        let rows = Packing::new(8, [(2, 800), (5, 160), (10, 8)].into_iter());
        assert_eq!(rows.run_bytes, 80);
        assert_eq!(rows.levels, [PackedLevel { count: 10, step: 160, packed: 80 }]);
    }
}
