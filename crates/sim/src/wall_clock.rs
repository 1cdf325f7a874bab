//! Wall clocks that jump.

use outcore_core::crash_disk::Random;

const SECOND_NS: i128 = 1_000_000_000;
const HOUR_NS: i128 = 3600 * SECOND_NS;
const YEAR_NS: i128 = 365 * 24 * HOUR_NS;

/// The wall clock of a machine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WallClock {
    ahead_ns: i128,
}

impl WallClock {
    /// The clock's time in nanoseconds since 1970, at the true time `real_ns`. Times before 1970 read as 0, as
    /// everywhere in outcore.
    pub fn now_ns(&self, real_ns: u64) -> u64 {
        u64::try_from((i128::from(real_ns) + self.ahead_ns).max(0)).unwrap_or(u64::MAX)
    }

    /// The clock's time in seconds since 1970.
    pub fn now_s(&self, real_ns: u64) -> u64 {
        self.now_ns(real_ns) / 1_000_000_000
    }

    /// Sets the clock: ahead or back by seconds, minutes, hours or years, to before 1970, to the largest
    /// representable time, or to the correct time.
    pub fn jump(&mut self, random: &mut Random) {
        let scale = *random.pick(&[SECOND_NS, 10 * 60 * SECOND_NS, HOUR_NS, YEAR_NS]);
        let by_ns = scale * i128::from(random.between(1, 100)) / i128::from(random.between(1, 4));
        self.ahead_ns = match random.below(10) {
            0..4 => self.ahead_ns + by_ns,
            4..7 => self.ahead_ns - by_ns,
            7 => -100 * YEAR_NS,
            8 if random.once_in(4) => i128::from(u64::MAX),
            _ => 0,
        };
    }
}

/// The clocks of a pool.
#[derive(Debug)]
pub struct Clocks {
    /// The manager's clock.
    pub manager: WallClock,
    /// The I/O servers' clocks.
    pub servers: Vec<WallClock>,
    /// The clients' clocks.
    pub clients: Vec<WallClock>,
}

impl Clocks {
    /// Clocks that are all correct.
    pub fn new(servers: usize, clients: usize) -> Self {
        let right = WallClock::default();
        Self { manager: right, servers: vec![right; servers], clients: vec![right; clients] }
    }

    /// Makes a random clock jump. Returns a description.
    pub fn jump(&mut self, random: &mut Random) -> String {
        let (servers, clients) = (self.servers.len(), self.clients.len());
        // There is only one manager, and everybody depends on its clock, so it is drawn more often.
        let which = random.below((servers + clients) as u64 * 3 / 2 + 1) as usize;
        let (clock, whose) = if which < servers {
            (&mut self.servers[which], format!("server {which}"))
        } else if which < servers + clients {
            (&mut self.clients[which - servers], format!("client {}", which - servers))
        } else {
            (&mut self.manager, "the manager".into())
        };
        clock.jump(random);
        format!("the clock of {whose} is {} s ahead", clock.ahead_ns / SECOND_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_jump_far_both_ways_and_come_back() {
        const REAL_NS: u64 = 1_700_000_000_000_000_000;
        let (mut clock, mut random) = (WallClock::default(), Random::new(1));
        assert_eq!(clock.now_ns(REAL_NS), REAL_NS);
        let mut said = std::collections::BTreeSet::new();
        for _ in 0..1000 {
            clock.jump(&mut random);
            said.insert(clock.now_ns(REAL_NS));
        }
        assert!(said.len() > 300 && said.contains(&0) && said.contains(&u64::MAX) && said.contains(&REAL_NS));
    }
}
