"""The loops of a left-looking factorization: by parts, and by slabs of whole columns.

LU, Cholesky and QR run them, each with its own steps, over its own `Conveyor`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic

from outcore._util.streams import BlockStream
from outcore.errors import Interrupted
from outcore.linalg._factors.checks import Extremes, check_finite
from outcore.linalg._factors.conveyor import Conveyor, P, SlabConveyor
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._geometry.factor_plan import Slab
from outcore.linalg._geometry.geometry import Geometry
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import Record
from outcore.linalg._tiles.matrix import Matrix
from outcore.report.longcall import LongCall, long_call


class LeftLooking(ABC, Generic[P]):
    """One run: each part takes the updates of all panels to its left, then it is factored.

    Attributes
    ----------
    conveyor
        The memory of the parts.
    stream
        Blocks of earlier panels, read ahead in the order of their use.
    """

    conveyor: Conveyor[P]

    def __init__(
        self, storage: FactorStorage[Any], call: LongCall, ring_bytes: int, block_bytes: int
    ) -> None:
        self.storage, self.call = storage, call
        self.stream = BlockStream(
            storage.factors, storage.geometry.dtype, call.arena, ring_bytes, call.trace,
            least_bytes=block_bytes,
        )  # fmt: skip

    @abstractmethod
    def parts(self) -> list[P]:
        """Return the parts that are not factored yet, in their order."""

    @abstractmethod
    def read_before(self, part: P) -> None:
        """Schedule the reads of panels to the left of the run's first part."""

    @abstractmethod
    def work_on(self, part: P, following: P | None) -> None:
        """Update and factor a part, and record it when it completes a slab."""

    def run(self) -> None:
        """Factor all parts that are not factored yet."""
        parts = self.parts()
        try:
            if parts:
                self.conveyor.load(parts[0])
                self.read_before(parts[0])
            for part, following in itertools.zip_longest(parts, parts[1:]):
                self.work_on(part, following)
            self.conveyor.drain()
            self.storage.commit()
        except BaseException as error:
            well = self.conveyor.abandon()
            if well and isinstance(error, KeyboardInterrupt):
                self.storage.commit()
            raise


class SlabLoop(LeftLooking[Slab]):
    """A run by slabs of whole columns; panels and columns count from the first of the run's part.

    Attributes
    ----------
    g
        Cuts of the part.
    is_original
        Whether slabs hold elements of the matrix. If so, the run checks that they are finite.
    is_transposed
        Whether these are elements of the transpose.
    """

    is_original = True
    is_transposed = False
    conveyor: SlabConveyor
    g: Geometry

    @abstractmethod
    def update_by_earlier(self, slab: Slab, C: Matrix, arrivals: Iterator[int]) -> None:
        """Wait for all of a slab, and apply all panels to its left."""

    @abstractmethod
    def update_in_memory(self, K: int, C: Matrix, left: int, columns: slice) -> None:
        """Apply a panel of the slab to other columns of it; the slab begins at column `left`."""

    @abstractmethod
    def factor(self, K: int, C: Matrix, left: int, extremes: Extremes) -> None:
        """Factor a panel of the slab."""

    @abstractmethod
    def read_ahead(self, panels: range) -> None:
        """Schedule reads of factored panels, for the slabs to their right."""

    @abstractmethod
    def record(self, slab: Slab, extremes: Extremes) -> Record:
        """Return the journal's record of a slab."""

    def read_before(self, part: Slab) -> None:
        """Schedule the reads of panels to the left of the run's first slab."""
        self.read_ahead(range(part.first))

    def work_on(self, part: Slab, following: Slab | None) -> None:
        """Factor the columns of one slab, given all panels to their left."""
        C = self.conveyor.begin(part, following)
        left, here = part.first * self.g.columns, 0
        extremes = Extremes()
        arrivals = self.looked_at(C, left, extremes)
        if part.first:
            self.update_by_earlier(part, C, arrivals)
            here = C.shape[1]
        self.read_ahead(range(part.first) if following else range(0))
        for K in range(part.first, part.last):
            _, e = self.g.extent(K)
            if here < e - left:
                # Only in the first slab: its panels are factored while later ones are still
                # loading.
                before, here = here, max(itertools.islice(arrivals, max(K, 1)))
                for J in range(part.first, K):
                    self.update_in_memory(J, C, left, slice(before, here))
            self.factor(K, C, left, extremes)
            self.conveyor.panel_done(K)
            if following:
                self.read_ahead(range(K, K + 1))
            self.update_in_memory(K, C, left, slice(e - left, here))
            if here == C.shape[1]:
                self.conveyor.poll()
        self.storage.commit_later(self.record(part, extremes))

    def looked_at(self, C: Matrix, left: int, extremes: Extremes) -> Iterator[int]:
        """Check the columns of A as they arrive; yield how many have arrived."""
        for K in self.conveyor.arrivals():
            start_ns = self.call.trace.now_ns()
            o, e = self.g.extent(K)
            if self.is_original:
                arrived = C[:, o - left : e - left]
                extremes.see_matrix(arrived)
                check_finite(extremes, arrived, o, transposed=self.is_transposed)
            self.call.trace.record("compute", start_ns)
            yield e - left


@contextmanager
def running(
    storage: FactorStorage[Any], job: Factoring, title: str, work: float, left: float
) -> Iterator[LongCall]:
    """Open the files in a call of `work` operations, of which `left` are left to do."""
    with long_call(
        f"{title} of {storage.name}", memory_bytes=job.memory_bytes, work=work,
        work_done=work - left, threads=job.threads, progress=job.progress,
    ) as call:  # fmt: skip
        try:
            storage.open(call)
            yield call
        except KeyboardInterrupt:
            raise Interrupted(
                f"{title} of {storage.name} stopped with {storage.journal.panels_done} of "
                f"{storage.geometry.panels} panels done; call {storage.kind.function} again with "
                "the same arguments to resume"
            ) from None
