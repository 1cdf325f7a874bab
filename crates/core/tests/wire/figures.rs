//! On demand: `cargo test --release -p outcore-core --test wire -- --ignored --nocapture`.

use std::time::Instant;

use outcore_core::wire::{decode, encode};
use outcore_core::{Nested, Regions, Stripes};

#[test]
#[ignore = "a measurement"]
fn a_million_regions() {
    let part = |i: u64| Nested { offset: i * 8192, run_bytes: 4096, levels: vec![] };
    for _ in 0..3 {
        let begun = Instant::now();
        let regions = Regions::new((0..1_000_000).map(part).collect()).unwrap();
        let made = begun.elapsed();
        let bytes = encode(&regions);
        let encoded = begun.elapsed() - made;
        let again = decode::<Regions>(&bytes).unwrap();
        let decoded = begun.elapsed() - made - encoded;
        let local = again.local_bytes(Stripes::new(65_536, 4).unwrap(), 1);
        let counted = begun.elapsed() - made - encoded - decoded;
        println!(
            "made {made:?}, encoded {encoded:?}, decoded {decoded:?}, {local} bytes counted {counted:?}"
        );
    }
}
