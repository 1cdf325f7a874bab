"""Assembly: an array's elements computed block by block, in parallel when asked, resumable."""

import json
import math
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore._core import Arena, ArrayFile, Ticket
from outcore.array import Array, open_array
from outcore.errors import BudgetError, Interrupted, InvalidError, JournalError
from outcore.progress import Meter, ProgressLike
from outcore.signals import stop_on_signals
from outcore.streams import Box
from outcore.volumes import Place, exclusive
from outcore.zarr_format import Metadata, parse

Fill: TypeAlias = Callable[..., npt.NDArray[Any]]

_JOURNAL = "outcore.fill"
_SYNC_BYTES = 256 << 20
"""After this much is written it is made durable and noted, so that a power cut loses no more."""


def fill_array(
    where: Place,
    metadata: Metadata,
    fill: Fill,
    *,
    make: Callable[[], None],
    overwrite: bool,
    memory: int | str | None,
    threads: int,
    resume: bool,
    progress: ProgressLike,
) -> Array:
    """Make the array, or go on with a half-made one, and return it filled."""
    if not callable(fill) or threads < 1:
        raise InvalidError("fill must be callable and threads at least 1")
    # A block in each thread, and one of each on its way to the disk.
    need = 2 * threads * math.prod(metadata.chunks) * metadata.dtype.itemsize
    have = budget.resolve(memory)
    if need > have:
        raise BudgetError(
            f"need {need} bytes for the blocks of {threads} threads, have {have}; "
            "raise memory=, or choose smaller chunks= or fewer threads="
        )
    with exclusive(where.path.parent / f".{where.path.name}.filling", "assembly"):
        done = 0
        if not overwrite and resume and where.exists(_JOURNAL):
            done = _blocks_done(where, metadata)
        else:
            make()
            where.volume.replace_small(where.inside(_JOURNAL), _record(0))
        why = (
            "assembly by fill was stopped; call create_array again with the same arguments to go on"
        )
        array = open_array(where.path, "r+", allow_incomplete=True)
        array.mark("incomplete", why)
        _assemble(array, fill, done, threads, Arena(have), progress)
        array.mark(None)
        where.volume.remove(where.inside(_JOURNAL))
    (where.path.parent / f".{where.path.name}.filling").rmdir()
    return array


def _record(blocks: int) -> bytes:
    return json.dumps({"blocks_done": blocks}).encode()


def _blocks_done(where: Place, metadata: Metadata) -> int:
    """Read how far a stopped assembly of the same array came."""
    found = parse(where.volume.read_small(where.inside("zarr.json")), str(where.path))
    if found is None or (found.shape, found.dtype, found.chunks, found.order) != (
        metadata.shape, metadata.dtype, metadata.chunks, metadata.order,
    ):  # fmt: skip
        raise JournalError(
            f"{where.path} holds a half-made array of another shape, type or chunks; "
            "pass overwrite=True to begin anew"
        )
    try:
        return int(json.loads(where.volume.read_small(where.inside(_JOURNAL)))["blocks_done"])
    except (ValueError, KeyError, TypeError):
        raise JournalError(
            f"the record of the stopped assembly in {where.path} is damaged; "
            "pass overwrite=True to begin anew"
        ) from None


class _Writer:
    """Writes blocks in order and notes, now and then, how many are durable."""

    def __init__(self, array: Array, file: ArrayFile, done: int) -> None:
        self._array, self._file, self._done = array, file, done
        self._tickets: deque[tuple[Ticket, int]] = deque()
        self._unsynced = 0

    def write(self, box: Box, data: npt.NDArray[Any], most: int) -> None:
        while len(self._tickets) >= most:
            self._reap()
        ticket = self._file.submit_write([s.start for s in box], [1] * len(box), data)
        self._tickets.append((ticket, data.nbytes))
        if self._unsynced > _SYNC_BYTES:
            self.note()

    def _reap(self) -> None:
        ticket, nbytes = self._tickets.popleft()
        ticket.wait()
        self._done += 1
        self._unsynced += nbytes

    def note(self) -> None:
        while self._tickets:
            self._reap()
        self._file.submit_sync().wait()
        where = self._array.place
        where.volume.replace_small(where.inside(_JOURNAL), _record(self._done))
        self._unsynced = 0


def _assemble(
    array: Array, fill: Fill, done: int, threads: int, arena: Arena, progress: ProgressLike
) -> None:
    boxes = list(array.chunk_boxes())
    writer = _Writer(array, array.open_file(arena, arena.budget_bytes // 2, writable=True), done)
    pending: deque[tuple[Box, Future[npt.NDArray[Any]]]] = deque()
    elements = [math.prod(s.stop - s.start for s in box) for box in boxes]
    started = sum(elements[:done])
    meter = Meter(f"assembling {array.path.name}", sum(elements), progress, started)

    def settle() -> None:
        box, future = pending.popleft()
        writer.write(box, future.result(), threads)
        meter.advance(math.prod(s.stop - s.start for s in box))

    with stop_on_signals(), meter, ThreadPoolExecutor(threads) as pool:
        try:
            for box in boxes[done:]:
                if len(pending) >= threads:
                    settle()
                pending.append((box, pool.submit(_block, fill, box, array.dtype)))
            while pending:
                settle()
            writer.note()
        except KeyboardInterrupt:
            for _, future in pending:
                future.cancel()
            writer.note()
            raise Interrupted(
                f"assembly of {array.path} stopped; call create_array again with the same "
                "arguments to go on from here"
            ) from None


def _block(fill: Fill, box: Box, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    shape = tuple(s.stop - s.start for s in box)
    data = np.asarray(fill(*box))
    if data.shape != shape:
        raise InvalidError(
            f"fill{tuple((s.start, s.stop) for s in box)} must return shape {shape}, "
            f"have {data.shape}"
        )
    if not np.can_cast(data.dtype, dtype, "same_kind"):
        raise InvalidError(f"fill must return {dtype}, have {data.dtype}; convert with .astype()")
    return data.astype(dtype, copy=False)
