"""Steps of QR on column-major blocks in memory: factor panels, and apply their reflections.

The k reflections of a panel, H_i = I - tau_i v_i v_iᴴ, form one block reflection H_1 H_2 ... H_k =
I - V T Vᴴ (Schreiber & Van Loan 1989). T is not stored: T⁻¹ is the strictly upper part of VᴴV with
1/tau on its diagonal (Puglisi 1992; Joffrain et al. 2006). VᴴV is computed along with VᴴC, block by
block.
"""

from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore.blas.calls import Trans
from outcore.blas.lapack import Kernels, kernels
from outcore.linalg._slab_qr.plan import LEAF_COLUMNS
from outcore.linalg._tiles.matrix import Matrix


class Reflections:
    """Computes and applies reflections, with workspaces from a call's arena.

    Parameters
    ----------
    dtype
        Element type.
    columns
        Most reflections of a panel.
    width
        Most columns to which they are applied.
    """

    def __init__(self, dtype: np.dtype[Any], columns: int, width: int, arena: Arena) -> None:
        self._kernels: Kernels = kernels(dtype)
        self._product = _vector(arena, columns * width, dtype)
        self._head = _vector(arena, columns**2, dtype)
        self._inverse = _vector(arena, columns**2, dtype)
        self._work = _vector(arena, min(columns, LEAF_COLUMNS) * LEAF_COLUMNS, dtype)

    def factor(self, P: Matrix) -> npt.NDArray[Any]:
        """Factor a panel P = Q R in place, and return the factors tau of its reflections.

        The factorization is recursive in columns (Elmroth & Gustavson 2000), so most operations are
        matrix products. It takes about 2 m k² operations.

        Parameters
        ----------
        P
            (m, k) with m >= k, column-major. It is overwritten by R on and above the diagonal, and
            below it by the vectors of the reflections.
        """
        tau = np.empty(P.shape[1], P.dtype)
        self._factor(P, tau)
        return tau

    def _factor(self, P: Matrix, tau: npt.NDArray[Any]) -> None:
        columns = P.shape[1]
        if columns <= LEAF_COLUMNS:
            self._kernels.geqrf(P, tau, self._work)
            return
        half = columns // 2
        self._factor(P[:, :half], tau[:half])
        self.apply([(0, P[:, :half])], tau[:half], P[:, half:])
        self._factor(P[half:, half:], tau[half:])

    def apply(
        self,
        V: Iterable[tuple[int, Matrix]],
        tau: npt.NDArray[Any],
        C: Matrix,
        trans: Trans = "C",
    ) -> None:
        """Apply the reflections of a panel: C <- op(Q) C = C - V op(T) (Vᴴ C).

        It takes about 4 m k w operations. If C has no columns, V is not consumed.

        Parameters
        ----------
        V
            The panel's (m, k) vectors in blocks of rows, from the top: (first row, block), in the
            format of `factor`. The first block has at least k rows. All blocks are kept until their
            second use, and then freed one by one.
        tau
            (k,) factors.
        C
            (m, w) column-major, in place.
        trans
            "C" for Qᴴ C, "N" for Q C.
        """
        k, w = len(tau), C.shape[1]
        if not w:
            return
        K, held = self._kernels, deque[tuple[int, Matrix]]()
        head, inverse = (part[: k * k].reshape(k, k).T for part in (self._head, self._inverse))
        W = self._product[: k * w].reshape(w, k).T
        for row, block in V:
            below = row, block
            if row == 0:
                # A reflection with tau = 0 is the identity: its vector counts as zero.
                head[...] = block[:k]
                for j in range(k):
                    head[:j, j] = 0
                    head[j, j] = tau[j] != 0
                K.gemm(head, C[:k], W, beta=0, trans_a="C")
                K.herk(head, inverse, beta=0, lower=False, trans="C")
                below = k, block[k:]
            held.append(below)
            first, rows = below
            K.gemm(rows, C[first : first + len(rows)], W, trans_a="C")
            K.herk(rows, inverse, lower=False, trans="C")
            del block, rows, below
        np.fill_diagonal(inverse, 1 / np.where(tau == 0, 1, tau))
        K.trsm(inverse, W, lower=False, trans=trans, unit=False)
        K.gemm(head, W, C[:k], alpha=-1)
        while held:
            first, rows = held.popleft()
            K.gemm(rows, W, C[first : first + len(rows)], alpha=-1)
            del rows


def _vector(arena: Arena, count: int, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    nbytes = count * dtype.itemsize
    return np.frombuffer(memoryview(arena.allocate(nbytes)), dtype, count)
