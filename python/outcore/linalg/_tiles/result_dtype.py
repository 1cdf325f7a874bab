"""The type of a call's arithmetic and of its result: NumPy's promotion of the operands.

All functions of `outcore.linalg` use this module, so that the same operands yield the same type in
every function and every place. Integers and booleans count as float64, as in SciPy, and half
precision as float32. An array of another type is converted block by block as it is read.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError

DTYPES = ("float32", "float64", "complex64", "complex128")
"""Types of the arithmetic: those of BLAS and LAPACK."""


def work_dtype(name: str, dtype: npt.DTypeLike) -> np.dtype[Any]:
    """Return the type of arithmetic with a single matrix of the given type.

    It is float32, float64, complex64 or complex128; integers become float64.

    Raises
    ------
    InvalidError
        If the matrix has no such type.
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
        The type of each operand, by the name of its argument.
    dtype
        Another precision, if the user passes one.

    Raises
    ------
    InvalidError
        If arithmetic does not support an operand's type; if `dtype` is none of its four types; or
        if `dtype` is real for complex operands or vice versa.
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
    """Parse one of the four types."""
    try:
        found = np.dtype(dtype).newbyteorder("=")
    except TypeError:
        found = None
    if found is None or found.name not in DTYPES:
        raise InvalidError(f"need {', '.join(DTYPES)} or None as dtype=, have {dtype!r}")
    return found


def matrix_dtype(result: np.dtype[Any], stored: npt.DTypeLike) -> np.dtype[Any]:
    """Return the type for factoring, or multiplying with, a matrix, given the result's type.

    A real matrix stays real with complex right-hand sides: it solves for their real and imaginary
    parts.
    """
    if result.kind == "c" and np.dtype(stored).kind != "c":
        return np.empty(0, result).real.dtype
    return result


def factor_dtype(stored: np.dtype[Any], dtype: npt.DTypeLike | None) -> np.dtype[Any]:
    """Return the type of the factors of a matrix on disk, to which its elements can be widened.

    Raises
    ------
    InvalidError
        As in `result_dtype`, and if the matrix would have to be rounded.
    """
    found = result_dtype({"A": stored}, dtype)
    if not np.can_cast(stored, found) or stored.itemsize > found.itemsize:
        raise InvalidError(
            f"a matrix of {stored} is factored in a type that holds its elements, have dtype="
            f"{found}; use solve(factor_dtype=) for factors of less precision, or oc.from_array("
            "dtype=) for a copy"
        )
    return found
