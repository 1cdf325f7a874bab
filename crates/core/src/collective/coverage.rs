//! The bytes of a piece that processes give.

use crate::{ByteRun, Packing};

const WORD_BITS: u64 = u64::BITS as u64;

/// A set of bytes of a piece, and the number of additions to it.
#[derive(Clone, Debug)]
pub struct Coverage {
    words: Vec<u64>,
    bytes: u64,
    added: u64,
}

impl Coverage {
    /// No bytes of a piece of `bytes` bytes.
    pub(super) fn new(bytes: u64) -> Self {
        Self { words: vec![0; bytes.div_ceil(WORD_BITS) as usize], bytes, added: 0 }
    }

    /// Adds bytes that begin at byte `at`. Bytes outside of the piece are left out.
    pub(super) fn add(&mut self, at: u64, packing: &Packing) {
        packing.for_each_run(&mut |step, _| {
            let start = at.saturating_add_signed(step).min(self.bytes);
            self.fill(start, start.saturating_add(packing.run_bytes).min(self.bytes));
        });
    }

    fn fill(&mut self, start: u64, end: u64) {
        self.added += end - start;
        let mut at = start;
        while at < end {
            let (word, bit) = (at / WORD_BITS, at % WORD_BITS);
            let bits = (end - at).min(WORD_BITS - bit);
            self.words[word as usize] |= (u64::MAX >> (WORD_BITS - bits)) << bit;
            at += bits;
        }
    }

    /// Number of bytes in the set.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether a byte was added more than once.
    pub fn has_repeats(&self) -> bool {
        self.added > self.count()
    }

    /// The bytes of the set, as few runs as possible.
    pub fn runs(&self) -> impl Iterator<Item = ByteRun> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, 0);
            at = self.next(start, u64::MAX);
            (start < at).then_some(ByteRun { start, bytes: at - start })
        })
    }

    /// The first byte from `at` on whose bit differs from those of `word`; the end of the piece if there is none.
    fn next(&self, at: u64, word: u64) -> u64 {
        let (first, bit) = ((at / WORD_BITS) as usize, at % WORD_BITS);
        let mut mask = u64::MAX << bit;
        for (number, &bits) in self.words.iter().enumerate().skip(first) {
            let differ = (bits ^ word) & mask;
            if differ != 0 {
                return (number as u64 * WORD_BITS + u64::from(differ.trailing_zeros())).min(self.bytes);
            }
            mask = u64::MAX;
        }
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_set_is_that_of_single_bytes(
            bytes in 1_u64..300, runs in vec((0_u64..300, 0_u64..90), 0..6),
        ) {
            let mut coverage = Coverage::new(bytes);
            let mut counts = vec![0; bytes as usize];
            for (start, length) in runs {
                coverage.add(start, &Packing { run_bytes: length, levels: vec![] });
                counts.iter_mut().skip(start as usize).take(length as usize).for_each(|n| *n += 1);
            }
            let (mut found, mut before) = (vec![0; bytes as usize], None);
            for run in coverage.runs() {
                prop_assert!(before.is_none_or(|end| end < run.start), "runs are as long as possible");
                before = Some(run.start + run.bytes);
                found[run.start as usize..(run.start + run.bytes) as usize].fill(1);
            }
            let expected: Vec<u64> = counts.iter().map(|&n| n.min(1)).collect();
            prop_assert_eq!(coverage.count(), expected.iter().sum::<u64>());
            prop_assert_eq!(coverage.has_repeats(), counts.iter().any(|&n| n > 1));
            prop_assert_eq!(found, expected);
        }
    }
}
