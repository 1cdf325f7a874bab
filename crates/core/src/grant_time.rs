//! Until when a client takes a grant to be good, by its own clock: that may differ from the manager's, and jump.

use crate::Grant;

/// How long a grant is taken to last where the clocks of manager and client differ by more than any lasts.
const USUAL_S: u64 = 600;
const MOST_S: u64 = 3600;
/// A grant is renewed in the background when so little, or a quarter, of its time is left.
const RENEW_BEFORE_S: u64 = 60;
/// With less left than this it may end on the way.
const TOO_LATE_S: u64 = 2;

/// See the module. All times are seconds of the client's clock. Where they are wrong, a grant is renewed too early, or an
/// I/O server refuses it, and it is renewed then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantTime {
    ends_s: u64,
    renew_at_s: u64,
}

impl GrantTime {
    /// Of a grant that came now.
    pub fn new(grant: &Grant, now_s: u64) -> Self {
        let left = grant.expires_s.checked_sub(now_s);
        let left = left.filter(|left| (TOO_LATE_S + 1..=MOST_S).contains(left)).unwrap_or(USUAL_S);
        let ends_s = now_s.saturating_add(left);
        Self { ends_s, renew_at_s: ends_s - RENEW_BEFORE_S.min(left / 4) }
    }

    /// Whether it must be renewed before it is used.
    pub fn is_over(&self, now_s: u64) -> bool {
        now_s.saturating_add(TOO_LATE_S) >= self.ends_s
    }

    /// Whether it is to be renewed.
    pub fn is_due(&self, now_s: u64) -> bool {
        self.is_over(now_s) || now_s >= self.renew_at_s
    }

    /// It is renewed so much later: that failed just now.
    pub fn put_off(&mut self, now_s: u64, by_s: u64) {
        self.renew_at_s = now_s.saturating_add(by_s);
    }

    /// A server refused it.
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
            // Set back it seems to last, until a server says that it does not.
            assert!(!time.is_over(0));
            let mut time = time;
            time.refused();
            assert!(time.is_over(0) && time.is_over(LAST_S));
        }
        let jumped = GrantTime::new(&grant(1600), 1000);
        assert!(jumped.is_over(LAST_S) && !GrantTime::new(&grant(1600), LAST_S).is_due(LAST_S));
    }
}
