"""Arrays that grow along their first dimension, a step at a time.

The shard files of a step are written beside the others, synced, and renamed; then ``zarr.json`` is
replaced by one that has a step more. So whoever opens the array finds whole steps only, whatever
happened to its writer.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from outcore._core import ArrayFile
from outcore.errors import BusyError, OutcoreError
from outcore.selection import Selection
from outcore.volumes import Place, exclusive
from outcore.zarr_format import Metadata

BEGUN = ".step"
"""Below the array: where a step is written before it is one."""

_MOST_FILES = 32
"""So many shard files are open at once for one request: a process may have about a thousand."""


def steps_in_file(metadata: Metadata) -> int:
    """How many steps share a shard file: one, or many single numbers."""
    return metadata.chunks[0]


def step_metadata(metadata: Metadata) -> Metadata:
    """Describe what a new shard file holds, as an array of its own: a step, or single numbers."""
    if len(metadata.shape) == 1:
        return dataclasses.replace(metadata, shape=metadata.chunks, growing=False)
    dims = None if metadata.dims is None else metadata.dims[1:]
    shape, chunks = metadata.shape[1:], metadata.chunks[1:]
    return dataclasses.replace(metadata, shape=shape, chunks=chunks, dims=dims, growing=False)


def longer(metadata: Metadata, steps: int) -> Metadata:
    """Describe the same array with so many steps."""
    return dataclasses.replace(metadata, shape=(steps, *metadata.shape[1:]))


@contextmanager
def appending(where: Place, doing: str = "appending a step") -> Iterator[Place]:
    """Hold an array for one who appends to it; yield where a step is written before it is one.

    Who changes its ``zarr.json`` otherwise, step by step, holds it too: to append is that as well.

    Raises
    ------
    BusyError
        If another call holds it.
    """
    begun = where.below(BEGUN)
    with exclusive(begun, doing):
        try:
            _discard(begun)
            yield begun
        finally:
            with contextlib.suppress(OutcoreError):
                _discard(begun)


def begin_file(begun: Place, metadata: Metadata, *, reserve: bool) -> None:
    """Make the files that a step is written to."""
    step = step_metadata(metadata)
    ArrayFile.create(begun.volume, begun.name, step.grid(), reserve, step.stripe_count)


def place_file(begun: Place, where: Place, metadata: Metadata, step: int) -> None:
    """Give the synced files of a step their place in the array, which does not count it yet."""
    target = where.inside(f"c/{step // steps_in_file(metadata)}")
    if where.volume.exists(target):
        # Of a step that was written, but never counted: its writer was killed.
        where.volume.remove(target)
    source = "c/0" if len(metadata.shape) == 1 else "c"
    where.volume.rename(begun.inside(source), target)


def check_last_file(where: Place, metadata: Metadata, newest: Metadata) -> None:
    """Refuse who takes steps that others have appended for the rest of the last file.

    Raises
    ------
    BusyError
        If there are such.
    """
    had, have = metadata.shape[0], newest.shape[0]
    if had != have and had % steps_in_file(metadata):
        raise BusyError(
            f"{where.path} was opened with {had} numbers and has {have} by now, in the same file; "
            "refresh it, and write again"
        )


def parts(metadata: Metadata, box: Selection) -> Iterator[tuple[list[int], slice]]:
    """Cut a box into parts of a bounded number of shard files: where each begins, and its rows."""
    if not metadata.growing:
        yield box.start, slice(None)
        return
    files_to_steps = _MOST_FILES * steps_in_file(metadata)
    rows = max(files_to_steps // box.step[0], 1)
    for first in range(0, box.count[0], rows):
        yield [box.start[0] + first * box.step[0], *box.start[1:]], slice(first, first + rows)


def _discard(begun: Place) -> None:
    # While a collective is under way, zarr.json says so.
    for name in ("c", "zarr.json"):
        if begun.exists(name):
            begun.volume.remove(begun.inside(name))
