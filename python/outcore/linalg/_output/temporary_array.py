"""An array on disk that exists during one call."""

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager

from outcore._core import ArrayFile
from outcore.array.array import Array, open_array
from outcore.array_files.metadata import read_metadata, write_metadata
from outcore.errors import BusyError, ExistsError, OutcoreError
from outcore.layout.zarr_format import Metadata
from outcore.storage.volumes import Place, exclusive, filling

_WHY = "it belongs to a call that was killed, and can be removed"


@contextmanager
def temporary_array(where: Place, metadata: Metadata) -> Iterator[Array]:
    """Create an array that is marked incomplete, and remove it at the end.

    An array of a killed call at the same place is replaced.

    Raises
    ------
    BusyError, ExistsError
        If another call uses the place, or it has other content.
    """
    fix = "pass another directory as scratch="
    with contextlib.ExitStack() as held:
        try:
            # The lock of an assembly: `outcore rm` does not remove locked arrays.
            held.enter_context(exclusive(filling(where), ""))
        except BusyError:
            raise BusyError(
                f"{where.path} is in use by another call on the same matrix; wait for it, or {fix}"
            ) from None
        if where.volume.exists(where.name):
            if not _is_left_over(where):
                raise ExistsError(f"{where.path} exists and is not a left-over; {fix}")
            where.volume.remove(where.name)
        held.callback(_remove, where)
        begun = Metadata(
            metadata.shape, metadata.dtype, metadata.chunks, metadata.order, metadata.chunk_order,
            state="incomplete", why=_WHY,
        ).on(where.volume)  # fmt: skip
        write_metadata(where, begun)
        ArrayFile.create(where.volume, where.name, begun.grid(), True)
        yield open_array(where.path, "r+", allow_incomplete=True)


def _remove(where: Place) -> None:
    with contextlib.suppress(OutcoreError):
        where.volume.remove(where.name)


def _is_left_over(where: Place) -> bool:
    with contextlib.suppress(OutcoreError):
        found = read_metadata(where)
        return (found.state, found.why) == ("incomplete", _WHY)
    return False
