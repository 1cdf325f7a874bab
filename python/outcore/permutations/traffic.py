"""Bytes and requests of a permutation by bits, counted before it starts."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from outcore.convert.sources import fast_to_slow
from outcore.layout.box_traffic import BoxTraffic, Traffic
from outcore.layout.disk_reads import DiskReads
from outcore.layout.zarr_format import Metadata
from outcore.permutations.geometry import Geometry
from outcore.permutations.layouts import Layout

_MOST_KINDS = 5000
_MOST_PIECES = 1 << 18
"""With more kinds of runs, or more runs along a dimension, counting takes longer than a second."""


class Side(NamedTuple):
    """An array that a pass reads or writes; `metadata` is `None` if it counts no requests."""

    metadata: Metadata | None
    layout: Layout


class Counts(NamedTuple):
    """Reads and writes of all passes, and whether they are exact."""

    read: Traffic
    written: Traffic
    is_exact: bool


def counts_of(geometry: Geometry, sides: Sequence[Side], disk: DiskReads) -> Counts:
    """Count the requests of all passes: pass i reads ``sides[i]`` and writes ``sides[i + 1]``."""
    read, written, is_exact = Traffic(), Traffic(), True
    for i in range(len(geometry.passes)):
        read_bits, write_bits = geometry.request_bits(i)
        reads, is_read = _counted(geometry, sides[i], read_bits, disk, is_write=False)
        writes, is_written = _counted(geometry, sides[i + 1], write_bits, disk, is_write=True)
        read, written = read + reads, written + writes
        is_exact = is_exact and is_read and is_written
    return Counts(read, written, is_exact)


def least_request_bytes(geometry: Geometry, sides: Sequence[Side]) -> int:
    """Return the bytes of the smallest run of elements of one chunk that moves at a time."""
    return geometry.itemsize * min(
        min(_least_part(sides[i], read_bits), _least_part(sides[i + 1], write_bits))
        for i in range(len(geometry.passes))
        for read_bits, write_bits in [geometry.request_bits(i)]
    )


def _counted(
    geometry: Geometry, side: Side, run_bits: int, disk: DiskReads, *, is_write: bool
) -> tuple[Traffic, bool]:
    """Count the runs of one side of a pass, or estimate their requests."""
    metadata, layout = side
    runs = 1 << layout.bits - run_bits
    if metadata is None:
        return Traffic(geometry.nbytes, runs), True
    extents, block = layout.extents(run_bits), disk.block_bytes
    # Memory of runs shorter than a block is not aligned, and neither are they on disk.
    run_bytes = geometry.itemsize << run_bits
    is_aligned = run_bytes < block or run_bytes % block == 0
    if all(n // e <= _MOST_PIECES for n, e in zip(layout.shape, extents, strict=True)):
        order = fast_to_slow(layout.order, len(extents))
        traffic = BoxTraffic(metadata, is_write, order, geometry.bounce_bytes, disk)
        pieces = [
            [slice(first, first + e) for first in range(0, n, e)]
            for n, e in zip(layout.shape, extents, strict=True)
        ]
        if traffic.kinds(pieces) <= _MOST_KINDS:
            return traffic.of_pieces(pieces), is_aligned
    parts = runs
    if len(extents) == 1:
        n, run, chunk = layout.shape[0], extents[0], metadata.chunks[0]
        parts += -(-n // chunk) - -(-n // math.lcm(run, chunk))
    return Traffic(geometry.nbytes, parts), False


def _least_part(side: Side, run_bits: int) -> int:
    """Return the elements in the smallest part of a run in one chunk.

    A run of an array of two or more dimensions lies in one chunk; chunks may cut one of a vector.
    """
    metadata, layout = side
    if metadata is None or len(layout.shape) > 1:
        return 1 << run_bits
    n, run, chunk = layout.shape[0], 1 << run_bits, metadata.chunks[0]
    if math.lcm(run, chunk) <= n:
        return math.gcd(run, chunk)  # the cuts have each multiple of it as a distance
    cuts = np.union1d(np.arange(0, n + 1, run), np.arange(0, n, chunk))
    return int(np.diff(cuts).min())
