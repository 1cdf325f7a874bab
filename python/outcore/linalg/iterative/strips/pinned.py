"""Tiles of a matrix in a known order, some of which stay in memory after their first read.

With a fraction f of the matrix in memory, a pass must read at least (1 - f) n² words. The pinned
tiles are chosen before the start. An LRU cache would keep the tiles used last, which are useless in
a pass that begins at the top again.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Arena, ArrayFile, Stream, Trace
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg.iterative.strips.strips import Chunk, Tile

Look = Callable[[Tile, Matrix], None]


def choose_pins(
    levels: Iterable[Sequence[npt.NDArray[np.intp]]], count: int
) -> npt.NDArray[np.intp]:
    """Choose `count` tiles to keep, evenly spread so that the disk is busy throughout a pass.

    Parameters
    ----------
    levels
        Numbers of tiles, in groups. Tiles of a later level are kept only if all tiles of earlier
        levels are. Groups of one level share in proportion to their size.
    count
        Number of tiles to keep; all if there are fewer.
    """
    chosen, left = [], count
    for groups in levels:
        size = sum(map(len, groups))
        taken, seen = 0, 0
        for group in groups:
            seen += len(group)
            share = min(left, size) * seen // max(size, 1) - taken
            taken += share
            chosen.append(group[np.arange(share) * len(group) // max(share, 1)])
        left -= taken
    return np.concatenate(chosen)


class PinnedTiles:
    """Tiles in any order, each read when it is first needed. Pinned ones are read only once.

    Parameters
    ----------
    file, dtype
        The matrix.
    arena, ring_bytes
        Budget, and its share for tiles that are read ahead and not kept.
    slot_bytes
        Memory of one tile.
    pins
        Chunks to keep.
    look
        Called once for each tile, at its first use.
    first_line
        Row of the matrix's chunks at which the file begins.
    """

    def __init__(
        self,
        file: ArrayFile,
        dtype: np.dtype[Any],
        arena: Arena,
        trace: Trace,
        *,
        ring_bytes: int,
        slot_bytes: int,
        pins: Collection[Chunk] = (),
        look: Look | None = None,
        first_line: int = 0,
    ) -> None:
        self.file = file
        self._dtype, self._trace = dtype, trace
        # A pinned block stays leased from the stream, which leaves the ring for the others.
        self._stream = Stream(file, arena, ring_bytes + len(pins) * slot_bytes)
        self._pins = frozenset(pins)
        self._kept: dict[Chunk, Matrix] = {}
        self._look = look
        self._first_line = first_line
        self._seen: set[Chunk] = set()

    def go(self, tiles: Iterable[Tile]) -> Iterator[tuple[Tile, Matrix]]:
        """Yield tiles as (tile, elements), with read-ahead as far as memory allows."""
        order = list(tiles)
        self._stream.extend_chunks(
            [
                [line - self._first_line, at]
                for line, at in (tile.chunk for tile in order)
                if (line, at) not in self._kept
            ]
        )
        for tile in order:
            data = self._kept.get(tile.chunk)
            if data is None:
                data = self._take(tile)
                if tile.chunk in self._pins:
                    self._kept[tile.chunk] = data
            start_ns = self._trace.now_ns()
            if self._look and tile.chunk not in self._seen:
                self._look(tile, data)
                self._seen.add(tile.chunk)
            yield tile, data
            self._trace.record("compute", start_ns)

    def _take(self, tile: Tile) -> Matrix:
        start_ns = self._trace.now_ns()
        buffer, _, count, strides = self._stream.next()
        self._trace.record("wait", start_ns)
        data: Matrix = np.ndarray(
            tuple(count), self._dtype, buffer=memoryview(buffer), strides=tuple(strides)
        )
        # A copy of a matrix may have whole chunks beyond the matrix's edge.
        return tile.part(data, (tile.rows, tile.cols))
