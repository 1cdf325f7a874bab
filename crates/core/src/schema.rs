//! The distribution of an array's elements over the memory of the processes of a parallel program.

use crate::{Error, Regions, Result};

/// Maximum number of processes of a collective.
pub const MAX_RANKS: u64 = 1 << 16;

/// The distribution of one dimension, in the terms of High Performance Fortran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Distribution {
    /// `*`: not distributed.
    Whole,
    /// `BLOCK`: one run of ⌈n/p⌉ for each process; the last processes may have fewer indices, or none.
    Block,
    /// `CYCLIC(k)`: runs of k in round-robin order.
    Cyclic(u64),
}

/// A box of array elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElementBox {
    /// Index of the first element.
    pub start: Vec<u64>,
    /// Number of elements along each dimension; 0 makes the box empty.
    pub shape: Vec<u64>,
}

/// The elements that each process has in its memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemorySchema {
    /// A distribution over a mesh of processes, numbered with the last dimension fastest. Processes beyond
    /// the mesh have no elements.
    Mesh {
        /// Number of processes along each distributed dimension, in order.
        mesh: Vec<u64>,
        /// The distribution of each dimension.
        dims: Vec<Distribution>,
    },
    /// The boxes of each process. They may overlap for reads, as ghost cells do, but not for writes.
    Boxes(Vec<Vec<ElementBox>>),
    /// The bytes of a file that the process with this description has in one array, in ascending order: each process
    /// describes its own only. Several processes may have the same byte. If they write it, each block of 64 KiB gets the
    /// bytes of one of them.
    Own(Regions),
}

/// One process's indices along one dimension: runs of `run` indices at distances of `step`, from `start` to
/// `end`. In its memory the runs are contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Axis {
    start: u64,
    run: u64,
    step: u64,
    end: u64,
}

/// Runs of one length in the intersection of an [`Axis`] and an interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    /// The first index in the array.
    pub start: u64,
    /// Its index in the memory of the process.
    pub local: u64,
    /// Number of runs, and the distance between them in indices.
    pub count: u64,
    pub step: u64,
    /// Indices per run.
    pub run: u64,
    /// Distance between runs in memory, in indices.
    pub local_step: u64,
}

impl Axis {
    fn contiguous(start: u64, length: u64) -> Self {
        Self { start, run: length, step: length.max(1), end: start + length }
    }

    /// Number of indices.
    pub fn count(&self) -> u64 {
        let span = self.end.saturating_sub(self.start);
        span / self.step * self.run + (span % self.step).min(self.run)
    }

    /// The intersection with `low..high`: at most a partial run, whole runs, and a partial run.
    pub(crate) fn overlaps(&self, low: u64, high: u64) -> Vec<Overlap> {
        let (low, high) = (low.max(self.start), high.min(self.end));
        let mut found = Vec::new();
        let mut at = low;
        while at < high {
            let (number, within) = ((at - self.start) / self.step, (at - self.start) % self.step);
            if within >= self.run {
                at = at.saturating_add(self.step - within);
                continue;
            }
            let left = (self.run - within).min(high - at);
            let whole =
                if within == 0 && left == self.run { 1 + (high - at - self.run) / self.step } else { 1 };
            found.push(Overlap {
                start: at,
                local: number * self.run + within,
                count: whole,
                step: self.step,
                run: left,
                local_step: self.run,
            });
            // Continue at the next run, or at the rest of this one.
            at += (whole - 1) * self.step + left;
        }
        found
    }
}

impl MemorySchema {
    /// Refuses a schema that does not fit an array of this shape and this number of processes.
    pub fn check(&self, shape: &[u64], ranks: u64) -> Result<()> {
        if ranks == 0 || ranks > MAX_RANKS {
            return Err(Error::invalid(format!("need 1 to {MAX_RANKS} processes, have {ranks}")));
        }
        match self {
            Self::Mesh { mesh, dims } => check_mesh(mesh, dims, shape, ranks),
            Self::Boxes(boxes) => check_boxes(boxes, shape, ranks),
            Self::Own(_) => check_bytes(shape),
        }
    }

    /// Refuses a schema in which two boxes write the same element. The schema must have passed
    /// [`MemorySchema::check`].
    pub fn check_disjoint(&self, shape: &[u64]) -> Result<()> {
        match self {
            Self::Mesh { .. } | Self::Own(_) => Ok(()),
            Self::Boxes(boxes) => check_disjoint(boxes, shape.len()),
        }
    }

