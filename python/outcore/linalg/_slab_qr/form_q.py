"""The orthogonal factor itself, from reflections on disk.

    Q = Q_1 Q_2 ... Q_p [I; 0]

The columns of Q are formed by slabs. A slab begins as columns of the unit matrix, and the panels of
reflections are applied from the last to the first. Panel K does not change the columns to the left
of its own. So a slab begins with the panel of its last column (as in LAPACK's orgqr). Words read
are about those of the factorization, words written those of Q.
"""

import numpy as np

from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream, wait
from outcore.array.array import Array
from outcore.errors import Interrupted
from outcore.layout.zarr_format import Metadata
from outcore.linalg._geometry.factor_plan import Slab
from outcore.linalg._geometry.layouts import tile_of
from outcore.linalg._output.factor import QRFactor, refuse_others
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.result import claimed, written
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._rows.report import row_report
from outcore.linalg._slab_qr.plan import SlabQrGeometry, slab_qr_geometry, update_flops
from outcore.linalg._slab_qr.reflections import Reflections
from outcore.linalg._tiles.cost import Cost, Phase, Problem
from outcore.linalg._tiles.operand import open_whole_chunks
from outcore.linalg._tiles.pitch import allocate_matrix
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

_WHY = "the form_q that wrote it was stopped; call form_q again"


@opens_results(beside("qr", ".q"))
def form_q(
    made: Made,
    qr: QRFactor,
    *,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Array, Report]:
    """Form Q of A = Q R, with orthonormal columns, from QR factors on disk.

    Parameters
    ----------
    qr
        Factors of an (m, n) matrix, from `qr_factor` or `open_factor`; or factors of its transpose,
        whose Q is then formed.
    memory
        Budget; by default half of the available memory.
    out
        Directory of Q; by default that of the factors with ``.q`` appended.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call with the same arguments. The call records its progress about every
        minute, by slabs of columns.
    threads
        Threads of the BLAS; by default its current setting.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    Q : Array
        (m, min(m, n)) on disk.
    report : Report

    Raises
    ------
    InvalidError
        If `qr` is not a factorization by QR.
    BudgetError
        Before any work, if memory does not suffice.
    ExistsError
        If `out` exists.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes from the recorded progress.

    Notes
    -----
    About 2n²(m - n/3) operations for m >= n, four times that for complex types. Source: Golub & Van
    Loan, *Matrix Computations*, 4th ed., section 5.1.6, backward accumulation.
    """
    refuse_others(qr, QRFactor)
    out = out or f"{qr.path}.q"
    steps = StepsDone(out, "form_q", {}, {"qr": qr}, memory, resume=resume, made=made)
    g = slab_qr_geometry((qr.m, min(qr.m, qr.n)), qr.dtype, steps.memory_bytes, qr.tile)
    with claimed(out, [qr.path], if_exists=if_exists, why=_WHY) as where:
        assert where is not None, "there is a place"
        try:
            with long_call(
                f"Q of {qr.path.name}", memory_bytes=steps.memory_bytes, work=flops(g),
                threads=threads, progress=progress,
            ) as call:  # fmt: skip
                metadata = Metadata((g.m, g.n), g.dtype, qr.tile, "F", "column-major")
                with written(where, metadata, _WHY, steps) as target:
                    return target, _Forming(qr, g, target, call).run(steps)
        except KeyboardInterrupt as error:
            raise Interrupted(
                steps.stopped(f"forming Q of {qr.path.name}", "form_q", error)
            ) from None


def flops(g: SlabQrGeometry) -> float:
    """Operations that apply each panel to its own columns and those to their right."""
    return sum(update_flops(g, K) * (g.n - K * g.columns) for K in range(g.panels))


def bytes_read(g: SlabQrGeometry) -> int:
    """Bytes of reflections read. Exact."""
    below = [len(g.tiles_below(K)) for K in range(g.panels)]
    return sum(sum(below[: slab.last]) for slab in g.slabs()) * g.tile_bytes


