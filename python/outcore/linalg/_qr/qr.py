"""QR of a matrix with many more rows than columns: R with streamed rows, or also Q on disk."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore._util.communicator import TIMEOUT_S
from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore._util.streams import wait
from outcore.array.array import Array
from outcore.array_files.blocks_done import REFLECTIONS
from outcore.errors import Interrupted, InvalidError
from outcore.layout.zarr_format import MAX_TILE_BYTES, Metadata
from outcore.linalg._output.open_results import beside, opens_results
from outcore.linalg._output.result import claimed, columns_of, put, working_array, written
from outcore.linalg._output.steps_done import Made, StepsDone
from outcore.linalg._qr.plan import (
    QrGeometry,
    WideQrGeometry,
    check_mode,
    dealt_qr_geometry,
    qr_geometry,
    r_blocks,
)
from outcore.linalg._rhs.columns import TRANSFER_BYTES
from outcore.linalg._rows.agreement import agreed_steps
from outcore.linalg._rows.kept_state import KeptState
from outcore.linalg._rows.merge import Merging, seconds_of
from outcore.linalg._rows.merge_plan import Strips, q_sent, r_sent
from outcore.linalg._rows.plan import RowPlan
from outcore.linalg._rows.report import row_report, written_too
from outcore.linalg._rows.shares import ALONE, Shares
from outcore.linalg._rows.source import (
    RowsLike,
    RowSource,
    StoredRows,
    own_rows,
    row_source,
)
from outcore.linalg._rows.stream import allocated, check_finite, leave, refuse_overflow, streams
from outcore.linalg._rows.tall_q import TallQ, build_from_disk
from outcore.linalg._rows.tree_q import TreeQ
from outcore.linalg._rows.tsqr import ParallelQR
from outcore.linalg._rows.tsqr_plan import tsqr_flops
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import open_whole_chunks
from outcore.linalg._tiles.result_dtype import result_dtype
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import Sharing
from outcore.processes.team import Team, alone
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import PathLike, Place

Mode: TypeAlias = Literal["r", "economic"]

_WHY = "the QR that wrote it was stopped; call qr again"


def _default_place(given: Mapping[str, Any]) -> PathLike | None:
    """Return the default place of Q: beside the matrix on disk."""
    return beside("A", ".q")(given) if given["mode"] == "economic" else None


@overload
def qr(
    A: RowsLike,
    *,
    mode: Literal["r"] = "r",
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[npt.NDArray[Any], Report]: ...
@overload
def qr(
    A: RowsLike,
    *,
    mode: Literal["r"] = "r",
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Array, Report]: ...
@overload
def qr(
    A: RowsLike,
    *,
    mode: Literal["economic"],
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[Array, npt.NDArray[Any], Report]: ...
@opens_results(_default_place)
def qr(
    made: Made,
    A: RowsLike,
    *,
    mode: Mode = "r",
    dtype: npt.DTypeLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
    comm: Any = None,
    timeout: float = TIMEOUT_S,
) -> tuple[npt.NDArray[Any] | Array, Report] | tuple[Array, npt.NDArray[Any], Report]:
    """Factor A = Q R, with R in memory, reading each row of A once.

    With `comm`, each process of a parallel program reads its own part of the rows, and factors it.
    The triangles are merged in a tree. All processes get R, and each forms its rows of Q.

    Parameters
    ----------
    A
        (m, n): an array on disk or its path, a NumPy array or memmap, an object with shape, dtype
        and slicing, or, for ``mode="r"``, an iterator of blocks of rows of any heights. Integers
        become float64. The budget must hold R, for ``mode="economic"`` twice; for an iterator, n x
        n elements.
    mode
        ``"r"`` for R only; ``"economic"`` for R and Q on disk.
    dtype
        Type of the arithmetic and of the result, float32 to complex128; by default that of `A`.
    memory
        Budget; by default half of the available memory. R counts against it.
    out
        Directory of Q; by default that of `A`, if that is on disk, with ``.q`` appended. For
        ``mode="r"`` the directory of R, which is otherwise in memory.
    if_exists
        ``"open"`` opens a complete result at `out` if the same call made it, with the same
        operands. ``"overwrite"`` replaces an array at `out`.
    resume
        Resume a stopped call with the same arguments and a result on disk, if `A` is an array on
        disk or of NumPy.
    threads
        Number of BLAS threads; by default unchanged.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left). The
        length of an iterator is unknown: the function gets (0.0, NaN) until its end, and no bar is
        shown. Only the first of several processes shows a bar.
    comm, timeout
        As for `lstsq`. For Q, A has as many rows as columns, or more; the blocks fit into the
        smallest of the budgets, and each process writes its own rows of Q.

    Returns
    -------
    Q : Array
        (m, min(m, n)) on disk, with orthonormal columns; for ``mode="economic"`` only.
    R : numpy.ndarray or Array
        (min(m, n), n) upper triangular; on disk for ``mode="r"`` if `out` is given. As in SciPy,
        its diagonal may be negative.
    report : Report

    Raises
    ------
    InvalidError
        If `A` is not a usable matrix, the result overflows, or the processes have different
        arguments.
    DiskError
        If another process does not answer in time.
    BudgetError
        If the triangles and blocks of a few rows do not fit into the budget; `qr_factor`, with
        `form_q` for Q, needs less.
    NonFiniteError
        If `A` has a NaN or an infinity, with its index.
    ExistsError
        If `out` exists.
    Interrupted
        After Ctrl-C or SIGTERM. With a result on disk a later call resumes.

    Notes
    -----
    2 n² (m - n/3) operations for R, twice that with Q; four times that for complex types. For Q,
    the reflections are written beside it, and read back from the last block to the first. So 2 m n
    words are read and 2 m n written, and 2 m n words are on disk during the call. Q is orthogonal
    to rounding whatever the condition of A. Source: Demmel, Grigori, Hoemmen & Langou,
    *Communication-optimal parallel and sequential QR and LU factorizations*, SIAM J. Sci. Comput.
    34 (2012), section 4.2.
    """
    with Sharing(comm, timeout) as sharing:
        check_mode(mode)
        source = row_source("A", A)
        dtype = result_dtype({"A": source.layout.dtype}, dtype)
        source.deliver(dtype)
        if mode == "economic" and out is None:
            if not isinstance(source, StoredRows):
                raise InvalidError("A is not on disk, so Q needs a place; give out=")
            out = f"{source.array.place.stem}.q"
        arguments = {"mode": mode, "dtype": dtype.name}
        how = {"out": out, "if_exists": if_exists, "resume": resume}
        steps = agreed_steps("qr", {"A": (source, A)}, arguments, how, memory, made, sharing)
        n, work = source.columns, None
        if mode == "r":
            rows = _Rows(sharing, source.rows, *own_rows([source], sharing, n))
            if rows.count:
                work = tsqr_flops(rows.count, n, 0, dtype)
            plan = r_blocks(
                rows.part.layout, dtype, steps.memory_bytes, is_stored=out is not None,
                processes=sharing.size,
            )  # fmt: skip
        else:
            g, rows = _for_q(source, dtype, steps)
            work = g.flops if rows.count else None
        operands = [source.array] if isinstance(source, StoredRows) else []
        try:
            with (
                claimed(
                    out, operands, if_exists=if_exists, why=_WHY, sharing=sharing
                ) as where,
                long_call(
                    f"QR of {_name(source)}", memory_bytes=steps.memory_bytes, work=work,
                    threads=sharing.threads(threads), progress=sharing.progress(progress),
                ) as call,
            ):  # fmt: skip
                if mode == "r":
                    return _triangle(rows, plan, call, where, steps)
                assert where is not None, "Q has a place"
                if isinstance(g, WideQrGeometry):
                    return _with_square_q(source, g, call, where, steps)
                return _with_q(rows, g, call, where, steps)
        except KeyboardInterrupt as error:
            raise Interrupted(steps.stopped("QR", "qr", error)) from None


@dataclass(frozen=True)
class _Rows:
    """The rows of a process.

    Attributes
    ----------
    sharing, shares
        The processes, and the rows of each.
    all
        Number of rows of the matrix; `None` if unknown before the end.
    parts
        The source of the rows of this process.
    """

    sharing: Sharing
    all: int | None
    shares: Shares
    parts: list[RowSource]

    @classmethod
    def alone(cls, source: RowSource) -> _Rows:
        """Return all rows, for one process."""
        return cls(Sharing(), source.rows, ALONE, [source])

    @property
    def part(self) -> RowSource:
        """The source of the rows of this process."""
        return self.parts[0]

    @property
    def count(self) -> int | None:
        """Number of rows of this process; `None` if unknown before the end."""
        return self.part.rows


def _for_q(
    source: RowSource, dtype: np.dtype[Any], steps: StepsDone
) -> tuple[QrGeometry | WideQrGeometry, _Rows]:
    """Return the blocks for Q, and the rows of this process."""
    sharing = steps.sharing
    if sharing.size == 1:
        return qr_geometry(source.layout, dtype, steps.memory_bytes), _Rows.alone(source)
    # Blocks of all processes have one height, since they are chunks of one Q.
    shares, g = steps.planned(
        lambda memory_bytes: dealt_qr_geometry(
            source.layout, dtype, memory_bytes, sharing.size, sharing.rank
        )
    )
    return g, _Rows(sharing, source.rows, shares, [source.part(shares.own)])


def _name(source: RowSource) -> str:
    return source.array.place.title if isinstance(source, StoredRows) else source.name


def _factored(
    rows: _Rows, plan: RowPlan, call: LongCall, target: Array | None, steps: StepsDone, team: Team
) -> ParallelQR:
    """Factor the streamed rows of this process."""
    source, n, dtype = rows.part, plan.layout.columns, plan.dtype
    count = rows.count or 0
    row_work = tsqr_flops(count, n, 0, dtype) / count if count else 0.0
    factor = ParallelQR(plan, 0, call, most=source.rows if team.size == 1 else None)
    kept = KeptState(target, steps, [plan.height, *factor.cuts], factor.state, call)
    blocks = _blocks(source, plan)
    begun = kept.load(blocks)
    factor.rows = begun * plan.height
    call.meter.skip(factor.rows * row_work)
    with streams([source], [plan], call, first=factor.rows) as opened, factor.at_work():
        for block, (first, data, _) in enumerate(opened[0], begun + 1):
            team.check()
            check_finite(source.name, source.first_row + first, data)
            leave(opened, factor.share(data))
            call.meter.advance(len(data) * row_work)
            kept.passed(block, blocks, factor.settle)
        factor.finish()
    return factor


def _blocks(source: RowSource, plan: RowPlan) -> int:
    return -(-(source.rows or 0) // plan.height)


def _merged(rows: _Rows, factor: ParallelQR, plan: RowPlan, call: LongCall, team: Team) -> Matrix:
    """Return R of all processes, of the size of the triangle of each."""
    shares, n = rows.shares, plan.layout.columns
    if team.size > 1:
        more_s = seconds_of(shares, [plan.layout], tsqr_flops(shares.most, n, 0, plan.dtype))
        merging = Merging(team, shares, Strips(n, n).most_words, plan.dtype, call, more_s)
        merging.join_triangles(factor)
        merging.spread_triangle(factor.R)
    return factor.triangle()


def _triangle(
    rows: _Rows, plan: RowPlan, call: LongCall, where: Place | None, steps: StepsDone
) -> tuple[Matrix | Array, Report]:
    """Factor the streamed rows, and return R, in memory or on disk, and the report."""
    n, dtype, source = plan.layout.columns, plan.dtype, rows.part
    with contextlib.ExitStack() as stack:
        target, moved = None, (0, 0)
        if where is not None and rows.all is not None:
            shape = min(rows.all, n), n
            target = stack.enter_context(written(where, columns_of(shape, dtype), _WHY, steps))
        team = stack.enter_context(Team(rows.sharing))
        factor = _factored(rows, plan, call, target, steps, team)
        flops = tsqr_flops(factor.rows, n, 0, dtype) if factor.rows else 0.0
        m = factor.rows if rows.all is None else rows.all
        R = _merged(rows, factor, plan, call, team)[: min(m, n)]
        refuse_overflow(R)
        report = row_report(
            Report, call, "qr", (m, n), dtype,
            method=f"R of rows as they are read, {plan.height} at once", flops=flops,
            moved=(source.bytes_read(), 0), planned=(source.layout.bytes_read(), 0),
            is_stored=plan.layout.is_stored, arrays=("A", "R"),
            notes=steps.notes(_blocks(source, plan)),
        )  # fmt: skip
        if where is not None and target is None:
            # The length of an iterator is known only now.
            target = stack.enter_context(written(where, columns_of(R.shape, dtype), _WHY))
        if target is not None and team.rank == 0:
            moved = put(np.asfortranarray(R), target, call, TRANSFER_BYTES[0], number=1)
    if target is not None:
        written_too(report, 0 if team.rank else R.nbytes, moved, call)
    if team.size > 1:
        report.processes = [process_figures(report, team.sent, r_sent(n, dtype, rows.shares))]
    return R if target is None else target, whole_report(report, team)


def _with_square_q(
    source: RowSource, g: WideQrGeometry, call: LongCall, where: Place, steps: StepsDone
) -> tuple[Array, Matrix, Report]:
    """Factor a matrix with fewer rows than columns in memory, where R has its size."""
    # Chunks of whole columns have the same layout on disk and in memory.
    chunks = g.m, min(g.m, max(MAX_TILE_BYTES // (g.m * g.rows.dtype.itemsize), 1))
    metadata = Metadata((g.m, g.m), g.rows.dtype, chunks, "F", "column-major")
    with written(where, metadata, _WHY, steps) as target:
        factor = _factored(_Rows.alone(source), g.rows, call, target, steps, alone())
        refuse_overflow(factor.R)
        start_ns = call.trace.now_ns()
        Q = allocated(call, (g.m, g.m), g.rows.dtype)
        Q[...] = np.eye(g.m, dtype=g.rows.dtype)
        factor.apply_head(Q)
        call.trace.record("compute", start_ns)
        moved = put(Q, target, call, TRANSFER_BYTES[0], number=1)
    report = row_report(
        Report, call, "qr", (g.m, g.n), g.rows.dtype, method=g.method, flops=g.flops,
        moved=(source.bytes_read() + moved[0], moved[1]),
        planned=(g.rows.layout.bytes_read(), g.q_bytes),
        is_stored=isinstance(source, StoredRows), words_written=g.m**2, arrays=("A", "Q"),
        notes=steps.notes(_blocks(source, g.rows)),
    )  # fmt: skip
    return target, factor.triangle(), report


def _with_q(
    rows: _Rows, g: QrGeometry, call: LongCall, where: Place, steps: StepsDone
) -> tuple[Array, Matrix, Report]:
    """Write the reflections of the rows to disk, and form Q from them."""
    metadata = g.q.metadata(rows.all)
    with written(where, metadata, _WHY, steps) as target, Team(rows.sharing) as team:
        R, read, wrote = _form(rows, g, call, target, steps, team)
    report = row_report(
        Report, call, "qr", (rows.all or g.q.m, g.q.n), g.q.dtype, method=g.method,
        flops=g.flops if g.q.m else 0.0, moved=(rows.part.bytes_read() + read, wrote),
        planned=(g.rows.layout.bytes_read() + g.q.q_bytes(), 2 * g.q.q_bytes()),
        arrays=("A", "Q", "reflections"), notes=steps.notes(2 * g.q.blocks),
        is_stored=g.rows.layout.is_stored, words_written=float(g.q.m * g.q.n),
    )  # fmt: skip
    if team.size > 1:
        report.processes = [
            process_figures(report, team.sent, q_sent(g.q.n, g.q.dtype, rows.shares))
        ]
    return target, R, whole_report(report, team)


def _form(
    rows: _Rows, g: QrGeometry, call: LongCall, target: Array, steps: StepsDone, team: Team
) -> tuple[Matrix, int, int]:
    """Form Q; return R, and the bytes read and written besides A.

    A step is a block of rows, first of reflections, then of Q.
    """
    q, blocks, name = TallQ(g.q, call), g.q.blocks, steps.own(REFLECTIONS)
    kept = KeptState(target, steps, [g.q.height], q.state, call)
    begun = kept.load(2 * blocks, name)
    reduced, built = min(begun, blocks), max(begun - blocks, 0)
    q.go_on(reduced - built)
    call.meter.skip(min(begun * g.q.height, 2 * g.q.m) * g.q.row_work)
    file = open_whole_chunks(target, call, g.q.bounce_bytes, number=1, writable=True)
    reflections = file
    if blocks:
        beside = working_array(target, name, g.q.metadata(), anew=begun == 0)
        reflections = open_whole_chunks(beside, call, g.q.bounce_bytes, number=2, writable=True)
        _reduce(rows.part, g, call, q, reflections, reduced, kept, team)
    refuse_overflow(q.factor.R)
    if team.size > 1:
        more_s = seconds_of(rows.shares, [g.rows.layout], g.flops)
        merging = Merging(
            team, rows.shares, Strips(g.q.n, g.q.n).most_words, g.q.dtype, call, more_s
        )  # fmt: skip
        tree = TreeQ(q, merging, call)
        R = tree.merge()
        refuse_overflow(R)
        tree.part(is_needed=built == 0)
    if blocks:
        first_row = rows.shares.own.start

        def passed(number: int, make_durable: Callable[[], None]) -> None:
            team.check()
            kept.passed(blocks + number, 2 * blocks, make_durable)

        build_from_disk(
            q, reflections, file, call,
            lambda first, _, block: file.submit_write([first_row + first, 0], [1, 1], block),
            built, passed,
        )  # fmt: skip
    moved = [each.counters() for each in (reflections, file)]
    if team.size == 1:
        R = q.factor.triangle()
    return R, sum(m[0] for m in moved), sum(m[1] for m in moved)


def _reduce(
    source: RowSource,
    g: QrGeometry,
    call: LongCall,
    q: TallQ,
    file: ArrayFile,
    begun: int,
    kept: KeptState,
    team: Team,
) -> None:
    """Stream the rows from block `begun`, and write their reflections."""
    leaving: deque[Ticket] = deque()

    def make_durable() -> None:
        for ticket in leaving:
            wait(ticket, call.trace)
        leaving.clear()
        wait(file.submit_sync(), call.trace)

    first_row = min(begun * g.q.height, g.q.m)
    with streams([source], [g.rows], call, first=first_row) as (stream,):
        for block, (first, data, whole) in enumerate(stream, begun + 1):
            team.check()
            check_finite(source.name, source.first_row + first, data)
            q.add(data)
            # Rows beyond the matrix are padding, which must be zero.
            whole[len(data) :] = 0
            leaving.append(file.submit_write([first, 0], [1, 1], whole))
            stream.leave(leaving[-1])
            kept.passed(block, 2 * g.q.blocks, make_durable)
            while leaving and leaving[0].done():
                wait(leaving.popleft(), call.trace)
    # Only then its buffers are free.
    for ticket in leaving:
        wait(ticket, call.trace)
