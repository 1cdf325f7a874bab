//! Collectives: memory schemas, plans, and the part of this process.

use numpy::{PyUntypedArray, PyUntypedArrayMethods};
use outcore_client::{CollectivePart, Exchanged, LocalArray};
use outcore_core::{
    Axis, CollectivePlan, CollectiveSpec, Distribution, ElementBox, Error, ErrorKind, MemoryOffer,
    OfferedArray, ROUND_PIECES, piece_bytes,
};
use pyo3::prelude::*;

use crate::array_file::Grid;
use crate::error::{OrRaise, error_of};
use crate::layout::Stripes;
use crate::memory::memory_of;
use crate::pool_file::PoolFile;
use crate::stream::Trace;

/// A process's exchange with one server: (messages, shares in them, bytes of all shares, bytes copied in
/// memory, bytes that the server read from memory).
type WithServer = (u64, u64, u64, u64, u64);

/// A process's plan with one server: (rounds with shares, shares, bytes of the shares, then rounds and shares
/// without those that the server would read from memory).
type Planned = (u64, u64, u64, u64, u64);

/// (bytes, pieces) of each server, and the plan of each process with each server.
type Counts = (Vec<(u64, u64)>, Vec<Vec<Planned>>);

/// The distribution of an array's elements over the memory of processes.
#[pyclass(frozen, module = "outcore._core")]
pub struct MemorySchema(outcore_core::MemorySchema);

#[pymethods]
impl MemorySchema {
    /// A distribution over a mesh of processes. For each dimension, `runs` has `None` if it is not
    /// distributed, 0 for one block per process, or the number of indices in each cyclic run.
    #[staticmethod]
    fn mesh(mesh: Vec<u64>, runs: Vec<Option<u64>>) -> Self {
        let dim = |run| match run {
            None => Distribution::Whole,
            Some(0) => Distribution::Block,
            Some(run) => Distribution::Cyclic(run),
        };
        Self(outcore_core::MemorySchema::Mesh { mesh, dims: runs.into_iter().map(dim).collect() })
    }

    /// The boxes of each process, each given by its first element and its shape.
    #[staticmethod]
    fn boxes(boxes: Vec<Vec<(Vec<u64>, Vec<u64>)>>) -> Self {
        let own = |own: Vec<(Vec<u64>, Vec<u64>)>| {
            own.into_iter().map(|(start, shape)| ElementBox { start, shape }).collect()
        };
        Self(outcore_core::MemorySchema::Boxes(boxes.into_iter().map(own).collect()))
    }

    /// Refuses overlapping boxes, which no process may write.
    fn check_disjoint(&self, py: Python<'_>, shape: Vec<u64>) -> PyResult<()> {
        self.0.check_disjoint(&shape).or_raise(py)
    }

    /// Shapes of a process's parts of an array of this shape, among `ranks` processes.
    fn shapes(&self, py: Python<'_>, shape: Vec<u64>, ranks: u64, rank: u64) -> PyResult<Vec<Vec<u64>>> {
        self.0.check(&shape, ranks).or_raise(py)?;
        let parts = if rank < ranks { self.0.parts(&shape, rank) } else { vec![] };
        Ok(parts.iter().map(|axes| axes.iter().map(Axis::count).collect()).collect())
    }
}

/// A read or write of an array by all processes of a program.
#[pyclass(frozen, module = "outcore._core")]
pub struct Collective(CollectiveSpec);

#[pymethods]
impl Collective {
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keywords at the calls from Python")]
    fn new(
        number: u128,
        write: bool,
        ranks: u64,
        grid: &Grid,
        shard: u64,
        schema: &MemorySchema,
        patience_s: u64,
        skips_disk: bool,
    ) -> Self {
        let (grid, schema) = (grid.0.spec().clone(), schema.0.clone());
        // A schema that does not fit is refused when the collective begins.
        let fits = schema.check(&grid.shape, ranks).is_ok();
        let copies = if fits && !write { schema.most_copies(&grid.shape) } else { 1 };
        Self(CollectiveSpec {
            id: number,
            write,
            ranks,
            grid,
            shard,
            schema,
            patience_s,
            durable: true,
            skips_disk,
            piece_bytes: piece_bytes(copies),
            round_pieces: ROUND_PIECES,
        })
    }