    /// An upper bound of the number of times that a process has the same element: boxes of a read may overlap.
    /// The schema must have passed [`MemorySchema::check`].
    pub fn most_copies(&self, shape: &[u64]) -> u64 {
        match self {
            Self::Mesh { .. } | Self::Own(_) => 1,
            Self::Boxes(boxes) => boxes.iter().map(|own| most_overlaps(own, shape.len())).max().unwrap_or(1),
        }
    }

    /// The parts of a process: each is one array in its memory, with an [`Axis`] for each dimension. The
    /// result includes empty parts. The schema must have passed [`MemorySchema::check`].
    pub fn parts(&self, shape: &[u64], rank: u64) -> Vec<Vec<Axis>> {
        match self {
            Self::Mesh { mesh, dims } => {
                if rank >= mesh.iter().product() {
                    return vec![];
                }
                vec![mesh_part(mesh, dims, shape, rank)]
            }
            Self::Boxes(boxes) => {
                let axes = |part: &ElementBox| {
                    part.start
                        .iter()
                        .zip(&part.shape)
                        .map(|(&start, &count)| Axis::contiguous(start, count))
                        .collect()
                };
                boxes[rank as usize].iter().map(axes).collect()
            }
            Self::Own(regions) => vec![vec![Axis::contiguous(0, regions.total_bytes())]],
        }
    }
}

fn mesh_part(mesh: &[u64], dims: &[Distribution], shape: &[u64], rank: u64) -> Vec<Axis> {
    let (mut axes, mut left, mut level) = (Vec::with_capacity(shape.len()), rank, mesh.len());
    for (distribution, &n) in dims.iter().zip(shape).rev() {
        axes.push(match distribution {
            Distribution::Whole => Axis::contiguous(0, n),
            Distribution::Block | Distribution::Cyclic(_) => {
                level -= 1;
                let (processes, at) = (mesh[level], left % mesh[level]);
                left /= processes;
                let run = match distribution {
                    Distribution::Cyclic(run) => *run,
                    _ => n.div_ceil(processes).max(1),
                };
                // Large values saturate; the check keeps the rest from overflowing.
                Axis { start: at.saturating_mul(run), run, step: run.saturating_mul(processes), end: n }
            }
        });
    }
    axes.reverse();
    axes
}

fn check_mesh(mesh: &[u64], dims: &[Distribution], shape: &[u64], ranks: u64) -> Result<()> {
    let distributed = dims.iter().filter(|&&dim| dim != Distribution::Whole).count();
    if dims.len() != shape.len() || distributed != mesh.len() {
        return Err(Error::invalid(format!(
            "a schema of {} dimensions, {distributed} of them distributed over a mesh of {}, does not fit an array of {} \
             dimensions; give each dimension its word, and the mesh a number for each that is not *",
            dims.len(),
            mesh.len(),
            shape.len()
        )));
    }
    if dims.contains(&Distribution::Cyclic(0)) {
        return Err(Error::invalid("need runs of at least 1 in CYCLIC, have 0"));
    }
    let processes = mesh.iter().try_fold(1_u64, |product, &count| product.checked_mul(count));
    match processes {
        Some(processes) if processes > 0 && processes <= ranks => Ok(()),
        _ => Err(Error::invalid(format!(
            "need {mesh:?} processes for the mesh, have {ranks}; start as many, or choose a smaller mesh"
        ))),
    }
}

fn check_bytes(shape: &[u64]) -> Result<()> {
    if shape.len() == 1 {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "need a file of bytes for regions, have an array of shape {shape:?}; pass boxes"
    )))
}

fn check_boxes(boxes: &[Vec<ElementBox>], shape: &[u64], ranks: u64) -> Result<()> {
    if boxes.len() as u64 != ranks {
        return Err(Error::invalid(format!(
            "need the boxes of {ranks} processes, have those of {}",
            boxes.len()
        )));
    }
    for (rank, part) in ranked(boxes) {
        let fits = part.start.len() == shape.len()
            && part.shape.len() == shape.len()
            && part
                .start
                .iter()
                .zip(&part.shape)
                .zip(shape)
                .all(|((&start, &count), &n)| start.checked_add(count).is_some_and(|end| end <= n));
        if !fits {
            return Err(Error::invalid(format!(
                "the box from {:?} on of shape {:?} of process {rank} is not in an array of shape {shape:?}",
                part.start, part.shape
            )));
        }
    }
    Ok(())
}

/// Each box with the number of its process.
fn ranked(boxes: &[Vec<ElementBox>]) -> impl Iterator<Item = (usize, &ElementBox)> {
    boxes.iter().enumerate().flat_map(|(rank, own)| own.iter().map(move |part| (rank, part)))
}

