"""Sums and triangles on their way from one process to another, and their sizes: pure arithmetic."""

from dataclasses import dataclass

import numpy as np

from outcore.linalg._rows.shares import Shares
from outcore.linalg._tiles.grains import cut, pages

STRIP_LINES = 64
"""Most rows or columns of a message."""


@dataclass(frozen=True)
class Strips:
    """Messages with the lines of a matrix: rows of an upper triangle, or columns of a lower one.

    Attributes
    ----------
    count, length
        Number of lines, and elements of the first one.
    more
        Elements that each line has beside those of the matrix.
    is_triangle
        Whether each line is shorter than the one before it, by an element.
    """

    count: int
    length: int
    more: int = 0
    is_triangle: bool = True

    @property
    def parts(self) -> list[slice]:
        """The lines of each message."""
        return cut(0, self.count, STRIP_LINES)

    def shape(self, lines: slice) -> tuple[int, int]:
        """Return the number of lines of a message, and the elements of each that it carries."""
        first = lines.start if self.is_triangle else 0
        return lines.stop - lines.start, self.length - first + self.more

    @property
    def words(self) -> int:
        """Elements of all messages."""
        sizes = (self.shape(lines) for lines in self.parts)
        return sum(count * length for count, length in sizes)

    @property
    def most_words(self) -> int:
        """Elements of the first message, which is the largest."""
        return min(STRIP_LINES, self.count) * (self.length + self.more)


def strip_bytes(strips: Strips, dtype: np.dtype[np.generic], processes: int) -> int:
    """Return the memory of a message; one process needs none."""
    return pages(strips.most_words * dtype.itemsize) if processes > 1 else 0


def sent_to_merge(strips: Strips, dtype: np.dtype[np.generic], shares: Shares) -> tuple[int, int]:
    """Return the bytes and messages by which this process passes its result on."""
    return (0, 0) if shares.target() is None else sent(strips, dtype)


def sent(strips: Strips, dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """Return the bytes and the number of all messages."""
    return strips.words * dtype.itemsize, len(strips.parts)