def form_q_cost(problem: Problem) -> Cost:
    """Plan `form_q`, for factors that `qr_factor` creates with the same budget."""
    m, n = problem.m or problem.n, problem.n
    tile = tile_of(problem)
    if tile is None:
        whole = slab_qr_geometry((m, n), problem.dtype, problem.memory_bytes)
        tile = whole.rows, whole.columns
    g = slab_qr_geometry((m, min(m, n)), problem.dtype, problem.memory_bytes, tile)
    slab_bytes = g.height * g.slab_panels * g.columns * g.dtype.itemsize
    phase = Phase(
        dtype=g.dtype,
        bytes_read=bytes_read(g),
        bytes_written=g.factor_bytes_written(),
        flops=flops(g),
        ends_written_bytes=min(slab_bytes, g.factor_bytes_written()) * len(g.slabs()),
    )
    return Cost(
        method=g.method,
        peak_memory_bytes=g.memory_bytes,
        disk_bytes=g.factor_bytes_written(),
        words_lower_bound=g.words_lower_bound(),
        phases=(phase,),
    )


class _Forming:
    """The loops of the algorithm."""

    def __init__(self, qr: QRFactor, g: SlabQrGeometry, target: Array, call: LongCall) -> None:
        self.qr, self.g, self.call = qr, g, call
        self.factors = qr.open_tiles(call.arena, call.trace)
        self.stream = BlockStream(
            self.factors, g.dtype, call.arena, g.ring_bytes, call.trace, least_bytes=g.tile_bytes
        )
        width = g.slab_panels * g.columns
        self.reflections = Reflections(g.dtype, g.columns, width, call.arena)
        self.file = open_whole_chunks(target, call, g.bounce_bytes, number=2, writable=True)
        self.memory = allocate_matrix(call.arena, g.height, width, g.dtype)

    def run(self, steps: StepsDone) -> Report:
        g, slabs = self.g, self.g.slabs()
        for slab in slabs[: steps.gone_on_at]:
            self.call.meter.skip(self.flops_of(slab))
        left = steps.left(slabs)
        # A slab needs its own panels and those to its left, from the last to the first.
        panels = (K for _, slab in left for K in range(slab.last)[::-1])
        self.stream.extend(g.box(K, tile) for K in panels for tile in g.tiles_below(K))
        for done, slab in left:
            self.make(slab)
            steps.passed(done, len(slabs), self.sync)
        read, wrote = self.factors.counters()[0], self.file.counters()[1]
        return row_report(
            Report, self.call, "form_q", (g.m, g.n), g.dtype, method=g.method, flops=flops(g),
            moved=(read, wrote), planned=(bytes_read(g), g.factor_bytes_written()),
            is_stored=True, words_written=g.m * g.n, notes=steps.notes(len(slabs)),
            arrays=("the matrix", "the factors", "Q"),
        )  # fmt: skip

    def sync(self) -> None:
        """Wait until all writes are durable."""
        wait(self.file.submit_sync(), self.call.trace)

    def flops_of(self, slab: Slab) -> float:
        """Operations that form a slab."""
        g = self.g
        left, right = slab.first * g.columns, g.extent(slab.last - 1)[1]
        return sum(
            update_flops(g, K) * (right - max(g.extent(K)[0], left)) for K in range(slab.last)
        )

    def make(self, slab: Slab) -> None:
        """Form the columns of Q of one slab, and write them."""
        g = self.g
        left, right = slab.first * g.columns, g.extent(slab.last - 1)[1]
        C = self.memory[:, : (slab.last - slab.first) * g.columns]
        start_ns = self.call.trace.now_ns()
        C[...] = 0
        diagonal = np.arange(left, right)
        C[diagonal, diagonal - left] = 1
        self.call.trace.record("compute", start_ns)
        for K in range(slab.last)[::-1]:
            o, e = g.extent(K)
            columns = slice(max(o - left, 0), right - left)
            V = g.blocks(K, lambda: self.stream.take().data)
            self.reflections.apply(V, self.qr.tau[o:e], C[o : g.m, columns], "N")
            self.call.meter.advance(update_flops(g, K) * (columns.stop - columns.start))
        wait(self.file.submit_write([0, left], [1, 1], C), self.call.trace)
