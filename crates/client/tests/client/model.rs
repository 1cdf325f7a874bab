//! A naive model of an array, and array files over correct or misbehaving disks.

use std::sync::Arc;
use std::time::Duration;

use outcore_client::{ArrayFile, LocalVolume, Memory, MemoryUse, Ticket};
use outcore_core::doubles::{Fault, FaultyDisk};
use outcore_core::{
    Alignment, BoxRequest, Buffer, ChunkGrid, ChunkOrder, Disk, FileId, GridSpec, Hints, OnDone, OpenMode,
    Operation, Request, Result, StorageOrder, Volume,
};
use outcore_disk::{Directory, LocalDisk};
use outcore_memory::{Arena, Block, Region};

/// A wait longer than this is a hang.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Bytes around a box in memory that must not change.
pub const GUARD: usize = 37;

pub fn finish(ticket: &Ticket) -> Result<()> {
    ticket.wait(PATIENCE).expect("a request hangs")
}

pub fn grid(shape: &[u64], chunk: &[u64], item_bytes: u64) -> ChunkGrid {
    let spec = GridSpec {
        shape: shape.to_vec(),
        chunk: chunk.to_vec(),
        item_bytes,
        storage: StorageOrder::F,
        chunk_order: ChunkOrder::ColumnMajor,
        slot_align_bytes: 4096,
        column_places: None,
        growing: false,
    };
    ChunkGrid::new(spec).unwrap()
}

/// An array in a temporary directory. Its file may be opened over a misbehaving disk.
pub struct Place {
    pub root: tempfile::TempDir,
    pub grid: ChunkGrid,
}

impl Place {
    pub fn new(grid: ChunkGrid) -> Self {
        let root = tempfile::tempdir().unwrap();
        let volume: Arc<dyn Volume<Buffer = Region>> =
            Arc::new(LocalVolume::open_directory(root.path().to_str().unwrap(), 2).unwrap());
        ArrayFile::create(&volume, "a", &grid, false, Hints::default()).unwrap();
        Self { root, grid }
    }

    pub fn open(&self, fault: Fault, arena: &Arena, bounce_bytes: usize) -> Result<Arc<ArrayFile>> {
        let directory = Directory::new(self.root.path())?;
        let disk = FaultyDisk::new(LocalDisk::new(directory.clone(), 3)?, fault);
        self.open_volume(LocalVolume::new(directory, disk), arena, bounce_bytes)
    }

    pub fn open_volume<D: Disk<Buffer = Region> + 'static>(
        &self,
        volume: LocalVolume<D>,
        arena: &Arena,
        bounce_bytes: usize,
    ) -> Result<Arc<ArrayFile>> {
        let memory = MemoryUse { arena: arena.clone(), bounce_bytes };
        ArrayFile::open(Arc::new(volume), "a", self.grid.clone(), true, memory, None).map(Arc::new)
    }

    /// Truncates the first shard file.
    pub fn cut_off(&self, bytes: u64) {
        let path = self.root.path().join("a/c/0/0");
        std::fs::OpenOptions::new().write(true).open(path).unwrap().set_len(bytes).unwrap();
    }

    pub fn open_well(&self) -> Arc<ArrayFile> {
        self.open(well(), &Arena::new(64 << 20), 16 << 20).unwrap()
    }

    /// Opens the array over the real disk, which also copies and writes without requests.
    pub fn open_real(&self) -> Arc<ArrayFile> {
        let volume = LocalVolume::open_directory(self.root.path().to_str().unwrap(), 3).unwrap();
        self.open_volume(volume, &Arena::new(64 << 20), 16 << 20).unwrap()
    }
}

/// No fault.
pub fn well() -> Fault {
    Fault::Short(usize::MAX)
}

/// A disk whose writes start late.
pub struct LateWrites(pub Arc<LocalDisk>);

impl Disk for LateWrites {
    type Buffer = Region;

