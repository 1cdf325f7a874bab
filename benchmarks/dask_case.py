"""A process for one operation of ``dask.array.linalg``: ``CASE PATH RESULT CHUNK``.

It reads the array through zarr-python, like a user of dask, and never imports outcore. Factors go
to disk; a solution or R is a ``.npy`` file.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

# Optional packages without type annotations.
da: Any = importlib.import_module("dask.array")
zarr: Any = importlib.import_module("zarr")


def main(case: str, path: str, result: str, chunk: int) -> None:
    source = zarr.open_array(path, mode="r")
    n = source.shape[1]
    shape = (chunk, n) if case == "qr" else (chunk, chunk)
    a = da.from_array(source, chunks=shape)
    start = time.perf_counter()
    if case == "lu":
        p, lower, upper = da.linalg.lu(a)
        store([p, lower, upper], result, chunk)
    elif case == "cholesky":
        store([da.linalg.cholesky(a, lower=True)], result, chunk)
    elif case == "qr":
        np.save(result, da.linalg.qr(a)[1].compute())
    else:
        b = da.from_array(np.ones(n), chunks=chunk)
        np.save(result, da.linalg.solve(a, b).compute())
    print(json.dumps({"seconds": time.perf_counter() - start}))
    if "outcore" in sys.modules:
        raise AssertionError("this process is to be without outcore")


def store(arrays: list[Any], result: str, chunk: int) -> None:
    """Write factors to disk, like those of outcore."""
    targets = [
        zarr.create_array(
            str(Path(result) / f"{i}"), shape=a.shape, dtype="f8", chunks=(chunk, chunk),
            compressors=None,
        )
        for i, a in enumerate(arrays)
    ]  # fmt: skip
    da.store(arrays, targets)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
