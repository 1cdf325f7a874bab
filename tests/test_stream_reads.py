"""Bytes that streams of boxes read: the plan against the counters of files."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcore as oc
from outcore._core import Arena
from outcore._util.streams import BlockStream, Box
from outcore.linalg._geometry.box_reads import StreamReads


def both(A: Any, bounce: int, boxes: Any) -> tuple[int, int]:
    """Return the bytes that boxes read from the disk, as counted and as planned."""
    arena = Arena(1 << 27)
    file = A.open_file(arena, bounce)
    reads = StreamReads.of(A, bounce, file.read_granularity)
    stream, planned = BlockStream(file, A.dtype, arena, 1 << 26), 0
    for rows, columns in boxes:
        stream.extend([(rows, columns)])
        stream.take()
        planned += reads.bytes_of([(rows.start, rows.stop)], [(columns.start, columns.stop)])
    return file.counters()[0], planned


def grid(n: int, box: list[int]) -> list[Box]:
    starts = [range(0, n, step) for step in box]
    ends = [[slice(at, min(at + r.step, n)) for at in r] for r in starts]
    return [(rows, columns) for columns in ends[1] for rows in ends[0]]


@pytest.mark.exhaustive(every=3)
@pytest.mark.parametrize("seed", range(30))
def test_any_boxes(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 900))
    chunks = tuple(int(size) for size in rng.integers(1, n + 300, 2))
    dtype = ("f4", "f8", "c16")[seed % 3]
    A = oc.create_array(tmp_path / "A", (n, n), dtype, order="FC"[seed % 2], chunks=chunks)
    bounce = int(rng.integers(4096, 1 << 17))
    box = [int(size) for size in rng.integers(max(n // 8, 1), n + 1, 2)]
    # Along each axis, half of the boxes have the extent of a chunk.
    box = [min(c, n) if rng.integers(2) else size for c, size in zip(chunks, box, strict=True)]
    counted, planned = both(A, bounce, grid(n, box))
    assert counted == planned
    reads = StreamReads.of(A, bounce, A.open_file(Arena(1 << 20), 1 << 16).read_granularity)
    assert reads.bytes_of_grid((box[0], box[1])) == planned
    counted, planned = both(A, bounce, A.small_boxes(bounce))
    assert counted == planned == reads.bytes_of_pass()


def test_whole_columns_are_one_run(tmp_path: Path) -> None:
    # The box is 62 whole columns of a chunk, contiguous on disk and in memory. They are cut into
    # pieces of whole pages, not column by column.
    A = oc.create_array(tmp_path / "A", (257, 257), "c16", order="F", chunks=(100, 70))
    counted, planned = both(A, 25_000, [(slice(0, 100), slice(0, 62))])
    assert counted == planned
