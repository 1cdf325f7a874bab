"""The copy to segments of a matrix whose rows cannot be gathered by lists."""

from typing import Any

import numpy as np

from outcore._util.streams import Pending
from outcore.linalg._factors.checks import Extremes
from outcore.linalg._lu.block_columns.row_sums import RowSums
from outcore.linalg._lu.block_columns.storage import COPY, BlockColumnStorage
from outcore.linalg._tiles.matrix import room_in
from outcore.linalg._tiles.relay import Relay
from outcore.report.longcall import LongCall


def copy_to_segments(storage: BlockColumnStorage[Any], call: LongCall) -> Extremes:
    """Copy to segments those columns of A that need it, and check them meanwhile."""
    g = storage.geometry
    left, (rows, columns) = g.copied_from, g.copy_block()
    rest = g.n - left
    matrix = storage.open_matrix(whole_chunks=True, bounce_bytes=g.bounce_bytes)
    copy = storage.open_beside(COPY, "rest", g.copy_grid(), anew=True)
    extremes = Extremes()
    sums = RowSums(g, columns, call.arena, extremes)
    room = [room_in(call.arena, (rows, columns), g.dtype) for _ in range(2)]
    high, wide = (-(-g.n // chunk) * chunk for chunk in g.layout.chunks)
    down = -(-g.n // rows)

    def arrive(number: int) -> Pending:
        across, i = divmod(number, down)
        first = left + across * columns
        part = room[number % 2][: high - i * rows, : wide - first]
        return matrix.submit_read([i * rows, first], [1, 1], part)

    relay = Relay(2, -(-rest // columns) * down, arrive, call.trace)
    try:
        relay.poll()
        for across in range(-(-rest // columns)):
            first = across * columns
            width = min(columns, rest - first)
            sums.begin()
            for i in range(down):
                number = across * down + i
                relay.take(number)
                start_ns = call.trace.now_ns()
                T, numbers = room[number % 2], np.arange(i * rows, min((i + 1) * rows, g.n))
                sums.look(T[: len(numbers), :width], numbers, left + first)
                call.trace.record("compute", start_ns)
                T[len(numbers) :] = 0
                T[:, width:] = 0
                whole = g.whole_rows(len(numbers)), g.whole_segments(width)
                part = T[: whole[0], : whole[1]]
                relay.leave(number, [copy.submit_write([i * rows, first], [1, 1], part)])
            sums.end(width)
        relay.drain()
    except BaseException:
        relay.abandon()
        raise
    return extremes
