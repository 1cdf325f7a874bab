"""The places of solutions, in memory or on disk, written by groups of columns.

On disk, a solution is *incomplete* until it is whole. Each group of columns is followed by a note,
as durable as the columns. It contains their number and the system, so that a stopped call can
resume. Iterative methods also note which columns behind them are an iterate to start from.
"""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from outcore._core import ArrayFile
from outcore._util.counts import is_count
from outcore.array.array import open_array
from outcore.array_files.metadata import bump_generation, read_metadata, write_metadata
from outcore.errors import OutcoreError
from outcore.layout.zarr_format import Metadata, default_chunks
from outcore.linalg._output.factor import Factor
from outcore.linalg._output.open_results import with_version
from outcore.linalg._output.result import refuse_there
from outcore.linalg._output.steps_done import version_of_operand
from outcore.linalg._rhs.right_hand_side import WHY, RightHandSide
from outcore.processes.team import Team
from outcore.storage.volumes import Place, being_made

NOTE = "outcore.solving"
"""File in an incomplete solution that says which columns are complete."""


class Iterate(NamedTuple):
    """Columns of a solution on disk on which an iterative method is still working.

    Attributes
    ----------
    end
        End of these columns. They begin with the first column that is not solved for.
    steps
        Number of steps that led to the iterate.
    residual
        Residual of the iterate at its last note, relative to the right-hand side.
    """

    end: int
    steps: int
    residual: float


class Solution:
    """A solution that is being written.

    Attributes
    ----------
    x
        Array of the solution's shape, in memory or on disk.
    done
        Number of columns that this call or an earlier one has solved for.
    iterate
        The iterate in the next columns, if there is one.
    """

    def __init__(
        self,
        x: Any,
        done: int = 0,
        system: Mapping[str, Any] | None = None,
        iterate: Iterate | None = None,
    ) -> None:
        self.x, self.done, self._system = x, done, system
        self.iterate = iterate

    @property
    def is_noted(self) -> bool:
        """Whether notes of its progress outlast the call."""
        return self._system is not None

    @property
    def has_begun(self) -> bool:
        """Whether a solution on disk can be resumed."""
        return self.is_noted and (self.done > 0 or self.iterate is not None)

    def note(self, done: int, iterate: Iterate | None = None) -> None:
        """Record on disk the number of solved columns, and an iterate; they must be durable."""
        self.done, self.iterate = done, iterate
        if self._system is not None:
            note: dict[str, Any] = {"columns_done": done, "system": self._system}
            if iterate is not None:
                note["iterate"] = iterate._asdict()
            where = self.x.place
            where.replace_small(NOTE, json.dumps(note).encode() + b"\n")


@contextmanager
def solution(
    rhs: RightHandSide,
    *,
    system: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Iterator[Solution]:
    """Create a solution, in memory or on disk, or open the one of a stopped call.

    Parameters
    ----------
    system
        Identity of the system, as JSON. With it, complete columns outlast an error.
    resume
        Resume an existing solution of the same system.

    Raises
    ------
    ExistsError
        If something else is at its place that must not be replaced.
    BusyError
        If another call writes there.
    """
    shape, dtype = rhs.solution_shape, rhs.solution_dtype
    if rhs.out is None:
        yield Solution(np.empty(shape, dtype, order="F"))
        return
    where = rhs.out
    chunks = default_chunks(shape, dtype.itemsize, "F")
    metadata = Metadata(shape, dtype, chunks, "F", "column-major").on(where.volume)
    begun = dataclasses.replace(metadata, state="incomplete", why=WHY)
    with being_made(where, "solving"):
        refuse_there(where, WHY, if_exists=rhs.if_exists)
        done, iterate = _noted(where, begun, system) if resume else (0, None)
        solving = Solution(None, done, system, iterate)
        try:
            if not solving.has_begun:
                _make(where, begun)
            where.remove_half_written()
            solving.x = open_array(where.path, "r+", allow_incomplete=True)
            yield solving
            solving.x.mark(None, made=with_version(rhs.made, solving.x))
            if where.exists(NOTE):
                where.volume.remove(where.inside(NOTE))
        except BaseException as error:
            with contextlib.suppress(OutcoreError):
                # The same iterate would lead to the same error again.
                if isinstance(error, ArithmeticError | np.linalg.LinAlgError) and solving.iterate:
                    solving.note(solving.done)
                # A process that does not answer may still write there.
                if not solving.has_begun and not getattr(error, "is_lost", False):
                    where.volume.remove(where.name)
            raise


@contextmanager
def shared_solution(
    rhs: RightHandSide,
    team: Team,
    *,
    system: Mapping[str, Any] | None = None,
    resume: bool = False,
) -> Iterator[Solution]:
    """Create or open a solution like `solution`, on the first process for all.

    That process holds it, after an error too, until no other one writes there.
    """
    with contextlib.ExitStack() as stack:
        if rhs.out is None or team.rank == 0:
            into = stack.enter_context(solution(rhs, system=system, resume=resume))
        stack.enter_context(team.telling())
        done = team.same(into.done if team.rank == 0 else 0)
        if rhs.out is not None and team.rank:
            x = open_array(rhs.out.path, "r+", allow_incomplete=True)
            into = Solution(stack.enter_context(contextlib.closing(x)), done)
        yield into
        # The first process completes the solution when all have written their columns.
        team.same(None)
    if rhs.out is not None and team.size > 1:
        team.same(None)
        if team.rank:
            into.x = open_array(rhs.out.path)


def system_of(verb: str, factor: Factor, rhs: RightHandSide) -> dict[str, Any]:
    """Identify a system by its factors and right-hand sides, on disk or in memory."""
    return {
        "verb": verb,
        "trans": rhs.trans,
        "factors": version_of_operand(factor),
        "b": version_of_operand(rhs.b),
    }


def version_of_columns(rhs: RightHandSide) -> list[Any]:
    """Identify right-hand sides, on disk or in memory."""
    return version_of_operand(rhs.b)


def _make(where: Place, begun: Metadata) -> None:
    """Create a solution of zeros, marked incomplete, with its disk space reserved."""
    if where.volume.exists(where.name):
        where.volume.remove(where.name)
    write_metadata(where, begun)
    ArrayFile.create(where.volume, where.name, begun.grid(), True)
    bump_generation(where)


def _noted(
    where: Place, begun: Metadata, system: Mapping[str, Any] | None
) -> tuple[int, Iterate | None]:
    """Read how many columns a stopped call for the same system has solved, and its iterate."""
    with contextlib.suppress(OutcoreError, ValueError, KeyError, TypeError):
        if read_metadata(where) == begun and where.exists(NOTE):
            note = json.loads(where.volume.read_small(where.inside(NOTE)))
            if note["system"] == system:
                columns = math.prod(begun.shape[1:])
                done, found = note["columns_done"], note.get("iterate")
                iterate = None if found is None else Iterate(**found)
                if is_count(done, 0) and done <= columns and _may_be(iterate, done, columns):
                    return done, iterate
    return 0, None


def _may_be(iterate: Iterate | None, done: int, columns: int) -> bool:
    """Whether a note of an iterate is consistent."""
    if iterate is None:
        return True
    counts = is_count(iterate.end, done + 1) and iterate.end <= columns and is_count(iterate.steps)
    return counts and isinstance(iterate.residual, float) and math.isfinite(iterate.residual)
