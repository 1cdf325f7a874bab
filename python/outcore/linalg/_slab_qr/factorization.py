"""QR out of core, by slabs of columns, for matrices whose triangle does not fit in memory.

Left-looking, like LU (`outcore.linalg._lu.factorization`), but without pivots. The matrix is cut
into slabs of columns that fit in memory, and each slab into panels::

    for each slab C = A[:, slab]:
        for each earlier panel K:    C <- C - V_K T_Kᴴ (V_Kᴴ C)   # V_K comes from the disk
        for each panel K of C:       C_K = Q_K R_K                # and is applied to those right
        write C;  sync;  journal

V_K is used twice, so memory holds a whole panel from the disk. Its tiles are used as they arrive.
The second use, from the top, frees each tile for the tiles of the next panel. Flops: 2n²(m - n/3).
Words read and written: about n²(m - n/3)/(2w) + 2mn with slabs of w columns
(`docs/numerics-qr.md`).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike, check_progress
from outcore.array.array import Array
from outcore.array_files.metadata import read_metadata
from outcore.errors import InvalidError
from outcore.linalg._factors.begin import Method, Order, Tile, open_storage
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._factors.conveyor import SlabConveyor
from outcore.linalg._factors.left_looking import SlabLoop, running
from outcore.linalg._factors.storage import Source
from outcore.linalg._geometry.factor_plan import Slab
from outcore.linalg._output.factor import QRFactor
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import Record
from outcore.linalg._output.own import opened_factors
from outcore.linalg._slab_qr.plan import (
    SlabQrGeometry,
    flops,
    panel_flops,
    slab_qr_geometry,
    update_flops,
)
from outcore.linalg._slab_qr.reflections import Reflections
from outcore.linalg._slab_qr.storage import SlabQrStorage, TransposedQrStorage
from outcore.linalg._tiles.matrix import Matrix, place_of
from outcore.report.longcall import LongCall
from outcore.storage.volumes import PathLike


def qr_factor(
    A: Array | PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite_a: bool = False,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> QRFactor:
    """Factor A = Q R, A and the factors on disk.

    It is meant for matrices whose triangle R does not fit in memory. For a smaller R, `qr` and
    `lstsq` read each row once and write nothing.

    Parameters
    ----------
    A
        (m, n) array on disk, or its path. Its type has at most double precision. The call reads
        ``order="F"`` with the default chunks fastest.
    dtype
        Type of the factors and of the arithmetic, such as ``"f8"`` for a float32 `A`; by default
        that of `A`, or float64 for integers. The call converts `A` as it reads it, and never rounds
        it.
    memory
        Budget, such as ``"8 GiB"``; by default half of the available memory. More memory means less
        I/O: see ``oc.plan("qr_factor", m=, n=, ...)``.
    out
        Directory for the factors; by default that of `A` with ``.qr`` appended.
    overwrite_a
        Let the factors take the disk space of `A`, whose content is lost at once. `A` must be in
        ``order="F"`` with default chunks.
    if_exists
        ``"open"`` opens complete factors of the same `A` at `out`, with their report.
        ``"overwrite"`` replaces complete factors there.
    resume
        Resume a stopped call. `False` restarts it.
    threads
        Threads of the BLAS; by default its current setting.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    QRFactor
        Factors for `qr_solve`. ``.report`` describes the call. The array ``qr`` in its directory
        and ``.tau`` are as LAPACK's geqrf returns them: R on and above the diagonal, and below it
        the vectors of the reflections.

    Raises
    ------
    InvalidError
        If `A` is not a matrix, has an unsupported type or layout, or is so large that R overflows.
    BudgetError, DiskFullError
        Before any work, if memory or disk space do not suffice.
    NonFiniteError
        If `A` has a NaN or an infinity. The error gives its index.
    ExistsError, BusyError, JournalError
        If `out` holds complete factors, is in use, or holds a stopped run on other input.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes.

    Notes
    -----
    Householder QR, 2n²(m - n/3) operations for m >= n, four times that for complex types. Sources:
    Golub & Van Loan, *Matrix Computations*, 4th ed., section 5.2; Schreiber & Van Loan, *A
    storage-efficient WY representation for products of Householder transformations*, SIAM J. Sci.
    Stat. Comput. 10 (1989); Puglisi 1992 for the triangle of a block of reflections.
    """
    check_progress(progress)
    return factor_qr(
        Factoring(
            A, budget.resolve(memory), out, dtype, overwrite_a, if_exists, resume, threads, progress
        )
    )


def factor_qr(job: Factoring) -> QRFactor:
    """Run `qr_factor`."""
    ready = opened_factors(job, QRFactor)
    return _factor(SlabQrStorage, job) if ready is None else ready


def factor_transpose(job: Factoring) -> QRFactor:
    """Factor Aᵀ = Q R like `qr_factor`, without a transpose on disk.

    Returns
    -------
    TransposedQRFactor
        Factors of Aᵀ. The call reads the rows of A as the columns of Aᵀ, fastest in ``order="C"``.
    """
    return _factor(TransposedQrStorage, job)


def _factor(made_in: type[SlabQrStorage], job: Factoring) -> QRFactor:
    """Factor a matrix or its transpose, depending on the storage class."""
    kind, shape = made_in.kind, read_metadata(place_of(job.A)).shape

    def cut(
        n: int, dtype: np.dtype[Any], memory_bytes: int, tile: Tile, order: Order
    ) -> SlabQrGeometry:
        return slab_qr_geometry((kind.shape_of(shape)[0], n), dtype, memory_bytes, tile)

    with open_storage(Method(cut, made_in, kind), job) as storage:
        g = storage.geometry
        left = _flops_left(g, storage.first_panel)
        with running(storage, job, "QR", flops(g.m, g.n, g.dtype), left) as call:
            source = storage.source(storage.loads, call, is_transposed=kind.is_transposed)
            _Factorization(storage, call, source).run()
            return storage.finish(call, left)


def _flops_left(g: SlabQrGeometry, first_panel: int) -> float:
    """Operations of a run that begins with `first_panel`."""
    panels = sum(panel_flops(g, K) for K in range(first_panel, g.applied))
    return panels + sum(
        update_flops(g, K) * (g.n - max(K * g.columns + g.reflections(K), first_panel * g.columns))
        for K in range(g.applied)
        if first_panel < g.panels
    )


class _Factorization(SlabLoop):
    """The steps of the algorithm."""

    g: SlabQrGeometry

    def __init__(self, storage: SlabQrStorage, call: LongCall, source: Source) -> None:
        g = storage.geometry
        super().__init__(storage, call, g.ring_bytes, g.tile_bytes)
        self.g, self.noted = g, storage.noted
        self.is_transposed = storage.kind.is_transposed
        self.taus = storage.taus()
        self.reflections = Reflections(g.dtype, g.columns, g.slab_panels * g.columns, call.arena)
        self.conveyor = SlabConveyor(g, storage, call, source)

    def parts(self) -> list[Slab]:
        """Return the slabs that are not factored yet."""
        return self.g.slabs(self.storage.first_panel)

    def update_by_earlier(self, slab: Slab, C: Matrix, arrivals: Iterator[int]) -> None:
        """Wait for the whole slab, and apply the reflections of all panels to its left."""
        g = self.g
        max(arrivals)
        for K in range(min(slab.first, g.applied)):
            self.update(K, g.blocks(K, self.take), C[K * g.columns :])
            self.storage.commit_if_durable()

    def factor(self, K: int, C: Matrix, extremes: Extremes) -> None:
        """C_K = Q_K R_K, from the first row of panel K down."""
        g, count, (o, _) = self.g, self.g.reflections(K), self.g.extent(K)
        if not count:
            return
        start_ns = self.call.trace.now_ns()
        columns = self.columns_of(K)
        end = columns.start + count
        P = C[o:, columns.start : end]
        tau = self.reflections.factor(P)
        diagonal = np.diagonal(P)
        if not (np.isfinite(diagonal).all() and np.isfinite(tau).all()):
            raise InvalidError(
                f"numbers as large as those of {self.storage.name} overflow {g.dtype}; scale its "
                + ("rows" if self.is_transposed else "columns")
            )
        zeros = np.flatnonzero(diagonal == 0)
        extremes.see_info(int(zeros[0]) + 1 if len(zeros) else 0, o)
        self.taus.append(tau)
        self.call.trace.record("compute", start_ns)
        self.call.meter.advance(panel_flops(g, K))
        # If there are more columns than rows, some columns of the panel may remain.
        self.update_in_memory(K, C, slice(end, columns.stop))

    def record(self, slab: Slab, extremes: Extremes) -> Record:
        """Return the journal's record of a slab."""
        noted = self.noted(extremes, self.taus[slab.first : slab.last])
        return Record(slab.first, slab.last, None, self.storage.places_of(slab), noted)

    def update(self, K: int, V: Iterator[tuple[int, Matrix]], C: Matrix) -> None:
        """C <- Q_Kᴴ C, for columns C from the first row of panel K down."""
        self.reflections.apply(V, self.taus[K], C)
        self.call.meter.advance(update_flops(self.g, K) * C.shape[1])

    def update_in_memory(self, K: int, C: Matrix, columns: slice) -> None:
        """Apply a panel of the slab to other columns of it."""
        if not (count := self.g.reflections(K)):
            return
        o, start = K * self.g.columns, self.columns_of(K).start
        V = C[o:, start : start + count]
        start_ns = self.call.trace.now_ns()
        self.update(K, iter([(0, V)]), C[o:, columns])
        self.call.trace.record("compute", start_ns)

    def take(self) -> Matrix:
        """Take the next tile from the stream."""
        tile: Matrix = self.stream.take().data
        return tile

    def read_ahead(self, panels: range) -> None:
        """Schedule reads of reflections: tiles from the diagonal block down, panel by panel."""
        g = self.g
        for K in panels[: max(g.applied - panels.start, 0)]:
            place = self.storage.places[K]
            self.stream.extend(g.box(place, tile) for tile in g.tiles_below(K))
