"""Pieces of an operand on disk that all processes of a product use at the same time.

Each process reads some of them, and the others receive them from it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy.typing as npt

from outcore._core import ArrayFile, Ticket
from outcore._util.streams import Block, BlockStream
from outcore.linalg._products.piece_counts import RING_PIECES, SLOTS, pieces_in_memory
from outcore.linalg._tiles.operand import DiskOperand, Extent, Operand, Part
from outcore.processes.blocks import Expected
from outcore.processes.broadcasts import blocks_of
from outcore.processes.team import Team
from outcore.report.longcall import LongCall


class Pieces:
    """The pieces of a product in the order of their use.

    Attributes
    ----------
    sent
        Bytes and messages that this process has sent, after the last piece.
    """

    def __init__(self) -> None:
        self.sent = 0, 0

    @contextmanager
    def parts(
        self,
        operand: Operand,
        boxes: Iterator[Extent],
        team: Team,
        call: LongCall,
        piece_bytes: int,
        more_s: float,
    ) -> Iterator[Iterator[Part]]:
        """Yield the parts of an operand, one for each box.

        Parameters
        ----------
        piece_bytes
            Memory of a part. The call has memory for `pieces_in_memory` of them.
        more_s
            Additional time to wait for a part, for the work of the process that reads it.
        """
        if team.size == 1 or not isinstance(operand, DiskOperand):
            parts = operand.parts(boxes, pieces_in_memory(team.size) * piece_bytes)
            yield parts if team.size == 1 else _looked(parts, team)
            return
        schedule = list(boxes)
        file, _ = operand.opened()
        kind = _RowStream if operand.is_by_row else BlockStream
        stream = kind(
            file, operand.stored, call.arena, RING_PIECES * piece_bytes, call.trace,
            least_bytes=piece_bytes,
        )  # fmt: skip
        blocks = blocks_of(stream, team, call, SLOTS, RING_PIECES + SLOTS, piece_bytes, more_s)
        with blocks:
            blocks.expect(_expected(operand, schedule, team.size))
            blocks.read([operand.on_disk(box) for box in schedule[team.rank :: team.size]])
            yield _taken(operand, schedule, blocks.take, call)
        self.sent = blocks.sent


def _looked(parts: Iterator[Part], team: Team) -> Iterator[Part]:
    """Yield pieces of this process alone, and look for errors of others before each."""
    for part in parts:
        team.check()
        yield part


def _expected(operand: DiskOperand, schedule: Sequence[Extent], size: int) -> Iterator[Expected]:
    for number, box in enumerate(schedule):
        shape = tuple(s.stop - s.start for s in operand.on_disk(box))
        shape = shape[::-1] if operand.is_by_row else shape
        yield Expected(number % size, shape, operand.stored, is_on_disk=True)


def _taken(
    operand: DiskOperand,
    schedule: Sequence[Extent],
    take: Callable[[], npt.NDArray[Any]],
    call: LongCall,
) -> Iterator[Part]:
    """Yield pieces. Other processes use the same memory, so a conversion needs its own."""
    converted = operand.converted(schedule, call, is_shared=True)
    for box in schedule:
        data = take()
        yield operand.part(box, converted(data.T if operand.is_by_row else data))
        del data  # its memory receives the next piece


class _RowStream(BlockStream):
    """Blocks of a row-major matrix as column-major blocks of its transpose."""

    def __init__(self, file: ArrayFile, *arguments: Any, **options: Any) -> None:
        super().__init__(file, *arguments, **options)
        self.file = _TransposedFile(file)  # type: ignore[assignment]  # it only reads

    def take(self) -> Block:
        box, data = super().take()
        return Block(box, data.T)


class _TransposedFile:
    """Reads of a row-major matrix into the memory of its transpose."""

    def __init__(self, file: ArrayFile) -> None:
        self._file = file

    def submit_read(
        self, start: Sequence[int], step: Sequence[int], target: npt.NDArray[Any]
    ) -> Ticket:
        return self._file.submit_read(start, step, target.T)
