"""Exact figures of the reads of a program, for a layout of an array and a sample of the reads."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

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
    server_bytes
        Wanted bytes on each server of a pool, in the order of the file's servers; else empty.
    busiest_bytes
        Wanted bytes on the busiest server of each read, summed over the reads.
    """

    access: str
    weight: float
    reads: int
    bytes_wanted: int
    bytes_read: int
    requests: int
    places: int
    server_bytes: tuple[int, ...] = ()
    busiest_bytes: int = 0

    @property
    def imbalance(self) -> float:
        """Bytes of the busiest server of a read over the mean of all servers: 1 if all are even."""
        if not self.server_bytes:
            return 1.0
        return self.busiest_bytes / (sum(self.server_bytes) / len(self.server_bytes))

    @property
    def cost(self) -> float:
        """Bytes read for each byte wanted, where a request counts as `REQUEST_BYTES`.

        It is multiplied by the imbalance, because a read ends with its busiest server.
        """
        nbytes = self.bytes_read + REQUEST_BYTES * self.requests
        return nbytes / self.bytes_wanted * self.imbalance


@dataclass(frozen=True)
class AdvisedLayout:
    """A layout of an array, with its figures for each word.

    `disk_schema` and `mesh` are as in `create_array`, or `None`.
    """

    chunks: tuple[int, ...]
    order: str
    chunk_order: str
    disk_schema: str | None
    mesh: tuple[int, ...] | None
    figures: tuple[AccessFigures, ...]

    @property
    def cost(self) -> float:
        """Mean of the costs of the words, by their weights."""
        weights = sum(one.weight for one in self.figures)
        return sum(one.weight * one.cost for one in self.figures) / weights

    @property
    def distance(self) -> float:
        """Places for each byte wanted, as the mean over the words by their weights."""
        weights = sum(one.weight for one in self.figures)
        return sum(one.weight * one.places / one.bytes_wanted for one in self.figures) / weights

    def __str__(self) -> str:
        chunks = f"chunks of {' x '.join(map(str, self.chunks))}"
        if self.disk_schema is not None:
            return f'{chunks}, disk_schema="{self.disk_schema}", mesh={self.mesh}'
        return f"{chunks}, elements in {self.order} order, chunks {self.chunk_order}"


class Sample:
    """The reads of a program that are counted for each layout.

    Parameters
    ----------
    patterns
        The words.
    shape
        The array.
    memory_bytes
        Memory of the program's stream.
    servers
        Number of I/O servers; `None` for a plain path.
    """

    def __init__(
        self,
        patterns: Sequence[Pattern],
        shape: Sequence[int],
        memory_bytes: int,
        servers: int | None,
    ) -> None:
        self._patterns = patterns
        self._boxes = [pattern.sample(shape) for pattern in patterns]
        self._memory_bytes, self._servers = memory_bytes, servers

    def counted(self, metadata: Metadata) -> AdvisedLayout:
        """Count the figures of a layout."""
        chunks = _ChunkPlaces(metadata)
        schema = metadata.disk_schema
        rules = [] if schema is None else schema.distribution.split(",")
        return AdvisedLayout(
            metadata.chunks,
            metadata.order,
            metadata.chunk_order,
            None if schema is None else schema.distribution,
            None if schema is None
            else tuple(n for n, rule in zip(schema.mesh, rules, strict=True) if rule != "*"),
            tuple(
                self._placed(self._moved(metadata, pattern, boxes), chunks, boxes)
                for pattern, boxes in zip(self._patterns, self._boxes, strict=True)
            ),
        )  # fmt: skip

    def reordered(self, layout: AdvisedLayout, metadata: Metadata) -> AdvisedLayout:
        """Count the figures of a layout that differs in the order of its chunks."""
        chunks = _ChunkPlaces(metadata)
        figures = zip(layout.figures, self._boxes, strict=True)
        return replace(
            layout,
            chunk_order=metadata.chunk_order,
            figures=tuple(self._placed(one, chunks, boxes) for one, boxes in figures),
        )

    def _moved(self, metadata: Metadata, pattern: Pattern, boxes: Sequence[Box]) -> AccessFigures:
        """Count the bytes and the requests of a stream of the boxes."""
        dims = range(len(metadata.shape))
        sizes = [_nbytes(metadata, box) for box in boxes]
        traffic = BoxTraffic(
            metadata,
            is_write=False,
            fast_to_slow=dims if metadata.order == "F" else dims[::-1],
            bounce_bytes=budget.stream_bounce_bytes(
                self._memory_bytes, max(metadata.grid().slot_bytes, *sizes)
            ),
        )
        total = Traffic()
        for box in boxes:
            if _is_read_whole(metadata, box):
                chunk_bytes = math.prod(metadata.chunks) * metadata.dtype.itemsize
                total += Traffic(traffic.disk.whole_blocks(0, chunk_bytes), 1)
            else:
                total += traffic.of_pieces([[s] for s in box])
        return AccessFigures(
            pattern.word, pattern.weight, len(boxes), sum(sizes), total.nbytes, total.requests, 0
        )

    def _placed(
        self, figures: AccessFigures, chunks: "_ChunkPlaces", boxes: Sequence[Box]
    ) -> AccessFigures:
        """Complete figures with those that depend on the places of chunks."""
        places, busiest = 0, 0
        total = np.zeros(self._servers or 0, np.int64)
        for box in boxes:
            shard, inside = chunks.of(box)
            places += chunks.runs(shard, inside)
            if self._servers is not None:
                server = chunks.servers(shard, inside, self._servers).ravel()
                wanted = np.zeros(self._servers, np.int64)
                np.add.at(wanted, server, chunks.wanted_bytes(box).ravel())
                total += wanted
                busiest += int(wanted.max())
        return replace(
            figures, places=places, server_bytes=tuple(total.tolist()), busiest_bytes=busiest
        )


