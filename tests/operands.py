"""Operands for the BLAS: views from the middle of larger arrays, and tolerances of results."""

from typing import Any

import numpy as np

DTYPES = [np.float32, np.float64, np.complex64, np.complex128]
TRANS = ["N", "T", "C"]


def random(rng: np.random.Generator, dtype: Any, *shape: int) -> np.ndarray:
    """A Fortran-ordered array with entries of order one."""
    values = rng.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * rng.standard_normal(shape)
    return np.asfortranarray(values.astype(dtype))


def view(rng: np.random.Generator, dtype: Any, m: int, n: int) -> np.ndarray:
    """An m x n column-major view from the middle of a larger array."""
    return random(rng, dtype, m + 5, n + 3)[2 : 2 + m, 1 : 1 + n]


def op(x: np.ndarray, trans: str) -> np.ndarray:
    """Apply BLAS's trans option to `x`."""
    return {"N": x, "T": x.T, "C": x.conj().T}[trans]


def outside(x: np.ndarray) -> np.ndarray:
    """The base array of the view `x`, with x's own elements set to zero."""
    assert x.base is not None
    base = x.base.copy(order="F")
    base[2 : 2 + x.shape[0], 1 : 1 + x.shape[1]] = 0
    return base


def tolerance(dtype: Any, scale: float = 100) -> float:
    """Allowed relative error."""
    return scale * float(np.finfo(dtype).eps)


def assert_close(got: np.ndarray, want: np.ndarray, scale: float = 100) -> None:
    """Compare relative to the largest entry."""
    error = np.max(np.abs(got - want), initial=0)
    assert error <= tolerance(got.dtype, scale) * np.max(np.abs(want), initial=1)
