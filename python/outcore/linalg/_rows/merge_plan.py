"""Sums and triangles on their way from one process to another, and their sizes: pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outcore._util.counts import count_of
from outcore._util.sizes import parse_rate
from outcore.linalg._rows.plan import RowLayout
from outcore.linalg._rows.shares import ALONE, Shares, shares_of
from outcore.linalg._tiles.cost import Phase, Problem
from outcore.linalg._tiles.grains import cut, pages

STRIP_LINES = 64
"""Most rows or columns of a message with a part of a triangle."""

_MESSAGE_BYTES = 1 << 20
"""Approximate size of a message with rows of a few vectors."""


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
    most_lines
        Most lines of a message.
    """

    count: int
    length: int
    more: int = 0
    is_triangle: bool = True
    most_lines: int = STRIP_LINES

    @property
    def parts(self) -> list[slice]:
        """The lines of each message."""
        return cut(0, self.count, self.most_lines)

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
        return min(self.most_lines, self.count) * (self.length + self.more)


def vector_strips(shape: tuple[int, int], dtype: np.dtype[np.generic]) -> Strips:
    """Return messages with the rows of a matrix whose columns are a few vectors."""
    lines = max(_MESSAGE_BYTES // (shape[1] * dtype.itemsize), 1)
    return Strips(*shape, is_triangle=False, most_lines=lines)


def strip_bytes(strips: Strips, dtype: np.dtype[np.generic], processes: int) -> int:
    """Return the memory of a message; one process needs none."""
    return pages(strips.most_words * dtype.itemsize) if processes > 1 else 0


def sent_to_merge(strips: Strips, dtype: np.dtype[np.generic], shares: Shares) -> tuple[int, int]:
    """Return the bytes and messages by which this process passes its result on."""
    return (0, 0) if shares.target() is None else sent(strips, dtype)


def sent(strips: Strips, dtype: np.dtype[np.generic]) -> tuple[int, int]:
    """Return the bytes and the number of all messages."""
    return strips.words * dtype.itemsize, len(strips.parts)


def r_sent(n: int, dtype: np.dtype[np.generic], shares: Shares) -> tuple[int, int]:
    """Return the bytes and messages that this process sends for R: its triangle, or R to all."""
    if shares.size > 1 and shares.rank == 0:
        return sent(Strips(n, n), dtype)
    return sent_to_merge(Strips(n, n), dtype, shares)


def q_sent(n: int, dtype: np.dtype[np.generic], shares: Shares) -> tuple[int, int]:
    """Return the bytes and messages that this process sends for Q and R."""
    nbytes, messages = r_sent(n, dtype, shares)
    each = sent(Strips(n, n), dtype)
    count = len(shares.sources())
    return nbytes + count * each[0], messages + count * each[1]


def planned_shares(problem: Problem, layouts: Sequence[RowLayout], least: int = 1) -> Shares:
    """Return the rows of the process that reads most, for a plan with ``processes=``.

    `layouts` and `least` are those of `shares_of`.
    """
    processes = count_of("processes", problem.option("processes", 1))
    problem.option("link", None)
    if processes == 1:
        return ALONE
    each = [shares_of(layouts, processes, rank, least) for rank in range(processes)]
    return max(each, key=lambda one: (one.rows_of(one.rank), one.target() is not None))


def merging_phases(
    problem: Problem, shares: Shares, taken_bytes: int, spread_bytes: int, flops: float
) -> list[Phase]:
    """Return the planned phase after the rows, if there are several processes.

    Parameters
    ----------
    taken_bytes, flops
        Bytes that a process receives from each one whose result it takes, and the operations to add
        that result.
    spread_bytes
        Bytes that the first process sends to all.
    """
    if shares.size == 1:
        return []
    taken = (shares.busy - 1).bit_length()
    link, moved = problem.option("link", None), taken * taken_bytes + spread_bytes
    seconds = 0.0 if link is None else moved / parse_rate(link)
    return [Phase(problem.dtype, 0, flops=taken * flops, network_seconds=seconds)]
