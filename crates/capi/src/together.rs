//! One process's part in a collective: it agrees with the others, and meets them at the I/O servers, which direct the
//! transfer (see the crate `client`).

use std::ffi::c_void;
use std::hash::{BuildHasher, RandomState};

use outcore_client::{CollectivePart, LocalArray, Memory};
use outcore_core::{
    CollectiveSpec, ElementBox, Error, ErrorKind, FileId, GridSpec, MAX_CHUNK_BYTES, MAX_CHUNKS_PER_SHARD,
    MemorySchema, OpenMode, ROUND_PIECES, Result, Volume as _, piece_bytes,
};

use crate::agreement::Said;
use crate::array::Array;
use crate::ascending::Ascending;
use crate::collective::{Exchange, Group};
use crate::file::File;
use crate::memory::block_of;
use crate::pool::Client;
use crate::regions::Regions;
use crate::request::regions_of;
use crate::text::{check_count, numbers_of};

/// Memory for copies of elements in short runs.
const BOUNCE_BYTES: usize = 64 << 20;
/// The unit in which servers divide a file, for small files.
const UNIT_BYTES: u64 = 1 << 20;
/// Units of a file, at most.
const MOST_UNITS: u64 = MAX_CHUNKS_PER_SHARD;
/// Boxes of all processes: each server gets the list, and compares each piece with all of them.
const MOST_BOXES: usize = 1 << 16;
/// The state of an array during a write, as in Python.
const STATE: &str = "incomplete";
const WHY: &str = "write_all was stopped, or failed; write all of it again with allow_incomplete=True";
/// Whether servers may read the memory of this process.
const DIRECT_MEMORY: &str = "OUTCORE_DIRECT_MEMORY";

/// Bytes of the caller's memory, divided into boxes.
struct Local {
    boxes: Vec<ElementBox>,
    /// The first byte of each box in memory.
    places: Vec<u64>,
    memory: *mut u8,
    bytes: u64,
}

/// One collective in progress.
struct Work<'a> {
    client: &'a Client,
    rank: u64,
    ranks: u64,
    patience_s: u64,
    /// The numbers of the collectives of one file each, in order.
    numbers: Vec<u128>,
    /// Number of those that have ended.
    passed: usize,
    offers_memory: bool,
    exchange: Exchange,
}

impl Work<'_> {
    /// Takes part in the next collective, or reports there that this process cannot.
    fn run(
        &mut self,
        file: FileId,
        spec: CollectiveSpec,
        arrays: Vec<LocalArray>,
        failed: Option<&Error>,
    ) -> Result<()> {
        let part = CollectivePart {
            spec,
            rank: self.rank,
            arrays,
            memory_bytes: BOUNCE_BYTES,
            offers_memory: self.offers_memory,
            trace: None,
        };
        let mut go_on = || failed.cloned().map_or(Ok(()), Err);
        let done = self.client.collective(file, &part, &mut go_on);
        // The first error of this process is the one that matters.
        let done = done.map_err(|error| failed.cloned().unwrap_or(error))?;
        for each in done {
            self.exchange.messages += each.messages;
            self.exchange.shares += each.shares;
            self.exchange.bytes += each.bytes;
            self.exchange.copied_bytes += each.copied_bytes;
            self.exchange.direct_bytes += each.direct_bytes;
        }
        self.passed += 1;
        Ok(())
    }

    fn spec(&self, write: bool, grid: GridSpec, shard: u64, schema: MemorySchema) -> CollectiveSpec {
        let copies = if write { 1 } else { schema.most_copies(&grid.shape) };
        CollectiveSpec {
            id: self.numbers[self.passed],
            write,
            ranks: self.ranks,
            grid,
            shard,
            schema,
            patience_s: self.patience_s,
            durable: true,
            skips_disk: false,
            piece_bytes: piece_bytes(copies),
            round_pieces: ROUND_PIECES,
        }
    }

    /// Waits for all processes at the servers of a file, which detect a process that never comes.
    fn meet(&mut self, file: FileId, failed: Option<&Error>) -> Result<()> {
        let nothing = MemorySchema::Boxes(vec![vec![]; self.ranks as usize]);
        let spec = CollectiveSpec { skips_disk: true, ..self.spec(false, bytes_of_file(1), 0, nothing) };
        self.run(file, spec, vec![], failed)
    }

    /// Lets no process wait for this one. No process gets beyond the first number that this one has not completed.
    fn abandon(&self, error: &Error) {
        let numbers = &self.numbers[self.passed..self.numbers.len().min(self.passed + 2)];
        if self.ranks > 1 && !numbers.is_empty() {
            let servers = [self.client.server_ids(), self.client.retired_ids()].concat();
            self.client.abandon(&servers, numbers, self.rank, error);
        }
    }
}

