"""QR of a matrix with many more rows than columns: R as the rows go by, or Q on disk as well."""

from typing import Any, Literal, TypeAlias, overload

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore._core import ArrayFile
from outcore.array import Array
from outcore.errors import Interrupted, InvalidError
from outcore.linalg.matrix import Matrix
from outcore.linalg.products.operand import open_whole_chunks
from outcore.linalg.result import claimed, to_disk, written
from outcore.linalg.rows.plan import RowPlan
from outcore.linalg.rows.qr_plan import QrGeometry, WideQrGeometry, qr_geometry, r_blocks
from outcore.linalg.rows.report import figures_of
from outcore.linalg.rows.source import RowsLike, RowSource, StoredRows, row_source, work_dtype
from outcore.linalg.rows.stream import allocated, check_finite, refuse_overflow, streams
from outcore.linalg.rows.tall_q import TallQ, build_from_disk
from outcore.linalg.rows.tsqr import TallQR
from outcore.linalg.rows.tsqr_plan import tsqr_flops
from outcore.linalg.systems.columns import TRANSFER_BYTES
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.volumes import PathLike
from outcore.zarr_format import MAX_TILE_BYTES, Metadata

Mode: TypeAlias = Literal["r", "economic"]

_WHY = "the QR that wrote it was stopped; call qr again"


