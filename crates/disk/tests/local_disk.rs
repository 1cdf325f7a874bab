//! The real disk: direct and buffered transfers see each other's bytes, and misuse is an error.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant, SystemTime};

use outcore_core::{
    Alignment, Buffer, Completion, Disk, ErrorKind, FileId, Names, OpenMode, Operation, Request, Result,
};
use outcore_disk::{Directory, LocalDisk};
use outcore_memory::{Arena, Region, Segment};

const PATIENCE: Duration = Duration::from_secs(120);
const MIB: usize = 1 << 20;

fn disk() -> (tempfile::TempDir, LocalDisk) {
    let root = tempfile::tempdir().unwrap();
    let disk = LocalDisk::new(Directory::new(root.path()).unwrap(), 3).unwrap();
    (root, disk)
}

fn pattern(bytes: usize, seed: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 31 + i / 251 + seed) as u8).collect()
}

/// Aligned memory that contains `bytes`, beginning at byte `lead` of its block.
fn region(bytes: &[u8], lead: usize) -> Region {
    let block = Arc::new(Arena::new(usize::MAX).allocate(bytes.len() + lead).unwrap());
    let mut region = Region::new(block, vec![Segment { offset: lead, bytes: bytes.len() }]).unwrap();
    region.copy_in(0, bytes);
    region
}

fn content(region: &Region) -> Vec<u8> {
    let mut out = vec![0; region.len()];
    region.copy_out(0, &mut out);
    out
}

fn run(disk: &LocalDisk, request: Request<Region>) -> Completion<Region> {
    let (sender, receiver) = mpsc::channel();
    disk.submit(request, Box::new(move |completion| sender.send(completion).unwrap()));
    receiver.recv_timeout(PATIENCE).expect("a request hangs")
}

fn write(disk: &LocalDisk, file: FileId, offset: u64, buffer: Region) -> Result<usize> {
    run(disk, Request { file, operation: Operation::Write, offset, buffer }).result
}

fn read(disk: &LocalDisk, file: FileId, offset: u64, bytes: usize, lead: usize) -> Result<Vec<u8>> {
    let buffer = region(&vec![0xEE; bytes], lead);
    let done = run(disk, Request { file, operation: Operation::Read, offset, buffer });
    done.result.map(|moved| content(&done.buffer)[..moved].to_vec())
}

fn create(disk: &LocalDisk, length: usize) -> FileId {
    disk.open("f", OpenMode::Create { length: length as u64, reserve: true }).unwrap()
}

#[test]
fn direct_and_buffered_transfers_see_each_other() {
    let (_root, disk) = disk();
    let file = create(&disk, 4 * MIB);
    let mut model = vec![0; 4 * MIB];
    // Offset, length, and place in memory: aligned transfers are direct, the rest use the page cache.
    let transfers = [
        (0, MIB, 0),
        (MIB, 2 * MIB, 0),
        (3, 100, 0),
        (4096, 8192, 0),
        (4095, 8194, 0),
        (8192, 4096, 1),
        (MIB - 5, MIB + 10, 7),
        (3 * MIB - 4096, 8192, 0),
        (4 * MIB - 3, 3, 5),
    ];
    for (seed, (offset, bytes, lead)) in transfers.into_iter().enumerate() {
        let source = pattern(bytes, seed);
        assert_eq!(write(&disk, file, offset as u64, region(&source, lead)), Ok(bytes));
        model[offset..offset + bytes].copy_from_slice(&source);
        for (from, count, lead) in [(0, 4 * MIB, 0), (1, 4 * MIB - 1, 3), (offset, bytes, lead)] {
            assert_eq!(read(&disk, file, from as u64, count, lead).unwrap(), model[from..from + count]);
        }
    }
}

