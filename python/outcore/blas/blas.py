"""The BLAS on column-major views; `outcore.blas.calls` defines these views."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from outcore.blas.calls import (
    Array,
    Calls,
    Side,
    Trans,
    function,
    letter,
)
from outcore.blas.exported import exported

# OpenBLAS now chooses its kernels, permanently.  The package has called
# `blas_choice.choose` before, which influences the choice.
cython_blas = exported("cython_blas")

MOST_HERK = 8192
"""Order above which `Blas.herk` splits the matrix.

The threaded syrk and herk of OpenBLAS write past their buffer from an order of about 16,000 on, and
the process crashes (seen in 0.3.30 with its AVX-512 kernels and two threads). So does potrf, which
calls them; no panel here is that wide.
"""


class Blas(Calls):
    """Matrix products and triangular solves."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__(dtype)
        prefix = self.prefix
        self._gemm: Final = function(cython_blas, prefix + "gemm", "cciiixxixixxi")
        self._trsm: Final = function(cython_blas, prefix + "trsm", "cccciixxixi")
        self._trmm: Final = function(cython_blas, prefix + "trmm", "cccciixxixi")
        herk = prefix + ("herk" if self.is_complex else "syrk")
        self._herk: Final = function(cython_blas, herk, "cciixxixxi")

    def gemm(
        self,
        a: Array,
        b: Array,
        c: Array,
        alpha: complex = 1.0,
        beta: complex = 1.0,
        trans_a: Trans = "N",
        trans_b: Trans = "N",
    ) -> None:
        """Multiply matrices: ``c = alpha * op(a) @ op(b) + beta * c``.

        2 m n k flops for a c of m x n and an inner length k.

        Parameters
        ----------
        a, b : ndarray
            Factors.
        c : ndarray
            Changed in place.  With ``beta=0`` its former content is ignored, even
            if it is not finite.
        alpha, beta : complex
            Factors; real for a real element type.
        trans_a, trans_b : {"N", "T", "C"}
            The operation op: none, the transpose, or the conjugate transpose.
        """
        op_a = letter("trans_a", trans_a, "NTC")
        op_b = letter("trans_b", trans_b, "NTC")
        a_rows, a_columns, lda = self.matrix("a", a, False)
        b_rows, b_columns, ldb = self.matrix("b", b, False)
        m, n, ldc = self.matrix("c", c, True)
        p, k = (a_rows, a_columns) if trans_a == "N" else (a_columns, a_rows)
        q, r = (b_rows, b_columns) if trans_b == "N" else (b_columns, b_rows)
        if p != m or r != n or k != q:
            raise ValueError(
                f"op(a) is {p} x {k}, op(b) is {q} x {r}: their product is no {m} x {n}"
            )
        times, plus = self.scalar(alpha), self.scalar(beta)
        if m == 0 or n == 0:
            return
        self._gemm(op_a, op_b, m, n, k, times, a, lda, b, ldb, plus, c, ldc)

    def trsm(
        self,
        t: Array,
        b: Array,
        side: Side = "L",
        *,
        lower: bool,
        trans: Trans = "N",
        unit: bool,
        alpha: complex = 1.0,
    ) -> None:
        """Solve with a triangular matrix: ``op(t) @ x = alpha * b``, x over b.

        With side ``"R"`` solve ``x @ op(t) = alpha * b``.  k**2 n flops for a
        triangle of order k and a b whose other dimension is n.

        Parameters
        ----------
        t, b : ndarray
            Square matrix, of which one triangle is read; right-hand sides, which
            the solution overwrites.
        side : {"L", "R"}
            Side of x on which the triangle stands.
        lower : bool
            Whether to read the lower triangle, else the upper.
        trans, alpha
            As for `gemm`.
        unit : bool
            Take the diagonal as ones, without reading it.  Otherwise a zero on
            the diagonal gives infinities or NaNs, and no error.
        """
        self._triangular(self._trsm, t, b, side, lower, trans, unit, alpha)

    def trmm(
        self,
        t: Array,
        b: Array,
        side: Side = "L",
        *,
        lower: bool,
        trans: Trans = "N",
        unit: bool,
        alpha: complex = 1.0,
    ) -> None:
        """Multiply with a triangular matrix: ``b = alpha * op(t) @ b``.

        Parameters and flops as for `trsm`; with side ``"R"``, ``b = alpha * b @ op(t)``.
        """
        self._triangular(self._trmm, t, b, side, lower, trans, unit, alpha)

    def _triangular(
        self,
        function: Callable[..., Any],
        t: Array,
        b: Array,
        side: Side,
        lower: bool,
        trans: Trans,
        unit: bool,
        alpha: complex,
    ) -> None:
        """Call `trsm` or `trmm`, which take the same arguments."""
        at_side = letter("side", side, "LR")
        op = letter("trans", trans, "NTC")
        t_rows, t_columns, ldt = self.matrix("t", t, False)
        m, n, ldb = self.matrix("b", b, True)
        if t_rows != t_columns or t_rows != (m if side == "L" else n):
            raise ValueError(
                f"t is {t_rows} x {t_columns}, and does not fit on side {side} of a b of {m} x {n}"
            )
        times = self.scalar(alpha)
        if m == 0 or n == 0:
            return
        triangle, diagonal = "L" if lower else "U", "U" if unit else "N"
        function(at_side, triangle, op, diagonal, m, n, times, t, ldt, b, ldb)

    def herk(
        self,
        a: Array,
        c: Array,
        alpha: float = 1.0,
        beta: float = 1.0,
        *,
        lower: bool,
        trans: Trans = "N",
    ) -> None:
        """Update a Hermitian matrix: ``c = alpha * op(a) @ op(a)ᴴ + beta * c``, one triangle of it.

        k n**2 flops for a c of order n.  For real types this is BLAS's syrk.

        Parameters
        ----------
        a : ndarray
            n x k, or with `trans` k x n.
        c : ndarray
            n x n, of which one triangle is read and changed.  The imaginary parts of its diagonal
            are taken as zero, and become zero.
        alpha, beta : float
            Factors.
        lower : bool
            Whether to use the lower triangle, else the upper.
        trans : {"N", "C"}
            Whether op is the conjugate transpose.
        """
        op = letter("trans", trans, "NC")
        a_rows, a_columns, lda = self.matrix("a", a, False)
        n, columns, ldc = self.matrix("c", c, True)
        order, k = (a_rows, a_columns) if trans == "N" else (a_columns, a_rows)
        if n != columns or n != order:
            raise ValueError(f"op(a) is {order} x {k}: its square is no {n} x {columns}")
        if n > MOST_HERK:
            self._herk_in_halves(a, c, alpha, beta, lower=lower, trans=trans)
            return
        # The factors are real for complex types, too.
        times, plus = self.real(alpha), self.real(beta)
        if n == 0:
            return
        self._herk("L" if lower else "U", op, n, k, times, a, lda, plus, c, ldc)

    def _herk_in_halves(
        self, a: Array, c: Array, alpha: float, beta: float, *, lower: bool, trans: Trans
    ) -> None:
        half = len(c) // 2
        a_1, a_2 = (a[:half], a[half:]) if trans == "N" else (a[:, :half], a[:, half:])
        self.herk(a_1, c[:half, :half], alpha, beta, lower=lower, trans=trans)
        self.herk(a_2, c[half:, half:], alpha, beta, lower=lower, trans=trans)
        first, second, off = (a_2, a_1, c[half:, :half]) if lower else (a_1, a_2, c[:half, half:])
        if trans == "N":
            self.gemm(first, second, off, alpha, beta, trans_b="C")
        else:
            self.gemm(first, second, off, alpha, beta, trans_a="C")
