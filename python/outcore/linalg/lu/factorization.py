"""LU with true partial pivoting, out of core, by slabs of columns.

Algorithm A: left-looking (Womble, Greenberg, Riesen & Wheat 1993, section 4.1), with the row swaps
in LINPACK order. The matrix is cut into slabs of columns that fit in memory, each slab into
panels::

    for each slab C = A[:, slab]:
        for each earlier panel K:    C <- L_K⁻¹ P_K C       # L_K comes from the disk, tile by tile
        for each panel K of C:       P_K C_K = L_K U_K      # and is applied to those right of it
        write C;  sync;  journal

A panel of L is stored with its own and earlier row swaps only, so that no swap is ever carried out
on disk. Flops 2n³/3; words read and written about n³/(3w) + n² with slabs of w columns
(`docs/numerics-lu.md`).
"""

import itertools
from collections.abc import Iterator
from dataclasses import asdict

import numpy as np

from outcore import budget
from outcore.array import Array
from outcore.errors import Interrupted
from outcore.lapack import kernels
from outcore.linalg.factors.begin import Method, open_storage
from outcore.linalg.factors.factor import LU, LUFactor
from outcore.linalg.factors.journal import Record
from outcore.linalg.lu.checks import Extremes, check_finite, warn_of
from outcore.linalg.lu.conveyor import Conveyor
from outcore.linalg.lu.panel import apply_panel, factor_panel
from outcore.linalg.lu.plan import LuGeometry, Slab, flops, lu_geometry, panel_flops, update_flops
from outcore.linalg.lu.storage import LuStorage
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.streams import BlockStream
from outcore.volumes import PathLike


def lu_factor(
    A: Array | PathLike,
    *,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite_a: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> LUFactor:
    """Factor P A = L U with partial pivoting, A and the factors on disk.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path; float32, float64, complex64 or complex128. ``order="F"``
        with the default chunks is read fastest.
    memory
        Budget, such as ``"8 GiB"``; by default half of the available memory. More memory means less
        I/O: see ``oc.plan("lu", ...)``.
    out
        Directory for the factors; by default that of `A` with ``.lu`` appended.
    overwrite_a
        Let the factors take the disk space of `A`, whose content is given up at once. Needs ``A``
        in ``order="F"`` with default chunks.
    overwrite
        Replace complete factors that are at `out`.
    resume
        Go on where an earlier call was stopped. `False` begins anew.
    threads
        Threads of the BLAS; by default as it is set.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    LUFactor
        For `lu_solve`; ``.report`` says what was done, ``.piv`` is what SciPy would have returned.

    Raises
    ------
    InvalidError
        If `A` is not square, or of a type or layout that cannot be used.
    BudgetError, DiskFullError
        Before any work, if memory or disk do not suffice.
    NonFiniteError
        If `A` has a NaN or an infinity, with its index.
    ExistsError, BusyError, JournalError
        If `out` holds complete factors, is in use, or holds a stopped run on other input.
    Interrupted
        After Ctrl-C or SIGTERM; calling again goes on.

    Warns
    -----
    LinAlgWarning
        If `A` is exactly singular, as `scipy.linalg.lu_factor` does.
    GrowthWarning
        If the pivots grew so much that half of the digits may be lost.
    """
    memory_bytes = budget.resolve(memory)
    with open_storage(
        Method(lu_geometry, LuStorage, LU), A, out, memory_bytes, overwrite_a=overwrite_a,
        overwrite=overwrite, resume=resume, threads=threads,
    ) as storage:  # fmt: skip
        g, first = storage.geometry, storage.first_panel
        work, left = flops(g.n, g.dtype), _flops_left(g, first)
        with long_call(
            f"LU of {storage.name}", memory_bytes=memory_bytes, work=work, work_done=work - left,
            threads=threads, progress=progress,
        ) as call:  # fmt: skip
            try:
                storage.open(call)
                _Factorization(storage, call).run()
                factor = storage.finish(call, left)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"LU of {storage.name} stopped with {storage.journal.panels_done} of "
                    f"{g.panels} panels done; call lu_factor again with the same arguments "
                    "to go on from there"
                ) from None
    warn_of(factor)
    return factor


def _flops_left(g: LuGeometry, first_panel: int) -> float:
    """Operations of a run that begins with `first_panel`."""
    panels = sum(panel_flops(g, K) for K in range(first_panel, g.panels))
    return panels + sum(
        update_flops(g, K) * max(g.n - max(K + 1, first_panel) * g.columns, 0)
        for K in range(g.panels)
    )