#[test]
fn many_runs_of_memory_are_one_request() {
    let (_root, disk) = disk();
    let file = create(&disk, 8 * MIB);
    for (run_bytes, runs, offset) in [(4096, 1500, 0_u64), (512, 600, 0), (10, 3000, 3)] {
        let block = Arc::new(Arena::new(usize::MAX).allocate(2 * run_bytes * runs).unwrap());
        let segments = (0..runs).map(|i| Segment { offset: 2 * run_bytes * i, bytes: run_bytes }).collect();
        let mut buffer = Region::new(block, segments).unwrap();
        let source = pattern(run_bytes * runs, runs);
        buffer.copy_in(0, &source);
        let moved = write(&disk, file, offset, buffer).unwrap();
        // The system takes this many runs at once; the caller transfers the rest.
        assert_eq!(moved, run_bytes * runs.min(1024));
        assert_eq!(read(&disk, file, offset, moved, 0).unwrap(), source[..moved]);
    }
}

#[test]
fn the_end_of_the_file() {
    let (_root, disk) = disk();
    let file = create(&disk, 10_000);
    assert_eq!(read(&disk, file, 9_990, 100, 0), Ok(vec![0; 10]), "short at the end");
    assert_eq!(read(&disk, file, 8192, 4096, 0).unwrap().len(), 10_000 - 8192, "direct as well");
    assert_eq!(read(&disk, file, 10_000, 1, 0), Ok(vec![]));
    assert_eq!(read(&disk, file, 1 << 40, 4096, 0), Ok(vec![]));
    assert_eq!(read(&disk, file, u64::MAX, 1, 0).unwrap_err().kind, ErrorKind::Io);
}

#[test]
fn what_is_written_is_there_for_the_next_opening() {
    let (root, disk) = disk();
    let file = create(&disk, MIB);
    write(&disk, file, 0, region(&pattern(MIB, 1), 0)).unwrap();
    let sync = Request { file, operation: Operation::Sync, offset: 0, buffer: Region::empty() };
    assert_eq!(run(&disk, sync).result, Ok(0));
    disk.close(file);
    assert_eq!(std::fs::read(root.path().join("f")).unwrap(), pattern(MIB, 1));
    let reader = disk.open("f", OpenMode::Read).unwrap();
    assert_eq!(disk.length(reader), Ok(MIB as u64));
    assert_eq!(read(&disk, reader, 0, MIB, 0).unwrap(), pattern(MIB, 1));
    let refused = write(&disk, reader, 0, region(&[1], 0));
    assert_eq!(refused.unwrap_err().kind, ErrorKind::ReadOnly);
}

