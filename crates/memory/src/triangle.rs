//! Sums of a Hermitian matrix of which one triangle is in memory.

use crate::{Columns, Real};

/// Values that are summed at once, in registers.
const LANES: usize = 8;

/// Rows that are gone through at once, so that their sums stay in the cache nearest to the processor.
const RUN: usize = 2048;

/// Adds the absolute values of some columns, from their diagonal down, to the sums of rows and columns of the whole
/// matrix. `sums[i]` is of row i of the columns, and of column i too: row 0 has the diagonal of column 0.
///
/// The first column is looked at as far as `first_rows` says and each later one to the same last row, whatever
/// `growth` is.
pub fn add_lower_sums<T: Real>(columns: Columns<'_, T>, sums: &mut [f64]) {
    let width = if columns.is_complex { 2 } else { 1 };
    let rows = columns.first_rows / width;
    let mut of_columns = vec![0.0; columns.count];
    for top in (0..rows).step_by(RUN) {
        let end = (top + RUN).min(rows);
        for (j, sum) in of_columns.iter_mut().enumerate() {
            let first = top.max(j + 1);
            if first < end {
                let column = &columns.values[j * columns.pitch..];
                *sum += add(&column[first * width..end * width], columns.is_complex, &mut sums[first..end]);
            }
            if (top..end).contains(&j) {
                let diagonal = &columns.values[j * columns.pitch + j * width..][..width];
                *sum += diagonal.iter().map(|x| x.magnitude().into()).sum::<f64>();
            }
        }
    }
    for (sum, of_column) in sums.iter_mut().zip(of_columns) {
        *sum += of_column;
    }
}

/// Adds the size of each element to its sum; returns the sum of all.
fn add<T: Real>(column: &[T], is_complex: bool, sums: &mut [f64]) -> f64 {
    if is_complex {
        return add_sizes(column.chunks_exact(2).map(|z| z[0].magnitude() + z[1].magnitude()), sums);
    }
    let mut total = [0.0; LANES];
    let groups = column.chunks_exact(LANES);
    let rest = groups.remainder();
    let whole = column.len() - rest.len();
    for (group, sums) in groups.zip(sums.chunks_exact_mut(LANES)) {
        for i in 0..LANES {
            let size: f64 = group[i].magnitude().into();
            sums[i] += size;
            total[i] += size;
        }
    }
    total.iter().sum::<f64>() + add_sizes(rest.iter().map(|x| x.magnitude()), &mut sums[whole..])
}

fn add_sizes<T: Real>(sizes: impl Iterator<Item = T>, sums: &mut [f64]) -> f64 {
    let mut total = 0.0;
    for (size, sum) in sizes.zip(sums) {
        let size: f64 = size.into();
        *sum += size;
        total += size;
    }
    total
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lower(values: &[f64], rows: usize, count: usize, is_complex: bool) -> Vec<f64> {
        let width = if is_complex { 2 } else { 1 };
        let columns =
            Columns { values, pitch: rows * width, count, first_rows: rows * width, growth: 0, is_complex };
        let mut sums = vec![0.5; rows];
        add_lower_sums(columns, &mut sums);
        sums
    }

    #[test]
    fn sums_are_those_of_the_whole_matrix() {
        for (rows, count) in [(1, 1), (3, 3), (70, 17), (5000, 40), (2049, 3)] {
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
