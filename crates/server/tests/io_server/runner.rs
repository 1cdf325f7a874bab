//! The server with a real disk, on its own threads.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use outcore_core::doubles::{Fault, FaultyDisk};
use outcore_core::{
    Answer, Buffer, Clock, Disk, Error, ErrorKind, Grant, Handle, IoReply, IoRequest, LengthGrant, Regions,
    Result, ServerId,
};
use outcore_disk::{Directory, LocalDisk, MonotonicClock};
use outcore_memory::{Arena, Region};
use outcore_server::io_server::{BLOCK_BYTES, Config, Limits, Runner, Verify, data_path};

use crate::world::{NOW_S, grant, noise, read_request, target, write_request};

const PATIENCE: Duration = Duration::from_secs(120);

struct Anybody;

impl Verify for Anybody {
    fn verify(&self, _: &Grant, _: Handle, _: bool, _: u64) -> Result<()> {
        Ok(())
    }

    fn verify_removal(&self, _: &Grant, _: Handle, _: u64) -> Result<()> {
        Ok(())
    }

    fn verify_lengths(&self, _: &LengthGrant, _: &[Handle], _: u64) -> Result<()> {
        Ok(())
    }
}

fn region(bytes: &[u8]) -> Region {
    let mut region = Region::whole(Arc::new(Arena::new(usize::MAX).allocate(bytes.len()).unwrap()));
    region.copy_in(0, bytes);
    region
}

fn config(server: u32) -> Config<Region> {
    Config {
        pool: 5,
        server: ServerId(server),
        verify: Box::new(Anybody),
        scratch: Arc::new(|bytes| Ok(Region::whole(Arc::new(Arena::new(usize::MAX).allocate(bytes)?)))),
        reads_memory: true,
        limits: Limits::default(),
        clock: Arc::new(MonotonicClock),
        manager_time: Some(Arc::new(|| Some(NOW_S))),
    }
}

pub fn start(root: &std::path::Path, server: u32) -> Result<Runner<LocalDisk>> {
    let directory = Directory::new(root)?;
    let disk = LocalDisk::new(directory.clone(), 3)?;
    Runner::start(Arc::new(disk), Arc::new(directory), config(server))
}

fn faulty(root: &std::path::Path, fault: Fault) -> Runner<FaultyDisk<LocalDisk>> {
    let directory = Directory::new(root).unwrap();
    let disk = FaultyDisk::new(LocalDisk::new(directory.clone(), 3).unwrap(), fault);
    Runner::start(Arc::new(disk), Arc::new(directory), config(3)).unwrap()
}

fn begin<D: Disk<Buffer = Region> + 'static>(
    runner: &Runner<D>,
    request: IoRequest,
    buffer: Region,
) -> mpsc::Receiver<Answer<Region>> {
    let (sender, receiver) = mpsc::channel();
    runner.call(request, buffer, Box::new(move |answer| drop(sender.send(answer))));
    receiver
}

fn end(answer: &mpsc::Receiver<Answer<Region>>) -> Result<Vec<u8>> {
    let answer = answer.recv_timeout(PATIENCE).expect("a call hangs");
    assert!(answer.finished_ns >= answer.started_ns);
    let mut bytes = vec![0; answer.buffer.len()];
    answer.buffer.copy_out(0, &mut bytes);
    match answer.reply {
        IoReply::Done | IoReply::Absent | IoReply::Synced { .. } => Ok(bytes),
        IoReply::Failed(error) => Err(error),
        other => panic!("answered by {other:?}"),
    }
}

fn write<D: Disk<Buffer = Region> + 'static>(
    runner: &Runner<D>,
    handle: u64,
    offset: u64,
    bytes: &[u8],
) -> Result<()> {
    let regions = Regions::contiguous(offset, bytes.len() as u64).unwrap();
    end(&begin(runner, write_request(handle, regions), region(bytes))).map(|_| ())
}

fn read<D: Disk<Buffer = Region> + 'static>(
    runner: &Runner<D>,
    handle: u64,
    offset: u64,
    bytes: usize,
) -> Result<Vec<u8>> {
    let regions = Regions::contiguous(offset, bytes as u64).unwrap();
    end(&begin(runner, read_request(handle, regions), region(&vec![0xEE; bytes])))
}

fn sync<D: Disk<Buffer = Region> + 'static>(runner: &Runner<D>, handle: u64) -> Result<()> {
    let request = IoRequest::Sync { target: target(handle), grant: grant(handle) };
    end(&begin(runner, request, Region::empty())).map(|_| ())
}

fn bytes(count: usize) -> Vec<u8> {
    noise(&mut outcore_core::crash_disk::Random::new(count as u64), count)
}

