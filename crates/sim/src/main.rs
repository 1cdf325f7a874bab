//! `outcore-sim [FIRST [COUNT]]`: simulates the pools of COUNT seeds. For a single seed it prints every event.

use std::process::ExitCode;

use outcore_sim::seeds::{faults_of, simulate};

fn main() -> ExitCode {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u64>());
    let (Ok(first), Ok(count)) = (numbers.next().unwrap_or(Ok(0)), numbers.next().unwrap_or(Ok(1))) else {
        eprintln!("usage: outcore-sim [FIRST SEED [HOW MANY]]");
        return ExitCode::from(2);
    };
    let mut operations = 0;
    let (mut crashes, mut of_manager, mut collectives, mut in_rounds, mut jumps, mut refusals) =
        (0, 0, 0, 0, 0, 0);
    let (mut deaths, mut taken_over) = (0, 0);
    for seed in first..first.saturating_add(count) {
        match simulate(seed, count == 1) {
            Ok(world) => {
                operations += world.operations;
                crashes += world.crashes;
                of_manager += world.manager_crashes;
                deaths += world.deaths;
                taken_over += world.taken_over;
                collectives += world.collectives;
                in_rounds += world.collectives_in_rounds;
                jumps += world.jumps;
                refusals += world.refusals;
            }
            Err(finding) => {
                println!("seed {seed} ({:?}): {finding}", faults_of(seed));
                println!("again: cargo run --release -p outcore-sim -- {seed}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{count} pools from seed {first} on: {operations} operations, {collectives} of them in collectives, {in_rounds} of several rounds, {crashes} crashes, {of_manager} of the manager, {deaths} clients died, others continued the work of {taken_over} of them, {jumps} jumps of clocks, {refusals} grants refused, nothing found"
    );
    ExitCode::SUCCESS
}
