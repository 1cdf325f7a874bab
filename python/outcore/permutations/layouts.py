"""The order of an array's elements on disk, as bits of an address."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from outcore._util.streams import Box
from outcore.permutations import gf2
from outcore.permutations.gf2 import Addresses, Matrix


def is_power_of_2(n: int) -> bool:
    """Whether a count is a power of two, 1 included."""
    return n > 0 and n & (n - 1) == 0


def bits_of(n: int) -> int:
    """Return the logarithm of a power of two."""
    return n.bit_length() - 1


@dataclass(frozen=True)
class Layout:
    """Addresses of the elements of an array, chunk by chunk; all extents are powers of two.

    Attributes
    ----------
    shape
        Extents of the array.
    places
        For each bit of an address, lowest first: its dimension, and its bit of that index.
    block_bits
        Logarithm of the largest run of addresses that is a box of the array.
    order
        Order of the elements of a box in memory.
    """

    shape: tuple[int, ...]
    places: tuple[tuple[int, int], ...]
    block_bits: int
    order: Literal["C", "F"]

    @classmethod
    def of(cls, shape: Sequence[int], chunks: Sequence[int], order: str) -> "Layout | None":
        """Return the layout of an array; `None` if an extent is no power of two.

        A vector has one run of addresses, whatever its chunks.
        """
        inner = tuple(shape) if len(shape) == 1 else tuple(map(min, chunks, shape))
        if not all(map(is_power_of_2, [*shape, *inner])):
            return None
        fast_to_slow = range(len(shape)) if order == "F" else range(len(shape))[::-1]
        places = [(d, t) for d in fast_to_slow for t in range(bits_of(inner[d]))]
        places += [
            (d, t) for d in fast_to_slow for t in range(bits_of(inner[d]), bits_of(shape[d]))
        ]
        block_bits = bits_of(math.prod(inner))
        return cls(tuple(shape), tuple(places), block_bits, "F" if order == "F" else "C")

    @property
    def bits(self) -> int:
        """Number of bits of an address."""
        return len(self.places)

    def from_index(self) -> Matrix:
        """Return the matrix that takes the index in C order to the address."""
        column = {place: 1 << i for i, place in enumerate(self.places)}
        return tuple(column[place] for place in index_places(self.shape))

    def address_of(self, index: int) -> int:
        """Return the address of an index in C order."""
        return gf2.times(self.from_index(), index)

    def boxes(self, addresses: Addresses, run_bits: int) -> Iterator[Box]:
        """Yield the boxes of runs of ``2 ** run_bits`` elements that begin at some addresses."""
        extents = self.extents(run_bits)
        starts = [0 * addresses for _ in self.shape]
        for i, (d, t) in enumerate(self.places):
            starts[d] |= (addresses >> i & 1) << t
        for start in zip(*(each.tolist() for each in starts), strict=True):
            yield tuple(slice(a, a + n) for a, n in zip(start, extents, strict=True))

    def extents(self, run_bits: int) -> tuple[int, ...]:
        """Return the extents of the box of such a run."""
        return tuple(
            math.prod(2 for place in self.places[:run_bits] if place[0] == d)
            for d in range(len(self.shape))
        )


def index_places(shape: Sequence[int]) -> list[tuple[int, int]]:
    """Return the dimension and the bit of each bit of an index in C order, lowest first."""
    return [(d, t) for d in range(len(shape))[::-1] for t in range(bits_of(shape[d]))]


def address_matrix(source: Layout, target: Layout, matrix: Matrix) -> Matrix:
    """Return the matrix that takes addresses in one layout to those in another."""
    return gf2.product(target.from_index(), gf2.product(matrix, gf2.inverse(source.from_index())))
