"""Random matrices on disk, of entries uniform in [-1/2, 1/2)."""

import os
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import outcore as oc
from outcore.storage.volumes import PathLike

SETTLE_S = 0.5


def random_block(count: tuple[int, int], dtype: str, seed: list[int]) -> npt.NDArray[Any]:
    """Return a random matrix in Fortran order."""
    kind = np.dtype(dtype)
    parts = 2 if kind.kind == "c" else 1
    numbers = np.random.default_rng(seed).random((count[1], count[0] * parts))
    numbers -= 0.5
    return (numbers.view(np.complex128) if parts == 2 else numbers).astype(kind, copy=False).T


def random_array(
    path: PathLike, n: int, dtype: str, diagonal: float = 0, order: str = "F"
) -> oc.Array:
    """Create a random square array, laid out for LU by default, plus a multiple of the unit matrix.

    Its elements depend on its chunks, and therefore on the order.
    """

    def fill(rows: slice, cols: slice) -> npt.NDArray[Any]:
        count = (rows.stop - rows.start, cols.stop - cols.start)
        block = random_block(count, dtype, [rows.start, cols.start])
        on_it = np.arange(max(rows.start, cols.start), min(rows.stop, cols.stop))
        block[on_it - rows.start, on_it - cols.start] += diagonal
        return block

    array = oc.create_array(
        path, (n, n), dtype, order=order, fill=fill, memory="128 MiB", progress=False
    )
    array.flush()
    return array


def random_file(path: Path, n: int) -> None:
    """Write a random float64 matrix as a plain file in Fortran order, and drop its cached pages."""
    step = max((32 << 20) // (8 * n), 1)
    with path.open("wb") as file:
        for left in range(0, n, step):
            random_block((n, min(step, n - left)), "f8", [left]).T.tofile(file)
            file.flush()
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def clear(path: Path) -> None:
    """Remove the files of the last round and let the disk settle, outside this round's time."""
    was_there = path.exists()
    shutil.rmtree(path, ignore_errors=True)
    os.sync()
    if was_there:
        time.sleep(SETTLE_S)
