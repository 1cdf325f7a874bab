"""Grains: the smallest parts of a matrix for reads, in whole pages if its chunks allow that."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

from outcore.layout.zarr_format import SLOT_ALIGN_BYTES


@dataclass(frozen=True)
class Grains:
    """Smallest parts of a matrix for reads: boxes of whole grains read no byte twice.

    A grain is as long as a chunk along the chunk's fast dimension, and along the other one as short
    as whole pages allow.

    Attributes
    ----------
    rows, columns
        Rows and columns of a grain.
    itemsize
        Bytes of an element; 0 for a matrix in memory, which needs no reads.
    is_aligned
        Whether the disk can read directly into the memory of a box.
    computed_itemsize
        Bytes of an element in the type of the arithmetic, if it differs; otherwise 0.
    """

    rows: int = 1
    columns: int = 1
    itemsize: int = 0
    is_aligned: bool = True
    computed_itemsize: int = 0

    @classmethod
    def of(
        cls, chunks: Sequence[int], order: str, itemsize: int, computed_itemsize: int = 0
    ) -> "Grains":
        """Return the grains of a matrix on disk, or of a vector, which is a column."""
        rows, columns = (chunks[0], 1) if len(chunks) == 1 else chunks
        is_row_major = order == "C" and len(chunks) == 2
        fast, slow = (columns, rows) if is_row_major else (rows, columns)
        # This number of runs of the fast dimension ends on a page.
        least = SLOT_ALIGN_BYTES // math.gcd(SLOT_ALIGN_BYTES, fast * itemsize)
        thin = least if slow % least == 0 else slow
        shape = (thin, fast) if is_row_major else (fast, thin)
        is_aligned = fast * itemsize % SLOT_ALIGN_BYTES == 0
        return cls(*shape, itemsize, is_aligned, computed_itemsize)

    @property
    def is_on_disk(self) -> bool:
        """Whether the matrix is read from disk."""
        return self.itemsize > 0

    def transposed(self) -> "Grains":
        """Return the grains of the transpose."""
        return dataclasses.replace(self, rows=self.columns, columns=self.rows)

    def covering(self, rows: int, columns: int) -> tuple[int, int]:
        """Round the size of a box that begins at a grain up to whole grains."""
        return -(-rows // self.rows) * self.rows, -(-columns // self.columns) * self.columns

    def box_bytes(self, rows: int, columns: int) -> int:
        """Return the exact number of bytes read for a box."""
        return math.prod(self.covering(rows, columns)) * self.itemsize

    def memory_bytes(self, rows: int, columns: int) -> int:
        """Return the memory of a box, in whole pages, as it is read and as it is computed with."""
        itemsize = max(self.itemsize, self.computed_itemsize) if self.itemsize else 0
        return pages(math.prod(self.covering(rows, columns)) * itemsize)


def pages(nbytes: int) -> int:
    """Round up to whole pages."""
    return -(-nbytes // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES


def cut(first: int, end: int, step: int) -> list[slice]:
    """Cut a range into parts of equal length; the last one may be shorter."""
    return [slice(i, min(i + step, end)) for i in range(first, end, step)]


BOUNCE_BYTES = (4 * SLOT_ALIGN_BYTES, 4 << 20)
"""Least and most memory for transfers that the disk cannot do in place."""


def bounce_bytes(memory_bytes: int, *, is_aligned: bool) -> int:
    """Return the memory, out of a budget, for transfers that the disk cannot do in place.

    If all are aligned, such transfers occur only on disks that need more than page alignment.
    """
    least, most = BOUNCE_BYTES
    return least if is_aligned else pages(min(most, max(least, memory_bytes // 32)))
