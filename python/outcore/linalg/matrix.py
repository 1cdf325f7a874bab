"""Matrices: what they are in memory, and where they are on disk."""

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore.array import Array
from outcore.array_operand import TransposedArray
from outcore.errors import InvalidError
from outcore.volumes import PathLike, Place, place

Matrix: TypeAlias = npt.NDArray[Any]
"""Column-major: elements of a column next to each other, columns any distance apart."""


def place_of(A: Array | PathLike) -> Place:
    """Find where a matrix is that must be on disk.

    Raises
    ------
    InvalidError
        If it is in memory.
    """
    if isinstance(A, Array):
        return A.place
    given: Any = A
    is_array = hasattr(given, "__array__") and not isinstance(given, TransposedArray)
    if isinstance(given, list | tuple) or is_array:
        raise InvalidError(
            f"need a matrix on disk as A, or its path, have {type(given).__name__} of shape "
            f"{np.shape(given)} in memory; scipy.linalg solves with it there, oc.from_array puts "
            "it on disk"
        )
    return place(A)