fn check_disjoint(boxes: &[Vec<ElementBox>], dims: usize) -> Result<()> {
    // Sort along the first dimension: only boxes that begin before a box ends there can overlap it.
    let mut sorted: Vec<(usize, &ElementBox)> =
        ranked(boxes).filter(|(_, part)| !part.shape.contains(&0)).collect();
    sorted.sort_by_key(|(_, part)| part.start[0]);
    for (number, (rank, part)) in sorted.iter().enumerate() {
        let end = part.start[0] + part.shape[0];
        for (other_rank, other) in sorted[number + 1..].iter().take_while(|(_, other)| other.start[0] < end) {
            if overlap(part, other, dims) {
                return Err(Error::invalid(format!(
                    "the box from {:?} on of shape {:?} of process {rank} and the box from {:?} on of shape {:?} of process \
                     {other_rank} overlap, and a write takes each element from one process; leave ghost cells out of the boxes of a write",
                    part.start, part.shape, other.start, other.shape
                )));
            }
        }
    }
    Ok(())
}

/// Whether two boxes have an element in common.
fn overlap(part: &ElementBox, other: &ElementBox, dims: usize) -> bool {
    (0..dims).all(|dim| {
        part.start[dim] < other.start[dim] + other.shape[dim]
            && other.start[dim] < part.start[dim] + part.shape[dim]
    })
}

/// Pairs of boxes that [`most_overlaps`] compares, at most; they take about 0.1 s.
const MOST_COMPARED: usize = 10_000_000;

