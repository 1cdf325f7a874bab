"""LAPACK on column-major views; `kernels` returns all functions for an element type."""

import functools
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from outcore._core import swap_rows
from outcore.blas.blas import Blas
from outcore.blas.calls import (
    PREFIXES,
    Array,
    Norm,
    Trans,
    function,
    letter,
)
from outcore.blas.exported import exported

cython_lapack = exported("cython_lapack")


class Kernels(Blas):
    """BLAS and LAPACK functions for one element type; `kernels` returns the instance."""

    def __init__(self, dtype: np.dtype[Any]) -> None:
        super().__init__(dtype)
        prefix, real = self.prefix, self.real
        self._getrf: Final = function(cython_lapack, prefix + "getrf", "iixiii")
        self._lange: Final = function(cython_lapack, prefix + "lange", "ciixix", real)
        self._potrf: Final = function(cython_lapack, prefix + "potrf", "cixii")
        self._trtri: Final = function(cython_lapack, prefix + "trtri", "ccixii")
        trcon = "cccixixxxi" if self.is_complex else "cccixixxii"
        self._trcon: Final = function(cython_lapack, prefix + "trcon", trcon)
        self._geqrf: Final = function(cython_lapack, prefix + "geqrf", "iixixxii")
        self._larft: Final = function(cython_lapack, prefix + "larft", "cciixixxi")
        unmqr = prefix + ("unmqr" if self.is_complex else "ormqr")
        self._unmqr: Final = function(cython_lapack, unmqr, "cciiixixxixii")
        self._tpqrt: Final = function(cython_lapack, prefix + "tpqrt", "iiiixixixixi")
        self._tpmqrt: Final = function(cython_lapack, prefix + "tpmqrt", "cciiiiixixixixixi")

    def pivots(self, piv: Array, needed: int, output: bool) -> None:
        """Check an array of pivots."""
        if piv.dtype != np.int32 or piv.ndim != 1 or piv.size < needed:
            raise ValueError(
                f"piv must be a vector of at least {needed} int32, "
                f"not {piv.dtype} of shape {piv.shape}"
            )
        if output and not (piv.flags.c_contiguous and piv.flags.behaved):
            raise ValueError("piv is written: it must be contiguous and writeable")

    def getrf(self, a: Array, piv: Array) -> int:
        """Factor a matrix as ``a[p] = l @ u`` with row interchanges, in place.

        About m n**2 - n**3 / 3 flops for m >= n.

        Parameters
        ----------
        a : ndarray
            m x n, overwritten with u on and above the diagonal and l below it;
            l's diagonal, of ones, is not stored.
        piv : ndarray of int32
            At least min(m, n) long.  On return row i was exchanged with row
            ``piv[i]``, in the order i = 0, 1, ..., counted from 0.

        Returns
        -------
        int
            LAPACK's info: 0, or i > 0 if ``u[i - 1, i - 1]`` is exactly zero
            and no earlier one is.  The factors are complete in this case too, but
            cannot be used to solve.
        """
        m, n, lda = self.matrix("a", a, True)
        count = min(m, n)
        self.pivots(piv, count, True)
        if count == 0:
            return 0
        info: int = self._getrf(m, n, a, lda, piv, 0)
        if info < 0:  # cannot happen to checked arguments
            raise ValueError(f"getrf refused its argument number {-info}")
        piv[:count] -= 1
        return info

    def laswp(self, a: Array, piv: Array, first: int, last: int, reverse: bool = False) -> None:
        """Exchange row i of `a` with row ``piv[i]``, for ``first <= i < last``.

        LAPACK's ``laswp`` waits for memory element by element, and takes three times as long.

        Parameters
        ----------
        a : ndarray
            Changed in place.
        piv : ndarray of int32
            As `getrf` returns it; at least `last` long.
        first, last : int
            The range of i.
        reverse : bool
            Go from ``last - 1`` down to `first`, which undoes the interchanges.
        """
        m, _, _ = self.matrix("a", a, True)
        if not 0 <= first <= last <= m:
            raise ValueError(f"rows {first} to {last} are not within the {m} rows of a")
        self.pivots(piv, last, False)
        used = piv[first:last]
        if used.size and (used.min() < 0 or used.max() >= m):
            raise ValueError(f"piv has entries outside the {m} rows of a")
        swap_rows(a, used, first, reverse)

    def lange(self, norm: Norm, a: Array) -> float:
        """Return a norm of a matrix.

        About m n flops, on one thread.

        Parameters
        ----------
        norm : {"M", "1", "I", "F"}
            Largest absolute value, largest sum of absolute values of a column
            (``"1"``) or of a row (``"I"``), or the Frobenius norm.
        a : ndarray
            The norm of an empty matrix is 0; with a NaN it is NaN.
        """
        which = letter("norm", norm, "M1IF")
        m, n, lda = self.matrix("a", a, False)
        if m == 0 or n == 0:
            return 0.0
        # Only the row sums need workspace.
        work = (self.real * m)() if norm == "I" else None
        return float(self._lange(which, m, n, a, lda, work))

    def potrf(self, a: Array, *, lower: bool) -> int:
        """Factor a Hermitian positive definite matrix in place: ``a = l @ lᴴ``, or ``uᴴ @ u``.

        n**3 / 3 flops.

        Parameters
        ----------
        a : ndarray
            n x n, of which one triangle is read and overwritten.
        lower : bool
            Whether to use the lower triangle, else the upper.

        Returns
        -------
        int
            LAPACK's info: 0, or i > 0 if the leading block of order i is not positive definite.
        """
        n, lda = self._square("a", a)
        return int(self._potrf("L" if lower else "U", n, a, lda, 0)) if n else 0

    def trtri(self, t: Array, *, lower: bool, unit: bool) -> int:
        """Invert a triangular matrix in place.

        n**3 / 3 flops.

        Parameters
        ----------
        t : ndarray
            n x n, of which one triangle is read and overwritten.
        lower : bool
            Whether to use the lower triangle, else the upper.
        unit : bool
            Take the diagonal as ones, without reading or writing it.

        Returns
        -------
        int
            LAPACK's info: 0, or i > 0 if the i-th diagonal element is zero; t is unchanged then.
        """
        n, ldt = self._square("t", t)
        triangle, diagonal = "L" if lower else "U", "U" if unit else "N"
        return int(self._trtri(triangle, diagonal, n, t, ldt, 0)) if n else 0

    def trcon(self, t: Array) -> float:
        """Estimate the reciprocal of the condition number of an upper triangle in the 1-norm.

        A few times n**2 flops.

        Parameters
        ----------
        t : ndarray
            n x n, of which one triangle is read.
        """
        n, ldt = self._square("t", t, output=False)
        found = self.real()
        work = np.empty((2 if self.is_complex else 3) * n, self.dtype)
        more = np.empty(n, work.real.dtype if self.is_complex else np.int32)
        self._trcon("1", "U", "N", n, t, ldt, found, work, more, 0)
        return float(found.value)

    def geqrf(self, a: Array, tau: Array, work: Array) -> None:
        """Factor a matrix as q @ r with Householder reflections, in place.

        2 n**2 (m - n / 3) flops for m >= n.

        Parameters
        ----------
        a : ndarray
            m x n, overwritten with r on and above the diagonal.  Below it are the vectors v of the
            reflections I - tau v vᴴ, whose first element, a one, is not stored.
        tau : ndarray
            Vector of at least min(m, n): the factors tau.
        work : ndarray
            Workspace, a vector of at least n; fastest with the length from `geqrf_work`.
        """
        m, n, lda = self.matrix("a", a, True)
        self._vector("tau", tau, min(m, n))
        self._vector("work", work, max(n, 1))
        if min(m, n) == 0:
            return
        self._geqrf(m, n, a, lda, tau, work, work.size, 0)

    def geqrf_work(self, m: int, n: int) -> int:
        """Return the number of elements of workspace with which `geqrf` is fastest."""
        best = np.zeros(1, self.dtype)
        self._geqrf(m, n, best, max(m, 1), best, best, -1, 0)
        return max(int(best[0].real), n, 1)

    def larft(self, v: Array, tau: Array, t: Array) -> None:
        """Form the triangle t of a block reflection: I - v t vᴴ is the product of k reflections.

        Parameters
        ----------
        v : ndarray
            m x k, as `geqrf` returns it; elements above the diagonal are not read.
        tau : ndarray
            The factors.
        t : ndarray
            k x k, whose upper triangle is overwritten.
        """
        m, k, ldv = self.matrix("v", v, False)
        rows, columns, ldt = self.matrix("t", t, True)
        if (rows, columns) != (k, k) or m < k:
            raise ValueError(f"v is {m} x {k}, and t {rows} x {columns}; t must be {k} x {k}")
        self._vector("tau", tau, k)
        if k == 0:
            return
        # "Forward" and "columnwise", by their first letters.
        self._larft("F", "C", m, k, v, ldv, tau, t, ldt)

    def unmqr(self, v: Array, tau: Array, c: Array, work: Array, *, trans: Trans = "N") -> None:
        """Multiply with the q of `geqrf` from the left: ``c = op(q) @ c``.

        About 4 m n k flops for k reflections.  For real types this is LAPACK's ormqr.

        Parameters
        ----------
        v, tau : ndarray
            m x k reflections and their factors, as `geqrf` returns them.
        c : ndarray
            m x n, changed in place.
        work : ndarray
            Workspace, a vector of at least n; faster with n times 64.
        trans : {"N", "C"}
            Whether op is the conjugate transpose.
        """
        op = self._operation(trans)
        rows, k, ldv = self.matrix("v", v, False)
        m, n, ldc = self.matrix("c", c, True)
        if rows != m or k > m:
            raise ValueError(f"v is {rows} x {k}, and does not fit a c of {m} x {n}")
        self._vector("tau", tau, k)
        self._vector("work", work, max(n, 1))
        if m == 0 or n == 0 or k == 0:
            return
        self._unmqr("L", op, m, n, k, v, ldv, tau, c, ldc, work, work.size, 0)

    def tpqrt(self, r: Array, b: Array, t: Array, work: Array) -> None:
        """Factor a triangle with rows below it as q @ r, in place: ``[r; b] = q @ [r_new; 0]``.

        2 m n**2 flops for a b of m x n, because LAPACK skips the zeros of the triangle.

        Parameters
        ----------
        r : ndarray
            n x n, of which the upper triangle is read and overwritten.
        b : ndarray
            m x n, overwritten with the lower parts of the reflections' vectors; the upper parts
            are the columns of the unit matrix.
        t : ndarray
            k x n with 1 <= k <= n, overwritten: the triangles of the block reflections, of k
            columns each, side by side.  The diagonals are the factors tau.
        work : ndarray
            Workspace, a vector of at least k n.
        """
        m, n, ldb = self.matrix("b", b, True)
        rows, columns, ldr = self.matrix("r", r, True)
        k, across, ldt = self.matrix("t", t, True)
        if not (rows == columns == across == n) or (n and not 1 <= k <= n):
            raise ValueError(
                f"b is {m} x {n}, r {rows} x {columns} and t {k} x {across}; "
                f"need an r of {n} x {n} and a t of at most {n} rows, and {n} columns"
            )
        self._vector("work", work, k * n)
        if m == 0 or n == 0:
            return
        self._tpqrt(m, n, 0, k, r, ldr, b, ldb, t, ldt, work, 0)

    def tpmqrt(
        self, v: Array, t: Array, a: Array, b: Array, work: Array, *, trans: Trans = "N"
    ) -> None:
        """Multiply with the q of `tpqrt` from the left: ``[a; b] = op(q) @ [a; b]``.

        About 4 m n k flops for a v of m x k and a b of m x n.

        Parameters
        ----------
        v, t : ndarray
            The b and the t that `tpqrt` overwrote.
        a, b : ndarray
            k x n and m x n, changed in place.
        work : ndarray
            Workspace, a vector of at least n for each row of `t`.
        trans : {"N", "C"}
            Whether op is the conjugate transpose.
        """
        op = self._operation(trans)
        rows, k, ldv = self.matrix("v", v, False)
        block, across, ldt = self.matrix("t", t, False)
        above, width, lda = self.matrix("a", a, True)
        m, n, ldb = self.matrix("b", b, True)
        if rows != m or above != k or width != n or across != k or (k and not 1 <= block <= k):
            raise ValueError(
                f"v is {rows} x {k}, t {block} x {across}, a {above} x {width} and b {m} x {n}; "
                f"need an a of {k} x {n}, a b of {rows} x {n} and a t of {k} columns"
            )
        self._vector("work", work, n * block)
        if m == 0 or n == 0 or k == 0:
            return
        self._tpmqrt("L", op, m, n, k, 0, block, v, ldv, t, ldt, a, lda, b, ldb, work, 0)

    def _operation(self, trans: Trans) -> str:
        """Return the letter of an operation without, or with the conjugate transpose."""
        if trans not in ("N", "C"):
            raise ValueError(f"trans must be N or C, not {trans!r}")
        return "T" if trans == "C" and not self.is_complex else trans

    def _square(self, name: str, x: Array, *, output: bool = True) -> tuple[int, int]:
        """Check a square matrix; return its order and leading dimension."""
        n, columns, leading = self.matrix(name, x, output)
        if n != columns:
            raise ValueError(f"{name} is {n} x {columns}, not square")
        return n, leading

    def _vector(self, name: str, x: Array, needed: int) -> None:
        """Check a vector of elements that LAPACK reads or writes."""
        if x.dtype != self.dtype or x.ndim != 1 or x.size < needed:
            raise ValueError(
                f"{name} must be a vector of at least {needed} {self.dtype}, "
                f"not {x.dtype} of shape {x.shape}"
            )
        if not (x.flags.c_contiguous and x.flags.behaved):
            raise ValueError(f"{name} must be contiguous and writeable")


_kernels = functools.cache(Kernels)


def kernels(dtype: npt.DTypeLike) -> Kernels:
    """Return the BLAS and LAPACK functions for an element type.

    The type must be float32, float64, complex64 or complex128, in native byte order.
    Each call with the same type returns the same object.
    """
    wanted = np.dtype(dtype)
    if wanted.name not in PREFIXES or not wanted.isnative:
        raise ValueError(
            f"there is no BLAS for dtype {wanted}; it must be one of "
            f"{', '.join(PREFIXES)}, in native byte order"
        )
    return _kernels(wanted)
