"""From what a user assigns to the elements of an array."""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError


def elements(
    value: npt.ArrayLike, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Convert what is assigned to a box of this shape, as NumPy does, and broadcast it.

    Raises
    ------
    InvalidError
        If the shape does not fit, or more than precision would be lost: imaginary parts, fractions,
        numbers beyond the type's range.
    """
    given = np.asarray(value)
    if not (np.can_cast(given.dtype, dtype, "same_kind") if given.ndim else _fits(given, dtype)):
        raise InvalidError(
            f"need elements of {dtype}, have {given.dtype if given.ndim else repr(value)}, which "
            "would lose more than precision; convert with .astype() first"
        )
    while given.ndim > len(shape) and given.shape[0] == 1:
        given = given[0]
    try:
        return np.broadcast_to(given.astype(dtype, copy=False), shape)
    except ValueError:
        raise InvalidError(
            f"need values of shape {shape}, have {given.shape}; give as many as are assigned"
        ) from None


def _fits(scalar: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether one number, whose type the user may not have chosen, keeps its value."""
    if dtype.kind not in "biu" or scalar.dtype.kind not in "biuf":
        return np.can_cast(scalar.dtype, dtype, "same_kind")
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    number = scalar.item()
    return bool(low <= number <= high and number == int(number))