#[test]
fn a_closed_file_is_closed() {
    let (_root, disk) = disk();
    let file = create(&disk, 4096);
    disk.close(file);
    disk.close(file);
    assert_eq!(read(&disk, file, 0, 1, 0).unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(write(&disk, file, 0, region(&[1], 0)).unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(disk.length(file).unwrap_err().kind, ErrorKind::Closed);
    assert_eq!(disk.alignment(file), Alignment::NONE);
}

#[test]
fn opening() {
    let (root, disk) = disk();
    assert_eq!(disk.open("none", OpenMode::Read).unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(disk.open("../f", OpenMode::Read).unwrap_err().kind, ErrorKind::Invalid);
    assert_eq!(
        disk.open("none", OpenMode::Resize { length: 1, reserve: true }).unwrap_err().kind,
        ErrorKind::NotFound
    );
    create(&disk, 100);
    let again = disk.open("f", OpenMode::Create { length: 1, reserve: false });
    assert_eq!(again.unwrap_err().kind, ErrorKind::Exists);
    assert_eq!(std::fs::metadata(root.path().join("f")).unwrap().len(), 100);
    let root_is_file = LocalDisk::new(Directory::new(root.path()).unwrap(), 1)
        .and_then(|_| Directory::new(root.path().join("f")));
    assert_eq!(root_is_file.unwrap_err().kind, ErrorKind::Invalid);
}

#[test]
fn resizing_keeps_what_is_there() {
    let (_root, disk) = disk();
    let file = create(&disk, 8192);
    write(&disk, file, 0, region(&pattern(8192, 0), 0)).unwrap();
    disk.close(file);
    for length in [20_000_usize, 5000] {
        let file = disk.open("f", OpenMode::Resize { length: length as u64, reserve: true }).unwrap();
        assert_eq!(disk.length(file), Ok(length as u64));
        let mut expected = pattern(8192, 0);
        expected.resize(length, 0);
        assert_eq!(read(&disk, file, 0, length, 0).unwrap(), expected);
        disk.close(file);
    }
}

#[test]
fn a_file_larger_than_the_disk_is_refused_and_leaves_nothing() {
    let (root, disk) = disk();
    let length = disk.free_bytes().unwrap() + (1 << 40);
    let refused = disk.open("big", OpenMode::Create { length, reserve: true }).unwrap_err();
    // Some file systems do not support files of this size at all.
    assert!(matches!(refused.kind, ErrorKind::DiskFull | ErrorKind::Io), "{refused}");
    assert!(!root.path().join("big").exists());
}

#[test]
fn requests_in_flight_end_whatever_becomes_of_the_disk() {
    let (root, disk) = disk();
    let file = create(&disk, 16 * MIB);
    let (sender, receiver) = mpsc::channel();
    for number in 0..200_usize {
        let buffer = region(&pattern(65_536, number), 0);
        let request = Request { file, operation: Operation::Write, offset: (number * 65_536) as u64, buffer };
        let sender = sender.clone();
        disk.submit(request, Box::new(move |completion| sender.send(completion.result).unwrap()));
    }
    disk.close(file);
    drop(disk);
    for _ in 0..200 {
        assert_eq!(receiver.recv_timeout(PATIENCE).expect("a request hangs"), Ok(65_536));
    }
    let whole = std::fs::read(root.path().join("f")).unwrap();
    for number in 0..200 {
        assert_eq!(whole[number * 65_536..(number + 1) * 65_536], pattern(65_536, number));
    }
}

#[test]
fn completions_say_when() {
    let (_root, disk) = disk();
    let file = create(&disk, MIB);
    let request = |offset| {
        let buffer = region(&pattern(65_536, 0), 0);
        run(&disk, Request { file, operation: Operation::Write, offset, buffer })
    };
    let (first, second) = (request(0), request(65_536));
    assert!(first.started_ns <= first.finished_ns);
    assert!(first.finished_ns <= second.started_ns);
}

#[test]
fn many_short_reads_at_once_get_what_is_there() {
    let (_root, disk) = disk();
    let pages = 1000;
    let file = create(&disk, pages * 4096);
    let model = pattern(pages * 4096, 7);
    assert_eq!(write(&disk, file, 0, region(&model, 0)), Ok(model.len()));
    let (sender, receiver) = mpsc::channel();
    let count = 2000;
    for number in 0..count {
        // Whole pages: some in two runs of memory, some unaligned, some beyond the end.
        let (page, lead) = (number * 7919 % (pages + 50), usize::from(number % 5 == 4));
        let block = Arc::new(Arena::new(usize::MAX).allocate(3 * 4096).unwrap());
        let runs = if number % 3 == 0 { vec![(8192, 4096), (0, 4096)] } else { vec![(lead, 4096)] };
        let segments = runs.into_iter().map(|(offset, bytes)| Segment { offset, bytes }).collect();
        let buffer = Region::new(block, segments).unwrap();
        let request = Request { file, operation: Operation::Read, offset: 4096 * page as u64, buffer };
        let sender = sender.clone();
        disk.submit(request, Box::new(move |done| sender.send((page, done)).unwrap()));
    }
    for _ in 0..count {
        let (page, done) = receiver.recv_timeout(PATIENCE).expect("a request hangs");
        let moved = done.result.unwrap();
        let there = &model[(page * 4096).min(model.len())..];
        assert_eq!(moved, done.buffer.len().min(there.len()), "page {page}");
        assert!(content(&done.buffer)[..moved] == there[..moved], "page {page}");
        assert!(done.started_ns <= done.finished_ns);
    }
}

#[test]
fn times_before_1970_differ_too() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path()).unwrap();
    let file = File::create(root.path().join("f")).unwrap();
    let mut seen = std::collections::BTreeSet::new();
    for seconds in [1, 2, 1000, 2_000_000_000] {
        file.set_modified(SystemTime::UNIX_EPOCH - Duration::from_secs(seconds)).unwrap();
        seen.insert(directory.modified_ns("f").unwrap());
    }
    assert_eq!(seen.len(), 4);
}

/// Number of this process's descriptors of files below `root` that have no name left.
fn nameless(root: &std::path::Path) -> usize {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| {
        let target = std::fs::read_link(entry.ok()?.path()).ok()?.into_os_string().into_string().ok()?;
        (target.starts_with(root.to_str()?) && target.ends_with(" (deleted)")).then_some(())
    });
    links.count()
}

