"""QR of a matrix with many more rows than columns: R with streamed rows, or also Q on disk."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
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
    qr_geometry,
    r_blocks,
)
from outcore.linalg._rhs.columns import TRANSFER_BYTES
from outcore.linalg._rows.kept_state import KeptState
from outcore.linalg._rows.plan import RowPlan
from outcore.linalg._rows.report import row_report, written_too
from outcore.linalg._rows.source import (
    RowsLike,
    RowSource,
    StoredRows,
    known_operands,
    row_source,
)
from outcore.linalg._rows.stream import allocated, check_finite, leave, refuse_overflow, streams
from outcore.linalg._rows.tall_q import TallQ, build_from_disk
from outcore.linalg._rows.tsqr import ParallelQR
from outcore.linalg._rows.tsqr_plan import tsqr_flops
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import open_whole_chunks
from outcore.linalg._tiles.result_dtype import result_dtype
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
) -> tuple[npt.NDArray[Any] | Array, Report] | tuple[Array, npt.NDArray[Any], Report]:
    """Factor A = Q R, with R in memory, reading each row of A once.

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
        shown.

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
        If `A` is not a usable matrix, or the result overflows.
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
    check_mode(mode)
    source = row_source("A", A)
    dtype = result_dtype({"A": source.layout.dtype}, dtype)
    source.deliver(dtype)
    if mode == "economic" and out is None:
        if not isinstance(source, StoredRows):
            raise InvalidError("A is not on disk, so Q needs a place; give out=")
        out = f"{source.array.place.stem}.q"
    known = known_operands({"A": (source, A)})
    arguments = {"mode": mode, "dtype": dtype.name}
    steps = StepsDone(
        out if known else None, "qr", arguments, known, memory, resume=resume, made=made
    )
    if mode == "r":
        plan = r_blocks(source.layout, dtype, steps.memory_bytes, is_stored=out is not None)
        work = tsqr_flops(source.rows, source.columns, 0, dtype) if source.rows else None
    else:
        g = qr_geometry(source.layout, dtype, steps.memory_bytes)
        work = g.flops
    operands = [source.array] if isinstance(source, StoredRows) else []
    try:
        with (
            claimed(out, operands, if_exists=if_exists, why=_WHY) as where,
            long_call(
                f"QR of {_name(source)}", memory_bytes=steps.memory_bytes, work=work,
                threads=threads, progress=progress,
            ) as call,
        ):  # fmt: skip
            if where is None:
                return _triangle(source, plan, call, None, steps)
            if mode == "r":
                return _stored_triangle(source, plan, call, where, steps)
            if isinstance(g, WideQrGeometry):
                return _with_square_q(source, g, call, where, steps)
            return _with_q(source, g, call, where, steps)
    except KeyboardInterrupt as error:
        raise Interrupted(steps.stopped("QR", "qr", error)) from None


def _name(source: RowSource) -> str:
    return source.array.place.title if isinstance(source, StoredRows) else source.name


def _factored(
    source: RowSource, plan: RowPlan, call: LongCall, target: Array | None, steps: StepsDone
) -> ParallelQR:
    """Factor the streamed rows."""
    n, dtype = source.columns, plan.dtype
    row_work = tsqr_flops(source.rows, n, 0, dtype) / source.rows if source.rows else 0.0
    factor = ParallelQR(plan, 0, call, most=source.rows)
    kept = KeptState(target, steps, [plan.height, *factor.cuts], factor.state, call)
    blocks = _blocks(source, plan)
    begun = kept.load(blocks)
    factor.rows = begun * plan.height
    call.meter.skip(factor.rows * row_work)
    with streams([source], [plan], call, first=factor.rows) as opened, factor.at_work():
        for block, (first, data, _) in enumerate(opened[0], begun + 1):
            check_finite(source.name, first, data)
            leave(opened, factor.share(data))
            call.meter.advance(len(data) * row_work)
            kept.passed(block, blocks, factor.settle)
        factor.finish()
    return factor


