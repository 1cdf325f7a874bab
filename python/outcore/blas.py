"""BLAS and LAPACK on column-major views, in place and without copies.

SciPy exports the BLAS and LAPACK it was built with as C function pointers, in
``scipy.linalg.cython_blas`` and ``scipy.linalg.cython_lapack``.  They are
called here through `ctypes`, which does two things the usual wrappers do not:
an operand may be any column-major view, with the leading dimension its strides
give it, and the interpreter lock is free while a call runs, so that other
threads can read and write files meanwhile.

A *column-major view* is a two-dimensional array whose elements of one column
lie next to each other in memory, and whose columns lie at a constant distance
of at least a column's length: any rectangle cut from a Fortran-ordered array.
For a row-major array, pass its transpose ``x.T``.

Operands are checked and never copied; one that does not fit raises
`ValueError`.  That an output overlaps no other operand is not checked.

Flop counts below are for real types; a complex operation counts as four.
"""

import ctypes
import functools
from collections.abc import Callable
from typing import Any, Final, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

# Loading these two makes OpenBLAS choose its kernels, for good.  The package
# has called `blas_choice.choose` by then, which has a say in that.
from scipy.linalg import (  # type: ignore[import-untyped, unused-ignore]
    cython_blas,
    cython_lapack,
)

__all__ = ["Kernels", "kernels"]

Array: TypeAlias = npt.NDArray[Any]
Trans: TypeAlias = Literal["N", "T", "C"]
Side: TypeAlias = Literal["L", "R"]
Norm: TypeAlias = Literal["M", "1", "I", "F"]

# BLAS counts in 32-bit integers.
_LIMIT: Final = 2**31

_PREFIXES: Final = {"float32": "s", "float64": "d", "complex64": "c", "complex128": "z"}

# Every argument of a BLAS function is an address.  The characters are the same
# few each time: they lie in one buffer, and their addresses in a table.
_TEXT: Final = ctypes.create_string_buffer(b"NTCLRUM1IF")
_CHAR: Final = {chr(c): ctypes.addressof(_TEXT) + place for place, c in enumerate(_TEXT.value)}

_Ints2: Final = ctypes.c_int * 2
_Ints4: Final = ctypes.c_int * 4
_Ints6: Final = ctypes.c_int * 6

# Prototypes of our own: setting `argtypes` on `ctypes.pythonapi`'s functions
# would change them for everyone in the process.
_GivesName = ctypes.PYFUNCTYPE(ctypes.c_char_p, ctypes.py_object)
_capsule_name = _GivesName(("PyCapsule_GetName", ctypes.pythonapi))
_TakesName = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
_capsule_pointer = _TakesName(("PyCapsule_GetPointer", ctypes.pythonapi))


def _function(module: Any, name: str, signature: str, returns: Any = None) -> Callable[..., Any]:
    """Make a C function that SciPy exports callable.

    `signature` has a letter for each argument: ``c`` character, ``i`` 32-bit
    integer, ``x`` floating-point number or numbers.  If SciPy declares the
    function differently, as a build with 64-bit integers would, calling it
    would corrupt memory: this raises `ImportError`.
    """
    capsule = module.__pyx_capi__[name]
    declared = _capsule_name(capsule)
    text = declared.decode()
    arguments = text[text.index("(") + 1 : text.rindex(")")].split(",")
    kinds = {"char *": "c", "int *": "i"}
    if "".join(kinds.get(argument.strip(), "x") for argument in arguments) != signature:
        raise ImportError(f"this SciPy's {name} is declared as {text!r}")
    prototype = ctypes.CFUNCTYPE(returns, *[ctypes.c_void_p] * len(signature))
    function: Callable[..., Any] = prototype(_capsule_pointer(capsule, declared))
    return function


def _address(x: Array) -> int:
    """Address of the first element, in half the time of ``x.ctypes.data``."""
    address: int = x.__array_interface__["data"][0]
    return address


