//! A plain directory as a [`Volume`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use outcore_core::{
    Alignment, Buffer, Completion, Disk, Due, Entry, Error, ErrorKind, FileId, OnDone, OpenMode, Operation,
    Piece, Request, Result, Run, Volume, VolumeRequest,
};
use outcore_disk::{Directory, LocalDisk};

/// A plain directory. Each file is a plain file on one disk.
pub struct LocalVolume<D = LocalDisk> {
    directory: Directory,
    disk: Arc<D>,
}

impl LocalVolume<LocalDisk> {
    /// Opens the directory `root`, with at most `threads` concurrent requests.
    pub fn open_directory(root: &str, threads: usize) -> Result<Self> {
        let directory = Directory::new(root)?;
        let disk = LocalDisk::new(directory.clone(), threads)?;
        Ok(Self::new(directory, disk))
    }
}

impl<D: Disk> LocalVolume<D> {
    /// A volume with the names of `directory` and the bytes of `disk`, which must serve the same directory.
    pub fn new(directory: Directory, disk: D) -> Self {
        Self { directory, disk: Arc::new(disk) }
    }
}

/// One volume request, whose parts are separate disk requests.
struct Join<D: Disk> {
    disk: Arc<D>,
    file: FileId,
    operation: Operation,
    state: Mutex<State<D::Buffer>>,
}

struct State<B> {
    parts: usize,
    result: Result<usize>,
    started_ns: u64,
    finished_ns: u64,
    end: Option<(B, OnDone<B>)>,
}

impl<D: Disk + 'static> Join<D> {
    fn lock(&self) -> MutexGuard<'_, State<D::Buffer>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The disk request for the rest of a run after `moved` bytes. `buffer` is the buffer of the whole
    /// request.
    fn part(
        self: &Arc<Self>,
        mut buffer: D::Buffer,
        run: Run,
        moved: usize,
        first_started_ns: Option<u64>,
    ) -> Due<D::Buffer> {
        buffer.advance(run.at as usize + moved);
        buffer.truncate(run.length as usize - moved);
        let offset = run.offset + moved as u64;
        let join = self.clone();
        let done: OnDone<D::Buffer> = Box::new(move |completion| {
            let started_ns = first_started_ns.unwrap_or(completion.started_ns);
            let finished_ns = completion.finished_ns.max(started_ns);
            // The join owns the whole buffer. Drop the views of this part before the join returns it.
            drop(completion.buffer);
            let asked = run.length as usize - moved;
            let result = match completion.result {
                Err(error) => Err(error),
                Ok(more) if more >= asked => Ok(run.length as usize),
                Ok(0) => Err(join.ended(asked, offset)),
                Ok(more) => return join.go_on(run, moved + more, started_ns),
            };
            join.part_done(result, started_ns, finished_ns);
        });
        (Request { file: self.file, operation: self.operation, offset, buffer }, done)
    }

    /// Requests the rest of a run after a short transfer.
    fn go_on(self: &Arc<Self>, run: Run, moved: usize, started_ns: u64) {
        // The join owns the buffer until the last part is done.
        let whole = self.lock().end.as_ref().map(|(buffer, _)| buffer.clone());
        if let Some(whole) = whole {
            let (request, done) = self.part(whole, run, moved, Some(started_ns));
            self.disk.submit(request, done);
        }
    }

    fn ended(&self, asked: usize, offset: u64) -> Error {
        let (kind, why) = match self.operation {
            Operation::Read => (ErrorKind::Truncated, "the file ends there"),
            _ => (ErrorKind::Io, "the disk took none"),
        };
        Error::new(
            kind,
            format!(
                "need {asked} more bytes at offset {offset}; {why}; restore the file from a copy, or create it again"
            ),
        )
    }

    fn part_done(&self, result: Result<usize>, started_ns: u64, finished_ns: u64) {
        let mut state = self.lock();
        state.parts -= 1;
        state.started_ns = state.started_ns.min(started_ns);
        state.finished_ns = state.finished_ns.max(finished_ns);
        match (&mut state.result, result) {
            (Ok(total), Ok(moved)) => *total += moved,
            (whole @ Ok(_), Err(error)) => *whole = Err(error),
            (Err(_), _) => {}
        }
        if state.parts > 0 {
            return;
        }
        let (started_ns, finished_ns) = (state.started_ns, state.finished_ns);
        let result = state.result.clone();
        if let Some((buffer, done)) = state.end.take() {
            drop(state);
            done(Completion { buffer, result, started_ns, finished_ns });
        }
    }
}

