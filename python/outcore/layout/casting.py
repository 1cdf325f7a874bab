"""Conversion of elements from one number type to another, with checks for loss."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore.errors import InvalidError

Casting: TypeAlias = Literal["same_kind", "unsafe"]
"""``"same_kind"`` refuses numbers that the new type cannot hold. ``"unsafe"`` converts any number
as `numpy.ndarray.astype` does."""

FIX = 'choose a wider dtype=, or pass casting="unsafe" to convert anyway'
"""Advice for calls that have both arguments."""

_NUMBERS = "biufc"
_PIECE = 1 << 16
"""Elements per piece in the search for the first one that does not fit."""


@dataclass(frozen=True)
class Wanted:
    """The wanted type of elements, by default their own, and the rule of conversion."""

    dtype: npt.DTypeLike | None = None
    casting: Casting = "same_kind"

    def __post_init__(self) -> None:
        """Check the name of the casting.

        Raises
        ------
        InvalidError
            If there is no such casting.
        """
        if self.casting not in ("same_kind", "unsafe"):
            raise InvalidError(f"casting must be 'same_kind' or 'unsafe', have {self.casting!r}")


AS_GIVEN = Wanted()


def is_allowed(given: np.dtype[Any], dtype: np.dtype[Any], casting: Casting) -> bool:
    """Whether elements of one type may be converted to another, if their values fit.

    The rule is NumPy's ``"same_kind"``, plus any conversion between integer types.
    """
    if given.kind in _NUMBERS and casting == "unsafe":
        return dtype.kind in _NUMBERS
    if given.kind in "iu" and dtype.kind in "iu":
        return True
    return bool(np.can_cast(given, dtype, "same_kind"))


def converted(given: npt.NDArray[Any], dtype: np.dtype[Any], fix: str) -> npt.NDArray[Any]:
    """Convert elements to an allowed type; return the same array if it has that type.

    Raises
    ------
    InvalidError
        If a number is beyond the range of the type; `fix` is the advice in the message.
    """
    if given.dtype == dtype:
        return given
    out = np.empty_like(given, dtype, subok=False)
    convert(given, out, fix=fix)
    return out


def convert(
    given: npt.NDArray[Any],
    out: npt.NDArray[Any],
    *,
    fix: str,
    casting: Casting = "same_kind",
    at: Sequence[int] = (),
) -> None:
    """Copy elements and convert them, between types that `is_allowed` accepts.

    Values are checked only if the new type has a smaller range, and without a further copy.

    Parameters
    ----------
    given, out
        Elements, and their target of the same shape.
    fix
        Advice for the error message.
    casting
        ``"unsafe"`` skips the check.
    at
        Index of the first element, if the elements are a box of a larger array.

    Raises
    ------
    InvalidError
        If a finite number is beyond the range of the type; infinities stay infinities among
        floating-point types. Some elements of `out` may have changed by then.
    """
    is_checked = casting == "same_kind" and given.size > 0 and _may_overflow(given.dtype, out.dtype)
    is_integer = out.dtype.kind in "iu"
    if is_checked and is_integer:
        low, high = _range(out.dtype)
        if int(given.min()) < low or int(given.max()) > high:
            _refuse(given, out, at, fix)
    if given.dtype.kind == "c" and out.dtype.kind in "iuf":
        given = given.real
    with np.errstate(over="ignore", invalid="ignore"):
        np.copyto(out, given, casting="unsafe")
        if is_checked and not is_integer and _has_infinity(out):
            _refuse(given, out, at, fix)


def refuse_rounded(given: npt.NDArray[Any], out: npt.NDArray[Any], at: Sequence[int] = ()) -> None:
    """Refuse integers that a floating-point type, which the caller did not choose, would round.

    NumPy promotes 64-bit integers to float64 beside float64, and beside 64-bit integers of the
    other sign.

    Parameters
    ----------
    given, out
        Elements before and after their conversion, of the same shape.
    at
        Index of the first element, if the elements are a box of a larger array.

    Raises
    ------
    InvalidError
        If `given` are integers, `out` are not, and an element differs.
    """
    if given.dtype.kind not in "iu" or out.dtype.kind not in "fc" or not given.size:
        return
    out = out.real
    exact = 2 ** (np.finfo(out.dtype).nmant + 1)
    if -exact <= int(given.min()) and int(given.max()) <= exact:
        return
    # The type of the integers may lack the float above its largest number.
    most = np.nextafter(out.dtype.type(np.iinfo(given.dtype).max), out.dtype.type(0))
    is_rounded = np.minimum(out, most).astype(given.dtype) != given
    if is_rounded.any():
        index = np.unravel_index(int(np.argmax(is_rounded)), given.shape)
        where = tuple(int(i) + o for i, o in zip(index, at or (0,) * given.ndim, strict=True))
        raise InvalidError(
            f"need integers that {out.dtype} can hold exactly, have {given[index]} at {where}; "
            'pass dtype=, or casting="unsafe" to round them'
        )


def _may_overflow(given: np.dtype[Any], dtype: np.dtype[Any]) -> bool:
    """Whether a type has numbers beyond the range of another."""
    if given.kind not in "iufc" or dtype.kind not in "iufc":
        return False
    (low, high), (least, most) = _range(given), _range(dtype)
    return low < least or high > most


def _range(dtype: np.dtype[Any]) -> tuple[int | float, int | float]:
    if dtype.kind in "iu":
        integers = np.iinfo(dtype)
        return integers.min, integers.max
    most = float(np.finfo(dtype).max)
    return -most, most


def _has_infinity(out: npt.NDArray[Any]) -> bool:
    parts = (out.real, out.imag) if out.dtype.kind == "c" else (out,)
    return any(
        np.isinf(np.fmax.reduce(part, axis=None)) or np.isinf(np.fmin.reduce(part, axis=None))
        for part in parts
    )


def _refuse(given: npt.NDArray[Any], out: npt.NDArray[Any], at: Sequence[int], fix: str) -> None:
    """Raise an error for the first element that does not fit; return if there is none."""
    low, high = _range(out.dtype)
    before = 0
    pieces = np.nditer(
        [given, out], ["external_loop", "buffered"], [["readonly"], ["readonly"]], order="C",
        buffersize=_PIECE,
    )  # fmt: skip
    with pieces:
        for old, new in pieces:
            if out.dtype.kind in "iu":
                beyond = (old < low) | (old > high)
            else:
                beyond = np.isfinite(old) & ~np.isfinite(new)
            if beyond.any():
                first = int(np.argmax(beyond))
                index = np.unravel_index(before + first, given.shape)
                origin = at or (0,) * given.ndim
                where = tuple(int(i) + o for i, o in zip(index, origin, strict=True))
                raise InvalidError(
                    f"need elements that {out.dtype} can hold, {low} to {high}, have "
                    f"{old[first].item()}{f' at {where}' if where else ''}; {fix}"
                )
            before += len(old)
