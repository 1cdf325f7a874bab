"""AᴴA or A Aᴴ of a matrix whose rows, or columns, are streamed.

With the rows cut into blocks X, AᴴA is the sum of all XᴴX, of which one triangle is computed
(BLAS's herk). It stays in memory while the rows are streamed. If it does not fit, it is computed in
parts, with a pass over A for each (`outcore.linalg._products.gram_plan`). A Aᴴ is the same with the
columns of A as rows, and conjugated.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore._util.communicator import TIMEOUT_S
from outcore._util.counts import is_finite
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import wait
from outcore.array.array import Array
from outcore.blas.calls import Trans
from outcore.blas.lapack import Kernels, kernels
from outcore.errors import Interrupted, InvalidError
from outcore.layout.elements import array_of
from outcore.layout.zarr_format import check_dtype
from outcore.linalg._output.open_results import opens_results
from outcore.linalg._output.result import claimed, written
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._products.gram_plan import (
    GramGeometry,
    GramProblem,
    Part,
    check_arguments,
    dealt_gram_geometry,
)
from outcore.linalg._rows.agreement import agreed_steps
from outcore.linalg._rows.kept_state import KeptState
from outcore.linalg._rows.merge import Merging, Message, Use, seconds_of
from outcore.linalg._rows.merge_plan import Strips
from outcore.linalg._rows.report import row_report
from outcore.linalg._rows.shares import Shares
from outcore.linalg._rows.source import (
    RowsLike,
    RowSource,
    StoredRows,
    own_rows,
    row_source,
)
from outcore.linalg._rows.stream import (
    Transform,
    allocated,
    check_finite,
    refuse_overflow,
    side_by_side,
    streams,
)
from outcore.linalg._tiles.grains import cut
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import open_whole_chunks
from outcore.linalg._tiles.result_dtype import work_dtype
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing
from outcore.processes.team import Team
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

Triangle: TypeAlias = Literal["both", "lower"]

_WHY = "the call of gram that wrote it was stopped; call it again"
_MOST_ELEMENTS = 2**31 - 1
_MIRROR = 256
"""Size of the squares in which a triangle is mirrored."""


@opens_results()
def gram(
    made: Made,
    A: RowsLike,
    *,
    side: Literal["left", "right"] = "left",
    alpha: float = 1.0,
    shift: float = 0.0,
    transform: Transform | None = None,
    dtype: npt.DTypeLike | None = None,
    triangle: Triangle = "both",
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Any, Report]:
    """Compute alpha AᴴA + shift I, or alpha A Aᴴ + shift I.

    With `comm`, each process of a parallel program reads its own part of the rows, or of the
    columns, and the processes add up their products. All of them get the result and its report.

    Parameters
    ----------
    A
        (m, n): an array on disk or its path, a NumPy array or memmap, an object with shape, dtype
        and slicing, or an iterator: of blocks of rows for ``side="left"``, of blocks of columns,
        (m, any), for ``side="right"``. Integers become float64.
    side
        ``"left"`` for AᴴA, (n, n), reading A by rows; ``"right"`` for A Aᴴ, (m, m), by columns.
    alpha, shift
        Real numbers: a factor of the product, and a number that is added to the diagonal.
    transform
        Called with each block of rows (of columns for ``side="right"``), as it was read. It returns
        the block to use, of the same shape, for instance with columns centred and scaled. It gets a
        limited number of whole rows (columns), and must not keep references to them.
    dtype
        Element type of the result and the arithmetic; by default that of `A`.
    triangle
        ``"both"``, or ``"lower"`` for the lower triangle only, which `cho_factor` reads, with zeros
        above.
    memory
        Budget; by default half of the available memory. A result in memory counts against it.
    out
        Directory of a result on disk. If the result does not fit into the budget, it is computed in
        parts, with a pass over `A` for each.
    if_exists
        ``"open"`` opens a complete result at `out` if the same call made it, with the same
        operands. ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call with the same arguments and a result on disk, if `A` is an array on
        disk or of NumPy, and there is no `transform`.
    threads, progress
        As for `qr`.
    comm, timeout
        As for `lstsq`. The processes divide A into parts that fit into the smallest of their
        budgets. The first process writes a result on disk.

    Returns
    -------
    G : numpy.ndarray or Array
        The product; on disk if `out` is given, in Fortran order.
    report : Report

    Raises
    ------
    InvalidError
        If `A` is not a usable matrix, the result overflows, or the processes have different
        arguments.
    DiskError
        If another process does not answer in time.
    BudgetError
        If the budget is too small for a result that must fit. Results in memory must fit, those of
        an iterator, whose rows can be read only once, and those of a `transform`, which needs whole
        rows.
    NonFiniteError
        If `A` has a NaN or an infinity, with its index.
    ExistsError
        If `out` exists.
    Interrupted
        After Ctrl-C or SIGTERM. With `out` a later call resumes.

    Notes
    -----
    m n² operations (n m² for ``side="right"``), four times that for complex types: half of a full
    product. One pass reads m n words. The normal equations square the condition number of A: for
    least squares use `lstsq`. Source: Beaumont, Eyraud-Dubois, Vérité & Langou 2022, *I/O-optimal
    algorithms for symmetric linear algebra kernels*, for the lower bound.
    """
    check_arguments(side, triangle)
    for name, number in (("alpha", alpha), ("shift", shift)):
        if not is_finite(number):
            raise InvalidError(f"{name} must be a real number, have {number!r}")
    alpha, shift = float(alpha), float(shift)
    with Sharing(comm, timeout) as sharing:
        source = row_source("A", A, transposed=side == "right")
        kind = _result_dtype(source, dtype, transform)
        if transform is None:
            source.deliver(kind)
        arguments = {
            "side": side, "alpha": alpha, "shift": shift, "triangle": triangle, "dtype": str(kind)
        }  # fmt: skip
        how = {"transform": transform is not None, "out": out}
        how |= {"if_exists": if_exists, "resume": resume}
        # The behaviour of a transform may change without a trace.
        steps = agreed_steps(
            "gram", {"A": (source, A)}, arguments, how, memory, made, sharing,
            is_known=transform is None,
        )  # fmt: skip
        shares, (part,) = own_rows([source], sharing)
        problem = GramProblem(
            source.layout, kind, out is not None, transform is not None,
            _one_pass(source, transform), sharing.size,
        )  # fmt: skip
        geometry = steps.planned(
            lambda memory_bytes: dealt_gram_geometry(problem, memory_bytes, shares)
        )
        read = [source.array] if isinstance(source, StoredRows) else []
        try:
            with (
                claimed(out, read, if_exists=if_exists, why=_WHY, sharing=sharing) as where,
                long_call(
                    "A Aᴴ" if side == "right" else "AᴴA", memory_bytes=steps.memory_bytes,
                    work=geometry.flops(part.rows) if part.rows else None,
                    threads=sharing.threads(threads), progress=sharing.progress(progress),
                ) as call,
            ):  # fmt: skip
                into: AbstractContextManager[Array | None] = nullcontext()
                if where is not None:
                    into = written(where, geometry.metadata(), _WHY, steps)
                with into as target, Team(sharing) as team:
                    product = _Product(
                        part, geometry, call, alpha, shift, transform, side, triangle, team, shares
                    )  # fmt: skip
                    if target is None:
                        G: Any = product.in_memory()
                    else:
                        product.on_disk(target, steps)
                        G = target
                notes = steps.notes(geometry.steps)
                return G, whole_report(product.report(notes), team)
        except KeyboardInterrupt as error:
            raise Interrupted(steps.stopped("the product", "gram", error)) from None


def _result_dtype(
    source: RowSource, dtype: npt.DTypeLike | None, transform: Transform | None
) -> np.dtype[Any]:
    if dtype is None:
        return work_dtype("A", source.layout.dtype)
    kind = check_dtype(dtype)
    if work_dtype("the result", kind) != kind:
        raise InvalidError(f"dtype must be float32, float64, complex64 or complex128, have {kind}")
    if transform is None and not np.can_cast(source.layout.dtype, kind, "same_kind"):
        raise InvalidError(f"dtype={kind} cannot hold the elements of A, {source.layout.dtype}")
    return kind


def _one_pass(source: RowSource, transform: Transform | None) -> str:
    """Return the reason why only one pass is possible; empty if there is none."""
    if not source.can_repeat:
        return "the rows of an iterator pass only once"
    return "" if transform is None else "transform needs whole rows"


class _Product:
    """The computation of G, part by part."""

    def __init__(
        self,
        source: RowSource,
        geometry: GramGeometry,
        call: LongCall,
        alpha: float,
        shift: float,
        transform: Transform | None,
        side: str,
        triangle: str,
        team: Team,
        shares: Shares,
    ) -> None:
        self._source, self._g, self._call = source, geometry, call
        self._team, self._shares = team, shares
        self._alpha, self._shift, self._transform = alpha, shift, transform
        self._is_right, self._is_full = side == "right", triangle == "both"
        if transform is not None and self._is_right:
            self._transform = lambda block: array_of(transform(block.T), "a block of transform").T
        self._kernels = kernels(geometry.dtype)
        self._memory = allocated(call, (geometry.part_words, 1), geometry.dtype)
        self._read = self._wrote = self._rows = 0
        self._merging = Merging(
            team, shares, geometry.messages.most_words, geometry.dtype, call,
            seconds_of(shares, [geometry.A], geometry.flops(shares.most)),
        )  # fmt: skip

    def in_memory(self) -> Matrix:
        """Compute G, (n, n)."""
        (part,) = self._g.parts
        G = self._compute(part, 0, lambda block: None)
        self._merging.spread(*self._carried(part, G, np.copyto))
        if self._is_full:
            mirror(G)
        return G

    def on_disk(self, target: Array, steps: StepsDone) -> None:
        """Compute G, and let the first process write it.

        A step is a block of rows in the pass of a part. A process that a stopped call left in a
        later part than others repeats theirs.
        """
        g, call = self._g, self._call
        # The sum of row-major blocks is conjugated.
        identity = zlib.crc32(repr((g.parts.edges, g.parts.is_tiled, g.rows.order)).encode())
        kept = KeptState(target, steps, [g.rows.height, identity], [self._memory], call)
        done = kept.load(g.steps)
        is_idle = self._source.rows == 0
        reached = self._team.all_of(len(g.parts) if is_idle else done // max(g.blocks, 1))
        first = min(reached)
        done = done if reached[self._team.rank] == first else first * g.blocks
        for part in g.parts[:first]:
            call.meter.skip(g.part_flops(part))
        file = open_whole_chunks(
            target, self._call, self._g.target_bounce_bytes, number=2, writable=True
        )

        def make_durable() -> None:
            # This syncs the parts that are already written.
            wait(file.submit_sync(), call.trace)

        for number, part in enumerate(g.parts[first:], first):
            before = number * g.blocks

            def passed(block: int, before: int = before) -> None:
                if block < g.blocks:
                    kept.passed(before + block, g.steps, make_durable)

            C = self._compute(part, max(done - before, 0), passed)
            if self._team.rank == 0:
                self._write(part, C, file)
            kept.passed(before + g.blocks, g.steps, make_durable)
        self._wrote = file.counters()[1]

    def _write(self, part: Part, C: Matrix, file: ArrayFile) -> None:
        square = part.columns.stop - part.columns.start
        if part.is_on_diagonal and self._is_full:
            mirror(C[:square, :square])
        for transposed, rows, columns in self._g.boxes(part, is_full=self._is_full):
            data = C[: rows.stop - rows.start, : columns.stop - columns.start]
            if transposed:
                below = columns.start - part.rows.start
                data = C[below : below + columns.stop - columns.start, :square].T
                if C.dtype.kind == "c":
                    np.conjugate(data, out=data)
            wait(file.submit_write([rows.start, columns.start], [1, 1], data), self._call.trace)

    def _compute(self, part: Part, begun: int, passed: Callable[[int], None]) -> Matrix:
        """Stream the rows for one part, from block `begun`; call ``passed(blocks)`` after each."""
        g, call = self._g, self._call
        shape = g.part_shape(part)
        C: Matrix = self._memory[: shape[0] * shape[1], 0].reshape(shape, order="F")
        if not begun:
            C[...] = 0
        rows, columns = (s.stop - s.start for s in (part.rows, part.columns))
        inside = C[:rows, :columns]
        plans = g.plans(part)
        narrowed = [
            self._source.narrowed(group.start, group.stop) if len(g.parts) > 1 else self._source
            for group in ((part.rows,) if part.is_on_diagonal else (part.rows, part.columns))
        ]
        work, first_row = g.part_flops(part, rows=1), begun * g.rows.height
        call.meter.skip(first_row * work)
        with streams(narrowed, plans, call, self._transform, first_row) as opened:
            for block, (first, blocks) in enumerate(side_by_side(opened, first_row), begun + 1):
                self._team.check()
                for source, data in zip(narrowed, blocks, strict=True):
                    check_finite(
                        source.name, source.first_row + first, data,
                        source.first_column + source.layout.skip, transposed=self._is_right,
                    )  # fmt: skip
                start_ns = call.trace.now_ns()
                add_product(self._kernels, blocks, inside, self._alpha, plans[0].order)
                call.trace.record("compute", start_ns)
                call.meter.advance(len(blocks[0]) * work)
                self._rows = first + len(blocks[0])
                passed(block)
        self._read += sum(source.bytes_read() for source in narrowed)
        # Row-major blocks are the transposes of the BLAS's operands, so their products are
        # conjugated; those of columns must be conjugated. Matrices of processes differ in order.
        if C.dtype.kind == "c" and (plans[0].order == "C") != self._is_right:
            np.conjugate(inside, out=inside)
        self._add_up(part, inside)
        if self._team.rank == 0:
            if part.is_on_diagonal:
                for j in range(columns):
                    inside[j, j] += self._shift
            refuse_overflow(inside)
        return C

    def _add_up(self, part: Part, C: Matrix) -> None:
        """Add the products of other processes; afterwards the first process has the sum."""

        def add(lines: Matrix, those: Matrix) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                lines += those

        self._merging.join(*self._carried(part, C, add))

    def _carried(
        self, part: Part, C: Matrix, use: Callable[[Matrix, Matrix], None]
    ) -> tuple[Strips, Use, Use]:
        """Return the messages with the columns of a part, and functions to fill and use one."""
        strips = self._g.strips(part)

        def sides(columns: slice, message: Message) -> tuple[Matrix, Matrix]:
            lines = C[columns.start if strips.is_triangle else 0 :, columns]
            return lines, message.reshape(lines.shape, order="F")

        def give(columns: slice, message: Message) -> None:
            lines, those = sides(columns, message)
            those[...] = lines

        return strips, give, lambda columns, message: use(*sides(columns, message))

    def report(self, notes: list[str]) -> Report:
        """Return the report of this process."""
        g, team = self._g, self._team
        rows = self._rows if team.size == 1 else self._shares.edges[-1]
        shape = (g.n, rows) if self._is_right else (rows, g.n)
        written = 0 if team.rank else g.bytes_written(is_full=self._is_full)
        report = row_report(
            Report, self._call, "gram", shape, g.dtype, method=g.method,
            flops=g.flops(self._rows), moved=(self._read, self._wrote),
            planned=(g.bytes_read(), written), is_stored=g.A.is_stored, arrays=("A", "A", "G"),
            notes=notes,
        )  # fmt: skip
        if team.size > 1:
            report.processes = [process_figures(report, team.sent, g.sent(self._shares))]
        report.words_lower_bound = g.words_lower_bound(is_full=self._is_full)
        return report


def add_product(
    kernels: Kernels, blocks: list[Matrix], C: Matrix, alpha: float, order: str
) -> None:
    """Compute C <- C + alpha XᴴY for blocks X and Y of the same rows.

    Row-major blocks yield the conjugate.

    With one block X, Y is its first columns, and only the lower triangle of the square on the
    diagonal of C is computed.
    """
    X = blocks[0].T if order == "C" else blocks[0]
    k = C.shape[1]

    def product(left: Matrix, right: Matrix, to: Matrix) -> None:
        if order == "C":
            kernels.gemm(left, right, to, alpha=alpha, trans_b="C")
        else:
            kernels.gemm(left, right, to, alpha=alpha, trans_a="C")

    # BLAS counts in 32-bit integers, which limits the columns of C per call.
    for columns in cut(0, k, max(_MOST_ELEMENTS // len(C), 1)):
        if len(blocks) == 2:
            Y = blocks[1].T if order == "C" else blocks[1]
            product(X, _part(Y, columns, order), C[:, columns])
            continue
        first, below = _part(X, columns, order), slice(columns.stop, None)
        trans: Trans = "N" if order == "C" else "C"
        kernels.herk(first, C[columns, columns], alpha, lower=True, trans=trans)
        if columns.stop < len(C):
            product(_part(X, below, order), first, C[below, columns])


def _part(X: Matrix, columns: slice, order: str) -> Matrix:
    """Return some columns of a block, which may be transposed."""
    return X[columns] if order == "C" else X[:, columns]


def mirror(G: Matrix) -> None:
    """Fill the upper triangle of a Hermitian matrix from the lower one."""
    for rows in cut(0, len(G), _MIRROR):
        for columns in cut(0, rows.start, _MIRROR):
            G[columns, rows] = G[rows, columns].conj().T
        square = G[rows, rows]
        square[...] = np.tril(square) + np.tril(square, -1).conj().T