def _letter(name: str, value: str, allowed: str) -> int:
    """Address of the option's character, if it is one of those allowed."""
    # `in` alone would let "" and "NT" pass.
    if len(value) != 1 or value not in allowed:
        raise ValueError(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
    return _CHAR[value]


class Kernels:
    """BLAS and LAPACK functions for one element type; get one from `kernels`.

    A call costs two to six microseconds over the function's own time.
    Instances hold no state of a call: any number of threads may use one.
    All matrices must have the element type `dtype`.
    """

    def __init__(self, dtype: np.dtype[Any]) -> None:
        prefix = _PREFIXES[dtype.name]
        real: Any = ctypes.c_float if prefix in "sc" else ctypes.c_double
        self.dtype: Final = dtype
        self._itemsize: Final = dtype.itemsize
        self._is_complex: Final = prefix in "cz"
        self._real: Final = real

        self._gemm: Final = _function(cython_blas, prefix + "gemm", "cciiixxixixxi")
        self._trsm: Final = _function(cython_blas, prefix + "trsm", "cccciixxixi")
        self._getrf: Final = _function(cython_lapack, prefix + "getrf", "iixiii")
        self._laswp: Final = _function(cython_lapack, prefix + "laswp", "ixiiiii")
        self._lange: Final = _function(cython_lapack, prefix + "lange", "ciixix", real)
        # The usual factors, made once.
        self._factors: Final[dict[complex, Any]] = {
            value: self._factor(value) for value in (-1.0, 0.0, 1.0)
        }

    def _factor(self, value: complex) -> Any:
        """Make a C scalar of the element type with the given value."""
        if self._is_complex:
            return (self._real * 2)(value.real, value.imag)
        if value.imag != 0:
            raise ValueError(f"a factor for {self.dtype} cannot be {value!r}")
        return self._real(value.real)

    def _scalar(self, value: complex) -> Any:
        """`_factor`, from the ready ones if `value` is among them."""
        ready = self._factors.get(value)
        return self._factor(value) if ready is None else ready

    def _matrix(self, name: str, x: Array, output: bool) -> tuple[int, int, int]:
        """Rows, columns and leading dimension of `x`, if it can be an operand."""
        if not isinstance(x, np.ndarray):
            raise TypeError(f"{name} must be a NumPy array, not {type(x).__name__}")
        if x.dtype != self.dtype:
            raise ValueError(f"{name} must have dtype {self.dtype}, not {x.dtype}")
        if x.ndim != 2:
            raise ValueError(f"{name} must have two dimensions, not {x.ndim}")
        rows, columns = x.shape
        leading = rows or 1
        if rows and columns:
            # The distance along a dimension of length 1 means nothing, and
            # NumPy leaves any value there; so each is looked at only where used.
            down, across = x.strides
            rest = 0
            if columns > 1:
                leading, rest = divmod(across, self._itemsize)
            if (rows > 1 and down != self._itemsize) or leading < rows or rest:
                raise ValueError(
                    f"{name} must be a column-major view (for a row-major array pass "
                    f"its transpose); its shape is {x.shape}, its strides {x.strides}"
                )
        if rows >= _LIMIT or columns >= _LIMIT or leading >= _LIMIT:
            raise ValueError(
                f"{name} is {rows} x {columns} with leading dimension {leading}: "
                "more than BLAS counts to, 2**31 - 1"
            )
        if not x.flags.aligned or (output and not x.flags.writeable):
            need = "aligned and writeable" if output else "aligned"
            raise ValueError(f"{name} must be {need} in memory")
        return rows, columns, leading

    def _pivots(self, piv: Array, needed: int, output: bool) -> None:
        """Check an array of pivots."""
        if piv.dtype != np.int32 or piv.ndim != 1 or piv.size < needed:
            raise ValueError(
                f"piv must be a vector of at least {needed} int32, "
                f"not {piv.dtype} of shape {piv.shape}"
            )
        if output and not (piv.flags.c_contiguous and piv.flags.behaved):
            raise ValueError("piv is written: it must be contiguous and writeable")

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
            Changed in place.  With ``beta=0`` what it held does not matter, not
            even if that was not finite.
        alpha, beta : complex
            Factors; real for a real element type.
        trans_a, trans_b : {"N", "T", "C"}
            What op is: nothing, the transpose, or the conjugate transpose.
        """
        op_a = _letter("trans_a", trans_a, "NTC")
        op_b = _letter("trans_b", trans_b, "NTC")
        a_rows, a_columns, lda = self._matrix("a", a, False)
        b_rows, b_columns, ldb = self._matrix("b", b, False)
        m, n, ldc = self._matrix("c", c, True)
        p, k = (a_rows, a_columns) if trans_a == "N" else (a_columns, a_rows)
        q, r = (b_rows, b_columns) if trans_b == "N" else (b_columns, b_rows)
        if p != m or r != n or k != q:
            raise ValueError(
                f"op(a) is {p} x {k}, op(b) is {q} x {r}: their product is no {m} x {n}"
            )
        times, plus = self._scalar(alpha), self._scalar(beta)
        if m == 0 or n == 0:
            return
        ints = _Ints6(m, n, k, lda, ldb, ldc)
        at = ctypes.addressof(ints)
        self._gemm(
            op_a, op_b, at, at + 4, at + 8,
            ctypes.addressof(times), _address(a), at + 12, _address(b), at + 16,
            ctypes.addressof(plus), _address(c), at + 20,
        )  # fmt: skip

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

        With side ``"R"`` it is ``x @ op(t) = alpha * b``.  k**2 n flops for a
        triangle of order k and a b with n other rows or columns.

        Parameters
        ----------
        t, b : ndarray
            Square matrix, of which one triangle is read, and the right-hand
            sides, overwritten with the solution.
        side : {"L", "R"}
            Side of x on which the triangle stands.
        lower : bool
            Whether it is the lower triangle, else the upper.
        trans, alpha
            As for `gemm`.
        unit : bool
            Take the diagonal as ones, without reading it.  Otherwise a zero on
            it gives infinities or NaNs, and no error.
        """
        at_side = _letter("side", side, "LR")
        op = _letter("trans", trans, "NTC")
        t_rows, t_columns, ldt = self._matrix("t", t, False)
        m, n, ldb = self._matrix("b", b, True)
        if t_rows != t_columns or t_rows != (m if side == "L" else n):
            raise ValueError(
                f"t is {t_rows} x {t_columns}, and does not fit on side {side} of a b of {m} x {n}"
            )
        times = self._scalar(alpha)
        if m == 0 or n == 0:
            return
        ints = _Ints4(m, n, ldt, ldb)
        at = ctypes.addressof(ints)
        self._trsm(
            at_side, _CHAR["L" if lower else "U"], op, _CHAR["U" if unit else "N"],
            at, at + 4,
            ctypes.addressof(times), _address(t), at + 8, _address(b), at + 12,
        )  # fmt: skip

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
            ``piv[i]``, for i = 0, 1, ... in turn, counted from 0.

        Returns
        -------
        int
            LAPACK's info: 0, or i > 0 if ``u[i - 1, i - 1]`` is exactly zero
            and none before it is.  The factors are complete then too, but
            cannot be used to solve.
        """
        m, n, lda = self._matrix("a", a, True)
        count = min(m, n)
        self._pivots(piv, count, True)
        if count == 0:
            return 0
        ints = _Ints4(m, n, lda, 0)
        at = ctypes.addressof(ints)
        self._getrf(at, at + 4, _address(a), at + 8, _address(piv), at + 12)
        info: int = ints[3]
        if info < 0:  # cannot happen to checked arguments
            raise ValueError(f"getrf refused its argument number {-info}")
        piv[:count] -= 1
        return info

    def laswp(self, a: Array, piv: Array, first: int, last: int, reverse: bool = False) -> None:
        """Exchange row i of `a` with row ``piv[i]``, for ``first <= i < last``.

        Parameters
        ----------
        a : ndarray
            Changed in place.
        piv : ndarray of int32
            As `getrf` gives it; at least `last` long.
        first, last : int
            The range of i.
        reverse : bool
            Go from ``last - 1`` down to `first`, which undoes the interchanges.
        """
        m, n, lda = self._matrix("a", a, True)
        if not 0 <= first <= last <= m:
            raise ValueError(f"rows {first} to {last} are not within the {m} rows of a")
        self._pivots(piv, last, False)
        if first == last or n == 0:
            return
        # LAPACK counts from 1, and does not look for rows outside `a`.  Next to
        # moving the rows both cost nothing.
        ones = np.empty(last, np.int32)
        used = np.add(piv[first:last], 1, out=ones[first:])
        if used.min() < 1 or used.max() > m:
            raise ValueError(f"piv has entries outside the {m} rows of a")
        ints = _Ints4(n, lda, first + 1, last)
        step = _Ints2(-1 if reverse else 1)
        at = ctypes.addressof(ints)
        self._laswp(
            at,
            _address(a),
            at + 4,
            at + 8,
            at + 12,
            _address(ones),
            ctypes.addressof(step),
        )

    def lange(self, norm: Norm, a: Array) -> float:
        """Norm of a matrix.

        About m n flops, on one thread.

        Parameters
        ----------
        norm : {"M", "1", "I", "F"}
            Largest absolute value, largest sum of absolute values of a column
            (``"1"``) or of a row (``"I"``), or the Frobenius norm.
        a : ndarray
            Without elements its norm is 0; with a NaN it is NaN.
        """
        letter = _letter("norm", norm, "M1IF")
        m, n, lda = self._matrix("a", a, False)
        if m == 0 or n == 0:
            return 0.0
        # Only the row sums need room.
        work = (self._real * m)() if norm == "I" else None
        ints = _Ints4(m, n, lda, 0)
        at = ctypes.addressof(ints)
        room = None if work is None else ctypes.addressof(work)
        return float(self._lange(letter, at, at + 4, _address(a), at + 8, room))


_kernels = functools.cache(Kernels)


def kernels(dtype: npt.DTypeLike) -> Kernels:
    """Get the BLAS and LAPACK functions for an element type.

    It must be float32, float64, complex64 or complex128, in native byte order.
    Each call with the same type returns the same object.
    """
    wanted = np.dtype(dtype)
    if wanted.name not in _PREFIXES or not wanted.isnative:
        raise ValueError(
            f"there is no BLAS for dtype {wanted}; it must be one of "
            f"{', '.join(_PREFIXES)}, in native byte order"
        )
    return _kernels(wanted)
