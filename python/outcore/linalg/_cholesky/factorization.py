"""Cholesky factorization out of core, by slabs of columns that grow.

Left-looking, like LU (`outcore.linalg._lu.factorization`), but for one triangle. The matrix is cut
into slabs of columns that fit in memory from their diagonal down, so slabs become wider to the
right::

    for each slab C = A[o:, slab]:
        for each earlier panel K:    C <- C - L_K L_K[slab]ᴴ    # rows o: of L_K come from the disk
        for each panel K of C:       C_K = L_K L_KKᴴ            # and is applied to those right
        write C;  sync;  journal

Flops: n³/3. Words read and written: about n⁴/(12 M) + n² with M words of memory. If that is many,
slabs are wider than memory, which holds them in parts: roughly square blocks. The first part, with
the diagonal, is factored as above, then each part below it::

    for each part C = A[rows, slab]:
        for each earlier panel K:    C <- C - L_K[rows] L_K[slab]ᴴ
        for each panel K of C:       C_K <- C_K L_KKᴴ⁻¹;  C <- C - C_K L_K[slab]ᴴ   # right of K

Such slabs move about n³/(3 √M) + n² words (`docs/numerics-cholesky.md`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike, check_progress
from outcore._util.streams import Pending, kept, polled, timed, wait
from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.errors import InvalidError, NotPositiveDefiniteError
from outcore.linalg._cholesky.checks import Sums
from outcore.linalg._cholesky.conveyor import CholeskyConveyor, Source
from outcore.linalg._cholesky.geometry import CholeskyGeometry, Part
from outcore.linalg._cholesky.pieces import Piece, apply_blocks, factor_panel, solve_panel
from outcore.linalg._cholesky.plan import (
    dealt_cholesky_geometry,
    flops,
    own_flops,
    panel_flops,
    update_flops,
)
from outcore.linalg._cholesky.storage import CholeskyStorage
from outcore.linalg._factors.agreement import agree_on_factoring
from outcore.linalg._factors.begin import Method, Order, Tile, open_storage
from outcore.linalg._factors.left_looking import LeftLooking, running
from outcore.linalg._lu.choice import refuse_for_several
from outcore.linalg._output.factor import CHOLESKY, CholeskyFactor
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import Record
from outcore.linalg._output.own import opened_factors
from outcore.linalg._tiles.assumptions import warn_not_hermitian
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.team import Team
from outcore.processes.blocks import Blocks, Expected, Sent
from outcore.processes.broadcasts import blocks_of
from outcore.processes.sharing import Sharing, seconds_for
from outcore.report.longcall import LongCall
from outcore.storage.volumes import PathLike


def cho_factor(
    A: Array | PathLike,
    *,
    lower: bool = True,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite_a: bool = False,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> CholeskyFactor:
    """Factor a Hermitian positive definite A = L Lᴴ, A and the factor on disk.

    With `comm`, the processes of a parallel program work together, as in `lu_factor`. The factor
    has the same format whatever number of processes made it.

    Parameters
    ----------
    A
        (n, n) array on disk, or its path, of a number type of at most double precision. Imaginary
        parts of its diagonal are taken as zero, as in LAPACK.
    lower
        The triangle of `A` to read. The other one may be zero. With default chunks, the
        lower triangle is faster to read in ``order="F"``, the upper (`False`) in ``order="C"``. L
        is the same up to rounding errors in `A`.
    memory
        Budget of each process, as for `lu_factor`: see ``oc.plan("cholesky", ...)``.
    out
        Directory for the factor; by default that of `A` with ``.cho`` appended.
    overwrite_a
        Let the factor take the disk space of `A`, whose content is lost at once. `A` must be in
        ``order="F"`` with default chunks, and ``lower=True``.
    if_exists
        ``"open"`` opens a complete factor of the same `A` at `out`, with its report.
        ``"overwrite"`` replaces a complete factor there.
    dtype, resume, threads, progress, comm, timeout
        As for `lu_factor`.

    Returns
    -------
    CholeskyFactor
        Factor for `cho_solve`. ``.report`` describes the call.

    Warns
    -----
    SymmetryWarning
        If diagonal blocks of `A` are not Hermitian. They are read whole. The call notices no
        differences elsewhere, and none if the other triangle is zero.

    Raises
    ------
    InvalidError
        If `A` is not square, or has an unsupported type or layout, or the processes have different
        arguments.
    NotPositiveDefiniteError
        If `A` is not positive definite. It is a `numpy.linalg.LinAlgError`, like the error of
        `scipy.linalg.cholesky`.
    DiskError
        If another process does not answer in time.
    BudgetError, DiskFullError
        Before any work, if memory or disk space do not suffice.
    NonFiniteError
        If the triangle that is read has a NaN or an infinity. The error gives its index.
    ExistsError, BusyError, JournalError
        If `out` holds a complete factor, is in use, or holds a stopped run on other input.
    Interrupted
        After Ctrl-C or SIGTERM. The same call resumes.
    """
    with Sharing(comm, timeout, "cho_factor") as sharing:
        check_progress(progress)
        job = Factoring(
            A, sharing.budget(memory), out, dtype, overwrite_a, if_exists, resume,
            sharing.threads(threads), sharing.progress(progress),
        )  # fmt: skip
        factor, difference = factor_cholesky(job, sharing, lower=lower)
    if difference:
        warn_not_hermitian(difference, "factor with lu_factor, or correct the matrix")
    return factor


def factor_cholesky(
    job: Factoring, sharing: Sharing | None = None, *, lower: bool
) -> tuple[CholeskyFactor, str]:
    """Run `cho_factor`; return also two elements that show that A is not Hermitian, for users."""
    sharing = sharing or Sharing()
    agree_on_factoring("Cholesky", job, "slabs", sharing)
    sharing.agree({"lower=": lower})
    if sharing.size > 1:
        refuse_for_several("slabs", overwrite_a=job.overwrite_a)
    if job.overwrite_a and not lower:
        raise InvalidError("overwrite_a needs lower=True; read the lower triangle, or leave it out")
    ready = opened_factors(job, CholeskyFactor, lower=lower)
    if ready is not None:
        return ready, ""
    budgets = tuple(sharing.exchange(job.memory_bytes))

    def cut(
        n: int, dtype: np.dtype[Any], memory_bytes: int, tile: Tile, order: Order
    ) -> CholeskyGeometry:
        return dealt_cholesky_geometry(n, dtype, budgets, sharing.rank, tile, order)

    method = Method(cut, CholeskyStorage, CHOLESKY, lower)
    with open_storage(method, job, sharing) as storage:
        g = storage.geometry
        work = flops(g.n, g.dtype) if sharing.size == 1 else own_flops(g)
        left = own_flops(g, storage.first_panel)
        with running(storage, job, "Cholesky", work, left) as call:
            loads, is_transposed = storage.loads, not storage.lower
            file, is_transposed = storage.to_load(loads, call, is_transposed=is_transposed)
            with Team(kernels(g.dtype)) as team:
                _Factorization(storage, call, Source(file, loads, is_transposed), team).run()
            return storage.finish(call, left), storage.state.get("difference", "")


class _Factorization(LeftLooking[Part]):
    """The steps of the algorithm."""

    def __init__(
        self, storage: CholeskyStorage, call: LongCall, source: Source, team: Team
    ) -> None:
        g = storage.geometry
        super().__init__(storage, call, g.read_bytes, g.block_bytes)
        self.g, self.lower = g, storage.lower
        self.kernels, self.team = kernels(g.dtype), team
        self.sums = Sums(g.n, g.dtype, storage.metadata.dtype, lower=storage.lower)
        self.blocks = self._blocks()
        self.conveyor: CholeskyConveyor = CholeskyConveyor(g, storage, call, source)

    def _blocks(self) -> Blocks:
        """Return the source of panels: the disk, and the other processes."""
        g, processes = self.g, self.storage.team
        # The owner of a block may first have to update and factor a panel.
        panels = max(g.deal.counts) if processes.size > 1 else 0
        most_flops = update_flops(g, 0) * panels * g.columns + panel_flops(g, 0)
        more_s = seconds_for(g.ring_bytes, most_flops)
        ring = g.ring_bytes // g.block_bytes
        return blocks_of(
            self.stream, processes, self.call, g.ring_blocks, ring, g.block_bytes, more_s
        )

    def run(self) -> None:
        """Factor all parts that are not factored yet."""
        with self.blocks:
            super().run()
        self.storage.sent = self.blocks.sent

    def parts(self) -> list[Part]:
        """Return the parts that are not factored yet."""
        g = self.g
        return [part for slab in g.slabs(self.storage.first_panel) for part in g.parts(slab)]

    def read_before(self, part: Part) -> None:
        """Schedule the reads of panels to the left of the run's first part."""
        self.expect(range(part.slab.first), part)
        self.read_ahead(range(part.slab.first), part)

    def work_on(self, part: Part, following: Part | None) -> None:
        """Complete a part of a slab, given all panels to the left and the parts above."""
        pieces = self.conveyor.begin(part, following)
        if part.is_first:
            self.factor_part(part, following, pieces)
        else:
            self.solve_part(part, following, pieces)
        if part.is_last:
            slab = part.slab
            extremes = self.sums.take(self.g.extent(slab.first)[0])
            self.storage.commit_later(
                Record(slab.first, slab.last, None, self.storage.places_of(slab), extremes)
            )

    def factor_part(self, part: Part, following: Part | None, pieces: list[Piece]) -> None:
        """Factor a slab, or its first part, which contains the diagonal."""
        conveyor, slab = self.conveyor, part.slab
        columns = self.columns_of(part.panels)
        arrivals = self.looked_at(part)
        here = slab.first
        for K in range(slab.first):
            if K == 0:
                self.update_as_they_come(part, arrivals, pieces)
                here = slab.last
            else:
                apply_blocks(self.team, self.blocks_of(K, part), pieces, columns)
            self.advance(K, part, part.panels)
            self.storage.commit_if_durable()

        if self.g.deal.size > 1 and not slab.first:
            # No process keeps the panels of others for panels that arrive later.
            here = max([slab.last, *arrivals])
        self.expect(part.panels[:-1], part)
        if following is not None:
            self.expect(range(following.slab.first), following)
        self.read_ahead(range(slab.first), following)
        begin = slab.first
        for K in part.panels:
            if here == K:
                # Only in the first slab: its panels are factored while later ones are still
                # loading. Once all have arrived, final panels are written and free their memory.
                is_rest = slab.last - K <= 2 * K
                here = max(arrivals if is_rest else itertools.islice(arrivals, max(K, 1)))
                if here == slab.last:
                    self.let_go(range(slab.first, K), following)
                for J in range(slab.first, K):
                    self.update_in_memory(range(J, J + 1), part, range(K, here), pieces)
            is_whole = here == slab.last
            if is_whole and begin == K:
                conveyor.poll()
            if self.holds(K):
                self.factor(K, part)
            sent = self.share(K, part)
            if is_gone := is_whole and sent.done():
                self.let_go(range(K, K + 1), following)
            if is_whole and begin == K and conveyor.is_beside_next(K):
                # Two panels are applied at once, so C is traversed once instead of twice.
                self.update_in_memory(range(K, K + 1), part, range(K + 1, K + 2), pieces)
                continue
            self.update_in_memory(range(begin, K + 1), part, range(K + 1, here), pieces)
            if is_whole and not is_gone:
                # The conveyor may replace the panel once it is written.
                wait(sent, self.call.trace)
                self.let_go(range(K, K + 1), following)
            begin = K + 1

    def holds(self, K: int) -> bool:
        """Whether this process holds a panel."""
        return self.g.deal.owner(K) == self.g.deal.rank

    def share(self, K: int, part: Part) -> Pending:
        """Send the L of a panel of the slab to processes that have panels right of it."""
        g = self.g
        if g.deal.size == 1 or not self.holds(K) or part.slab.last - 1 == K:
            return Sent()
        top, panel = self.conveyor.whole_panel(K)
        blocks = [
            (tiles.start * g.rows - top, tiles.stop * g.rows - top) for tiles in g.blocks(part, K)
        ]
        return self.blocks.offer([panel[first:end] for first, end in blocks])

    def expect(self, panels: range, part: Part) -> None:
        """Name the blocks of panels that a part needs, if processes send them to each other."""
        g = self.g
        for K in panels if g.deal.size > 1 else ():
            is_on_disk, blocks = part.slab.first > K, g.blocks(part, K)
            for number, tiles in enumerate(blocks):
                expected = Expected(
                    g.deal.owner(K), (len(tiles) * g.rows, g.columns), g.dtype, is_on_disk
                )
                # Those beside the columns stay until the panel's last one, and are among these.
                if number < g.ring_blocks:
                    kept = max(len(blocks) - 1 - number, expected.kept)
                    expected = expected._replace(kept=kept)
                self.blocks.expect([expected])

    def let_go(self, panels: range, following: Part | None) -> None:
        """Write final panels, and schedule their reads for the following part."""
        for K in panels:
            if self.holds(K):
                self.conveyor.panel_done(K)
            self.read_ahead(range(K, K + 1), following)

    def update_as_they_come(self, part: Part, arrivals: Iterator[int], pieces: list[Piece]) -> None:
        """C <- C - L_0 L_0[C]ᴴ, for the first eighth of C's panels, while the others are loading.

        The memory of the others still holds the last panels of the previous slab. Blocks of L_0 are
        kept for them, as many as fit in memory.
        """
        blocks, poll = self.taken(0, part), self.conveyor.poll
        held: list[tuple[int, Matrix]] = []
        L: Iterable[tuple[int, Matrix]] = kept(
            itertools.islice(blocks, self.g.ring_blocks), held, poll
        )
        columns, panels = self.columns_of(part.panels), self.conveyor.panels_of(part)
        done = columns.start
        for share in (8, 4, 2, 1) if panels else ():
            end = panels[-(-len(panels) // share) - 1] + 1
            some = slice(done, self.g.extent(end - 1)[1])
            if some.start < some.stop:
                next(here for here in arrivals if here >= end)
                apply_blocks(self.team, timed(L, self.call.trace), pieces, some)
                done, L = some.stop, polled(held, poll)
        if not panels:
            next(arrivals, None)
        # Free the blocks that are no longer needed, for further blocks.
        held[:] = [block for block in held if block[0] < columns.stop]
        apply_blocks(self.team, timed(blocks, self.call.trace), pieces, columns, held)

    def solve_part(self, part: Part, following: Part | None, pieces: list[Piece]) -> None:
        """Solve for a part below the diagonal: C <- (C - L[part] L[slab]ᴴ) L_slab⁻ᴴ."""
        slab, columns = part.slab, self.columns_of(part.panels)
        C = pieces[0].part(self.g.rows_of(part, slab.first), columns)
        max(self.looked_at(part))
        for K in range(slab.first):
            apply_blocks(self.team, self.blocks_of(K, part), pieces, columns)
            self.advance(K, part, part.panels)
            self.storage.commit_if_durable()

        self.read_ahead(range(slab.first), following)
        for K in part.panels:
            o, e = self.g.extent(K)
            L = self.blocks_of(K, part)
            for _ in solve_panel(self.kernels, L, columns.start, slice(o, e), C):
                self.let_go(range(K, K + 1), following)
            self.call.meter.advance(panel_flops(self.g, K, part))
            self.advance(K, part, range(K + 1, slab.last))
            self.conveyor.poll()

    def columns_of(self, panels: range) -> slice:
        """Columns of `panels`."""
        return slice(self.g.extent(panels[0])[0], self.g.extent(panels[-1])[1])

    def factor(self, K: int, part: Part) -> None:
        """C_K = L_K L_KKᴴ."""
        start_ns = self.call.trace.now_ns()
        info = factor_panel(self.kernels, [P for _, P in self.conveyor.panel(K)])
        self.call.trace.record("compute", start_ns)
        if info:
            order = self.g.extent(K)[0] + info
            raise NotPositiveDefiniteError(
                f"{order}-th leading minor of {self.storage.name} is not positive definite; use "
                "lu_factor, or correct the matrix",
                order,
            )
        self.call.meter.advance(panel_flops(self.g, K, part))

    def update_in_memory(self, done: range, part: Part, panels: range, pieces: list[Piece]) -> None:
        """C <- C - L_K L_K[C]ᴴ, for panels C to the right of adjacent panels K of the same slab."""
        if not panels:
            return
        columns = self.columns_of(panels)
        if self.holds(done[0]):
            start_ns = self.call.trace.now_ns()
            apply_blocks(self.team, self.conveyor.panels(done), pieces, columns)
            self.call.trace.record("compute", start_ns)
        else:
            apply_blocks(self.team, self.blocks_of(done[0], part), pieces, columns)
        for K in done:
            self.advance(K, part, panels)

    def advance(self, K: int, part: Part, panels: range) -> None:
        """Report that panel K was applied to `panels`."""
        o, e = self.g.extent(K)
        held = self.g.deal.held(panels.start, panels.stop)
        done = sum(update_flops(self.g, panel, part) for panel in held)
        self.call.meter.advance((e - o) * done)

    def looked_at(self, part: Part) -> Iterator[int]:
        """Check the panels of A as they arrive; yield the number of the next panel."""
        for K in self.conveyor.arrivals():
            start_ns = self.call.trace.now_ns()
            for top, P in self.conveyor.panel(K):
                if not self.lower and self.g.dtype.kind == "c":
                    np.conjugate(P, out=P)
                self.sums.see(P, self.g.extent(K)[0], top)
            self.call.trace.record("compute", start_ns)
            yield K + 1

    def read_ahead(self, panels: range, part: Part | None) -> None:
        """Schedule reads of the L that a part needs, from earlier panels or its own slab."""
        g = self.g
        if part is None:
            return
        for K in g.deal.held(panels.start, panels.stop):
            place = self.storage.places[K]
            columns = slice(place * g.columns, (place + 1) * g.columns)
            rows = [slice(tiles.start * g.rows, tiles.stop * g.rows) for tiles in g.blocks(part, K)]
            self.blocks.read([(each, columns) for each in rows])
            for tiles in g.blocks(part, K):
                self.storage.remote_read += self.storage.remote_bytes(K, tiles)

    def blocks_of(self, K: int, part: Part) -> Iterator[tuple[int, Matrix]]:
        """Take panel K of L from the stream: (first row, block)."""
        return timed(self.taken(K, part), self.call.trace)

    def taken(self, K: int, part: Part) -> Iterator[tuple[int, Matrix]]:
        """Yield the same blocks as `blocks_of`, without timing them."""
        g = self.g
        o, e = g.extent(K)
        for tiles in g.blocks(part, K):
            block = self.blocks.take()
            first = tiles.start * g.rows
            yield first, block[: g.n - first, : e - o]
