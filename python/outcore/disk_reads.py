"""How what is read of an array grows on its way from the disk."""

from typing import NamedTuple


class DiskReads(NamedTuple):
    """How reads of a disk, or of a pool, grow.

    Attributes
    ----------
    gap_bytes
        A gap of at most so many bytes, and of a quarter of a buffer, is read with what lies around
        it.
    block_bytes
        What goes through a buffer begins and ends on a block of so many.
    """

    gap_bytes: int = 128 << 10
    block_bytes: int = 512

    def whole_blocks(self, start: int, nbytes: int) -> int:
        """Bytes of the blocks that hold `nbytes` from `start` on."""
        block = self.block_bytes
        return -(-(start + nbytes) // block) * block - start // block * block
