"""Cholesky factorization out of core, by slabs of columns that grow.

Left-looking, as LU is (`outcore.linalg.lu.factorization`), but of one triangle. The matrix is cut
into slabs of columns that fit in memory from their diagonal down, so that they become wider to the
right::

    for each slab C = A[o:, slab]:
        for each earlier panel K:    C <- C - L_K L_K[slab]ᴴ    # rows o: of L_K come from the disk
        for each panel K of C:       C_K = L_K L_KKᴴ            # and is applied to those right
        write C;  sync;  journal

Flops n³/3; words read and written about n⁴/(12 M) + n² with M words of memory
(`docs/numerics-cholesky.md`).
"""

import itertools
from collections.abc import Iterator

import numpy as np

from outcore import budget
from outcore.array import Array
from outcore.errors import Interrupted, InvalidError, NotPositiveDefiniteError
from outcore.lapack import kernels
from outcore.linalg.cholesky.checks import Sums
from outcore.linalg.cholesky.conveyor import Conveyor
from outcore.linalg.cholesky.group import Group, apply_blocks, apply_panel, factor_panel
from outcore.linalg.cholesky.plan import (
    CholeskyGeometry,
    cholesky_geometry,
    flops,
    panel_flops,
    update_flops,
)
from outcore.linalg.cholesky.storage import CholeskyStorage
from outcore.linalg.factors.begin import Method, open_storage
from outcore.linalg.factors.factor import CHOLESKY, CholeskyFactor
from outcore.linalg.factors.journal import Record
from outcore.linalg.lu.plan import Slab
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.streams import BlockStream
from outcore.volumes import PathLike


