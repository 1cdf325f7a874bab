//! Elements that are packed on one side and in nested strides on the other.

use crate::Buffer;

/// Runs of bytes that are contiguous on one side (packed), and in nested strides on the other (strided).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Bytes of each run.
    pub run_bytes: u64,
    /// The levels, fastest first.
    pub levels: Vec<PackedLevel>,
}

/// One level of a [`Packing`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLevel {
    /// Repetitions.
    pub count: u64,
    /// Distance between repetitions on the strided side, in bytes.
    pub step: i64,
    /// Distance between repetitions on the packed side, in bytes.
    pub packed: u64,
}

impl Packing {
    /// Packing of elements of `item_bytes` bytes. Each stride is a count and a distance in bytes, slowest
    /// first. Contiguous levels are merged.
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

    /// Number of bytes.
    pub fn bytes(&self) -> u64 {
        self.levels.iter().fold(self.run_bytes, |bytes, level| bytes * level.count)
    }

    /// Copies between two buffers, run by run: the default of [`Buffer::copy_packed`].
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

    /// Visits each run, in the order of the packed side, with its distance from the first run on the strided
    /// and on the packed side.
    pub fn for_each_run(&self, visit: &mut impl FnMut(i64, u64)) {
        walk(&self.levels, 0, 0, visit);
    }
}

fn walk(levels: &[PackedLevel], strided: i64, packed: u64, visit: &mut impl FnMut(i64, u64)) {
    match levels {
        [] => visit(strided, packed),
        [faster @ .., slowest] => {
            for i in 0..slowest.count {
                // Steps may come from other processes. They wrap here, and the caller's bounds check refuses
                // wrong places.
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
