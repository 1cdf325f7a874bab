"""What a call holds in memory, kept on disk from time to time: what goes by once need not again.

Beside the result lie two copies of it, written in turn, each with the number of the step that it is
of. A note (`outcore.linalg.steps_done`) is made when a copy is durable, so the one that the last
note is of is never the one that is being written.
"""

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile
from outcore.array import Array
from outcore.errors import OutcoreError
from outcore.linalg.grains import BOUNCE_BYTES
from outcore.linalg.kept_state_plan import PLACES
from outcore.linalg.matrix import Matrix
from outcore.linalg.products.operand import open_whole_chunks
from outcore.linalg.result import STATE, working_array
from outcore.linalg.rows.stream import allocated
from outcore.linalg.steps_done import StepsDone
from outcore.longcall import LongCall
from outcore.report import KEPT
from outcore.streams import wait
from outcore.zarr_format import SLOT_ALIGN_BYTES, Metadata

_CHUNK_PAGES = 256


class KeptState:
    """Matrices of a call, and their copies on disk.

    Parameters
    ----------
    target
        The result; `None` where it is in memory, so that nothing can be kept.
    steps
        The notes.
    heights
        Rows of the blocks in which matrices go by: with others, what is kept is of other steps.
    matrices
        All of the memory that `allocated` gave for each.
    call
        The call.
    name
        Name in the result.
    """

    def __init__(
        self,
        target: Array | None,
        steps: StepsDone,
        heights: Sequence[int],
        matrices: Sequence[Matrix],
        call: LongCall,
        name: str = STATE,
    ) -> None:
        self._target, self._steps, self._call, self._name = target, steps, call, name
        self._heights = list(heights)
        self._parts: list[npt.NDArray[np.uint8]] = []
        if target is not None:
            self._mark = allocated(call, (1 + len(heights), 1), np.dtype(np.int64))
            parts = [self._mark, *(matrix for matrix in matrices if matrix.size)]
            self._parts = [_whole_pages(part) for part in parts]
        self._pages = sum(len(part) for part in self._parts)
        self._file: ArrayFile | None = None
        self._next = 0

    def load(self, steps: int, *needed: str) -> int:
        """Take up what the last note is of, and tell after how many of all steps that is.

        If it is not there, or `needed` arrays in the result are not, the call begins anew: 0.
        """
        done = self._steps.begin(steps)
        if not done or self._target is None:
            return 0
        if all(self._target.place.below(name).exists() for name in (self._name, *needed)):
            for number in range(PLACES):
                if self._is_of(number, done):
                    # Nothing is in order any more if this fails.
                    self._read(number, self._parts)
                    self._next = 1 - number
                    return done
        self._file = None
        self._steps.forget()
        return 0

    def passed(
        self, done: int, steps: int, make_durable: Callable[[], object] = lambda: None
    ) -> None:
        """Keep it, if it is time, and note that so many steps of all are done.

        What is on disk of them is made durable before.
        """

        def keep() -> None:
            make_durable()
            self._mark[:, 0] = done, *self._heights
            self._write()

        self._steps.passed(done, steps, keep)

    def _is_of(self, number: int, done: int) -> bool:
        """Whether a copy is of a step."""
        with contextlib.suppress(OutcoreError):
            self._read(number, self._parts[:1])
            return np.array_equal(self._mark[:, 0], [done, *self._heights])
        return False

    def _read(self, number: int, parts: Sequence[npt.NDArray[np.uint8]]) -> None:
        file, first = self._opened(anew=False), number * self._pages
        for part in parts:
            wait(file.submit_read([first, 0], [1, 1], part), self._call.trace)
            first += len(part)

    def _write(self) -> None:
        file, first = self._opened(anew=True), self._next * self._pages
        tickets = []
        for part in self._parts:
            tickets.append(file.submit_write([first, 0], [1, 1], part))
            first += len(part)
        for ticket in tickets:
            wait(ticket, self._call.trace)
        wait(file.submit_sync(), self._call.trace)
        self._next = 1 - self._next

    def _opened(self, *, anew: bool) -> ArrayFile:
        """Open the file, of which all room on disk is taken before anything is written."""
        if self._file is None:
            assert self._target is not None, "there is a place"
            shape = (PLACES * self._pages, SLOT_ALIGN_BYTES)
            chunks = (min(_CHUNK_PAGES, shape[0]), SLOT_ALIGN_BYTES)
            metadata = Metadata(shape, np.dtype(np.uint8), chunks)
            array = working_array(self._target, self._name, metadata, anew=anew)
            self._file = open_whole_chunks(
                array, self._call, BOUNCE_BYTES[0], number=KEPT, writable=True
            )
        return self._file


def _whole_pages(matrix: Matrix) -> npt.NDArray[np.uint8]:
    """Return all of the memory that a matrix was given, page by page."""
    owner: Any = matrix
    while isinstance(owner, np.ndarray):
        owner = owner.base
    return np.frombuffer(owner, np.uint8).reshape(-1, SLOT_ALIGN_BYTES)
