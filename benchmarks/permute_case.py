"""A process that permutes an array: ``WHO SOURCE RESULT KIND MEMORY``.

Rivals transpose a matrix, and never import outcore: NumPy by square blocks of a quarter of the
budget, from one mapped ``.npy`` file to another; zarr-python and dask by square chunks, which suit
rows and columns alike. The time ends when all data would survive power loss.
"""

import importlib
import json
import math
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.scratch import sync


def outcore(source: str, result: str, kind: str, memory: int) -> dict[str, Any]:
    oc: Any = importlib.import_module("outcore")
    with oc.permute(source, result, kind, memory=memory, progress=False) as array:
        return {"pass_seconds": array.report.pass_seconds}


def memmap(source: str, result: str, kind: str, memory: int) -> dict[str, Any]:
    a = np.lib.format.open_memmap(source, mode="r")
    b = np.lib.format.open_memmap(result, mode="w+", dtype=a.dtype, shape=a.shape[::-1])
    side = math.isqrt(memory // 4 // a.itemsize)
    for i in range(0, a.shape[0], side):
        for j in range(0, a.shape[1], side):
            b[j : j + side, i : i + side] = a[i : i + side, j : j + side].T
    b.flush()
    return {}


def zarr(source: str, result: str, kind: str, memory: int) -> dict[str, Any]:
    library: Any = importlib.import_module("zarr")
    a = library.open_array(source, mode="r")
    b = _target(result, a)
    (rows, columns), (m, n) = a.shape, a.chunks
    for i in range(0, rows, m):
        for j in range(0, columns, n):
            b[j : j + n, i : i + m] = a[i : i + m, j : j + n].T
    return {}


def dask(source: str, result: str, kind: str, memory: int) -> dict[str, Any]:
    da: Any = importlib.import_module("dask.array")
    a = da.from_zarr(source)
    da.store(a.T, _target(result, importlib.import_module("zarr").open_array(source, mode="r")))
    return {}


def _target(path: str, source: Any) -> Any:
    library: Any = importlib.import_module("zarr")
    return library.create_array(
        path, shape=source.shape[::-1], dtype=source.dtype, chunks=source.chunks[::-1],
        compressors=None,
    )  # fmt: skip


def main(who: str, source: str, result: str, kind: str, memory: str) -> None:
    run = {"outcore": outcore, "memmap": memmap, "zarr": zarr, "dask": dask}[who]
    # The time excludes that of imports.
    names = {"outcore": "outcore.permutations.permute", "memmap": "numpy", "dask": "dask.array"}
    importlib.import_module(names.get(who, who))
    if who == "dask":
        importlib.import_module("zarr")
    start = time.perf_counter()
    found = run(source, result, kind, int(memory))
    sync(Path(result))
    found["seconds"] = time.perf_counter() - start
    # Not ru_maxrss, which begins with the size of the parent.
    status = Path("/proc/self/status").read_text()
    found["rss_bytes"] = int(status.split("VmHWM:")[1].split()[0]) << 10
    print(json.dumps(found))
    if who != "outcore" and "outcore" in sys.modules:
        raise AssertionError("this process is to be without outcore")


if __name__ == "__main__":
    main(*sys.argv[1:])
