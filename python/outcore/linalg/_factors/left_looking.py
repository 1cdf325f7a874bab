"""The loops of a left-looking factorization: by parts, and by slabs of whole columns.

LU, Cholesky and QR run them, each with its own steps, over its own `Conveyor`.
"""

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Generic

from outcore._util.streams import BlockStream, Pending, wait
from outcore.linalg._factors.checks import Extremes, check_finite
from outcore.linalg._factors.conveyor import Conveyor, P, SlabConveyor
from outcore.linalg._factors.storage import FactorStorage
from outcore.linalg._geometry.factor_plan import Slab, Slabbed
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._output.journal import Record
from outcore.linalg._tiles.matrix import Matrix
from outcore.processes.blocks import Sent
from outcore.processes.sharing import interrupted
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
    part
        The current slab.
    is_original
        Whether slabs hold elements of the matrix. If so, the run checks that they are finite.
    is_transposed
        Whether these are elements of the transpose.
    """

    is_original = True
    is_transposed = False
    conveyor: SlabConveyor
    g: Slabbed
    part: Slab

    @abstractmethod
    def update_by_earlier(self, slab: Slab, C: Matrix, arrivals: Iterator[int]) -> None:
        """Wait for all of a slab, and apply all panels to its left."""

    @abstractmethod
    def update_in_memory(self, K: int, C: Matrix, columns: slice) -> None:
        """Apply a panel of the slab to other columns of it."""

    @abstractmethod
    def factor(self, K: int, C: Matrix, extremes: Extremes) -> None:
        """Factor a panel of the slab that this process holds."""

    @abstractmethod
    def read_ahead(self, panels: range) -> None:
        """Schedule reads of factored panels, for the slabs to their right."""

    @abstractmethod
    def record(self, slab: Slab, extremes: Extremes) -> Record:
        """Return the journal's record of a slab."""

    def read_before(self, part: Slab) -> None:
        """Schedule the reads of panels to the left of the run's first slab."""
        self.expect_earlier(part)
        self.read_ahead(range(part.first))

    def expect_earlier(self, slab: Slab) -> None:
        """Name the blocks of panels to the left of a slab, if processes send them to each other."""

    def expect_own(self, slab: Slab) -> None:
        """Name the blocks of a slab's own panels, if processes send them to each other."""

    def share(self, K: int) -> Pending:
        """Send a factored panel of the slab, or wait for the first message about it."""
        return Sent()

    def write(self, K: int, following: Slab | None) -> None:
        """Write a panel of the slab, and read it ahead for the slabs to its right."""
        if self.g.deal.owner(K) == self.g.deal.rank:
            self.conveyor.panel_done(K)
        if following:
            self.read_ahead(range(K, K + 1))

    def columns_of(self, K: int) -> slice:
        """Return the columns of C of a panel of the slab; none if another process holds it."""
        first = self.part.first
        return slice(self.g.held_columns(first, K), self.g.held_columns(first, K + 1))

    def work_on(self, part: Slab, following: Slab | None) -> None:
        """Factor the columns of one slab, given all panels to their left."""
        self.part = part
        C = self.conveyor.begin(part, following)
        here = 0
        extremes = Extremes()
        arrivals = self.looked_at(C, extremes)
        if part.first:
            self.update_by_earlier(part, C, arrivals)
            here = C.shape[1]
        elif self.g.deal.size > 1:
            # No process keeps the panels of others for columns that arrive later.
            here = max(arrivals, default=0)
        self.expect_own(part)
        if following:
            self.expect_earlier(following)
            self.read_ahead(range(part.first))
        for K in range(part.first, part.last):
            is_held, columns = self.g.deal.owner(K) == self.g.deal.rank, self.columns_of(K)
            if here < columns.stop:
                # Only in the first slab: its panels are factored while later ones are still
                # loading.
                before, here = here, max(itertools.islice(arrivals, max(K, 1)))
                for J in range(part.first, K):
                    self.update_in_memory(J, C, slice(before, here))
            if is_held:
                self.factor(K, C, extremes)
            sent = self.share(K)
            if is_written := sent.done():
                self.write(K, following)
            self.update_in_memory(K, C, slice(columns.stop, here))
            if not is_written:
                # The conveyor may replace the panel once it is written.
                wait(sent, self.call.trace)
                self.write(K, following)
            if here == C.shape[1]:
                self.conveyor.poll()
        self.storage.commit_later(self.record(part, extremes))

    def looked_at(self, C: Matrix, extremes: Extremes) -> Iterator[int]:
        """Check the columns of A as they arrive; yield how many have arrived."""
        for K in self.conveyor.arrivals():
            start_ns = self.call.trace.now_ns()
            columns = self.columns_of(K)
            if self.is_original:
                arrived, first = C[:, columns], self.g.extent(K)[0]
                extremes.see_matrix(arrived)
                check_finite(extremes, arrived, first, transposed=self.is_transposed)
            self.call.trace.record("compute", start_ns)
            yield columns.stop


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
            # If a process fails early, the first one removes the files.
            storage.team.same(None)
            yield call
        except KeyboardInterrupt as error:
            done, panels = storage.journal.panels_done, storage.geometry.panels
            raise interrupted(
                f"{title} of {storage.name} stopped with {done} of {panels} panels done", error,
                f"call {storage.kind.function} again with the same arguments to resume",
            ) from None  # fmt: skip
