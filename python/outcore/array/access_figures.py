"""Exact figures of the reads of a program, for a layout of an array and a sample of the reads."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from outcore._util import budget
from outcore._util.streams import Box
from outcore.array.access import Pattern
from outcore.layout.box_traffic import BoxTraffic, Traffic
from outcore.layout.disk_reads import REQUEST_BYTES
from outcore.layout.zarr_format import Metadata


@dataclass(frozen=True)
class AccessFigures:
    """Exact figures of the sample of one word, for one layout.

    Attributes
    ----------
    access, weight
        The word, and its weight.
    reads, bytes_wanted
        Boxes in the sample, and the bytes of their elements.
    bytes_read, requests
        Bytes that `Array.stream` reads for them from a plain path, and its requests.
    places
        Runs of chunks, adjacent on disk, that contain the boxes; summed over the boxes.
    """

    access: str
    weight: float
    reads: int
    bytes_wanted: int
    bytes_read: int
    requests: int
    places: int

    @property
    def cost(self) -> float:
        """Bytes read for each byte wanted, where a request counts as `REQUEST_BYTES`."""
        return (self.bytes_read + REQUEST_BYTES * self.requests) / self.bytes_wanted


@dataclass(frozen=True)
class AdvisedLayout:
    """A layout of an array, with its figures for each word. `cost` is their weighted mean."""

    chunks: tuple[int, ...]
    order: str
    chunk_order: str
    cost: float
    figures: tuple[AccessFigures, ...]

    def __str__(self) -> str:
        chunks = " x ".join(map(str, self.chunks))
        return f"chunks of {chunks}, elements in {self.order} order, chunks {self.chunk_order}"


def counted(metadata: Metadata, patterns: Sequence[Pattern], memory_bytes: int) -> AdvisedLayout:
    """Count the figures of all patterns for one layout, read with a budget."""
    figures = tuple(_figures(metadata, pattern, memory_bytes) for pattern in patterns)
    weights = sum(one.weight for one in figures)
    return AdvisedLayout(
        metadata.chunks,
        metadata.order,
        metadata.chunk_order,
        sum(one.weight * one.cost for one in figures) / weights,
        figures,
    )


def _figures(metadata: Metadata, pattern: Pattern, memory_bytes: int) -> AccessFigures:
    boxes = pattern.sample(metadata.shape)
    sizes = [math.prod(s.stop - s.start for s in box) * metadata.dtype.itemsize for box in boxes]
    dims = range(len(metadata.shape))
    traffic = BoxTraffic(
        metadata,
        is_write=False,
        fast_to_slow=dims if metadata.order == "F" else dims[::-1],
        bounce_bytes=budget.stream_bounce_bytes(
            memory_bytes, max(metadata.grid().slot_bytes, *sizes)
        ),
    )
    total = sum((traffic.of_pieces([[s] for s in box]) for box in boxes), Traffic())
    return AccessFigures(
        pattern.word, pattern.weight, len(boxes), sum(sizes), total.nbytes, total.requests,
        sum(places(metadata, boxes)),
    )  # fmt: skip


def places(metadata: Metadata, boxes: Sequence[Box]) -> Iterator[int]:
    """Yield for each box the number of runs of chunks, adjacent on disk, that contain it."""
    grid = metadata.grid()
    per_shard = [n // c for n, c in zip(grid.shard_shape, metadata.chunks, strict=True)]
    shards = [-(-n // per) for n, per in zip(metadata.counts, per_shard, strict=True)]
    # The index of a shard has the offset and the length of each of its chunks, then a checksum.
    index = np.frombuffer(grid.index()[:-4], "<u8").reshape(*per_shard, 2)
    offsets = index[..., 0].astype(np.int64)
    for box in boxes:
        chunks = np.meshgrid(
            *(
                np.arange(s.start // c, -(-s.stop // c))
                for s, c in zip(box, metadata.chunks, strict=True)
            ),
            indexing="ij",
        )
        each = list(zip(chunks, per_shard, strict=True))
        shard = np.ravel_multi_index([c // per for c, per in each], shards)
        inside = offsets[tuple(c % per for c, per in each)]
        # A byte between shards, so that the end of one is not adjacent to the next one.
        at = np.sort((shard * (grid.shard_bytes + 1) + inside).ravel())
        yield 1 + int(np.count_nonzero(np.diff(at) != grid.slot_bytes))
