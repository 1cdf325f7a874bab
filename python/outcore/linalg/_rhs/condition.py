"""Estimates of a matrix's condition from random vectors that are solved for along with b.

For a vector z of independent normal numbers, the mean of ‖A⁻¹z‖₂² is ‖A⁻¹‖² in the Frobenius norm
(C. S. Kenney, A. J. Laub, SIAM J. Sci. Comput. 15 (1994), 36-61). With four vectors, the estimate
is less than a tenth of the true value in one of 5000 cases. It costs no pass over the factors,
while Hager's method (`cond_est`) costs several. The Frobenius norm of A⁻¹ is within √n of its
1-norm, from below and from above. So the estimate suffices to warn of matrices that are singular to
working precision, but not for display: for an identity it is √n.
"""

import math
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np

from outcore._util.packages import imported
from outcore.errors import BudgetError
from outcore.linalg._tiles.columns import draw_normal, largest, squares
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall

T = TypeVar("T")

UNKNOWN = "near-singularity of A was not checked: memory= has no room for the random vectors"

PROBES = 4
"""Number of random vectors."""


def with_probes(probes: int, cut: Callable[[int], T]) -> tuple[int, T]:
    """Divide a budget with `probes` probes or, if they do not fit, without probes.

    Returns
    -------
    tuple
        The number of probes, and the result of `cut` for them.
    """
    if probes:
        try:
            return probes, cut(probes)
        except BudgetError:
            pass
    return 0, cut(0)


def probe_bytes(n: int, dtype: np.dtype[Any], probes: int) -> int:
    """Return the memory of `probes` probes."""
    return pages(n * probes * dtype.itemsize)


def draw(n: int, probes: int, dtype: np.dtype[Any], call: LongCall) -> Matrix:
    """Draw random vectors, (n, probes), with a fixed seed."""
    shape = n, probes
    if not probes:
        return np.empty(shape, dtype, order="F")
    memory = memoryview(call.arena.allocate(n * probes * dtype.itemsize))
    drawn: Matrix = np.ndarray(shape, dtype, buffer=memory, order="F")
    draw_normal(drawn, seed=0)
    return drawn


class Probes:
    """Random vectors that are solved for beside the first right-hand sides.

    Attributes
    ----------
    count
        Number of vectors.
    left
        The vectors that are not solved for yet; `None` if there are none.
    """

    def __init__(self, n: int, count: int, dtype: np.dtype[Any], call: LongCall) -> None:
        self.count, self._vectors = count, draw(n, count, dtype, call)
        self.left: Matrix | None = self._vectors if count else None

    def take(self) -> Matrix | None:
        """Return the vectors to solve for now, and count them as solved."""
        taken, self.left = self.left, None
        return taken

    def condition(self, norm: float) -> float | None:
        """Estimate the condition of a matrix of norm `norm`; `None` if nothing was solved for."""
        if self.left is not None or not self.count:
            return None
        return condition_of(norm, self._vectors)


def condition_of(norm: float, solved: Matrix) -> float:
    """Estimate ‖A‖ ‖A⁻¹‖ from A⁻¹z, and overwrite the probes; infinite if they overflow."""
    with np.errstate(over="ignore", invalid="ignore"):
        top = float(largest(solved).max())
        if not math.isfinite(top) or top == 0:
            return math.inf
        # The division by the largest element prevents overflow and underflow of squares.
        np.divide(solved, solved.dtype.type(top), out=solved)
        # A norm that overflows gives no information on the condition.
        norm = min(norm, float(np.finfo(solved.dtype).max))
        return norm * top * math.sqrt(float(squares(solved).mean()))


def is_singular(condition: float | None, dtype: np.dtype[Any]) -> bool:
    """Whether a matrix is singular to working precision."""
    return condition is not None and not condition * float(np.finfo(dtype).eps) < 1


def warn_if_singular(condition: float | None, dtype: np.dtype[Any], stacklevel: int = 4) -> None:
    """Warn as SciPy does if a matrix is singular to working precision."""
    if is_singular(condition, dtype):
        warnings.warn(
            f"A is ill-conditioned, singular to the precision of {dtype}, or badly scaled: "
            f"‖A‖ ‖A⁻¹‖ in the Frobenius norm is about {condition:.1e}, so x may have no correct "
            "digits, however small the backward error; use lstsq, or correct the matrix",
            imported("scipy.linalg").LinAlgWarning,
            stacklevel=stacklevel,
        )
