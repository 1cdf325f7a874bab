"""Random arrays, layouts and selections, for the tests that compare with NumPy."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

DTYPES = (
    "bool", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16",
)  # fmt: skip
ORDERS = ("C", "F")
CHUNK_ORDERS = ("row-major", "column-major", "hilbert", "z-order")


class Layout(NamedTuple):
    """The arguments of `create_array` for the layout of an array on disk."""

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: str
    order: str
    chunk_order: str

    def arguments(self) -> dict[str, Any]:
        return self._asdict()


def layouts(max_dims: int = 4, max_extent: int = 12) -> st.SearchStrategy[Layout]:
    def of_dims(dims: int) -> st.SearchStrategy[Layout]:
        extents = st.tuples(*[st.integers(1, max_extent)] * dims)
        # Chunks may be larger than the array.
        chunks = st.tuples(*[st.integers(1, max_extent + 3)] * dims)
        return st.builds(
            Layout,
            extents,
            chunks,
            st.sampled_from(DTYPES),
            st.sampled_from(ORDERS),
            st.sampled_from(CHUNK_ORDERS),
        )

    return st.integers(1, max_dims).flatmap(of_dims)


def selections(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """Basic indices: integers, slices both ways, an ellipsis, too few indices."""

    def one(extent: int) -> st.SearchStrategy[Any]:
        bound = st.none() | st.integers(-extent - 2, extent + 2)
        step = st.none() | st.integers(-4, 4).filter(bool)
        return st.builds(slice, bound, bound, step) | st.integers(-extent, extent - 1)

    def shorten(keys: tuple[Any, ...], first: int, last: int, dots: bool) -> Any:
        low, high = sorted((min(first, len(keys)), min(last, len(keys))))
        if dots:
            return (*keys[:low], ..., *keys[high:])
        return keys[:low] if low != 1 else keys[0]

    number = st.integers(0, len(shape))
    return st.builds(shorten, st.tuples(*map(one, shape)), number, number, st.booleans())


def values(shape: tuple[int, ...], dtype: npt.DTypeLike, seed: int = 0) -> npt.NDArray[Any]:
    """Return elements that use every bit that survives a comparison, fixed by the seed."""
    dtype = np.dtype(dtype)
    draw = np.random.default_rng(seed)
    if dtype.kind == "b":
        return draw.integers(0, 2, shape).astype(bool)
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return draw.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if dtype.kind == "c":
        return (draw.standard_normal(shape) + 1j * draw.standard_normal(shape)).astype(dtype)
    return draw.standard_normal(shape).astype(dtype)
