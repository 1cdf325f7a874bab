//! Creation, removal, renaming and times of the files of a pool.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_client::{Attributes, PoolVolume};
use outcore_core::{Buffer, Error, ErrorKind, Hints, OpenMode, Operation, Regions, Volume};

use crate::pool::{made, noise, run, write_all};
use crate::pool_link::{MemoryLink, pool, region};

#[test]
fn a_file_that_cannot_be_made_whole_is_not_there() {
    let (pool, link) = pool(3);
    *link.faults.lock().unwrap() = [None, Some(Error::new(ErrorKind::DiskFull, "full"))].into();
    let error = pool.open("f", OpenMode::Create { length: 9000, reserve: true }).unwrap_err();
    assert_eq!((error.kind, pool.exists("f"), link.data_files()), (ErrorKind::DiskFull, Ok(false), 0));
    // Files that were not replaced keep their old content.
    pool.replace_small("s", b"old").unwrap();
    *link.faults.lock().unwrap() = [None, Some(Error::new(ErrorKind::DiskFull, "full"))].into();
    assert_eq!(pool.replace_small("s", b"new").unwrap_err().kind, ErrorKind::DiskFull);
    assert_eq!(pool.read_small("s").as_deref(), Ok(&b"old"[..]));
    assert_eq!(pool.list("").unwrap().len(), 1, "nothing is left over");
    assert_eq!(link.data_files(), 1);
}

