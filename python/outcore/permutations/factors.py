"""Factors of a permutation of addresses, each of which is one pass over the data.

A permutation moves the element at address x to A x + c, where A is a matrix over GF(2) and c a
vector: a bit-matrix-multiply/complement (BMMC) permutation of Cormen, Sundquist and Wisniewski
(1999). ``docs/numerics-permutations.md`` derives the number of passes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outcore.permutations import gf2
from outcore.permutations.gf2 import Addresses, Matrix


def gamma_rank(matrix: Sequence[int], block_bits: int) -> int:
    """Return the rank of the lower left submatrix: the block number by the address in a block."""
    return gf2.rank(column >> block_bits for column in matrix[:block_bits])


def passes_of(matrix: Sequence[int], block_bits: int, load_bits: int) -> int | None:
    """Return the number of passes with such blocks and loads; `None` if no number is enough."""
    rank = gamma_rank(matrix, block_bits)
    if load_bits == len(matrix) or rank == 0:
        return 1
    spare = load_bits - block_bits
    return max(math.ceil(rank / spare), 1) if spare else None


def factors(matrix: Matrix, block_bits: int, load_bits: int) -> list[Matrix]:
    """Factor a matrix into the fewest passes, the first one first.

    A pass takes whole blocks to whole blocks, load by load. E is the span of the addresses in a
    block, F its preimage. A pass moves F closer to E, by at most ``load_bits - block_bits``
    dimensions: it swaps as many vectors of F outside E with vectors of E outside F.
    """
    count = passes_of(matrix, block_bits, load_bits)
    assert count is not None, "the plan has chosen larger loads"
    bits, spare = len(matrix), load_bits - block_bits
    inside = gf2.identity(block_bits)
    found = []
    for _ in range(count - 1):
        before = gf2.inverse(matrix)[:block_bits]
        both = gf2.intersection(inside, before, bits)
        leave = gf2.independent(inside, both)[:spare]
        enter = gf2.independent(before, both)[:spare]
        rest = gf2.independent(gf2.identity(bits), [*leave, *enter, *both])
        kept = [*both, *rest]
        swap = gf2.product([*enter, *leave, *kept], gf2.inverse((*leave, *enter, *kept)))
        found.append(swap)
        matrix = gf2.product(matrix, swap)  # a swap is its own inverse
    return [*found, matrix]


@dataclass(frozen=True)
class Loads:
    """The loads of one pass: sets of whole blocks that move to sets of whole blocks.

    A load is a coset of a span of addresses that contains each address in a block, before and after
    the move. Position p of a load in memory holds the address ``base + source p``. The move takes
    it to position q = ``inner p + shift``, which holds the address ``rest + target q``.

    Attributes
    ----------
    matrix, complement
        The permutation of the pass.
    block_bits, load_bits
        Logarithms of the elements in a block and in a load.
    source, target
        Reduced bases of the span and of its image.
    inner
        The move inside a load.
    """

    matrix: Matrix
    complement: int
    block_bits: int
    load_bits: int
    source: Matrix
    target: Matrix
    inner: Matrix

    @classmethod
    def of(cls, matrix: Matrix, complement: int, block_bits: int, load_bits: int) -> "Loads":
        """Choose loads of a pass. They grow to `load_bits` by the blocks that make runs longer."""
        back = gf2.inverse(matrix)
        blocks = [*gf2.identity(len(matrix))[:block_bits], *back[:block_bits]]
        more = [vector for j in range(block_bits, len(matrix)) for vector in (1 << j, back[j])]
        span = gf2.independent([*blocks, *more])[:load_bits]
        assert gf2.rank([*span, *blocks]) == load_bits, "a load has whole blocks"
        source = tuple(gf2.basis(span))
        images = gf2.product(matrix, source)
        target = tuple(gf2.basis(images))
        inner = tuple(_coordinates(image, target) for image in images)
        return cls(matrix, complement, block_bits, load_bits, source, target, inner)

    @property
    def count(self) -> int:
        """Number of loads."""
        return 1 << len(self.matrix) - self.load_bits

    @property
    def run_bits(self) -> tuple[int, int]:
        """Logarithms of the elements in each run of adjacent addresses, before and after."""
        return _run_bits(self.source), _run_bits(self.target)

    def places(self) -> tuple[Addresses, Addresses, Addresses]:
        """Return `base`, `rest` and `shift` of each load."""
        pivots = {vector.bit_length() - 1 for vector in self.source}
        free = [1 << j for j in range(len(self.matrix)) if j not in pivots]
        base = gf2.times_each(free, np.arange(self.count, dtype=np.int64))
        landing = gf2.times_each(self.matrix, base) ^ self.complement
        shift = np.zeros_like(landing)
        for i, vector in enumerate(self.target):
            shift |= (landing >> vector.bit_length() - 1 & 1) << i
        return base, landing ^ gf2.times_each(self.target, shift), shift


def _coordinates(vector: int, reduced_basis: Sequence[int]) -> int:
    return sum((vector >> each.bit_length() - 1 & 1) << i for i, each in enumerate(reduced_basis))


def _run_bits(reduced_basis: Sequence[int]) -> int:
    bits = 0
    while bits < len(reduced_basis) and reduced_basis[bits] == 1 << bits:
        bits += 1
    return bits
