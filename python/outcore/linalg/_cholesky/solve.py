"""Solves with a Cholesky factor on disk: one forward and one backward pass over L.

    A x = b with A = L Lᴴ:    L y = b,    Lᴴ x = y

Each pass reads the tiles on and below the diagonal, whatever the number of right-hand sides. With k
right-hand sides there are 2n²k flops (8n²k complex).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util import budget
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream
from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.linalg._cholesky.plan import cholesky_solve_bytes_read
from outcore.linalg._factors.sweeps import tile_bytes
from outcore.linalg._geometry.factor_plan import RING_BLOCKS, even_blocks
from outcore.linalg._lu.solve import cut_group, stopping_cleanly
from outcore.linalg._output.factor import CholeskyFactor, refuse_others
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.steps_done import Made
from outcore.linalg._rhs.condition import Probes, with_probes
from outcore.linalg._rhs.groups import Groups, report_on, solve_groups
from outcore.linalg._rhs.right_hand_side import RightHandSide, opened, substituted_in
from outcore.linalg._rhs.solutions import solution, system_of
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.widened import Converted
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report, keep
from outcore.storage.volumes import PathLike


@opens_results(beside("b", ".x"))
def cho_solve(
    made: Made,
    c: CholeskyFactor,
    b: npt.ArrayLike | Array | PathLike,
    *,
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> Any:
    """Solve A x = b with the Cholesky factor of A on disk.

    Parameters
    ----------
    c
        Factor from `cho_factor` or `open_factor`.
    b
        (n,) or (n, k): a NumPy array, or an array on disk or its path. The call solves for a `b` on
        disk in groups of as many columns as fit in memory; each group is a forward and a backward
        pass over L.
    dtype
        Type of the arithmetic and of the solution; by default NumPy's promotion of the factor and
        `b`. The call converts a factor of another type as it reads it. That adds no digits to the
        factor, but `b` is not rounded, and substitution adds no errors of its type.
    memory
        Budget of the passes; by default half of the available memory. It does not include a
        solution in memory, which belongs to the caller.
    out
        Directory of the solution on disk; by default that of an on-disk `b` with ``.x`` appended.
    if_exists
        ``"open"`` opens a whole result at `out` if the same call made it, with the same operands.
        ``"overwrite"`` replaces an array at `out`.
    resume
        As for `lu_solve`.
    threads, progress
        As for `cho_factor`.

    Returns
    -------
    numpy.ndarray or Array
        x, of the shape of `b`. Its type is the promotion of the factor and `b`, or `dtype`. It is
        on disk if `b` is or `out` is given, and its ``report`` then describes the call.
        `outcore.last_report` returns the report in either case.

    Raises
    ------
    InvalidError
        If `c` is not a Cholesky factor, or `b` does not fit it.
    BudgetError
        Before any work, if memory does not suffice.
    Interrupted
        After Ctrl-C or SIGTERM.
    """
    refuse_others(c, CholeskyFactor)
    b = opened(b)
    made_in = substituted_in(c.dtype, b, dtype)
    rhs = RightHandSide.read(
        c.n, made_in, b, "N", out, if_exists=if_exists, reads=[c.path], made=made
    )
    memory_bytes = budget.resolve(memory)
    x, report = solve_and_report(c, rhs, memory_bytes, threads, progress, resume=resume)
    keep(report, x)
    return x


def solve_and_report(
    c: CholeskyFactor,
    rhs: RightHandSide,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
    *,
    resume: bool = True,
    probes: int = 0,
) -> tuple[Any, Report]:
    """Run `cho_solve`, and return its report too; with `probes`, also estimate A's condition."""
    probes, (room, (block_tiles, most)) = with_probes(
        probes, lambda probes: cut_group(c, rhs, memory_bytes, probes)
    )
    system = None if rhs.out is None else system_of("cho_solve", c, rhs)
    with (
        stopping_cleanly("solving with", c),
        solution(rhs, system=system, resume=resume) as into,
    ):
        groups = Groups.of(rhs, most, into.done)
        planned = len(groups) * cholesky_solve_bytes_read(c.n, c.dtype, c.tile)
        with long_call(
            f"solving with {c.path.name}", memory_bytes=memory_bytes, work=planned,
            threads=threads, progress=progress,
        ) as call:  # fmt: skip
            file = c.open_tiles(call.arena, call.trace)
            probing = Probes(c.n, probes, rhs.dtype, call)

            def solve(X: Matrix, _: slice) -> None:
                beside = probing.take()
                matrices = [X] if beside is None else [X, beside]
                Passes(c, file, matrices, call, block_tiles).solve()

            moved = solve_groups(rhs, into, groups, solve, call, room)
            report = report_on(
                "cho_solve", c, rhs, groups, file.counters()[:2], planned, moved, call,
                probed_condition=probing.condition(c.norm1),
            )  # fmt: skip
    return into.x, report


