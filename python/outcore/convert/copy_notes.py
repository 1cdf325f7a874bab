"""Resume of stopped copies: the record of the source and of the durable blocks."""

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

from outcore._core import Ticket
from outcore.array_files import blocks_done
from outcore.array_files.blocks_done import COPY, BlocksDone
from outcore.array_files.metadata import read_generation
from outcore.convert.copy_plan import Step
from outcore.errors import JournalError, OutcoreError
from outcore.layout.casting import Casting
from outcore.storage.volumes import Place


class CopyRecord(BlocksDone):
    """The record of a copy. Its header names the source and the blocks.

    Attributes
    ----------
    goes_on
        Whether a later call can resume the copy.
    """

    def __init__(self, where: Place) -> None:
        super().__init__(where, COPY, "copy")
        self.goes_on = False

    def passes_of(
        self, version: dict[str, Any] | None, casting: Casting, *, verify: bool = False
    ) -> tuple[list[list[Any]], list[tuple[int, ...]]] | None:
        """Return the blocks of each pass of a stopped copy, and the chunks of arrays between them.

        The result is `None` if the copy must restart.

        Blocks copied with ``casting="unsafe"`` may differ from those of another casting. To
        `verify` a copy in several passes, the stopped call must have done so too.

        Raises
        ------
        JournalError
            If the stopped copy was of another source, or the source has changed since.
        """
        if not self.is_there():
            return None
        try:
            header = json.loads(self.lines()[0])
            of, steps, generation = header["source"], header["steps"], int(header["generation"])
            before = [(list(each), tuple(chunks)) for each, chunks in header.get("before", [])]
        except (ValueError, KeyError, TypeError):
            raise self.damaged() from None
        if of != version:
            now = _name(version)
            what = "of another part of it, or it was written to since" if _name(of) == now else now
            raise JournalError(
                f"{self.where.path} holds a half-made copy of {_name(of)}, and this is {what}; "
                "pass if_exists='overwrite' to restart"
            )
        if version is not None and read_generation(self.where) not in (generation - 1, generation):
            raise JournalError(
                f"{self.where.path} was written to since copying into it was stopped; pass "
                "if_exists='overwrite' to restart"
            )
        was_unsafe = header.get("casting") == "unsafe"
        was_unverified = bool(before) and not header.get("verify")
        if (was_unsafe and casting != "unsafe") or (was_unverified and verify) or version is None:
            return None
        return [*(each for each, _ in before), steps], [chunks for _, chunks in before]

    def describe(
        self,
        version: dict[str, Any] | None,
        casting: Casting,
        steps: Sequence[Sequence[Step]],
        between: Sequence[tuple[int, ...]] = (),
        *,
        verify: bool = False,
    ) -> None:
        """Write the source, and the result of `passes_of`, into the header."""
        self.goes_on = version is not None
        header = {
            "source": version,
            "casting": casting,
            "verify": verify,
            "steps": steps[-1],
            "before": list(zip(steps[:-1], between, strict=True)),
            # The generation that the array has once it is open for writing.
            "generation": read_generation(self.where) + 1,
        }
        self.header = json.dumps(header).encode() + b"\n"


def _name(version: dict[str, Any] | None) -> str:
    return "data in no file" if version is None else str(version["path"])


class CopyNotes:
    """Follow the writes of a copy, and record the number of durable blocks from time to time.

    Parameters
    ----------
    record
        The record.
    sync
        Function that starts to make all submitted writes durable.
    done
        Number of blocks that are already durable.
    """

    def __init__(self, record: BlocksDone, sync: Callable[[], Ticket], done: int) -> None:
        self.done = done
        self._record, self._start = record, sync
        self._writes: list[Ticket] = []
        self._unsynced = 0
        self._began = time.monotonic()
        self._sync: Ticket | None = None
        self._synced: list[Ticket] = []
        self._is_doubtful = False  # whether written blocks may be lost

    def add(self, write: Ticket, nbytes: int) -> None:
        """Add the write of the next block."""
        self._writes.append(write)
        self._unsynced += nbytes
        # If writes outpace the sync, wait for it, so that a crash loses no more than SYNC_BYTES.
        is_late = self._unsynced > blocks_done.SYNC_BYTES
        if self._sync is not None and (is_late or self._sync.done()):
            self._note()
        is_due = (
            self._unsynced > blocks_done.SYNC_BYTES
            or time.monotonic() - self._began > blocks_done.NOTE_S
        )
        if is_due and self._sync is None:
            self._begin_sync()

    def finish(self) -> None:
        """Wait for a started sync, and raise its error, which the system reports only once."""
        if self._sync is not None:
            self._note()

    def settle(self) -> None:
        """Make all writes durable, and record them."""
        self.finish()
        if self._writes:
            self._begin_sync()
            self._note()

    def back_to(self, number: int) -> None:
        """Record that only the first blocks are good, `number` of them."""
        self.done = number
        self._record.begin(number)

    def stop(self) -> None:
        """After a failure, record the blocks that are durable. Errors here are ignored.

        After a failed sync nothing is recorded any more: the system may have dropped the data, and
        may not report that again.
        """
        with contextlib.suppress(OutcoreError):
            self.finish()
            whole = 0
            with contextlib.suppress(OutcoreError):
                for ticket in self._writes:
                    ticket.wait()
                    whole += 1
            self._writes = self._writes[:whole]
            if self._writes and not self._is_doubtful:
                self._begin_sync()
                self._note()

    def _begin_sync(self) -> None:
        self._sync, self._synced, self._writes = self._start(), self._writes, []
        self._unsynced, self._began = 0, time.monotonic()

    def _note(self) -> None:
        assert self._sync is not None, "a sync was begun"
        sync, self._sync = self._sync, None
        self._is_doubtful = True
        sync.wait()
        for write in self._synced:
            write.wait()
        self._is_doubtful = False
        self.done += len(self._synced)
        self._record.note(self.done)
