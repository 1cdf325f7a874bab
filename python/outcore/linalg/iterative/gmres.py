"""Restarted GMRES with A on disk (Saad & Schultz 1986), for many right-hand sides at once."""

from __future__ import annotations

from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from outcore._util.counts import count_of
from outcore.array.array import Array
from outcore.blas.lapack import kernels
from outcore.linalg._output.steps_done import Made
from outcore.linalg._rhs.residual import matrix_in
from outcore.linalg._tiles import columns
from outcore.linalg._tiles.assumptions import AssumeA
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.arguments import Options, Setting, check_omega, iterative_method
from outcore.linalg.iterative.iteration import Iteration
from outcore.linalg.iterative.opening import open_iteration
from outcore.linalg.iterative.plan import Demands, MatrixLayout
from outcore.linalg.iterative.preconditioners import (
    Function,
    Given,
    Preconditioner,
    Saved,
    check_preconditioner,
    demands_with,
    preconditioner_of,
)
from outcore.report.report import Report
from outcore.storage.volumes import PathLike

RESTART = 30
"""Directions before a restart, if they fit in the budget."""

LEAST_RESTART = 10
"""If fewer directions than these would fit, the groups of right-hand sides become smaller."""

IN_VAIN = 3
"""Successive restarts that may gain nothing if the preconditioner is a function."""


@iterative_method
def gmres(
    made: Made,
    A: Array | PathLike,
    b: npt.ArrayLike | Array | PathLike,
    *,
    preconditioner: Given = None,
    restart: int | None = None,
    omega: float = 1.0,
    assume_a: AssumeA = "gen",
    max_iterations: int = 1000,
    **options: Unpack[Options],
) -> tuple[Any, Report]:
    """Solve A x = b by restarted GMRES, with A on disk.

    Each right-hand side has its own Krylov space. One pass over A extends all of them.

    Parameters
    ----------
    A, b, x0, block, pin, storage, dtype, tol, scratch, memory, out, if_exists, resume
        As for `gauss_seidel`.
    threads, progress
        As for `gauss_seidel`.
    preconditioner
        Preconditioner, applied from the right. ``"sweep"``: a sweep of SOR; an iteration still
        reads A once. ``"ssor"``: a forward and a backward sweep; an iteration reads A one and a
        half times. ``"jacobi"``: the diagonal blocks. LU or Cholesky factors of a matrix like A,
        from `lu_factor`, `cho_factor` or `open_factor`: each application reads them once. A
        function maps an (n, k) array to another, and may differ from call to call. `None`: no
        preconditioner.
    restart
        Number of directions to keep before x is updated and the iteration restarts. With a
        preconditioner each direction takes twice the memory. By default 30, or as many as fit in
        half of the budget.
    omega
        Over-relaxation of ``"sweep"`` and ``"ssor"``, between 0 and 2.
    assume_a
        As in SciPy. If A is symmetric (``"sym"``) or Hermitian (``"her"``, ``"pos"``), the call
        reads only the blocks on and below the diagonal.
    max_iterations
        Most iterations in total. The call stops earlier if all directions up to a restart gain
        nothing, as with a singular matrix; three times, if the preconditioner is a function. With
        ``tol=None`` it does not.

    Returns
    -------
    x : numpy.ndarray or Array
        The solution, of the shape of `b`; on disk if `out` is given.
    report : Report
        ``report.history`` contains ‖r‖₂ / ‖b‖₂ after each iteration, the largest of all right-hand
        sides, from the least-squares problems. ``report.backward_error`` and the residual in
        ``report.notes`` are recomputed from x. So is the residual at each restart, from A itself
        even with `storage`.

    Raises
    ------
    OutcoreError
        As for `gauss_seidel`.

    Warns
    -----
    ConvergenceWarning
        If the residual does not reach the tolerance.
    """
    check_preconditioner(preconditioner, ("jacobi", "sweep", "ssor"))
    check_omega(omega)
    if restart is not None:
        restart = count_of("restart", restart)
    factors = preconditioner if isinstance(preconditioner, Saved) else None
    setting = Setting(max_iterations, assume_a, factors, made=made, **options)

    def choices(
        layout: MatrixLayout, width: int, memory_bytes: int, is_least: bool
    ) -> list[Demands]:
        return demands(
            layout, width, memory_bytes, preconditioner, restart, is_least=is_least,
            is_half=setting.mirror is not None,
        )  # fmt: skip

    with open_iteration("GMRES", A, b, choices, setting) as it:
        M = preconditioner_of(it, preconditioner, omega)
        spaces = Spaces(it, is_preconditioned=preconditioner is not None)
        for _ in M.groups():
            _iterate(it, M, spaces.of_group())
        return it.result("gmres", **M.figures())


