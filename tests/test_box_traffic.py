"""Bytes and requests of boxes of arrays, as counted before, against the counters of files."""

from pathlib import Path

import numpy as np
import pytest

import outcore as oc
from outcore._core import Arena
from outcore.layout.box_traffic import BoxTraffic
from outcore.layout.disk_reads import DiskReads


def moved(
    A: oc.Array, bounce: int, pieces: list[list[slice]], order: str, *, is_write: bool
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Move all boxes; return their bytes and requests, as counted by the file and before."""
    file = A.open_file(Arena(1 << 28), bounce, writable=is_write)
    memory = memoryview(Arena(1 << 28).allocate(A.nbytes))
    for index in np.ndindex(*map(len, pieces)):
        box = [each[i] for each, i in zip(pieces, index, strict=True)]
        count = tuple(s.stop - s.start for s in box)
        data: np.ndarray = np.ndarray(count, A.dtype, buffer=memory, order=order)  # type: ignore[call-overload,type-arg]
        submit = file.submit_write if is_write else file.submit_read
        submit([s.start for s in box], [1] * len(box), data).wait()
    counters = file.counters()
    dims = range(A.ndim)
    traffic = BoxTraffic(
        A.metadata, is_write, dims if order == "F" else dims[::-1], bounce,
        DiskReads(*file.read_granularity),
    )  # fmt: skip
    return (counters[is_write], counters[2 + is_write]), tuple(traffic.of_pieces(pieces))


def cut(n: int, step: int) -> list[slice]:
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


@pytest.mark.exhaustive(every=6)
@pytest.mark.parametrize("seed", range(120))
def test_any_boxes(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dims = int(rng.integers(1, 5))
    most = (2_000_000, 1500, 110, 36)[dims - 1]
    shape = [int(n) for n in rng.integers(1, most, dims)]
    chunks = [int(rng.integers(1, n + 3)) if rng.integers(3) else n for n in shape]
    # Few boxes and chunks, also of whole extents and of multiples of chunks.
    chunks = [max(c, n // 6) for c, n in zip(chunks, shape, strict=True)]
    steps = [
        max([int(rng.integers(1, n + 1)), n, c, 2 * c][rng.integers(4)], n // 4 + 1)
        for c, n in zip(chunks, shape, strict=True)
    ]
    order, dtype = "CF"[rng.integers(2)], ("i1", "f4", "f8", "c16")[rng.integers(4)]
    A = oc.create_array(tmp_path / "A", shape, dtype, order=order, chunks=chunks)
    bounce = int(2 ** rng.uniform(12, 24))
    pieces = [cut(n, step) for n, step in zip(shape, steps, strict=True)]
    for is_write in (True, False):
        counted, planned = moved(A, bounce, pieces, "CF"[rng.integers(2)], is_write=is_write)
        assert counted == planned, (shape, chunks, steps, order, dtype, bounce, is_write)
