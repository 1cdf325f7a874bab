"""The blocks, loads and passes of a permutation, within a budget."""

from collections.abc import Iterator
from dataclasses import dataclass

from outcore._util.budget import too_small
from outcore.permutations.factors import Loads, factors, passes_of
from outcore.permutations.gf2 import Matrix
from outcore.permutations.layouts import bits_of
from outcore.permutations.shuffle import PAGE_BYTES, scratch_bytes

LEAST_REQUEST_BYTES = 256 << 10
"""Smallest request of a pass, if the array and its chunks are not smaller."""

MOST_REQUEST_BYTES = 4 << 20
_ENOUGH_LOADS = 16
"""With more loads, the first read and the last write, which overlap with no move, hardly count."""

_LEAST_BOUNCE_BYTES, _MOST_BOUNCE_BYTES = 64 << 10, 4 << 20


@dataclass(frozen=True)
class Geometry:
    """The blocks and loads of a permutation, and its passes.

    Attributes
    ----------
    itemsize
        Bytes of an element.
    block_bits, load_bits
        Logarithms of the elements in a block, which is read and written whole, and in a load.
    most_block_bits
        Logarithm of the longest run of addresses that is a box of both arrays.
    buffers
        Loads in memory: one before the move and one after it; and a third, if it fits, to move
        one load while the disk transfers others.
    bounce_bytes
        Bounce buffers of each of two files.
    passes
        The loads of each pass.
    """

    itemsize: int
    block_bits: int
    load_bits: int
    most_block_bits: int
    buffers: int
    bounce_bytes: int
    passes: tuple[Loads, ...]

    @property
    def memory_bytes(self) -> int:
        """Memory of the call."""
        return _memory_bytes(self.load_bits, self.itemsize, self.buffers, self.bounce_bytes)

    @property
    def nbytes(self) -> int:
        """Bytes of the array, which each pass reads and writes."""
        return self.itemsize << len(self.passes[0].matrix)

    def request_bits(self, number: int) -> tuple[int, int]:
        """Return the logarithms of the elements in each read and in each write of a pass."""
        most = min(bits_of(MOST_REQUEST_BYTES // self.itemsize), self.most_block_bits)
        most = max(most, self.block_bits)
        read, written = self.passes[number].run_bits
        return min(read, most), min(written, most)

    @property
    def runs_written(self) -> int:
        """Number of runs of addresses that all passes write."""
        bits = len(self.passes[0].matrix)
        return sum(1 << bits - self.request_bits(i)[1] for i in range(len(self.passes)))


def geometry_of(
    matrix: Matrix,
    complement: int,
    most_block_bits: int,
    itemsize: int,
    memory_bytes: int,
    steps: tuple[int, int] | None = None,
) -> Geometry:
    """Choose blocks and loads: the fewest passes, then overlap, then the largest.

    Parameters
    ----------
    matrix, complement
        The permutation of addresses.
    most_block_bits
        Logarithm of the largest block.
    itemsize
        Bytes of an element.
    memory_bytes
        The budget.
    steps
        Bits of a block and of a load of a stopped call, if one is resumed.

    Raises
    ------
    BudgetError
        If the smallest loads, or those of `steps`, do not fit.
    """
    bits = len(matrix)
    bounce_bytes = min(max(memory_bytes // 16, _LEAST_BOUNCE_BYTES), _MOST_BOUNCE_BYTES)
    bounce_bytes = bounce_bytes // PAGE_BYTES * PAGE_BYTES
    least = max(bits_of(LEAST_REQUEST_BYTES // itemsize), 0)
    least = min(least, most_block_bits, bits)
    most = min(max(bits_of(MOST_REQUEST_BYTES // itemsize), least), most_block_bits)

    def choices(bounce_bytes: int) -> Iterator[tuple[int, int, int, int, int, int]]:
        """Yield choices: passes, overlap, block, load, buffers, bounce; the least is best."""
        sizes = [(b, m) for m in range(least, bits + 1) for b in range(least, min(m, most) + 1)]
        for block_bits, load_bits in [steps] if steps else sizes:
            count = passes_of(matrix, block_bits, load_bits)
            if count is None:
                continue
            loads = 1 << bits - load_bits
            for buffers in (3, 2) if loads > 1 else (2,):
                if _memory_bytes(load_bits, itemsize, buffers, bounce_bytes) <= memory_bytes:
                    overlap = min(loads, _ENOUGH_LOADS) if buffers == 3 else 1
                    yield count, -overlap, -block_bits, -load_bits, buffers, bounce_bytes

    found = [*choices(bounce_bytes)] or [*choices(_LEAST_BOUNCE_BYTES)]
    if not found:
        need_bits = steps[1] if steps else least + (passes_of(matrix, least, least) is None)
        raise too_small(
            _memory_bytes(need_bits, itemsize, 2, _LEAST_BOUNCE_BYTES), memory_bytes,
            f"a load of {itemsize << need_bits} bytes, twice",
        )  # fmt: skip
    _, _, less_block_bits, less_load_bits, buffers, bounce_bytes = min(found)
    block_bits, load_bits = -less_block_bits, -less_load_bits
    each = factors(matrix, block_bits, load_bits)
    added = [0] * (len(each) - 1) + [complement]
    passes = tuple(
        Loads.of(factor, c, block_bits, load_bits) for factor, c in zip(each, added, strict=True)
    )
    return Geometry(itemsize, block_bits, load_bits, most_block_bits, buffers, bounce_bytes, passes)


def _memory_bytes(load_bits: int, itemsize: int, buffers: int, bounce_bytes: int) -> int:
    load = -(-(itemsize << load_bits) // PAGE_BYTES) * PAGE_BYTES
    return buffers * load + scratch_bytes(load_bits, itemsize) + 2 * bounce_bytes
