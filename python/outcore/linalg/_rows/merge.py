"""The results of several processes, joined pairwise in a fixed order: sums, and triangles of QR.

In step k, from 0 on, each process r divisible by 2^(k+1) takes the result of r + 2^k, so that the
first process has all (`outcore.linalg._rows.shares.Shares.sources`). The order depends on
the number of processes only, so the same call has the same result, bit by bit. Messages are strips
of a few rows or columns, for which there is a buffer.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from outcore.linalg._rows.merge_plan import Strips, vector_strips
from outcore.linalg._rows.plan import RowLayout
from outcore.linalg._rows.shares import Shares
from outcore.linalg._rows.stream import allocated
from outcore.linalg._rows.tsqr import TallQR
from outcore.linalg._tiles.matrix import Matrix
from outcore.processes.sharing import seconds_for
from outcore.processes.team import Team
from outcore.report.longcall import LongCall

Message: TypeAlias = npt.NDArray[Any]
"""The elements of some lines, one after the other, in an order that its sender chooses."""

Use: TypeAlias = Callable[[slice, Message], None]
"""Fills the message with these lines, or uses it."""


def seconds_of(shares: Shares, layouts: Sequence[RowLayout], flops: float) -> float:
    """Return the additional time to wait for the process with the most rows of these matrices."""
    row_bytes = sum(layout.width * layout.dtype.itemsize for layout in layouts)
    return seconds_for(shares.most * row_bytes, flops)


class Merging:
    """The messages of a call by which processes join their results.

    Parameters
    ----------
    team, shares
        The processes, and their rows.
    words, dtype
        Elements of the largest message, and their type.
    call
        The call.
    more_s
        Additional time to wait for another process, for its work.
    """

    def __init__(
        self,
        team: Team,
        shares: Shares,
        words: int,
        dtype: np.dtype[Any],
        call: LongCall,
        more_s: float,
    ) -> None:
        self._team, self._shares, self._more_s = team, shares, more_s
        self._trace = call.trace
        size = words if team.size > 1 else 0
        self._memory: Message = allocated(call, (size, 1), dtype)[:, 0]

    @property
    def sources(self) -> list[int]:
        """The processes whose results this one takes, in their order."""
        return self._shares.sources()

    @property
    def target(self) -> int | None:
        """The process that takes the result of this one; `None` for the first one."""
        return self._shares.target()

    def join(self, strips: Strips, give: Use, take: Use) -> None:
        """Take the lines of other processes, and give all of them to the next one.

        Parameters
        ----------
        strips
            The lines.
        give, take
            Functions that fill a message with own lines, and that add those of another process.
        """
        for other in self.sources:
            self.receive(strips, other, take)
        if self.target is not None:
            self.send(strips, self.target, give)

    def receive(self, strips: Strips, other: int, take: Use) -> None:
        """Take the lines of another process."""
        for lines in strips.parts:
            message = self._message(strips, lines)
            start_ns = self._trace.now_ns()
            self._team.receive(message, other, self._more_s)
            self._trace.record("wait", start_ns)
            start_ns = self._trace.now_ns()
            take(lines, message)
            self._trace.record("compute", start_ns)

    def send(self, strips: Strips, other: int, give: Use) -> None:
        """Give lines to another process."""
        for lines in strips.parts:
            message = self._message(strips, lines)
            give(lines, message)
            self._team.send(message, other, self._more_s)

    def spread(self, strips: Strips, give: Use, take: Use) -> None:
        """Copy the lines of the first process to all others."""
        for lines in strips.parts if self._team.size > 1 else ():
            message = self._message(strips, lines)
            if self._team.rank == 0:
                give(lines, message)
            self._team.broadcast(message, self._more_s)
            if self._team.rank:
                take(lines, message)

    def add_up(self, X: Matrix) -> None:
        """Add the vectors of other processes, columns of X: the first process has the sum."""

        def add(rows: slice, message: Message) -> None:
            part, those = _sides(X, rows, message)
            with np.errstate(over="ignore", invalid="ignore"):
                part += those

        self.join(vector_strips(X.shape, X.dtype), functools.partial(_give, X), add)

    def spread_vectors(self, X: Matrix) -> None:
        """Copy the vectors of the first process, columns of X, to all others."""

        def take(rows: slice, message: Message) -> None:
            part, those = _sides(X, rows, message)
            part[...] = those

        self.spread(vector_strips(X.shape, X.dtype), functools.partial(_give, X), take)

    def join_triangles(self, factor: TallQR) -> None:
        """Factor the triangles of all processes: the first one has R, and Qᴴ applied to b.

        The caller combines the norms of the parts of b below.
        """
        n, k = factor.c.shape
        factor.triangle()

        def parts(lines: slice, message: Message) -> tuple[Matrix, Matrix]:
            count, width = lines.stop - lines.start, n - lines.start
            left, right = np.split(message, [count * width])
            return left.reshape((count, width), order="F"), right.reshape((count, k), order="F")

        def give(lines: slice, message: Message) -> None:
            rows, right = parts(lines, message)
            rows[...], right[...] = factor.R[lines, lines.start :], factor.c[lines]

        def take(lines: slice, message: Message) -> None:
            factor.append_strip(lines.start, *parts(lines, message))

        self.join(Strips(n, n, k), give, take)

    def spread_triangle(self, R: Matrix) -> None:
        """Copy an upper triangle of the first process to all others, with zeros below it."""
        n = R.shape[1]

        def give(lines: slice, message: Message) -> None:
            part = R[lines, lines.start :]
            message.reshape(part.shape, order="F")[...] = part

        def take(lines: slice, message: Message) -> None:
            R[lines, : lines.start] = 0
            part = R[lines, lines.start :]
            part[...] = message.reshape(part.shape, order="F")

        self.spread(Strips(len(R), n), give, take)

    def _message(self, strips: Strips, lines: slice) -> Message:
        count, length = strips.shape(lines)
        return self._memory[: count * length]


def _sides(X: Matrix, rows: slice, message: Message) -> tuple[Matrix, Matrix]:
    """Return rows of X, and the message with these rows."""
    part = X[rows]
    return part, message.reshape(part.shape, order="F")


def _give(X: Matrix, rows: slice, message: Message) -> None:
    part, those = _sides(X, rows, message)
    those[...] = part
