//! Grants of a pool: their renewal, and requests that servers refuse.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_client::PoolVolume;
use outcore_core::{Error, ErrorKind, Operation, Regions, Volume};

use crate::pool::{PATIENCE, made, run, sync, write_all};
use crate::pool_link::{GRANT_S, MemoryLink, content, pool, region};

#[test]
fn grants_are_renewed_before_they_end_and_after() {
    let (pool, link) = pool(2);
    let file = made(&pool, 200);
    let all = Regions::contiguous(0, 200).unwrap();
    let read = || run(&pool, file, Operation::Read, all.clone(), &region(&[0; 200]));
    for after_s in [0, GRANT_S / 2] {
        link.now_s.fetch_add(after_s, Ordering::SeqCst);
        read().unwrap();
        assert_eq!(link.renewals(), 0);
    }
    link.now_s.fetch_add(GRANT_S / 2 - 10, Ordering::SeqCst);
    read().unwrap(); // with the old grant, which is renewed in the background
    let end = std::time::Instant::now() + PATIENCE;
    while link.renewals() == 0 {
        assert!(std::time::Instant::now() < end);
        std::thread::yield_now();
    }
    // A client that slept: its grant expired long ago, and is renewed first.
    link.now_s.fetch_add(10 * GRANT_S, Ordering::SeqCst);
    read().unwrap();
    assert_eq!(link.renewals(), 2);
    link.now_s.fetch_add(10 * GRANT_S, Ordering::SeqCst);
    assert_eq!(pool.length(file), Ok(200));
    assert_eq!(link.renewals(), 3);
}

/// All operations of a client on a file, with clocks that jump before each step.
#[test]
fn a_grant_that_servers_refuse_is_renewed_and_the_request_made_again() {
    const YEAR_S: u64 = 365 * 24 * 3600;
    let link = Arc::new(MemoryLink::new(3));
    for client_ns in [0, 1_000_000_000_000_000, u64::MAX] {
        // The client's clock stands still, while the pool's clock jumps by a year each time.
        let pool = PoolVolume::new(link.clone(), Arc::new(move || client_ns)).unwrap();
        let jump = || link.now_s.fetch_add(YEAR_S, Ordering::SeqCst);
        let file = made(&pool, 300);
        jump();
        write_all(&pool, file, 7);
        jump();
        sync(&pool, file).unwrap();
        let buffer = region(&[9; 300]);
        for offset in [0, 100] {
            jump();
            let read = Regions::contiguous(offset, 200).unwrap();
            run(&pool, file, Operation::Read, read, &region(&[9; 200])).unwrap();
        }
        jump();
        pool.set_length(file, 400).unwrap();
        jump();
        assert_eq!(pool.length(file), Ok(400));
        jump();
        run(&pool, file, Operation::Read, Regions::contiguous(0, 300).unwrap(), &buffer).unwrap();
        assert_eq!(content(&buffer), [7; 300]);
        // Each of these requests gets its own grant.
        let before = link.renewals();
        pool.replace_small("small", b"one").unwrap();
        pool.append_small("small", b" two").unwrap();
        assert_eq!(pool.read_small("small").unwrap(), b"one two");
        pool.remove("small").unwrap();
        assert_eq!(link.renewals(), before);
        pool.remove("f").unwrap();
        assert_eq!(link.data_files(), 0);
        pool.close(file);
    }
    // A client that is refused repeatedly gets an error.
    let pool = PoolVolume::new(link.clone(), Arc::new(|| 0)).unwrap();
    let file = made(&pool, 300);
    let denied = || Some(Error::new(ErrorKind::Denied, "injected"));
    link.faults.lock().unwrap().extend((0..100).map(|_| denied()));
    link.take_log();
    assert_eq!(sync(&pool, file).unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(pool.length(file).unwrap_err().kind, ErrorKind::Denied);
    assert_eq!(link.take_log().len(), 2 * 4 * 3);
    link.faults.lock().unwrap().clear();
    // Also if servers refuse a removal, a request for lengths, or a small file.
    for _ in 0..3 {
        let one_each = |pool: &PoolVolume<MemoryLink>, action: &dyn Fn(&PoolVolume<MemoryLink>)| {
            link.faults.lock().unwrap().push_back(denied());
            action(pool);
            assert!(link.faults.lock().unwrap().is_empty());
        };
        one_each(&pool, &|pool| pool.replace_small("small", b"1").unwrap());
        one_each(&pool, &|pool| assert_eq!(pool.read_small("small").unwrap(), b"1"));
        one_each(&pool, &|pool| pool.append_small("small", b"").unwrap());
        one_each(&pool, &|pool| assert_eq!(pool.list("").unwrap().len(), 2));
        one_each(&pool, &|pool| pool.settle("small").unwrap());
        one_each(&pool, &|pool| pool.remove("small").unwrap());
        assert_eq!(link.data_files(), 3);
    }
}