def _nbytes(metadata: Metadata, box: Box) -> int:
    elements: int = math.prod(s.stop - s.start for s in box)
    return elements * metadata.dtype.itemsize


def _is_read_whole(metadata: Metadata, box: Box) -> bool:
    """Whether a stream reads the box as a chunk with its padding: see `chunk_of` in `stream.rs`."""
    sides = zip(box, metadata.chunks, metadata.shape, strict=True)
    is_chunk = all(s.start % c == 0 and s.stop == min(s.start + c, n) for s, c, n in sides)
    chunk_bytes = math.prod(metadata.chunks) * metadata.dtype.itemsize
    return is_chunk and 2 * _nbytes(metadata, box) >= chunk_bytes


class _ChunkPlaces:
    """The place of each chunk: its shard file, its offset there, and its server."""

    def __init__(self, metadata: Metadata) -> None:
        self.metadata = metadata
        self._grid = metadata.grid()
        whole = zip(self._grid.shard_shape, metadata.chunks, strict=True)
        self._per_shard = [n // c for n, c in whole]
        each = zip(metadata.counts, self._per_shard, strict=True)
        self._shards = [-(-n // per) for n, per in each]
        # The index of a shard has the offset and the length of each chunk, then a checksum.
        index = np.frombuffer(self._grid.index()[:-4], "<u8").reshape(*self._per_shard, 2)
        self._offsets = index[..., 0].astype(np.int64)

    def of(self, box: Box) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the shards of the chunks that a box touches, and their offsets there."""
        numbers = [
            np.arange(s.start // c, -(-s.stop // c))
            for s, c in zip(box, self.metadata.chunks, strict=True)
        ]
        each = list(zip(np.meshgrid(*numbers, indexing="ij"), self._per_shard, strict=True))
        shard = np.ravel_multi_index([n // per for n, per in each], self._shards)
        return np.asarray(shard, np.int64), self._offsets[tuple(n % per for n, per in each)]

    def wanted_bytes(self, box: Box) -> npt.NDArray[np.int64]:
        """Return the bytes of a box in each of these chunks."""
        found = np.full((1,) * len(box), self.metadata.dtype.itemsize, np.int64)
        for d, (s, c) in enumerate(zip(box, self.metadata.chunks, strict=True)):
            first = np.arange(s.start // c, -(-s.stop // c)) * c
            lengths = np.minimum(first + c, s.stop) - np.maximum(first, s.start)
            found = found * np.expand_dims(lengths, [*range(d), *range(d + 1, len(box))])
        return found

    def runs(self, shard: npt.NDArray[np.int64], inside: npt.NDArray[np.int64]) -> int:
        """Count the runs of chunks that are adjacent on disk."""
        # A byte between shards, so that the end of one is not adjacent to the next one.
        at = np.sort((shard * (self._grid.shard_bytes + 1) + inside).ravel())
        return 1 + int(np.count_nonzero(np.diff(at) != self._grid.slot_bytes))

    def servers(
        self, shard: npt.NDArray[np.int64], inside: npt.NDArray[np.int64], servers: int
    ) -> npt.NDArray[np.int64]:
        """Return the server of each chunk, counted from the first one of the file."""
        count = min(servers, self.metadata.stripe_count or servers)
        found: npt.NDArray[np.int64] = (inside // self._grid.stripe_unit_bytes + shard) % count
        return found
