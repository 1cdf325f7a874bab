"""Conversion of assigned values to the elements of an array."""

from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._util.packages import is_a
from outcore.errors import InvalidError
from outcore.layout.casting import converted, is_allowed
from outcore.layout.tables import refuse_nulls

_FIX = "make the array with a wider dtype=, or convert with .astype() first"


def array_of(
    value: npt.ArrayLike, what: str = "an array", fix: str = "give one array"
) -> npt.NDArray[Any]:
    """Convert a user's value to an array.

    Parameters
    ----------
    what, fix
        Words for the error message: the name of the value, and the remedy.

    Raises
    ------
    InvalidError
        If NumPy cannot make an array of it, as from lists of different lengths, or if elements are
        masked or null.
    """
    value = computed(value)
    refuse_masked(value)
    refuse_sparse(value)
    refuse_nulls(value)
    try:
        return np.asarray(value)
    except (ValueError, TypeError, RecursionError) as error:
        raise InvalidError(
            f"need {what}, or an object that NumPy converts to one, have "
            f"{_told(value) or error}; {fix}"
        ) from None


def computed(value: Any) -> Any:
    """Compute a lazy array, such as dask's. NumPy would compute it too, but drop a mask."""
    compute = getattr(value, "compute", None)
    return compute() if callable(compute) and hasattr(value, "__array__") else value


def refuse_masked(value: Any) -> None:
    """Refuse an array with masked elements, because the values below the mask are meaningless.

    Raises
    ------
    InvalidError
        If it is such an array of `numpy.ma`, or a list that contains one.
    """
    for one in value if isinstance(value, list | tuple) else ():
        if isinstance(one, np.ma.MaskedArray):
            refuse_masked(one)
    if isinstance(value, np.ma.MaskedArray) and np.ma.is_masked(value):
        count = value.size if value.mask.ndim == 0 else np.count_nonzero(value.mask)
        raise InvalidError(
            f"need elements without a mask, have {count} of {value.size} masked; say what stands "
            "for them by .filled()"
        )


def refuse_sparse(value: Any) -> None:
    """Refuse a sparse matrix of SciPy, which NumPy would treat as a single object.

    Raises
    ------
    InvalidError
        If the value is one.
    """
    if is_a(value, "scipy.sparse", "sparray") or is_a(value, "scipy.sparse", "spmatrix"):
        raise InvalidError(
            f"need a dense array, have a sparse one, {type(value).__name__}; pass .toarray(), or "
            "an iterator of dense blocks of rows with shape="
        )


def in_memory(given: Any) -> str | None:
    """Describe a list, or an array of another library, that was passed in place of a path.

    Return `None` for any other value.
    """
    if isinstance(given, list | tuple):
        return f"a {type(given).__name__} of {len(given)}"
    shape = getattr(given, "shape", None)
    return None if shape is None else f"{type(given).__name__} of shape {tuple(shape)}"


def _told(value: Any) -> str:
    """Describe the first entries of a list; return an empty text for other values."""
    if not isinstance(value, list | tuple):
        return ""
    parts = [_shape_or_type(one) for one in value[:4]]
    return f"a list of {', '.join(parts)}{', ...' * (len(value) > len(parts))}"


def _shape_or_type(one: Any) -> str:
    if isinstance(one, list | tuple):
        return f"a list of {len(one)}"
    return f"shape {one.shape}" if isinstance(one, np.ndarray) else type(one).__name__


def elements(
    value: npt.ArrayLike, dtype: np.dtype[Any], shape: tuple[int, ...]
) -> npt.NDArray[Any]:
    """Convert a value to the type of an array as NumPy does, and broadcast it to a box's shape.

    Raises
    ------
    InvalidError
        If the shape does not fit, or more than precision would be lost: imaginary parts, fractions,
        numbers beyond the range of the type.
    """
    given = array_of(value)
    if not (is_allowed(given.dtype, dtype, "same_kind") if given.ndim else _fits(given, dtype)):
        raise InvalidError(
            f"need elements of {dtype}, have {given.dtype if given.ndim else repr(value)}, which "
            "would lose more than precision; convert with .astype() first"
        )
    while given.ndim > len(shape) and given.shape[0] == 1:
        given = given[0]
    found = converted(given, dtype, _FIX)
    try:
        return np.broadcast_to(found, shape)
    except ValueError:
        raise InvalidError(
            f"need values of shape {shape}, have {given.shape}; give as many as are assigned"
        ) from None


def _fits(scalar: npt.NDArray[Any], dtype: np.dtype[Any]) -> bool:
    """Whether one number keeps its value; its type may not be the user's choice."""
    if dtype.kind not in "biu" or scalar.dtype.kind not in "biuf":
        return np.can_cast(scalar.dtype, dtype, "same_kind")
    low, high = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    number = scalar.item()
    return bool(low <= number <= high and number == int(number))
