"""Convergence, stagnation or divergence of an iteration, judged by its residuals."""

import math
from collections.abc import Callable

from outcore.errors import DivergenceError

STALLED_AFTER = 20
"""Steps of a stationary method without a new smallest residual before it counts as stalled."""


class Convergence:
    """Residuals of an iteration, step by step, relative to the right-hand side.

    Parameters
    ----------
    name
        Name of the method, for messages.
    tol
        Residual at which to stop; `None` to make all steps.
    most
        Largest number of steps.
    eps
        Machine epsilon of the arithmetic.
    is_stationary
        Whether residuals shrink with each step, provided that the method converges at all.
    advance
        Called with each step's share of the work; the sum is at most 1. The work done is the larger
        of two fractions: of the steps, and of the digits to gain.
    """

    def __init__(
        self,
        name: str,
        tol: float | None,
        most: int,
        advance: Callable[[float], None],
        *,
        eps: float,
        is_stationary: bool,
    ) -> None:
        self._name, self._tol, self._most, self._advance = name, tol, most, advance
        self._eps, self._is_stationary = eps, is_stationary
        self._target = tol
        self._done = 0.0
        self._refused_at = 0
        self._checked: list[float] = []
        self.history: list[float] = []

    @property
    def target(self) -> float:
        """Residual at which a step is the last one."""
        return -1.0 if self._target is None else self._target

    @property
    def makes_all(self) -> bool:
        """Whether all steps are requested, whatever they gain."""
        return self._tol is None

    @property
    def is_over(self) -> bool:
        """Whether the tolerance seems to be reached, or no further step is allowed."""
        steps = len(self.history)
        return steps >= self._most or (
            steps > self._refused_at and (self.history[-1] <= self.target or self.is_stalled)
        )

    @property
    def is_stalled(self) -> bool:
        """Whether many steps have gained nothing."""
        h = self.history
        if not self._is_stationary or self._tol is None or len(h) <= STALLED_AFTER:
            return False
        return min(h[-STALLED_AFTER:]) >= min(h[:-STALLED_AFTER])

    def note(self, residual: float) -> None:
        """Record the residual of another step.

        Raises
        ------
        DivergenceError
            If the residuals grow.
        """
        self.history.append(residual)
        self._refuse_divergence()
        share = len(self.history) / self._most
        if self._tol and 0 < residual < 1 and self._tol < 1:
            share = max(share, math.log(residual) / math.log(self._tol))
        self._advance(max(min(share, 1.0) - self._done, 0.0))
        self._done = max(self._done, min(share, 1.0))

    def accepts(self, true_residual: float) -> bool:
        """Judge a recomputed residual: `True` if the iteration is finished.

        Otherwise there are more steps. A stationary method continues until the residual of its
        steps has dropped further, by the factor by which it understated the true one. Other methods
        restart from the recomputed residual.
        """
        is_better = not self._checked or true_residual < 0.5 * self._checked[-1]
        self._checked.append(true_residual)
        if self._tol is None or true_residual <= self._tol or not is_better:
            return True
        if len(self.history) >= self._most or self.is_stalled:
            return True
        self._refused_at = len(self.history)
        if self._is_stationary:
            self._target = min(self.history[-1], self.target) * self._tol / true_residual
        return False

    def has_met(self, true_residual: float) -> bool:
        """Whether a residual reaches the tolerance."""
        return self._tol is None or true_residual <= self._tol

    def _refuse_divergence(self) -> None:
        """Raise if residuals have grown for some steps, or by a large factor.

        The check compares residuals two steps apart, since forward and backward sweeps differ.
        """
        h = self.history
        growing = 0
        while growing < len(h) - 2 and h[-1 - growing] > h[-3 - growing]:
            growing += 1
        much = h[-1] / max(min(h), 100 * self._eps)
        grows = h[-1] > max(h[:2]) and (growing >= 8 or (growing >= 3 and much > 10))
        is_growing = self._is_stationary and (grows or much > 1000)
        if math.isfinite(h[-1]) and not is_growing:
            return
        steps = min(len(h) - 1 - h.index(min(h)), 4)
        is_known = steps and h[-1 - steps] > 0
        ratio = (h[-1] / h[-1 - steps]) ** (1 / steps) if is_known else math.inf
        fix = "use oc.linalg.solve, which is direct"
        if self._is_stationary:
            fix = f"use oc.linalg.gmres(A, b, preconditioner='sweep'), or {fix[4:]}"
        raise DivergenceError(
            f"{self._name} diverges: in the last {steps} of {len(h)} steps the residual grew by a "
            f"factor of {ratio:.3g} each, to {h[-1]:.3g} of the right-hand side; {fix}",
            ratio,
            h,
        )