#[test]
fn metadata_describe_their_directory_without_a_request_of_their_own() {
    let (pool, link) = pool(2);
    let group = br#"{"node_type": "group"}"#;
    let requests = |of: &dyn Fn()| {
        let before = link.asked();
        of();
        link.asked() - before
    };
    let other = requests(&|| pool.replace_small("d/A/zarr.txt", group).unwrap());
    assert_eq!(requests(&|| pool.replace_small("d/A/zarr.json", group).unwrap()), other);
    assert_eq!(link.description("d/A"), r#"{"kind":"group"}"#);
    // A file that gets the name later; a file and a directory that describe nothing.
    pool.replace_small("d/B/part", br#"{"node_type": "array", "shape": [3]}"#).unwrap();
    pool.rename("d/B/part", "d/B/zarr.json").unwrap();
    assert_eq!(link.description("d/B"), r#"{"kind":"array","ndim":1,"shape":[3]}"#);
    pool.replace_small("d/C/part", &vec![b'['; 1 << 21]).unwrap();
    pool.rename("d/C/part", "d/C/zarr.json").unwrap();
    pool.make_directory("d/D/part").unwrap();
    pool.rename("d/D/part", "d/D/zarr.json").unwrap();
    assert_eq!([link.description("d/C"), link.description("d/D")], ["", ""]);
}

#[test]
fn two_that_open_a_new_file_both_have_it() {
    let (pool, link) = pool(2);
    for (name, is_overtaken) in [("a", false), ("b", true)] {
        link.is_overtaken.store(is_overtaken, Ordering::SeqCst);
        let (_, is_made) = pool.open_or_create(name, true, &Hints::default(), 0o644).unwrap();
        assert_eq!(is_made, !is_overtaken, "{name}");
        assert!(!link.is_overtaken.load(Ordering::SeqCst));
    }
}

#[test]
fn times_rise_whatever_the_clock_says() {
    let link = Arc::new(MemoryLink::new(1));
    let now_ns = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let clock = now_ns.clone();
    let pool = PoolVolume::new(link, Arc::new(move || clock.load(Ordering::SeqCst))).unwrap();
    let file = made(&pool, 10);
    let mut last_ns = pool.modified_ns("f").unwrap();
    for jump_ns in [0, 1_700_000_000_000_000_000, 5, u64::MAX, u64::MAX, 0, 1_800_000_000_000_000_000] {
        now_ns.store(jump_ns, Ordering::SeqCst);
        for writes in 1..3 {
            for _ in 0..writes {
                run(&pool, file, Operation::Write, Regions::contiguous(0, 1).unwrap(), &region(&[1]))
                    .unwrap();
            }
            let modified_ns = pool.modified_ns("f").unwrap();
            assert!(modified_ns > last_ns, "{jump_ns}");
            last_ns = modified_ns;
        }
    }
    // A time must leave room for later ones.
    for (modified_ns, is_taken) in [(i64::MAX as u64, true), (i64::MAX as u64 + 1, false), (u64::MAX, false)]
    {
        let wanted = Attributes { modified_ns: Some(modified_ns), ..Attributes::default() };
        assert_eq!(pool.set_attributes("f", wanted).is_ok(), is_taken, "{modified_ns}");
    }
}

#[test]
fn a_truncation_is_reported_unless_its_end_sets_the_time() {
    for sets_time in [true, false] {
        let (pool, link) = pool(1);
        link.cuts_set_times.store(sets_time, Ordering::Relaxed);
        let file = made(&pool, 10);
        let before = pool.modified_ns("f").unwrap();
        pool.set_length(file, 5).unwrap();
        let at_end = pool.stat("f").unwrap().modified_ns;
        let found = pool.modified_ns("f").unwrap();
        assert!(found > before);
        assert_eq!(found == at_end, sets_time);
        // Later writes are reported.
        run(&pool, file, Operation::Write, Regions::contiguous(0, 1).unwrap(), &region(&[1])).unwrap();
        assert!(pool.modified_ns("f").unwrap() > found);
    }
}

#[test]
fn the_time_of_the_last_write_differs_after_each() {
    let (pool, _) = pool(2);
    let file = made(&pool, 10);
    let mut seen = vec![pool.modified_ns("f").unwrap()];
    for _ in 0..3 {
        run(&pool, file, Operation::Write, Regions::contiguous(0, 1).unwrap(), &region(&[1])).unwrap();
        seen.push(pool.modified_ns("f").unwrap());
        assert_eq!(pool.modified_ns("f").unwrap(), seen[seen.len() - 1], "it stays without one");
    }
    assert!(seen.is_sorted_by(|a, b| a < b), "{seen:?}");
    pool.settle("f").unwrap();
    pool.close(file);
}

#[test]
fn one_file_or_empty_directory_is_removed() {
    let (pool, link) = pool(2);
    pool.replace_small("d/f", b"x").unwrap();
    assert_eq!(pool.remove_one("d").unwrap_err().kind, ErrorKind::Exists);
    pool.remove_one("d/f").unwrap();
    pool.remove_one("d").unwrap();
    assert_eq!((pool.exists("d"), link.data_files()), (Ok(false), 0));
}

/// Those may belong to requests of others that are under way.
#[test]
fn one_removed_name_leaves_data_files_of_other_requests() {
    let (pool, link) = pool(2);
    for path in ["g", "d/f"] {
        pool.replace_small(path, b"x").unwrap();
    }
    link.faults.lock().unwrap().push_back(Some(Error::new(ErrorKind::Io, "the disk")));
    pool.remove_one("d/f").unwrap_err();
    assert_eq!((pool.exists("d/f"), link.data_files()), (Ok(false), 2));
    pool.remove_one("d").unwrap();
    assert_eq!(link.data_files(), 2);
    pool.remove_one("g").unwrap();
    assert_eq!(link.data_files(), 1);
    pool.replace_small("e/f", b"x").unwrap();
    pool.remove("e").unwrap();
    assert_eq!(link.data_files(), 0);
}

#[test]
fn a_directory_replaces_another_and_what_cannot_be_removed_now_goes_later() {
    let (pool, link) = pool(2);
    for (path, bytes) in [("new/f", b"1"), ("d/f", b"2"), ("d/g", b"3")] {
        pool.replace_small(path, bytes).unwrap();
    }
    link.faults.lock().unwrap().push_back(Some(Error::new(ErrorKind::Io, "the disk")));
    pool.replace("new", "d").unwrap();
    assert_eq!(
        (pool.read_small("d/f").unwrap(), pool.exists("d/g"), pool.exists("new")),
        (b"1".to_vec(), Ok(false), Ok(false))
    );
    assert!(link.data_files() > 1, "a server refused");
    pool.replace_small("other", b"4").unwrap();
    pool.remove("other").unwrap();
    assert_eq!(link.data_files(), 1);
    assert_eq!(pool.replace("none", "d").unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(pool.replace("../new", "d").unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn a_time_that_is_set_is_not_replaced_by_that_of_an_earlier_write() {
    let (pool, _) = pool(2);
    let file = made(&pool, 100);
    let all = region(&noise(100));
    run(&pool, file, Operation::Write, Regions::contiguous(0, 100).unwrap(), &all).unwrap();
    let wanted = Attributes { modified_ns: Some(77), ..Attributes::default() };
    pool.set_attributes("f", wanted).unwrap();
    pool.close(file);
    pool.tell_written();
    assert_eq!(pool.modified_ns("f"), Ok(77));
}

#[test]
fn a_removed_file_is_an_error_and_not_zeros() {
    let (pool, _) = pool(2);
    let file = made(&pool, 300);
    write_all(&pool, file, 1);
    pool.remove("f").unwrap();
    let (all, buffer) = (Regions::contiguous(0, 300).unwrap(), region(&[9; 300]));
    for error in [
        run(&pool, file, Operation::Read, all.clone(), &buffer).unwrap_err(),
        pool.length(file).map(|_| ()).unwrap_err(),
        // A read beyond the known length requests the length.
        run(&pool, file, Operation::Read, Regions::contiguous(300, 9).unwrap(), &region(&[9; 9]))
            .unwrap_err(),
    ] {
        assert_eq!(error.kind, ErrorKind::NotFound);
        assert!(error.message.contains("f was removed or replaced since it was opened"), "{error}");
    }

    // A file that was never written to exists.
    let file = made(&pool, 0);
    assert_eq!(pool.length(file), Ok(0));
    run(&pool, file, Operation::Write, Regions::contiguous(20, 9).unwrap(), &region(&[9; 9])).unwrap();
    let buffer = region(&[5; 29]);
    run(&pool, file, Operation::Read, Regions::contiguous(0, 29).unwrap(), &buffer).unwrap();
    let mut bytes = [1; 29];
    buffer.copy_out(0, &mut bytes);
    assert_eq!(bytes[..20], [0; 20]);
}