def _blocks(source: RowSource, plan: RowPlan) -> int:
    return -(-(source.rows or 0) // plan.height)


def _triangle(
    source: RowSource, plan: RowPlan, call: LongCall, target: Array | None, steps: StepsDone
) -> tuple[Matrix, Report]:
    """Factor the streamed rows, and return R."""
    n, dtype = source.columns, plan.dtype
    factor = _factored(source, plan, call, target, steps)
    R = factor.triangle()[: min(factor.rows, n)]
    refuse_overflow(R)
    report = row_report(
        Report, call, "qr", (factor.rows, n), dtype,
        method=f"R of rows as they are read, {plan.height} at once",
        flops=tsqr_flops(factor.rows, n, 0, dtype),
        moved=(source.bytes_read(), 0), planned=(plan.layout.bytes_read(), 0),
        is_stored=plan.layout.is_stored, arrays=("A", "R"),
        notes=steps.notes(_blocks(source, plan)),
    )  # fmt: skip
    return R, report


def _stored_triangle(
    source: RowSource, plan: RowPlan, call: LongCall, where: Place, steps: StepsDone
) -> tuple[Array, Report]:
    """Factor the streamed rows, and write R."""
    with contextlib.ExitStack() as stack:
        dtype, target = plan.dtype, None
        if source.rows is not None:
            shape = min(source.rows, source.columns), source.columns
            target = stack.enter_context(written(where, columns_of(shape, dtype), _WHY, steps))
        R, report = _triangle(source, plan, call, target, steps)
        if target is None:
            # The length of an iterator is known only now.
            target = stack.enter_context(written(where, columns_of(R.shape, dtype), _WHY))
        moved = put(np.asfortranarray(R), target, call, TRANSFER_BYTES[0], number=1)
    written_too(report, R.nbytes, moved, call)
    return target, report


def _with_square_q(
    source: RowSource, g: WideQrGeometry, call: LongCall, where: Place, steps: StepsDone
) -> tuple[Array, Matrix, Report]:
    """Factor a matrix with fewer rows than columns in memory, where R has its size."""
    # Chunks of whole columns have the same layout on disk and in memory.
    chunks = g.m, min(g.m, max(MAX_TILE_BYTES // (g.m * g.rows.dtype.itemsize), 1))
    metadata = Metadata((g.m, g.m), g.rows.dtype, chunks, "F", "column-major")
    with written(where, metadata, _WHY, steps) as target:
        factor = _factored(source, g.rows, call, target, steps)
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
    source: RowSource, g: QrGeometry, call: LongCall, where: Place, steps: StepsDone
) -> tuple[Array, Matrix, Report]:
    """Write the reflections of the rows to disk, and form Q from them."""
    with written(where, g.q.metadata(), _WHY, steps) as target:
        R, read, wrote = _form(source, g, call, target, steps)
    report = row_report(
        Report, call, "qr", (g.q.m, g.q.n), g.q.dtype, method=g.method, flops=g.flops,
        moved=(source.bytes_read() + read, wrote),
        planned=(g.rows.layout.bytes_read() + g.q.q_bytes(), 2 * g.q.q_bytes()),
        arrays=("A", "Q", "reflections"), notes=steps.notes(2 * g.q.blocks),
        is_stored=g.rows.layout.is_stored, words_written=float(g.q.m * g.q.n),
    )  # fmt: skip
    return target, R, report


def _form(
    source: RowSource, g: QrGeometry, call: LongCall, target: Array, steps: StepsDone
) -> tuple[Matrix, int, int]:
    """Form Q; return R, and the bytes read and written besides A.

    A step is a block of rows, first of reflections, then of Q.
    """
    q, blocks = TallQ(g.q, call), g.q.blocks
    kept = KeptState(target, steps, [g.q.height], q.state, call)
    begun = kept.load(2 * blocks, REFLECTIONS)
    beside = working_array(target, REFLECTIONS, g.q.metadata(), anew=begun == 0)
    reflections = open_whole_chunks(beside, call, g.q.bounce_bytes, number=2, writable=True)
    file = open_whole_chunks(target, call, g.q.bounce_bytes, number=1, writable=True)
    reduced, built = min(begun, blocks), max(begun - blocks, 0)
    q.go_on(reduced - built)
    call.meter.skip(min(begun * g.q.height, 2 * g.q.m) * g.q.row_work)
    _reduce(source, g, call, q, reflections, reduced, kept)
    refuse_overflow(q.factor.R)
    build_from_disk(
        q, reflections, file, call,
        lambda first, _, block: file.submit_write([first, 0], [1, 1], block), built,
        lambda number, make_durable: kept.passed(blocks + number, 2 * blocks, make_durable),
    )  # fmt: skip
    moved = [each.counters() for each in (reflections, file)]
    return q.factor.triangle(), sum(m[0] for m in moved), sum(m[1] for m in moved)


def _reduce(
    source: RowSource,
    g: QrGeometry,
    call: LongCall,
    q: TallQ,
    file: ArrayFile,
    begun: int,
    kept: KeptState,
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
            check_finite(source.name, first, data)
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