    fn open(&self, path: &str, mode: OpenMode) -> Result<FileId> {
        self.0.open(path, mode)
    }

    fn close(&self, file: FileId) {
        self.0.close(file);
    }

    fn length(&self, file: FileId) -> Result<u64> {
        self.0.length(file)
    }

    fn submit(&self, request: Request<Region>, done: OnDone<Region>) {
        let inner = self.0.clone();
        let late = request.operation == Operation::Write;
        std::thread::spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(if late { 30 } else { 0 }));
            inner.submit(request, done);
        });
    }

    fn alignment(&self, file: FileId) -> Alignment {
        self.0.alignment(file)
    }

    fn free_bytes(&self) -> Result<u64> {
        self.0.free_bytes()
    }
}

/// A box of an array, packed in memory in either order, between guards.
#[derive(Clone, Debug)]
pub struct Part {
    pub start: Vec<u64>,
    pub count: Vec<u64>,
    pub step: Vec<u64>,
    pub fortran: bool,
}

impl Part {
    pub fn whole(shape: &[u64]) -> Self {
        let dims = shape.len();
        Self { start: vec![0; dims], count: shape.to_vec(), step: vec![1; dims], fortran: false }
    }

    pub fn bytes(&self, item: u64) -> usize {
        (self.count.iter().product::<u64>() * item) as usize
    }

    pub fn strides(&self, item: u64) -> Vec<i64> {
        let mut strides = vec![0; self.count.len()];
        let mut next = item as i64;
        let mut lay = |dim: usize| {
            strides[dim] = next;
            next *= self.count[dim] as i64;
        };
        if self.fortran {
            (0..self.count.len()).for_each(&mut lay);
        } else {
            (0..self.count.len()).rev().for_each(&mut lay);
        }
        strides
    }

    pub fn submit(&self, file: &Arc<ArrayFile>, operation: Operation, block: &Arc<Block>) -> Result<Ticket> {
        self.submit_at(file, operation, block, GUARD)
    }

    pub fn submit_at(
        &self,
        file: &Arc<ArrayFile>,
        operation: Operation,
        block: &Arc<Block>,
        origin: usize,
    ) -> Result<Ticket> {
        let (request, memory) = self.request(file, block, origin);
        file.submit(operation, &request, memory)
    }

    /// Reads from the page cache as far as possible.
    pub fn read_mapped(&self, file: &Arc<ArrayFile>, block: &Arc<Block>) -> Result<Ticket> {
        let (request, memory) = self.request(file, block, GUARD);
        file.read_mapped(&request, memory, &mut || true)
    }

    pub fn request(&self, file: &Arc<ArrayFile>, block: &Arc<Block>, origin: usize) -> (BoxRequest, Memory) {
        let strides = self.strides(file.grid().spec().item_bytes);
        let request = BoxRequest {
            start: self.start.clone(),
            count: self.count.clone(),
            step: self.step.clone(),
            memory_strides: strides.clone(),
        };
        (request, Memory { block: block.clone(), origin, strides })
    }

    /// Calls `visit(byte in the model, byte in memory)` for each element.
    pub fn for_each(&self, shape: &[u64], item: u64, mut visit: impl FnMut(usize, usize)) {
        let strides = self.strides(item);
        for number in 0..self.count.iter().product::<u64>() {
            let (mut rest, mut model, mut memory, mut size) = (number, 0, 0, item);
            for dim in (0..shape.len()).rev() {
                let at = rest % self.count[dim];
                rest /= self.count[dim];
                model += (self.start[dim] + at * self.step[dim]) * size;
                memory += at * strides[dim] as u64;
                size *= shape[dim];
            }
            visit(model as usize, memory as usize);
        }
    }
}

pub fn block(bytes: &[u8]) -> Arc<Block> {
    let block = Arc::new(Arena::new(usize::MAX).allocate(bytes.len()).unwrap());
    Region::whole(block.clone()).copy_in(0, bytes);
    block
}

