"""Re-layout of arrays: other chunks, another order, another type, in the fewest bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from outcore._util.if_exists import IfExists
from outcore._util.progress import ProgressLike
from outcore.array.array import Array
from outcore.array.create import DiskLayout
from outcore.convert.copy_plan import Cuts, Pass, Side
from outcore.convert.copying import copy_to_array
from outcore.convert.open_source import open_source
from outcore.convert.rechunk_plan import End, choose_passes
from outcore.convert.sources import Source, Stored
from outcore.layout.casting import Casting
from outcore.layout.distribution import Rules
from outcore.layout.zarr_format import TILE_BYTES, Metadata
from outcore.storage.volumes import PathLike


def rechunk(
    source: Any,
    out: PathLike,
    *,
    chunks: Sequence[int] | int | None = None,
    order: str | None = None,
    chunk_order: str | None = None,
    disk_schema: Rules | None = None,
    dtype: npt.DTypeLike | None = None,
    casting: Casting = "same_kind",
    shape: Sequence[int] | int | None = None,
    source_order: str = "C",
    offset: int = 0,
    memory: int | str | None = None,
    if_exists: IfExists = "error",
    resume: bool = True,
    progress: ProgressLike = True,
) -> Array:
    """Copy an array into other chunks, in as few bytes and requests as the memory allows.

    One pass moves each byte once, if a block of whole chunks of both sides fits into memory, or
    long runs of them do. Otherwise the call compares one pass with short requests to several passes
    through arrays of chunks between those of both sides. A request costs as much as 128 KiB of
    data. ``oc.plan("rechunk", ...)`` states the passes, bytes, requests, disk space and time.

    Parameters
    ----------
    source, dtype, casting, shape, source_order, offset
        As for `from_array`: an array of outcore, or any other source.
    out
        Directory of the new array, also in a pool. The arrays between two passes are inside it
        until it is complete.
    chunks, order, chunk_order, disk_schema
        Layout of the new array, as for `create_array`; the order is by default that of `source`.
    memory
        Budget in bytes for blocks, buffers, and the library that reads the source.
    if_exists, resume, progress
        As for `from_array`. A stopped call resumes in the pass that it had reached.

    Returns
    -------
    Array
        The new array, open for reading and writing; its ``report`` gives the cost.

    Raises
    ------
    BudgetError
        If not even the smallest blocks fit in `memory`.
    DiskFullError
        If the disk has no room for the new array, and for that between two passes.
    JournalError
        If `out` contains a half-made copy of another layout or source, or `source` has changed.
    InvalidError, NotFoundError, TruncatedError, ExistsError, BusyError, Interrupted
        As for `from_array`.
    """
    with open_source(
        source, shape=shape, dtype=dtype, source_order=source_order, offset=offset, casting=casting
    ) as opened:
        opened.warn(2)
        if order is None and disk_schema is not None:
            order = "C"
        return copy_to_array(
            opened, out, memory=memory, chunks=chunks, order=order, chunk_order=chunk_order,
            layout=DiskLayout(disk_schema), if_exists=if_exists, resume=resume, progress=progress,
            choose=choose,
        )[0]  # fmt: skip


def choose(source: Source, metadata: Metadata, memory_bytes: int) -> list[Pass]:
    """Choose the passes from a source to an array of outcore's own layout."""
    return choose_passes(source_end(source), array_end(metadata), source.itemsize, memory_bytes)


def source_end(source: Source) -> End:
    """Describe a source to the planner."""
    cuts = source.side.cuts
    if isinstance(source, Stored):
        chunks, itemsize = source.metadata.chunks, source.metadata.dtype.itemsize
        return End("array", source.shape, chunks, source.order, itemsize, source.side)
    if source.gridded:
        chunks = tuple(c.widest if c.edges else min(c.step, c.n) for c in cuts)
        return End("encoded", source.shape, chunks, source.order, source.itemsize, source.side)
    return End("flat", source.shape, source.shape, source.order, source.itemsize, source.side)


def array_end(metadata: Metadata) -> End:
    """Describe an array of outcore's own layout, as a target, to the planner."""
    grid = zip(metadata.shape, metadata.chunks, strict=True)
    cuts = tuple(Cuts(n, min(c, n)) for n, c in grid)
    side = Side(cuts, loose=tuple(range(len(cuts))), bounces=True, most_bytes=TILE_BYTES)
    itemsize = metadata.dtype.itemsize
    return End("array", metadata.shape, metadata.chunks, metadata.order, itemsize, side)