def demands(
    layout: MatrixLayout,
    width: int,
    memory_bytes: int,
    preconditioner: Given,
    restart: int | None,
    *,
    is_least: bool,
    is_half: bool,
) -> list[Demands]:
    """Return the memory demands of GMRES, with `restart` directions or as many as fit.

    If groups can have fewer columns (not `is_least`), that is preferred to very few directions.
    """
    n, dtype = layout.n, layout.dtype
    flexible = preconditioner is not None
    most = min(restart or RESTART, n)
    least = 1 if is_least else min(LEAST_RESTART, most)
    found = []
    for m in range(most, most - 1 if restart else least - 1, -1):
        # Right-hand sides, directions, and preconditioned directions.
        vectors = 1 + m + 1 + m * flexible
        if m > least and not restart and 2 * vectors * n * width * dtype.itemsize > memory_bytes:
            continue
        alone = Demands(
            "GMRES", vectors, is_half=is_half, restart=m,
            way=f"restart after {m} direction{'s' * (m != 1)}",
            reserve_bytes=_triangle_bytes(width, m, dtype),
        )  # fmt: skip
        found.append(demands_with(preconditioner, dtype, alone))
    return found


def _triangle_bytes(width: int, restart: int, dtype: np.dtype[Any]) -> int:
    wide = np.result_type(dtype, np.float64)
    return pages(width * restart * (restart + 1) * wide.itemsize)


class Spaces:
    """Memory of Krylov spaces, from the budget, for one group of right-hand sides at a time."""

    def __init__(self, it: Iteration, *, is_preconditioned: bool) -> None:
        g, dtype = it.geometry, it.geometry.layout.dtype
        n, k, m = g.layout.n, g.columns, g.demands.restart
        self._it, self._restart = it, m
        self._V = matrix_in(it.call, n, (m + 1) * k, dtype)
        self._Z = matrix_in(it.call, n, m * k, dtype) if is_preconditioned else self._V
        wide = np.result_type(dtype, np.float64)
        self._triangles = matrix_in(it.call, (m + 1) * m, k, wide)

    def of_group(self) -> Krylov:
        """Return spaces for the right-hand sides of the group."""
        k, m = self._it.B.shape[1], self._restart
        triangles = self._triangles[:, :k].T.reshape(k, m, m + 1)
        return Krylov(self._V[:, : (m + 1) * k], self._Z[:, : (m + 1) * k], triangles)


def _iterate(it: Iteration, M: Preconditioner, spaces: Krylov) -> None:
    """Iterate until the residual is small."""
    R, convergence = spaces.residual, it.convergence
    R[:] = it.B
    if it.has_guess:
        it.form_residual(R)
    in_vain = 0
    while True:
        spaces.begin(it.targets())
        try:
            for j in range(it.geometry.demands.restart):
                M.apply_and_multiply(
                    spaces.direction(j), spaces.preconditioned(j), spaces.direction(j + 1)
                )
                convergence.note(it.relative(spaces.extend()))
                if convergence.is_over or not (spaces.is_active or convergence.makes_all):
                    break
        except KeyboardInterrupt:
            spaces.update(it.X)
            raise
        spaces.update(it.X)
        it.keep()
        is_over = convergence.is_over
        it.form_residual(R)
        if is_over and convergence.accepts(it.true_residual):
            return
        in_vain = 0 if spaces.has_gained() else in_vain + 1
        # The same residual leads to the same space. But a function may return other results.
        most = IN_VAIN if isinstance(M, Function) else 1
        if in_vain >= most and not convergence.makes_all:
            return