impl<D: Disk + 'static> Volume for LocalVolume<D> {
    type Buffer = D::Buffer;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        self.disk.open(path, mode)
    }

    fn close(&self, file: FileId) {
        self.disk.close(file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        self.disk.length(file)
    }

    fn submit(&self, request: VolumeRequest<Self::Buffer>, done: OnDone<Self::Buffer>) {
        let VolumeRequest { file, operation, regions, buffer } = request;
        let (need, have) = (regions.total_bytes(), buffer.len() as u64);
        if need != have {
            let error = Error::invalid(format!("the regions hold {need} bytes, the buffer {have}"));
            return done(Completion::failed(buffer, error, 0));
        }
        let mut runs: Vec<Run> = regions.runs().collect();
        if runs.is_empty() {
            runs.push(Run { offset: 0, length: 0, at: 0 });
        }
        let many = operation == Operation::Write && runs.len() > 1;
        let left = if many { self.disk.write_runs(file, &runs, &buffer, done) } else { Some(done) };
        let Some(done) = left else { return };
        let state = State {
            parts: runs.len(),
            result: Ok(0),
            started_ns: u64::MAX,
            finished_ns: 0,
            end: Some((buffer.clone(), done)),
        };
        let join = Arc::new(Join { disk: self.disk.clone(), file, operation, state: Mutex::new(state) });
        let parts = runs.into_iter().map(|run| join.part(buffer.clone(), run, 0, None)).collect();
        // Drop this view, so that the receiver of the whole buffer has the only one.
        drop(buffer);
        self.disk.submit_all(parts);
    }

    fn read_mapped(
        &self,
        file: FileId,
        pieces: Vec<Piece>,
        memory: &Self::Buffer,
        origin: usize,
    ) -> Vec<Piece> {
        self.disk.read_mapped(file, pieces, memory, origin)
    }

    fn write_short(
        &self,
        file: FileId,
        pieces: Vec<Piece>,
        memory: &Self::Buffer,
        origin: usize,
    ) -> Vec<Piece> {
        self.disk.write_short(file, pieces, memory, origin)
    }

    fn alignment(&self, file: FileId) -> Alignment {
        self.disk.alignment(file)
    }

    fn read_small(&self, path: &str) -> Result<Vec<u8>> {
        self.directory.read_small(path)
    }

    fn replace_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.directory.replace_small(path, bytes)
    }

    fn append_small(&self, path: &str, bytes: &[u8]) -> Result<()> {
        self.directory.append_small(path, bytes)
    }

    fn list(&self, path: &str) -> Result<Vec<Entry>> {
        self.directory.list(path)
    }

    fn exists(&self, path: &str) -> Result<bool> {
        self.directory.exists(path)
    }

    fn remove(&self, path: &str) -> Result<()> {
        self.directory.remove(path)
    }

    fn remove_soon(&self, path: &str) -> Result<()> {
        self.directory.remove_soon(path)
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.directory.rename(from, to)
    }

    fn modified_ns(&self, path: &str) -> Result<u64> {
        self.directory.modified_ns(path)
    }

    fn settle(&self, path: &str) -> Result<()> {
        self.directory.settle(path)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.disk.free_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outcore_core::doubles::{Fault, FaultyDisk};
    use outcore_core::{Regions, conformance};
    use outcore_memory::{Arena, Region};
    use std::sync::atomic::{AtomicU64, AtomicUsize};

    fn region(bytes: &[u8]) -> Region {
        if bytes.is_empty() {
            return Region::empty();
        }
        let mut region = Region::whole(Arc::new(Arena::new(1 << 20).allocate(bytes.len()).unwrap()));
        region.copy_in(0, bytes);
        region
    }

    fn faulty(root: &std::path::Path, fault: Fault) -> LocalVolume<FaultyDisk<LocalDisk>> {
        let directory = Directory::new(root).unwrap();
        let disk = LocalDisk::new(directory.clone(), 2).unwrap();
        LocalVolume::new(directory, FaultyDisk::new(disk, fault))
    }

    fn write(volume: &dyn Volume<Buffer = Region>, bytes: usize) -> Result<()> {
        let file = volume.open("f", OpenMode::Create { length: bytes as u64, reserve: false })?;
        let regions = Regions::contiguous(0, bytes as u64)?;
        let request =
            VolumeRequest { file, operation: Operation::Write, regions, buffer: region(&vec![1; bytes]) };
        conformance::complete(volume, request).map(|_| ())
    }

    #[test]
    fn a_local_volume_conforms() {
        let root = tempfile::tempdir().unwrap();
        conformance::volume(
            &LocalVolume::open_directory(root.path().to_str().unwrap(), 4).unwrap(),
            &region,
            &|| std::thread::sleep(std::time::Duration::from_millis(20)),
        );
    }

    #[test]
    fn a_disk_that_moves_a_few_bytes_at_a_time_changes_nothing() {
        let root = tempfile::tempdir().unwrap();
        conformance::volume(&faulty(root.path(), Fault::Short(37)), &region, &|| {
            std::thread::sleep(std::time::Duration::from_millis(20))
        });
    }

    #[test]
    fn a_full_disk_says_so() {
        let root = tempfile::tempdir().unwrap();
        let volume = faulty(root.path(), Fault::FullAfter(AtomicU64::new(5000)));
        assert_eq!(write(&volume, 9000).unwrap_err().kind, ErrorKind::DiskFull);
    }

    #[test]
    fn a_failing_disk_says_so() {
        let root = tempfile::tempdir().unwrap();
        let volume = faulty(root.path(), Fault::FailAfter(AtomicUsize::new(0)));
        assert_eq!(write(&volume, 9000).unwrap_err().kind, ErrorKind::Io);
    }
}