class Passes:
    """The two passes, in place.

    The matrices may have a wider type than the factor. The arithmetic is then done in that type,
    and needs memory for one more block of that type.
    """

    def __init__(
        self,
        c: CholeskyFactor,
        file: ArrayFile,
        matrices: list[Matrix],
        call: LongCall,
        most_tiles: int,
    ) -> None:
        self.c, self.file, self.call, self.most_tiles = c, file, call, most_tiles
        self.matrices, self.kernels = matrices, kernels(matrices[0].dtype)
        self.panels = range(-(-c.n // c.tile[1]))

    def solve(self) -> None:
        """X <- A⁻¹ X."""
        self.forward()
        self.backward()

    def forward(self) -> None:
        """X <- L⁻¹ X."""
        for (o, e), first, L in self.blocks(self.panels):
            below, M = (e, L[e - o :]) if first == o else (first, L)
            for X in self.matrices:
                if first == o:
                    self.kernels.trsm(L[: e - o], X[o:e], lower=True, unit=False)
                self.kernels.gemm(M, X[o:e], X[below : below + M.shape[0]], alpha=-1, beta=1)

    def backward(self) -> None:
        """X <- L⁻ᴴ X."""
        for (o, e), first, L in self.blocks(self.panels[::-1]):
            below = max(first, e)
            M = L[below - first :]
            for X in self.matrices:
                self.kernels.gemm(
                    M, X[below : below + M.shape[0]], X[o:e], alpha=-1, beta=1, trans_a="C"
                )
                if first == o:
                    self.kernels.trsm(L[: e - o], X[o:e], lower=True, trans="C", unit=False)

    def blocks(self, panels: range) -> Iterator[tuple[tuple[int, int], int, Matrix]]:
        """Yield the blocks of `panels`, from the top, or from the bottom if the panels descend.

        An item is the columns of the panel, the first row of the block on or below the diagonal,
        and its rows from there on.
        """
        n, (rows, columns) = self.c.n, self.c.tile
        tiles = -(-n // rows)
        schedule = []
        for K in panels:
            cut = list(even_blocks(range(K * columns // rows, tiles), self.most_tiles))
            schedule += [(K, block) for block in (cut if panels.step > 0 else cut[::-1])]
        # Each pass has its own stream, with the blocks in the order of their use.
        block_bytes = self.most_tiles * tile_bytes(self.c)
        stream = BlockStream(
            self.file, self.c.dtype, self.call.arena, RING_BLOCKS * block_bytes, self.call.trace,
            least_bytes=block_bytes,
        )  # fmt: skip
        converted = Converted(self.c.dtype, self.matrices[0].dtype, block_bytes, self.call)
        stream.extend(
            (slice(t.start * rows, t.stop * rows), slice(K * columns, (K + 1) * columns))
            for K, t in schedule
        )
        for K, t in schedule:
            data = stream.take().data
            read_bytes = data.nbytes
            o, e = K * columns, min((K + 1) * columns, n)
            first = max(t.start * rows, o)
            start_ns = self.call.trace.now_ns()
            inside = data[first - t.start * rows : n - t.start * rows, : e - o]
            yield (o, e), first, converted(inside)
            self.call.trace.record("compute", start_ns)
            self.call.meter.advance(read_bytes)
