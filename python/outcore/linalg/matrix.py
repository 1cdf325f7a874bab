"""Matrices: what they are in memory, and where they are on disk."""

from typing import Any, TypeAlias

import numpy.typing as npt

from outcore.array import Array
from outcore.array_operand import TransposedArray
from outcore.elements import in_memory
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
    if not isinstance(A, TransposedArray) and (found := in_memory(A)):
        raise InvalidError(
            f"need a matrix on disk as A, or its path, have {found} in memory; scipy.linalg solves "
            "with it there, oc.from_array puts it on disk"
        )
    return place(A)
