"""Counts that users give: rows, threads, buffers, steps."""

from typing import Any

import numpy as np

from outcore.errors import InvalidError


def count_of(name: str, value: Any, least: int = 1) -> int:
    """Return a count as a plain integer; NumPy's integers will do.

    Raises
    ------
    InvalidError
        If it is not an integer of at least `least`.
    """
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise InvalidError(f"{name} must be an integer of at least {least}, have {value!r}")
    return int(value)
