//! Collectives of processes, which are threads here, over a link with minimal servers.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use outcore_client::{CollectivePart, Exchanged, LocalArray, Memory, PoolVolume};
use outcore_core::{
    Buffer, ChunkGrid, ChunkOrder, CollectivePlan, CollectiveSpec, Distribution, ElementBox, Error,
    ErrorKind, FileId, GridSpec, Hints, MemorySchema, OpenMode, PIECE_BYTES, ROUND_PIECES, Result, ServerId,
    StorageOrder, Stripes, Tile, Volume,
};
use outcore_memory::{Arena, Region};

use crate::collective_link::{CollectiveLink, ITEM_BYTES, Servers};
use crate::pool::sync;
use crate::pool_link::{MemoryLink, content};

const SERVERS: u32 = 2;

/// An array in a pool of two servers, with runs of slots in round-robin order.
pub struct Place {
    pub pool: PoolVolume<CollectiveLink>,
    pub link: Arc<CollectiveLink>,
    file: FileId,
    grid: GridSpec,
    stripes: Stripes,
}

pub fn place(shape: &[u64], chunk: &[u64], storage: StorageOrder) -> Place {
    padded_place(shape, chunk, storage, 4096)
}

/// The same with slots at multiples of `slot_align_bytes`.
fn padded_place(shape: &[u64], chunk: &[u64], storage: StorageOrder, slot_align_bytes: u64) -> Place {
    let grid = GridSpec {
        shape: shape.to_vec(),
        chunk: chunk.to_vec(),
        item_bytes: ITEM_BYTES,
        storage,
        chunk_order: ChunkOrder::RowMajor,
        slot_align_bytes,
        column_places: None,
        growing: false,
    };
    let unit = ChunkGrid::new(grid.clone()).unwrap().slot_bytes();
    let link = Arc::new(CollectiveLink { names: MemoryLink::new(SERVERS), servers: Servers::default() });
    let pool = PoolVolume::new(link.clone(), Arc::new(|| 1_000_000_000)).unwrap();
    let hints = Hints { stripe_unit_bytes: Some(unit), ..Hints::default() };
    pool.create_with("u", 0, false, hints).unwrap();
    let file = pool.open("u", OpenMode::ReadWrite).unwrap();
    Place { pool, link, file, grid, stripes: Stripes::new(unit, u64::from(SERVERS)).unwrap() }
}

pub fn spec(place: &Place, write: bool, ranks: u64, schema: &MemorySchema) -> CollectiveSpec {
    let (grid, schema) = (place.grid.clone(), schema.clone());
    CollectiveSpec {
        id: 9,
        write,
        ranks,
        grid,
        shard: 0,
        schema,
        patience_s: 60,
        durable: true,
        skips_disk: false,
        piece_bytes: PIECE_BYTES,
        round_pieces: ROUND_PIECES,
    }
}

/// An array of zeros. Its dimensions have the given order, slowest to fastest, with the last dimension
/// reversed. Each of the fastest elements is followed by a gap of `gap` elements.
pub fn local(shape: &[u64], slow_to_fast: &[usize], gap: u64) -> LocalArray {
    let (mut strides, mut stride, mut origin) = (vec![0; shape.len()], (1 + gap) * ITEM_BYTES, 0);
    for &dim in slow_to_fast.iter().rev() {
        strides[dim] = stride as i64;
        stride *= shape[dim];
    }
    if gap > 0 {
        let last = slow_to_fast[0];
        origin = strides[last] as usize * shape[last].saturating_sub(1) as usize;
        strides[last] = -strides[last];
    }
    let block = Arc::new(Arena::new(usize::MAX).allocate(stride.max(1) as usize).unwrap());
    Region::whole(block.clone()).zero(0, stride as usize);
    LocalArray { memory: Memory { block, origin, strides }, shape: shape.to_vec() }
}

