"""The geometry of out-of-core Cholesky: the memory, the transfers and the order of use."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore.layout.zarr_format import SLOT_ALIGN_BYTES, tile_shape
from outcore.linalg._cholesky.cuts import SlabCut
from outcore.linalg._geometry.deal import ALONE, Deal
from outcore.linalg._geometry.factor_plan import TILE_BOUNCE_BYTES, Slab, even_blocks
from outcore.linalg._geometry.geometry import Tiled

ROUNDING_BYTES = 8 << 10
"""Additional bytes of a read at the edges of disk blocks."""

_MOST_GAP_BYTES = 128 << 10
"""The largest gap that a read includes."""


@dataclass(frozen=True)
class Part:
    """Rows of a slab that are in memory together: all from its diagonal down, or a square block.

    Attributes
    ----------
    slab
        The columns of the part.
    tiles
        The rows of the part, in tiles.
    is_first, is_last
        Whether the part holds the diagonal, and the last row.
    """

    slab: Slab
    tiles: range
    is_first: bool
    is_last: bool

    @property
    def panels(self) -> range:
        """The slab's panels."""
        return range(self.slab.first, self.slab.last)


@dataclass(frozen=True)
class CholeskyGeometry(Tiled):
    """Cuts of a matrix of order `n` for left-looking Cholesky within a budget.

    L is stored in tiles of ``rows`` x ``columns`` elements, only on and below the diagonal. A
    *panel* is a column of tiles. A *block* is ``block_tiles`` tiles below each other: rows of L are
    read block by block.

    A *slab* is some panels from their diagonal down. Memory holds the whole slab or, if few whole
    columns would fit, one *part* of it at a time. Parts are roughly square blocks. The panels of a
    first part that begin in the same ``group_tiles`` tiles form a *group*. In memory they have all
    rows from the first of these tiles down. Other parts are one group.

    A part lies in memory in *pieces*, each of which is a matrix. Pieces at the diagonal are the
    ends of groups. Pieces below combine rows of several groups, since large products are faster.

    If several processes divide the panels of a slab, each panel is a group and a piece, and memory
    holds slabs whole.

    Attributes
    ----------
    ring_blocks
        Number of blocks of L that are in use or on their way.
    cuts
        For each panel, the cut of a slab that begins with it.
    slab_bytes
        Memory of the largest part of those slabs, on this process.
    deal
        The panels of this process.
    """

    n: int
    dtype: np.dtype[Any]
    rows: int
    columns: int
    group_tiles: int
    block_tiles: int
    ring_blocks: int
    cuts: tuple[SlabCut, ...]
    slab_bytes: int
    bounce_bytes: int
    budget_bytes: int
    deal: Deal = ALONE

    @property
    def tile_bytes(self) -> int:
        """Bytes of a tile."""
        return self.rows * self.columns * self.dtype.itemsize

    @property
    def block_bytes(self) -> int:
        """Bytes of a block in memory: whole pages, even if the tiles of an old file are not."""
        pages = -(-self.block_tiles * self.tile_bytes // SLOT_ALIGN_BYTES)
        return pages * SLOT_ALIGN_BYTES

    @property
    def read_bytes(self) -> int:
        """Bytes of the blocks of L that this process reads. One of several also sends a block."""
        return (self.ring_blocks + (self.deal.size > 1)) * self.block_bytes

    @property
    def ring_bytes(self) -> int:
        """Bytes of the blocks of L in memory: read ones, and those of other processes."""
        received = self.ring_blocks if self.deal.size > 1 else 0
        return self.read_bytes + received * self.block_bytes

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the factorization takes from its arena."""
        beside = self.bounce_bytes + TILE_BOUNCE_BYTES
        return self.slab_bytes + self.ring_bytes + beside

    @property
    def slab_panels(self) -> int:
        """Panels of the widest slab."""
        return max(cut.end - first for first, cut in enumerate(self.cuts))

    @property
    def method(self) -> str:
        """Description of the method, for users."""
        slabs = self.slabs()
        widths = [(slab.last - slab.first) * self.columns for slab in slabs]
        in_parts = [len(self.cuts[slab.first].edges) > 1 for slab in slabs]
        whole = [width for width, divided in zip(widths, in_parts, strict=True) if not divided]
        square = [width for width, divided in zip(widths, in_parts, strict=True) if divided]
        tiles = f"tiles of {self.rows} x {self.columns}"
        if self.deal.size > 1:
            tiles += f", dealt to {self.deal.size} processes"
        if not square:
            return f"{len(whole)} slabs of up to {max(whole)} columns, {tiles}"
        return (
            f"{len(square)} slabs in square blocks of up to {max(square)} columns, {len(whole)} "
            f"whole slabs of up to {max(whole)} columns, {tiles}"
        )

    def first_tile(self, panel: int) -> int:
        """Tile of a panel that holds its diagonal block."""
        return panel * self.columns // self.rows

    def last_tile(self, slab: Slab) -> int:
        """Tile after the tile that holds a slab's last diagonal block."""
        return math.ceil(slab.last * self.columns / self.rows)

    def slabs(self, first_panel: int = 0) -> list[Slab]:
        """Cut the panels from `first_panel` on into slabs.

        From the first of these slabs that an undisturbed run also has, a resumed run has the same
        slabs as that run.
        """
        edges = self._slab_edges(first_panel)
        return [Slab(first, end) for first, end in itertools.pairwise(edges)]

    def _slab_edges(self, first_panel: int) -> list[int]:
        """Panels with which slabs begin, and the number of panels."""
        found, panels = [first_panel], self.panels
        while found[-1] < panels:
            found.append(self.cuts[found[-1]].end)
        return found

    def parts(self, slab: Slab) -> list[Part]:
        """Cut the rows of a slab into parts that fit in memory."""
        edges = [self.first_tile(slab.first), *self.cuts[slab.first].edges]
        return [
            Part(slab, range(a, b), a == edges[0], b == self.tiles)
            for a, b in itertools.pairwise(edges)
        ]

    def rows_of(self, part: Part, panel: int) -> slice:
        """Rows of a panel's part, from the diagonal down."""
        top = max(part.tiles.start * self.rows, panel * self.columns)
        return slice(top, min(part.tiles.stop * self.rows, self.n))

    def groups(self, part: Part) -> list[range]:
        """Cut a part's panels into groups."""
        first, last = part.slab.first, part.slab.last
        step = self.group_tiles * self.rows // self.columns
        # If a slab begins within a tile, its first group is narrower.
        start = self.first_tile(first) * self.rows // self.columns
        inner = range(start + step, last, step) if part.is_first else ()
        return [range(a, b) for a, b in itertools.pairwise([first, *inner, last])]

    def group_top(self, part: Part, group: range) -> int:
        """First tile of a group."""
        return self.first_tile(group[0]) if part.is_first else part.tiles.start

    def pieces(self, part: Part, chunk_rows: int = 0) -> Iterator[tuple[range, range]]:
        """Cut a part into pieces: (panels, tiles). The pieces of a panel come from the top down.

        A piece below another begins at the end of a chunk of the matrix, so that chunks are read
        whole. Chunks have `chunk_rows` rows; 0 stands for the default height.
        """
        if self.deal.size > 1:
            return (
                (range(K, K + 1), range(self.first_tile(K), part.tiles.stop))
                for K in self.deal.held(*part.slab)
            )
        chunk_rows = chunk_rows or tile_shape(self.n, self.dtype.itemsize)[0]
        return self._pieces(part, self.groups(part), part.tiles.stop, chunk_rows)

    def _pieces(
        self, part: Part, groups: list[range], stop: int, chunk_rows: int
    ) -> Iterator[tuple[range, range]]:
        """Cut groups down to tile `stop`: rows below all diagonals at once, the rest in halves.

        The halves meet between chunks if possible, since the rows below begin with a chunk. The
        boundary is as near the middle as that allows, preferably to its right, so that the piece
        below is wide.
        """
        first, last = groups[0][0], groups[-1][-1] + 1
        if len(groups) == 1:
            yield groups[0], range(self.group_top(part, groups[0]), stop)
            return
        diagonal_rows = -(-self.extent(last - 1)[1] // chunk_rows) * chunk_rows
        below = -(-diagonal_rows // self.rows)
        if below < stop and chunk_rows % self.rows == 0:
            yield from self._pieces(part, groups, below, chunk_rows)
            yield range(first, last), range(below, stop)
            return
        tops = [self.group_top(part, group) * self.rows for group in groups]
        half = min(
            range(1, len(groups)),
            key=lambda i: (tops[i] % chunk_rows > 0, 2 * i < len(groups), abs(2 * i - len(groups))),
        )
        yield from self._pieces(part, groups[:half], stop, chunk_rows)
        yield from self._pieces(part, groups[half:], stop, chunk_rows)

    def blocks(self, part: Part, panel: int) -> list[range]:
        """Cut the rows of an earlier panel of L, or one of the slab, that a part needs into blocks.

        A part needs the rows of an earlier panel beside its columns, and its own rows. If it
        lies below the diagonal, it also needs panels of its own slab: their rows on and below the
        diagonal of the first part. Other processes need the rows below the diagonal of a panel of
        the slab.
        """
        beside = self.beside(part)
        if panel >= part.slab.first and part.is_first:
            top = self.extent(panel)[1] // self.rows
            return self._whole_blocks(range(top, part.tiles.stop), range(top, beside.stop))
        if panel >= part.slab.first:
            return self._blocks(range(self.first_tile(panel), beside.stop))
        if not part.is_first:
            return [*self._blocks(beside), *even_blocks(part.tiles, self.block_tiles)]
        return self._whole_blocks(part.tiles, beside)

    def _whole_blocks(self, tiles: range, beside: range) -> list[range]:
        """Cut the rows of a panel into blocks; it lies left of a first part, or in it."""
        # Blocks beside the columns are full, so that there are few of them.
        whole = len(self._blocks(beside)) * self.block_tiles
        if whole < len(tiles):
            below = even_blocks(tiles[whole:], self.block_tiles)
            return [*self._blocks(tiles[:whole]), *below]
        # All blocks are beside the columns. The blocks after the first are full, so that they begin
        # with chunks of A if possible, where pieces meet. No group is split between two blocks.
        first = (len(tiles) - 1) % self.block_tiles + 1
        first = -(-first // self.group_tiles) * self.group_tiles
        return [tiles[:first], *self._blocks(tiles[first:])]

    def beside(self, part: Part) -> range:
        """Tiles of an earlier panel with the rows beside a slab's columns."""
        return range(self.first_tile(part.slab.first), self.last_tile(part.slab))

    def _blocks(self, tiles: range) -> list[range]:
        edges = range(tiles.start, tiles.stop, self.block_tiles)
        return [range(a, b) for a, b in itertools.pairwise([*edges, tiles.stop])]

    def factor_bytes_read(self, first_panel: int = 0) -> int:
        """Bytes of L that a run from `first_panel` on reads back. Exact."""
        edges = np.array(self._slab_edges(first_panel))
        first, last = edges[:-1], edges[1:]
        top, beside = first * self.columns // self.rows, -(-last * self.columns // self.rows)
        below = np.array([len(self.cuts[panel].edges) - 1 for panel in first.tolist()], np.int64)
        held = np.array([self.deal.number(0, panel) for panel in first.tolist()], np.int64)
        tiles = held * (self.tiles - top) + below * first * (beside - top)
        above = np.cumsum([0, *self._first_tiles(0)])
        tiles += below * ((last - first) * beside - (above[last] - above[first]))
        return int(tiles.sum()) * self.tile_bytes

    def _first_tiles(self, first_panel: int) -> np.ndarray:
        """Tiles with the diagonal blocks of the panels from `first_panel` on."""
        return np.arange(first_panel, self.panels) * self.columns // self.rows

    def stored_tiles(self, first_panel: int = 0) -> int:
        """Tiles of L from `first_panel` on."""
        return int((self.tiles - self._first_tiles(first_panel)).sum())

    def factor_bytes_written(self, first_panel: int = 0) -> int:
        """Bytes of L that a run from `first_panel` on writes. Exact."""
        held = self.deal.held(first_panel, self.panels)
        return sum(self.tiles - self.first_tile(panel) for panel in held) * self.tile_bytes

    def sent(self, first_panel: int = 0) -> tuple[int, int]:
        """Bytes and messages that this process sends in a run from `first_panel` on. Exact."""
        tiles = messages = 0
        for slab in self.slabs(first_panel) if self.deal.size > 1 else []:
            (part,) = self.parts(slab)
            # The panels to the left all have the same rows. Nobody needs the slab's last panel.
            left = self.deal.number(0, slab.first)
            panels = [(0, left)] if left else []
            panels += [(K, 1) for K in self.deal.held(slab.first, slab.last - 1)]
            for panel, times in panels:
                blocks = self.blocks(part, panel)
                tiles += times * sum(map(len, blocks))
                messages += times * len(blocks)
        return tiles * self.tile_bytes, messages

    def matrix_strips(
        self, tiles: range, panels: range, chunk_rows: int
    ) -> Iterator[tuple[slice, slice, int]]:
        """Cut the part of the matrix that panels need, in some tiles, into strips of boxes.

        Yields the rows of a strip, all of its columns, and the number of columns to read at once.
        If a read does not cover all rows of a chunk, it includes the gaps between columns, and as
        many columns as fit in a bounce buffer.
        """
        columns = slice(self.extent(panels[0])[0], self.extent(panels[-1])[1])
        top = max(self.first_tile(panels[0]), tiles.start) * self.rows
        bottom = min(tiles.stop * self.rows, self.n)
        step = self._columns_at_once(chunk_rows)
        whole = min(-(-top // chunk_rows) * chunk_rows, bottom)
        ragged = max(bottom // chunk_rows * chunk_rows, whole)
        if whole < ragged:
            yield slice(whole, ragged), columns, self.n
        for rows in (slice(top, whole), slice(ragged, bottom)):
            if rows.start < rows.stop:
                yield rows, columns, step

    def whole_box(self, tiles: range, panels: range, *, is_padded: bool) -> tuple[slice, slice]:
        """Return the part of a file of whole tiles that panels need in some tiles, as one box."""
        bottom = tiles.stop * self.rows
        rows = slice(
            max(self.first_tile(panels[0]), tiles.start) * self.rows,
            bottom if is_padded else min(bottom, self.n),
        )
        return rows, slice(self.extent(panels[0])[0], self.extent(panels[-1])[1])

    def matrix_bytes_read(self, first_panel: int = 0, chunk_rows: int = 0) -> int:
        """Estimate the bytes read of A in order F, in chunks of `chunk_rows` rows (0: by default).

        `TriangleLoads` computes the exact number for any A.
        """
        chunk_rows = chunk_rows or tile_shape(self.n, self.dtype.itemsize)[0]
        edges = itertools.pairwise(self._slab_edges(first_panel))
        slabs = [(last - first, self.cuts[first].edges) for first, last in edges]
        # In a first part, each panel has its own rows.
        bottom = np.repeat([tiles[0] for _, tiles in slabs], [panels for panels, _ in slabs])
        k = np.minimum(self.n - np.arange(first_panel, self.panels) * self.columns, self.columns)
        read = self._columns_read(self._first_tiles(first_panel), bottom, k, chunk_rows)
        total = read[
            np.array(self.deal.held(first_panel, self.panels), np.intp) - first_panel
        ].sum()
        # In a part below the diagonal, all panels have the same rows.
        below = [(*tiles, panels) for panels, cut in slabs for tiles in itertools.pairwise(cut)]
        top, bottom, panels = np.array(below, np.int64).reshape(-1, 3).T
        k = np.full(len(panels), self.columns)
        total += panels @ self._columns_read(top, bottom, k, chunk_rows)
        return int(total) * self.dtype.itemsize

    def _columns_at_once(self, chunk_rows: int) -> int:
        """Columns of a box whose read includes the gaps between them."""
        return max((self.bounce_bytes - ROUNDING_BYTES) // (chunk_rows * self.dtype.itemsize), 1)

    def _columns_read(
        self, top: np.ndarray, bottom: np.ndarray, k: np.ndarray, chunk_rows: int
    ) -> np.ndarray:
        """Elements read for `k` columns between two tiles, with the cuts of `matrix_strips`."""
        top, bottom = top * self.rows, np.minimum(bottom * self.rows, self.n)
        whole = np.minimum(-(-top // chunk_rows) * chunk_rows, bottom)
        ragged = np.maximum(bottom // chunk_rows * chunk_rows, whole)
        # The number of gaps between columns, over all boxes.
        gaps = k - -(-k // self._columns_at_once(chunk_rows))
        total: np.ndarray = (bottom - top) * k
        for rows in (whole - top, bottom - ragged):
            gap = -rows % chunk_rows
            total += gap * gaps * (gap * self.dtype.itemsize <= _MOST_GAP_BYTES)
        return total

    def words_lower_bound(self) -> float:
        """Words that any algorithm must move.

        It reads n³/(3√2 √M) (Beaumont et al. 2022), but at least n²/2, and writes n²/2.
        """
        memory_words = self.budget_bytes / self.dtype.itemsize
        reads = max(self.n**3 / (3 * math.sqrt(2 * memory_words)), self.n**2 / 2)
        return reads + self.n**2 / 2
