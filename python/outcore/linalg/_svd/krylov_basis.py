"""An orthonormal basis of a block Krylov space of G = AᴴA, and its approximations of G.

Block Lanczos with full orthogonalization (Musco & Musco 2015) and thick restarts (Wu & Simon 2000).
After the product W = G Z with the newest block Z of the basis V,

    H = Vᴴ W,   W <- W - V H,   W = Q B          Q is the next block of V
    T = Vᴴ G V,   T Y = Y diag(θ)                T gains H as its last columns and rows

The columns of V Y are Ritz vectors of G, with G V y = θ V y + Q B y', where y' are the last rows of
y. A full basis is replaced by its best l Ritz vectors, followed by Q. A basis of one block is
replaced by that of G Z, which is subspace iteration.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import imported
from outcore.blas.lapack import kernels
from outcore.linalg._rows.stream import allocated
from outcore.linalg._rows.tsqr_plan import WORK_COLUMNS
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall

MOST_COLUMNS = 1280
"""Limit for columns of a basis of several blocks, due to the eigenvalue problem in each pass."""


def basis_bytes(n: int, width: int, blocks: int, dtype: np.dtype[Any]) -> int:
    """Return the memory of a basis, and of its products."""
    columns, wide = width * blocks, np.result_type(dtype, "f8").itemsize
    vectors = pages(n * width * (blocks + 1) * dtype.itemsize)
    small = pages(columns**2 * wide) + pages(columns * width * dtype.itemsize)
    return vectors + small + pages(16)


class KrylovBasis:
    """Vectors of length n in blocks of l, with Vᴴ G V.

    Parameters
    ----------
    n, width, blocks
        Length of the vectors, l, and the largest number of blocks.
    dtype
        Type of A.
    call
        The call whose arena supplies the memory.

    Attributes
    ----------
    state
        Memory of all data that a resumed call needs.
    """

    def __init__(
        self, n: int, width: int, blocks: int, dtype: np.dtype[Any], call: LongCall
    ) -> None:
        self._width, self._blocks, self._call = width, blocks, call
        self._kernels = kernels(dtype)
        # Q is stored behind a full basis.
        self._V = allocated(call, (n, width * (blocks + 1)), dtype)
        self._T = allocated(call, (width * blocks,) * 2, np.result_type(dtype, "f8"))
        self._T[...] = 0
        self._counts = allocated(call, (2, 1), np.dtype(np.int64))
        self._counts[:, 0] = 1, 0
        self.state = [self._V, self._T, self._counts]

    @property
    def passes(self) -> int:
        """Number of products with G so far."""
        return int(self._counts[1, 0])

    @property
    def first(self) -> Matrix:
        """(n, l) first block: random vectors at the start, the best vectors at the end."""
        return self._V[:, : self._width]

    @property
    def second(self) -> Matrix:
        """(n, l) scratch after `keep_best`."""
        return self._V[:, self._width : 2 * self._width]

    @property
    def newest(self) -> Matrix:
        """(n, l) block of the next product."""
        return self._V[:, self._end - self._width : self._end]

    @property
    def _end(self) -> int:
        """Number of columns in the basis."""
        return int(self._counts[0, 0]) * self._width

    def begin(self, W: Matrix) -> None:
        """Orthonormalize the first block; W is scratch of its shape."""
        W[...] = self.first
        self._orthonormalize(W, self.first)

    def rescale(self, exponent: int) -> None:
        """Multiply T by this power of 2: later products with G have other units."""
        if exponent:
            parts = self._T.T.view(np.float64)
            np.ldexp(parts, exponent, out=parts)

    def add(self, W: Matrix) -> None:
        """Add W = G Z, with the newest block Z; W is overwritten."""
        end = self._end
        last, V = slice(end - self._width, end), self._V[:, :end]
        H = self._project_out(V, W)
        self._T[:end, last] = H
        self._T[last, :end] = H.conj().T
        self._T[last, last] = (H[last] + H[last].conj().T) / 2
        del H
        # A second projection removes the parts of V that rounding leaves in W.
        self._project_out(V, W)
        Q = self._V[:, end : end + self._width]
        self._B = self._orthonormalize(W, Q)
        self._counts[1, 0] += 1
        theta, Y = imported("scipy.linalg").eigh(self._T[:end, :end])
        self._theta, self._Y = np.maximum(theta[::-1], 0), Y[:, ::-1]
        self._rest = self._B @ self._Y[last, : self._width]

    def residuals(self) -> npt.NDArray[np.float64]:
        """Return ‖Aᴴu - s v‖ / s[0] of the best l triplets (u, s, v), after `add`."""
        return triplet_residuals(
            np.linalg.norm(self._rest, axis=0), np.sqrt(self._theta[: self._width])
        )

    def extend(self, W: Matrix) -> None:
        """Make Q the newest block; W is scratch."""
        end, width = self._end, self._width
        V, Q = self._V[:, :end], self._V[:, end : end + width]
        if self._blocks == 1:
            # G Z = Z T + Q B.
            self._kernels.gemm(V, self._small(self._T), W, beta=0)
            self._kernels.gemm(Q, self._small(self._B), W)
            self._orthonormalize(W, self.first)
            self._T[...] = 0
            return
        is_full = end == self._blocks * width
        if is_full:
            self._combine(W)
            self.first[...] = W
            V = self.first
            self._T[...] = 0
            np.fill_diagonal(self._T[:width, :width], self._theta[:width])
            self._counts[0, 0] = 1
        # Columns of W that were almost zero became directions that V may contain. Behind a full
        # basis there may even be fewer than l other directions; then Q takes some that the Ritz
        # vectors leave. The rounding errors of small columns need a second projection.
        for _ in range(2):
            self._project_out(V, Q)
            W[...] = Q
            self._orthonormalize(W, Q)
        if is_full:
            self._V[:, width : 2 * width] = Q
        self._counts[0, 0] += 1

    def keep_best(self, W: Matrix) -> None:
        """Replace `first` by the orthonormalized products of G with the best l Ritz vectors.

        They are better than the vectors, and need no pass: G V y / θ = V y + Q B y' / θ. W is
        scratch.
        """
        self._combine(W)
        theta = self._theta[: self._width]
        is_known = theta > np.finfo(W.dtype).eps * theta[0]
        rest = np.where(is_known, self._rest / np.where(is_known, theta, 1), 0)
        Q = self._V[:, self._end : self._end + self._width]
        self._kernels.gemm(Q, self._small(rest), W)
        self._orthonormalize(W, self.first)

    def _combine(self, W: Matrix) -> None:
        """Compute W <- the best l Ritz vectors."""
        self._kernels.gemm(
            self._V[:, : self._end], self._small(self._Y[:, : self._width]), W, beta=0
        )

    def _small(self, X: npt.NDArray[Any]) -> Matrix:
        return np.asfortranarray(X, self._V.dtype)

    def _project_out(self, V: Matrix, W: Matrix) -> Matrix:
        """Compute W <- W - V H with H = Vᴴ W, and return H."""
        H = allocated(self._call, (V.shape[1], W.shape[1]), W.dtype)
        self._kernels.gemm(V, W, H, beta=0, trans_a="C")
        self._kernels.gemm(V, H, W, alpha=-1)
        return H

    def _orthonormalize(self, W: Matrix, Q: Matrix) -> Matrix:
        """Factor W = Q B and return B; W is overwritten."""
        width, dtype = self._width, W.dtype
        tau = allocated(self._call, (width, 1), dtype)[:, 0]
        work = allocated(self._call, (WORK_COLUMNS * width, 1), dtype)[:, 0]
        self._kernels.geqrf(W, tau, work)
        Q[...] = 0
        np.fill_diagonal(Q, 1)
        self._kernels.unmqr(W, tau, Q, work)
        B: Matrix = np.triu(W[:width])
        return B


def triplet_residuals(residuals: npt.NDArray[Any], s: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Return ‖Aᴴu - s v‖ / s[0] from ‖AᴴA v - s² v‖, with u = A v / s."""
    # A small Ritz value has the absolute error of its residual, so its root is only as accurate as
    # the root of that.
    size = np.maximum(s, np.sqrt(residuals)) * s[0]
    found = np.zeros(len(s))
    np.divide(residuals, size, out=found, where=size > 0)
    return found
