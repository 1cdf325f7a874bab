"""The cuts of a matrix product, and the words that they move. Pure arithmetic."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._products.piece_counts import dealt_bytes, pieces_in_memory, shared_bytes
from outcore.linalg._tiles.cost import Phase, flop_weight
from outcore.linalg._tiles.grains import Grains, bounce_bytes, cut
from outcore.linalg._tiles.pitch import matrix_bytes

PARTS = 4
"""Number of parts of a piece that is as long as a block of C, when C becomes final."""

Name: TypeAlias = Literal["A", "B"]
Extent: TypeAlias = tuple[slice, slice]


def flops(m: int, n: int, k: int, dtype: np.dtype[Any]) -> float:
    """Real operations of a product of m x k by k x n: 2 m n k, four times that for complex."""
    return flop_weight(dtype) * 2.0 * m * n * k


@dataclass(frozen=True)
class Product:
    """C = op(A) op(B) for the plan: C is m x n, the inner length is k.

    Attributes
    ----------
    m, n, k, dtype
        Sizes and element type.
    a, b
        Grains of op(A) and op(B).
    shape
        Shape of C: (m, n), or one of them if an operand is a vector.
    is_stored
        Whether C is written to disk.
    copy_bytes
        Memory for copies of operands that the BLAS cannot use directly.
    """

    m: int
    n: int
    k: int
    dtype: np.dtype[Any]
    a: Grains
    b: Grains
    shape: tuple[int, ...]
    is_stored: bool
    copy_bytes: int = 0

    def grains(self, name: Name) -> Grains:
        """Grains of an operand: (along C, along the inner length)."""
        return self.a if name == "A" else self.b.transposed()

    def length(self, name: Name) -> int:
        """Rows of op(A), or columns of op(B)."""
        return self.m if name == "A" else self.n


@dataclass(frozen=True)
class MatmulGeometry:
    """Cuts of a product.

    C is computed in *blocks* of ``rows`` x ``columns``, each of which stays in memory until it is
    complete. A *slab* of one operand, ``depth`` deep, is held while *pieces* of the other operand
    stream past it.

    Attributes
    ----------
    holds
        Name of the operand that is held.
    tile
        Chunk of C on disk; (1, 1) if C is a vector or in memory.
    size, rank
        Number of processes, and the one whose blocks these are. C is divided along the held
        operand. All processes use the same pieces at the same time, and each reads some of them.
    """

    product: Product
    holds: Name
    rows: int
    columns: int
    depth: int
    piece_length: int
    piece_depth: int
    tile: tuple[int, int]
    budget_bytes: int
    size: int = 1
    rank: int = 0

    @property
    def streams(self) -> Name:
        """Name of the operand that is streamed."""
        return "A" if self.holds == "B" else "B"

    def block_length(self, name: Name) -> int:
        """Rows of a block for A, columns for B."""
        return self.rows if name == "A" else self.columns

    def _edge(self, rank: int) -> int:
        """Return the first row or column of C that a process computes, along the held operand."""
        units = -(-self.product.length(self.holds) // self.unit)
        return min(-(-units * rank // self.size) * self.unit, self.product.length(self.holds))

    @property
    def unit(self) -> int:
        """Rows or columns of C that are not divided along the held operand."""
        return units_of(self.product, self.tile)[self.holds]

    @property
    def own(self) -> slice:
        """Rows or columns of C that this process computes, along the held operand."""
        return slice(self._edge(self.rank), self._edge(self.rank + 1))

    def extent(self, rank: int) -> Extent:
        """Rows and columns of C that a process computes."""
        own, product = slice(self._edge(rank), self._edge(rank + 1)), self.product
        return (own, slice(0, product.n)) if self.holds == "A" else (slice(0, product.m), own)

    @property
    def held_length(self) -> int:
        """The largest number of rows or columns that a process computes."""
        return self._edge(1)

    @property
    def own_flops(self) -> float:
        """Operations of this process."""
        p, own = self.product, self.own.stop - self.own.start
        return flops(p.m, own, p.k, p.dtype) if self.holds == "B" else flops(own, p.n, p.k, p.dtype)

    def blocks(self) -> Iterator[Extent]:
        """Cut C into (rows, columns), in an order in which blocks that share slabs are adjacent.

        All processes have as many blocks; the last ones may be empty.
        """
        own = cut(self.own.start, self.own.stop, self.block_length(self.holds))
        own += [slice(self.own.stop, self.own.stop)] * (self._count(self.holds) - len(own))
        other = cut(0, self.product.length(self.streams), self.block_length(self.streams))
        rows, columns = (other, own) if self.holds == "B" else (own, other)
        if self.holds == "B":
            return ((i, j) for j in columns for i in rows)
        return ((i, j) for i in rows for j in columns)

    def slabs(self) -> list[slice]:
        """Cut the inner length for the held operand."""
        return cut(0, self.product.k, self.depth)

    def lengths(self, block: Extent) -> list[slice]:
        """Cut a block along C into the lengths of pieces.

        Each length is used with all depths of a slab before the next length. So the beginning of C
        is final, and can be written, while the last slab is still in use.
        """
        along = block[self.streams == "B"]
        return cut(along.start, along.stop, self.piece_length)

    @property
    def is_one_piece(self) -> bool:
        """Whether a piece is as long as a block of C, and C a matrix on disk.

        A whole block then becomes final with its last piece. So that it can be written and its
        memory reused step by step, its first and last piece are used in `PARTS` parts.
        """
        is_matrix = self.product.is_stored and len(self.product.shape) == 2
        return is_matrix and self.piece_length >= self.block_length(self.streams)

    @property
    def final_axis(self) -> int:
        """Axis of C along which blocks become final."""
        return int((self.streams == "B") != self.is_one_piece)

    def part(self, block: Extent, along: slice) -> Extent:
        """Return the rows and columns of C that pieces of one length update."""
        return (along, block[1]) if self.streams == "A" else (block[0], along)

    def parts(self, block: Extent, along: slice) -> list[Extent]:
        """Cut `part` for a first or last piece, between chunks of C."""
        if not self.is_one_piece:
            return [self.part(block, along)]
        axis = self.final_axis
        whole, chunk = block[axis], self.tile[axis]
        step = -(-(whole.stop - whole.start) // (chunk * PARTS)) * chunk
        parts = cut(whole.start, whole.stop, step)
        return [(along, part) if axis else (part, along) for part in parts]

    def depths(self, slab: slice) -> list[slice]:
        """Depths of the pieces that begin within a slab. The last may extend into the next slab."""
        first = -(-slab.start // self.piece_depth) * self.piece_depth
        return [
            slice(i, min(i + self.piece_depth, self.product.k))
            for i in range(first, slab.stop, self.piece_depth)
        ]

    def box(self, name: Name, along: slice, depth: slice) -> Extent:
        """Return (rows, columns) of a box in op(A) or op(B)."""
        return (along, depth) if name == "A" else (depth, along)

    @property
    def slab_bytes(self) -> int:
        """Memory of a slab."""
        grains = self.product.grains(self.holds)
        return grains.memory_bytes(self.block_length(self.holds), self.depth)

    @property
    def slab_buffers(self) -> int:
        """Slabs in memory: one in use and one being read, unless the product has only one."""
        is_one = self.block_length(self.holds) >= self.held_length
        return 1 if is_one and self.depth >= self.product.k else 2

    @property
    def piece_bytes(self) -> int:
        """Memory of a piece."""
        grains = self.product.grains(self.streams)
        return grains.memory_bytes(self.piece_length, self.piece_depth)

    @property
    def ring_bytes(self) -> int:
        """Memory of the pieces."""
        return pieces_in_memory(self.size) * self.piece_bytes

    @property
    def block_shape(self) -> tuple[int, int]:
        """Rows and columns of a block in memory: a whole number of chunks high, as on disk."""
        rows = min(self.rows, self.product.m)
        return -(-rows // self.tile[0]) * self.tile[0], min(self.columns, self.product.n)

    @property
    def block_bytes(self) -> int:
        """Memory of a block of C; none if all of C is in memory, which belongs to the caller."""
        if not self.product.is_stored:
            return 0
        return matrix_bytes(*self.block_shape, self.product.dtype.itemsize)

    def bounce_bytes(self, name: str) -> int:
        """Memory for unaligned transfers of A, B or C."""
        product = self.product
        if name == "C":
            is_moved = product.is_stored
            is_aligned = self.tile[0] * product.dtype.itemsize % SLOT_ALIGN_BYTES == 0
        else:
            grains = product.a if name == "A" else product.b
            is_moved, is_aligned = grains.is_on_disk, grains.is_aligned
        return bounce_bytes(self.budget_bytes, is_aligned=is_aligned) if is_moved else 0

    @property
    def memory_bytes(self) -> int:
        """Peak bytes that the product takes from its arena."""
        bounce = sum(self.bounce_bytes(name) for name in "ABC")
        slabs = self.slab_buffers * self.slab_bytes
        return self.block_bytes + slabs + self.ring_bytes + bounce + self.product.copy_bytes

    def bytes_read(self) -> int:
        """Bytes of A and B that this process reads. Exact if chunks are whole pages."""
        return self.held_bytes() + self.streamed()[0]

    def held_bytes(self) -> int:
        times = self._count(self.streams) if self.depth < self.product.k else 1
        own = self.own.stop - self.own.start
        return times * self.product.grains(self.holds).box_bytes(own, self.product.k)

    def streamed_bytes(self) -> int:
        """Bytes that all processes read of the streamed operand."""
        grains, length = self.product.grains(self.streams), self.product.length(self.streams)
        return self._count(self.holds) * grains.box_bytes(length, self.product.k)

    def streamed(self) -> tuple[int, int]:
        """Bytes and pieces that this process reads of the streamed operand.

        It sends them to the other processes. Process p reads every size-th piece from number p on.
        """
        grains, count = self.product.grains(self.streams), self._count(self.holds)
        if self.size == 1 or not grains.is_on_disk:
            return self.streamed_bytes(), 0
        once = [
            grains.box_bytes(along.stop - along.start, depth.stop - depth.start)
            for block in itertools.islice(self.blocks(), self._count(self.streams))
            for along, depth in self.pieces(block)
        ]
        return dealt_bytes(once, count, self.size, self.rank)

    def pieces(self, block: Extent) -> Iterator[Extent]:
        """Yield (along C, depth) of the pieces that a block needs, in the order of their use."""
        for slab in self.slabs():
            for along in self.lengths(block):
                for depth in self.depths(slab):
                    yield along, depth

    def sent(self) -> tuple[int, int]:
        """Bytes and messages that this process sends."""
        is_sent = self.size > 1 and self.product.grains(self.streams).is_on_disk
        nbytes, messages = self.streamed() if is_sent else (0, 0)
        if self.size > 1 and not self.product.is_stored:
            extent, itemsize = self.extent(self.rank), self.product.dtype.itemsize
            of_result = shared_bytes(extent, self.product.m, itemsize)
            nbytes, messages = nbytes + of_result[0], messages + of_result[1]
        return nbytes, messages

    def _count(self, name: Name) -> int:
        length = self.held_length if name == self.holds else self.product.length(name)
        return math.ceil(length / self.block_length(name))

    def bytes_written(self) -> int:
        """Bytes of C that this process writes, with the padding below its last row."""
        if not self.product.is_stored:
            return 0
        own, product = self.own, self.product
        rows = own if self.holds == "A" else slice(0, product.m)
        columns = own.stop - own.start if self.holds == "B" else product.n
        padded = -(-rows.stop // self.tile[0]) * self.tile[0] - rows.start
        return padded * columns * product.dtype.itemsize if own.stop > own.start else 0

    def words_lower_bound(self) -> float:
        """Words that any product must move.

        2mnk/√M are read (Smith et al. 2017, arXiv 1702.02017) if no matrix is in memory, and each
        matrix on disk at least once. C is written.
        """
        p = self.product
        once = p.m * p.k * p.a.is_on_disk + p.k * p.n * p.b.is_on_disk
        many = 2 * p.m * p.n * p.k / math.sqrt(self.budget_bytes / p.dtype.itemsize)
        all_on_disk = p.a.is_on_disk and p.b.is_on_disk and p.is_stored
        return max(many if all_on_disk else 0.0, float(once)) + p.m * p.n * p.is_stored

    def phase(self) -> Phase:
        """Return the bytes moved and the operations."""
        p = self.product
        last = min(self.piece_length, self.block_length(self.streams))
        end = last * min(self.block_length(self.holds), self.held_length) * p.is_stored
        return Phase(
            dtype=p.dtype,
            bytes_read=self.bytes_read(),
            bytes_written=self.bytes_written(),
            flops=self.own_flops,
            ends_read_bytes=self.slab_bytes + self.piece_bytes,
            ends_written_bytes=end * p.dtype.itemsize,
        )

    @property
    def method(self) -> str:
        """Description of the method, for users."""
        return (
            f"{self._count('A')} x {self._count('B')} blocks of {self.rows} x {self.columns}, "
            f"slabs of {self.holds} {min(self.depth, self.product.k)} deep held, "
            f"{self.streams} streamed in pieces of {self.piece_length} x {self.piece_depth}"
            + (f", dealt to {self.size} processes" if self.size > 1 else "")
        )


def units_of(product: Product, tile: tuple[int, int]) -> dict[Name, int]:
    """Units of block lengths along C: blocks end at boundaries of grains and of chunks of C."""
    return {"A": math.lcm(product.a.rows, tile[0]), "B": product.b.columns}
