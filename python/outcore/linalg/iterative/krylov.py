"""Krylov spaces of several right-hand sides, side by side, so that one product extends them all."""

import numpy as np
import numpy.typing as npt
from scipy.linalg import solve_triangular

from outcore.blas.lapack import kernels
from outcore.linalg._tiles import columns
from outcore.linalg._tiles.matrix import Matrix


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
            y = solve_triangular(T[:used, :used], self._g[:used, c], check_finite=False)
            factors = np.asfortranarray(y.astype(X.dtype).reshape(-1, 1))
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
