"""What a call may write its result over."""

import contextlib

from outcore.array_metadata import read_metadata
from outcore.errors import ExistsError, OutcoreError
from outcore.if_exists import IfExists
from outcore.volumes import Place


def refuse_there(where: Place, why: str, *, if_exists: IfExists) -> None:
    """Refuse to write a result where something else is.

    `why` is what marks an array as left by such a call that was stopped.

    Raises
    ------
    ExistsError
        If it is no array, or one that may not be overwritten.
    """
    is_there = where.volume.exists(where.name) and not _is_stopped(where, why)
    if is_there and (if_exists != "overwrite" or not where.exists()):
        raise ExistsError(
            f"{where.path} exists; choose another out=, pass if_exists='open' if the same call "
            "made it, or pass if_exists='overwrite' if it is an array that may go"
        )


def _is_stopped(where: Place, why: str) -> bool:
    """Whether this is what a call that was killed left of its result.

    Of one that was killed at its start that is a directory with nothing in it, or with metadata
    that is half written.
    """
    with contextlib.suppress(OutcoreError):
        metadata = read_metadata(where)
        return (metadata.state, metadata.why) == ("incomplete", why)
    names = [name for name, *_ in where.volume.list(where.name)] if where.path.is_dir() else ["?"]
    return all(name.startswith("zarr.json.") and name.endswith(".new") for name in names)