/// Visits every element of a part, with its byte in the block and its index in the whole array.
fn each_element(array: &LocalArray, indices: &[Vec<u64>], visit: &mut impl FnMut(usize, &[u64])) {
    let mut at = vec![0; indices.len()];
    if array.shape.contains(&0) {
        return;
    }
    loop {
        let byte = at
            .iter()
            .zip(&array.memory.strides)
            .fold(array.memory.origin as i64, |byte, (&i, stride)| byte + i as i64 * stride);
        let index: Vec<u64> = at.iter().zip(indices).map(|(&i, list)| list[i]).collect();
        visit(byte as usize, &index);
        let Some(dim) = (0..at.len()).rev().find(|&dim| at[dim] + 1 < indices[dim].len()) else { return };
        at[dim] += 1;
        at[dim + 1..].fill(0);
    }
}

fn value(index: &[u64]) -> u64 {
    index.iter().fold(7, |value, i| value * 1_000_003 + i)
}

/// For each process, part and dimension: the indices that the process owns.
pub type Owned = Vec<Vec<Vec<Vec<u64>>>>;

pub fn arrays(owned: &[Vec<Vec<u64>>], slow_to_fast: &[usize], gap: u64) -> Vec<LocalArray> {
    let array = |indices: &Vec<Vec<u64>>| {
        local(&indices.iter().map(|list| list.len() as u64).collect::<Vec<_>>(), slow_to_fast, gap)
    };
    owned.iter().map(array).collect()
}

