"""Iterative refinement: double precision from factors in single precision.

With M ≈ A, the product of the factors, and X in memory:

    refinement    X <- X + M⁻¹ (B - A X)
    GMRES-IR      X <- X + D,  where D solves M⁻¹A D = M⁻¹ (B - A X) by GMRES

Refinement gains about log₁₀(1/(κ(A) ε_low)) digits per step, so it fails if κ(A) approaches
1/ε_low. Deflation increases the gain if only few directions are slow
(`outcore.linalg._rhs.deflation`). GMRES still works for many such matrices, if M⁻¹ is applied in
the higher precision: M⁻¹A is far better conditioned than A (E. Carson, N. J. Higham, SIAM J. Sci.
Comput. 39 (2017), A2834-A2856, and 40 (2018), A817-A847).

Each product and each solve is a pass over a matrix on disk, for all columns at once.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.linalg._rhs.deflation import Deflation
from outcore.linalg._tiles.matrix import Matrix

MOST_STEPS = 10
"""Most steps of refinement. It stops earlier if a step gains less than a factor of 2."""

KRYLOV = 20
"""Most steps of GMRES for one correction."""

LEAST_KRYLOV = 5

_FAST_GAIN = 0.1
"""While each step gains a digit, refinement continues to the accuracy of LU in the type of A."""

_GOAL = 2.0
"""Backward error that needs no improvement, in units of the roundoff of the type of A."""

_MOST_CORRECTIONS = 5
_GMRES_TOLERANCE = 1e-6
"""Relative residual of GMRES. M⁻¹ weights residuals differently from the backward error: with 10⁻⁴,
a correction can increase the latter.
"""

_LEAST_GAIN = 0.1
"""If a correction by GMRES leaves more than this fraction of the backward error, it is the last."""

Columns = npt.NDArray[np.intp]
Errors = npt.NDArray[np.float64]


@dataclass
class Refinement:
    """The state of a refinement.

    Attributes
    ----------
    X, R
        (n, k) solutions and residuals, in the type of A.
    load_b
        Copies the right-hand sides into a matrix like R.
    subtract_product
        ``subtract_product(X, R)`` is R <- R - A X.
    solve
        ``solve(D)`` is D <- M⁻¹ D, in the type of D, which is the type of A.
    norm_a
        ‖A‖₁.
    low
        Type of the factors.
    tolerance
        Sufficient backward error ‖b - Ax‖₁ / (‖A‖₁‖x‖₁ + ‖b‖₁). Refinement continues beyond it if
        that costs few steps.
    deflation
        Deflation, with its vectors before the columns of X and R, if they fit in memory.
    errors
        Backward errors of the columns.
    history
        The largest backward error after each correction.
    steps, krylov_steps
        Corrections by refinement, where the first solution counts as 0, and steps of GMRES.
    """

    X: Matrix
    R: Matrix
    load_b: Callable[[Matrix], None]
    subtract_product: Callable[[Matrix, Matrix], None]
    solve: Callable[[Matrix], None]
    norm_a: float
    low: np.dtype[Any]
    tolerance: float
    deflation: Deflation | None = None
    errors: Errors = field(default_factory=lambda: np.empty(0))
    history: list[float] = field(default_factory=list)
    steps: int = 0
    krylov_steps: int = 0

    @np.errstate(over="ignore", invalid="ignore")
    def refine(self) -> Columns:
        """Solve and refine until each column converges or stalls; return the columns that stall."""
        self.X[...] = 0
        self.load_b(self.R)
        self._norms_b = _norms1(self.R)
        # The zero solution has a backward error of 1, unless b is zero.
        self.errors = np.where(self._norms_b > 0, 1.0, 0.0)
        stalled: list[int] = []
        active = np.flatnonzero(self.errors)
        for step in range(MOST_STEPS + 1):
            if not len(active):
                break
            before = self.errors
            self._measure(*self._correct(active))
            if not step:
                goal = self._goal()
            self.history.append(float(self.errors.max(initial=0)))
            self.steps = step
            now, gain = self.errors[active], self.errors[active] / before[active]
            gains = gain <= 0.5
            if self._along:
                # Deflation may remove the component that slows a step down.
                gains |= np.isfinite(now)
            for j in active[(now > self.tolerance) & ~gains]:
                stalled.append(int(j))
                if not self.errors[j] < before[j]:
                    self.X[:, j] = 0
            going_on = np.where(now > self.tolerance, gains, gain <= _FAST_GAIN)
            active = active[going_on & (now > goal[active])]
            self._deflate(active, goal[active])
        late = active[self.errors[active] > self.tolerance]
        return np.array(sorted({*stalled, *map(int, late)}), np.intp)

    @property
    def _along(self) -> Deflation | None:
        """The deflation, if its vectors take part in the next correction and its residual."""
        return self.deflation if self.deflation and self.deflation.goes_along else None

    def _goal(self) -> Errors:
        """Estimate the backward errors that LU in the type of A would leave, from the first ones.

        The first errors are those of LU in the type of the factors; only the roundoff differs.
        """
        eps, low = (float(np.finfo(dtype).eps) for dtype in (self.X.dtype, self.low))
        return np.clip(self.errors * (eps / low), _GOAL * eps, max(self.tolerance, _GOAL * eps))

    def measure(self) -> None:
        """Form the residuals of all columns, and their backward errors."""
        self._measure(self.X, self.R)

    def _measure(self, X: Matrix, R: Matrix) -> None:
        """Measure as `measure` does, by a product with all of X; `self.X` is its last columns."""
        self.load_b(self.R)
        self.subtract_product(X, R)
        scale = self.norm_a * _norms1(self.X) + self._norms_b
        errors = _norms1(self.R) / np.where(scale > 0, scale, 1)
        # A column that is not finite is not a solution.
        self.errors = np.where(np.isfinite(errors), errors, np.inf)

    def _correct(self, columns: Columns) -> tuple[Matrix, Matrix]:
        """X <- X + M⁻¹ R for some columns, over R; return the operands of the next product."""
        for i, j in enumerate(columns):
            if i != j:
                self.R[:, i] = self.R[:, j]
        D = self.R[:, : len(columns)]
        along = self._along
        self.solve(along.corrections(len(columns)) if along else D)
        for i, j in enumerate(columns):
            self.X[:, j] += D[:, i]
        k = self.X.shape[1]
        return along.solutions_and_residuals(k) if along else (self.X, self.R)

    def _deflate(self, columns: Columns, goal: Errors) -> None:
        """Advance the state of the vectors, and correct some columns with them."""
        if self._along:
            self._along.look(lambda left: bool((self.errors[columns] * left**2 > goal).any()))
        if self.deflation:
            for j in columns:
                self.deflation.reduce(self.X[:, j : j + 1], self.R[:, j : j + 1])

    @np.errstate(over="ignore", invalid="ignore")
    def refine_by_gmres(self, columns: Columns, V: list[Matrix], W: Matrix) -> bool:
        """Correct some columns by GMRES until all have converged; return whether they have.

        `V` is workspace for a Krylov basis of each column, and `W` for one vector of each.
        """
        self.measure()
        for _ in range(_MOST_CORRECTIONS):
            before = self.errors[columns]
            if (before <= self.tolerance).all():
                return True
            V[0][...] = self.R[:, columns]
            D = self._gmres(V, W)
            for i, j in enumerate(columns):
                self.X[:, j] += D[:, i]
            self.measure()
            self.history.append(float(self.errors.max(initial=0)))
            now = self.errors[columns]
            if ((now > self.tolerance) & (now > _LEAST_GAIN * before)).any():
                return False
        return bool((self.errors[columns] <= self.tolerance).all())

    def _gmres(self, V: list[Matrix], W: Matrix) -> Matrix:
        """Solve M⁻¹A D = M⁻¹ V₀, each column in its own Krylov space; D overwrites W."""
        columns, most = W.shape[1], len(V) - 1
        self.solve(V[0])
        norms = [_normalise(V[0][:, c]) for c in range(columns)]
        H = np.zeros((columns, most + 1, most), W.dtype)
        y: list[npt.NDArray[Any]] = []
        for k in range(most):
            W[...] = 0
            self.subtract_product(V[k], W)
            self.solve(W)
            for c in range(columns):
                w = np.negative(W[:, c], out=V[k + 1][:, c])
                for i in range(k + 1):
                    H[c, i, k] = np.vdot(V[i][:, c], w)
                    w -= H[c, i, k] * V[i][:, c]
                H[c, k + 1, k] = _normalise(w)
            self.krylov_steps += 1
            solved = [_least_squares(H[c, : k + 2, : k + 1], norms[c]) for c in range(columns)]
            y = [coefficients for coefficients, _ in solved]
            if all(
                left <= _GMRES_TOLERANCE * norm
                for (_, left), norm in zip(solved, norms, strict=True)
            ):
                break
        W[...] = 0
        for c in range(columns):
            for i, coefficient in enumerate(y[c]):
                W[:, c] += coefficient * V[i][:, c]
        return W


def _norms1(X: Matrix) -> Errors:
    """1-norm of each column; NaN or infinite if an element is."""
    return np.array([np.abs(X[:, j]).sum() for j in range(X.shape[1])], np.float64)


def _normalise(x: npt.NDArray[Any]) -> float:
    """Scale to 2-norm 1, in place, and return the former norm. Zero stays zero."""
    norm = float(np.linalg.norm(x))
    if norm > 0:
        x /= norm
    return norm


def _least_squares(H: npt.NDArray[Any], norm: float) -> tuple[npt.NDArray[Any], float]:
    """Minimise ‖norm e₁ - H y‖₂; return y and the minimum."""
    if not np.isfinite(H).all() or not np.isfinite(norm):
        return np.zeros(H.shape[1], H.dtype), np.inf
    right = np.zeros(H.shape[0], H.dtype)
    right[0] = norm
    y = np.linalg.lstsq(H, right, rcond=None)[0]
    return y, float(np.linalg.norm(right - H @ y))
