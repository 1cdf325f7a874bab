"""A test whether a matrix on disk is Hermitian with a positive diagonal, so that Cholesky may work.

The test compares boxes with their mirror images across the diagonal until one differs, boxes on the
diagonal first. Most matrices that are not Hermitian differ in the first box. A Hermitian matrix is
read once.
"""

import itertools
import math
from collections import deque
from collections.abc import Iterator

import numpy as np

from outcore.array import Array
from outcore.linalg.matrix import Matrix, open_matrix
from outcore.linalg.stream_reads import StreamReads
from outcore.longcall import LongCall, long_call
from outcore.progress import ProgressLike
from outcore.report import Report
from outcore.streams import BlockStream, Box
from outcore.volumes import Place
from outcore.zarr_format import SLOT_ALIGN_BYTES

_MOST_SIDE = 4096
_STRIP_BYTES = 256 << 10
"""Bytes of elements that are compared at once."""

Pair = tuple[Box, Box]


def why_not_positive(
    source: Place, memory_bytes: int, threads: int | None, progress: ProgressLike
) -> tuple[str, Report]:
    """Search for evidence that a matrix is not Hermitian positive definite.

    Returns
    -------
    why : str
        An element of the diagonal that is not positive, or two elements that are not each other's
        conjugates. Empty if A = Aᴴ to the last bit, with a positive diagonal.
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
        look = _Look(A, call, memory_bytes)
        why = next(look.found(), "")
        look.drain()
        return why, Report(
            verb="look",
            n=A.shape[0],
            dtype=A.dtype.name,
            flops=0,
            bytes_read=look.file.counters()[0],
            bytes_written=0,
            planned_bytes_read=look.planned_bytes,
            planned_bytes_written=0,
            **call.figures(),
        )


class _Look:
    """The comparison of pairs of boxes; one pair is read ahead."""

    def __init__(self, A: Array, call: LongCall, memory_bytes: int) -> None:
        n, itemsize = A.shape[0], A.dtype.itemsize
        bounce = memory_bytes // 8
        # Memory holds two pairs.
        side = math.isqrt((memory_bytes - bounce) // 4 // itemsize)
        # Whole chunks are fastest to read, then whole pages. Boxes in memory are whole pages too.
        for unit in (max(A.chunks), SLOT_ALIGN_BYTES // itemsize, 1):
            if side > unit:
                break
        side = min(side // unit * unit if unit > 1 else side - 1, _MOST_SIDE, n)
        self.box_bytes = -(-side * side * itemsize // SLOT_ALIGN_BYTES) * SLOT_ALIGN_BYTES
        self.A, self.call, self.side = A, call, max(side, 1)
        self.file = A.open_file(call.arena, bounce, trace=call.trace)
        self.stream = BlockStream(
            self.file, A.dtype, call.arena, 4 * self.box_bytes, call.trace,
            least_bytes=self.box_bytes,
        )  # fmt: skip
        self.reads = StreamReads.of(A, bounce, self.file.read_granularity)
        self.planned_bytes = 0

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
            for i in np.flatnonzero(~(diagonal.real > 0))[:1]:
                yield f"A[{rows.start + i}, {rows.start + i}] = {diagonal[i]:.6g} is not positive"
        step = max(_STRIP_BYTES // (left.shape[0] * left.itemsize), 1)
        for first in range(0, left.shape[1], step):
            strip = slice(first, first + step)
            for i, j in np.argwhere(_differ(left[:, strip], right[strip]))[:1]:
                row, column = rows.start + int(i), columns.start + first + int(j)
                differ = f"A[{row}, {column}] and A[{column}, {row}] differ"
                what = f"A[{row}, {row}] is not real" if row == column else differ
                yield f"A is not Hermitian: {what}"
        self.call.trace.record("compute", start_ns)
        self.call.meter.advance(left.nbytes if below == above else 2 * left.nbytes)

    def drain(self) -> None:
        """Wait for the read-ahead, so that it is counted."""
        while len(self.stream):
            self.stream.take()


def _differ(left: Matrix, right: Matrix) -> Matrix:
    """Compare `left` with the conjugate transpose of `right`; NaN differs from NaN."""
    different: Matrix = left != right.conj().T
    return different