/// A file as an array of bytes: the bytes behind its end belong to no process.
fn bytes_of_file(length: u64) -> GridSpec {
    let unit = length.div_ceil(MOST_UNITS).next_power_of_two().max(UNIT_BYTES);
    GridSpec::of_bytes(length.div_ceil(unit).max(1) * unit, unit)
}

fn random() -> u128 {
    let half = || u128::from(RandomState::new().hash_one(0));
    half() << 64 | half()
}

fn offers_memory() -> Result<bool> {
    let given = std::env::var(DIRECT_MEMORY).unwrap_or_default().trim().to_lowercase();
    match given.as_str() {
        "" | "on" => Ok(true),
        "off" => Ok(false),
        _ => Err(Error::invalid(format!("need {DIRECT_MEMORY}=on or off, have {given:?}; set one of them"))),
    }
}

impl Local {
    /// Adds a box, whose elements follow those of the earlier ones.
    fn add(&mut self, start: &[u64], shape: &[u64], item_bytes: u64, at: u64) -> Result<u64> {
        let bytes = shape.iter().try_fold(item_bytes, |bytes, &count| bytes.checked_mul(count));
        let end = bytes.and_then(|bytes| at.checked_add(bytes));
        let end = end.ok_or_else(|| Error::invalid("need boxes of at most 2^63 bytes; make them smaller"))?;
        if end > at {
            self.boxes.push(ElementBox { start: start.to_vec(), shape: shape.to_vec() });
            self.places.push(at);
        }
        Ok(end)
    }

    /// The `boxes` boxes that C passed.
    ///
    /// # Safety
    /// `start` and `count` have `dims` numbers for each box.
    unsafe fn listed(
        array: &Array,
        boxes: usize,
        start: *const u64,
        count: *const u64,
        memory: *mut c_void,
        bytes: u64,
    ) -> Result<Self> {
        let (dims, item_bytes) = (array.file.grid().dims(), array.element.bytes());
        check_boxes(boxes)?;
        let numbers = boxes.saturating_mul(dims);
        check_count(numbers, "numbers of boxes")?;
        // SAFETY: as the caller promises.
        let (start, count) = unsafe {
            (
                numbers_of(start, numbers, "first indices of the boxes")?,
                numbers_of(count, numbers, "lengths of the boxes")?,
            )
        };
        let mut local = Self { boxes: vec![], places: vec![], memory: memory.cast(), bytes };
        let mut at = 0;
        for (start, count) in start.chunks(dims).zip(count.chunks(dims)) {
            at = local.add(start, count, item_bytes, at)?;
        }
        local.check(at)
    }

    fn check(self, need: u64) -> Result<Self> {
        if need == self.bytes {
            return Ok(self);
        }
        Err(Error::invalid(format!(
            "need memory of {need} bytes, have {}; pass as many bytes as the boxes have",
            self.bytes
        )))
    }

    /// The memory of each box, in C order.
    ///
    /// # Safety
    /// As for [`block_of`].
    unsafe fn arrays(&self, item_bytes: u64) -> Result<Vec<LocalArray>> {
        if self.boxes.is_empty() {
            return Ok(vec![]);
        }
        // SAFETY: as the caller promises.
        let block = unsafe { block_of(self.memory, self.bytes)? };
        let array = |(each, &at): (&ElementBox, &u64)| {
            let mut strides = vec![item_bytes as i64; each.shape.len()];
            for dim in (1..strides.len()).rev() {
                strides[dim - 1] = strides[dim] * each.shape[dim] as i64;
            }
            let memory = Memory { block: block.clone(), origin: at as usize, strides };
            LocalArray { memory, shape: each.shape.clone() }
        };
        Ok(self.boxes.iter().zip(&self.places).map(array).collect())
    }
}

