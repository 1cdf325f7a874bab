"""State of a call in memory, saved on disk from time to time, so that streams need no second pass.

Beside the result are two copies of the state, written alternately, each with the number of its
step, and checksums. The call records the step (`outcore.linalg._output.steps_done`) after a copy is
durable. So the copy of the last recorded step is never the one that is being written.
"""

import contextlib
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from outcore._core import ArrayFile, Buffer
from outcore._util.streams import wait
from outcore.array.array import Array
from outcore.array_files.blocks_done import STATE
from outcore.errors import CorruptError, OutcoreError
from outcore.layout.zarr_format import SLOT_ALIGN_BYTES
from outcore.linalg._output.kept_state_plan import PLACES, state_metadata
from outcore.linalg._output.result import working_array
from outcore.linalg._output.steps_done import StepsDone
from outcore.linalg._rows.stream import allocated
from outcore.linalg._tiles.grains import BOUNCE_BYTES
from outcore.linalg._tiles.matrix import Matrix
from outcore.linalg._tiles.operand import open_whole_chunks
from outcore.report.longcall import LongCall
from outcore.report.report import KEPT


class KeptState:
    """Matrices of a call, and their copies on disk.

    Parameters
    ----------
    target
        The result; `None` if it is in memory, so that nothing can be saved.
    steps
        The record of durable steps.
    heights
        Heights of the blocks of rows, and similar numbers: a state saved with other heights has
        other steps.
    matrices
        The complete memory that `allocated` returned for each.
    call
        The call.
    """

    def __init__(
        self,
        target: Array | None,
        steps: StepsDone,
        heights: Sequence[int],
        matrices: Sequence[Matrix],
        call: LongCall,
    ) -> None:
        self._target, self._steps, self._call = target, steps, call
        self._heights = list(heights)
        self._parts: list[npt.NDArray[np.uint8]] = []
        if target is not None:
            parts = [matrix for matrix in matrices if matrix.size]
            self._mark = allocated(call, (1 + len(heights) + len(parts), 1), np.dtype(np.int64))
            self._parts = [_whole_pages(part) for part in (self._mark, *parts)]
            self._buffers = [_buffer(part) for part in parts]
        self._pages = sum(len(part) for part in self._parts)
        self._file: ArrayFile | None = None
        self._next = 0

    def load(self, steps: int, *needed: str) -> int:
        """Load the state of the last recorded step, and return the number of that step.

        If the state is missing, or `needed` arrays in the result are, the call restarts: 0.

        Raises
        ------
        CorruptError
            If the state is damaged.
        """
        done = self._steps.begin(steps)
        if not done or self._target is None:
            return 0
        if all(
            self._target.place.below(name).exists() for name in (self._steps.own(STATE), *needed)
        ):
            for number in range(PLACES):
                if self._is_of(number, done):
                    self._take(number)
                    return done
        self._file = None
        self._steps.forget()
        return 0

    def passed(
        self, done: int, steps: int, make_durable: Callable[[], object] = lambda: None
    ) -> None:
        """Save the state, if it is time, and record that `done` of all `steps` are done.

        First `make_durable` syncs the data of these steps on disk.
        """

        def keep() -> None:
            make_durable()
            self._mark[:, 0] = done, *self._heights, *self._checksums()
            self._write()

        before = self._steps.done
        self._steps.passed(done, steps, keep)
        if self._steps.done != before:
            self._next = 1 - self._next

    def _checksums(self) -> list[int]:
        return [buffer.crc32c(buffer.nbytes) for buffer in self._buffers]

    def _take(self, number: int) -> None:
        """Load a copy, and check that it is complete."""
        self._read(number, self._parts)
        if self._mark[1 + len(self._heights) :, 0].tolist() != self._checksums():
            assert self._target is not None, "there is a place"
            where = self._target.place.below(self._steps.own(STATE))
            raise CorruptError(
                f"the state of the stopped call in {where.path} is damaged; pass resume=False to "
                "restart"
            )
        self._next = 1 - number

    def _is_of(self, number: int, done: int) -> bool:
        """Whether a copy belongs to a step."""
        with contextlib.suppress(OutcoreError):
            self._read(number, self._parts[:1])
            found = self._mark[: 1 + len(self._heights), 0]
            return np.array_equal(found, [done, *self._heights])
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

    def _opened(self, *, anew: bool) -> ArrayFile:
        """Open the file, whose space on disk is allocated before the first write."""
        if self._file is None:
            assert self._target is not None, "there is a place"
            metadata = state_metadata(self._pages)
            array = working_array(self._target, self._steps.own(STATE), metadata, anew=anew)
            self._file = open_whole_chunks(
                array, self._call, BOUNCE_BYTES[0], number=KEPT, writable=True
            )
        return self._file


def _whole_pages(matrix: Matrix) -> npt.NDArray[np.uint8]:
    """Return the complete memory of a matrix, page by page."""
    memory = memoryview(_buffer(matrix))
    return np.frombuffer(memory, np.uint8).reshape(-1, SLOT_ALIGN_BYTES)


def _buffer(matrix: Matrix) -> Buffer:
    """Return the arena's buffer of a matrix."""
    owner: object = matrix
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner = owner.obj if isinstance(owner, memoryview) else owner
    assert isinstance(owner, Buffer), "it came from the arena"
    return owner
