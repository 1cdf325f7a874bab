"""Rates of a disk or a pool, measured by the array engine with temporary files."""

import contextlib
import secrets
import shutil
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from outcore._core import Arena, ArrayFile, Ticket
from outcore._util.packages import imported
from outcore._util.signals import stop_on_signals
from outcore._util.streams import BlockStream, WriteBehind
from outcore.array.create import create_array
from outcore.errors import DiskFullError, OutcoreError
from outcore.layout.disk_reads import DiskReads
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES
from outcore.machine.timing import median_rate
from outcore.storage.pool_path import PoolPath
from outcore.storage.volumes import AnyPath, place

_MOST_TILES = 64
_IN_FLIGHT = 8
PAGE_BYTES = SLOT_ALIGN_BYTES
ROWS = TILE_BYTES // PAGE_BYTES
"""Rows of a tile in the array of a measurement, each with `PAGE_BYTES` bytes."""

_PAGES_AT_ONCE = 256


class DiskRates(NamedTuple):
    """Rates of the array engine in a directory, in bytes per second.

    Attributes
    ----------
    request_s
        Seconds for each of many page reads at random places.
    reads
        Granularity of reads.
    copy_bytes_s
        Bytes per second that are read, and as many written at the same time; `None` if they were
        not measured.
    """

    read_bytes_s: float
    write_bytes_s: float
    request_s: float
    reads: DiskReads
    copy_bytes_s: float | None = None


def disk_rates(
    directory: AnyPath,
    seconds: float,
    *,
    copies: bool = False,
    meet: Callable[[], object] = lambda: None,
) -> DiskRates:
    """Measure the array engine in a directory.

    Parameters
    ----------
    directory
        A directory that exists. The temporary files have at most 256 MiB, with copies 512 MiB.
    seconds
        Approximate duration.
    copies
        Whether to measure copies too.
    meet
        Called before each kind of transfer, so that measurements of several disks can wait for one
        another.

    Raises
    ------
    DiskFullError
        If the disk has too little free space for the files.
    """
    tiles = tiles_within(place(directory / "x").volume.free_bytes(), directory)
    with stop_on_signals(), scratch_in(directory) as scratch:
        shape = (1 + copies) * tiles * ROWS, PAGE_BYTES
        array = create_array(scratch / "tiles", shape, "u1", chunks=(ROWS, PAGE_BYTES))
        arena = Arena((2 * _IN_FLIGHT + 2) * TILE_BYTES)
        file = array.open_file(arena, TILE_BYTES, writable=True)
        array.close()
        if isinstance(scratch, Path):
            # An open file outlives its name, so even a power loss leaves no file behind.
            shutil.rmtree(scratch, ignore_errors=True)
        return _passes(file, arena, tiles, seconds, copies, meet)


def tiles_within(free: int, where: object) -> int:
    """Return the number of tiles to write where so many bytes are free.

    Raises
    ------
    DiskFullError
        If there is too little space.
    """
    tiles = min(_MOST_TILES, free // 4 // TILE_BYTES)
    if tiles < 2:
        raise DiskFullError(
            f"need {8 * TILE_BYTES} bytes on disk in {where} to measure it, have {free}; "
            "free some room or choose another directory"
        )
    return tiles


@contextmanager
def scratch_in(directory: AnyPath) -> Iterator[AnyPath]:
    """Create a directory for the measured files, and remove it at the end."""
    if isinstance(directory, PoolPath):
        scratch = directory / f".outcore-rates-{secrets.token_hex(4)}"
        try:
            yield scratch
        finally:
            with contextlib.suppress(OutcoreError):
                scratch.root.volume.remove(scratch.inside)
        return
    made = Path(tempfile.mkdtemp(prefix=".outcore-rates-", dir=directory))
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _passes(
    file: ArrayFile,
    arena: Arena,
    tiles: int,
    seconds: float,
    copies: bool,
    meet: Callable[[], object],
) -> DiskRates:
    # Random bytes, because a disk with compression or deduplication would look fast on zeros.
    data = np.frombuffer(memoryview(arena.allocate(TILE_BYTES)), np.uint8)
    random = imported("numpy.random")
    data[:] = np.frombuffer(random.default_rng(1).bytes(TILE_BYTES), np.uint8)
    data = data.reshape(ROWS, PAGE_BYTES)
    boxes = [
        (slice(i * ROWS, (i + 1) * ROWS), slice(0, PAGE_BYTES)) for i in range((1 + copies) * tiles)
    ]
    written = copied = 0

    def write(count: int) -> None:
        # Each block is written once, as results are. A cache below the disk, such as that of a
        # virtual machine's host, answers repeated writes several times as fast.
        nonlocal written
        with WriteBehind(file, most=_IN_FLIGHT) as writer:
            for box in boxes[written : written + count]:
                writer.write(box, data)
            writer.flush(sync=True)
        written += count

    def read(count: int) -> None:
        stream = BlockStream(file, np.dtype(np.uint8), arena, _IN_FLIGHT * TILE_BYTES)
        stream.extend(boxes[number % written] for number in range(count))
        for _ in stream:
            pass

    def read_pages(count: int) -> None:
        draw, tickets = random.default_rng(2), deque[Ticket]()
        parts = data[: 2 * _PAGES_AT_ONCE].reshape(2, _PAGES_AT_ONCE, PAGE_BYTES)
        for number in range(count):
            rows = draw.integers(0, written * ROWS, _PAGES_AT_ONCE)
            if len(tickets) == len(parts):
                tickets.popleft().wait()
            tickets.append(file.submit_read_rows(rows, 0, parts[number % len(parts)]))
        for ticket in tickets:
            ticket.wait()

    def copy(count: int) -> None:
        nonlocal copied
        targets = boxes[tiles + copied : tiles + copied + count]
        # The engine's four threads read two blocks and write two at the same time, from the start.
        # The blocks written are not those just read, so that a short copy has no first read alone.
        stream = BlockStream(file, np.dtype(np.uint8), arena, 2 * TILE_BYTES)
        stream.extend(boxes[number % written] for number in range(count))
        with WriteBehind(file, most=2) as writer:
            for target in targets:
                writer.write(target, data)
                stream.take()
            writer.flush(sync=True)
        copied += count

    share = 0.3 if copies else 0.4
    meet()
    write_rate = median_rate(write, seconds * share, most=tiles) * TILE_BYTES
    meet()
    read_rate = median_rate(read, seconds * share) * TILE_BYTES
    meet()
    request_s = 1 / (median_rate(read_pages, seconds * 0.2 * (not copies)) * _PAGES_AT_ONCE)
    meet()
    copy_rate = median_rate(copy, seconds * share, most=tiles) * TILE_BYTES if copies else None
    return DiskRates(read_rate, write_rate, request_s, DiskReads(*file.read_granularity), copy_rate)
