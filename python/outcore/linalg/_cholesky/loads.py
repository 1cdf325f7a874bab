"""Bytes that slab loads of one triangle read from the disk: exact, for any layout."""

import functools
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

from outcore.linalg._cholesky.geometry import CholeskyGeometry, Part
from outcore.linalg._geometry.box_reads import BoxReads
from outcore.linalg._geometry.loads import Loads
from outcore.linalg._geometry.segments import Layout

_MANY = 1.0
"""Words per element of the matrix above which the report has a note. Half of them are needed."""


class Load(NamedTuple):
    """Panels that are loaded together.

    Attributes
    ----------
    panels
        The panels.
    piece
        Panels and tiles of the piece of a slab to which they belong.
    boxes
        Pairs of rows and columns, each for one read.
    """

    panels: range
    piece: tuple[range, range]
    boxes: list[tuple[slice, slice]]


class TriangleLoads(Loads[CholeskyGeometry]):
    """The loads of the slabs of a Cholesky factorization, or of their parts.

    `layout` describes the lower triangle as it is read: the matrix, or its transpose.
    """

    is_lower = True

    def slab_bytes(self, reads: BoxReads, first_panel: int, *, is_copy: bool) -> int:
        """Bytes that the conveyor reads."""
        return _load_bytes(self.geometry, reads, first_panel, is_copy=is_copy)

    def of(self, part: Part) -> Iterator[Load]:
        """Yield the loads of a part, in the order of their reads."""
        cut = _part_strips(self.geometry, part, self.source_layout, is_copy=self.is_copied)
        for panels, piece, strips in cut:
            boxes = [(rows, some) for rows, columns, step in strips for some in _cut(columns, step)]
            yield Load(panels, piece, boxes)

    def notes(self, *, lower: bool) -> list[str]:
        """Return advice for a user who reads a triangle across its layout."""
        words = sum(self.bytes_moved()) / self.geometry.dtype.itemsize / self.geometry.n**2
        if self.layout.order == "F" or words < _MANY:
            return []
        order, triangle = ("C", "upper") if lower else ("F", "lower")
        return [
            f"the {'lower' if lower else 'upper'} triangle of a matrix in order {order!r} took "
            f"{words:.2g} n^2 words to load; the {triangle} one, lower={not lower}, takes about 0.5"
        ]


Strip: TypeAlias = tuple[slice, slice, int]
"""Adjacent boxes: their rows, all of their columns, and the number of columns of each."""


def _part_strips(
    g: CholeskyGeometry, part: Part, layout: Layout, *, is_copy: bool
) -> Iterator[tuple[range, tuple[range, range], list[Strip]]]:
    """Cut the region of a matrix that a part needs, in some layout, into loads."""
    # If a chunk holds several panels side by side, they are read together. Otherwise each of them
    # would read the whole chunk.
    at_once = 1 if layout.order == "F" else max(layout.chunks[1] // g.columns, 1)
    for panels, tiles in g.pieces(part, layout.chunks[0]):
        for i in range(0, len(panels), at_once):
            some = panels[i : i + at_once]
            if layout.order == "F" and not is_copy:
                strips = list(g.matrix_strips(tiles, some, layout.chunks[0]))
            else:
                rows, columns = g.whole_box(tiles, some, is_padded=is_copy)
                strips = [(rows, columns, columns.stop - columns.start)]
            yield some, (panels, tiles), strips


def _cut(columns: slice, step: int) -> Iterator[slice]:
    for at in range(columns.start, columns.stop, step):
        yield slice(at, min(at + step, columns.stop))


@functools.lru_cache(1 << 8)
def _load_bytes(g: CholeskyGeometry, reads: BoxReads, first_panel: int, *, is_copy: bool) -> int:
    high, wide = reads.layout.chunks
    # There may be millions of boxes. Most have the same size and the same place within a chunk.
    strips = Counter(
        (
            rows.start % high, rows.stop - rows.start,
            columns.start % wide, columns.stop - columns.start, step, len(piece[1]) * g.rows,
        )
        for slab in g.slabs(first_panel)
        for part in g.parts(slab)
        for _, piece, strips in _part_strips(g, part, reads.layout, is_copy=is_copy)
        for rows, columns, step in strips
    )  # fmt: skip
    boxes: Counter[tuple[int, int, int, int, int]] = Counter()
    for (top, down, left, across, step, height), times in strips.items():
        for columns in _cut(slice(left, left + across), step):
            boxes[top, down, columns.start % wide, columns.stop - columns.start, height] += times
    return sum(
        times * reads.bytes_of_box(slice(top, top + down), slice(left, left + across), height)
        for (top, down, left, across, height), times in boxes.items()
    )
