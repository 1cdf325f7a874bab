"""Results on disk that are written step by step: where a call that was stopped goes on.

Steps are parts of a result that do not need each other, in an order that follows from the arguments
and the budget. Every minute or so what is written is made durable, and a note beside it says how
many steps that is, of which call. The same call goes on from there, with the same budget, since its
steps would be others with another one.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from outcore import budget
from outcore.array import Array
from outcore.array_metadata import read_metadata
from outcore.array_version import settle, version_of
from outcore.blocks_done import STEPS, BlocksDone
from outcore.errors import DiskFullError, OutcoreError
from outcore.linalg.factors.factor import Factor
from outcore.volumes import PathLike, Place, place
from outcore.zarr_format import Metadata

NOTE_S = 60.0
"""Steps that were done in less time are noted with later ones."""

MOST_SHARE = 0.05
"""Share of the time that notes may take, with what must be made durable for them."""

_PART_BYTES, _PART_ROWS = 4 << 20, 1 << 16

T = TypeVar("T")

Operand = Array | npt.NDArray[Any] | Factor


class StepsDone:
    """Which steps of a call are durable.

    Parameters
    ----------
    out
        Place of the result; `None` for one in memory, of which nothing is noted.
    verb, arguments
        What is done, as JSON has it.
    operands
        With what.
    memory
        The budget, as the user gave it.
    resume
        Go on with what is there of the same call.

    Attributes
    ----------
    memory_bytes
        The budget: of a call that is gone on with, the one it was begun with.
    done
        Steps that are durable.
    gone_on_at
        Steps that were when this call began.
    """

    def __init__(
        self,
        out: PathLike | None,
        verb: str,
        arguments: Mapping[str, Any],
        operands: Mapping[str, Operand],
        memory: int | str | None,
        *,
        resume: bool,
    ) -> None:
        self.memory_bytes = budget.resolve(memory)
        self.done = self._of = 0
        self._system: Any = {"verb": verb, **arguments}
        self._operands: Mapping[str, Operand] | None = operands
        self._record = None if out is None else BlocksDone(place(out), STEPS, verb)
        self._due_s = time.monotonic() + NOTE_S
        if self._record is not None:
            # As it is before anything is read of it.
            self._versions = {
                name: version_of_operand(given)
                for name, given in operands.items()
                if not isinstance(given, np.ndarray)
            }
        if resume:
            self._find(budget.available_bytes() if memory is None else self.memory_bytes)
        self.gone_on_at = self.done

    def _find(self, most_bytes: int) -> None:
        """Look for the note of a call that was stopped; one that is damaged is none."""
        record = self._record
        with contextlib.suppress(OutcoreError, ValueError, KeyError, TypeError):
            if record is None or not record.is_there():
                return
            header = json.loads(record.lines()[0])
            memory_bytes, done = int(header["memory_bytes"]), record.done_of(header["steps"])
            if memory_bytes <= most_bytes and header["system"] == self._described():
                self.memory_bytes, self.done, self._of = memory_bytes, done, int(header["steps"])
                record.header = json.dumps(header).encode() + b"\n"

    def _described(self) -> Any:
        """Tell this call apart: what is in memory is summed up, which takes a while."""
        if self._operands is not None:
            versions = {
                name: self._versions.get(name) or version_of_operand(given)
                for name, given in self._operands.items()
            }
            self._system = json.loads(json.dumps({**self._system, "operands": versions}))
            self._operands = None
        return self._system

    def find(self, where: Place, begun: Metadata) -> bool:
        """Tell whether the array that a call begins with is there, and is to be gone on with.

        What a killed process left of files that it was about to replace is removed.
        """
        if self.done:
            with contextlib.suppress(OutcoreError):
                if where.exists() and read_metadata(where) == begun:
                    where.remove_half_written()
                    return True
        self.forget()
        return False

    def forget(self) -> None:
        """Begin anew: what a note says is there is not."""
        if self.done and self._record is not None:
            with contextlib.suppress(OutcoreError):
                self._record.remove()
        self.done = self.gone_on_at = 0

    def begin(self, steps: int) -> int:
        """Tell after how many of all steps a call begins."""
        if self._of != steps:
            self.forget()
        return self.gone_on_at

    def left(self, steps: Sequence[T]) -> list[tuple[int, T]]:
        """Tell which steps are left when a call begins: each with how many are done after it."""
        self.begin(len(steps))
        return list(enumerate(steps[self.gone_on_at :], self.gone_on_at + 1))

    def passed(self, done: int, steps: int, make_durable: Callable[[], None]) -> None:
        """Note, if it is time, that so many steps of all are written.

        On a disk that has no room for that, the call goes on, and tries again later.
        """
        begun_s = time.monotonic()
        if self._record is None or done == steps or begun_s < self._due_s:
            return
        with contextlib.suppress(DiskFullError):
            make_durable()
            self._note(self._record, done, steps)
        now_s = time.monotonic()
        self._due_s = now_s + max(NOTE_S, (now_s - begun_s) / MOST_SHARE)

    def _note(self, record: BlocksDone, done: int, steps: int) -> None:
        if self.done:
            record.note(done)
        else:
            header = {
                "system": self._described(), "memory_bytes": self.memory_bytes, "steps": steps
            }  # fmt: skip
            record.header = json.dumps(header).encode() + b"\n"
            record.begin(done)
        self.done = done

    def finish(self) -> None:
        """Remove the note: the result is whole."""
        if self.done and self._record is not None:
            self._record.remove()

    def notes(self, steps: int, what: str = "step") -> list[str]:
        """Say in a report that a call was gone on with; `what` a step is."""
        if not self.gone_on_at:
            return []
        return [
            f"gone on at {what} {self.gone_on_at} of {steps}: bytes moved are of the rest, those "
            "planned of the whole"
        ]

    def stopped(self, what: str, function: str) -> str:
        """Say to who stopped a call what is left."""
        if self.done:
            return (
                f"{what} was stopped; call {function} again with the same arguments to go on from "
                "what is done"
            )
        return f"{what} was stopped, and nothing is left of it; call {function} again"


def version_of_operand(given: Operand) -> list[Any]:
    """Tell operands apart, as they are on disk or in memory, as JSON has it."""
    if isinstance(given, Factor):
        tiles = place(given.path).below(given.kind.array)
        return [str(given.path), *version_of(tiles)]
    if isinstance(given, Array):
        settle(given.place)
        return [given.place.source, *version_of(given.place)]
    return [list(given.shape), str(given.dtype), _digest(given)]


def _digest(given: npt.NDArray[Any]) -> str:
    """Sum up elements, some at a time, the same whatever their strides."""
    found = hashlib.blake2b(digest_size=16)
    columns = given[:, None] if given.ndim == 1 else given
    for first in range(0, len(columns), _PART_ROWS):
        rows = columns[first : first + _PART_ROWS]
        count = max(_PART_BYTES // max(rows[:, :1].nbytes, 1), 1)
        for left in range(0, columns.shape[1], count):
            found.update(np.ascontiguousarray(rows[:, left : left + count].T).data)
    return found.hexdigest()
