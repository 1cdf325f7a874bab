//! Conformance tests of [`Volume`]: one call of [`volume`] tests a new volume.

use std::sync::mpsc;

use crate::{
    Buffer, ErrorKind, FileId, Hints, Level, Nested, OpenMode, Operation, Regions, Result, Volume,
    VolumeRequest,
};

/// Submits a request and waits for it.
pub fn complete<V: Volume + ?Sized>(volume: &V, request: VolumeRequest<V::Buffer>) -> Result<V::Buffer>
where
    V::Buffer: Send + 'static,
{
    let (sender, receiver) = mpsc::channel();
    volume.submit(request, Box::new(move |completion| drop(sender.send(completion))));
    let completion = receiver.recv().expect("the volume dropped a request without completing it");
    assert!(completion.finished_ns >= completion.started_ns, "a request that ended before it began");
    completion.result.map(|_| completion.buffer)
}

struct Check<'a, V: Volume> {
    volume: &'a V,
    make: &'a dyn Fn(&[u8]) -> V::Buffer,
}

impl<V: Volume> Check<'_, V>
where
    V::Buffer: Buffer,
{
    fn write(&self, file: FileId, extents: &[(u64, u64)], bytes: &[u8]) -> Result<()> {
        self.run(file, Operation::Write, extents, bytes).map(|_| ())
    }

    fn read(&self, file: FileId, extents: &[(u64, u64)]) -> Result<Vec<u8>> {
        let total: u64 = extents.iter().map(|e| e.1).sum();
        self.run(file, Operation::Read, extents, &vec![0xAA; total as usize])
    }

    fn run(
        &self,
        file: FileId,
        operation: Operation,
        extents: &[(u64, u64)],
        bytes: &[u8],
    ) -> Result<Vec<u8>> {
        let run = |&(offset, run_bytes)| Nested { offset, run_bytes, levels: vec![] };
        self.run_regions(file, operation, Regions::new(extents.iter().map(run).collect())?, bytes)
    }

    fn run_regions(
        &self,
        file: FileId,
        operation: Operation,
        regions: Regions,
        bytes: &[u8],
    ) -> Result<Vec<u8>> {
        let request = VolumeRequest { file, operation, regions, buffer: (self.make)(bytes) };
        let buffer = complete(self.volume, request)?;
        let mut out = vec![0; buffer.len()];
        buffer.copy_out(0, &mut out);
        Ok(out)
    }

    fn transfers(&self) {
        let create = OpenMode::Create { length: 20_000, reserve: true };
        let file = self.volume.open("a/data", create).expect("create");
        assert_eq!(self.volume.length(file), Ok(20_000));
        assert_eq!(self.read(file, &[(19_990, 10)]), Ok(vec![0; 10]), "unwritten bytes read as zeros");

        let bytes: Vec<u8> = (0..9000_u32).map(|i| (i * 7 + i / 256) as u8).collect();
        self.write(file, &[(3, 9000)], &bytes).expect("an unaligned write");
        assert_eq!(self.read(file, &[(3, 9000)]).as_deref(), Ok(&bytes[..]));
        assert_eq!(self.read(file, &[(0, 4)]), Ok(vec![0, 0, 0, bytes[0]]), "neighbours keep their bytes");

        // List requests keep the given order of regions, whatever their order in the file.
        self.write(file, &[(15_000, 2), (12_000, 3)], &[1, 2, 3, 4, 5]).expect("a list write");
        assert_eq!(self.read(file, &[(12_000, 3), (15_000, 2)]), Ok(vec![3, 4, 5, 1, 2]));
        assert_eq!(self.read(file, &[]), Ok(vec![]), "no regions, no bytes");

        // Nested strides: runs of 2 bytes, 3 at distances of 5, twice at a distance of 100.
        let levels = vec![Level { count: 2, step_bytes: 100 }, Level { count: 3, step_bytes: 5 }];
        let nested = Regions::new(vec![Nested { offset: 13_000, run_bytes: 2, levels }]).expect("regions");
        let twelve: Vec<u8> = (1..=12).collect();
        self.run_regions(file, Operation::Write, nested.clone(), &twelve).expect("a strided write");
        let found = self.run_regions(file, Operation::Read, nested, &[0xAA; 12]);
        assert_eq!(found.as_deref(), Ok(&twelve[..]));
        assert_eq!(self.read(file, &[(13_000, 7)]), Ok(vec![1, 2, 0, 0, 0, 3, 4]));
        assert_eq!(self.read(file, &[(13_109, 4)]), Ok(vec![0, 11, 12, 0]));

        self.run(file, Operation::Sync, &[], &[]).expect("sync");
        let past = self.read(file, &[(19_999, 2)]).expect_err("reading past the end");
        assert_eq!(past.kind, ErrorKind::Truncated);
        let again = self.volume.open("a/data", create).expect_err("making a file that exists");
        assert_eq!(again.kind, ErrorKind::Exists);

        self.volume.close(file);
        assert_eq!(self.read(file, &[(0, 1)]).expect_err("a closed file").kind, ErrorKind::Closed);
        let reader = self.volume.open("a/data", OpenMode::Read).expect("reopen");
        assert_eq!(self.read(reader, &[(3, 9000)]).as_deref(), Ok(&bytes[..]), "content outlives the handle");
        let refused = self.write(reader, &[(0, 1)], &[1]).expect_err("writing to a reader");
        assert_eq!(refused.kind, ErrorKind::ReadOnly);
        self.volume.close(reader);
    }

    fn lengths(&self) {
        let v = self.volume;
        let hints = Hints {
            stripe_unit_bytes: Some(1 << 16),
            round_units: Some(2),
            stripe_count: Some(1),
            base: Some(0),
            others: vec![("nobody_knows".into(), "1".into())],
        };
        let file = v.create("l/file", 10_000, true, hints.clone()).expect("create with hints");
        assert_eq!(v.length(file), Ok(10_000));
        assert_eq!(self.read(file, &[(9_990, 10)]), Ok(vec![0; 10]));
        let again = v.create("l/file", 10_000, true, hints).expect_err("making a file that exists");
        assert_eq!(again.kind, ErrorKind::Exists);
        v.close(file);

        let mode = OpenMode::ReadWrite;
        assert_eq!(v.open("l/none", mode).expect_err("missing").kind, ErrorKind::NotFound);
        let file = v.open("l/file", mode).expect("reopen to write");
        self.write(file, &[(9_000, 1000)], &[7; 1000]).expect("write to a file that was there");
        assert_eq!(self.read(file, &[(8_999, 2)]), Ok(vec![0, 7]));
        v.close(file);

        let resize = |length, reserve| v.open("l/file", OpenMode::Resize { length, reserve });
        let none = v.open("l/none", OpenMode::Resize { length: 5, reserve: false });
        assert_eq!(none.expect_err("missing").kind, ErrorKind::NotFound);
        assert_eq!(v.exists("l/none"), Ok(false));
        for (length, reserve) in [(150_000, true), (250_000, false)] {
            let file = resize(length, reserve).expect("longer");
            assert_eq!(v.length(file), Ok(length));
            assert_eq!(self.read(file, &[(9_999, 2), (length - 2, 2)]), Ok(vec![7, 0, 0, 0]));
            self.write(file, &[(length - 1, 1)], &[9]).expect("write new bytes");
            v.close(file);
        }
        let file = resize(9_500, false).expect("shorter");
        assert_eq!(v.length(file), Ok(9_500));
        assert_eq!(self.read(file, &[(9_498, 2)]), Ok(vec![7, 7]));
        assert_eq!(self.read(file, &[(9_499, 2)]).expect_err("cut off").kind, ErrorKind::Truncated);
        v.close(file);
        let file = resize(150_000, false).expect("longer again");
        assert_eq!(
            self.read(file, &[(9_499, 2), (9_998, 2), (149_999, 1)]),
            Ok(vec![7, 0, 0, 0, 0]),
            "bytes that were cut off do not come back"
        );
        v.close(file);
        v.remove("l").expect("remove");
    }

    fn times(&self, tick: &dyn Fn()) {
        let v = self.volume;
        assert_eq!(v.modified_ns("t/none").expect_err("missing").kind, ErrorKind::NotFound);
        assert_eq!(v.settle("t/none").expect_err("missing").kind, ErrorKind::NotFound);
        let file = v.open("t/file", OpenMode::Create { length: 100, reserve: false }).expect("create");
        let (mut last, mut known) = (0, vec![]);
        for number in 0..3 {
            tick();
            self.write(file, &[(10, 1)], &[number]).expect("write");
            v.settle("t/file").expect("settle");
            last = v.modified_ns("t/file").expect("time of the last write");
            assert!(!known.contains(&last), "it differs after a write");
            known.push(last);
        }
        assert_eq!(self.read(file, &[(10, 1)]), Ok(vec![2]));
        self.run(file, Operation::Sync, &[], &[]).expect("sync");
        v.close(file);
        v.settle("t/file").expect("settle again");
        assert_eq!(v.modified_ns("t/file"), Ok(last), "reads and syncs are no writes");
        tick();
        v.replace_small("t/file", b"new").expect("replace");
        assert_ne!(v.modified_ns("t/file"), Ok(last), "nor is it the same after replacing");
        v.remove("t").expect("remove");
    }

    fn replacing(&self) {
        let v = self.volume;
        for (name, bytes) in [("r/old", [1; 5]), ("r/new", [2; 5])] {
            let file = v.open(name, OpenMode::Create { length: 5, reserve: false }).expect("create");
            self.write(file, &[(0, 5)], &bytes).expect("write");
            v.close(file);
        }
        v.rename("r/new", "r/old").expect("rename onto a file that exists");
        assert_eq!(v.exists("r/new"), Ok(false));
        assert_eq!(v.read_small("r/old"), Ok(vec![2; 5]), "the new one is there instead");
        assert_eq!(v.rename("r/new", "r/old").expect_err("missing").kind, ErrorKind::NotFound);
        assert_eq!(v.read_small("r/old"), Ok(vec![2; 5]), "and stays");
        v.replace_small("r/deep/er/file", b"below").expect("a file below");
        v.rename("r/deep", "r/moved").expect("rename a directory");
        assert_eq!(v.read_small("r/moved/er/file").as_deref(), Ok(&b"below"[..]));
        assert_eq!(v.list("r").expect("list").len(), 2);
        v.remove("r").expect("remove");
    }

    fn names(&self) {
        let v = self.volume;
        assert_eq!(v.open("none", OpenMode::Read).expect_err("missing").kind, ErrorKind::NotFound);
        assert_eq!(v.read_small("none").expect_err("missing").kind, ErrorKind::NotFound);
        for path in ["../up", "/etc/passwd", "a/../../b"] {
            assert_eq!(v.read_small(path).expect_err("outside").kind, ErrorKind::Invalid, "{path}");
        }
        v.replace_small("d/x", b"one").expect("first content");
        v.replace_small("d/x", b"two").expect("replaced content");
        assert_eq!(v.read_small("d/x").as_deref(), Ok(&b"two"[..]));
        v.append_small("d/log", b"1\n").expect("append to a new file");
        v.append_small("d/log", b"2\n").expect("append");
        assert_eq!(v.read_small("d/log").as_deref(), Ok(&b"1\n2\n"[..]));

        let names = |path: &str| -> Vec<String> {
            v.list(path).expect("list").into_iter().map(|entry| entry.name).collect()
        };
        assert_eq!(names("d"), ["log", "x"], "sorted, and nothing left over from replacing");
        v.rename("d/x", "e/y").expect("rename");
        assert_eq!((v.exists("d/x"), v.exists("e/y")), (Ok(false), Ok(true)));
        assert_eq!(v.exists("e/y/below"), Ok(false), "nothing is below a file");
        v.remove("d").expect("remove a directory");
        assert_eq!(v.exists("d"), Ok(false));
        assert_eq!(v.remove("d").expect_err("already gone").kind, ErrorKind::NotFound);
        v.remove_soon("e").expect("remove soon");
        assert_eq!((v.exists("e/y"), v.exists("e")), (Ok(false), Ok(false)));
        assert_eq!(v.remove_soon("e").expect_err("already gone").kind, ErrorKind::NotFound);
        assert!(v.free_bytes().expect("free bytes") > 0);
    }
}

/// Checks an empty volume. `make` returns a buffer with the given bytes. `tick` waits until the clock of the
/// volume's files, which may be coarse, has advanced.
///
/// # Panics
/// If the volume breaks a rule.
pub fn volume<V: Volume>(volume: &V, make: &dyn Fn(&[u8]) -> V::Buffer, tick: &dyn Fn())
where
    V::Buffer: Buffer,
{
    let check = Check { volume, make };
    check.transfers();
    check.lengths();
    check.times(tick);
    check.replacing();
    check.names();
}
