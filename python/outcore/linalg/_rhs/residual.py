"""Passes over a matrix on disk: products with it, the residual and the backward error."""

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from outcore._util.progress import ProgressLike
from outcore._util.streams import Block, BlockStream, Box
from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._geometry.box_reads import StreamReads, pass_box_bytes, pass_ring_bytes
from outcore.linalg._geometry.factor_plan import solve_flops
from outcore.linalg._output.factor import Factor
from outcore.linalg._rhs.columns import ColumnRoom, Columns
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix, open_matrix
from outcore.linalg._tiles.widened import Converted, converted_bytes
from outcore.processes.reports import process_figures, whole_report
from outcore.processes.sharing import seconds_for
from outcore.processes.team import Team, alone
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import place_of_source


def ring_bytes(A: Array, memory_bytes: int, dtype: np.dtype[Any] | None = None) -> int:
    """Memory of a pass over A beside its columns, which may have another type."""
    slot_bytes = A.metadata.grid().slot_bytes
    return pass_ring_bytes(slot_bytes, memory_bytes, A.dtype, dtype or A.dtype)


def matrix_in(call: LongCall, n: int, columns: int, dtype: np.dtype[Any]) -> Matrix:
    """Allocate a column-major matrix from a call's budget."""
    memory = call.arena.allocate(max(n * columns * dtype.itemsize, 1))
    return np.ndarray((n, columns), dtype, buffer=memoryview(memory), order="F")


class MatrixPasses:
    """Repeated passes over a matrix on disk.

    They report the bytes read to the meter of the call.

    Parameters
    ----------
    A
        The matrix.
    call
        The call.
    ring
        Memory for all reads.
    dtype
        Type of the arithmetic; by default that of `A`.
    team
        Processes that divide the blocks of `A`.
    """

    def __init__(
        self,
        A: Array,
        call: LongCall,
        ring: int,
        dtype: np.dtype[Any] | None = None,
        team: Team | None = None,
    ) -> None:
        self.team = team or alone()
        self.A, self.call, self.dtype = A, call, A.dtype if dtype is None else dtype
        self._bounce = ring // 4
        self._box = pass_box_bytes(ring, A.dtype, self.dtype)
        self._converted = Converted(A.dtype, self.dtype, self._box, call)
        self._ring = ring - self._bounce - converted_bytes(A.dtype, self.dtype, self._box)
        self.file = A.open_file(call.arena, self._bounce, trace=call.trace)

    @property
    def bytes_of_pass(self) -> int:
        """Bytes that a pass reads. Exact."""
        reads = StreamReads.of(self.A, self._bounce, self.file.read_granularity)
        if self.team.size == 1:
            return reads.bytes_of_pass(self._box)
        return sum(
            reads.bytes_of([(rows.start, rows.stop)], [(columns.start, columns.stop)])
            for rows, columns in self._boxes()
        )

    def _boxes(self) -> Iterator[Box]:
        """Yield the boxes of a pass that this process reads."""
        team = self.team
        return itertools.islice(self.A.small_boxes(self._box), team.rank, None, team.size)

    def tiles(self) -> Iterator[Block]:
        """Read the matrix once: yield each tile with its place, and time its use."""
        trace = self.call.trace
        stream = BlockStream(self.file, self.A.dtype, self.call.arena, self._ring, trace)
        stream.extend(self._boxes())
        for index, data in stream:
            start_ns, read_bytes = trace.now_ns(), data.nbytes
            yield Block(index, self._converted(data))
            trace.record("compute", start_ns)
            self.call.meter.advance(read_bytes)

    def subtract_product(self, X: Matrix, R: Matrix) -> None:
        """R <- R - A X in one pass; R and X have the type of the arithmetic."""
        product = kernels(self.dtype)
        is_columns = self.A.order == "F"
        for (rows, columns), tile in self.tiles():
            product.gemm(
                tile if is_columns else tile.T, X[columns], R[rows], alpha=-1, beta=1,
                trans_a="N" if is_columns else "T",
            )  # fmt: skip


def backward_errors(
    rhs: RightHandSide, norm_a: float, X: Matrix, norms_r: Any, norms_b: Any
) -> Any:
    """Backward error ‖b - Ax‖₁ / (‖A‖₁‖x‖₁ + ‖b‖₁) of each solution; NaN if it is not finite.

    `norms_r` are ‖b - Ax‖₁.
    """
    most = float(np.finfo(X.dtype).max)
    with np.errstate(invalid="ignore", over="ignore"):
        # Norms that overflow would hide any error.
        scale = np.minimum(min(norm_a, most) * rhs.norms1(X) + norms_b, most)
        return norms_r / np.where(scale > 0, scale, 1)


def check(
    factors: Factor,
    rhs: RightHandSide,
    x: Any,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
    team: Team | None = None,
) -> Report:
    """Form the residual of a solution in one pass over A, and report the backward error.

    Several processes divide the blocks of A, and add up their products.

    If not all columns fit in memory, the check covers the first ones. If none fits, the report says
    that the backward error is not known.
    """
    A = open_matrix(place_of_source(factors.source))
    team = team or alone()
    # All processes divide the same blocks of A.
    ring = min(team.all_of(ring_bytes(A, memory_bytes, factors.dtype)))
    room = ColumnRoom.of(rhs, memory_bytes)
    # R and X.
    column_bytes = factors.n * 2 * rhs.parts * factors.dtype.itemsize + 2 * SLOT_ALIGN_BYTES
    # Several processes add their products column by column.
    sum_bytes = pages(2 * factors.n * factors.dtype.itemsize) if team.size > 1 else 0
    left = memory_bytes - ring - room.beside_bytes - sum_bytes
    count = min(team.all_of(max(min(rhs.columns, left // column_bytes), 0)))
    notes = []
    if count < rhs.columns:
        notes.append(f"the backward error is of the first {count} of {rhs.columns} columns")
    with long_call(
        f"residual of {A.path.name}", memory_bytes=memory_bytes, work=A.nbytes / team.size,
        threads=threads, progress=progress,
    ) as call:  # fmt: skip
        already = team.sent
        X, R = (matrix_in(call, factors.n, count * rhs.parts, factors.dtype) for _ in range(2))
        passes = MatrixPasses(A, call, ring, factors.dtype, team)
        moved = Columns(rhs, call, room)
        errors = None
        if count:
            moved.load(x, slice(0, count), X)
            moved.load(rhs.b, slice(0, count), R)
            norms_b = rhs.norms1(R)
            if team.rank:
                R[...] = 0
            passes.subtract_product(X, R)
            if team.size > 1:
                more_s = seconds_for(A.nbytes, solve_flops(factors.n, factors.dtype, count))
                team.add_up(R, matrix_in(call, factors.n, 2, factors.dtype), more_s)
            errors = backward_errors(rhs, factors.norm1, X, rhs.norms1(R), norms_b)
        own = call.report(
            Report, "residual", factors.n, factors.dtype, computes=False,
            flops=solve_flops(factors.n, factors.dtype, count * rhs.parts) / team.size,
            moved=(passes.file.counters()[0] + moved.counters()[0], 0),
            planned=((passes.bytes_of_pass if count else 0) + moved.asked[0], 0),
            backward_error=None if errors is None else float(errors.max()), notes=notes,
        )  # fmt: skip
        if team.size > 1:
            sent = team.sent[0] - already[0], team.sent[1] - already[1]
            own.processes = [process_figures(own, sent, (R.nbytes, R.shape[1]))]
        return whole_report(own, team)