/// Runs a collective with all processes, each on its own thread.
pub fn together(place: &Place, parts: &[CollectivePart]) -> Vec<Result<Vec<Exchanged>>> {
    let one = |part| place.pool.collective(place.file, part, &mut || Ok(()));
    std::thread::scope(|scope| {
        let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || one(part))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

pub fn part(spec: &CollectiveSpec, rank: usize, arrays: Vec<LocalArray>) -> CollectivePart {
    let (rank, memory_bytes) = (rank as u64, PIECE_BYTES as usize);
    CollectivePart { spec: spec.clone(), rank, arrays, memory_bytes, offers_memory: true, trace: None }
}

/// Writes an array by one schema and reads it by another. Both times the messages match the plan.
fn check(
    place: &Place,
    (schema, owned): (&MemorySchema, &Owned),
    (other, other_owned): (&MemorySchema, &Owned),
    slow_to_fast: &[usize],
    gap: u64,
) {
    let written: Vec<CollectivePart> = owned
        .iter()
        .enumerate()
        .map(|(rank, parts)| {
            let arrays = arrays(parts, slow_to_fast, gap);
            for (array, indices) in arrays.iter().zip(parts) {
                let mut block = Region::whole(array.memory.block.clone());
                each_element(array, indices, &mut |byte, index| {
                    block.copy_in(byte, &value(index).to_le_bytes());
                });
            }
            part(&spec(place, true, owned.len() as u64, schema), rank, arrays)
        })
        .collect();
    check_counts(place, &written, &together(place, &written));
    check_files(place);
    // The same with a server that reads memory, after the file was cleared.
    place.link.servers.files.lock().unwrap().clear();
    place.link.servers.is_local.store(true, Ordering::Relaxed);
    check_direct_counts(place, &written, &together(place, &written));
    check_files(place);
    let read: Vec<CollectivePart> = other_owned
        .iter()
        .enumerate()
        .map(|(rank, parts)| {
            let arrays = arrays(parts, slow_to_fast, gap);
            part(&spec(place, false, other_owned.len() as u64, other), rank, arrays)
        })
        .collect();
    check_counts(place, &read, &together(place, &read));
    place.link.servers.is_local.store(false, Ordering::Relaxed);
    for (part, indices) in read.iter().zip(other_owned) {
        for (array, indices) in part.arrays.iter().zip(indices) {
            let block = Region::whole(array.memory.block.clone());
            let (mut expected, mut element) = (content(&block), [0; 8]);
            each_element(array, indices, &mut |byte, index| {
                block.copy_out(byte, &mut element);
                assert_eq!(u64::from_le_bytes(element), value(index), "{index:?} of process {}", part.rank);
                expected[byte..byte + 8].fill(0);
            });
            assert!(expected.iter().all(|&byte| byte == 0), "what is between elements is left alone");
        }
    }
}

/// A share with runs of 1 KiB in memory and of 64 bytes in the piece, on average, needs no messages.
fn check_direct_counts(place: &Place, parts: &[CollectivePart], found: &[Result<Vec<Exchanged>>]) {
    let plan = CollectivePlan::new(&parts[0].spec, place.stripes).unwrap();
    for (part, found) in parts.iter().zip(found) {
        for (exchanged, entry) in found.as_ref().unwrap().iter().zip(0..) {
            let (mut bytes, mut shares, mut rounds) = (0, 0, 0);
            for (_, pieces) in plan.rounds_of(entry, part.rank) {
                let before = shares;
                for piece in pieces {
                    let share = plan.share(&plan.piece(entry, piece), part.rank);
                    let (mut memory, mut disk) = (vec![], vec![]);
                    for tile in &share.tiles {
                        each_byte(part, tile, &mut |at, in_piece| {
                            memory.push(at);
                            disk.push(in_piece);
                        });
                    }
                    let is_long = |places: &[u64], least: u64| {
                        let runs = 1 + places.windows(2).filter(|two| two[0] + 1 != two[1]).count() as u64;
                        runs <= 1.max(places.len() as u64 / least)
                    };
                    if is_long(&memory, 1024) && is_long(&disk, 64) {
                        bytes += share.bytes;
                    } else {
                        shares += 1;
                    }
                }
                rounds += u64::from(shares > before);
            }
            assert_eq!((exchanged.direct_bytes, exchanged.shares), (bytes, shares));
            assert_eq!(exchanged.messages, 2 + rounds + shares);
        }
    }
}

/// Visits the bytes of a tile, with their places in memory and in the piece.
fn each_byte(part: &CollectivePart, tile: &Tile, visit: &mut impl FnMut(u64, u64)) {
    let memory = &part.arrays[tile.part].memory;
    let start = memory.block.as_ptr() as u64 + memory.origin as u64;
    let steps = tile.local.iter().zip(&memory.strides);
    let first = steps.fold(start, |at, (&i, &stride)| at.wrapping_add_signed(i as i64 * stride));
    let mut places = vec![(first, tile.at)];
    for level in &tile.levels {
        let stride = memory.strides[level.dim] * level.local_step as i64;
        let next = |(at, in_piece): (u64, u64)| {
            (0..level.count)
                .map(move |i| (at.wrapping_add_signed(i as i64 * stride), in_piece + i * level.piece_step))
        };
        places = places.into_iter().flat_map(next).collect();
    }
    for (at, in_piece) in places {
        (0..ITEM_BYTES).for_each(|byte| visit(at + byte, in_piece + byte));
    }
}

fn check_counts(place: &Place, parts: &[CollectivePart], found: &[Result<Vec<Exchanged>>]) {
    let plan = CollectivePlan::new(&parts[0].spec, place.stripes).unwrap();
    for (part, found) in parts.iter().zip(found) {
        for (exchanged, entry) in found.as_ref().unwrap().iter().zip(0..) {
            let rounds = plan.rounds_of(entry, part.rank);
            let shares: u64 = rounds.iter().map(|(_, pieces)| pieces.len() as u64).sum();
            assert_eq!(exchanged.shares, shares);
            assert_eq!(exchanged.messages, 2 + rounds.len() as u64 + shares);
        }
    }
}

/// Checks that every element is at the place that the grid and the stripes give.
fn check_files(place: &Place) {
    let chunks = ChunkGrid::new(place.grid.clone()).unwrap();
    let files = place.link.servers.files.lock().unwrap();
    let [rows, columns] = place.grid.shape[..] else { panic!("two dimensions") };
    for index in (0..rows).flat_map(|row| (0..columns).map(move |column| [row, column])) {
        let [height, width] = place.grid.chunk[..] else { panic!("two dimensions") };
        let (row, column) = (index[0] % height, index[1] % width);
        let number = match place.grid.storage {
            StorageOrder::C => row * width + column,
            StorageOrder::F => column * height + row,
        };
        let slot = chunks.locate(&[index[0] / height, index[1] / width]);
        let (entry, at) = place.stripes.locate(slot.offset + number * ITEM_BYTES);
        let bytes = &files[&entry][at as usize..at as usize + 8];
        assert_eq!(bytes, value(&index).to_le_bytes(), "{index:?}");
    }
}

/// Rows in two blocks, columns in cyclic runs of three over two processes.
pub fn mesh(rows: u64, columns: u64) -> (MemorySchema, Owned) {
    let dims = vec![Distribution::Block, Distribution::Cyclic(3)];
    let half = rows.div_ceil(2);
    let owned = (0..4)
        .map(|rank| {
            let own_rows = (0..rows).filter(|row| row / half == rank / 2).collect();
            let own_columns = (0..columns).filter(|column| column / 3 % 2 == rank % 2).collect();
            vec![vec![own_rows, own_columns]]
        })
        .collect();
    (MemorySchema::Mesh { mesh: vec![2, 2], dims }, owned)
}

/// The first process has two boxes, the second has none, the third has the rest.
fn boxes(rows: u64, columns: u64) -> (MemorySchema, Owned) {
    let (third, half) = (rows / 3, columns / 2);
    let cuts = [
        vec![(0..third, 0..columns), (third..rows, half..columns)],
        vec![],
        vec![(third..rows, 0..half), (0..0, 0..columns)],
    ];
    let own = |(rows, columns): &(std::ops::Range<u64>, std::ops::Range<u64>)| {
        let shape = vec![rows.end - rows.start, columns.end - columns.start];
        ElementBox { start: vec![rows.start, columns.start], shape }
    };
    let schema = MemorySchema::Boxes(cuts.iter().map(|cuts| cuts.iter().map(own).collect()).collect());
    let owned = cuts
        .iter()
        .map(|cuts| {
            cuts.iter()
                .map(|(rows, columns)| vec![rows.clone().collect(), columns.clone().collect()])
                .collect()
        })
        .collect();
    (schema, owned)
}

#[test]
fn shares_come_from_and_go_to_any_memory() {
    let (rows, columns) = (61, 47);
    let (mesh, boxes) = (mesh(rows, columns), boxes(rows, columns));
    for storage in [StorageOrder::C, StorageOrder::F] {
        for (slow_to_fast, gap) in [([0, 1], 0), ([1, 0], 0), ([0, 1], 2), ([1, 0], 1)] {
            let place = place(&[rows, columns], &[16, 10], storage);
            check(&place, (&mesh.0, &mesh.1), (&boxes.0, &boxes.1), &slow_to_fast, gap);
            let again = self::place(&[rows, columns], &[16, 10], storage);
            check(&again, (&boxes.0, &boxes.1), (&mesh.0, &mesh.1), &slow_to_fast, gap);
        }
    }
}

#[test]
fn many_rounds_go_through_little_memory() {
    // 20 MiB in chunks of 5 MiB: 10 pieces and two rounds on each of two servers.
    let (rows, columns) = (2048, 1280);
    let (mesh, boxes) = (mesh(rows, columns), boxes(rows, columns));
    for gap in [0, 1] {
        let place = place(&[rows, columns], &[512, 1280], StorageOrder::C);
        check(&place, (&boxes.0, &boxes.1), (&mesh.0, &mesh.1), &[0, 1], gap);
    }
}

#[test]
fn rounds_without_shares_cost_nothing() {
    // The only elements lie 2^56 bytes from the beginning: a process that examined each piece would never end.
    let place = padded_place(&[65536, 2], &[1, 2], StorageOrder::C, 1 << 40);
    let last = ElementBox { start: vec![65535, 0], shape: vec![1, 2] };
    let schema = MemorySchema::Boxes(vec![vec![], vec![last]]);
    let moved = |write, array: LocalArray| {
        let spec = spec(&place, write, 2, &schema);
        let parts = [part(&spec, 0, vec![]), part(&spec, 1, vec![array])];
        check_counts(&place, &parts, &together(&place, &parts));
    };
    let (given, taken) = (local(&[1, 2], &[0, 1], 0), local(&[1, 2], &[0, 1], 0));
    Region::whole(given.memory.block.clone()).copy_in(0, &[7; 16]);
    moved(true, given);
    moved(false, taken.clone());
    assert_eq!(content(&Region::whole(taken.memory.block))[..16], [7; 16]);
}

#[test]
fn long_runs_are_not_copied() {
    let place = place(&[2048, 1024], &[256, 1024], StorageOrder::C);
    let dims = vec![Distribution::Whole, Distribution::Block];
    let schema = MemorySchema::Mesh { mesh: vec![2], dims };
    let copied = |gap| {
        let spec = spec(&place, true, 2, &schema);
        let parts = [0, 1].map(|rank| part(&spec, rank, vec![local(&[2048, 512], &[0, 1], gap)]));
        let found = together(&place, &parts);
        let exchanged = found.into_iter().flat_map(Result::unwrap);
        exchanged.fold((0, 0), |(bytes, copied), each| (bytes + each.bytes, copied + each.copied_bytes))
    };
    assert_eq!(copied(0), (16 << 20, 0));
    assert_eq!(copied(1), (16 << 20, 16 << 20));
}

#[test]
fn a_block_that_lies_as_its_chunk_does_is_not_copied_wherever_pieces_are_cut() {
    // Rows of 5608 bytes: pieces of 1 MiB start and end inside rows.
    let place = place(&[600, 701], &[600, 701], StorageOrder::C);
    let schema = MemorySchema::Mesh { mesh: vec![], dims: vec![Distribution::Whole; 2] };
    let part = part(&spec(&place, true, 1, &schema), 0, vec![local(&[600, 701], &[0, 1], 0)]);
    let exchanged = together(&place, &[part]).remove(0).unwrap();
    assert_eq!(exchanged.iter().map(|each| each.bytes).sum::<u64>(), 600 * 701 * 8);
    assert_eq!(exchanged.iter().map(|each| each.copied_bytes).sum::<u64>(), 0);
}

#[test]
fn all_learn_why_one_does_not_go_on() {
    let place = place(&[64, 64], &[16, 64], StorageOrder::C);
    let (schema, owned) = mesh(64, 64);
    let spec = spec(&place, true, 4, &schema);
    let make = |rank: usize| part(&spec, rank, arrays(&owned[rank], &[0, 1], 0));
    let errors = |parts: [CollectivePart; 4], stopped: Option<u64>| -> Vec<Error> {
        place.link.servers.joined.lock().unwrap().clear();
        let one = |part: &CollectivePart| {
            let mut go_on = || match stopped {
                Some(rank) if rank == part.rank => Err(Error::new(ErrorKind::Io, "stopped by Ctrl-C")),
                _ => Ok(()),
            };
            place.pool.collective(place.file, part, &mut go_on).unwrap_err()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = parts.iter().map(|part| scope.spawn(move || one(part))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    };
    for error in errors([0, 1, 2, 3].map(make), Some(2)) {
        assert!(error.message.contains("stopped by Ctrl-C"), "{error}");
    }
    let mut parts = [0, 1, 2, 3].map(make);
    parts[3].arrays[0].shape[0] += 1;
    for error in errors(parts, None) {
        assert!(error.message.contains("process 3 has arrays of the shapes [[32,"), "{error}");
    }
    let mut parts = [0, 1, 2, 3].map(make);
    parts[1].memory_bytes = 4096;
    for error in errors(parts, None) {
        assert_eq!(error.kind, ErrorKind::Budget, "{error}");
    }
    let mut parts = [0, 1, 2, 3].map(make);
    parts[1].spec.patience_s += 1;
    for error in errors(parts, None) {
        assert!(error.message.contains("does not agree"), "{error}");
    }
    let full = Error::new(ErrorKind::DiskFull, "no room");
    *place.link.servers.fault.lock().unwrap() = Some((ServerId(1), 2, full));
    for error in errors([0, 1, 2, 3].map(make), None) {
        assert_eq!(error.kind, ErrorKind::DiskFull, "{error}");
    }
}

#[test]
fn who_does_not_join_tells_the_others_by_the_servers() {
    let place = place(&[64, 64], &[16, 64], StorageOrder::C);
    let (schema, owned) = mesh(64, 64);
    let spec = spec(&place, true, 4, &schema);
    let parts: Vec<_> = (0..3).map(|rank| part(&spec, rank, arrays(&owned[rank], &[0, 1], 0))).collect();
    let servers: Vec<ServerId> = (0..SERVERS).map(ServerId).collect();
    let found = std::thread::scope(|scope| {
        let others = scope.spawn(|| together(&place, &parts));
        let have_joined = || {
            let joined = place.link.servers.joined.lock().unwrap();
            servers.iter().all(|id| joined.get(id).is_some_and(|one| one.ranks.len() == 3))
        };
        while !have_joined() {
            std::thread::yield_now();
        }
        place.pool.abandon(&servers, &[spec.id], 3, &Error::new(ErrorKind::Denied, "may not open it"));
        others.join().unwrap()
    });
    for result in found {
        let error = result.unwrap_err();
        assert_eq!(error.kind, ErrorKind::Denied, "{error}");
        assert!(error.message.contains("process 3: may not open it"), "{error}");
    }
}

#[test]
fn servers_that_do_not_begin_are_given_up() {
    let place = place(&[64, 64], &[16, 64], StorageOrder::C);
    let (schema, owned) = mesh(64, 64);
    // One process never joins, and the servers never report it: they may restart their wait repeatedly.
    let spec = CollectiveSpec { patience_s: 1, ..spec(&place, true, 4, &schema) };
    let parts: Vec<_> = (0..3).map(|rank| part(&spec, rank, arrays(&owned[rank], &[0, 1], 0))).collect();
    let found = together(&place, &parts);
    let told = |result: &Result<_>| result.as_ref().unwrap_err().message.clone();
    assert!(
        found.iter().any(|result| told(result).contains("server 0 and server 1 did not begin within 4 s")),
        "{found:?}"
    );
    for result in &found {
        assert!(told(result).contains("did not begin"), "{found:?}");
    }
}

#[test]
fn a_server_that_was_started_again_is_told_who_gives_up() {
    let place = place(&[64, 64], &[16, 64], StorageOrder::C);
    let (schema, owned) = mesh(64, 64);
    let spec = spec(&place, true, 4, &schema);
    let parts: Vec<_> = (0..4).map(|rank| part(&spec, rank, arrays(&owned[rank], &[0, 1], 0))).collect();
    for (kind, is_told) in [(ErrorKind::Lost, true), (ErrorKind::DiskFull, false)] {
        place.link.servers.joined.lock().unwrap().clear();
        let error = Error::new(kind, "injected");
        *place.link.servers.fault.lock().unwrap() = Some((ServerId(1), 2, error));
        for result in together(&place, &parts) {
            assert!(result.unwrap_err().message.contains("injected"));
        }
        let abandoned = std::mem::take(&mut *place.link.servers.abandoned.lock().unwrap());
        assert_eq!(abandoned.contains(&(ServerId(1), 2)), is_told);
    }
}

#[test]
fn a_sync_after_a_collective_that_is_not_durable_tells_of_a_restart() {
    let (schema, owned) = mesh(64, 64);
    for (write, durable, is_lost) in [(true, true, false), (true, false, true), (false, false, false)] {
        let place = place(&[64, 64], &[16, 64], StorageOrder::C);
        let spec = CollectiveSpec { durable, ..spec(&place, write, 4, &schema) };
        let parts: Vec<_> = (0..4).map(|rank| part(&spec, rank, arrays(&owned[rank], &[0, 1], 0))).collect();
        for result in together(&place, &parts) {
            result.unwrap();
        }
        place.link.names.restart(1);
        let synced = sync(&place.pool, place.file);
        assert_eq!(synced.err().map(|error| error.kind), is_lost.then_some(ErrorKind::Lost));
        sync(&place.pool, place.file).unwrap();
    }
}
