//! A histogram of times, which any thread may add to without a lock.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::exposition::Page;

/// Upper bounds of the buckets: in nanoseconds, and in seconds as text. `docs/operations.md` names them.
const BOUNDS: [(u64, &str); 22] = [
    (20_000, "0.00002"),
    (50_000, "0.00005"),
    (100_000, "0.0001"),
    (200_000, "0.0002"),
    (500_000, "0.0005"),
    (1_000_000, "0.001"),
    (2_000_000, "0.002"),
    (5_000_000, "0.005"),
    (10_000_000, "0.01"),
    (20_000_000, "0.02"),
    (50_000_000, "0.05"),
    (100_000_000, "0.1"),
    (200_000_000, "0.2"),
    (500_000_000, "0.5"),
    (1_000_000_000, "1"),
    (2_000_000_000, "2"),
    (5_000_000_000, "5"),
    (10_000_000_000, "10"),
    (20_000_000_000, "20"),
    (50_000_000_000, "50"),
    (100_000_000_000, "100"),
    (u64::MAX, "+Inf"),
];

/// Counts of times in buckets.
#[derive(Debug, Default)]
pub(crate) struct Histogram {
    buckets: [AtomicU64; BOUNDS.len()],
    sum_ns: AtomicU64,
}

impl Histogram {
    /// Adds a time.
    pub(crate) fn add(&self, took: Duration) {
        let took_ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.partition_point(|(bound_ns, _)| *bound_ns < took_ns);
        self.buckets[bucket].fetch_add(1, Ordering::Relaxed);
        self.sum_ns.fetch_add(took_ns, Ordering::Relaxed);
    }

    /// Number of times so far.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|count| count.load(Ordering::Relaxed)).sum()
    }

    /// Adds the samples of the current metric `name`, with a label.
    pub(crate) fn describe(&self, page: &mut Page, name: &str, label: (&str, &str)) {
        let (mut total, bucket) = (0, format!("{name}_bucket"));
        for (count, (_, bound)) in self.buckets.iter().zip(BOUNDS) {
            total += count.load(Ordering::Relaxed);
            page.value(&bucket, &[label, ("le", bound)], total);
        }
        let sum_s = self.sum_ns.load(Ordering::Relaxed) as f64 / 1e9;
        page.value(&format!("{name}_sum"), &[label], sum_s);
        page.value(&format!("{name}_count"), &[label], total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_in_the_first_bucket_that_is_not_below_it() {
        let histogram = Histogram::default();
        for ns in [0, 20_000, 20_001, 1_000_000_000, 1_000_000_001, u64::MAX / 2] {
            histogram.add(Duration::from_nanos(ns));
        }
        let counts: Vec<u64> = histogram.buckets.iter().map(|count| count.load(Ordering::Relaxed)).collect();
        let at = |bound: &str| counts[BOUNDS.iter().position(|(_, text)| *text == bound).unwrap()];
        assert_eq!([at("0.00002"), at("0.00005"), at("1"), at("2"), at("+Inf")], [2, 1, 1, 1, 1]);
        assert_eq!((histogram.count(), counts.iter().sum::<u64>()), (6, 6));
    }

    #[test]
    fn bounds_ascend_and_their_texts_are_the_same_numbers() {
        assert!(BOUNDS.is_sorted_by(|(a, _), (b, _)| a < b));
        for (bound_ns, text) in &BOUNDS[..BOUNDS.len() - 1] {
            assert_eq!(text.parse::<f64>().unwrap(), *bound_ns as f64 / 1e9);
        }
    }
}
