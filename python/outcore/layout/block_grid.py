"""Blocks and superblocks: their positions in an array and in the memory of a buffer."""

import itertools
import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore._util.counts import is_count
from outcore.errors import InvalidError

Coordinates: TypeAlias = tuple[int, ...]
Memory: TypeAlias = npt.NDArray[np.uint8]

PAGE_BYTES = 4096
"""Separate blocks in a buffer start on pages, so that direct I/O can use their memory."""


@dataclass(frozen=True)
class BlockGrid:
    """An array in blocks, and the blocks in superblocks (Cettei et al. 1997, fig. 4).

    ``shape`` is in elements, ``block`` in elements, ``superblock`` in blocks. Blocks and
    superblocks at the end of a dimension may be smaller.
    """

    shape: Coordinates
    block: Coordinates
    superblock: Coordinates

    @classmethod
    def of(
        cls,
        shape: Coordinates,
        block: Sequence[int] | int,
        superblock: Sequence[int] | int | None = None,
    ) -> "BlockGrid":
        """Build the grid from a user's sizes; limit each size to the array's extent."""
        extents = sizes("block", block, len(shape))
        extents = tuple(min(b, n) for b, n in zip(extents, shape, strict=True))
        counts = tuple(math.ceil(n / b) for n, b in zip(shape, extents, strict=True))
        factors = sizes("superblock", 1 if superblock is None else superblock, len(shape))
        factors = tuple(min(f, n) for f, n in zip(factors, counts, strict=True))
        return cls(shape, extents, factors)

    @property
    def counts(self) -> Coordinates:
        """Blocks along each dimension."""
        return tuple(math.ceil(n / b) for n, b in zip(self.shape, self.block, strict=True))

    @property
    def superblocks(self) -> Coordinates:
        """Superblocks along each dimension."""
        return tuple(math.ceil(n / f) for n, f in zip(self.counts, self.superblock, strict=True))

    def block_shape(self, at: Coordinates) -> Coordinates:
        """Elements of a block along each dimension; fewer at the end of the array."""
        return tuple(min(b, n - i * b) for i, b, n in zip(at, self.block, self.shape, strict=True))

    def block_start(self, at: Coordinates) -> Coordinates:
        """Index of the first element of a block."""
        return tuple(i * b for i, b in zip(at, self.block, strict=True))

    def superblock_of(self, at: Coordinates) -> Coordinates:
        """Coordinates of the superblock that holds a block."""
        return tuple(i // f for i, f in zip(at, self.superblock, strict=True))

    def blocks_of(self, superblock: Coordinates) -> Iterator[Coordinates]:
        """Coordinates of the blocks of a superblock, in row-major order."""
        return itertools.product(
            *(
                range(i * f, min((i + 1) * f, n))
                for i, f, n in zip(superblock, self.superblock, self.counts, strict=True)
            )
        )

    def superblock_start(self, superblock: Coordinates) -> Coordinates:
        """Index of the first element of a superblock."""
        first = tuple(i * f for i, f in zip(superblock, self.superblock, strict=True))
        return self.block_start(first)

    def superblock_shape(self, superblock: Coordinates) -> Coordinates:
        """Elements of a superblock along each dimension."""
        whole = (f * b for f, b in zip(self.superblock, self.block, strict=True))
        start = self.superblock_start(superblock)
        return tuple(min(w, n - a) for w, n, a in zip(whole, self.shape, start, strict=True))


def sizes(name: str, given: Sequence[int] | int, dims: int) -> Coordinates:
    """Return one size per dimension; a single number stands for all of them."""
    many: tuple[Any, ...] = (given,) * dims
    if isinstance(given, Sequence | np.ndarray):
        many = tuple(given)
    if len(many) != dims or not all(map(is_count, many)):
        raise InvalidError(
            f"need {dims} integers of at least 1 for {name}, one a dimension, have {given!r}"
        )
    return tuple(int(n) for n in many)


@dataclass(frozen=True)
class Arrangement:
    """Positions of a superblock's blocks in the memory of its buffer.

    With ``by_block`` the blocks lie one after another, each contiguous from the start of a page.
    Then direct I/O reads blocks made of whole chunks without a copy. Otherwise the superblock is
    one array, and the blocks are parts of it. Then blocks that cut chunks share transfers.
    """

    grid: BlockGrid
    dtype: np.dtype[Any]
    order: Literal["C", "F"]
    by_block: bool

    @property
    def block_bytes(self) -> int:
        """Bytes from one block to the next, if they lie one after another."""
        return math.ceil(self.nbytes(self.grid.block) / PAGE_BYTES) * PAGE_BYTES

    @property
    def buffer_bytes(self) -> int:
        """Bytes of a buffer for the largest superblock, in whole pages."""
        if self.by_block:
            return math.prod(self.grid.superblock) * self.block_bytes
        first = self.grid.superblock_shape((0,) * len(self.grid.shape))
        return math.ceil(self.nbytes(first) / PAGE_BYTES) * PAGE_BYTES

    def nbytes(self, shape: Coordinates) -> int:
        """Bytes of an array of this shape."""
        return math.prod(shape) * self.dtype.itemsize

    def block(self, at: Coordinates, memory: Memory) -> npt.NDArray[Any]:
        """View a block in the memory of its superblock."""
        grid = self.grid
        if not self.by_block:
            superblock = grid.superblock_of(at)
            return self._whole(superblock, memory)[self._within(superblock, at)]
        number = 0
        for i, f in zip(at, grid.superblock, strict=True):
            number = number * f + i % f
        return self._array(grid.block_shape(at), memory, number * self.block_bytes)

    def parts(
        self,
        superblock: Coordinates,
        memory: Memory,
        blocks: Collection[Coordinates] | None = None,
    ) -> list[tuple[Coordinates, npt.NDArray[Any]]]:
        """Return the arrays of a superblock or some of its blocks, each with its first index."""
        every = list(self.grid.blocks_of(superblock))
        if self.by_block or (blocks is not None and len(blocks) < len(every)):
            chosen = every if blocks is None else sorted(blocks)
            return [(self.grid.block_start(at), self.block(at, memory)) for at in chosen]
        return [(self.grid.superblock_start(superblock), self._whole(superblock, memory))]

    def _whole(self, superblock: Coordinates, memory: Memory) -> npt.NDArray[Any]:
        return self._array(self.grid.superblock_shape(superblock), memory, 0)

    def _within(self, superblock: Coordinates, at: Coordinates) -> tuple[slice, ...]:
        first = self.grid.superblock_start(superblock)
        start, shape = self.grid.block_start(at), self.grid.block_shape(at)
        return tuple(slice(a - f, a - f + n) for a, f, n in zip(start, first, shape, strict=True))

    def _array(self, shape: Coordinates, memory: Memory, offset: int) -> npt.NDArray[Any]:
        # A view of the memory's own buffer keeps only `memory` alive.
        return np.ndarray(shape, self.dtype, buffer=memory.data, offset=offset, order=self.order)
