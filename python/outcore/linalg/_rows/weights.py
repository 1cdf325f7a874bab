"""Weights of rows: least squares with the rows of A and b times the roots of their weights."""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError
from outcore.linalg._rows.plan import RowPlan
from outcore.linalg._rows.source import RowSource
from outcore.linalg._rows.stream import allocated, check_finite, refuse_overflow, streams
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall


class RowWeights:
    """Weights that are streamed with the rows, and the number of non-zero weights.

    Attributes
    ----------
    counted
        (1, 1) int64, the number of rows with non-zero weight so far: memory of the call, to save.
    """

    def __init__(self, call: LongCall) -> None:
        self.counted = allocated(call, (1, 1), np.dtype(np.int64))
        self.counted[...] = 0

    def apply(self, first: int, weights: Matrix, *blocks: Matrix) -> None:
        """Multiply blocks of rows in place, starting at row `first`."""
        roots = square_roots(first, weights)
        self.counted += np.count_nonzero(roots)
        for block in blocks:
            multiply(block, roots[:, None])


def square_roots(first: int, weights: Matrix) -> npt.NDArray[Any]:
    """Return the square roots of a block of one column, starting at row `first`.

    Raises
    ------
    InvalidError
        If a weight is negative.
    NonFiniteError
        If a weight is not finite.
    """
    check_finite("weights", first, weights)
    values = weights[:, 0].real
    if (negative := np.flatnonzero(values < 0)).size:
        at = int(negative[0])
        raise InvalidError(
            f"need weights of at least 0, have {values[at]} as weights[{first + at}]; a weight is "
            "the inverse of the variance of its observation"
        )
    roots: npt.NDArray[Any] = np.sqrt(values)
    return roots


def multiply(block: Matrix, roots: npt.NDArray[Any]) -> None:
    """Multiply a block with broadcast roots, and refuse overflow."""
    with np.errstate(over="ignore"):
        block *= roots
    refuse_overflow(block if block.strides[0] == block.itemsize else block.T)


def read_roots(source: RowSource, plan: RowPlan, rows: int, call: LongCall) -> npt.NDArray[Any]:
    """Read the square roots of all weights into memory of the call."""
    dtype = np.zeros((), plan.dtype).real.dtype
    roots = allocated(call, (rows, 1), dtype)[:, 0]
    count = 0
    with streams([source], [plan], call, number=2) as (stream,):
        for first, data, _ in stream:
            count = min(first + len(data), rows)
            roots[first:count] = square_roots(first, data[: count - first])
    if count < rows:
        raise InvalidError(f"weights ends after {count} rows, A has more; give as many")
    return roots
