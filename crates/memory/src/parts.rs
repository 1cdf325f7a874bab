//! Divides the columns of a matrix in memory among threads.

use std::num::NonZero;
use std::ops::Range;

/// More threads do not read or write memory faster.
const MOST_THREADS: usize = 4;

/// Divides columns into parts of about the same size, for at most `most` threads: the caller's own part, and
/// the parts of the others. There are at most as many parts as cores: the BLAS's threads soon leave the cores
/// (`blas_choice.py`).
pub(crate) fn parts(columns: usize, most: usize) -> (Range<usize>, impl Iterator<Item = Range<usize>>) {
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let threads = cores.min(MOST_THREADS).min(most).clamp(1, columns.max(1));
    let bound = move |thread: usize| thread * columns / threads;
    (0..bound(1), (1..threads).map(move |k| bound(k)..bound(k + 1)))
}
