"""One process's share, in memory, of an array that all processes write or read together."""

import math
import os
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError
from outcore.layout.elements import refuse_masked

Local: TypeAlias = "npt.NDArray[Any] | Sequence[npt.NDArray[Any]] | None"
"""A process's share in memory: an array, or one for each of its boxes; `None` is no elements."""

DIRECT_MEMORY_VARIABLE = "OUTCORE_DIRECT_MEMORY"
"""Environment variable: with ``off``, no server reads the memory of this process directly."""


def offers_memory() -> bool:
    """Whether servers on this machine may read this process's arrays from its memory.

    Raises
    ------
    InvalidError
        If the variable is neither ``on`` nor ``off``.
    """
    given = os.environ.get(DIRECT_MEMORY_VARIABLE, "").strip().lower()
    if given not in ("", "on", "off"):
        raise InvalidError(f"need {DIRECT_MEMORY_VARIABLE}=on or off, have {given!r}")
    return given != "off"


def arrays_of(
    local: Local,
    shapes: Sequence[tuple[int, ...]],
    dtype: np.dtype[Any],
    rank: int,
    *,
    is_write: bool,
) -> list[npt.NDArray[Any]]:
    """Check a process's arrays, or create them for a read.

    Parameters
    ----------
    local
        The arrays that the caller passed.
    shapes, dtype
        The arrays that the memory schema requires.
    rank
        Rank of the process.
    is_write
        Whether the arrays are written to disk, or read into.

    Raises
    ------
    InvalidError
        If `local` does not match.
    """
    if local is None:
        if is_write and any(math.prod(shape) for shape in shapes):
            raise InvalidError(
                f"process {rank} has elements of the array by the memory schema, arrays of "
                f"the shapes {list(shapes)}, but gives none"
            )
        return [np.empty(shape, dtype) for shape in shapes]
    given: list[Any] = list(local) if isinstance(local, list | tuple) else [local]
    if not shapes and all(isinstance(a, np.ndarray) and a.size == 0 for a in given):
        return []
    have = [getattr(each, "shape", type(each).__name__) for each in given]
    if not all(isinstance(each, np.ndarray) for each in given) or have != list(shapes):
        raise InvalidError(
            f"by the memory schema process {rank} has arrays of the shapes {list(shapes)}, "
            f"have {have}"
        )
    for each in given:
        if is_write:
            refuse_masked(each)
        if each.dtype != dtype:
            raise InvalidError(
                f"process {rank} has an array of {each.dtype}, need {dtype}; convert it "
                "with .astype()"
            )
        if not is_write and not each.flags.writeable:
            raise InvalidError(
                f"process {rank} has an array that is read-only, need one that can be read "
                "into; pass a copy, or None for a new one"
            )
    return given
