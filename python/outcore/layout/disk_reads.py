"""Enlargement of array reads to gaps and whole blocks of the disk."""

from typing import NamedTuple

REQUEST_BYTES = 128 << 10
"""A request takes about as long as moving so many bytes. Reads include gaps up to this size."""


class DiskReads(NamedTuple):
    """Rules by which reads from a disk or a pool grow.

    Attributes
    ----------
    gap_bytes
        Largest gap that is read together with its surroundings; it is also at most a quarter of a
        buffer.
    block_bytes
        Block size of buffered transfers, which begin and end on a block.
    """

    gap_bytes: int = REQUEST_BYTES
    block_bytes: int = 512

    def whole_blocks(self, start: int, nbytes: int) -> int:
        """Bytes of the blocks that contain `nbytes` from `start` on."""
        block = self.block_bytes
        return -(-(start + nbytes) // block) * block - start // block * block
