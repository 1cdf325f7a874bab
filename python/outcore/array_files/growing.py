"""Arrays that grow along their first dimension, one step at a time.

The shard files of a step are written beside the others, synced, and renamed. Then a new
``zarr.json`` with one more step replaces the old one. So a reader finds whole steps only, whatever
happened to the writer.
"""

import contextlib
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager

from outcore._core import ArrayFile
from outcore.errors import BusyError, ExistsError, OutcoreError
from outcore.layout.selection import Selection
from outcore.layout.zarr_format import Metadata
from outcore.storage.volumes import Place, exclusive

BEGUN = ".step"
"""Directory below the array in which a new step is written before it counts."""

_MOST_FILES = 32
"""Largest number of shard files open for one request; a process may have about a thousand."""


def steps_in_file(metadata: Metadata) -> int:
    """Return the number of steps in a shard file: one, or many single numbers."""
    return metadata.chunks[0]


def step_metadata(metadata: Metadata) -> Metadata:
    """Describe the content of a new shard file as a separate array: one step, or single numbers."""
    if len(metadata.shape) == 1:
        return dataclasses.replace(metadata, shape=metadata.chunks, growing=False)
    dims = None if metadata.dims is None else metadata.dims[1:]
    shape, chunks = metadata.shape[1:], metadata.chunks[1:]
    return dataclasses.replace(metadata, shape=shape, chunks=chunks, dims=dims, growing=False)


def longer(metadata: Metadata, steps: int) -> Metadata:
    """Describe the same array with this number of steps."""
    return dataclasses.replace(metadata, shape=(steps, *metadata.shape[1:]))


@contextmanager
def appending(where: Place, doing: str = "appending a step") -> Iterator[Place]:
    """Lock an array for an append; yield the place in which to write the new step.

    Other calls that change its ``zarr.json`` step by step take the same lock.

    Raises
    ------
    BusyError
        If another call holds the lock.
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
    """Create the files of a new step."""
    step = step_metadata(metadata)
    ArrayFile.create(begun.volume, begun.name, step.grid(), reserve, step.stripe_count)


def place_file(begun: Place, where: Place, metadata: Metadata, step: int) -> None:
    """Move the synced files of a step into the array, whose metadata do not count it yet."""
    target = where.inside(f"c/{step // steps_in_file(metadata)}")
    source = begun.inside("c/0" if len(metadata.shape) == 1 else "c")
    try:
        where.volume.rename(source, target)
    except ExistsError:
        # Left by a writer that was killed before it counted its step.
        where.volume.remove(target)
        where.volume.rename(source, target)


def check_last_file(where: Place, metadata: Metadata, newest: Metadata) -> None:
    """Refuse a write whose last file contains steps that others have appended meanwhile.

    Raises
    ------
    BusyError
        If there are such steps.
    """
    had, have = metadata.shape[0], newest.shape[0]
    if had != have and had % steps_in_file(metadata):
        raise BusyError(
            f"{where.path} was opened with {had} numbers and has {have} by now, in the same file; "
            "refresh it, and write again"
        )


def parts(metadata: Metadata, box: Selection) -> Iterator[tuple[list[int], slice]]:
    """Cut a box into parts with a bounded number of shard files: start, and rows of each part."""
    if not metadata.growing:
        yield box.start, slice(None)
        return
    files_to_steps = _MOST_FILES * steps_in_file(metadata)
    rows = max(files_to_steps // box.step[0], 1)
    for first in range(0, box.count[0], rows):
        yield [box.start[0] + first * box.step[0], *box.start[1:]], slice(first, first + rows)


def _discard(begun: Place) -> None:
    # The array's own zarr.json records that a collective is running.
    with contextlib.suppress(FileNotFoundError):
        for path in begun.path.iterdir():
            if path.name in ("c", "zarr.json"):
                begun.volume.remove(begun.inside(path.name))
