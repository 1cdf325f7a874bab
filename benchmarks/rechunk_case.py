"""A process that copies an array into other chunks: ``WHO SOURCE RESULT CHUNKS MEMORY CODEC``.

Rivals read and write through zarr-python, like their users, and never import outcore. The time
ends when all data would survive power loss.
"""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.scratch import sync


def outcore(source: str, result: str, chunks: tuple[int, ...], memory: int, codec: str) -> None:
    oc: Any = importlib.import_module("outcore")
    given = {} if codec == "none" else {"format": "zarr", "codec": codec}
    oc.rechunk(source, result, chunks=chunks, memory=memory, progress=False, **given)


def dask(source: str, result: str, chunks: tuple[int, ...], memory: int, codec: str) -> None:
    da: Any = importlib.import_module("dask.array")
    a = da.from_zarr(source).rechunk(chunks, block_size_limit=memory // 4)
    da.store(a, _target(result, a.shape, a.dtype, chunks, codec))


def rechunker(source: str, result: str, chunks: tuple[int, ...], memory: int, codec: str) -> None:
    zarr: Any = importlib.import_module("zarr")
    library: Any = importlib.import_module("rechunker")
    temporary = str(Path(result).with_name("temporary"))
    given = {} if codec == "zstd" else {"target_options": {"compressor": None}}
    library.rechunk(
        zarr.open_array(source, mode="r"), chunks, memory, result, temp_store=temporary, **given
    ).execute()


def cubed(source: str, result: str, chunks: tuple[int, ...], memory: int, codec: str) -> None:
    library: Any = importlib.import_module("cubed")
    spec = library.Spec(str(Path(result).with_name("temporary")), allowed_mem=memory)
    a = library.from_zarr(source, spec=spec).rechunk(chunks)
    library.store([a], [_target(result, a.shape, a.dtype, chunks, codec)])


def _target(path: str, shape: Any, dtype: Any, chunks: tuple[int, ...], codec: str) -> Any:
    zarr: Any = importlib.import_module("zarr")
    compressors = None if codec == "none" else "auto"  # zstd is zarr-python's default
    return zarr.create_array(path, shape=shape, dtype=dtype, chunks=chunks, compressors=compressors)


def main(who: str, source: str, result: str, chunks: str, memory: str, codec: str) -> None:
    run = {"outcore": outcore, "dask": dask, "rechunker": rechunker, "cubed": cubed}[who]
    # The time excludes that of imports.
    names = {"outcore": "outcore.convert.rechunk", "dask": "dask.array"}
    importlib.import_module(names.get(who, who))
    if (who, codec) != ("outcore", "none"):
        importlib.import_module("zarr")
    start = time.perf_counter()
    run(source, result, tuple(map(int, chunks.split(","))), int(memory), codec)
    sync(Path(result))
    print(json.dumps({"seconds": time.perf_counter() - start}))
    if who != "outcore" and "outcore" in sys.modules:
        raise AssertionError("this process is to be without outcore")


if __name__ == "__main__":
    main(*sys.argv[1:])