def cho_factor(
    A: Array | PathLike,
    *,
    lower: bool = True,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite_a: bool = False,
    overwrite: bool = False,
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> CholeskyFactor:
    """Factor a Hermitian positive definite A = L Lᴴ, A and the factor on disk.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path; float32, float64, complex64 or complex128. Imaginary
        parts of its diagonal are taken as zero, as by LAPACK.
    lower
        Which triangle of `A` is read; the other need not be right. Of an `A` in ``order="F"`` the
        lower is read fastest, in ``order="C"`` the upper (`False`), with the default chunks. L is
        the same, up to rounding of what is in `A`.
    memory
        Budget, such as ``"8 GiB"``; by default half of the available memory. More memory means less
        I/O: see ``oc.plan("cholesky", ...)``.
    out
        Directory for the factor; by default that of `A` with ``.cho`` appended.
    overwrite_a
        Let the factor take the disk space of `A`, whose content is given up at once. Needs ``A``
        in ``order="F"`` with default chunks, and ``lower=True``.
    overwrite
        Replace a complete factor that is at `out`.
    resume
        Go on where an earlier call was stopped. `False` begins anew.
    threads
        Threads of the BLAS; by default as it is set.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    CholeskyFactor
        For `cho_solve`; ``.report`` says what was done.

    Raises
    ------
    InvalidError
        If `A` is not square, or of a type or layout that cannot be used.
    NotPositiveDefiniteError
        If `A` is not positive definite; a `numpy.linalg.LinAlgError`, as `scipy.linalg.cholesky`
        raises.
    BudgetError, DiskFullError
        Before any work, if memory or disk do not suffice.
    NonFiniteError
        If what is read of `A` has a NaN or an infinity, with its index.
    ExistsError, BusyError, JournalError
        If `out` holds a complete factor, is in use, or holds a stopped run on other input.
    Interrupted
        After Ctrl-C or SIGTERM; calling again goes on.
    """
    memory_bytes = budget.resolve(memory)
    if overwrite_a and not lower:
        raise InvalidError("overwrite_a needs lower=True; read the lower triangle, or leave it out")
    with open_storage(
        Method(cholesky_geometry, CholeskyStorage, CHOLESKY, lower), A, out, memory_bytes,
        overwrite_a=overwrite_a, overwrite=overwrite, resume=resume, threads=threads,
    ) as storage:  # fmt: skip
        g = storage.geometry
        work, left = flops(g.n, g.dtype), _flops_left(g, storage.first_panel)
        with long_call(
            f"Cholesky of {storage.name}", memory_bytes=memory_bytes, work=work,
            work_done=work - left, threads=threads, progress=progress,
        ) as call:  # fmt: skip
            try:
                storage.open(call)
                sums = _Factorization(storage, call).run()
                return storage.finish(call, left, sums)
            except KeyboardInterrupt:
                raise Interrupted(
                    f"Cholesky of {storage.name} stopped with {storage.journal.panels_done} of "
                    f"{g.panels} panels done; call cho_factor again with the same arguments "
                    "to go on from there"
                ) from None


def _flops_left(g: CholeskyGeometry, first_panel: int) -> float:
    """Operations of a run that begins with `first_panel`."""
    return sum(
        panel_flops(g, panel) + g.extent(panel)[0] * update_flops(g, panel)
        for panel in range(first_panel, g.panels)
    )


class _Factorization:
    """The loops of the algorithm."""

    def __init__(self, storage: CholeskyStorage, call: LongCall) -> None:
        g = storage.geometry
        self.storage, self.call, self.g = storage, call, g
        self.kernels = kernels(g.dtype)
        self.stream = BlockStream(
            storage.factors, g.dtype, call.arena, g.ring_bytes, call.trace,
            least_bytes=g.block_bytes,
        )  # fmt: skip
        self.sums = Sums(g.n, call.arena, g.scratch_bytes, g.dtype, lower=storage.lower)
        if storage.journal.records:
            self.sums.go_on(storage.journal.records[-1].extremes)
        self.conveyor = Conveyor(g, storage, call)

    def run(self) -> Sums:
        slabs = self.g.slabs(self.storage.first_panel)
        try:
            if slabs:
                self.conveyor.load(slabs[0])
                self.read_ahead(range(slabs[0].first), slabs[0])
            for slab, following in itertools.zip_longest(slabs, slabs[1:]):
                self.factor_slab(slab, following)
            self.conveyor.drain()
            self.storage.commit()
        except BaseException as error:
            well = self.conveyor.abandon()
            if well and isinstance(error, KeyboardInterrupt):
                self.storage.commit()
            raise
        return self.sums

    def factor_slab(self, slab: Slab, following: Slab | None) -> None:
        """Factor the columns of one slab, given all panels to their left."""
        g, conveyor = self.g, self.conveyor
        groups = conveyor.begin(slab, following)
        arrivals = self.looked_at(slab)
        here = slab.first
        if slab.first:
            here = max(arrivals)
        for K in range(slab.first):
            apply_blocks(self.kernels, self.blocks_of(K, slab), groups)
            self.advance(K, range(slab.first, slab.last))
            self.storage.commit_if_durable()

        self.read_ahead(range(slab.first), following)
        for K in range(slab.first, slab.last):
            if here == K:
                # Only in the first slab: its panels are factored while later ones still come in.
                here = max(itertools.islice(arrivals, max(K, 1)))
                for J in range(slab.first, K):
                    self.update_in_memory(J, range(K, here), groups)
            self.factor(K)
            conveyor.panel_done(K)
            self.read_ahead(range(K, K + 1), following)
            self.update_in_memory(K, range(K + 1, here), groups)
            if here == slab.last:
                conveyor.poll()
        extremes = self.sums.to_json(g.extent(slab.last - 1)[1])
        self.storage.commit_later(
            Record(slab.first, slab.last, None, self.storage.places_of(slab), extremes)
        )

    def panel(self, K: int) -> Matrix:
        """View a panel of the slab, from its diagonal down."""
        o, e = self.g.extent(K)
        return self.conveyor.group_of(K).part(slice(o, self.g.n), slice(o, e))

    def factor(self, K: int) -> None:
        """C_K = L_K L_KKᴴ."""
        start_ns = self.call.trace.now_ns()
        info = factor_panel(self.kernels, self.panel(K))
        self.call.trace.record("compute", start_ns)
        if info:
            order = self.g.extent(K)[0] + info
            raise NotPositiveDefiniteError(
                f"{order}-th leading minor of {self.storage.name} is not positive definite; use "
                "lu_factor, or correct the matrix",
                order,
            )
        self.call.meter.advance(panel_flops(self.g, K))

    def update_in_memory(self, K: int, panels: range, groups: list[Group]) -> None:
        """C <- C - L_K L_K[C]ᴴ, for panels C right of K in the same slab."""
        if not panels:
            return
        columns = slice(self.g.extent(panels[0])[0], self.g.extent(panels[-1])[1])
        start_ns = self.call.trace.now_ns()
        first = self.g.extent(K)[0]
        apply_panel(self.kernels, self.panel(K), first, columns, groups, self.g.n)
        self.call.trace.record("compute", start_ns)
        self.advance(K, panels)

    def advance(self, K: int, panels: range) -> None:
        """Note that panel K was applied to panels."""
        o, e = self.g.extent(K)
        self.call.meter.advance((e - o) * sum(update_flops(self.g, panel) for panel in panels))

    def looked_at(self, slab: Slab) -> Iterator[int]:
        """Look at the panels of A as they come in; yield the number of the one to come next."""
        for K in self.conveyor.arrivals():
            start_ns = self.call.trace.now_ns()
            P = self.panel(K)
            if not self.storage.lower and self.g.dtype.kind == "c":
                np.conjugate(P, out=P)
            self.sums.see(P, self.g.extent(K)[0])
            self.call.trace.record("compute", start_ns)
            yield K + 1

    def read_ahead(self, panels: range, slab: Slab | None) -> None:
        """Schedule what a slab needs of earlier panels of L: the blocks from its first row down."""
        g = self.g
        if slab is None:
            return
        for K in panels:
            place = self.storage.places[K]
            columns = slice(place * g.columns, (place + 1) * g.columns)
            self.stream.extend(
                (slice(tiles.start * g.rows, tiles.stop * g.rows), columns)
                for tiles in g.blocks(slab)
            )

    def blocks_of(self, K: int, slab: Slab) -> Iterator[tuple[int, Matrix]]:
        """Take panel K of L from the stream: (first row, block)."""
        g, trace = self.g, self.call.trace
        o, e = g.extent(K)
        for tiles in g.blocks(slab):
            block = self.stream.take().data
            first = tiles.start * g.rows
            start_ns = trace.now_ns()
            yield first, block[: g.n - first, : e - o]
            trace.record("compute", start_ns)
