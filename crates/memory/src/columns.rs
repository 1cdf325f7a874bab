//! Sums and largest elements of the columns of a matrix in memory, in one pass.

use std::ops::Range;

use crate::parts::parts;
use crate::prefetch::prefetch;

/// Number of values that are summed and compared in parallel, in registers.
const LANES: usize = 16;

/// Number of values after which partial sums are added to a sum in double precision.
const RUN: usize = 4096;

/// Prefetch distance.
const AHEAD_BYTES: usize = 2048;

/// Minimum memory per thread: starting a thread takes as long as reading some of it.
pub(crate) const LEAST_BYTES: usize = 1 << 20;

/// The result of [`column_extremes`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Extremes {
    /// The largest column sum of absolute values: infinite or NaN if a column's sum is.
    pub sum: f64,
    /// The largest absolute value. NaN is ignored.
    pub max: f64,
}

impl Extremes {
    /// The combined extremes of two parts.
    fn or(self, other: Self) -> Self {
        // Unlike `f64::max`, this keeps a NaN.
        let sum = if other.sum > self.sum || other.sum.is_nan() { other.sum } else { self.sum };
        Self { sum, max: self.max.max(other.max) }
    }
}

/// A real type of the BLAS.
pub trait Real:
    Copy + Default + PartialOrd + std::ops::AddAssign + std::ops::Add<Output = Self> + Into<f64> + Sync
{
    /// The absolute value.
    fn magnitude(self) -> Self;
}

impl Real for f32 {
    fn magnitude(self) -> Self {
        self.abs()
    }
}

impl Real for f64 {
    fn magnitude(self) -> Self {
        self.abs()
    }
}

/// A column-major matrix.
#[derive(Clone, Copy)]
pub struct Columns<'a, T> {
    /// The values, from the first of the first column to the last of the last column.
    pub values: &'a [T],
    /// Distance between columns, in values.
    pub pitch: usize,
    /// Number of columns.
    pub count: usize,
    /// Number of values to examine in the first column.
    pub first_rows: usize,
    /// Number of additional values in each later column.
    pub growth: usize,
    /// Whether pairs of values are complex numbers, with the size |re| + |im|.
    pub is_complex: bool,
}

impl<'a, T> Columns<'a, T> {
    fn column(&self, j: usize) -> &'a [T] {
        &self.values[j * self.pitch..][..self.first_rows + j * self.growth]
    }
}

/// Reads a matrix once, on all cores if it is large. The BLAS's threads soon leave the cores to it
/// (`blas_choice.py`).
pub fn column_extremes<T: Real>(columns: Columns<'_, T>) -> Extremes {
    let look = if columns.is_complex { look::<T, true> } else { look::<T, false> };
    let look_at =
        |own: Range<usize>| own.map(|j| look(columns.column(j))).fold(Extremes::default(), Extremes::or);
    let (first, rest) = parts(columns.count, size_of_val(columns.values) / LEAST_BYTES);
    std::thread::scope(|scope| {
        let others: Vec<_> = rest.map(|part| scope.spawn(move || look_at(part))).collect();
        let own = look_at(first);
        let found = others.into_iter().map(|each| each.join().expect("looking does not panic"));
        found.fold(own, Extremes::or)
    })
}

/// [`look_here`] with wide registers, if this processor has them.
fn look<T: Real, const COMPLEX: bool>(column: &[T]) -> Extremes {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        #[target_feature(enable = "avx2")]
        fn wide<T: Real, const COMPLEX: bool>(column: &[T]) -> Extremes {
            look_here::<T, COMPLEX>(column)
        }
        // SAFETY: the processor has AVX2, as just checked.
        return unsafe { wide::<T, COMPLEX>(column) };
    }
    look_here::<T, COMPLEX>(column)
}

