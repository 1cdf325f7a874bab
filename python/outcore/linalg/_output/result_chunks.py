"""Chunks of a result on disk that match the blocks in which it is computed."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from outcore.layout.zarr_format import (
    MAX_TILE_BYTES,
    SLOT_ALIGN_BYTES,
    TILE_BYTES,
    Metadata,
    default_chunks,
    tile_shape,
)


def result_chunks(
    m: int, n: int, dtype: np.dtype[Any], grain_rows: int, memory_bytes: int
) -> Iterator[tuple[int, int]]:
    """Yield candidate chunk shapes, in Fortran order, for a result of m x n, from large to small.

    They are like `default_chunks`, but take at most a 24th of the budget. The number of rows is a
    multiple or a part of the rows of the operand's grain. So both can end where a block ends.
    """
    found = []
    for tile_bytes in [TILE_BYTES >> shift for shift in range(11)]:
        if tile_bytes <= max(memory_bytes // 24, SLOT_ALIGN_BYTES):
            tile = _chunk(m, n, dtype.itemsize, grain_rows, tile_bytes)
            if tile not in found:
                found.append(tile)
    return iter(found)


def _chunk(m: int, n: int, itemsize: int, grain_rows: int, tile_bytes: int) -> tuple[int, int]:
    rows, columns = tile_shape(max(m, n), itemsize, tile_bytes)
    if grain_rows <= rows:
        rows = rows // grain_rows * grain_rows
    else:
        least = -(-grain_rows // rows)
        parts = next((p for p in range(least, 2 * least) if grain_rows % p == 0), 1)
        rows = grain_rows // parts
        columns = min(columns, max(MAX_TILE_BYTES // (rows * itemsize), 1))
    if m == n:
        return rows, columns
    return min(rows, m), min(columns, n)


def result_metadata(
    shape: tuple[int, ...], dtype: np.dtype[Any], chunk: tuple[int, int]
) -> Metadata:
    """Return the metadata of a result. `chunk` applies only to matrices."""
    if len(shape) == 1:
        return Metadata(shape, dtype, default_chunks(shape, dtype.itemsize, "F"), "F")
    return Metadata(shape, dtype, chunk, "F", "column-major")
