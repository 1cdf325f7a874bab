//! The silence after which the client drops the connection to a server, estimated from the time of answers.

use std::time::Duration;

/// Maximum silence.
const MOST: Duration = Duration::from_secs(120);

/// Number of signs of life that may be missing.
const SIGNS: u32 = 3;

/// An estimate of the time of answers, as in RFC 6298.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Timeout {
    mean: Option<Duration>,
    deviation: Duration,
}

impl Timeout {
    /// Adds the time of an answer.
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

    /// The permitted silence of a server that sends a sign of life every `working`; at least `least`.
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