    /// Takes part in the collective on an open file with these arrays. Returns the exchange with each server.
    /// If `failed` has the kind and message of an error, reports it to all others and raises it. Calls `tell`
    /// regularly; its exception aborts the collective. `trace` records the messages to servers.
    #[pyo3(signature = (file, rank, arrays, memory_bytes, offers_memory, failed = None, tell = None, trace = None))]
    #[expect(clippy::too_many_arguments, reason = "keywords at the calls from Python")]
    fn run(
        &self,
        py: Python<'_>,
        file: &PoolFile,
        rank: u64,
        arrays: Vec<Bound<'_, PyUntypedArray>>,
        memory_bytes: usize,
        offers_memory: bool,
        failed: Option<(String, String)>,
        tell: Option<Py<PyAny>>,
        trace: Option<&Trace>,
    ) -> PyResult<Vec<WithServer>> {
        let local = |array: &Bound<'_, PyUntypedArray>| {
            let shape = array.shape().iter().map(|&n| n as u64).collect();
            Ok(LocalArray { memory: memory_of(array, self.0.grid.item_bytes)?, shape })
        };
        let arrays = arrays.iter().map(local).collect::<PyResult<Vec<LocalArray>>>()?;
        let part = CollectivePart {
            spec: self.0.clone(),
            rank,
            arrays,
            memory_bytes,
            offers_memory,
            trace: trace.map(|trace| trace.0.clone()),
        };
        let mut interrupt: Option<PyErr> = None;
        let exchanged = py.detach(|| {
            file.pool.collective(file.file, &part, &mut || {
                if let Some((kind, message)) = &failed {
                    return Err(error_of(kind, message));
                }
                let look = |py: Python<'_>| {
                    py.check_signals()?;
                    tell.as_ref().map_or(Ok(()), |tell| tell.call0(py).map(drop))
                };
                Python::attach(look).map_err(|error| {
                    interrupt = Some(error);
                    Error::new(ErrorKind::Io, "it was stopped, as by Ctrl-C")
                })
            })
        });
        if let Some(interrupt) = interrupt {
            return Err(interrupt);
        }
        let tuple =
            |each: Exchanged| (each.messages, each.shares, each.bytes, each.copied_bytes, each.direct_bytes);
        exchanged.or_raise(py).map(|each| each.into_iter().map(tuple).collect())
    }

    /// The cost of the collective for a file with these stripes. Arrays in memory are assumed to be
    /// C-contiguous, as NumPy creates them.
    fn plan(&self, py: Python<'_>, stripes: &Stripes) -> PyResult<Counts> {
        py.detach(|| {
            let plan = CollectivePlan::new(&self.0, stripes.0)?;
            let servers = stripes.0.count();
            let of_server = |entry| (plan.data_bytes(entry), plan.pieces(entry));
            let (spec, item_bytes) = (&self.0, self.0.grid.item_bytes);
            let ranks = (0..plan.ranks()).map(|rank| {
                let parts = spec.schema.parts(&spec.grid.shape, rank);
                let shapes = parts.iter().map(|axes| axes.iter().map(Axis::count).collect());
                let offer = row_major(shapes, item_bytes);
                let with = |entry| {
                    let rounds = plan.rounds_of(entry, rank);
                    let mut found = (rounds.len() as u64, 0, 0, 0, 0);
                    for (_, pieces) in rounds {
                        let given_before = found.4;
                        for piece in pieces {
                            let share = plan.share(&plan.piece(entry, piece), rank);
                            let is_direct = spec.write && offer.direct(&share, item_bytes).is_some();
                            found.1 += 1;
                            found.2 += share.bytes;
                            found.4 += u64::from(!is_direct);
                        }
                        found.3 += u64::from(found.4 > given_before);
                    }
                    found
                };
                (0..servers).map(with).collect()
            });
            Ok(((0..servers).map(of_server).collect(), ranks.collect()))
        })
        .or_raise(py)
    }
}

/// An offer of C-contiguous arrays, as NumPy creates them.
fn row_major(shapes: impl Iterator<Item = Vec<u64>>, item_bytes: u64) -> MemoryOffer {
    // A gap keeps the arrays from being adjacent.
    let mut address = 0;
    let array = |shape: Vec<u64>| {
        let (mut step, mut strides) = (item_bytes as i64, vec![]);
        for &length in shape.iter().rev() {
            strides.push(step);
            step *= length as i64;
        }
        strides.reverse();
        let start = address;
        address += step as u64 + 1;
        OfferedArray { address: start, strides }
    };
    MemoryOffer { nonce: 0, nonce_address: 0, arrays: shapes.map(array).collect() }
}
