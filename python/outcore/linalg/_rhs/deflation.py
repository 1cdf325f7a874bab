"""Deflation: direct solves in a few directions in which refinement is slow.

A step of refinement multiplies the residual by E = I - A M⁻¹. If some singular values of A are
small, E is large in some directions, which then require many steps. The range of E on random
vectors contains these directions (N. Halko, P. G. Martinsson, J. A. Tropp, SIAM Review 53 (2011),
217-288):

- with the first correction: Z = M⁻¹ Ω, G = Ω - A Z = E Ω, orthonormalised;
- with the second: Z = M⁻¹ G, Q = -A Z, orthonormalised, and Z with it;
- after that and each later one: r <- r - Q c, x <- x - Z c, with c = Qᴴ r.

Thus r loses its component in the space of A Z, as in methods with augmented subspaces (A. Chapman,
Y. Saad, Numer. Linear Algebra Appl. 4 (1997), 43-66). The vectors take part in passes over A and
the factors that refinement makes anyway: deflation adds arithmetic to two of them, and no words.
"""

import enum
from collections.abc import Callable

import numpy as np

from outcore.blas.lapack import kernels
from outcore.linalg._tiles.columns import draw_normal, norms
from outcore.linalg._tiles.matrix import Matrix

MOST_VECTORS = 16
_ROWS_PER_VECTOR = 128
"""Least number of rows of the matrix per vector. For small matrices the vectors take too long."""

_LEAST_LEFT = 1e-10
"""A vector is dropped if orthogonalisation leaves less than this fraction of it."""

_SEED = 2
"""Seed of the random vectors. They are drawn again to form their residuals."""


class _Stage(enum.Enum):
    """State of the vectors."""

    RANDOM = enum.auto()
    RANGE = enum.auto()
    READY = enum.auto()
    USELESS = enum.auto()


class Deflation:
    """The first columns of the matrices that refinement works on.

    Parameters
    ----------
    X, R
        (n, count + k) matrices of solutions and residuals. Their last columns are the refined ones.
    count
        Number of vectors.
    """

    def __init__(self, X: Matrix, R: Matrix, count: int) -> None:
        self._X, self._R, self.count = X, R, count
        self._stage = _Stage.RANDOM if count else _Stage.USELESS

    @property
    def goes_along(self) -> bool:
        """Whether the vectors take part in the next correction and its residual."""
        return self._stage in (_Stage.RANDOM, _Stage.RANGE)

    def corrections(self, columns: int) -> Matrix:
        """Return the vectors and `columns` residuals after them, to be solved for in place."""
        if self._stage is _Stage.RANDOM:
            draw_normal(self._R[:, : self.count], _SEED)
        return self._R[:, : self.count + columns]

    def solutions_and_residuals(self, columns: int) -> tuple[Matrix, Matrix]:
        """Return the solved vectors and their residuals, followed by those of `columns` columns."""
        X, R = (each[:, : self.count] for each in (self._X, self._R))
        X[...] = R
        if self._stage is _Stage.RANDOM:
            draw_normal(R, _SEED)
        else:
            R[...] = 0
        return self._X[:, : self.count + columns], self._R[:, : self.count + columns]

    def look(self, pays: Callable[[float], bool]) -> None:
        """Use the residuals of the vectors, after the pass over A in which they took part.

        Parameters
        ----------
        pays
            Whether deflation pays off if a step leaves this fraction of a random residual.
        """
        X, R = (each[:, : self.count] for each in (self._X, self._R))
        left = norms(R)
        if not np.isfinite(left).all():
            self._stage = _Stage.USELESS
        elif self._stage is _Stage.RANGE:
            _orthonormalise(R, X)
            self._stage = _Stage.READY
        elif pays(float(np.sqrt(np.mean(left**2) / len(R)))):
            _orthonormalise(R)
            self._stage = _Stage.RANGE
        else:
            self._stage = _Stage.USELESS

    def reduce(self, X: Matrix, R: Matrix) -> None:
        """Remove the components of residuals in the space, and correct their solutions."""
        if self._stage is not _Stage.READY:
            return
        Z, Q = (each[:, : self.count] for each in (self._X, self._R))
        product = kernels(X.dtype)
        c: Matrix = np.zeros((self.count, X.shape[1]), X.dtype, order="F")
        product.gemm(Q, R, c, alpha=1, beta=0, trans_a="C")
        product.gemm(Q, c, R, alpha=-1, beta=1)
        product.gemm(Z, c, X, alpha=-1, beta=1)


def vectors_for(n: int, room: int) -> int:
    """Return the number of vectors for a matrix of order n, if `room` vectors fit in memory."""
    return max(min(MOST_VECTORS, n // _ROWS_PER_VECTOR, room), 0)


def _orthonormalise(Q: Matrix, Z: Matrix | None = None) -> None:
    """Orthonormalise the columns of Q, with zeros for dependent ones; transform Z likewise.

    Classical Gram-Schmidt, applied twice: the second pass corrects rounding errors of the first.
    """
    product = kernels(Q.dtype)
    both = [Q] if Z is None else [Q, Z]
    c: Matrix = np.zeros((Q.shape[1], 1), Q.dtype, order="F")
    for j in range(Q.shape[1]):
        before = norms(Q[:, j : j + 1])[0]
        for _ in range(2 if j else 0):
            product.gemm(Q[:, :j], Q[:, j : j + 1], c[:j], alpha=1, beta=0, trans_a="C")
            for each in both:
                product.gemm(each[:, :j], c[:j], each[:, j : j + 1], alpha=-1, beta=1)
        left = norms(Q[:, j : j + 1])[0]
        for each in both:
            if left > _LEAST_LEFT * before:
                each[:, j] /= left
            else:
                each[:, j] = 0
