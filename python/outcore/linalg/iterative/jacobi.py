"""Block Jacobi with A on disk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.linalg._output.open_results import opens_results
from outcore.linalg._output.steps_done import Made
from outcore.linalg._tiles import columns
from outcore.linalg._tiles.assumptions import AssumeA
from outcore.linalg.iterative.arguments import Setting, Storage, check_omega
from outcore.linalg.iterative.iteration import Iteration, narrowed
from outcore.linalg.iterative.opening import open_iteration
from outcore.linalg.iterative.plan import Demands, Pin
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

VECTORS = 2
"""Right-hand sides and residual."""


@opens_results()
def jacobi(
    made: Made,
    A: Array | PathLike,
    b: npt.ArrayLike | Array | PathLike,
    *,
    x0: npt.ArrayLike | Array | PathLike | None = None,
    omega: float = 1.0,
    block: int | None = None,
    pin: Pin = "auto",
    assume_a: AssumeA = "gen",
    storage: Storage = None,
    dtype: npt.DTypeLike | None = None,
    tol: float | None = 1e-5,
    max_sweeps: int = 1000,
    scratch: PathLike | None = None,
    memory: int | str | None = None,
    out: PathLike | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    threads: int | None = None,
    progress: ProgressLike = True,
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
    setting = Setting(
        tol, max_sweeps, memory, threads, progress, assume_a, pin, block, storage, scratch, out,
        if_exists, resume,
        dtype=dtype, made=made,
    )  # fmt: skip
    setting.check()
    needs = demands(is_half=setting.mirror is not None)
    with open_iteration("Jacobi", A, b, x0, lambda *_: [needs], setting) as it:
        for _ in it.groups():
            _iterate(it, omega)
        report = it.report("jacobi", {}, notes=narrowed(it), block_reads=it.steps, omega=omega)
        return it.result(report)


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