class _Factorization:
    """The loops of algorithm A."""

    def __init__(self, storage: LuStorage, call: LongCall) -> None:
        g = storage.geometry
        self.storage, self.call, self.g = storage, call, g
        self.kernels = kernels(g.dtype)
        self.piv = storage.panel_pivots()
        self.stream = BlockStream(
            storage.factors, g.dtype, call.arena, g.ring_bytes, call.trace,
            least_bytes=g.block_tiles * g.tile_bytes,
        )  # fmt: skip
        self.conveyor = Conveyor(g, storage, call)

    def run(self) -> None:
        slabs = self.g.slabs(self.storage.first_panel)
        try:
            self.conveyor.load(slabs[0] if slabs else None)
            self.read_ahead(range(slabs[0].first if slabs else 0))
            for slab, following in itertools.zip_longest(slabs, slabs[1:]):
                self.factor_slab(slab, following)
            self.conveyor.drain()
            self.storage.commit()
        except BaseException as error:
            well = self.conveyor.abandon()
            if well and isinstance(error, KeyboardInterrupt):
                self.storage.commit()
            raise

    def factor_slab(self, slab: Slab, following: Slab | None) -> None:
        """Factor the columns of one slab, given all panels to their left."""
        g, conveyor = self.g, self.conveyor
        C = conveyor.begin(slab, following)
        left = slab.first * g.columns
        extremes = Extremes()
        arrivals = self.looked_at(C, left, extremes)
        here = 0
        if slab.first:
            here = max(arrivals)
        for K in range(slab.first):
            o = K * g.columns
            self.update(K, self.blocks_of(K), C[o:])
            conveyor.rows_done(o + g.columns)

        self.read_ahead(range(slab.first) if following else range(0))
        for K in range(slab.first, slab.last):
            o, e = K * g.columns, min((K + 1) * g.columns, g.n)
            if here < e - left:
                # Only in the first slab: its panels are factored while later ones still come in.
                before, here = here, max(itertools.islice(arrivals, max(K, 1)))
                for J in range(slab.first, K):
                    j, end = J * g.columns - left, (J + 1) * g.columns - left
                    self.update_in_memory(J, C[j + left :, j:end], C[j + left :, before:here])
            P = C[o:, o - left : e - left]
            start_ns = self.call.trace.now_ns()
            piv = np.empty(e - o, np.int32)
            extremes.see_info(factor_panel(self.kernels, P, piv), o)
            extremes.see_factor(C[:e, o - left : e - left])
            self.piv.append(piv)
            self.call.trace.record("compute", start_ns)
            self.call.meter.advance(panel_flops(g, K))
            conveyor.panel_done(K)
            if following:
                self.read_ahead(range(K, K + 1))
            self.update_in_memory(K, P, C[o:, e - left : here])
            if here == C.shape[1]:
                conveyor.poll()
        pivots = np.concatenate(
            [self.piv[K] + np.int32(K * g.columns) for K in range(slab.first, slab.last)]
        )
        self.storage.commit_later(
            Record(slab.first, slab.last, pivots, self.storage.places_of(slab), asdict(extremes))
        )

    def update(self, K: int, L: Iterator[tuple[int, Matrix]], C: Matrix) -> None:
        """C <- L_K⁻¹ P_K C, for columns C from the first row of panel K down."""
        apply_panel(self.kernels, self.piv[K], L, C)
        self.call.meter.advance(update_flops(self.g, K) * C.shape[1])

    def update_in_memory(self, K: int, P: Matrix, C: Matrix) -> None:
        """Do the same with a panel that is in memory whole."""
        start_ns = self.call.trace.now_ns()
        self.update(K, iter([(0, P)]), C)
        self.call.trace.record("compute", start_ns)

    def looked_at(self, C: Matrix, left: int, extremes: Extremes) -> Iterator[int]:
        """Look at the columns of A as they come in; yield how many are there."""
        for columns in self.conveyor.arrivals():
            start_ns = self.call.trace.now_ns()
            extremes.see_matrix(C[:, columns])
            check_finite(extremes, C[:, columns], left + columns.start)
            self.call.trace.record("compute", start_ns)
            yield columns.stop

    def read_ahead(self, panels: range) -> None:
        """Schedule blocks of L: all from the diagonal block down, panel by panel."""
        g = self.g
        for K in panels:
            place = self.storage.places[K]
            columns = slice(place * g.columns, (place + 1) * g.columns)
            self.stream.extend(
                (slice(tiles.start * g.rows, tiles.stop * g.rows), columns)
                for tiles in g.blocks_below(K)
            )

    def blocks_of(self, K: int) -> Iterator[tuple[int, Matrix]]:
        """Take panel K of L from the stream: (row counted from the panel's first, block)."""
        g, trace = self.g, self.call.trace
        o, e = K * g.columns, min((K + 1) * g.columns, g.n)
        for tiles in g.blocks_below(K):
            block = self.stream.take().data
            first = tiles.start * g.rows
            top = max(o, first)
            start_ns = trace.now_ns()
            yield top - o, block[top - first : g.n - first, : e - o]
            trace.record("compute", start_ns)
