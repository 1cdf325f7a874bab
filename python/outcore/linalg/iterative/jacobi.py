"""Block Jacobi with A on disk."""

from __future__ import annotations

import math
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from outcore.array.array import Array
from outcore.linalg._output.steps_done import Made
from outcore.linalg._tiles import columns
from outcore.linalg._tiles.assumptions import AssumeA
from outcore.linalg.iterative.arguments import Options, Setting, check_omega, iterative_method
from outcore.linalg.iterative.iteration import Iteration, narrowed
from outcore.linalg.iterative.opening import open_iteration
from outcore.linalg.iterative.plan import Demands
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

VECTORS = 2
"""Right-hand sides and residual."""


@iterative_method
def jacobi(
    made: Made,
    A: Array | PathLike,
    b: npt.ArrayLike | Array | PathLike,
    *,
    omega: float = 1.0,
    assume_a: AssumeA = "gen",
    max_sweeps: int = 1000,
    **options: Unpack[Options],
) -> tuple[Any, Report]:
    """Solve A x = b by block Jacobi, with A on disk.

    x <- x + ω D⁻¹ (b - A x), with D the diagonal blocks of A. The method converges if A is strictly
    diagonally dominant by blocks, more slowly than `gauss_seidel`. For a Hermitian positive
    definite A it converges if ω is small enough.

    Parameters
    ----------
    A, b, x0, block, pin, storage, dtype, tol, scratch, memory, out, if_exists, resume
        As for `gauss_seidel`.
    threads, progress
        As for `gauss_seidel`.
    omega
        Damping or over-relaxation ω, positive.
    assume_a
        As in SciPy. If A is symmetric (``"sym"``) or Hermitian (``"her"``, ``"pos"``), the call
        reads only the blocks on and below the diagonal.
    max_sweeps
        Most sweeps; each is a pass over A.

    Returns
    -------
    x : numpy.ndarray or Array
        The solution, of the shape of `b`; on disk if `out` is given.
    report : Report
        ``report.history`` contains ‖b - Ax‖₂ / ‖b‖₂ after each sweep, the largest of all right-hand
        sides.

    Raises
    ------
    OutcoreError
        As for `gauss_seidel`.

    Warns
    -----
    ConvergenceWarning
        If the residual does not reach the tolerance.
    """
    check_omega(omega, math.inf)
    setting = Setting(max_sweeps, assume_a, made=made, **options)
    needs = demands(is_half=setting.mirror is not None)
    with open_iteration("Jacobi", A, b, lambda *_: [needs], setting) as it:
        for _ in it.groups():
            _iterate(it, omega)
        return it.result("jacobi", {}, notes=narrowed(it), block_reads=it.steps, omega=omega)


def demands(*, is_half: bool) -> Demands:
    """Return the memory demands of Jacobi."""
    return Demands("Jacobi", VECTORS, True, is_half=is_half)


def _iterate(it: Iteration, omega: float) -> None:
    """Sweep until the residual is small."""
    X, B, convergence = it.X, it.B, it.convergence
    (R,) = it.vectors(1)
    R[:] = B
    if it.has_guess:
        it.passes.multiply(X, R)
        np.subtract(B, R, out=R)
    steps = np.full(X.shape[1], omega)
    while not convergence.is_over:
        it.blocks.solve_all(R)
        columns.add_scaled(X, steps, R)
        it.passes.multiply(X, R)
        np.subtract(B, R, out=R)
        it.note(it.relative(columns.norms(R)))
    if it.is_copied:
        it.form_residual(R)
    else:
        it.judge(R)
