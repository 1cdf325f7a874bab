"""Results on disk that are written step by step, and the record from which a stopped call resumes.

Steps are independent parts of a result, in an order determined by the arguments and the budget.
About every minute the call makes the written data durable, and records the number of durable steps,
with its identity, beside the result. The same call resumes from there. It needs the same budget,
because its steps depend on the budget.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from outcore._util import budget
from outcore.array.array import Array
from outcore.array_files.blocks_done import STEPS, BlocksDone, name_of
from outcore.array_files.metadata import read_metadata, settle, version_of
from outcore.errors import BudgetError, DiskFullError, OutcoreError
from outcore.layout.zarr_format import Metadata
from outcore.linalg._output.factor import Factor
from outcore.processes.sharing import Sharing, failure, origin_of
from outcore.storage.volumes import PathLike, Place, place

NOTE_S = 60.0
"""Steps that took less time are recorded together with later ones."""

MOST_SHARE = 0.05
"""Largest share of the time for records, including the syncs that they need."""

_PART_BYTES, _PART_ROWS = 4 << 20, 1 << 16

G = TypeVar("G")
T = TypeVar("T")

Operand = Array | npt.NDArray[Any] | Factor

Made: TypeAlias = Mapping[str, Any] | None
"""Function and arguments of a call with ``if_exists="open"``, for its result; else `None`."""


class StepsDone:
    """The durable steps of a call.

    Parameters
    ----------
    out
        Place of the result; `None` for a result in memory, without a record.
    verb, arguments
        The operation and its arguments, as JSON values.
    operands
        The operands.
    memory
        The budget, as passed by the user.
    resume
        Whether to resume an earlier, stopped call with the same arguments.
    made
        The identity of the call, for its result.
    sharing
        The processes of the call, each of which has steps and a record of its own. A call by
        another number of processes does not resume.

    Attributes
    ----------
    memory_bytes
        The budget; in a resumed call, that of the first call.
    done
        Number of durable steps.
    gone_on_at
        Number of durable steps at the start of this call.
    sharing
        The processes of the call.
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
        made: Made = None,
        sharing: Sharing | None = None,
    ) -> None:
        self.made, self.sharing = made, sharing or Sharing()
        self.memory_bytes = self._given_bytes = self.sharing.budget(memory)
        self._most_bytes = budget.available_bytes() if memory is None else self.memory_bytes
        self.done = self._of = 0
        self._system: Any = {"verb": verb, **arguments}
        if self.sharing.size > 1:
            self._system |= {"processes": self.sharing.size}
        self._operands: Mapping[str, Operand] | None = operands
        self._record = None if out is None else BlocksDone(place(out), self.own(STEPS), verb)
        self._due_s = time.monotonic() + NOTE_S
        if self._record is not None:
            # The versions before the call reads any data.
            self._versions = {
                name: version_of_operand(given)
                for name, given in operands.items()
                if not isinstance(given, np.ndarray)
            }
        if resume:
            self._find()
        self.gone_on_at = self.done

    def _find(self) -> None:
        """Read the record of a stopped call; a damaged record is ignored."""
        record = self._record
        with contextlib.suppress(OutcoreError, ValueError, KeyError, TypeError):
            if record is None or not record.is_there():
                return
            header = json.loads(record.lines()[0])
            memory_bytes, done = int(header["memory_bytes"]), record.done_of(header["steps"])
            if memory_bytes <= self._most_bytes and header["system"] == self._described():
                self.memory_bytes, self.done, self._of = memory_bytes, done, int(header["steps"])
                record.header = json.dumps(header).encode() + b"\n"

    def planned(self, plan: Callable[[int], G]) -> G:
        """Give all processes the same budget, and return `plan` for it.

        It is the smallest one, or that of the call that resumes. Some processes of that call may
        have no record. All restart if there are records of several calls, or if its budget is too
        large for one of them.

        Raises
        ------
        BudgetError
            If it is too small. On several processes, the error names the one that has it.
        """
        recorded = self.memory_bytes if self.done else None
        all_of = self.sharing.exchange((recorded, self._given_bytes, self._most_bytes))
        found = {each[0] for each in all_of if each[0] is not None}
        least = min(each[1] for each in all_of)
        if len(found) != 1 or max(found) > min(each[2] for each in all_of):
            # The records are removed with the result, when it is locked.
            self.done = self.gone_on_at = 0
            found = {least}
        (self.memory_bytes,) = found
        try:
            return plan(self.memory_bytes)
        except BudgetError as error:
            if self.sharing.size == 1:
                raise
            rank = [each[1] for each in all_of].index(least)
            raise failure(origin_of(error, rank)) from None

    def _described(self) -> Any:
        """Return the identity of this call. The checksums of operands in memory take a while."""
        if self._operands is not None:
            versions = {
                name: self._versions.get(name) or version_of_operand(given)
                for name, given in self._operands.items()
            }
            self._system = json.loads(json.dumps({**self._system, "operands": versions}))
            self._operands = None
        return self._system

    def find(self, where: Place, begun: Metadata) -> bool:
        """Return whether the array to resume exists, and any process has steps in it.

        Temporary files of a killed process are removed.
        """
        is_there = False
        if self.done:
            with contextlib.suppress(OutcoreError):
                is_there = where.exists() and read_metadata(where) == begun
        if not is_there:
            self.forget()
        goes_on = any(self.sharing.exchange(is_there))
        if goes_on and self.sharing.rank == 0:
            with contextlib.suppress(OutcoreError):
                where.remove_half_written()
        return goes_on

    def own(self, name: str) -> str:
        """Return the name of a record, or of a working array, of this process."""
        return name_of(name, self.sharing.rank, self.sharing.size)

    def forget(self) -> None:
        """Restart: remove the record, whose steps are lost."""
        if self.done and self._record is not None:
            with contextlib.suppress(OutcoreError):
                self._record.remove()
        self.done = self.gone_on_at = 0

    def begin(self, steps: int) -> int:
        """Return the number of durable steps from which a call with `steps` steps resumes."""
        if self._of != steps:
            self.forget()
        return self.gone_on_at

    def left(self, steps: Sequence[T]) -> list[tuple[int, T]]:
        """Return the remaining steps, each with the number of done steps after it."""
        self.begin(len(steps))
        return list(enumerate(steps[self.gone_on_at :], self.gone_on_at + 1))

    def passed(self, done: int, steps: int, make_durable: Callable[[], None]) -> None:
        """Record, if it is time, that `done` of `steps` steps are written.

        If the disk is full, the call continues, and retries later.
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
        """Remove the record: the result is complete."""
        if self.done and self._record is not None:
            self._record.remove()

    def notes(self, steps: int, what: str = "step") -> list[str]:
        """Return a note for the report of a resumed call; `what` is the name of a step.

        Steps are those of all processes, which meet here.
        """
        all_of = self.sharing.exchange((self.gone_on_at, steps))
        done, steps = (sum(numbers) for numbers in zip(*all_of, strict=True))
        if not done:
            return []
        return [
            f"resumed at {what} {done} of {steps}: bytes moved are of the rest, those planned of "
            "the whole"
        ]

    def stopped(self, what: str, function: str, error: BaseException) -> str:
        """Tell the other processes, and return the message about the remains of a stopped call."""
        self.sharing.tell(error)
        because = f", because {error}" if hasattr(error, "_origin") else ""
        was_stopped = f"{what} was stopped{because}"
        if self.sharing.size > 1 and self._record is not None:
            return (
                f"{was_stopped}; call {function} again with the same arguments and "
                f"{self.sharing.size} processes to resume"
            )
        if self.done:
            return f"{was_stopped}; call {function} again with the same arguments to resume"
        return f"{was_stopped}, and nothing is left of it; call {function} again"


def version_of_operand(given: Operand) -> list[Any]:
    """Return a JSON value that distinguishes operands, on disk or in memory."""
    if isinstance(given, Factor):
        tiles = place(given.path).below(given.kind.array)
        return [str(given.path), *version_of(tiles)]
    if isinstance(given, Array):
        settle(given.place)
        return [given.place.source, *version_of(given.place)]
    return [list(given.shape), str(given.dtype), _digest(given)]


def _digest(given: npt.NDArray[Any]) -> str:
    """Compute a checksum of the elements, in parts, independent of their strides."""
    found = hashlib.blake2b(digest_size=16)
    columns = given[:, None] if given.ndim == 1 else given
    for first in range(0, len(columns), _PART_ROWS):
        rows = columns[first : first + _PART_ROWS]
        count = max(_PART_BYTES // max(rows[:, :1].nbytes, 1), 1)
        for left in range(0, columns.shape[1], count):
            found.update(np.ascontiguousarray(rows[:, left : left + count].T).data)
    return found.hexdigest()