@overload
def qr(
    A: RowsLike,
    *,
    mode: Literal["r"] = "r",
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[npt.NDArray[Any], Report]: ...
@overload
def qr(
    A: RowsLike,
    *,
    mode: Literal["economic"],
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[Array, npt.NDArray[Any], Report]: ...
def qr(
    A: RowsLike,
    *,
    mode: Mode = "r",
    memory: int | str | None = None,
    out: PathLike | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: ProgressLike = True,
) -> tuple[npt.NDArray[Any], Report] | tuple[Array, npt.NDArray[Any], Report]:
    """Factor A = Q R, with R in memory, reading each row of A once.

    Parameters
    ----------
    A
        (m, n): an array on disk or its path, a NumPy array or memmap, anything with shape, dtype
        and slicing, or, for ``mode="r"``, an iterator of blocks of rows of any heights. Integers
        become float64. R must fit into the budget, for ``mode="economic"`` twice; of an iterator,
        n x n elements.
    mode
        ``"r"`` for R only; ``"economic"`` for Q on disk as well.
    memory
        Budget; by default half of the available memory. R counts against it.
    out
        Directory of Q; by default that of `A`, if that is on disk, with ``.q`` appended.
    overwrite
        Replace an array that is at `out`.
    threads
        Threads of the BLAS; by default as it is set.
    progress
        Whether to show progress on the terminal, or a function of (fraction, seconds left).

    Returns
    -------
    Q : Array
        (m, min(m, n)) on disk, with orthonormal columns; for ``mode="economic"`` only.
    R : numpy.ndarray
        (min(m, n), n) upper triangular. As in SciPy, its diagonal may be negative.
    report : Report

    Raises
    ------
    InvalidError
        If `A` is no matrix that can be used, or the result overflows.
    BudgetError
        If the triangles and blocks of a few rows do not fit into the budget; `qr_factor`, with
        `form_q` for Q, does with less.
    NonFiniteError
        If there is a NaN or an infinity, with its index.
    ExistsError
        If there is something at `out`.
    Interrupted
        After Ctrl-C or SIGTERM. Nothing is kept.

    Notes
    -----
    2 n² (m - n/3) operations for R, twice that with Q; four times that for complex types. For Q,
    the reflections are written to its place, read back from the last block to the first, and
    overwritten: 2 m n words are read and 2 m n written. Q is orthogonal to rounding whatever the
    condition of A. Source: Demmel, Grigori, Hoemmen & Langou, *Communication-optimal parallel and
    sequential QR and LU factorizations*, SIAM J. Sci. Comput. 34 (2012), section 4.2.
    """
    if mode not in ("r", "economic"):
        raise InvalidError(f"mode must be 'r' or 'economic', have {mode!r}")
    source = row_source("A", A)
    dtype = work_dtype("A", source.layout.dtype)
    source.deliver(dtype)
    memory_bytes = budget.resolve(memory)
    if mode == "r":
        if out is not None:
            raise InvalidError('out= is the place of Q; pass mode="economic" to have it')
        plan = r_blocks(source.layout, dtype, memory_bytes)
        work = tsqr_flops(source.rows or 0, source.columns, 0, dtype)
    else:
        geometry = qr_geometry(source.layout, dtype, memory_bytes)
        if isinstance(geometry, WideQrGeometry):
            work = geometry.flops
        else:
            work = 2 * tsqr_flops(geometry.q.m, geometry.q.n, 0, dtype)
        if out is None:
            if not isinstance(source, StoredRows):
                raise InvalidError("A is not on disk, so Q needs a place; give out=")
            out = f"{source.array.path}.q"
    try:
        with long_call(
            f"QR of {_name(source)}", memory_bytes=memory_bytes, work=work, threads=threads,
            progress=progress if source.rows else False,
        ) as call:  # fmt: skip
            if mode == "r":
                return _triangle(source, plan, call)
            if isinstance(geometry, WideQrGeometry):
                return _with_square_q(source, geometry, call, out, overwrite=overwrite)
            return _with_q(source, geometry, call, out, overwrite=overwrite)
    except KeyboardInterrupt:
        raise Interrupted("QR was stopped, and nothing is kept; call again") from None


def _name(source: RowSource) -> str:
    return source.array.path.name if isinstance(source, StoredRows) else source.name


def _factored(source: RowSource, plan: RowPlan, call: LongCall) -> TallQR:
    """Let the rows go by."""
    n, dtype = source.columns, work_dtype("A", source.layout.dtype)
    row_work = tsqr_flops(source.rows, n, 0, dtype) / source.rows if source.rows else 0.0
    factor = TallQR(n, 0, dtype, call, most=source.rows)
    with streams([source], [plan], call) as (stream,):
        for first, data, _ in stream:
            check_finite(source.name, first, data)
            factor.add(data)
            call.meter.advance(len(data) * row_work)
    factor.finish()
    return factor


def _triangle(source: RowSource, plan: RowPlan, call: LongCall) -> tuple[Matrix, Report]:
    """Let the rows go by, and keep R."""
    n, dtype = source.columns, work_dtype("A", source.layout.dtype)
    factor = _factored(source, plan, call)
    R = factor.triangle()[: min(factor.rows, n)]
    refuse_overflow(R)
    report = Report(
        **figures_of(
            call, "qr", (factor.rows, n), dtype,
            method=f"R of rows as they are read, {plan.height} at once",
            flops=tsqr_flops(factor.rows, n, 0, dtype),
            moved=(source.bytes_read(), 0), planned=(plan.layout.bytes_read(), 0),
            is_stored=plan.layout.is_stored,
        )
    )  # fmt: skip
    return R, report


def _reduce(source: RowSource, g: QrGeometry, call: LongCall, q: TallQ, file: ArrayFile) -> None:
    """Let the rows go by, and write their reflections. Its buffers are free when it returns."""
    with streams([source], [g.rows], call) as (stream,):
        for first, data, whole in stream:
            check_finite(source.name, first, data)
            q.add(data)
            # Rows beyond the matrix are padding: zeros rather than what was there.
            whole[len(data) :] = 0
            stream.leave(file.submit_write([first, 0], [1, 1], whole))


def _with_square_q(
    source: RowSource, g: WideQrGeometry, call: LongCall, out: PathLike | None, *, overwrite: bool
) -> tuple[Array, Matrix, Report]:
    """Factor a matrix with fewer rows than columns in memory, where R is as large as it."""
    operands = [source.array] if isinstance(source, StoredRows) else []
    with claimed(out, operands, overwrite=overwrite, why=_WHY) as where:
        assert where is not None, "there is a place"
        factor = _factored(source, g.rows, call)
        refuse_overflow(factor.R)
        start_ns = call.trace.now_ns()
        Q = allocated(call, (g.m, g.m), g.rows.dtype)
        Q[...] = np.eye(g.m, dtype=g.rows.dtype)
        factor.apply_head(Q)
        call.trace.record("compute", start_ns)
        # Chunks of whole columns, which lie on disk as in memory.
        chunks = g.m, min(g.m, max(MAX_TILE_BYTES // Q[:, :1].nbytes, 1))
        target, moved = to_disk(Q, where, _WHY, call, TRANSFER_BYTES[0], number=1, chunks=chunks)
    report = Report(
        **figures_of(
            call, "qr", (g.m, g.n), g.rows.dtype, method=g.method, flops=g.flops,
            moved=(source.bytes_read() + moved[0], moved[1]),
            planned=(g.rows.layout.bytes_read(), g.q_bytes),
            is_stored=isinstance(source, StoredRows), words_written=g.m**2, arrays=("A", "Q"),
        )
    )  # fmt: skip
    return target, factor.triangle(), report


def _with_q(
    source: RowSource, g: QrGeometry, call: LongCall, out: PathLike | None, *, overwrite: bool
) -> tuple[Array, Matrix, Report]:
    """Write the reflections of the rows to the disk, and make Q of them."""
    operands = [source.array] if isinstance(source, StoredRows) else []
    with claimed(out, operands, overwrite=overwrite, why=_WHY) as where:
        assert where is not None, "there is a place"
        metadata = Metadata((g.q.m, g.q.n), g.q.dtype, g.q.chunk, "F", "row-major")
        with written(where, metadata, _WHY) as target:
            file = open_whole_chunks(target, call, g.q.bounce_bytes, number=1, writable=True)
            q = TallQ(g.q, call)
            _reduce(source, g, call, q, file)
            refuse_overflow(q.factor.R)
            build_from_disk(
                q, file, call, lambda first, _, block: file.submit_write([first, 0], [1, 1], block)
            )
    R = q.factor.triangle()
    read, wrote = file.counters()[:2]
    q_bytes = g.q.q_bytes()
    report = Report(
        **figures_of(
            call, "qr", (g.q.m, g.q.n), g.q.dtype,
            method=g.method, flops=2 * tsqr_flops(g.q.m, g.q.n, 0, g.q.dtype),
            moved=(source.bytes_read() + read, wrote),
            planned=(g.rows.layout.bytes_read() + q_bytes, 2 * q_bytes), arrays=("A", "Q"),
            is_stored=g.rows.layout.is_stored, words_written=float(g.q.m * g.q.n),
        )
    )  # fmt: skip
    return target, R, report
