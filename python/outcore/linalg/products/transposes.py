"""Forms of an operand: itself, its transpose, or its conjugate transpose."""

from typing import Any, cast

import numpy as np

from outcore.array_operand import TransposedArray
from outcore.blas_calls import Trans
from outcore.errors import InvalidError

_LETTERS = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}


def read_trans(name: str, trans: object) -> Trans:
    """Read ``"N"``, ``"T"`` or ``"C"``, or SciPy's numbers 0, 1 and 2 for them.

    Raises
    ------
    InvalidError
        If it is none of these.
    """
    if not isinstance(trans, int | str) or trans not in _LETTERS:
        raise InvalidError(f"{name} must be 'N', 'T' or 'C' (or 0, 1 or 2), have {trans!r}")
    return cast(Trans, _LETTERS[trans])


def simplest(trans: Trans, dtype: np.dtype[Any]) -> Trans:
    """Return ``"T"`` for the conjugate transpose of a real matrix: it is the transpose."""
    return "T" if trans == "C" and dtype.kind == "f" else trans


def untransposed(name: str, given: Any, trans: Any) -> tuple[Any, Any]:
    """Return the array of a lazy transpose, and the equivalent `trans` for it.

    Raises
    ------
    InvalidError
        If the equivalent is the conjugate, which the BLAS does not support.
    """
    if not isinstance(given, TransposedArray):
        return given, trans
    letter = simplest(read_trans(name, trans), given.dtype)
    if letter == "C":
        raise InvalidError(
            f"need {name} 'N' or 'T' for the transpose of a complex matrix, have 'C', which makes "
            "it the conjugate; pass the conjugate of the other operand, and conjugate the result"
        )
    return given.array, "T" if letter == "N" else "N"
