"""The passes of a permutation: read loads, permute them in memory, write them."""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from outcore._core import Ticket
from outcore.convert.copy_notes import CopyNotes
from outcore.convert.sources import Source
from outcore.convert.targets import ArrayTarget, writing
from outcore.errors import OutcoreError
from outcore.permutations.geometry import Geometry
from outcore.permutations.gf2 import Addresses, times_each
from outcore.permutations.layouts import Layout
from outcore.permutations.shuffle import Shuffle
from outcore.report.longcall import LongCall
from outcore.storage.volumes import AnyPath


@dataclass(frozen=True)
class Ends:
    """The source and the target of one pass, with their layouts.

    `path` is the target's, for errors.
    """

    source: Source
    source_layout: Layout
    target: ArrayTarget
    target_layout: Layout
    path: AnyPath


class _Buffer:
    """Memory of a load, and the pending transfers that use it."""

    def __init__(self, data: npt.NDArray[Any]) -> None:
        self.data = data
        self.tickets: list[Ticket] = []

    def wait(self) -> npt.NDArray[Any]:
        """Wait for the transfers, and return the load."""
        while self.tickets:
            self.tickets.pop().wait()
        return self.data

    def is_idle(self) -> bool:
        """Whether no transfer is pending. A failed one raises its error."""
        while self.tickets and self.tickets[-1].done():
            self.tickets.pop().wait()
        return not self.tickets

    def abandon(self) -> None:
        """Wait for the transfers, and ignore their errors."""
        for ticket in self.tickets:
            with contextlib.suppress(OutcoreError):
                ticket.wait()


class Passes:
    """The memory of all passes, and the work of one."""

    def __init__(self, geometry: Geometry, dtype: np.dtype[Any], call: LongCall) -> None:
        self._geometry, self._dtype, self._call = geometry, dtype, call
        elements = 1 << geometry.load_bits
        self._buffers = [
            _Buffer(
                np.frombuffer(
                    memoryview(call.arena.allocate(elements * dtype.itemsize)), dtype, elements
                )
            )
            for _ in range(geometry.buffers)
        ]

    def run(self, number: int, ends: Ends, first: int, notes: CopyNotes | None) -> None:
        """Run a pass from load `first` on; return when its target is durable."""
        loads = self._geometry.passes[number]
        read_bits, write_bits = self._geometry.request_bits(number)
        arena = self._call.arena
        ends.source.begin(arena, self._geometry.bounce_bytes)
        ends.target.begin(arena, self._geometry.bounce_bytes)
        shuffle = Shuffle(loads.inner, self._dtype, arena)
        positions = np.arange(1 << loads.load_bits - read_bits, dtype=np.int64) << read_bits
        reads = times_each(loads.source, positions)
        positions = np.arange(1 << loads.load_bits - write_bits, dtype=np.int64) << write_bits
        writes = times_each(loads.target, positions)
        base, rest, shift = loads.places()
        to_read = deque(range(first, loads.count))
        ahead: deque[_Buffer] = deque()
        free = deque(self._buffers)  # the oldest writes first

        def read_ahead() -> None:
            """Start to read the next load, once memory for it is idle."""
            if ahead or not to_read or not free or not free[0].is_idle():
                return
            buffer, load = free.popleft(), to_read.popleft()
            ahead.append(buffer)
            boxes = _parts(ends.source_layout, reads ^ base[load], read_bits, buffer.data)
            for box, part in boxes:
                ticket = ends.source.fetch(box, part)
                if ticket is not None:
                    buffer.tickets.append(ticket)

        def write(load: int, buffer: _Buffer) -> None:
            boxes = _parts(ends.target_layout, writes ^ rest[load], write_bits, buffer.data)
            for box, part in boxes:
                with writing(ends.path):
                    ticket = ends.target.write(box, part)
                buffer.tickets.append(ticket)
                if notes is not None:
                    notes.add(ticket, part.nbytes)

        try:
            read_ahead()
            for load in range(first, loads.count):
                before, after = ahead.popleft(), free.popleft()
                data, moved = before.wait(), after.wait()
                shuffle.move(data, moved, int(shift[load]), read_ahead)
                free.appendleft(before)
                read_ahead()
                write(load, after)
                free.append(after)
                self._call.meter.advance(moved.nbytes)
            for buffer in self._buffers:
                buffer.wait()
            if notes is None:
                ends.target.finish()
            else:
                notes.settle()
        except BaseException:
            if notes is not None:
                notes.stop()
            raise
        finally:
            # After a failure, the first error counts.
            for buffer in self._buffers:
                buffer.abandon()


def _parts(
    layout: Layout, addresses: Addresses, run_bits: int, data: npt.NDArray[Any]
) -> Iterator[tuple[tuple[slice, ...], npt.NDArray[Any]]]:
    """Yield the box of each run of a load, and its memory."""
    runs, extents = data.reshape(-1, 1 << run_bits), layout.extents(run_bits)
    for box, run in zip(layout.boxes(addresses, run_bits), runs, strict=True):
        yield box, run.reshape(extents, order=layout.order)
