//! How long a server may be silent before its connection is given up: by how long it takes to answer.

use std::time::Duration;

/// Nobody waits longer for a sign of life.
const MOST: Duration = Duration::from_secs(120);

/// Signs of life that may fail to come.
const SIGNS: u32 = 3;

/// An estimate of the time that answers take, as RFC 6298 makes it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timeout {
    mean: Option<Duration>,
    deviation: Duration,
}

impl Timeout {
    /// An answer took this time.
    pub(crate) fn sample(&mut self, time: Duration) {
        match self.mean {
            // RFC 6298, section 2.2.
            None => (self.mean, self.deviation) = (Some(time), time / 2),
            // Section 2.3, with alpha = 1/8 and beta = 1/4.
            Some(mean) => {
                self.deviation = (self.deviation * 3 + mean.abs_diff(time)) / 4;
                self.mean = Some((mean * 7 + time) / 8);
            }
        }
    }

    /// How long a server that is at work may be silent, which gives a sign of life every `working`, at least `least`.
    pub(crate) fn silence(&self, least: Duration, working: Duration) -> Duration {
        // Section 2: RTO = SRTT + 4 RTTVAR.
        let answer = self.mean.map_or(Duration::ZERO, |mean| mean + self.deviation * 4);
        (answer + working * SIGNS).clamp(least.min(MOST), MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_what_is_measured() {
        let (least, working) = (Duration::from_millis(100), Duration::from_millis(10));
        let mut timeout = Timeout::default();
        assert_eq!(timeout.silence(least, working), least);
        timeout.sample(Duration::from_millis(800));
        assert_eq!(timeout.silence(least, working), Duration::from_millis(800 + 4 * 400 + 30));
        for _ in 0..200 {
            timeout.sample(Duration::from_millis(200));
        }
        let settled = timeout.silence(least, working);
        assert!(settled > Duration::from_millis(229) && settled < Duration::from_millis(240), "{settled:?}");
        timeout.sample(Duration::from_secs(3600));
        assert_eq!(timeout.silence(least, working), MOST);
    }
}
