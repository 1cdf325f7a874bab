"""Exact bytes and requests of reads and writes of boxes of an array, before they happen.

It follows `crates/core/src/transfer.rs` and `cut.rs`, and `piece.rs` and `batch.rs` in
`crates/client/src/array`: a box is divided at the edges of chunks, each part into pieces of the
file, and each piece is one request, or several if it needs a buffer. A pool gathers several pieces
in one message, so its requests are fewer.
"""

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from outcore.layout.disk_reads import DiskReads
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, TILE_BYTES, Metadata

# The crates have the same constants.
_PIECE_BYTES = TILE_BYTES
_SHORT_BYTES = 64 << 10
_PADDING_GAP_BYTES = 128 << 10
_EXTENTS = 4096
_SEGMENTS = 256
_LEVELS = 16


class Traffic(NamedTuple):
    """Bytes that move between disk and memory, with gaps and padding, and requests for them."""

    nbytes: int = 0
    requests: int = 0

    def __add__(self, other: "Traffic") -> "Traffic":  # type: ignore[override]
        return Traffic(self.nbytes + other.nbytes, self.requests + other.requests)

    def __mul__(self, times: int) -> "Traffic":  # type: ignore[override]
        return Traffic(self.nbytes * times, self.requests * times)


class _Level(NamedTuple):
    """Repetitions, and the bytes between two of them on disk and in memory."""

    times: int
    file: int
    memory: int


class _Piece(NamedTuple):
    """Runs of one chunk that lie on disk in extents of one size."""

    at: int
    extent: int
    memory: int
    run: int
    levels: tuple[_Level, ...]
    inner: int
    is_padded: bool

    @property
    def extents(self) -> int:
        return math.prod(level.times for level in self.levels[self.inner :])

    @property
    def runs(self) -> int:
        return math.prod(level.times for level in self.levels)

    @property
    def has_gaps(self) -> bool:
        within = math.prod(level.times for level in self.levels[: self.inner])
        return within * self.run != self.extent


class _Span(NamedTuple):
    """The part of a box in a chunk along one dimension.

    `low` is its first index in the chunk, `at` its place in memory in bytes, as far as alignment
    depends on it. `is_whole` is true if it has all elements of the array in the chunk.
    """

    low: int
    size: int
    is_whole: bool
    at: int