fn check_boxes(count: usize) -> Result<()> {
    if count <= MOST_BOXES {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need at most {MOST_BOXES} boxes of all processes, have {count} or more; make them larger"
    )))
}

/// The schema of all processes, which each of them checks, and the number of elements of all boxes.
fn schema(all: Vec<Said>, shape: &[u64], write: bool) -> Result<(MemorySchema, u64)> {
    let ranks = all.len() as u64;
    check_boxes(all.iter().map(|said| said.boxes.len()).sum())?;
    let boxes: Vec<Vec<ElementBox>> = all.into_iter().map(|said| said.boxes).collect();
    let items = |each: &ElementBox| each.shape.iter().fold(1_u64, |items, &n| items.saturating_mul(n));
    let given = boxes.iter().flatten().map(items).fold(0, u64::saturating_add);
    let schema = MemorySchema::Boxes(boxes);
    schema.check(shape, ranks)?;
    if write {
        schema.check_disjoint(shape)?;
    }
    Ok((schema, given))
}

/// The call of one process: agrees with the others, and runs `work` with the first of `collectives` numbers.
fn together(
    client: &Client,
    group: Group,
    exchange: *mut Exchange,
    mine: Result<(Said, bool)>,
    collectives: u64,
    work: impl FnOnce(&mut Work<'_>, Vec<Said>) -> Result<()>,
) -> Result<()> {
    let offers_memory = mine.as_ref().is_ok_and(|(_, offers)| *offers);
    let all = group.agree(mine.map(|(said, _)| said))?;
    let Some(first) = all.first() else {
        return Err(Error::invalid("need a process of the group, have none"));
    };
    let numbers = (0..collectives).map(|at| first.number.wrapping_add(at.into())).collect();
    let mut in_progress = Work {
        client,
        rank: group.rank,
        ranks: group.size,
        patience_s: first.patience_s,
        numbers,
        passed: 0,
        offers_memory,
        exchange: Exchange::default(),
    };
    work(&mut in_progress, all).inspect_err(|error| in_progress.abandon(error))?;
    // SAFETY: the caller passes NULL, or a place that is valid for a write.
    if let Some(place) = unsafe { exchange.as_mut() } {
        *place = in_progress.exchange;
    }
    Ok(())
}

/// The message of this process to the others.
fn said(client: &Client, group: &Group, verb: &str, name: String, layout: String) -> Result<(Said, bool)> {
    let said = Said {
        verb: verb.to_owned(),
        pool: format!("{:032x}", client.id()),
        name,
        layout,
        patience_s: group.patience_s()?,
        number: random(),
        end: 0,
        boxes: vec![],
    };
    Ok((said, offers_memory()?))
}

/// The files of an array, open for the time of a collective.
struct Shards<'a>(&'a Client, Vec<FileId>);

impl Drop for Shards<'_> {
    fn drop(&mut self) {
        for &file in &self.1 {
            self.0.close(file);
        }
    }
}