#[inline(always)]
fn look_here<T: Real, const COMPLEX: bool>(column: &[T]) -> Extremes {
    let mut sum = 0.0;
    let mut largest = [T::default(); LANES];
    for run in column.chunks(RUN) {
        let mut sums = [T::default(); LANES];
        let (groups, rest) = run.as_chunks::<LANES>();
        for group in groups {
            prefetch(group.as_ptr().wrapping_byte_add(AHEAD_BYTES));
            prefetch(group.as_ptr().wrapping_byte_add(AHEAD_BYTES + 64));
            add_group::<T, COMPLEX>(group, &mut sums, &mut largest);
        }
        let mut padded = [T::default(); LANES];
        padded[..rest.len()].copy_from_slice(rest);
        add_group::<T, COMPLEX>(&padded, &mut sums, &mut largest);
        sum += sums.iter().map(|&s| s.into()).sum::<f64>();
    }
    Extremes { sum, max: largest.iter().fold(0.0, |max: f64, &size| max.max(size.into())) }
}

#[inline(always)]
fn add_group<T: Real, const COMPLEX: bool>(
    group: &[T; LANES],
    sums: &mut [T; LANES],
    largest: &mut [T; LANES],
) {
    let mut sizes = group.map(Real::magnitude);
    for i in 0..LANES {
        sums[i] += sizes[i];
    }
    if COMPLEX {
        // The size of a complex number, at the places of both parts.
        sizes = std::array::from_fn(|i| sizes[i] + sizes[i ^ 1]);
    }
    for i in 0..LANES {
        largest[i] = if sizes[i] > largest[i] { sizes[i] } else { largest[i] };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn real(values: &[f64], pitch: usize, count: usize, rows: usize) -> Columns<'_, f64> {
        Columns { values, pitch, count, first_rows: rows, growth: 0, is_complex: false }
    }

    #[test]
    fn finds_what_a_plain_loop_finds() {
        for (rows, pitch, count) in [(1, 1, 1), (17, 20, 3), (5000, 5003, 70), (4096, 4096, 40)] {
            let values: Vec<f64> = (0..pitch * count).map(|i| ((i * 7919) % 1000) as f64 - 500.0).collect();
            let sums = (0..count).map(|j| values[j * pitch..][..rows].iter().map(|x| x.abs()).sum::<f64>());
            let max =
                (0..count).flat_map(|j| &values[j * pitch..][..rows]).fold(0.0, |m: f64, x| m.max(x.abs()));
            let expected = Extremes { sum: sums.fold(0.0, f64::max), max };
            assert_eq!(column_extremes(real(&values, pitch, count, rows)), expected);
        }
    }

    #[test]
    fn looks_at_growing_columns_only_as_far_as_they_go() {
        let values = [1.0, 9.0, 9.0, 1.0, -2.0, 9.0, 1.0, 2.0, 3.0];
        let columns = Columns { growth: 1, ..real(&values, 3, 3, 1) };
        assert_eq!(column_extremes(columns), Extremes { sum: 6.0, max: 3.0 });
    }

    #[test]
    fn finds_the_same_with_several_threads() {
        for worst in [0, 1_234_567, 2_999_999] {
            let mut values = vec![1.0; 3_000_000];
            values[worst] = -7.0;
            let found = column_extremes(real(&values, 1000, 3000, 1000));
            assert_eq!(found, Extremes { sum: 1006.0, max: 7.0 });
            values[worst] = f64::NAN;
            assert!(column_extremes(real(&values, 1000, 3000, 1000)).sum.is_nan());
        }
    }

    #[test]
    fn adds_the_parts_of_complex_numbers() {
        let values: Vec<f32> = (0..34).map(|i| if i == 33 { -40.0 } else { 1.0 }).collect();
        let columns =
            Columns { values: &values, pitch: 34, count: 1, first_rows: 34, growth: 0, is_complex: true };
        assert_eq!(column_extremes(columns), Extremes { sum: 73.0, max: 41.0 });
    }

    #[test]
    fn a_nan_or_an_infinity_anywhere_is_in_the_sum() {
        for bad in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            for place in [0, 15, 16, 4095, 4096, 9999] {
                let mut values = vec![1.0; 20_000];
                values[place] = bad;
                let found = column_extremes(real(&values, 10_000, 2, 10_000));
                assert!(!found.sum.is_finite(), "{bad} at {place}");
            }
        }
    }
}