#[test]
fn bytes_come_back_after_a_restart() {
    let root = tempfile::tempdir().unwrap();
    let content = bytes((9 << 20) + 12_345);
    {
        let runner = start(root.path(), 3).unwrap();
        write(&runner, 1, 77, &content).unwrap();
        sync(&runner, 1).unwrap();
        write(&runner, 2, 0, &content[..5000]).unwrap();
        assert_eq!(read(&runner, 1, 77, content.len()).as_deref(), Ok(&content[..]));
    }
    let runner = start(root.path(), 3).unwrap();
    assert_eq!(read(&runner, 1, 77, content.len()).as_deref(), Ok(&content[..]));
    assert_eq!(read(&runner, 1, 0, 77), Ok(vec![0; 77]));
    assert_eq!(read(&runner, 2, 0, 5001).unwrap()[4999..], [content[4999], 0]);
    let on_disk = std::fs::read(root.path().join(data_path(outcore_core::Handle(1)))).unwrap();
    assert!(on_disk[77..] == content[..], "data files hold bytes as they are");
}

#[test]
fn many_calls_at_once_from_many_threads() {
    let root = tempfile::tempdir().unwrap();
    let runner = start(root.path(), 3).unwrap();
    std::thread::scope(|scope| {
        for handle in 0..6_u64 {
            let runner = &runner;
            scope.spawn(move || {
                // Concurrent writes to adjacent bytes of the same blocks.
                let content = bytes(300_000);
                let calls: Vec<_> = content
                    .chunks(1000)
                    .enumerate()
                    .map(|(at, chunk)| {
                        let regions = Regions::contiguous(at as u64 * 1000, chunk.len() as u64).unwrap();
                        begin(runner, write_request(handle % 3, regions), region(chunk))
                    })
                    .collect();
                for call in calls {
                    end(&call).unwrap();
                }
                sync(runner, handle % 3).unwrap();
                assert!(read(runner, handle % 3, 0, content.len()).unwrap() == content);
            });
        }
    });
}

#[test]
fn a_directory_is_one_servers_alone() {
    let root = tempfile::tempdir().unwrap();
    let runner = start(root.path(), 3).unwrap();
    let kind = |result: Result<Runner<LocalDisk>>| result.err().map(|error: Error| error.kind);
    assert_eq!(kind(start(root.path(), 3)), Some(ErrorKind::Busy));
    runner.stop();
    let late = read(&runner, 1, 0, 1).unwrap_err();
    assert_eq!(late.kind, ErrorKind::Closed);
    assert_eq!(kind(start(root.path(), 4)), Some(ErrorKind::Invalid), "another server's directory");
    assert_eq!(kind(start(root.path(), 3)), None);
    std::fs::create_dir_all(root.path().join("data")).unwrap();
    std::fs::remove_file(root.path().join("server.json")).unwrap();
    assert_eq!(kind(start(root.path(), 3)), Some(ErrorKind::Corrupt), "data of nobody");
}