/// The write or read of an array by all processes.
///
/// # Safety
/// As for [`Local::listed`] and [`block_of`].
#[expect(clippy::too_many_arguments, reason = "those of the functions for C")]
pub(crate) unsafe fn array_all(
    array: &Array,
    write: bool,
    group: *const Group,
    boxes: usize,
    start: *const u64,
    count: *const u64,
    memory: *mut c_void,
    bytes: u64,
    exchange: *mut Exchange,
) -> Result<()> {
    // SAFETY: the caller passes NULL, or a group.
    let group = Group::checked(unsafe { group.as_ref() })?;
    let (client, spec) = (&*array.client, array.file.grid().spec().clone());
    let verb = if write { "outcore_array_write_all" } else { "outcore_array_read_all" };
    let prepared = (|| {
        if write {
            array.check_writable()?;
        }
        // SAFETY: as the caller promises.
        let local = unsafe { Local::listed(array, boxes, start, count, memory, bytes)? };
        // SAFETY: as the caller promises.
        let arrays = unsafe { local.arrays(spec.item_bytes)? };
        let layout = format!("{} {spec:?}", array.element.name().to_string_lossy());
        let (mut said, offers) = said(client, &group, verb, array.path.clone(), layout)?;
        said.boxes = local.boxes;
        Ok(((said, offers), arrays))
    })();
    let (mine, arrays) = match prepared {
        Ok((mine, arrays)) => (Ok(mine), arrays),
        Err(error) => (Err(error), vec![]),
    };
    let shards = array.file.grid().shards();
    // Before the first byte and after the last one of a write, the processes meet.
    let collectives = if write { shards + 2 } else { shards };
    together(client, group, exchange, mine, collectives, |work, all| {
        let (schema, given) = schema(all, &spec.shape, write)?;
        let covers_all = given == spec.shape.iter().product::<u64>();
        let mut files = Shards(client, vec![]);
        for shard in 0..shards {
            let path = format!("{}/{}", array.path, array.file.grid().shard_key(shard));
            let mode = if write { OpenMode::ReadWrite } else { OpenMode::Read };
            files.1.push(client.open(&path, mode)?);
        }
        let mut marked = Ok(None);
        if write {
            work.meet(files.1[0], None)?;
            if work.rank == 0 {
                marked = array.mark(STATE, WHY).map(Some);
            }
        }
        let failed = marked.as_ref().err();
        for (shard, &file) in (0..).zip(&files.1) {
            let spec = work.spec(write, spec.clone(), shard, schema.clone());
            work.run(file, spec, arrays.clone(), failed)?;
        }
        if write {
            array.counted_elsewhere();
            let published = marked?.map_or(Ok(()), |before| array.publish(&before, covers_all));
            work.meet(files.1[0], published.err().as_ref())?;
        }
        Ok(())
    })
}

/// The write or read of a file by all processes.
///
/// # Safety
/// As for [`block_of`].
pub(crate) unsafe fn file_all(
    file: &File,
    write: bool,
    group: *const Group,
    regions: *const Regions,
    memory: *mut c_void,
    bytes: u64,
    exchange: *mut Exchange,
) -> Result<()> {
    // SAFETY: the caller passes NULL, or a group.
    let group = Group::checked(unsafe { group.as_ref() })?;
    let client = &*file.client;
    let verb = if write { "outcore_file_write_all" } else { "outcore_file_read_all" };
    let prepared = (|| {
        if write {
            file.check_writable()?;
        }
        // SAFETY: the caller passes NULL, or regions.
        let regions = regions_of(unsafe { regions.as_ref() })?;
        if !write && regions.end() > client.length(file.file)? {
            let text = format!("need the bytes of the file up to {}, it is shorter", regions.end());
            return Err(Error::new(ErrorKind::Truncated, format!("{text}; read up to its length")));
        }
        // SAFETY: as the caller promises.
        let own = unsafe { Ascending::new(&regions, memory, bytes, write)? };
        let handle = client.handle(file.file)?.0;
        let (mut said, offers) = said(client, &group, verb, format!("file {handle}"), String::new())?;
        said.end = regions.end();
        Ok(((said, offers), own))
    })();
    let (mine, own) = match prepared {
        Ok((mine, own)) => (Ok(mine), Some(own)),
        Err(error) => (Err(error), None),
    };
    together(client, group, exchange, mine, 1, |work, all| {
        // A process with an error has left by now.
        let Some(own) = own else { return Ok(()) };
        let end = all.iter().map(|said| said.end).max().unwrap_or(0);
        if end > MOST_UNITS * MAX_CHUNK_BYTES {
            return Err(Error::invalid(format!(
                "need regions before byte {}, have byte {end}; write several files",
                MOST_UNITS * MAX_CHUNK_BYTES
            )));
        }
        let schema = MemorySchema::Own(own.regions.clone());
        let spec = CollectiveSpec { durable: false, ..work.spec(write, bytes_of_file(end), 0, schema) };
        work.run(file.file, spec, vec![own.array.clone()], None)?;
        if write {
            return Ok(());
        }
        own.finish_read();
        // A server knows the files that were removed last only.
        client.length(file.file).map(|_| ())
    })
}
