"""Matrices: their type in memory, and their places on disk."""

import math
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._core import Arena
from outcore.array.array import Array, open_array
from outcore.errors import InvalidError, NonFiniteError
from outcore.layout.elements import in_memory
from outcore.storage.volumes import PathLike, Place, place

Matrix: TypeAlias = npt.NDArray[Any]
"""Column-major: elements of a column are contiguous, columns have any stride."""


def room_in(
    arena: Arena, shape: tuple[int, ...], dtype: npt.DTypeLike, order: Literal["C", "F"] = "C"
) -> npt.NDArray[Any]:
    """Allocate an array from a call's budget, uninitialized."""
    memory = arena.allocate(math.prod(shape) * np.dtype(dtype).itemsize)
    return np.ndarray(shape, dtype, memoryview(memory), order=order)


def not_finite(row: int, column: int, value: object) -> NonFiniteError:
    """Return the error about an element of A that is a NaN or an infinity."""
    return NonFiniteError(
        f"A[{row}, {column}] is {value}; every element must be finite: correct it, or look for an "
        "error in the assembly",
        (row, column),
    )


def place_of(A: Array | PathLike) -> Place:
    """Return the place of a matrix that must be on disk.

    Raises
    ------
    InvalidError
        If it is in memory.
    """
    if isinstance(A, Array):
        return A.place
    if found := in_memory(A):
        raise InvalidError(
            f"need a matrix on disk as A, or its path, have {found} in memory; scipy.linalg solves "
            "with it there, oc.from_array puts it on disk"
        )
    return place(A)


def refuse_transpose(source: Place) -> None:
    """Refuse to overwrite a matrix with the factors of its transpose.

    Raises
    ------
    InvalidError
        If the place is transposed.
    """
    if source.is_transposed:
        raise InvalidError(
            f"overwrite_a=True needs the matrix itself, have {source.source}; leave out "
            "overwrite_a, or factor the matrix and solve with trans='T'"
        )


def open_matrix(source: Place) -> Array:
    """Open the matrix at a place, or its transpose if the place is transposed.

    Raises
    ------
    OutcoreError
        As in `outcore.open_array`.
    """
    A = open_array(source.path)
    return A.T if source.is_transposed else A
