"""A test whether a matrix on disk is Hermitian with a positive diagonal, so that Cholesky may work.

The test compares boxes with their mirror images across the diagonal until one differs, boxes on the
diagonal first. Most matrices that are not Hermitian differ in the first box. A Hermitian matrix is
read once.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from outcore._util.progress import ProgressLike
from outcore._util.streams import BlockStream, Box
from outcore.array.array import Array
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._geometry.box_reads import StreamReads
from outcore.linalg._tiles.grains import pages
from outcore.linalg._tiles.matrix import Matrix, open_matrix
from outcore.report.longcall import LongCall, long_call
from outcore.report.report import Report
from outcore.storage.volumes import Place

_MOST_SIDE = 4096
_STRIP_BYTES = 256 << 10
"""Bytes of elements that are compared at once."""

Pair = tuple[Box, Box]


class LookGeometry(NamedTuple):
    """Cuts of a matrix for the test: side and bytes of a box, and bytes of bounce buffers."""

    side: int
    bounce_bytes: int
    box_bytes: int

    @classmethod
    def of(cls, n: int, itemsize: int, chunks: Sequence[int], memory_bytes: int) -> "LookGeometry":
        """Cut a matrix of order `n` in these chunks for a budget."""
        bounce = memory_bytes // 8
        # Memory holds two pairs.
        side = math.isqrt((memory_bytes - bounce) // 4 // itemsize)
        # Whole chunks are fastest to read, then whole pages. Boxes in memory are whole pages too.
        for unit in (max(chunks), SLOT_ALIGN_BYTES // itemsize, 1):
            if side > unit:
                break
        side = min(side // unit * unit if unit > 1 else side - 1, _MOST_SIDE, n)
        return cls(max(side, 1), bounce, pages(side * side * itemsize))

    @property
    def memory_bytes(self) -> int:
        """Memory of all buffers."""
        return 4 * self.box_bytes + self.bounce_bytes


def find_asymmetry(
    source: Place,
    memory_bytes: int,
    threads: int | None,
    progress: ProgressLike,
    least: float | None = None,
) -> tuple[str, Report]:
    """Search for evidence that a matrix is not Hermitian, or not positive definite.

    Parameters
    ----------
    least
        The smallest difference that counts, as a fraction of the largest diagonal element. If the
        matrix is Hermitian positive definite, that element is the largest of all. With `None`, any
        difference counts, and so does an element of the diagonal that is not positive.

    Returns
    -------
    why : str
        Two elements that are not each other's conjugates, or one that is not positive; empty if
        there are none.
    report : Report
        Report of the test. The bytes read depend on the first difference.
    """
    with (
        open_matrix(source) as A,
        long_call(
            f"looking at {source.title}", memory_bytes=memory_bytes, work=A.nbytes,
            threads=threads, progress=progress,
        ) as call,
    ):  # fmt: skip
        look = _Look(A, call, memory_bytes, least)
        why = next(look.found(), "")
        look.drain()
        return why, call.report(
            Report, "look", A.shape[0], A.dtype, computes=False,
            moved=(look.file.counters()[0], 0), planned=(look.planned_bytes, 0),
        )  # fmt: skip


class _Look:
    """The comparison of pairs of boxes; one is read ahead. Without `least`, it is bit for bit."""

    def __init__(self, A: Array, call: LongCall, memory_bytes: int, least: float | None) -> None:
        g = LookGeometry.of(A.shape[0], A.dtype.itemsize, A.chunks, memory_bytes)
        self.A, self.call, self.side, self.least = A, call, g.side, least
        self.file = A.open_file(call.arena, g.bounce_bytes, trace=call.trace)
        self.stream = BlockStream(
            self.file, A.dtype, call.arena, 4 * g.box_bytes, call.trace, least_bytes=g.box_bytes
        )
        self.reads = StreamReads.of(A, g.bounce_bytes, self.file.read_granularity)
        self.planned_bytes = 0
        self.largest = 0.0

    def found(self) -> Iterator[str]:
        """Yield differences, first those on the diagonal."""
        ahead: deque[Pair] = deque()
        for pair in itertools.chain(self.pairs(), [None]):
            if pair is not None:
                self.schedule(pair)
                ahead.append(pair)
            if len(ahead) > 1 or (pair is None and ahead):
                yield from self.compare(*ahead.popleft())

    def pairs(self) -> Iterator[Pair]:
        """Yield pairs of mirrored boxes. A box on the diagonal is its own partner."""
        n, side = self.A.shape[0], self.side
        parts = [slice(i, min(i + side, n)) for i in range(0, n, side)]
        for part in parts:
            yield (part, part), (part, part)
        for j, columns in enumerate(parts):
            for rows in parts[j + 1 :]:
                yield (rows, columns), (columns, rows)

    def schedule(self, pair: Pair) -> None:
        boxes = pair[:1] if pair[0] == pair[1] else pair
        self.stream.extend(boxes)
        for rows, columns in boxes:
            self.planned_bytes += self.reads.bytes_of(
                [(rows.start, rows.stop)], [(columns.start, columns.stop)]
            )

    def compare(self, below: Box, above: Box) -> Iterator[str]:
        """Yield two elements that are not each other's conjugates, or one that is not positive."""
        left = self.stream.take().data
        right = left if below == above else self.stream.take().data
        start_ns = self.call.trace.now_ns()
        (rows, columns) = below
        if below == above:
            diagonal = np.diagonal(left)
            self.largest = max(self.largest, float(np.abs(diagonal).max()))
            not_positive = ~(diagonal.real > 0) if self.least is None else np.zeros(0)
            for i in np.flatnonzero(not_positive)[:1]:
                yield f"A[{rows.start + i}, {rows.start + i}] = {diagonal[i]:.6g} is not positive"
        step = max(_STRIP_BYTES // (left.shape[0] * left.itemsize), 1)
        for first in range(0, left.shape[1], step):
            strip = slice(first, first + step)
            for i, j in np.argwhere(self.differ(left[:, strip], right[strip]))[:1]:
                row, column = rows.start + int(i), columns.start + first + int(j)
                differ = f"A[{row}, {column}] and A[{column}, {row}] differ"
                what = f"A[{row}, {row}] is not real" if row == column else differ
                yield f"A is not Hermitian: {what}"
        self.call.trace.record("compute", start_ns)
        self.call.meter.advance(left.nbytes if below == above else 2 * left.nbytes)

    def differ(self, left: Matrix, right: Matrix) -> Matrix:
        """Return the places where `left` is not the conjugate transpose of `right`.

        NaN differs from NaN only in a comparison bit for bit.
        """
        mirrored: Matrix = right.conj().T
        different: Matrix = left != mirrored
        if self.least is not None:
            with np.errstate(invalid="ignore", over="ignore"):
                different = np.abs(left - mirrored) > self.least * self.largest
        return different

    def drain(self) -> None:
        """Wait for the read-ahead, so that it is counted."""
        while len(self.stream):
            self.stream.take()
