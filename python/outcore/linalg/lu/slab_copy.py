"""A matrix in C order is copied to the room of its factors, in their tiles, before narrow slabs.

Each slab is then loaded from where its factors will be written. Nothing is noted of the copy: a run
that goes on copies what is left of the matrix again.
"""

import dataclasses

import numpy as np

from outcore._core import ArrayFile, Ticket
from outcore.linalg.lu.relay import Relay
from outcore.linalg.lu.slab_loads import SlabLoads
from outcore.linalg.lu.storage import LuStorage
from outcore.linalg.matrix import Matrix
from outcore.longcall import LongCall


def copy_to_tiles(storage: LuStorage, loads: SlabLoads, call: LongCall) -> None:
    """Copy the columns that are not factored yet; the storage counts what is moved."""
    g, chunk = loads.geometry, storage.metadata.chunks[1]
    # Whole rows of chunks, padding included; rows below the last are not read.
    shape = g.n, -(-g.n // chunk) * chunk
    grid = dataclasses.replace(storage.metadata, shape=shape).grid()
    storage.move_aside(
        call,
        grid,
        lambda matrix, tiles: _copy(loads, matrix, tiles, storage.first_panel, shape[1], call),
    )


def _copy(
    loads: SlabLoads,
    matrix: ArrayFile,
    tiles: ArrayFile,
    first_panel: int,
    end: int,
    call: LongCall,
) -> None:
    g = loads.geometry
    rows, columns, places = loads.copy_block()
    left, begin = loads.copied_from(first_panel), first_panel * g.columns
    down = -(-g.n // rows)
    count = down * -(-(end - left) // columns)
    memory = [call.arena.allocate(rows * columns * g.dtype.itemsize) for _ in range(places)]
    room: list[Matrix] = [np.ndarray((rows, columns), g.dtype, memoryview(part)) for part in memory]

    def place(number: int) -> tuple[int, int]:
        across, i = divmod(number, down)
        return i * rows, left + across * columns

    def arrive(number: int) -> Ticket:
        top, first = place(number)
        part = room[number % places][: g.n - top, : end - first]
        return matrix.submit_read([top, first], [1, 1], part)

    relay = Relay(places, count, arrive, call.trace)
    try:
        relay.poll()
        for number in range(count):
            relay.take(number)
            top, first = place(number)
            T = room[number % places][: g.height - top]
            # What is beyond the matrix is written with its tiles.
            T[g.n - top :] = 0
            T[:, g.n - first :] = 0
            panels = range(max(begin, first), min(first + columns, g.panels * g.columns), g.columns)
            relay.leave(
                number,
                [
                    tiles.submit_write([top, at], [1, 1], T[:, at - first : at - first + g.columns])
                    for at in panels
                ],
            )
        relay.drain()
    except BaseException:
        relay.abandon()
        raise
