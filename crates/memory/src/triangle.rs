//! Row sums and column sums, for example of a Hermitian matrix with one triangle in memory.

use std::ops::Range;

use crate::columns::LEAST_BYTES;
use crate::parts::parts;
use crate::prefetch::prefetch;
use crate::{Columns, Real};

/// Number of values that are summed in parallel, in registers.
const LANES: usize = 8;

/// Number of rows per pass, so that their sums stay in the first-level cache.
const RUN: usize = 2048;

/// Adds the absolute values of some columns to the sums of their rows and of the columns. With `trapezoid`,
/// the columns start with their diagonal block. Then only its lower triangle is read, and the diagonal is
/// added to the column sums only.
pub fn add_sums<T: Real>(
    columns: Columns<'_, T>,
    of_rows: &mut [f64],
    of_columns: &mut [f64],
    trapezoid: bool,
) {
    let rows = of_rows.len();
    let range = |runs: Range<usize>| runs.start * RUN..(runs.end * RUN).min(rows);
    let (first, rest) = parts(rows.div_ceil(RUN), size_of_val(columns.values) / LEAST_BYTES);
    let first = range(first);
    let (own, mut others) = of_rows.split_at_mut(first.end);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for rows in rest.map(range) {
            let (here, below) = others.split_at_mut(rows.len());
            others = below;
            let mut sums = vec![0.0; of_columns.len()];
            threads.push(scope.spawn(move || {
                add_rows(columns, rows, here, &mut sums, trapezoid);
                sums
            }));
        }
        add_rows(columns, first, own, of_columns, trapezoid);
        for thread in threads {
            let sums = thread.join().expect("adding does not panic");
            of_columns.iter_mut().zip(sums).for_each(|(sum, more)| *sum += more);
        }
    });
}

/// Does [`add_sums`] for some rows, whose sums are `of_rows`.
fn add_rows<T: Real>(
    columns: Columns<'_, T>,
    rows: Range<usize>,
    of_rows: &mut [f64],
    of_columns: &mut [f64],
    trapezoid: bool,
) {
    let width = if columns.is_complex { 2 } else { 1 };
    let add = if columns.is_complex { add::<T, 2> } else { add::<T, 1> };
    for top in rows.clone().step_by(RUN) {
        let end = (top + RUN).min(rows.end);
        for (j, sum) in of_columns.iter_mut().enumerate() {
            let column = &columns.values[j * columns.pitch..];
            let first = if trapezoid { top.max(j + 1) } else { top };
            if first < end {
                let sums = &mut of_rows[first - rows.start..end - rows.start];
                *sum += add(&column[first * width..end * width], columns.pitch, sums);
            }
            if trapezoid && (top..end).contains(&j) {
                *sum += size(&column[j * width..][..width]);
            }
        }
    }
}

/// [`add_here`] with wide registers, if this processor has them.
fn add<T: Real, const WIDTH: usize>(column: &[T], pitch: usize, sums: &mut [f64]) -> f64 {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide<T: Real, const WIDTH: usize>(column: &[T], pitch: usize, sums: &mut [f64]) -> f64 {
            add_here::<T, WIDTH>(column, pitch, sums)
        }
        // SAFETY: the processor has AVX2, as just checked.
        return unsafe { wide::<T, WIDTH>(column, pitch, sums) };
    }
    add_here::<T, WIDTH>(column, pitch, sums)
}

/// Adds the size of each number to the sum of its row. Returns the sum of all sizes. The next column is
/// `pitch` values away.
#[inline(always)]
fn add_here<T: Real, const WIDTH: usize>(column: &[T], pitch: usize, sums: &mut [f64]) -> f64 {
    let mut total = [0.0; LANES];
    let (groups, rest) = column.as_chunks::<LANES>();
    let whole = (column.len() - rest.len()) / WIDTH;
    for (group, sums) in groups.iter().zip(sums.chunks_exact_mut(LANES / WIDTH)) {
        prefetch(group.as_ptr().wrapping_add(pitch));
        for (i, sum) in sums.iter_mut().enumerate() {
            let size = size(&group[i * WIDTH..][..WIDTH]);
            *sum += size;
            total[i] += size;
        }
    }
    for (number, sum) in rest.chunks_exact(WIDTH).zip(&mut sums[whole..]) {
        let size = size(number);
        *sum += size;
        total[0] += size;
    }
    total.iter().sum()
}

/// The absolute value of a number, or |re| + |im|.
#[inline(always)]
fn size<T: Real>(parts: &[T]) -> f64 {
    let size = parts.iter().map(|part| part.magnitude()).reduce(|re, im| re + im);
    size.map_or(0.0, Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Column sums of the whole matrix, given its columns from the diagonal down.
    fn lower(values: &[f64], rows: usize, count: usize, is_complex: bool) -> Vec<f64> {
        let width = if is_complex { 2 } else { 1 };
        let pitch = rows * width;
        let columns = Columns { values, pitch, count, first_rows: pitch, growth: 0, is_complex };
        let (mut sums, mut of_columns) = (vec![0.5; rows], vec![0.0; count]);
        add_sums(columns, &mut sums, &mut of_columns, true);
        for (sum, of_column) in sums.iter_mut().zip(of_columns) {
            *sum += of_column;
        }
        sums
    }

    #[test]
    fn a_rectangle_has_sums_both_ways() {
        let values = [1.0, -2.0, 9.0, 3.0, 4.0, 9.0];
        let columns =
            Columns { values: &values, pitch: 3, count: 2, first_rows: 2, growth: 0, is_complex: false };
        let (mut of_rows, mut of_columns) = (vec![1.0; 2], vec![0.0; 2]);
        add_sums(columns, &mut of_rows, &mut of_columns, false);
        assert_eq!((of_rows, of_columns), (vec![5.0, 7.0], vec![3.0, 7.0]));
    }

    #[test]
    fn sums_are_those_of_the_whole_matrix() {
        for (rows, count) in [(1, 1), (3, 3), (70, 17), (5000, 40), (2049, 3), (9000, 70)] {
            let values: Vec<f64> = (0..rows * count).map(|i| ((i * 7919) % 1000) as f64 - 500.0).collect();
            let mut expected = vec![0.5; rows];
            for j in 0..count {
                for i in j..rows {
                    let size = values[j * rows + i].abs();
                    expected[j] += size;
                    if i > j {
                        expected[i] += size;
                    }
                }
            }
            assert_eq!(lower(&values, rows, count, false), expected);
        }
    }

    #[test]
    fn adds_the_parts_of_complex_numbers() {
        let values = [1.0, -2.0, 3.0, -4.0, f64::NAN, 0.0, 5.0, 6.0];
        assert_eq!(lower(&values, 2, 2, true), [10.5, 18.5]);
    }

    #[test]
    fn a_nan_or_an_infinity_below_the_diagonal_is_in_a_sum() {
        for bad in [f64::NAN, f64::INFINITY] {
            for place in [0, 7, 8, 2047, 2048, 2999, 3001, 5999] {
                let mut values = vec![1.0; 6000];
                values[place] = bad;
                assert!(lower(&values, 3000, 2, false).iter().any(|s| !s.is_finite()), "{bad} at {place}");
            }
        }
    }
}
