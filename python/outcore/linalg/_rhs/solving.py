"""A call of `solve` with checked arguments, as input of each method."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from outcore._util.if_exists import IfExists
from outcore._util.progress import Meter, Part, ProgressLike
from outcore.array.array import Array
from outcore.array_files.metadata import read_metadata
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._rhs.right_hand_side import RightHandSide
from outcore.linalg._tiles.cost import Phase, Problem
from outcore.machine.rates import NOMINAL, Rates, stored
from outcore.processes.sharing import Sharing
from outcore.storage.volumes import PathLike, Place, place


@dataclass(frozen=True)
class Solving:
    """The system to solve, and the options of the call.

    Attributes
    ----------
    A, source
        The matrix as it was passed, and its place.
    n, dtype
        Its order, and the type in which it is factored and multiplied.
    rhs
        Right-hand side and place of the solution.
    factors
        The place of the factors that the user chose; `None` stands for beside the matrix.
    bar
        Progress of the whole call, in expected seconds.
    condition, keep, memory_bytes, if_exists, resume, threads
        As for `solve`.
    later
        As for `Factoring`.
    sharing
        The processes of the call.
    """

    A: Array | PathLike
    source: Place
    n: int
    dtype: np.dtype[Any]
    rhs: RightHandSide
    factors: PathLike | None
    condition: bool
    keep: bool
    memory_bytes: int
    if_exists: IfExists
    resume: bool
    threads: int | None
    bar: Meter
    sharing: Sharing
    later: list[Place] | None = None

    @property
    def columns(self) -> int:
        """Total number of columns to solve for."""
        return self.rhs.columns * self.rhs.parts

    @property
    def stored(self) -> np.dtype[Any]:
        """Type of the matrix on disk."""
        return read_metadata(self.source).dtype

    @property
    def rates(self) -> Rates:
        """Stored rates of the matrix's disk."""
        return stored(self.source.path) or NOMINAL

    def problem(self, **options: Any) -> Problem:
        """Return the problem for a plan, with these options."""
        known, metadata = self.rates, read_metadata(self.source)
        return Problem(
            self.n, self.dtype, self.memory_bytes, rhs=self.columns,
            options={
                **options, "condition": self.condition,
                "order": metadata.order, "chunks": metadata.chunks,
            },
            seconds=lambda cost: cost.seconds(known), disk=lambda: known.reads,
            stored=None if metadata.dtype == self.dtype else metadata.dtype,
        )  # fmt: skip

    def factors_at(self, suffix: str) -> Place:
        """Place of factors, by default the matrix's path with `suffix` appended."""
        return place(self.factors if self.factors is not None else f"{self.source.stem}{suffix}")

    def factoring(
        self, A: Array | PathLike, where: Place, *, overwrite_a: bool, progress: ProgressLike
    ) -> Factoring:
        """Return the arguments of the factorization of a matrix, with factors at `where`."""
        return Factoring(
            A, self.memory_bytes, where.path, None, overwrite_a, self.if_exists, self.resume,
            self.threads, progress, "factors=", is_temporary=not self.keep, later=self.later,
        )  # fmt: skip

    def parts(self, *steps: Sequence[Phase]) -> list[Part]:
        """Return a part of the bar for each step, given as its phases."""
        known = self.rates
        seconds = [sum(phase.seconds(known) for phase in phases) for phases in steps]
        self.bar.extend(sum(seconds))
        return [self.bar.part(work) for work in seconds]
