"""How many blocks of an array that is being made are durable: where a stopped call goes on."""

import contextlib
import dataclasses
import json
import math
from dataclasses import dataclass, field

from outcore.array_metadata import is_half_made, read_metadata
from outcore.errors import CorruptError, InvalidError, JournalError
from outcore.volumes import Place
from outcore.zarr_format import Metadata

SYNC_BYTES = 256 << 20
NOTE_S = 5.0
"""After this much is written, or this long, it is made durable and noted, so that a killed process
or a power cut loses no more."""

FILL, COPY, STEPS = "outcore.fill", "outcore.copy", "outcore.steps"
RECORDS = (FILL, COPY, STEPS)
"""Names of such records in an array: of an assembly, of a copy, and of a result by steps."""

STATE, REFLECTIONS = "outcore.state", "outcore.reflections"
WORKING = (STATE, REFLECTIONS)
"""Names of arrays in a result that is not whole: what a call works with."""

_ANEW = 32
"""Notes after which the record is written anew, so that it stays short."""


@dataclass
class BlocksDone:
    """The record of it, a file in the array: lines of JSON, of which the last whole one counts.

    Attributes
    ----------
    where, name
        The array, and the name of the file in it.
    doing
        What makes the array, for errors.
    header
        A line before the others, or nothing.
    """

    where: Place
    name: str
    doing: str
    header: bytes = b""
    _notes: int = field(default=0, init=False)

    def begin(self, done: int) -> None:
        """Write it anew: so many blocks are durable."""
        self.where.replace_small(self.name, self.header + _record(done))

    def note(self, done: int) -> None:
        """Add a line: on a full disk, the block that the file has is room enough."""
        self._notes += 1
        if self._notes % _ANEW == 0:
            self.begin(done)
        else:
            self.where.volume.append_small(self.where.inside(self.name), _record(done))

    def is_there(self) -> bool:
        """Whether there is such a record."""
        return self.where.exists(self.name)

    def lines(self) -> list[bytes]:
        """Read its lines; what follows the last end of a line is torn, and last."""
        return self.where.volume.read_small(self.where.inside(self.name)).split(b"\n")

    def done_of(self, blocks: int) -> int:
        """Read how many are durable, of so many.

        Raises
        ------
        JournalError
            If no line says it.
        """
        for line in self.lines()[-2::-1]:
            with contextlib.suppress(ValueError, KeyError, TypeError):
                done = json.loads(line)["blocks_done"]
                if 0 <= int(done) <= blocks:
                    return int(done)
        raise self.damaged()

    def damaged(self) -> JournalError:
        """Make the error for a record that cannot be read."""
        return JournalError(
            f"the record of the stopped {self.doing} in {self.where.path} is damaged; "
            "pass if_exists='overwrite' to begin anew"
        )

    def remove(self) -> None:
        """Remove it: the array is whole."""
        self.where.volume.remove(self.where.inside(self.name))

    def was_stopped(self, begun: Metadata) -> bool:
        """Whether there is a half-made array that such a call left; refuse one of another shape.

        What a killed process left of files that it was about to replace is removed.

        Raises
        ------
        JournalError
            If its shape, type or layout are not those of `begun`.
        """
        if not self.where.exists():
            stopped = is_half_made(self.where)
        else:
            try:
                found = read_metadata(self.where)
            except (InvalidError, CorruptError):
                return False  # something else
            # A record that was left between the last two steps counts no more.
            stopped = (found.state, found.why) == (begun.state, begun.why)
            if stopped and _layout(found, begun) != _layout(begun, begun):
                raise JournalError(
                    f"{self.where.path} holds a half-made array of another shape, type or layout; "
                    "pass if_exists='overwrite' to begin anew"
                )
        if stopped:
            self.where.remove_half_written()
        return stopped


def _layout(metadata: Metadata, begun: Metadata) -> Metadata:
    return dataclasses.replace(metadata, state=begun.state, why=begun.why, attributes={})


def _record(blocks: int) -> bytes:
    return json.dumps({"blocks_done": blocks}).encode() + b"\n"


def blocks_of(metadata: Metadata) -> int:
    """Count the chunks of an array."""
    extents = zip(metadata.shape, metadata.chunks, strict=True)
    return math.prod(math.ceil(n / c) for n, c in extents)
