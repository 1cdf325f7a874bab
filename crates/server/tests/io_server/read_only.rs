//! A read-only disk: a server that starts on it serves reads, changes nothing, and reports that.

use std::any::Any;
use std::sync::Arc;

use outcore_core::crash_disk::{CrashDisk, MemoryBuffer};
use outcore_core::{
    Alignment, Disk, Entry, Error, ErrorKind, FileId, Handle, Names, OnDone, OpenMode, Request, Result,
    ScrubPlace,
};
use outcore_server::io_server::{BLOCK_BYTES, data_path};

use crate::world::{Faults, World, small_limits};

const BYTES: u64 = 4 * BLOCK_BYTES + 5;

pub fn read_only() -> Error {
    Error::new(ErrorKind::ReadOnly, "injected: read-only file system; mount it for writing")
}

/// A disk that only opens existing files for reading.
pub struct ReadOnlyDisk(pub Arc<CrashDisk>);

impl Disk for ReadOnlyDisk {
    type Buffer = MemoryBuffer;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        // Like the system, it reports a missing name as not found in every mode.
        let file = self.0.open(path, OpenMode::Read);
        let is_made = matches!(mode, OpenMode::Create { .. });
        match (file, mode) {
            (file, OpenMode::Read) => file,
            (Err(error), _) if !is_made => Err(error),
            (file, _) => {
                file.into_iter().for_each(|file| self.0.close(file));
                Err(read_only())
            }
        }
    }

    fn close(&self, file: FileId) {
        self.0.close(file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        self.0.length(file)
    }

    fn submit(&self, request: Request<MemoryBuffer>, done: OnDone<MemoryBuffer>) {
        self.0.submit(request, done);
    }

    fn alignment(&self, file: FileId) -> Alignment {
        self.0.alignment(file)
    }

    fn free_bytes(&self) -> Result<u64> {
        Disk::free_bytes(self.0.as_ref())
    }

    fn allocated_bytes(&self, file: FileId) -> Result<u64> {
        self.0.allocated_bytes(file)
    }
}

impl Names for ReadOnlyDisk {
    fn read_small(&self, path: &str) -> Result<Vec<u8>> {
        self.0.read_small(path)
    }

    fn replace_small(&self, _: &str, _: &[u8]) -> Result<()> {
        Err(read_only())
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.0.list(path)
    }

    fn remove(&self, _: &str) -> Result<()> {
        Err(read_only())
    }

    fn lock(&self, path: &str) -> Result<Box<dyn Any + Send>> {
        self.0.lock(path)
    }
}

fn content(handle: u64) -> Vec<u8> {
    vec![handle as u8; BYTES as usize]
}

/// A server with some files on a disk that becomes read-only when it crashes; the last files were being written.
fn started_read_only(seed: u64) -> World {
    let mut world = World::new(seed, small_limits());
    for handle in 1..=8 {
        world.write(handle, 0, &content(handle)).unwrap();
        if handle <= 4 {
            world.sync(handle).unwrap();
        }
    }
    world.faults = Faults { is_read_only: true, ..Faults::default() };
    world.restart_with_faults();
    world
}

fn check_refused<T: std::fmt::Debug>(result: Result<T>) {
    let error = result.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ReadOnly, "{error}");
    let message = &error.message;
    assert!(
        message.starts_with("server 3: need a disk that takes writes, have one that is only read ("),
        "{error}"
    );
    assert!(message.ends_with("; copy its data elsewhere, or make the disk writable and restart the server"));
}

#[test]
fn it_is_read_scrubbed_and_listed_and_refuses_every_change() {
    for seed in 0..20 {
        let mut world = started_read_only(seed);
        let before = world.disk.paths();
        assert!(!world.status().is_writable);
        for _ in 0..2 {
            for handle in 1..=8 {
                assert_eq!(world.read(handle, 0, BYTES), Ok(content(handle)));
                assert_eq!(world.length(handle), BYTES);
                check_refused(world.write(handle, 3, &[0; 10]));
                check_refused(world.set_length(handle, 10, true));
                check_refused(world.remove(handle));
            }
            check_refused(world.write(9, 0, &[0; 10]));
            world.tick(1);
        }
        assert_eq!(world.read(9, 0, 3), Ok(vec![0; 3]), "nothing is there");
        let (mut place, mut files) = (Some(ScrubPlace { handle: Handle(0), offset: 0 }), 0);
        while let Some(from) = place {
            let found = world.scrub(from, 1 << 30);
            assert_eq!(found.damage, []);
            (place, files) = (found.next, files + found.files);
        }
        assert_eq!(files, 8);
        world.stop();
        assert_eq!(world.disk.paths(), before);
    }
}

#[test]
fn it_is_as_it_was_when_the_disk_is_writable_again() {
    let mut world = started_read_only(1);
    // A bit flip simulates a crash in the middle of a write. The regions are noted, so the current content counts.
    world.stop();
    assert!(world.disk.flip(&data_path(Handle(8)), 5, 0));
    world.restart_with_faults();
    assert!(world.read(8, 0, BLOCK_BYTES).is_ok());
    check_refused(world.write(1, 0, &[9]));
    world.stop();
    world.faults = Faults::default();
    world.restart_with_faults();
    assert!(world.read(8, 0, BLOCK_BYTES).is_ok(), "its regions are still noted");
    world.write(1, 0, &[9]).unwrap();
    world.remove(2).unwrap();
    assert!(world.status().is_writable);
    assert_eq!(world.read(1, 0, 2), Ok(vec![9, 1]));
    assert_eq!(world.length(2), 0);
}

#[test]
fn a_server_whose_disk_becomes_read_only_while_it_runs_goes_on_reading() {
    let mut world = World::new(3, small_limits());
    for handle in 1..=8 {
        world.write(handle, 0, &content(handle)).unwrap();
        world.sync(handle).unwrap();
    }
    world.faults = Faults { is_read_only: true, ..Faults::default() };
    // The last files are already open for writing; the others are opened now.
    check_refused(world.write(8, 3, &[0; 10]));
    for handle in 1..=8 {
        assert_eq!(world.read(handle, 0, BYTES), Ok(content(handle)));
        check_refused(world.write(handle, 3, &[0; 10]));
        check_refused(world.set_length(handle, 10, false));
    }
    check_refused(world.write(9, 0, &[0; 10]));
    assert!(!world.status().is_writable);
}
