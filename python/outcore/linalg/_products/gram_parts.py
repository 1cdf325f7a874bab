"""The parts in which the lower triangle of AᴴA is computed: pure arithmetic.

There may be millions of tiles, but only a few kinds: sums over all tiles are computed from sums
over groups of columns.
"""

import functools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise
from typing import overload

from outcore.linalg._rows.plan import RowLayout


@dataclass(frozen=True)
class Part:
    """Rows and columns of AᴴA that are computed together."""

    rows: slice
    columns: slice

    @property
    def is_on_diagonal(self) -> bool:
        """Whether it begins on the diagonal; otherwise it lies below."""
        return bool(self.rows.start == self.columns.start)

    def shape(self, unit: int) -> tuple[int, int]:
        """Return its rows and columns, rounded up to whole units."""
        rows, columns = (s.stop - s.start for s in (self.rows, self.columns))
        return -(-rows // unit) * unit, -(-columns // unit) * unit

    def layouts(self, A: RowLayout) -> list[RowLayout]:
        """Return the layouts of the columns of A that it needs: one or two groups of columns."""
        groups = [self.rows] if self.is_on_diagonal else [self.rows, self.columns]
        return [A.narrowed(group.start, group.stop) for group in groups]


@dataclass(frozen=True)
class Parts(Sequence[Part]):
    """All parts, in the order of their computation.

    Attributes
    ----------
    edges
        First columns of the groups, and the end of the last group.
    is_tiled
        Whether a part has the rows of one group, with equal widths of all groups but the last.
        Otherwise a part has all rows from its first column down.
    """

    edges: tuple[int, ...]
    is_tiled: bool = False

    def __len__(self) -> int:
        groups = len(self.edges) - 1
        return groups * (groups + 1) // 2 if self.is_tiled else groups

    def __iter__(self) -> Iterator[Part]:
        for columns in self.groups:
            if not self.is_tiled:
                yield Part(slice(columns.start, self.edges[-1]), columns)
                continue
            for rows in islice(self.groups, columns.start // self.edges[1], None):
                yield Part(rows, columns)

    @overload
    def __getitem__(self, at: int) -> Part: ...
    @overload
    def __getitem__(self, at: slice) -> tuple[Part, ...]: ...
    def __getitem__(self, at: int | slice) -> Part | tuple[Part, ...]:
        if isinstance(at, slice):
            return tuple(islice(self, *at.indices(len(self))))
        return next(islice(self, range(len(self))[at], None))

    @functools.cached_property
    def groups(self) -> tuple[slice, ...]:
        """Groups of columns."""
        return tuple(slice(first, end) for first, end in pairwise(self.edges))

    @property
    def on_diagonal(self) -> Iterator[Part]:
        """The parts that begin on the diagonal."""
        for group in self.groups:
            yield Part(group if self.is_tiled else slice(group.start, self.edges[-1]), group)

    def words_below(self, down: int, across: int, *, is_full: bool) -> int:
        """Return the number of elements, in chunks of this shape, of the parts below the diagonal.

        With `is_full`, the elements of the triangle above are included.
        """
        if not self.is_tiled:
            return 0
        sizes = [group.stop - group.start for group in self.groups]
        high = [-(-group.stop // down) * down - group.start for group in self.groups]
        wide = [-(-group.stop // across) * across - group.start for group in self.groups]
        left = zip(accumulate(wide, initial=0), accumulate(sizes, initial=0), strict=True)
        return sum(
            below * columns + right * rows * is_full
            for (columns, rows), below, right in zip(left, high, wide, strict=False)
        )


@functools.lru_cache(maxsize=64)
def layouts_of(parts: Parts, A: RowLayout) -> dict[RowLayout, int]:
    """Return the columns of A that the parts on the diagonal need, with their counts.

    One layout represents all layouts of the same size.
    """
    kinds = Counter(
        (part.rows.stop - part.rows.start, part.rows.start % A.grains.columns)
        for part in parts.on_diagonal
    )
    found: dict[tuple[int, int], RowLayout] = {}
    counted: Counter[RowLayout] = Counter()
    for (columns, skip), count in kinds.items():
        layout = A.narrowed(skip, skip + columns)
        counted[found.setdefault((columns, layout.width), layout)] += count
    return counted


@functools.lru_cache(maxsize=64)
def largest_shape(parts: Parts, unit: int) -> tuple[int, int]:
    """Return rows and columns of the largest part, in whole units."""
    some = islice(parts.on_diagonal, 1) if parts.is_tiled else parts.on_diagonal
    return max((part.shape(unit) for part in some), key=math.prod)


def slabs(n: int, words: int, unit: int) -> Parts | None:
    """Return slabs of columns from the diagonal down; `None` if not even a narrow one fits."""
    edges = [0]
    while edges[-1] < n:
        height = -(-(n - edges[-1]) // unit) * unit
        width = words // height // unit * unit
        if width == 0:
            return None
        edges.append(min(edges[-1] + width, n))
    return Parts(tuple(edges))


def tiles(n: int, words: int, unit: int) -> Parts | None:
    """Return square tiles on and below the diagonal; `None` if not even small ones fit."""
    side = math.isqrt(words) // unit * unit
    return Parts((*range(0, n, side), n), is_tiled=side < n) if side else None
