"""Substitution with a triangular matrix larger than memory, strip by strip of its rows.

X is solved for in groups of as many columns as fit in memory. Each group reads the triangle once.
If op(T) is lower (an upper one starts with the last strip and the last column)::

    for each strip I of rows of op(T):
        X[I] = B[I]                                   # arrives from the disk
        for each piece K of its columns:
            beside the diagonal block:    X[I] -= op(T)[I, K] X[K]
            in it:                        X[K] = op(T)[K, K]⁻¹ X[K]
                                          X[I below K] -= op(T)[I below K, K] X[K]
        X[I] is written

So B is read, and X is written, while the arithmetic works on other strips.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import column_extremes
from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.errors import NonFiniteError, SingularMatrixError
from outcore.linalg._output.steps_done import StepsDone
from outcore.linalg._products.triangular_plan import TriangularGeometry, flops
from outcore.linalg._tiles.block_writer import DiskResult, WholeResult
from outcore.linalg._tiles.cost import flop_weight
from outcore.linalg._tiles.grains import cut
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import DiskOperand, Extent, Operand, Part
from outcore.report.longcall import LongCall

_LOOK = 256
"""Rows and columns of T that are searched together for an invalid element."""


class Substitution:
    """The loops of the algorithm.

    Parameters
    ----------
    matrix
        op(T).
    T, B
        The arguments of the call.
    is_lower
        Whether T itself is lower triangular.
    is_unit
        Whether the diagonal is treated as ones.

    Attributes
    ----------
    notes
        Notes for the reader of the report.
    """

    def __init__(
        self,
        g: TriangularGeometry,
        matrix: Operand,
        T: Array | npt.NDArray[Any],
        B: Array | npt.NDArray[Any],
        call: LongCall,
        *,
        is_lower: bool,
        is_unit: bool,
    ) -> None:
        self.g, self.matrix, self.T, self.B, self.call = g, matrix, T, B, call
        self.is_lower, self.is_unit = is_lower, is_unit
        self.notes: list[str] = []
        self.kernels = kernels(g.system.dtype)
        matrix.open(call, g.bounce_bytes("T"), 0)
        self.sides = DiskOperand(B, "N", g.system.dtype) if isinstance(B, Array) else None
        if self.sides:
            self.sides.open(call, g.bounce_bytes("B"), 1)

    def bytes_read(self) -> int:
        """Bytes of T and B read so far."""
        return self.matrix.bytes_read() + (self.sides.bytes_read() if self.sides else 0)

    def run(self, result: WholeResult | DiskResult, steps: StepsDone) -> None:
        """Solve for all pending groups of columns."""
        g, strips = self.g, self.g.strips()
        groups = list(g.groups())
        left = steps.left(groups)
        self.pieces = self.matrix.parts(
            (box for _ in left for strip in strips for box in g.pieces(strip)), g.ring_bytes
        )
        self.boxes = self.boxes_of_b([group for _, group in left])
        for group in groups[: steps.gone_on_at]:
            work = flops(g.system.n, group.stop - group.start, g.system.dtype)
            self.call.meter.skip(work)
        try:
            for done, group in left:
                X = result.begin((slice(0, g.system.n), group))
                self.loads = deque(g.loads(group))
                for strip in strips:
                    while self.loads and self.is_needed(self.loads[0], strip):
                        self.load(X, group, result)
                    for box in g.pieces(strip):
                        self.substitute(X, strip, box)
                        result.advance()
                        # Loads for the next strip are issued in between.
                        if self.loads and result.is_free(self.loads[0][0]):
                            self.load(X, group, result)
                    self.look_at(X, strip)
                    result.done(strip.stop if g.system.is_lower else strip.start)
                steps.passed(done, len(groups), result.sync)
            result.flush()
        except BaseException:
            result.abandon()
            raise

    def boxes_of_b(self, groups: list[slice]) -> Iterator[Part]:
        """Yield the boxes of B in the order of their use."""
        if self.sides is None:
            return iter(())
        return self.sides.parts(
            (box for group in groups for box in self.g.loads(group)), self.g.load_bytes
        )

    def is_needed(self, box: Extent, strip: slice) -> bool:
        """Whether a strip, or an earlier one, uses rows of a box of B."""
        if self.g.system.is_lower:
            return bool(box[0].start < strip.stop)
        return bool(box[0].stop > strip.start)

    def load(self, X: Matrix, group: slice, result: WholeResult | DiskResult) -> None:
        """X = B, for the next box of B."""
        rows, across = self.loads.popleft()
        result.wait_free(rows)
        columns = slice(max(across.start, group.start), min(across.stop, group.stop))
        part_of_x = X[rows, columns.start - group.start : columns.stop - group.start]
        if self.sides is None:
            b = self.B if self.B.ndim == 2 else self.B[:, None]
            np.copyto(part_of_x, b[rows, columns], casting="same_kind")
        else:
            part = next(self.boxes)
            values = part.cut(rows, columns)
            part_of_x[...] = values if part.trans == "N" else values.T
        if (bad := _not_finite(part_of_x)) is not None:
            at = (rows.start + bad[0], columns.start + bad[1])
            raise NonFiniteError(
                f"B[{at[0]}, {at[1]}] is {part_of_x[bad]}; every element must be finite: correct "
                "it",
                at,
            )

    def substitute(self, X: Matrix, strip: slice, box: Extent) -> None:
        """Apply one piece of the triangle."""
        part, (_, columns) = next(self.pieces), box
        is_lower = self.g.system.is_lower
        start_ns = self.call.trace.now_ns()
        beside = slice(columns.start, min(columns.stop, strip.start))
        if not is_lower:
            beside = slice(max(columns.start, strip.stop), columns.stop)
        self.subtract(part, X, strip, beside)
        here = slice(max(columns.start, strip.start), min(columns.stop, strip.stop))
        if here.start < here.stop:
            block = part.cut(here, here)
            self.look_at_block(block, here)
            self.kernels.trsm(
                block, X[here], unit=self.is_unit, trans=part.trans,
                lower=is_lower == (part.trans == "N"),
            )  # fmt: skip
            self.call.meter.advance(flops(here.stop - here.start, X.shape[1], X.dtype))
            rest = slice(here.stop, strip.stop) if is_lower else slice(strip.start, here.start)
            self.subtract(part, X, rest, here)
        self.call.trace.record("compute", start_ns)

    def subtract(self, part: Part, X: Matrix, rows: slice, columns: slice) -> None:
        """X[rows] -= op(T)[rows, columns] X[columns]."""
        if rows.start >= rows.stop or columns.start >= columns.stop:
            return
        T = part.cut(rows, columns)
        self.kernels.gemm(T, X[columns], X[rows], alpha=-1, beta=1, trans_a=part.trans)
        self.call.meter.advance(2.0 * T.size * X.shape[1] * flop_weight(X.dtype))

    def look_at_block(self, block: Matrix, here: slice) -> None:
        """Raise for zeros on the diagonal, and for NaN or infinities that may not show in X."""
        if not np.isfinite(column_extremes(block, False)[0]):
            # The element may lie in the other triangle.
            self.refuse_not_finite(here, here)
        zeros = np.flatnonzero(block.diagonal() == 0)
        if len(zeros) and not self.is_unit:
            first = self.first_zero(here.start + int(zeros[0]))
            raise SingularMatrixError(
                f"T is singular: T[{first}, {first}] is exactly zero, so there is no unique "
                "solution; correct the matrix, or use least squares",
                first + 1,
            )

    def first_zero(self, found: int) -> int:
        """Return the first zero on the diagonal, which is at `found` or before."""
        for rows in cut(0, found, _LOOK):
            zeros = np.flatnonzero(np.diagonal(self.T[rows, rows]) == 0)
            if len(zeros):
                return int(rows.start + zeros[0])
        return found

    def look_at(self, X: Matrix, strip: slice) -> None:
        """Check a solved strip for elements that are not finite, and find the cause."""
        if self.notes or _not_finite(X[strip]) is None:
            return
        self.refuse_not_finite(strip, slice(0, self.g.system.n))
        self.notes.append("the solution has infinities or NaN: it is too large for the type")

    def refuse_not_finite(self, strip: slice, among: slice) -> None:
        """Raise if rows of op(T) have a non-finite element in the triangle, within some columns."""
        is_lower = self.g.system.is_lower
        for rows in cut(strip.start, strip.stop, _LOOK):
            for columns in cut(among.start, among.stop, _LOOK):
                i, j = np.ogrid[rows, columns]
                if is_lower == self.is_lower:
                    block = self.T[rows, columns]
                else:
                    block = self.T[columns, rows].T
                is_used = (i > j if is_lower else i < j) | ((i == j) & (not self.is_unit))
                bad = np.argwhere(is_used & ~np.isfinite(block))
                if len(bad):
                    row, column = rows.start + int(bad[0][0]), columns.start + int(bad[0][1])
                    at = (row, column) if is_lower == self.is_lower else (column, row)
                    raise NonFiniteError(
                        f"T[{at[0]}, {at[1]}] is {block[tuple(bad[0])]}; every element of the "
                        "triangle must be finite: correct it",
                        at,
                    )


def _not_finite(X: Matrix) -> tuple[int, int] | None:
    """Return row and column of an element that is not finite, if there is one."""
    # The sums may overflow even if no element does.
    if np.isfinite(column_extremes(X, False)[0]):
        return None
    for j in range(X.shape[1]):
        bad = np.flatnonzero(~np.isfinite(X[:, j]))
        if len(bad):
            return int(bad[0]), j
    return None
