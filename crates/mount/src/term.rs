//! The term of a lease.

use std::time::{Duration, Instant, SystemTime};

/// The time in which no other mount gets the locks of this one.
#[derive(Clone, Copy)]
pub(crate) struct Term {
    asked: (Instant, SystemTime),
    pub lasts: Duration,
}

impl Term {
    /// The term of a lease of `seconds`, which the mount asked for at these times. Its clock may be slower than the
    /// manager's by a tenth.
    pub fn new(asked: (Instant, SystemTime), seconds: u64) -> Self {
        Self { asked, lasts: Duration::from_secs(seconds) * 9 / 10 }
    }

    pub fn is_over(&self) -> bool {
        self.ends_within(Duration::ZERO)
    }

    pub fn ends_within(&self, time: Duration) -> bool {
        // While a machine sleeps, only its time of day continues.
        let by_day = self.asked.1.elapsed().unwrap_or_default();
        self.asked.0.elapsed().max(by_day) + time >= self.lasts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_believes_in_its_lease_for_less_than_its_term() {
        let asked = (Instant::now(), SystemTime::now());
        assert!(Term::new(asked, 10).ends_within(Duration::from_secs(9)));
        assert!(!Term::new(asked, 36_000).ends_within(Duration::from_secs(32_000)));
    }
}