class Krylov:
    """Arnoldi's process and the least-squares problems of GMRES, separate for each column.

    The directions of column c are columns c, c + k, c + 2k, ... of `V`. Directions of all
    right-hand sides at one step are adjacent, and those of one right-hand side have equal
    distances. So the BLAS can use both without copies.

    Parameters
    ----------
    V
        (n, (m + 1) k) memory for the directions.
    Z
        (n, m k) memory for the preconditioned directions; `V` itself without a preconditioner.
    H
        (k, m, m + 1) memory, of double precision, for the triangles of the least-squares problems.
    """

    def __init__(self, V: Matrix, Z: Matrix, H: Matrix) -> None:
        self._V, self._Z, self._H = V, Z, H
        self._k, self._m = H.shape[:2]
        self._kernels = kernels(V.dtype)
        self._rotations = np.zeros((2, self._m, self._k), H.dtype)
        self._g = np.zeros((self._m + 1, self._k), H.dtype)
        self._used = np.zeros(self._k, int)
        self._is_active = np.zeros(self._k, bool)
        self._targets = np.zeros(self._k)
        self._sizes = np.zeros(self._k)
        self._steps = 0

    @property
    def residual(self) -> Matrix:
        """(n, k) memory for the residuals, to be filled before `begin`."""
        return self.direction(0)

    @property
    def is_active(self) -> bool:
        """Whether any column can be extended by another direction."""
        return bool(self._is_active.any())

    def has_gained(self) -> bool:
        """Whether any recomputed residual is smaller than at the start of this space."""
        least = 1 - 100 * float(np.finfo(self.residual.dtype).eps)
        return bool((columns.norms(self.residual) < least * self._sizes).any())

    def direction(self, j: int) -> Matrix:
        """(n, k) directions of step j, one for each column."""
        return self._V[:, j * self._k : (j + 1) * self._k]

    def preconditioned(self, j: int) -> Matrix:
        """(n, k) preconditioned directions of step j."""
        return self._Z[:, j * self._k : (j + 1) * self._k]

    def begin(self, targets: npt.NDArray[np.float64]) -> None:
        """Start from the residuals. Columns below their target take no part."""
        R, sizes = self.residual, columns.norms(self.residual)
        self._targets, self._is_active, self._sizes = targets, sizes > targets, sizes
        columns.scale(R, np.where(self._is_active, 1 / np.where(sizes > 0, sizes, 1), 0))
        self._used[:] = 0
        self._steps = 0
        self._g[:] = 0
        self._g[0] = sizes

    def extend(self) -> npt.NDArray[np.float64]:
        """Use the products with A in ``direction(steps + 1)``; return the norms of residuals.

        Classical Gram-Schmidt, applied twice, makes directions orthogonal.
        """
        for c in range(self._k):
            if self._is_active[c]:
                self._extend_column(c)
            else:
                self.direction(self._steps + 1)[:, c] = 0
        self._steps += 1
        return np.abs(self._g[self._used, np.arange(self._k)])

    def update(self, X: Matrix) -> None:
        """Add to each column of X the combination of its directions with the least residual."""
        for c, used in enumerate(self._used):
            T = self._H[c, :used, :used].T
            # If the last pivot is zero, the last direction contributes nothing.
            while used and abs(T[used - 1, used - 1]) <= np.finfo(T.dtype).tiny:
                used -= 1
            if not used:
                continue
            y = np.array(self._g[:used, c : c + 1], order="F")
            kernels(y.dtype).trsm(T[:used, :used], y, lower=False, unit=False)
            factors = np.asfortranarray(y.astype(X.dtype))
            self._kernels.gemm(self._Z[:, c : used * self._k : self._k], factors, X[:, c : c + 1])

    def _extend_column(self, c: int) -> None:
        j, k = self._steps, self._k
        basis = self._V[:, c : (j + 1) * k : k]
        w = self._V[:, (j + 1) * k + c : (j + 1) * k + c + 1]
        h, more = np.zeros(j + 2, self._H.dtype), np.empty((j + 1, 1), w.dtype, order="F")
        for _ in range(2):
            self._kernels.gemm(basis, w, more, beta=0, trans_a="C")
            self._kernels.gemm(basis, more, w, alpha=-1)
            h[:-1] += more[:, 0]
        size = float(columns.norms(w)[0])
        # If a product lies in the space, the remainder consists of rounding errors.
        is_over = size <= 10 * np.finfo(w.dtype).eps * float(columns.norms(h[:, None])[0])
        h[-1] = 0 if is_over else size
        columns.scale(w, np.array([0 if is_over else 1 / size]))
        self._rotate(c, h, is_over=is_over)
        self._used[c] = j + 1
        self._is_active[c] = not is_over and abs(self._g[j + 1, c]) > self._targets[c]

    def _rotate(self, c: int, h: Matrix, *, is_over: bool) -> None:
        """Reduce the last column of a Hessenberg matrix to triangular form, by Givens rotations.

        If the space is exhausted (`is_over`) and the last pivot consists of rounding errors, the
        matrix is singular on the space. The pivot is then set to zero, and the residual stays.
        """
        rounding = 10 * np.finfo(self._V.dtype).eps * float(columns.norms(h[:, None])[0])
        j = self._steps
        cosines, sines = self._rotations[:, :, c]
        for i in range(j):
            a, b = h[i], h[i + 1]
            h[i], h[i + 1] = cosines[i] * a + sines[i] * b, -np.conj(sines[i]) * a + cosines[i] * b
        if is_over and abs(h[j]) <= rounding:
            h[j] = 0
        a, b = h[j], h[j + 1]
        size = np.hypot(abs(a), abs(b))
        if size > 0:
            phase = a / abs(a) if a != 0 else 1
            cosines[j], sines[j] = abs(a) / size, phase * np.conj(b) / size
            h[j] = phase * size
        else:
            cosines[j], sines[j] = 0, 1
        self._H[c, j, : j + 1] = h[: j + 1]
        self._g[j + 1, c] = -np.conj(sines[j]) * self._g[j, c]
        self._g[j, c] *= cosines[j]
