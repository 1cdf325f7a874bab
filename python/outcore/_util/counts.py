"""Checks of numbers that users pass: counts of rows, threads, buffers or steps, and others."""

import math
from typing import Any

import numpy as np

from outcore.errors import InvalidError


def count_of(name: str, value: Any, least: int = 1) -> int:
    """Return a count as a plain integer; NumPy's integers are accepted.

    Raises
    ------
    InvalidError
        If the value is not an integer of at least `least`.
    """
    if not is_count(value, least):
        raise InvalidError(f"{name} must be an integer of at least {least}, have {value!r}")
    return int(value)


def is_count(value: Any, least: int = 1) -> bool:
    """Whether the value is an integer of at least `least`, and not a truth value."""
    is_integer = isinstance(value, int | np.integer) and not isinstance(value, bool)
    return is_integer and bool(value >= least)


def is_number(value: Any) -> bool:
    """Whether the value is a real number, and not a truth value."""
    return isinstance(value, int | float | np.integer | np.floating) and not isinstance(value, bool)


def is_finite(value: Any) -> bool:
    """Whether the value is a real number (see `is_number`) that is finite as a double."""
    try:
        return is_number(value) and math.isfinite(value)
    except OverflowError:
        return False
