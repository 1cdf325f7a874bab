//! Random arrays that clients of the simulation write and read together, and the offset of each element, computed
//! one by one from the definitions.

use outcore_core::crash_disk::Random;
use outcore_core::{
    ChunkGrid, ChunkOrder, Distribution, ElementBox, GridSpec, Level, MemorySchema, Nested, Regions,
    StorageOrder,
};

/// Number of indices of a chunk along all dimensions but one, at most.
const MOST_INDICES: u64 = 40;

/// Draws an array of bytes at the start of a file, and the distribution of its elements over processes.
pub fn draw(random: &mut Random, length: u64, ranks: u64) -> (GridSpec, MemorySchema) {
    let is_mesh = random.once_in(2);
    let dims = random.between(1, 3);
    let mut counts: Vec<u64> = (0..dims).map(|_| random.between(1, 3)).collect();
    if counts.iter().product::<u64>() > length {
        counts.fill(1);
    }
    let mut left = length / counts.iter().product::<u64>();
    let longest = random.below(dims);
    let mut chunk = vec![1; counts.len()];
    for dim in (0..dims).filter(|&dim| dim != longest) {
        chunk[dim as usize] = random.between(1, left.min(MOST_INDICES));
        left /= chunk[dim as usize];
    }
    chunk[longest as usize] = left;
    let mut shape: Vec<u64> = counts.iter().zip(&chunk).map(|(count, length)| count * length).collect();
    if random.once_in(2) {
        for (total, &length) in shape.iter_mut().zip(&chunk) {
            *total -= random.below(length);
        }
    }
    let orders = [ChunkOrder::RowMajor, ChunkOrder::ColumnMajor, ChunkOrder::Hilbert, ChunkOrder::ZOrder];
    let grid = GridSpec {
        shape,
        chunk,
        item_bytes: 1,
        storage: if random.once_in(2) { StorageOrder::C } else { StorageOrder::F },
        chunk_order: random.pick(&orders).clone(),
        slot_align_bytes: 1,
        column_places: None,
        growing: false,
    };
    let schema =
        if is_mesh { draw_mesh(random, &grid.shape, ranks) } else { draw_boxes(random, &grid.shape, ranks) };
    (grid, schema)
}

fn draw_mesh(random: &mut Random, shape: &[u64], ranks: u64) -> MemorySchema {
    let dims: Vec<Distribution> = shape
        .iter()
        .map(|&length| match random.below(3) {
            0 => Distribution::Whole,
            1 => Distribution::Block,
            _ => Distribution::Cyclic(random.between(1, length)),
        })
        .collect();
    let mut left = ranks;
    let mesh = dims
        .iter()
        .filter(|&&dim| dim != Distribution::Whole)
        .map(|_| {
            let processes = random.between(1, left);
            left /= processes;
            processes
        })
        .collect();
    MemorySchema::Mesh { mesh, dims }
}

/// Boxes cut from the array. Some of them belong to no process.
fn draw_boxes(random: &mut Random, shape: &[u64], ranks: u64) -> MemorySchema {
    let mut boxes = vec![ElementBox { start: vec![0; shape.len()], shape: shape.to_vec() }];
    for _ in 0..random.below(8) {
        let number = random.below(boxes.len() as u64) as usize;
        let dim = random.below(shape.len() as u64) as usize;
        if boxes[number].shape[dim] > 1 {
            let at = random.between(1, boxes[number].shape[dim] - 1);
            let mut rest = boxes[number].clone();
            rest.start[dim] += at;
            rest.shape[dim] -= at;
            boxes[number].shape[dim] = at;
            boxes.push(rest);
        }
    }
    let mut own = vec![vec![]; ranks as usize];
    for each in boxes {
        if !random.once_in(4) {
            own[random.below(ranks) as usize].push(each);
        }
    }
    MemorySchema::Boxes(own)
}

/// Draws a file of bytes, and for each process bytes that it describes itself. Several processes may have the same bytes.
pub fn draw_own(random: &mut Random, length: u64, ranks: u64) -> (GridSpec, Vec<MemorySchema>) {
    let chunk_bytes = random.between(1, length);
    let whole = length / chunk_bytes * chunk_bytes;
    let schemas = (0..ranks).map(|_| draw_regions(random, whole)).collect();
    (GridSpec::of_bytes(whole, chunk_bytes), schemas)
}

/// Nested strides in ascending order, as many as fit before byte `end`.
fn draw_regions(random: &mut Random, end: u64) -> MemorySchema {
    let (mut parts, mut at) = (vec![], random.below(end));
    for _ in 0..random.below(6) {
        let run_bytes = random.between(1, end.div_ceil(4));
        let (mut levels, mut extent) = (vec![], run_bytes);
        for _ in 0..random.below(3) {
            let level = Level { count: random.between(1, 5), step_bytes: extent + random.below(100) };
            levels.insert(0, level);
            extent += (level.count - 1) * level.step_bytes;
        }
        if at + extent <= end {
            parts.push(Nested { offset: at, run_bytes, levels });
            at += extent + random.below(100);
        }
    }
    MemorySchema::Own(Regions::new(parts).unwrap_or_default())
}

