"""Existing data that a call may replace by its result."""

import contextlib

from outcore._util.if_exists import IfExists
from outcore.array_files.array_metadata import read_metadata
from outcore.errors import ExistsError, OutcoreError
from outcore.storage.volumes import Place


def refuse_there(where: Place, why: str, *, if_exists: IfExists) -> None:
    """Refuse to replace other data by a result.

    `why` is the mark of arrays that stopped calls of the same function left.

    Raises
    ------
    ExistsError
        If it is not an array, or an array that may not be overwritten.
    """
    is_there = where.volume.exists(where.name) and not _is_stopped(where, why)
    if is_there and (if_exists != "overwrite" or not where.exists()):
        raise ExistsError(
            f"{where.path} exists; choose another out=, pass if_exists='open' if the same call "
            "made it, or pass if_exists='overwrite' to replace an array"
        )


def _is_stopped(where: Place, why: str) -> bool:
    """Whether this is the incomplete result of a killed call.

    A call that was killed at its start leaves an empty directory, or one with partial metadata.
    """
    with contextlib.suppress(OutcoreError):
        metadata = read_metadata(where)
        return (metadata.state, metadata.why) == ("incomplete", why)
    names = [name for name, *_ in where.volume.list(where.name)] if where.path.is_dir() else ["?"]
    return all(name.startswith("zarr.json.") and name.endswith(".new") for name in names)
