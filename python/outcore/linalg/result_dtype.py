"""Which type a call computes in, and its result has: NumPy's promotion of the operands.

Every function of `outcore.linalg` takes the type from here, so that the same operands give the same
type whatever is asked of them, and wherever they are. Integers and booleans count as float64, as in
SciPy, and half precision as float32. An array that is stored in another type is converted block by
block as it is read.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError

DTYPES = ("float32", "float64", "complex64", "complex128")
"""Types of the arithmetic: those of BLAS and LAPACK."""


def work_dtype(name: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Find the type in which a matrix of some type is computed with, if there is nothing else.

    That is float32, float64, complex64 or complex128; integers become float64.

    Raises
    ------
    InvalidError
        If there is none.
    """
    kind = np.dtype(dtype)
    if kind.kind in "biu":
        return np.dtype(np.float64)
    if kind.kind in "fc" and kind.itemsize <= (8 if kind.kind == "f" else 16):
        return np.result_type(kind, np.float32).newbyteorder("=")
    raise InvalidError(
        f"{name} has elements of {kind}; need numbers of at most double precision, convert with "
        ".astype()"
    )


def result_dtype(
    operands: Mapping[str, npt.DTypeLike], dtype: npt.DTypeLike | None = None
) -> np.dtype[Any]:
    """Promote the types of a call's operands.

    Parameters
    ----------
    operands
        The type of each, by the name of its argument.
    dtype
        Another precision, if the user asks for one.

    Raises
    ------
    InvalidError
        If an operand's type cannot be computed with, or `dtype` is none of the four types of the
        arithmetic, or real for complex operands or the other way round.
    """
    found = np.result_type(*(work_dtype(name, each) for name, each in operands.items()))
    if dtype is None:
        return found
    wanted = _named(dtype)
    if wanted.kind != found.kind:
        names = " and ".join(operands)
        raise InvalidError(
            f"dtype={wanted} is {_KINDS[wanted.kind]}, what {names} promote to, {found}, is "
            f"{_KINDS[found.kind]}; dtype= chooses another precision only"
        )
    return wanted


_KINDS = {"f": "real", "c": "complex"}


def _named(dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Read one of the four types."""
    try:
        found = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise InvalidError(f"need {', '.join(DTYPES)} or None as dtype=, have {dtype!r}")
    return found


def matrix_dtype(result: np.dtype[Any], stored: npt.DTypeLike) -> np.dtype[Any]:
    """Find the type in which a matrix is factored, or multiplied with, for a result of some type.

    A real matrix stays real beside complex right-hand sides, of which it solves for the real and
    the imaginary parts.
    """
    if result.kind == "c" and np.dtype(stored).kind != "c":
        return np.empty(0, result).real.dtype
    return result


def factor_dtype(stored: np.dtype[Any], dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Find the type of the factors of a matrix on disk, whose elements can be widened in place.

    Raises
    ------
    InvalidError
        As `result_dtype` does, and if the matrix would have to be rounded.
    """
    found = result_dtype({"A": stored}, dtype)
    if not np.can_cast(stored, found) or stored.itemsize > found.itemsize:
        raise InvalidError(
            f"a matrix of {stored} is factored in a type that holds its elements, have dtype="
            f"{found}; use solve(factor_dtype=) for factors of less precision, or oc.from_array("
            "dtype=) for a copy"
        )
    return found
