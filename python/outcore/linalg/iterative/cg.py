"""Conjugate gradients with A on disk, of which only one triangle is read."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias, Unpack

import numpy as np
import numpy.typing as npt

from outcore.array.array import Array
from outcore.errors import InvalidError, NotPositiveDefiniteError
from outcore.linalg._output.factor import CholeskyFactor
from outcore.linalg._output.steps_done import Made
from outcore.linalg._tiles import columns
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.arguments import Options, Setting, check_omega, iterative_method
from outcore.linalg.iterative.iteration import Iteration
from outcore.linalg.iterative.opening import open_iteration
from outcore.linalg.iterative.plan import Demands, MatrixLayout
from outcore.linalg.iterative.preconditioners import (
    Preconditioner,
    demands_with,
    preconditioner_of,
)
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

ForHermitian: TypeAlias = Literal["jacobi", "ssor"] | CholeskyFactor | None

VECTORS = 5
"""Right-hand sides, residual, direction, its product with A, and preconditioned residual."""


@iterative_method
def cg(
    made: Made,
    A: Array | PathLike,
    b: npt.ArrayLike | Array | PathLike,
    *,
    preconditioner: ForHermitian = None,
    omega: float = 1.0,
    max_iterations: int = 1000,
    **options: Unpack[Options],
) -> tuple[Any, Report]:
    """Solve A x = b by conjugate gradients, with a Hermitian positive definite A on disk.

    The call reads only the blocks on and below the diagonal of A: n²/2 words per iteration, for all
    right-hand sides at once. Each right-hand side has its own search directions (Hestenes & Stiefel
    1952).

    Parameters
    ----------
    A, b, x0, block, pin, storage, dtype, tol, scratch, memory, out, if_exists, resume
        As for `gauss_seidel`.
    threads, progress
        As for `gauss_seidel`.
    preconditioner
        ``"jacobi"``: the diagonal blocks. ``"ssor"``: a forward and a backward sweep of SOR, each
        of which reads the triangle again. Cholesky factors of a matrix like A, from `cho_factor` or
        `open_factor`: each application reads them once. `None`: no preconditioner.
    omega
        Over-relaxation of ``"ssor"``, between 0 and 2.
    max_iterations
        Most iterations.

    Returns
    -------
    x : numpy.ndarray or Array
        The solution, of the shape of `b`; on disk if `out` is given.
    report : Report
        ``report.history`` contains ‖r‖₂ / ‖b‖₂ after each iteration, the largest of all right-hand
        sides, with r from the recurrence. ``report.backward_error`` and the residual in
        ``report.notes`` are recomputed from x at the end. If they are larger than `tol`, the
        iteration restarts from x.

    Raises
    ------
    NotPositiveDefiniteError
        If A proves not to be positive definite.
    OutcoreError
        As for `gauss_seidel`.

    Warns
    -----
    ConvergenceWarning
        If the residual does not reach the tolerance.
    """
    is_named = isinstance(preconditioner, str) and preconditioner in ("jacobi", "ssor")
    factors = preconditioner if isinstance(preconditioner, CholeskyFactor) else None
    if preconditioner is not None and factors is None and not is_named:
        raise InvalidError(
            "preconditioner must be None, 'jacobi', 'ssor' or Cholesky factors, have "
            f"{preconditioner!r}; oc.linalg.gmres takes others"
        )
    check_omega(omega)
    setting = Setting(max_iterations, "her", factors, made=made, **options)

    def choices(layout: MatrixLayout, *_: object) -> list[Demands]:
        return [demands(preconditioner, layout.dtype)]

    with open_iteration("conjugate gradients", A, b, choices, setting) as it:
        M = preconditioner_of(it, preconditioner, omega)
        for _ in M.groups():
            _iterate(it, M)
        return it.result("cg", **M.figures())


def demands(preconditioner: ForHermitian, dtype: np.dtype[Any]) -> Demands:
    """Return the memory demands of conjugate gradients."""
    alone = Demands("conjugate gradients", VECTORS, is_half=True)
    return demands_with(preconditioner, dtype, alone)


def _iterate(it: Iteration, M: Preconditioner) -> None:
    """Iterate until the residual is small."""
    R, P, Q, Z = it.vectors(4)
    R[:] = it.B
    if it.has_guess:
        it.form_residual(R)
    negligible = float(np.finfo(R.dtype).eps) ** 2
    while True:
        M.apply(R, Z)
        P[:] = Z
        rz = columns.dots(R, Z).real
        # Steps from smaller residuals change no digit of x, and their squares finally underflow.
        targets = np.maximum(it.targets(negligible), negligible * columns.norms(R))
        is_active = columns.norms(R) > targets
        while not it.convergence.is_over:
            it.passes.multiply(P, Q)
            steps = _steps(it, is_active, P, Q, rz)
            columns.add_scaled(it.X, steps, P)
            columns.add_scaled(R, -steps, Q)
            norms = columns.norms(R)
            it.note(it.relative(norms))
            is_active = norms > targets
            if it.convergence.is_over or not (is_active.any() or it.convergence.makes_all):
                break
            M.apply(R, Z)
            before, rz = rz, columns.dots(R, Z).real
            columns.scale_and_add(P, rz / np.where(before == 0, 1, before), Z)
        if it.is_accepted(R):
            return


def _steps(
    it: Iteration, is_active: npt.NDArray[np.bool_], P: Matrix, Q: Matrix, rz: columns.Numbers
) -> npt.NDArray[np.float64]:
    """Compute the steps along P; zero for finished columns."""
    curvature = columns.dots(P, Q).real
    if not (curvature[is_active] > 0).all():
        j = int(np.flatnonzero(is_active & ~(curvature > 0))[0])
        raise NotPositiveDefiniteError(
            f"A is not positive definite: pᴴ A p = {curvature[j]:.3g} in iteration "
            f"{len(it.convergence.history) + 1}; use oc.linalg.gmres",
            history=it.convergence.history,
        )
    steps: npt.NDArray[np.float64] = np.where(is_active, rz, 0) / np.where(is_active, curvature, 1)
    return steps
