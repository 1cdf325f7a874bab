"""A copy to tiles, with files that complete each transfer as late as possible."""

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from linpack import Matrix

from outcore._core import Arena, Trace
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._geometry.tile_copy import TileCopy
from outcore.linalg._tiles.relay import Relay

BUDGET = 200_000


class Late:
    """A ticket that does its work in `wait`."""

    def __init__(self, work: Any) -> None:
        self._work, self.waited = work, 0

    def done(self) -> bool:
        return self.waited > 0

    def wait(self) -> None:
        self.waited += 1
        if self.waited == 1:
            self._work()


def stop() -> None:
    raise KeyboardInterrupt


class LateFile:
    """An array that transfers each box when its ticket is waited for, which exposes early reuse."""

    def __init__(self, data: Matrix, stop_at: int = -1) -> None:
        self.data, self.tickets = data, list[Late]()
        self.read_words, self._stop_at = 0, stop_at

    def submit_read(self, start: list[int], step: list[int], box: Matrix) -> Late:
        rows, columns = self._places(start, box)
        box[...] = 77
        self.read_words += box.size

        def read() -> None:
            box[...] = self.data[rows, columns]

        return self._ticket(read)

    def submit_write(self, start: list[int], step: list[int], box: Matrix) -> Late:
        rows, columns = self._places(start, box)

        def write() -> None:
            self.data[rows, columns] = box
            box[...] = 88

        return self._ticket(write)

    def _places(self, start: list[int], box: Matrix) -> tuple[slice, slice]:
        rows, columns = (slice(at, at + size) for at, size in zip(start, box.shape, strict=True))
        assert rows.stop <= self.data.shape[0]
        assert columns.stop <= self.data.shape[1]
        return rows, columns

    def _ticket(self, work: Any) -> Late:
        self.tickets.append(Late(stop if len(self.tickets) == self._stop_at else work))
        return self.tickets[-1]


def call_of(memory: int) -> Any:
    return SimpleNamespace(arena=Arena(memory), trace=Trace())


def some_copies() -> list[TileCopy]:
    draw, copies = np.random.default_rng(0), []
    for lower in (False, True) * 40:
        m, n = draw.integers(1, 500, 2).tolist()
        if lower:
            m = n
        tile = (int(draw.choice([16, 48, 64])), int(draw.choice([16, 48, 64])))
        wide = int(draw.choice([64, 128, 192, 512]))
        layout = Layout("C", (int(draw.choice([1, 7, 16, 600])), wide))
        memory = int(draw.integers(5_000, BUDGET))
        copies.append(TileCopy((m, n), np.dtype("f8"), layout, tile, memory, 512, lower))
    return [copy for copy in copies if copy.block.rows]


@pytest.mark.parametrize("is_transposed", [False, True])
def test_copies_whatever_is_done_when(is_transposed: bool) -> None:
    kinds = set()
    for copy, first in itertools.product(some_copies(), (0, 2)):
        (m, n), (rows, columns) = copy.shape, copy.tile
        whole = np.zeros((m, copy.end))
        whole[:, n:] = 99
        whole[:, :n] = np.random.default_rng(1).standard_normal((m, n))
        panels = -(-n // columns)
        matrix = LateFile(whole.T.copy() if is_transposed else whole)
        tiles = LateFile(np.full((copy.height, panels * columns), np.nan))
        call = call_of(copy.memory_bytes + 3 * 4096)
        copy.run(matrix, tiles, first, call, is_transposed=is_transposed)  # type: ignore[arg-type]

        want = np.zeros(tiles.data.shape)
        want[:m, :n] = whole[:, :n]
        want[:, : first * columns] = np.nan
        if copy.lower:
            for left in range(0, panels * columns, columns):
                want[: left // rows * rows, left : left + columns] = np.nan
        np.testing.assert_array_equal(tiles.data, want)
        assert matrix.read_words * 8 == copy.bytes_read(first)
        high, narrow, places, strip = copy.block
        span = 0
        for part in copy.parts(first):
            assert part.right > first * columns, "columns are read that nobody needs"
            span = max(span, part.end - part.first)
        assert span < narrow + 2 * copy.layout.chunks[1]
        assert 8 * (places * high * narrow + 2 * strip * span) <= copy.memory_bytes
        assert all(ticket.waited for ticket in matrix.tickets + tiles.tickets)
        kinds.add((copy.block.strip > 0, copy.lower, len(copy.parts(0)) > 2))
    assert len(kinds) == 8


@pytest.mark.parametrize("memory", [100_000, BUDGET])
def test_who_is_stopped_waits_for_what_is_under_way(memory: int) -> None:
    """An error at any write, in strips and in blocks, waits for all transfers in flight."""
    copy = TileCopy((300, 300), np.dtype("f8"), Layout("C", (16, 320)), (64, 64), memory, 512)
    assert (copy.block.strip > 0) == (memory < BUDGET)

    for number in range(25):
        matrix, tiles = LateFile(np.ones((300, 320))), LateFile(np.ones((320, 320)), number)
        with pytest.raises(KeyboardInterrupt):
            copy.run(matrix, tiles, 0, call_of(memory + 12288))  # type: ignore[arg-type]
        assert all(ticket.waited for ticket in matrix.tickets + tiles.tickets), number


def test_a_relay_that_is_stopped_while_a_place_is_freed() -> None:
    leaving = [Late(stop), Late(lambda: None)]
    relay = Relay(1, 2, lambda number: Late(lambda: None), Trace())  # type: ignore[arg-type, return-value]
    relay.poll()
    relay.take(0)
    relay.leave(0, leaving)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        relay.take(1)
    relay.abandon()
    assert all(ticket.waited for ticket in leaving)
