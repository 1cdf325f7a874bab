"""Blocks that all processes of a call use in the same order.

One process has each block, on its disk or in its memory, and broadcasts it to the others. A thread
of each process sends and receives blocks ahead of their use, while the BLAS computes. Nobody holds
more of them than a ring of a few blocks.
"""

import queue
from collections.abc import Iterable, Sequence

import numpy as np

from outcore._core import Arena, Trace
from outcore._util.streams import BlockStream, Box
from outcore.processes.blocks import (
    Blocks,
    BlocksOfAll,
    BlocksThread,
    Data,
    Expected,
    Returned,
    opened,
)
from outcore.processes.host_blocks import HostBlocks, ring_of
from outcore.processes.team import Team
from outcore.report.longcall import LongCall


class Broadcasts(BlocksOfAll):
    """The blocks of several processes, each of which has copies of those of the others.

    Parameters
    ----------
    stream
        Own blocks on disk. It has memory for one more than `slots`.
    slots, slot_bytes
        Number and size of the blocks in memory that this process receives or sends from memory. As
        many own blocks may be in use.
    team, more_s
        As for `BlocksOfAll`.
    """

    def __init__(
        self,
        stream: BlockStream,
        team: Team,
        arena: Arena,
        slots: int,
        slot_bytes: int,
        trace: Trace,
        more_s: float,
    ) -> None:
        super().__init__(stream, team, trace, more_s)
        self._expected: queue.SimpleQueue[Expected | None] = queue.SimpleQueue()
        # Own blocks that may be read from disk now.
        self._readable: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[Data | BaseException] = queue.SimpleQueue()
        self._free = Returned(memoryview(arena.allocate(slot_bytes)) for _ in range(slots))
        self._may_take = Returned([None] * slots)
        self._thread = BlocksThread(self._run, "outcore-broadcasts", team)

    def expect(self, blocks: Iterable[Expected]) -> None:
        """Name the next blocks in the order of their use, the same on all processes."""
        for block in blocks:
            self._expected.put(block)

    def read(self, boxes: Sequence[Box]) -> None:
        """Schedule reads of the next own blocks on disk."""
        self.stream.extend(boxes)
        for _ in boxes:
            self._readable.put(True)

    def take(self) -> Data:
        """Return the next block of another process, or of the own disk; wait for it."""
        start_ns = self._trace.now_ns()
        with self._team.transfers.waiting(self._trace.now_ns):
            found = self._ready.get()
        self._trace.record("wait", start_ns)
        if isinstance(found, BaseException):
            self._ready.put(found)
            raise found
        return found

    def _close(self) -> None:
        self._expected.put(None)
        self._readable.put(False)
        self._offered.put(None)
        self._free.close()
        self._may_take.close()

    def _run(self) -> None:
        try:
            while (expected := self._expected.get()) is not None:
                self._pass_on(expected)
        except BaseException as error:
            self._fail(error)
            self._ready.put(error)

    def _pass_on(self, expected: Expected) -> None:
        """Send or receive one block."""
        if expected.owner != self._team.rank:
            block = self._slot(expected)
            self._fill(block, expected.owner)
            self._ready.put(block)
        elif expected.is_on_disk:
            opened(self._readable.get())
            self._may_take.get()
            block = self.stream.take().data
            self._may_take.after(block, None)
            self._send(block, expected)
            self._ready.put(block)
        else:
            memory, sent = opened(self._offered.get())
            self._send(memory, expected)
            self._one_less(sent)

    def _send(self, block: Data, expected: Expected) -> None:
        if not block.flags.f_contiguous:
            copy = self._slot(expected)
            copy[...] = block
            block = copy
        assert block.shape == expected.shape, (block.shape, expected)
        self._fill(block, self._team.rank)
        self._count(block.nbytes)

    def _fill(self, block: Data, owner: int) -> None:
        transfers, now, began = self._team.transfers, self._trace.now_ns, []
        self._team.blocks.fill(
            block.T, owner, self._more_s, lambda: began.append(transfers.started(now))
        )
        transfers.ended(began[0], now, block.nbytes)

    def _slot(self, expected: Expected) -> Data:
        """Return free memory for a block. It is free again when its last view dies."""
        memory = self._free.get()
        block: Data = np.ndarray(expected.shape, expected.dtype, buffer=memory, order="F")
        self._free.after(block, memory)
        return block


def blocks_of(
    stream: BlockStream,
    team: Team,
    call: LongCall,
    slots: int,
    ring: int,
    slot_bytes: int,
    more_s: float,
) -> Blocks:
    """Return the blocks of a stream, or of the streams of all processes.

    Parameters
    ----------
    stream, team, slots, slot_bytes, more_s
        As for `Broadcasts`.
    ring
        Number of all blocks in memory: `slots`, and those of the stream.
    """
    if team.size == 1:
        return Blocks(stream)
    shared = ring_of(team, call, ring, slot_bytes, more_s)
    if shared is not None:
        return HostBlocks(stream, team, shared, call.trace, more_s)
    return Broadcasts(stream.untimed(), team, call.arena, slots, slot_bytes, call.trace, more_s)
