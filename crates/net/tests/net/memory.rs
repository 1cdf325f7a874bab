//! Throughput, on demand: `cargo test --release -p outcore-net -- --ignored --nocapture figures`.

use std::time::Instant;

use crate::pool::*;

#[test]
#[ignore = "a measurement"]
fn figures() {
    let root = tempfile::tempdir().unwrap();
    for place in [tcp(), tls(), vec![outcore_net::Address::Unix(root.path().join("io.sock"))]] {
        let pool = Pool::new(&place);
        let link = pool.link();
        let bytes = 4 << 20;
        let data = pattern(0, bytes);
        for _ in 0..2 {
            let start_time = Instant::now();
            let calls: Vec<_> =
                (0..64).map(|_| start(&link, write_of(1, 0, bytes as u64), region(&data))).collect();
            calls.iter().for_each(|each| drop(wait(each)));
            let gib = (64 * bytes) as f64 / (1 << 30) as f64;
            println!("{} write {:.2} GiB/s", place[0], gib / start_time.elapsed().as_secs_f64());
        }
    }
}