pub fn content(block: &Arc<Block>) -> Vec<u8> {
    let mut out = vec![0; block.len()];
    Region::whole(block.clone()).copy_out(0, &mut out);
    out
}

/// An array in memory, in C order.
pub struct Model {
    pub shape: Vec<u64>,
    item: u64,
    pub bytes: Vec<u8>,
    seed: u64,
}

impl Model {
    pub fn new(grid: &ChunkGrid) -> Self {
        let (shape, item) = (grid.spec().shape.clone(), grid.spec().item_bytes);
        let bytes = vec![0; (shape.iter().product::<u64>() * item) as usize];
        Self { shape, item, bytes, seed: 1 }
    }

    pub fn noise(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes)
            .map(|_| {
                self.seed = self.seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (self.seed >> 56) as u8
            })
            .collect()
    }

    /// Writes new values to a part of model and file.
    pub fn write(&mut self, part: &Part, file: &Arc<ArrayFile>) -> Result<()> {
        let source = self.noise(part.bytes(self.item) + 2 * GUARD);
        let ticket = part.submit(file, Operation::Write, &block(&source))?;
        self.take(part, &source);
        finish(&ticket)
    }

    /// Writes new values to a part of model and file, with short runs written by the calling thread.
    pub fn write_short(&mut self, part: &Part, file: &Arc<ArrayFile>) -> Result<()> {
        let source = self.noise(part.bytes(self.item) + 2 * GUARD);
        let (request, memory) = part.request(file, &block(&source), GUARD);
        let tickets = file.write_short(&request, memory, &mut || true)?;
        self.take(part, &source);
        tickets.iter().try_for_each(finish)
    }

    /// Copies the values of a part from memory into the model.
    pub fn take(&mut self, part: &Part, source: &[u8]) {
        let (item, model) = (self.item as usize, &mut self.bytes);
        part.for_each(&self.shape, self.item, |at, memory| {
            model[at..at + item].copy_from_slice(&source[GUARD + memory..GUARD + memory + item]);
        });
    }

    /// Reads a part of the file and compares.
    pub fn check(&self, part: &Part, file: &Arc<ArrayFile>) -> Result<()> {
        self.check_by(part, |target| part.submit(file, Operation::Read, target))
    }

    /// Reads a part of the file from the page cache and compares.
    pub fn check_mapped(&self, part: &Part, file: &Arc<ArrayFile>) -> Result<()> {
        self.check_by(part, |target| part.read_mapped(file, target))
    }

    fn check_by(&self, part: &Part, read: impl FnOnce(&Arc<Block>) -> Result<Ticket>) -> Result<()> {
        let target = block(&vec![0xEE; part.bytes(self.item) + 2 * GUARD]);
        finish(&read(&target)?)?;
        let found = content(&target);
        let item = self.item as usize;
        part.for_each(&self.shape, self.item, |at, memory| {
            assert_eq!(
                self.bytes[at..at + item],
                found[GUARD + memory..GUARD + memory + item],
                "{part:?}, byte {at} of the array"
            );
        });
        let guards = found[..GUARD].iter().chain(&found[found.len() - GUARD..]);
        assert!(guards.copied().all(|byte| byte == 0xEE), "memory around the box was written");
        Ok(())
    }
}

/// A box whose transfer takes many pieces through bounce buffers: unaligned, and over several chunks.
pub fn ragged() -> (Place, Part) {
    let place = Place::new(grid(&[700, 300], &[300, 128], 8));
    let part = Part { start: vec![1, 3], count: vec![690, 290], step: vec![1, 1], fortran: true };
    (place, part)
}

/// Waits until the arena has no bytes in use: the disk's threads may be slightly behind their tickets.
pub fn wait_until_free(arena: &Arena) {
    let end = std::time::Instant::now() + PATIENCE;
    while arena.used_bytes() > 0 {
        assert!(std::time::Instant::now() < end, "{} bytes are never given back", arena.used_bytes());
        std::thread::yield_now();
    }
}
