"""Forms of an operand: itself, its transpose, or its conjugate transpose."""

from typing import Any, cast

import numpy as np

from outcore.blas.calls import Trans
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
