"""The time of a codec alone, in memory: ``SOURCE CHUNKS``.

All processors decode every chunk of a Zarr array (format 2, zstd) that the page cache holds, and
encode its values in other chunks. Reads, copies of blocks and writes are not counted.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

CHUNKS_AT_ONCE = 64


def main(source: str, chunks: str) -> None:
    about = json.loads((Path(source) / ".zarray").read_text())
    shape, before = tuple(about["shape"]), tuple(about["chunks"])
    after = tuple(map(int, chunks.split(",")))
    array = np.empty(shape, about["dtype"])
    numcodecs: Any = importlib.import_module("numcodecs")
    codec = numcodecs.Zstd(level=about["compressor"]["level"])
    with ThreadPoolExecutor(os.cpu_count()) as pool:

        def timed(work: Callable[[Any], object], items: list[Any]) -> float:
            start = time.perf_counter()
            for _ in pool.map(work, items):
                pass
            return time.perf_counter() - start

        seconds = 0.0
        for cells in _batches(shape, before):
            names = [Path(source) / ".".join(map(str, cell)) for cell in cells]
            stored = [name.read_bytes() for name in names]
            blocks = [np.empty(before, array.dtype) for _ in cells]
            pairs = list(zip(stored, blocks, strict=True))
            seconds += timed(lambda pair: codec.decode(*pair), pairs)
            for cell, block in zip(cells, blocks, strict=True):
                box = _box(cell, before, shape)
                array[box] = block[tuple(slice(0, s.stop - s.start) for s in box)]
        for cells in _batches(shape, after):
            blocks = [np.ascontiguousarray(array[_box(cell, after, shape)]) for cell in cells]
            seconds += timed(codec.encode, blocks)
    print(json.dumps({"seconds": seconds}))


def _batches(shape: tuple[int, ...], chunks: tuple[int, ...]) -> Iterable[list[tuple[int, ...]]]:
    counts = [-(-n // c) for n, c in zip(shape, chunks, strict=True)]
    cells = list(product(*map(range, counts)))
    return (cells[i : i + CHUNKS_AT_ONCE] for i in range(0, len(cells), CHUNKS_AT_ONCE))


def _box(cell: tuple[int, ...], chunks: tuple[int, ...], shape: tuple[int, ...]) -> Any:
    return tuple(
        slice(k * c, min((k + 1) * c, n)) for k, c, n in zip(cell, chunks, shape, strict=True)
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
