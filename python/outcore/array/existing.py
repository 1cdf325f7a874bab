"""Comparison of existing arrays with those that a call would make."""

from collections.abc import Collection
from typing import Any

from outcore.array.array import Array, open_array
from outcore.array_files.metadata import read_metadata
from outcore.errors import ConsumedError, CorruptError, ExistsError, InvalidError
from outcore.layout.attributes import is_same_json
from outcore.layout.zarr_format import Metadata
from outcore.storage.volumes import Place

_ALWAYS = ("growing", "shape", "dtype", "order")


def open_existing(where: Place, wanted: Metadata, given: Collection[str]) -> Array | None:
    """Open the whole array that a call with ``if_exists="open"`` finds.

    Parameters
    ----------
    where, wanted
        Place of the array, and the array that the call would make.
    given
        Names of fields of `wanted` that the caller chose. Shape, type and order of the elements are
        always compared.

    Returns
    -------
    Array or None
        The array, open for reading and writing; `None` if there is none, or it is not whole.

    Raises
    ------
    ExistsError
        If it is not an array of outcore, or differs.
    ConsumedError
        If factors took its disk space.
    """
    if not where.exists():
        return None
    try:
        found = read_metadata(where)
    except (InvalidError, CorruptError) as error:
        raise ExistsError(
            f"need an array to open, have something else ({error}); choose another name"
        ) from None
    if found.state == "consumed":
        raise ConsumedError(
            f"the content of {where.path} was consumed ({found.why}); open the factors with "
            "oc.linalg.open_factor, or make the matrix with if_exists='overwrite'"
        )
    if found.state is not None:
        return None
    if difference := first_difference(found, wanted, (*_ALWAYS, *given)):
        raise ExistsError(
            f"{where.path} exists and {difference}; choose another name, or pass "
            "if_exists='overwrite'"
        )
    return open_array(where.path, "r+")


def first_difference(found: Metadata, wanted: Metadata, names: Collection[str]) -> str:
    """Name the first of these fields that differs; return an empty text if all are equal.

    The steps of a growing array are not compared.
    """
    for name in names:
        have, need = getattr(found, name), getattr(wanted, name)
        if name == "shape" and found.growing and wanted.growing:
            have, need = have[1:], need[1:]
        is_equal = is_same_json(have, need) if name == "attributes" else have == need
        if not is_equal:
            return f"has {name} {_text(have)}, this call makes {_text(need)}"
    return ""


def refuse_other(where: Place, was: Any, now: Any, what: str) -> None:
    """Refuse to open an array that its metadata describe as made from something else.

    Raises
    ------
    ExistsError
        If `was` and `now` differ.
    """
    if was != now:
        raise ExistsError(
            f"{where.path} exists and was made with {what} {_text(was)}, this call has "
            f"{_text(now)}; choose another name, or pass if_exists='overwrite'"
        )


def _text(value: Any) -> str:
    text = str(value) if not isinstance(value, str) else repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
