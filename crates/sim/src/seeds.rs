//! The events under each seed.

use crate::metadata::Metadata;
use crate::world::{Faults, Finding, World};

/// The faults under a seed.
pub fn faults_of(seed: u64) -> Faults {
    // A bit flip in a block that was being written during a power cut looks like a torn write. Flips therefore
    // come without crashes.
    let clocks = Faults { clocks: seed / 5 % 2 == 1, ..Faults::default() };
    match seed % 5 {
        0 => Faults { network: true, ..clocks },
        1 => Faults { flips: true, network: true, ..clocks },
        2 => {
            // A block that cannot be read after a crash counts as damaged.
            let errors = seed / 10 % 3 == 1;
            Faults { full: true, crashes: true, errors, sync_errors: seed / 10 % 3 == 2, ..clocks }
        }
        _ => Faults { crashes: true, network: true, ..clocks },
    }
}

/// Simulates the pool of a seed, and separately a manager that loses power, with clients that only call it. With
/// `trace`, prints every event of the pool.
pub fn simulate(seed: u64, trace: bool) -> Result<World, Finding> {
    Metadata::run(seed, None).map_err(|finding| format!("the manager: {finding}"))?;
    World::run(seed, faults_of(seed), None, trace)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::Plant;

    /// The seeds from `first` on that a test tries: 100 in `make test-all`. In `make test` they are 30, after which
    /// the combinations of faults repeat.
    fn seeds_from(first: u64) -> std::ops::Range<u64> {
        first..first + if std::env::var_os("OUTCORE_EXHAUSTIVE").is_some() { 100 } else { 30 }
    }

    /// Simulates pools with many collectives, some of them of several rounds.
    fn find_nothing_from(first: u64) {
        let (mut all, mut in_rounds) = (0, 0);
        let seeds = seeds_from(first);
        for seed in seeds.clone() {
            let world = simulate(seed, false).unwrap_or_else(|finding| {
                panic!("seed {seed}: {finding}\nagain: cargo run --release -p outcore-sim -- {seed}")
            });
            all += world.collectives;
            in_rounds += world.collectives_in_rounds;
        }
        let count = seeds.end - seeds.start;
        let told = format!("{all} of clients, {in_rounds} of several rounds");
        assert!(all > 3 * count && 10 * in_rounds > 3 * count, "{told}");
    }

    #[test]
    fn nothing_is_found_from_seed_0() {
        find_nothing_from(0);
    }

    #[test]
    fn nothing_is_found_from_seed_100() {
        find_nothing_from(100);
    }

    #[test]
    fn nothing_is_found_from_seed_200() {
        find_nothing_from(200);
    }

    /// Whether some seed finds a planted bug, and the same seed finds nothing without the bug.
    fn is_found(plant: Plant, faults: Faults) -> bool {
        is_found_from(0, plant, faults)
    }

    /// The same for a bug that few seeds find: tries those from `first` on before the others.
    fn is_found_from(first: u64, plant: Plant, faults: Faults) -> bool {
        let mut seeds = (first..300).chain(0..first);
        let seed = seeds.find(|&seed| World::run(seed, faults, Some(plant), false).is_err());
        println!("{plant:?}: seed {seed:?}");
        seed.is_some_and(|seed| World::run(seed, faults, None, false).is_ok())
    }

    #[test]
    fn a_skipped_sync_is_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found(Plant::SkipSync, faults));
    }

    #[test]
    fn a_request_done_twice_is_found() {
        let faults = Faults { network: true, ..Faults::default() };
        assert!(is_found(Plant::DoTwice, faults));
    }

    #[test]
    fn a_skipped_checksum_is_found() {
        let faults = Faults { flips: true, ..Faults::default() };
        assert!(is_found(Plant::SkipChecksum, faults));
    }

    #[test]
    fn a_restart_that_is_not_looked_at_is_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found(Plant::IgnoreIncarnation, faults));
    }

    #[test]
    fn a_removal_that_is_forgotten_is_found() {
        let faults = Faults { network: true, ..Faults::default() };
        assert!(is_found(Plant::ForgetRemovals, faults));
    }

    #[test]
    fn servers_that_trust_their_own_clocks_are_found() {
        let faults = Faults { clocks: true, ..Faults::default() };
        assert!(is_found(Plant::OwnClock, faults));
    }

    #[test]
    fn grants_that_are_not_renewed_are_found() {
        let faults = Faults { clocks: true, ..Faults::default() };
        assert!(is_found(Plant::KeepGrants, faults));
    }

    #[test]
    fn a_manager_that_answers_before_it_is_durable_is_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found(Plant::AnswerEarly, faults));
    }

    #[test]
    fn shares_that_are_trusted_before_the_end_are_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found_from(35, Plant::TrustShares, faults));
    }

    #[test]
    fn collectives_that_no_sync_knows_of_are_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found(Plant::ForgetCollectives, faults));
    }

    #[test]
    fn servers_that_wait_for_the_dead_are_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found_from(76, Plant::WaitForever, faults));
    }

    #[test]
    fn connections_that_do_not_end_are_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found(Plant::KeepConnections, faults));
    }

    #[test]
    fn removals_that_nobody_goes_on_with_are_found() {
        let faults = Faults { crashes: true, ..Faults::default() };
        assert!(is_found_from(38, Plant::LeaveOrphans, faults));
    }

    /// The faults against which generations, digests and lengths in seals protect.
    fn stale() -> [Faults; 3] {
        let old_copies = Faults { crashes: true, old_copies: true, ..Faults::default() };
        let lost_writes = Faults { lost_writes: true, ..Faults::default() };
        [old_copies, lost_writes, Faults { zeros: true, ..Faults::default() }]
    }

    #[test]
    fn older_copies_lost_writes_and_zeros_at_the_end_are_never_read_in_silence() {
        for faults in stale() {
            for seed in seeds_from(0) {
                if let Err(finding) = World::run(seed, faults, None, false) {
                    panic!("seed {seed}, {faults:?}: {finding}");
                }
            }
        }
    }

    #[test]
    fn generations_that_are_not_compared_are_found() {
        assert!(is_found(Plant::IgnoreGenerations, stale()[0]));
    }

    #[test]
    fn checksums_that_are_not_checked_after_a_lost_write_are_found() {
        assert!(is_found(Plant::SkipChecksum, stale()[1]));
    }

    #[test]
    fn lengths_of_the_disk_are_found() {
        assert!(is_found(Plant::TrustLengths, stale()[2]));
    }

    #[test]
    fn a_handle_used_again_is_found() {
        assert!(is_found(Plant::ReuseHandle, Faults::default()));
    }
}
