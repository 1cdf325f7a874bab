"""Tall matrices, and sources of their rows that count reads."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.machine.rates import Rates

DTYPES = ["f4", "f8", "c8", "c16"]

RATES = Rates(
    read_bytes_s=1e9,
    write_bytes_s=5e8,
    gemm_flops_s=dict.fromkeys(("float32", "float64", "complex64", "complex128"), 1e11),
    cores=2,
    threads=2,
    kernels="test",
    measured_at="2026-01-01T00:00:00+00:00",
    directory="/",
)
"""Rates for plans, so that nothing is measured."""


def tall(m: int, n: int, dtype: npt.DTypeLike, seed: int = 0) -> npt.NDArray[Any]:
    """A random matrix."""
    draw = np.random.default_rng(seed)
    values = draw.standard_normal((m, n))
    if np.dtype(dtype).kind == "c":
        values = values + 1j * draw.standard_normal((m, n))
    return values.astype(dtype)


def ragged(a: npt.NDArray[Any], heights: list[int]) -> Iterator[npt.NDArray[Any]]:
    """Blocks of rows of these heights, repeatedly; a height of 0 is a block without rows."""
    first = number = 0
    while first < len(a):
        height = heights[number % len(heights)]
        yield a[first : first + height]
        first, number = first + height, number + 1


class Counting:
    """Rows that can only be sliced, with a count of reads of each."""

    def __init__(self, a: npt.NDArray[Any]) -> None:
        self.shape, self.dtype, self._a = a.shape, a.dtype, a
        self.times = np.zeros(len(a), int)

    def __getitem__(self, rows: slice) -> npt.NDArray[Any]:
        self.times[rows] += 1
        return self._a[rows]
