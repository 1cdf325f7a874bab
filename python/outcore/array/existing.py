"""Files of an array: make them; compare, replace and remove those of an existing one."""

import contextlib
from collections.abc import Collection
from typing import Any

from outcore._core import ArrayFile
from outcore._util.if_exists import IfExists
from outcore.array.array import Array, open_array
from outcore.array_files.blocks_done import RECORDS, is_named
from outcore.array_files.metadata import (
    is_half_made,
    read_metadata,
    write_first_generation,
)
from outcore.errors import ConsumedError, CorruptError, ExistsError, InvalidError
from outcore.layout.attributes import is_same_json
from outcore.layout.zarr_format import Metadata
from outcore.storage.pool_path import PoolPath
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


def make_array(where: Place, metadata: Metadata, *, if_exists: IfExists, reserve: bool) -> None:
    """Create the files, and ``zarr.json`` last, so that the array exists only when it is complete.

    The first file identifies the directory as outcore's: see `is_half_made`.
    """
    grid = metadata.grid()
    if refuse_there(where, if_exists):
        remove_array(where)
    try:
        write_first_generation(where)
        if grid.shards:
            ArrayFile.create(where.volume, where.name, grid, reserve, metadata.stripe_count)
        where.make_small("zarr.json", metadata.to_json())
    except BaseException:
        with contextlib.suppress(OSError):
            remove_array(where)
        raise


def refuse_there(where: Place, if_exists: IfExists) -> bool:
    """Refuse an existing object that may not be replaced; return whether there is one to remove."""
    if not where.volume.exists(where.name):
        return False
    is_known = where.exists() or is_half_made(where)
    # A process that dies during its first write leaves a temporary file only.
    blank = (
        not is_known
        and where.path.is_dir()
        and all(
            name.startswith(("zarr.json.", "outcore.generation.")) and name.endswith(".new")
            for name, _, _ in where.volume.list(where.name)
        )
    )
    if if_exists == "open" and is_known:
        # The caller has already opened a whole array.
        blank = not where.exists()
        if not blank:
            why = read_metadata(where).why
            raise ExistsError(
                f"{where.path} exists and is not whole ({why}); finish that call, or pass "
                "if_exists='overwrite'"
            )
    if not blank and if_exists != "overwrite":
        raise ExistsError(
            f"{where.path} exists; choose another name, or pass if_exists='open' or 'overwrite'"
        )
    if not blank and not is_known:
        raise ExistsError(
            f"{where.path} exists and is no Zarr array or group, so it is not overwritten; "
            "remove it yourself or choose another name"
        )
    return True


def remove_array(where: Place) -> None:
    """Remove a directory, ``zarr.json`` last, so that a crash leaves something recognisable.

    In a pool the whole directory is removed at once.
    """
    if not isinstance(where.path, PoolPath):
        names = [name for name, _, _ in where.volume.list(where.name)]
        # Remove the records first: a call that finds one would resume with missing shard files.
        for name in sorted(names, key=lambda name: not is_named(name, RECORDS)):
            if name != "zarr.json":
                where.volume.remove(where.inside(name))
    where.volume.remove(where.name)
