"""The passes of a permutation: read loads, permute them in memory, write them."""

import contextlib
import itertools
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


class _Buffers:
    """Memory of loads, and the transfers that use it."""

    def __init__(self, geometry: Geometry, dtype: np.dtype[Any], call: LongCall) -> None:
        elements = 1 << geometry.load_bits
        self.data: list[npt.NDArray[Any]] = [
            np.frombuffer(
                memoryview(call.arena.allocate(elements * dtype.itemsize)), dtype, elements
            )
            for _ in range(geometry.buffers)
        ]
        self.tickets: list[list[Ticket]] = [[] for _ in self.data]

    def wait(self, number: int) -> npt.NDArray[Any]:
        """Wait for the transfers of a buffer, and return it."""
        slot = number % len(self.data)
        while self.tickets[slot]:
            self.tickets[slot].pop().wait()
        return self.data[slot]

    def abandon(self) -> None:
        """Wait for all transfers, and ignore their errors."""
        for ticket in itertools.chain(*self.tickets):
            with contextlib.suppress(OutcoreError):
                ticket.wait()


class Passes:
    """The buffers of all passes, and the work of one."""

    def __init__(self, geometry: Geometry, dtype: np.dtype[Any], call: LongCall) -> None:
        self._geometry, self._dtype, self._call = geometry, dtype, call
        self._before = _Buffers(geometry, dtype, call)
        self._after = _Buffers(geometry, dtype, call)

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
        before, after = self._before, self._after

        def read(load: int) -> None:
            if load < loads.count:
                data, layout = before.wait(load), ends.source_layout
                tickets = before.tickets[load % len(before.data)]
                for box, part in _parts(layout, reads ^ base[load], read_bits, data):
                    ticket = ends.source.fetch(box, part)
                    if ticket is not None:
                        tickets.append(ticket)

        def write(load: int, data: npt.NDArray[Any]) -> None:
            tickets = after.tickets[load % len(after.data)]
            for box, part in _parts(ends.target_layout, writes ^ rest[load], write_bits, data):
                with writing(ends.path):
                    ticket = ends.target.write(box, part)
                tickets.append(ticket)
                if notes is not None:
                    notes.add(ticket, part.nbytes)

        try:
            read(first)
            for load in range(first, loads.count):
                if len(before.data) > 1:
                    read(load + 1)
                data, moved = before.wait(load), after.wait(load)
                shuffle.move(data, moved, int(shift[load]))
                if len(before.data) == 1:
                    read(load + 1)
                write(load, moved)
                self._call.meter.advance(moved.nbytes)
            for load in range(len(after.data)):
                after.wait(load)
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
            before.abandon()
            after.abandon()


def _parts(
    layout: Layout, addresses: Addresses, run_bits: int, data: npt.NDArray[Any]
) -> Iterator[tuple[tuple[slice, ...], npt.NDArray[Any]]]:
    """Yield the box of each run of a load, and its memory."""
    runs, extents = data.reshape(-1, 1 << run_bits), layout.extents(run_bits)
    for box, run in zip(layout.boxes(addresses, run_bits), runs, strict=True):
        yield box, run.reshape(extents, order=layout.order)
