"""Where solutions go: into memory, or to disk, group of columns by group.

On disk a solution is *incomplete* until it is whole. After each group of columns a note, durable as
they are, says how many there are and of which system, so that a stopped call goes on from there. An
iterative method notes too which of the columns behind them are an iterate, to begin with.
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
from outcore.array import open_array
from outcore.array_metadata import bump_generation, read_metadata, write_metadata
from outcore.counts import is_count
from outcore.errors import OutcoreError
from outcore.linalg.factors.factor import Factor
from outcore.linalg.open_results import made_by_this_call
from outcore.linalg.result_place import refuse_there
from outcore.linalg.steps_done import version_of_operand
from outcore.linalg.systems.right_hand_side import WHY, RightHandSide
from outcore.volumes import Place, being_made
from outcore.zarr_format import Metadata, default_chunks

NOTE = "outcore.solving"
"""Below a solution that is not whole: which columns are."""


class Iterate(NamedTuple):
    """Columns of a solution on disk that an iterative method has not done with.

    Attributes
    ----------
    end
        They are those from the first that is not solved for to this one.
    steps
        That led to it.
    residual
        As the last of them noted it, relative to the right-hand side.
    """

    end: int
    steps: int
    residual: float


class Solution:
    """A solution that is being written.

    Attributes
    ----------
    x
        Array of its shape, in memory or on disk.
    done
        Columns that an earlier call, or this one, has solved for.
    iterate
        What the columns behind them are, if anything.
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
        """Whether what is noted of it outlasts the call."""
        return self._system is not None

    @property
    def has_begun(self) -> bool:
        """Whether there is something on disk to go on with."""
        return self.is_noted and (self.done > 0 or self.iterate is not None)

    def note(self, done: int, iterate: Iterate | None = None) -> None:
        """Note on disk that so many columns are there, and an iterate; they must be durable."""
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
    """Make room for a solution, in memory or on disk, or find what a stopped call left of it.

    Parameters
    ----------
    system
        What the solution is of, as JSON has it; with this, whole columns outlast an error.
    resume
        Go on with what is there of the same system.

    Raises
    ------
    ExistsError
        If there is something else at its place that may not be replaced.
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
            solving.x.mark(None, made=made_by_this_call(solving.x))
            if where.exists(NOTE):
                where.volume.remove(where.inside(NOTE))
        except BaseException as error:
            with contextlib.suppress(OutcoreError):
                # An iterate that led there would lead there again.
                if isinstance(error, ArithmeticError | np.linalg.LinAlgError) and solving.iterate:
                    solving.note(solving.done)
                if not solving.has_begun:
                    where.volume.remove(where.name)
            raise


def system_of(verb: str, factor: Factor, rhs: RightHandSide) -> dict[str, Any]:
    """Tell systems apart: by factors and right-hand sides, as they are on disk or in memory."""
    return {
        "verb": verb,
        "trans": rhs.trans,
        "factors": version_of_operand(factor),
        "b": version_of_operand(rhs.b),
    }


def version_of_columns(rhs: RightHandSide) -> list[Any]:
    """Tell right-hand sides apart, as they are on disk or in memory."""
    return version_of_operand(rhs.b)


def _make(where: Place, begun: Metadata) -> None:
    """Make a solution of zeros, marked incomplete; its room on disk is taken at once."""
    if where.volume.exists(where.name):
        where.volume.remove(where.name)
    write_metadata(where, begun)
    ArrayFile.create(where.volume, where.name, begun.grid(), True)
    bump_generation(where)


def _noted(
    where: Place, begun: Metadata, system: Mapping[str, Any] | None
) -> tuple[int, Iterate | None]:
    """Read how many columns a stopped call has solved for, of the same system, and its iterate."""
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
    """Whether a note of an iterate makes sense."""
    if iterate is None:
        return True
    counts = is_count(iterate.end, done + 1) and iterate.end <= columns and is_count(iterate.steps)
    return counts and isinstance(iterate.residual, float) and math.isfinite(iterate.residual)