/// The largest number of boxes of one process that overlap one of its boxes, which counts too. With too many boxes to
/// compare, the number of all boxes.
fn most_overlaps(own: &[ElementBox], dims: usize) -> u64 {
    let mut sorted: Vec<&ElementBox> = own.iter().filter(|part| !part.shape.contains(&0)).collect();
    sorted.sort_by_key(|part| part.start[0]);
    let (mut counts, mut compared) = (vec![1; sorted.len()], 0);
    for (number, part) in sorted.iter().enumerate() {
        let end = part.start[0] + part.shape[0];
        let later = sorted.iter().enumerate().skip(number + 1);
        for (at, other) in later.take_while(|(_, other)| other.start[0] < end) {
            compared += 1;
            if compared > MOST_COMPARED {
                return sorted.len() as u64;
            }
            if overlap(part, other, dims) {
                counts[number] += 1;
                counts[at] += 1;
            }
        }
    }
    counts.into_iter().max().unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The indices of a process, in the order of its memory.
    fn indices(distribution: Distribution, n: u64, processes: u64, at: u64) -> Vec<u64> {
        let owner = |index: u64| match distribution {
            Distribution::Whole => at,
            Distribution::Block => index / n.div_ceil(processes),
            Distribution::Cyclic(run) => index / run % processes,
        };
        (0..n).filter(|&index| owner(index) == at).collect()
    }

    fn distribution() -> impl Strategy<Value = Distribution> {
        prop_oneof![
            Just(Distribution::Whole),
            Just(Distribution::Block),
            (1_u64..6).prop_map(Distribution::Cyclic)
        ]
    }

    proptest! {
        #[test]
        fn overlaps_are_those_of_the_definition(
            distribution in distribution(), n in 1_u64..40, processes in 1_u64..6, low in 0_u64..40, high in 0_u64..45,
        ) {
            let mesh = if distribution == Distribution::Whole { vec![] } else { vec![processes] };
            let schema = MemorySchema::Mesh { mesh, dims: vec![distribution] };
            schema.check(&[n], processes).unwrap();
            for at in 0..processes {
                let Some(part) = schema.parts(&[n], at).pop() else { continue };
                let expected = indices(distribution, n, processes, at);
                prop_assert_eq!(part[0].count(), expected.len() as u64);
                let mut found = vec![];
                for overlap in part[0].overlaps(low, high) {
                    for run in 0..overlap.count {
                        for i in 0..overlap.run {
                            let local = overlap.local + run * overlap.local_step + i;
                            found.push((overlap.start + run * overlap.step + i, local));
                        }
                    }
                }
                let all = expected.into_iter().zip(0..);
                let expected: Vec<(u64, u64)> = all.filter(|(index, _)| (low..high).contains(index)).collect();
                prop_assert_eq!(found, expected);
            }
        }
    }

    #[test]
    fn a_mesh_counts_with_its_last_dimension_fastest() {
        let dims = vec![Distribution::Block, Distribution::Whole, Distribution::Cyclic(2)];
        let schema = MemorySchema::Mesh { mesh: vec![2, 3], dims };
        schema.check(&[5, 4, 9], 7).unwrap();
        let counts = |rank| -> Vec<Vec<u64>> {
            schema.parts(&[5, 4, 9], rank).iter().map(|part| part.iter().map(Axis::count).collect()).collect()
        };
        assert_eq!(counts(0), [[3, 4, 4]], "indices 0 1 6 7 of the last");
        assert_eq!(counts(2), [[3, 4, 2]], "indices 4 5");
        assert_eq!(counts(4), [[2, 4, 3]], "rows 3 4, indices 2 3 8");
        assert!(counts(6).is_empty());
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let mesh = |mesh: &[u64], dims: &[Distribution]| {
            MemorySchema::Mesh { mesh: mesh.to_vec(), dims: dims.to_vec() }
                .check(&[4, 4], 4)
                .map_err(|e| e.message)
        };
        use Distribution::{Block, Cyclic, Whole};
        assert!(mesh(&[2, 2], &[Block, Block]).is_ok());
        for (numbers, dims) in [
            (&[2, 2][..], &[Block, Whole][..]),
            (&[2], &[Block]),
            (&[5], &[Block, Whole]),
            (&[0], &[Block, Whole]),
            (&[u64::MAX, 2], &[Block, Block]),
            (&[2], &[Cyclic(0), Whole]),
        ] {
            assert!(mesh(numbers, dims).is_err(), "{numbers:?} {dims:?}");
        }
        let part =
            |start: [u64; 2], shape: [u64; 2]| ElementBox { start: start.to_vec(), shape: shape.to_vec() };
        let boxes =
            |boxes: Vec<Vec<ElementBox>>| MemorySchema::Boxes(boxes).check(&[4, 4], 2).map_err(|e| e.message);
        assert!(
            boxes(vec![vec![part([0, 0], [4, 2]), part([0, 3], [0, 1])], vec![part([1, 2], [3, 2])]]).is_ok()
        );
        assert!(boxes(vec![vec![]]).unwrap_err().contains("need the boxes of 2 processes, have those of 1"));
        assert!(boxes(vec![vec![part([0, 3], [1, 2])], vec![]]).unwrap_err().contains("process 0 is not in"));
        assert!(boxes(vec![vec![part([u64::MAX, 0], [2, 2])], vec![]]).is_err());
    }

    #[test]
    fn boxes_may_overlap_where_they_are_read_only() {
        let part = |start: u64, count: u64| ElementBox { start: vec![start], shape: vec![count] };
        let schema = |boxes: &[&[ElementBox]]| {
            let schema = MemorySchema::Boxes(boxes.iter().map(|own| own.to_vec()).collect());
            schema.check(&[9], boxes.len() as u64).unwrap();
            schema.check_disjoint(&[9]).map_err(|e| e.message)
        };
        assert!(schema(&[&[part(4, 2), part(0, 4)], &[part(6, 3), part(5, 0)]]).is_ok());
        let shared = schema(&[&[part(0, 5)], &[part(4, 2)]]).unwrap_err();
        assert!(shared.contains("of process 0 and") && shared.contains("process 1 overlap"), "{shared}");
        assert!(schema(&[&[part(0, 5), part(3, 1)], &[]]).is_err(), "of one process");
        let mesh = MemorySchema::Mesh { mesh: vec![2], dims: vec![Distribution::Block] };
        assert!(mesh.check_disjoint(&[9]).is_ok());
    }

    #[test]
    fn copies_are_those_of_one_process() {
        let part = |start: [u64; 2], shape: [u64; 2]| ElementBox { start: start.into(), shape: shape.into() };
        let whole = || part([0, 0], [9, 9]);
        let most = |boxes| MemorySchema::Boxes(boxes).most_copies(&[9, 9]);
        assert_eq!(most(vec![]), 1);
        assert_eq!(most(vec![vec![], vec![part([0, 0], [0, 9]), part([0, 0], [0, 9])]]), 1);
        assert_eq!(most(vec![vec![whole()], vec![whole()]]), 1);
        assert_eq!(most(vec![vec![part([0, 0], [9, 4]), part([0, 4], [9, 5])]]), 1);
        assert_eq!(most(vec![vec![part([0, 0], [5, 5]), part([4, 4], [5, 5]), part([0, 5], [4, 4])]]), 2);
        assert_eq!(most(vec![vec![whole()], vec![whole(), part([8, 0], [1, 1]), whole(), whole()]]), 4);
        // Columns share a range of rows; comparing all of very many would take minutes.
        let columns = |count| vec![(0..count).map(|at| part([0, at], [9, 1])).collect()];
        assert_eq!(most(columns(100)), 1);
        assert_eq!(most(columns(5000)), 5000);
        let mesh = MemorySchema::Mesh { mesh: vec![2], dims: vec![Distribution::Block, Distribution::Whole] };
        assert_eq!(mesh.most_copies(&[9, 9]), 1);
    }
}
