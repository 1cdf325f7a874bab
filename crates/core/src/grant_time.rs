//! The lifetime of a grant by the client's clock, which may differ from the manager's clock and jump.

use crate::Grant;

/// Assumed lifetime in seconds if the clocks of manager and client differ by more than the longest lifetime.
const USUAL_S: u64 = 600;
const MOST_S: u64 = 3600;
/// The client renews a grant in the background when this much of its time is left, or a quarter of it.
const RENEW_BEFORE_S: u64 = 60;
/// With less time left, the grant may expire on the way.
const TOO_LATE_S: u64 = 2;

/// The lifetime of one grant, in seconds of the client's clock. If the clock is wrong, the client renews a
/// grant too early, or an I/O server refuses the grant and the client renews it then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantTime {
    ends_s: u64,
    renew_at_s: u64,
}

impl GrantTime {
    /// Lifetime of a grant that arrived at `now_s`.
    pub fn new(grant: &Grant, now_s: u64) -> Self {
        let left = grant.expires_s.checked_sub(now_s);
        let left = left.filter(|left| (TOO_LATE_S + 1..=MOST_S).contains(left)).unwrap_or(USUAL_S);
        let ends_s = now_s.saturating_add(left);
        Self { ends_s, renew_at_s: ends_s - RENEW_BEFORE_S.min(left / 4) }
    }

    /// Whether the client must renew the grant before using it.
    pub fn is_over(&self, now_s: u64) -> bool {
        now_s.saturating_add(TOO_LATE_S) >= self.ends_s
    }

    /// Whether it is time to renew the grant.
    pub fn is_due(&self, now_s: u64) -> bool {
        self.is_over(now_s) || now_s >= self.renew_at_s
    }

    /// Delays the renewal by `by_s` seconds, after a failed attempt.
    pub fn put_off(&mut self, now_s: u64, by_s: u64) {
        self.renew_at_s = now_s.saturating_add(by_s);
    }

    /// Marks the grant as refused by a server.
    pub fn refused(&mut self) {
        self.ends_s = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Handle;

    const LAST_S: u64 = u64::MAX / 1_000_000_000;

    fn grant(expires_s: u64) -> Grant {
        Grant { handle: Handle(7), write: true, expires_s, mac: [0; 32] }
    }

    #[test]
    fn a_grant_is_renewed_a_minute_before_its_end() {
        let time = GrantTime::new(&grant(1000), 0);
        assert_eq!([939, 940, 997, 998].map(|now_s| time.is_due(now_s)), [false, true, true, true]);
        assert_eq!([939, 940, 997, 998].map(|now_s| time.is_over(now_s)), [false, false, false, true]);
    }

    #[test]
    fn clocks_that_differ_cost_no_renewal_and_jumps_one() {
        for (manager_s, now_s) in [(500_000_000, 1_000_000_000), (500_000_000, 0), (0, LAST_S), (LAST_S, 0)] {
            let time = GrantTime::new(&grant(manager_s + USUAL_S), now_s);
            assert!(!time.is_due(now_s + 1) && time.is_over(now_s + USUAL_S), "{manager_s} {now_s}");
            // With the clock set back, the grant seems valid until a server refuses it.
            assert!(!time.is_over(0));
            let mut time = time;
            time.refused();
            assert!(time.is_over(0) && time.is_over(LAST_S));
        }
        let jumped = GrantTime::new(&grant(1600), 1000);
        assert!(jumped.is_over(LAST_S) && !GrantTime::new(&grant(1600), LAST_S).is_due(LAST_S));
    }
}
