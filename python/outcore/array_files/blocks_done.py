"""Count the durable blocks of an unfinished array, so that a stopped call can resume."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from outcore.array_files.metadata import is_half_made, read_metadata
from outcore.errors import CorruptError, InvalidError, JournalError
from outcore.layout.zarr_format import Metadata
from outcore.storage.volumes import Place

SYNC_BYTES = 256 << 20
NOTE_S = 5.0
"""Bytes or seconds of writes between two syncs with a note. A killed process or a power cut loses
no more than this."""

FILL, COPY, STEPS = "outcore.fill", "outcore.copy", "outcore.steps"
RECORDS = (FILL, COPY, STEPS)
"""Names of these records in an array: for an assembly, a copy, and a result made in steps."""

STATE, REFLECTIONS = "outcore.state", "outcore.reflections"
BETWEEN = ("outcore.between-1", "outcore.between-2", "outcore.between-3")
WORKING = (STATE, REFLECTIONS, *BETWEEN)
"""Names of working arrays of a call, inside its unfinished result. `BETWEEN` are those of a copy in
several passes."""

Range: TypeAlias = tuple[int, int]
"""Number of the first block, and the number behind the last."""

_ANEW = 32
"""Number of notes after which the record is rewritten, to keep it short."""


@dataclass
class BlocksDone:
    """The record of an array's durable blocks: a file of JSON lines; the last whole one counts.

    Attributes
    ----------
    where, name
        The array, and the name of the file in it.
    doing
        The kind of call that makes the array, for error messages.
    header
        A line before the others, or nothing.
    """

    where: Place
    name: str
    doing: str
    header: bytes = b""
    _notes: int = field(default=0, init=False)

    def begin(self, done: int, further: Sequence[Range] = ()) -> None:
        """Rewrite the record, with this number of durable blocks, and further ranges of them."""
        self.where.replace_small(self.name, self.header + _record(done, further))

    def note(self, done: int, further: Sequence[Range] = ()) -> None:
        """Append a line. Even on a full disk it fits into the file's last disk block."""
        self._notes += 1
        if self._notes % _ANEW == 0:
            self.begin(done, further)
        else:
            line = _record(done, further)
            self.where.volume.append_small(self.where.inside(self.name), line)

    def is_there(self) -> bool:
        """Whether the record exists."""
        return self.where.exists(self.name)

    def lines(self) -> list[bytes]:
        """Read the lines of the record; the last one is torn or empty."""
        return self.where.volume.read_small(self.where.inside(self.name)).split(b"\n")

    def done_of(self, blocks: int) -> int:
        """Return the number of durable blocks, at most `blocks`, without further ranges.

        Raises
        ------
        JournalError
            If no line contains a valid number.
        """
        return self.ranges_of(blocks)[0][1]

    def ranges_of(self, blocks: int) -> list[Range]:
        """Return the ranges of durable blocks. The first one begins at block 0, and may be empty.

        Raises
        ------
        JournalError
            If no line contains a valid number.
        """
        for line in self.lines()[-2::-1]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                found = json.loads(line)
                done = [0, int(found["blocks_done"])]
                further = [
                    int(at) for first, end in found.get("further", ()) for at in (first, end)
                ]
                ends = done + further
                if ends == sorted(ends) and ends[-1] <= blocks:
                    return list(zip(ends[::2], ends[1::2], strict=True))
        raise self.damaged()

    def damaged(self) -> JournalError:
        """Return the error for an unreadable record."""
        return JournalError(
            f"the record of the stopped {self.doing} in {self.where.path} is damaged; "
            "pass if_exists='overwrite' to restart"
        )

    def remove(self) -> None:
        """Remove the record, because the array is whole."""
        self.where.volume.remove(self.where.inside(self.name))

    def was_stopped(self, begun: Metadata) -> bool:
        """Whether such a call left a half-made array; refuse one of another shape.

        Also remove temporary files that a killed process left.

        Raises
        ------
        JournalError
            If shape, type or layout differ from those of `begun`.
        """
        if not self.where.exists():
            stopped = is_half_made(self.where)
        else:
            try:
                found = read_metadata(self.where)
            except (InvalidError, CorruptError):
                return False  # not such an array
            # A crash between the last two steps leaves a record of a whole array: ignore it.
            stopped = (found.state, found.why) == (begun.state, begun.why)
            if stopped and _layout(found, begun) != _layout(begun, begun):
                raise JournalError(
                    f"{self.where.path} holds a half-made array of another shape, type or layout; "
                    "pass if_exists='overwrite' to restart"
                )
        if stopped:
            self.where.remove_half_written()
        return stopped


def name_of(name: str, rank: int, size: int) -> str:
    """Return the name of a record or a working array of one process of a call."""
    return name if size == 1 else f"{name}-{rank}"


def is_named(name: str, names: Collection[str]) -> bool:
    """Whether a file has one of these names, for one process or for one of several."""
    return name in names or name.partition("-")[0] in names


def _layout(metadata: Metadata, begun: Metadata) -> Metadata:
    return dataclasses.replace(metadata, state=begun.state, why=begun.why, attributes={})


def _record(blocks: int, further: Sequence[Range] = ()) -> bytes:
    more = {"further": further} if further else {}
    return json.dumps({"blocks_done": blocks, **more}).encode() + b"\n"


def blocks_of(metadata: Metadata) -> int:
    """Count the chunks of an array."""
    extents = zip(metadata.shape, metadata.chunks, strict=True)
    return math.prod(math.ceil(n / c) for n, c in extents)