/// The local arrays of a process: for each, its indices along each dimension.
pub fn owned(schema: &MemorySchema, shape: &[u64], rank: u64) -> Vec<Vec<Vec<u64>>> {
    match schema {
        MemorySchema::Boxes(boxes) => {
            let indices = |(&start, &count): (&u64, &u64)| (start..start + count).collect();
            let axes = |own: &ElementBox| own.start.iter().zip(&own.shape).map(indices).collect();
            boxes[rank as usize].iter().map(axes).collect()
        }
        MemorySchema::Own(regions) => {
            vec![vec![regions.runs().flat_map(|run| run.offset..run.offset + run.length).collect()]]
        }
        MemorySchema::Mesh { mesh, .. } if rank >= mesh.iter().product() => vec![],
        MemorySchema::Mesh { mesh, dims } => {
            let mut places = vec![];
            let mut left = rank;
            for &processes in mesh.iter().rev() {
                places.insert(0, (left % processes, processes));
                left /= processes;
            }
            let mut places = places.into_iter();
            let mut indices = |(distribution, &length): (&Distribution, &u64)| {
                let run = match distribution {
                    Distribution::Whole => return (0..length).collect(),
                    Distribution::Block => 0,
                    Distribution::Cyclic(run) => *run,
                };
                let (at, processes) = places.next().unwrap_or((0, 1));
                let run = if run == 0 { length.div_ceil(processes) } else { run };
                (0..length).filter(|index| index / run % processes == at).collect()
            };
            vec![dims.iter().zip(shape).map(&mut indices).collect()]
        }
    }
}

/// The offsets in the file of such an array's elements, with the last dimension fastest.
pub fn offsets_of(spec: &GridSpec, axes: &[Vec<u64>]) -> Vec<u64> {
    let Ok(grid) = ChunkGrid::new(spec.clone()) else { return vec![] };
    let (mut offsets, mut at, mut chunk) = (vec![], vec![0; axes.len()], vec![0; axes.len()]);
    if axes.iter().any(Vec::is_empty) {
        return offsets;
    }
    offsets.reserve_exact(axes.iter().map(Vec::len).product());
    let (mut chunk_offset, mut is_other_chunk) = (0, true);
    loop {
        let mut inside = 0;
        let next = |dim: usize| {
            let (index, length) = (axes[dim][at[dim]], spec.chunk[dim]);
            is_other_chunk |= chunk[dim] != index / length;
            chunk[dim] = index / length;
            inside = inside * length + index % length;
        };
        match spec.storage {
            StorageOrder::C => (0..axes.len()).for_each(next),
            StorageOrder::F => (0..axes.len()).rev().for_each(next),
        }
        if std::mem::take(&mut is_other_chunk) {
            chunk_offset = grid.locate(&chunk).offset;
        }
        offsets.push(chunk_offset + inside);
        let Some(dim) = (0..axes.len()).rev().find(|&dim| at[dim] + 1 < axes[dim].len()) else {
            return offsets;
        };
        at[dim] += 1;
        at[dim + 1..].fill(0);
    }
}

/// Runs of bytes within chunks that belong to no element.
pub fn padding_of(spec: &GridSpec) -> Vec<(u64, u64)> {
    let axes: Vec<Vec<u64>> = spec.shape.iter().map(|&length| (0..length).collect()).collect();
    let whole = spec.shape.iter().zip(&spec.chunk).map(|(&length, &chunk)| length.div_ceil(chunk) * chunk);
    let (mut found, mut at) = (vec![], 0);
    for (start, end) in runs_of(&offsets_of(spec, &axes)) {
        found.extend((at < start).then_some((at, start)));
        at = end;
    }
    let end = whole.product();
    found.extend((at < end).then_some((at, end)));
    found
}

/// Combines offsets into runs, each from a first byte to an end.
pub fn runs_of(offsets: &[u64]) -> Vec<(u64, u64)> {
    // The simulation's files are small: marking each byte takes less time than sorting offsets.
    let mut is_there = vec![false; offsets.iter().max().map_or(0, |&last| last as usize + 1)];
    offsets.iter().for_each(|&offset| is_there[offset as usize] = true);
    let mut runs = vec![];
    let mut at = 0;
    for same in is_there.chunk_by(|a, b| a == b) {
        let end = at + same.len() as u64;
        runs.extend(same[0].then_some((at, end)));
        at = end;
    }
    runs
}

#[cfg(test)]
mod tests {
    use outcore_core::{CollectivePlan, CollectiveSpec, PIECE_UNIT_BYTES, Stripes};

    use super::*;

    #[test]
    fn arrays_of_all_kinds_are_drawn_and_each_has_a_plan() {
        let mut random = Random::new(1);
        let (mut seen, mut holes) = (std::collections::BTreeSet::new(), 0);
        for id in 0..2000 {
            let (length, ranks) = (random.between(1, 5000), random.between(1, 4));
            let (grid, schema) = draw(&mut random, length, ranks);
            let offsets: Vec<u64> = (0..ranks)
                .flat_map(|rank| owned(&schema, &grid.shape, rank))
                .flat_map(|axes| offsets_of(&grid, &axes))
                .collect();
            let elements = grid.shape.iter().product::<u64>();
            let runs = runs_of(&offsets);
            assert!(runs.iter().all(|run| run.1 <= length), "it lies in the file");
            assert_eq!(
                runs.iter().map(|run| run.1 - run.0).sum::<u64>(),
                offsets.len() as u64,
                "nothing twice"
            );
            let is_mesh = matches!(schema, MemorySchema::Mesh { .. });
            assert!(!is_mesh || offsets.len() as u64 == elements, "a mesh has all of it");
            holes += u64::from((offsets.len() as u64) < elements);
            seen.insert((is_mesh, grid.shape.len(), grid.shape != grid.chunk));
            let spec = CollectiveSpec {
                id,
                write: true,
                ranks,
                grid,
                shard: 0,
                schema,
                patience_s: 1,
                durable: true,
                skips_disk: false,
                piece_bytes: PIECE_UNIT_BYTES,
                round_pieces: 1,
            };
            let stripes = Stripes::new(700, 2).unwrap();
            CollectivePlan::new(&spec, stripes).unwrap();
        }
        assert_eq!(seen.len(), 12);
        assert!(holes > 100);
    }
}
