"""Ctrl-C while the last view of a block dies: its memory comes back, and other blocks get it."""

import queue
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np

from outcore._core import Arena, Trace
from outcore.processes.blocks import BlocksOfAll, Expected
from outcore.processes.broadcasts import Broadcasts
from outcore.processes.host_blocks import HostBlocks
from outcore.processes.transfers import Transfers

NOTHING: Any = None
BLOCK = Expected(owner=1, shape=(4,), dtype=np.dtype(np.float64), is_on_disk=True, kept=0)


class OtherProcess:
    """The team of two processes, of which the other one has each block at once."""

    rank, size, transfers = 0, 2, Transfers()

    def __init__(self) -> None:
        self.blocks = self

    def fill(self, block: Any, owner: int, more_s: float, starts: Callable[[], None]) -> None:
        starts()

    def wait_until(self, attempt: Callable[[float], bool], more_s: float, whom: str) -> None:
        assert attempt(0)


class RingOfTwo:
    """The slots of both, and those that this process has let go."""

    slots = 2

    def __init__(self) -> None:
        self.let_go_slots: queue.SimpleQueue[int] = queue.SimpleQueue()

    def is_full(self, owner: int, most_s: float) -> bool:
        return True

    def memory(self, block: Expected, slot: int) -> Any:
        return np.zeros(block.shape)

    def let_go(self, slot: int) -> None:
        self.let_go_slots.put(slot)


def interrupted(frame: FrameType, event: str, argument: object) -> None:
    """Raise wherever a function of Python begins, as the handler of a signal may."""
    if event == "call":
        raise KeyboardInterrupt


def drop_first(blocks: BlocksOfAll) -> None:
    """Take a block, and let it die during Ctrl-C."""
    blocks.expect([BLOCK] * 2)
    data = blocks.take()
    sys.setprofile(interrupted)
    del data
    sys.setprofile(None)


def test_copies_of_blocks() -> None:
    team: Any = OtherProcess()
    with Broadcasts(NOTHING, team, Arena(1 << 20), 1, 32, Trace(), 0.0) as blocks:
        drop_first(blocks)
        assert blocks.take().shape == (4,)


def test_blocks_in_common_memory() -> None:
    team: Any = OtherProcess()
    ring: Any = RingOfTwo()
    with HostBlocks(NOTHING, team, ring, Trace(), 0.0) as blocks:
        drop_first(blocks)
        assert ring.let_go_slots.get() == 0
        blocks.take()
