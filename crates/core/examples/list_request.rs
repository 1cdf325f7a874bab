//! Measures the seconds to describe, encode, decode and count a list request of a million regions of 4 KiB:
//! `cargo run --release -p outcore-core --example list_request`. Prints a line per round.

use std::time::Instant;

use outcore_core::wire::{decode, encode};
use outcore_core::{Nested, Regions, Result, Stripes};

const ROUNDS: usize = 5;
const COUNT: u64 = 1_000_000;
const BYTES: u64 = 4096;

fn main() -> Result<()> {
    let stripes = Stripes::new(64 << 10, 4)?;
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let part = |i: u64| Nested { offset: i * 2 * BYTES, run_bytes: BYTES, levels: vec![] };
        let regions = Regions::new((0..COUNT).map(part).collect())?;
        let again = decode::<Regions>(&encode(&regions))?;
        let local: u64 = (0..4).map(|entry| again.local_bytes(stripes, entry)).sum();
        assert_eq!(local, COUNT * BYTES);
        println!("{:.6}", begun.elapsed().as_secs_f64());
    }
    Ok(())
}