@dataclass
class BoxTraffic:
    """Counts the traffic of boxes between an array and memory.

    Attributes
    ----------
    metadata
        The array, with its layout.
    is_write
        Whether boxes are written.
    fast_to_slow
        Dimensions of the memory of a box, which is contiguous, from the fastest.
    bounce_bytes
        Memory for transfers that do not go directly between disk and memory.
    disk
        Granularity of the disk; its blocks are also the alignment of memory.
    """

    metadata: Metadata
    is_write: bool
    fast_to_slow: Sequence[int]
    bounce_bytes: int
    disk: DiskReads = DiskReads()  # noqa: RUF009  # it cannot change
    _known: dict[tuple[object, ...], Traffic] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        m, block = self.metadata, self.disk.block_bytes
        self._itemsize = m.dtype.itemsize
        self._chunk_bytes = math.prod(m.chunks) * self._itemsize
        self._slot_bytes = -(-self._chunk_bytes // m.slot_align_bytes) * m.slot_align_bytes
        buffer = min(
            min(_PIECE_BYTES, self._slot_bytes) + 2 * block, max(self.bounce_bytes, 4 * block)
        )
        buffer = -(-buffer // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES
        self._bounce_piece = max(buffer - 2 * block, 1)
        self._gap_bytes = min(self.disk.gap_bytes, self._bounce_piece // 4)
        dims = range(len(m.shape))
        self._file_order = dims if m.order == "F" else dims[::-1]

    def of_pieces(self, pieces: Sequence[Sequence[slice]]) -> Traffic:
        """Count the transfers of all boxes that are products of these pieces of each dimension."""
        lengths = [Counter(p.stop - p.start for p in each) for each in pieces]
        total = Traffic()
        for box in itertools.product(*lengths):
            strides = self._memory_strides(box)
            spans = [
                self._spans(d, [p for p in each if p.stop - p.start == box[d]], strides[d])
                for d, each in enumerate(pieces)
            ]
            for part in itertools.product(*(each.items() for each in spans)):
                times = math.prod(count for _, count in part)
                total += self._of_part(tuple(span for span, _ in part), strides) * times
        return total

    def kinds(self, pieces: Sequence[Sequence[slice]]) -> int:
        """Bound the number of different parts of chunks that `of_pieces` counts one by one."""
        each = [self._spans(d, list(of_d), 0) for d, of_d in enumerate(pieces)]
        return math.prod(map(len, each))

    def _memory_strides(self, box: Sequence[int]) -> tuple[int, ...]:
        strides, stride = [0] * len(box), self._itemsize
        for d in self.fast_to_slow:
            strides[d] = stride
            stride *= box[d]
        return tuple(strides)

    def _spans(self, d: int, pieces: Sequence[slice], stride: int) -> Counter[_Span]:
        """Cut pieces at the edges of chunks, and count equal parts."""
        chunk, extent = self.metadata.chunks[d], self.metadata.shape[d]
        found: Counter[_Span] = Counter()
        for piece in pieces:
            first = int(piece.start)
            while first < piece.stop:
                low = first % chunk
                to_edge = min(first - low + chunk, extent) - first
                count = min(to_edge, int(piece.stop) - first)
                place = (first - int(piece.start)) * stride % self.disk.block_bytes
                found[_Span(low, count, low == 0 and count == to_edge, place)] += 1
                first += count
        return found

    def _of_part(self, spans: tuple[_Span, ...], strides: tuple[int, ...]) -> Traffic:
        """Count the transfer of the part of a box in one chunk."""
        key = (spans, strides)
        if key not in self._known:
            at, run, stride = 0, self._itemsize, self._itemsize
            levels: list[_Level] = []
            for d in self._file_order:
                at += spans[d].low * stride
                level = _Level(spans[d].size, stride, strides[d])
                stride *= self.metadata.chunks[d]
                if level.times == 1:
                    continue
                if not levels and level.file == run == level.memory:
                    run *= level.times
                elif levels and all(level[i] == levels[-1][i] * levels[-1].times for i in (1, 2)):
                    levels[-1] = levels[-1]._replace(times=levels[-1].times * level.times)
                else:
                    levels.append(level)
            is_whole = all(span.is_whole for span in spans)
            memory = sum(span.at for span in spans)
            pieces = self._split(at, memory, run, tuple(levels), _PIECE_BYTES, is_whole=is_whole)
            total = Traffic()
            for piece in pieces:
                total += self._of_piece(piece)
            self._known[key] = total
        return self._known[key]

    def _may_bridge(self, extent: int, level: _Level, *, is_whole: bool) -> bool:
        gap = level.file - extent
        if not self.is_write:
            return gap <= self._gap_bytes
        return gap == 0 or (is_whole and gap <= _PADDING_GAP_BYTES)

    def _split(
        self,
        at: int,
        memory: int,
        run: int,
        levels: tuple[_Level, ...],
        most: int,
        *,
        is_whole: bool,
        end: int | None = None,
    ) -> Iterator[_Piece]:
        """Cut a part of a chunk into pieces of at most `most` bytes, as `Cut::split` does."""
        end = self._chunk_bytes if end is None else end
        extent, inner = run, 0
        while inner < len(levels) and self._may_bridge(extent, levels[inner], is_whole=is_whole):
            wider = (levels[inner].times - 1) * levels[inner].file + extent
            if wider > most:
                break
            extent, inner = wider, inner + 1
        if inner == len(levels):
            if extent > most:
                step = max(most // SLOT_ALIGN_BYTES * SLOT_ALIGN_BYTES, 1) if most >= 4096 else most
                for done in range(0, run, step):
                    nbytes = min(step, run - done)
                    is_last = at + done + nbytes == end
                    yield _Piece(at + done, nbytes, memory + done, nbytes, (), 0, is_last)
            else:
                yield _Piece(at, extent, memory, run, levels, inner, at + extent == end)
            return
        outer, rest = levels[-1], levels[inner:-1]
        repeated = self._most_repetitions(extent, outer, rest, most, is_whole=is_whole)
        if repeated >= outer.times and not self._may_bridge(
            extent, levels[inner], is_whole=is_whole
        ):
            yield _Piece(at, extent, memory, run, levels, inner, False)
            return
        group = min(max(repeated, 1), outer.times)
        for index in range(0, outer.times, group):
            count = min(group, outer.times - index)
            below = levels[:-1] + ((outer._replace(times=count),) if count > 1 else ())
            yield from self._split(
                at + index * outer.file, memory + index * outer.memory, run, below, most,
                is_whole=is_whole, end=end,
            )  # fmt: skip

    def _most_repetitions(
        self, extent: int, outer: _Level, rest: tuple[_Level, ...], most: int, *, is_whole: bool
    ) -> int:
        if extent > most or len(rest) >= _LEVELS:
            return 1
        if self._may_bridge(extent, rest[0] if rest else outer, is_whole=is_whole):
            return 1 if rest else 1 + (most - extent) // outer.file
        if extent > _SHORT_BYTES:
            return 1
        return min(most // extent, _EXTENTS) // math.prod(level.times for level in rest)

    def _smaller(self, piece: _Piece, most: int) -> Iterator[_Piece]:
        end = piece.at + piece.extent if piece.is_padded else -1
        return self._split(
            piece.at, piece.memory, piece.run, piece.levels, most, is_whole=piece.has_gaps, end=end
        )

    def _of_piece(self, piece: _Piece) -> Traffic:
        total = Traffic()
        if piece.extents > 1:
            if piece.extents * piece.extent <= self._bounce_piece:
                return Traffic(piece.extents * piece.extent, piece.extents)
            for part in self._smaller(piece, self._bounce_piece):
                if part.extents > 1:
                    total += Traffic(part.extents * part.extent, part.extents)
                else:
                    total += self._of_extent(part)
            return total
        return self._of_extent(piece)

    def _of_extent(self, piece: _Piece) -> Traffic:
        """Count the requests for one extent, as `launch_extent` does."""
        total, fits = Traffic(), self._fits(piece)
        if piece.runs > _SEGMENTS and not piece.has_gaps and fits:
            for part in self._smaller(piece, _SEGMENTS * piece.run):
                total += self._of_extent(part)
            return total
        is_padded = self.is_write and piece.is_padded
        is_small = piece.extent < _SHORT_BYTES and not is_padded
        if not piece.has_gaps and piece.runs <= _SEGMENTS and (is_small or fits):
            return Traffic(piece.extent, 1)
        for part in self._smaller(piece, self._bounce_piece):
            total += self._written(part) if self.is_write else self._read(part)
        return total

    def _fits(self, piece: _Piece) -> bool:
        """Whether disk and memory are aligned to blocks."""
        block = self.disk.block_bytes
        return piece.at % block == piece.run % block == piece.memory % block == 0 and all(
            level.file % block == level.memory % block == 0 for level in piece.levels
        )

    def _read(self, piece: _Piece) -> Traffic:
        return Traffic(self.disk.whole_blocks(piece.at, piece.extent), 1)

    def _written(self, piece: _Piece) -> Traffic:
        """Count a write through a buffer: whole blocks, and apart from them the ragged ends."""
        block, end = self.disk.block_bytes, piece.at + piece.extent
        if piece.is_padded:
            end = min(-(-end // block) * block, self._slot_bytes)
        low = min(-(-piece.at // block) * block, end)
        high = max(end // block * block, low)
        return Traffic(end - piece.at, (piece.at < low) + (low < high) + (high < end))