#[test]
fn a_large_file_that_is_removed_is_gone_at_once_and_its_room_a_little_later() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path()).unwrap();
    let disk = LocalDisk::new(directory.clone(), 3).unwrap();
    let names: &dyn Names = &directory;
    for is_open in [true, false] {
        let file = create(&disk, 32 * MIB);
        write(&disk, file, 0, region(&pattern(MIB, 1), 0)).unwrap();
        if !is_open {
            disk.close(file);
        }
        names.remove("f").unwrap();
        assert!(!root.path().join("f").exists());
        assert_eq!(names.remove("f").unwrap_err().kind, ErrorKind::NotFound);
        disk.close(file);
        names.wait_for_room();
        assert_eq!(nameless(root.path()), 0);
    }
}

#[test]
fn a_directory_is_removed_with_all_that_is_in_it() {
    let (root, disk) = disk();
    disk.close(disk.open("a/b/f", OpenMode::Create { length: 100, reserve: false }).unwrap());
    let names: &dyn Names = &Directory::new(root.path()).unwrap();
    names.remove("a").unwrap();
    assert!(!root.path().join("a").exists());
}

#[test]
fn who_reads_a_large_file_in_a_directory_that_is_removed_can_go_on() {
    let root = tempfile::tempdir().unwrap();
    let directory = Directory::new(root.path()).unwrap();
    let disk = LocalDisk::new(directory.clone(), 3).unwrap();
    let offset = 15 * MIB as u64;
    let file = disk.open("a/b/f", OpenMode::Create { length: 16 * MIB as u64, reserve: true }).unwrap();
    write(&disk, file, offset, region(&pattern(MIB, 1), 0)).unwrap();
    directory.remove_soon("a").unwrap();
    assert!(!root.path().join("a").exists());
    let names: &dyn Names = &directory;
    names.wait_for_room();
    assert_eq!(read(&disk, file, offset, MIB, 0).unwrap(), pattern(MIB, 1));
    disk.close(file);
    // The reading thread may have it open for a moment longer.
    let began = Instant::now();
    while nameless(root.path()) > 0 {
        assert!(began.elapsed() < PATIENCE, "it stays open");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn mode(path: &std::path::Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o777
}

#[test]
fn a_private_directory_keeps_other_users_out_of_all_that_is_made_and_was_there() {
    let root = tempfile::tempdir().unwrap();
    for open in ["old/below", "other"] {
        std::fs::create_dir_all(root.path().join(open)).unwrap();
        std::fs::write(root.path().join(open).join("file"), "x").unwrap();
        std::fs::set_permissions(root.path().join(open).join("file"), Permissions::from_mode(0o644)).unwrap();
        std::fs::set_permissions(root.path().join(open), Permissions::from_mode(0o755)).unwrap();
    }
    std::os::unix::fs::symlink(root.path().join("other/file"), root.path().join("old/link")).unwrap();
    let directory = Directory::private(root.path(), &["old", "absent"]).unwrap();
    let disk = LocalDisk::new(directory.clone(), 2).unwrap();
    directory.replace_small("new/small", b"x").unwrap();
    directory.append_small("new/appended", b"x").unwrap();
    let _lock = Names::lock(&directory, "new/lock").unwrap();
    disk.open("new/below/data", OpenMode::Create { length: 10, reserve: false }).unwrap();
    for file in ["old/below/file", "new/small", "new/appended", "new/lock", "new/below/data"] {
        assert_eq!(mode(&root.path().join(file)), 0o600, "{file}");
    }
    for directory in ["old", "old/below", "new", "new/below"] {
        assert_eq!(mode(&root.path().join(directory)), 0o700, "{directory}");
    }
    // Other names, and targets of links, keep their modes.
    assert_eq!(mode(&root.path().join("other")), 0o755);
    assert_eq!(mode(&root.path().join("other/file")), 0o644);
}
