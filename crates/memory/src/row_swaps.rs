//! Row exchanges in a column-major matrix in memory.
//!
//! Each row has one element in each column, far from the row's other elements. So the exchanges spend their
//! time waiting for memory. The elements of a column are prefetched while earlier columns are processed.

use std::ops::Range;

use outcore_core::{Error, Result};

use crate::parts::parts;
use crate::prefetch::prefetch;

/// Prefetch distance in columns.
const AHEAD: usize = 4;

/// Minimum number of element exchanges per thread: starting a thread takes as long as some of them.
const LEAST_SWAPS: usize = 1 << 16;

/// A column-major matrix to change.
pub struct Rows<T> {
    /// The first element of the first column.
    pub first: *mut T,
    /// Distance between columns, in elements.
    pub pitch: usize,
    /// Number of columns.
    pub count: usize,
    /// Number of rows.
    pub rows: usize,
}

// SAFETY: it is an address; the caller of `swap` promises that nothing else accesses the rows.
unsafe impl<T: Send> Send for Rows<T> {}

impl<T: Copy + Send> Rows<T> {
    /// Exchanges row `i` with row `j` for each pair `(i, j)`, in order.
    ///
    /// # Safety
    /// All elements are valid memory, and nothing else reads or writes them meanwhile. The memory between the
    /// columns is not touched.
    pub unsafe fn swap(self, pairs: &[(usize, usize)]) -> Result<()> {
        if let Some(&(i, j)) = pairs.iter().find(|&&(i, j)| i.max(j) >= self.rows) {
            let rows = self.rows;
            return Err(Error::invalid(format!("cannot exchange rows {i} and {j} of {rows}")));
        }
        let (first, rest) = parts(self.count, pairs.len().saturating_mul(self.count) / LEAST_SWAPS);
        std::thread::scope(|scope| {
            for part in rest {
                let part = self.columns(part);
                // SAFETY: the caller's promise; no other part has these columns.
                scope.spawn(move || unsafe { part.swap_here(pairs) });
            }
            // SAFETY: as above.
            unsafe { self.columns(first).swap_here(pairs) };
        });
        Ok(())
    }

    fn columns(&self, range: Range<usize>) -> Self {
        Self { first: self.first.wrapping_add(range.start * self.pitch), count: range.len(), ..*self }
    }

    /// # Safety
    /// As for [`Rows::swap`], and the rows of the pairs exist.
    unsafe fn swap_here(&self, pairs: &[(usize, usize)]) {
        for column in 0..self.count {
            let own = self.first.wrapping_add(column * self.pitch);
            let ahead = own.wrapping_add(AHEAD * self.pitch);
            for &(i, j) in pairs {
                prefetch(ahead.wrapping_add(j));
                // SAFETY: both are elements of a column of the matrix.
                unsafe { own.add(i).swap(own.add(j)) };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn swapped(rows: usize, pitch: usize, count: usize, pairs: &[(usize, usize)]) {
        let mut values: Vec<u64> = (0..(pitch * count) as u64).collect();
        let mut expected = values.clone();
        for column in 0..count {
            for &(i, j) in pairs {
                expected.swap(column * pitch + i, column * pitch + j);
            }
        }
        let matrix = Rows { first: values.as_mut_ptr(), pitch, count, rows };
        // SAFETY: the vector's own memory.
        unsafe { matrix.swap(pairs) }.unwrap();
        assert_eq!(values, expected);
    }

    fn pairs(rows: usize, count: usize) -> Vec<(usize, usize)> {
        (0..count).map(|i| (i, i + (i * 7919) % (rows - i))).collect()
    }

    #[test]
    fn exchanges_what_a_plain_loop_does() {
        for (rows, pitch, count) in [(1, 1, 1), (9, 9, 0), (40, 41, 1), (40, 40, 2), (300, 311, 57)] {
            swapped(rows, pitch, count, &pairs(rows, rows.min(33)));
            swapped(rows, pitch, count, &[]);
        }
    }

    #[test]
    fn pairs_are_done_in_turn() {
        swapped(4, 4, 3, &[(0, 1), (1, 2), (2, 0), (0, 0), (3, 0)]);
    }

    #[test]
    fn several_threads_do_the_same() {
        swapped(700, 703, 1001, &pairs(700, 400));
        swapped(60_000, 60_000, 3, &pairs(60_000, 50_000));
    }

    #[test]
    fn rows_that_are_not_there_are_refused() {
        let mut values = [1_u32, 2, 3, 4];
        for pair in [(0, 2), (2, 0), (usize::MAX, 0)] {
            let matrix = Rows { first: values.as_mut_ptr(), pitch: 2, count: 2, rows: 2 };
            // SAFETY: the array's own memory.
            assert!(unsafe { matrix.swap(&[(0, 1), pair]) }.is_err());
        }
        assert_eq!(values, [1, 2, 3, 4]);
    }
}