#[test]
fn a_server_that_was_killed_goes_on() {
    // A copy of the directory simulates a killed process: it has notes and outdated checksums.
    let (root, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let content = bytes(3 << 20);
    let runner = start(root.path(), 3).unwrap();
    write(&runner, 1, 0, &content).unwrap();
    sync(&runner, 1).unwrap();
    write(&runner, 1, 1000, &content[..200_000]).unwrap();
    write(&runner, 2, 0, &content).unwrap();
    let copied = std::process::Command::new("cp").arg("-a").arg(root.path()).arg(copy.path()).status();
    assert!(copied.unwrap().success());
    let copy = copy.path().join(root.path().file_name().unwrap());
    let again = start(&copy, 3).unwrap();
    let mut expected = content.clone();
    expected[1000..201_000].copy_from_slice(&content[..200_000]);
    assert!(read(&again, 1, 0, content.len()).unwrap() == expected);
    assert!(read(&again, 2, 0, content.len()).unwrap() == content);
}

#[test]
fn flipped_bits_on_a_real_disk_are_found() {
    let root = tempfile::tempdir().unwrap();
    let content = bytes(1 << 20);
    start(root.path(), 3).map(|runner| write(&runner, 1, 0, &content).unwrap()).unwrap();
    let path = root.path().join(data_path(outcore_core::Handle(1)));
    let mut on_disk = std::fs::read(&path).unwrap();
    on_disk[5 * BLOCK_BYTES as usize + 9] ^= 4;
    std::fs::write(&path, on_disk).unwrap();
    let runner = start(root.path(), 3).unwrap();
    let error = read(&runner, 1, 0, content.len()).unwrap_err();
    assert_eq!(error.kind, ErrorKind::Corrupt);
    assert!(error.message.contains("block 5"), "{error}");
    assert!(read(&runner, 1, 0, 5 * BLOCK_BYTES as usize).is_ok());
}

#[test]
fn a_full_disk_is_told_to_the_writer() {
    let root = tempfile::tempdir().unwrap();
    let runner = faulty(root.path(), Fault::FullAfter(AtomicU64::new(3 << 20)));
    let content = bytes(1 << 20);
    write(&runner, 1, 0, &content).unwrap();
    sync(&runner, 1).unwrap();
    let results: Vec<Result<()>> = (1..5).map(|n| write(&runner, 1, n << 20, &content)).collect();
    let refused = results.iter().filter_map(|result| result.as_ref().err());
    assert!(refused.clone().count() > 0 && refused.clone().all(|error| error.kind == ErrorKind::DiskFull));
    assert_eq!(read(&runner, 1, 0, content.len()).as_deref(), Ok(&content[..]), "what was there is there");
    assert!(read(&runner, 1, 1 << 20, 4 << 20).is_ok(), "nor is what was not written whole damaged");
}

#[test]
fn short_transfers_on_a_real_disk_change_nothing() {
    let root = tempfile::tempdir().unwrap();
    let runner = faulty(root.path(), Fault::Short(3000));
    let content = bytes(700_000);
    write(&runner, 1, 123, &content).unwrap();
    sync(&runner, 1).unwrap();
    assert_eq!(read(&runner, 1, 123, content.len()), Ok(content));
}

/// A time of a manager that is years behind the clock of this machine.
const LONG_AGO_S: u64 = 1_000_000_000;

/// A write with a grant that ends at this time.
fn write_of(ends_s: u64) -> IoRequest {
    let grant = crate::world::key().sign(Handle(1), true, ends_s);
    let regions = Regions::contiguous(0, 1).unwrap();
    IoRequest::Write { target: target(1), grant, regions }
}

/// A server that asks a manager for its time, and the questions and answers.
fn with_manager(
    root: &std::path::Path,
) -> (Runner<LocalDisk>, mpsc::Receiver<()>, mpsc::Sender<Option<u64>>) {
    let (asks, asked) = mpsc::channel();
    let (answer, answers) = mpsc::channel();
    let answers = std::sync::Mutex::new(answers);
    let manager_time = move || {
        asks.send(()).unwrap();
        answers.lock().unwrap().recv().unwrap_or(None)
    };
    let directory = Directory::new(root).unwrap();
    let disk = Arc::new(LocalDisk::new(directory.clone(), 3).unwrap());
    let verify = Box::new(crate::world::key());
    let config = Config { manager_time: Some(Arc::new(manager_time)), verify, ..config(3) };
    (Runner::start(disk, Arc::new(directory), config).unwrap(), asked, answer)
}

#[test]
fn a_server_knows_the_time_before_its_first_request() {
    let root = tempfile::tempdir().unwrap();
    let (runner, asked, answer) = with_manager(root.path());
    asked.recv_timeout(PATIENCE).expect("the server asks at its start");
    answer.send(Some(LONG_AGO_S)).unwrap();
    // The manager never answers again.
    end(&begin(&runner, write_of(LONG_AGO_S + 600), region(&[7]))).unwrap();
}

#[test]
fn a_manager_that_never_answers_keeps_no_request_waiting() {
    let root = tempfile::tempdir().unwrap();
    let (runner, asked, answer) = with_manager(root.path());
    asked.recv_timeout(PATIENCE).unwrap();
    let own_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    // Its own clock counts.
    end(&begin(&runner, write_of(own_s + 600), region(&[7]))).unwrap();
    for ends_s in [own_s - 600, LONG_AGO_S + 600] {
        assert_eq!(end(&begin(&runner, write_of(ends_s), region(&[7]))).unwrap_err().kind, ErrorKind::Denied);
    }
    assert!(asked.try_recv().is_err(), "no second question before the answer");
    // An answer that comes late counts for later requests.
    answer.send(Some(LONG_AGO_S)).unwrap();
    let write = || end(&begin(&runner, write_of(LONG_AGO_S + 600), region(&[7])));
    while write().is_err() {
        std::thread::yield_now();
    }
}

#[test]
fn times_are_those_of_the_clock() {
    let root = tempfile::tempdir().unwrap();
    let runner = start(root.path(), 3).unwrap();
    let before = MonotonicClock.now_ns();
    let answer = begin(&runner, IoRequest::Status, Region::empty()).recv_timeout(PATIENCE).unwrap();
    assert!(before <= answer.started_ns && answer.finished_ns <= MonotonicClock.now_ns());
    assert!(matches!(answer.reply, IoReply::Status(status) if status.free_bytes > 0));
}
