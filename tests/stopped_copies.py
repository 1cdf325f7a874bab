"""Copies into arrays that a test stops, and the blocks they read from their sources."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from source_cases import in_hdf5, in_npy, in_zarr

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert import rechunk_plan, sources

SHAPE, CHUNKS = (60, 40), (10, 13)
MODEL = np.arange(2400.0).reshape(SHAPE)
MEMORY = 256 << 10
Make = Callable[[Path], Any]


def in_raw(path: Path) -> dict[str, Any]:
    MODEL.tofile(path / "a.raw")
    return {"source": path / "a.raw", "shape": SHAPE, "dtype": "f8"}


def in_memmap(path: Path) -> Any:
    np.concatenate([MODEL, MODEL], axis=1).tofile(path / "a.map")
    return np.memmap(path / "a.map", "f8", "r", shape=(60, 80))[:, 40:]


def stored(path: Path) -> oc.Array:
    with oc.from_array(MODEL, path / "stored", chunks=(5, 40), progress=False):
        pass
    return oc.open_array(path / "stored")


def hdf5_dataset(path: Path) -> Any:
    name, _, dataset = in_hdf5(MODEL, path).partition("::")
    return h5py.File(name, "r")[dataset]


KINDS: dict[str, Make] = {
    ".npy": lambda path: in_npy(MODEL, path),
    "raw": in_raw,
    "HDF5": lambda path: in_hdf5(MODEL, path),
    "Zarr": lambda path: in_zarr()(MODEL, path),
    "zarr-python": lambda path: zarr.open(in_zarr()(MODEL, path), mode="r"),
    "outcore": stored,
}


class Fetched:
    """A record of the blocks that copies read from sources, and one read that can fail.

    Blocks are small, so there are many, and the copy notes each one as soon as it is durable.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)
        self.block_bytes = 1 << 10
        monkeypatch.setattr(
            rechunk_plan._Chain, "_room", lambda chain, *_: self.block_bytes // chain.itemsize
        )
        self.boxes: list[tuple[int, ...]] = []
        self.fail_at: int | None = None
        self.error: BaseException = ZeroDivisionError()
        for kind in (sources.Flat, sources.Mapped, sources.Sliced, sources.Stored, sources.Rows):
            monkeypatch.setattr(kind, "fetch", self._watched(kind.fetch))

    def _watched(self, fetch: Callable[..., Any]) -> Callable[..., Any]:
        def watched(source: Any, box: Any, out: Any) -> Any:
            if len(self.boxes) == self.fail_at:
                raise self.error
            self.boxes.append(tuple(s.start for s in box))
            return fetch(source, box, out)

        return watched

    def anew(self, fail_at: int | None = None) -> list[tuple[int, ...]]:
        """Return the reads so far, and reset the list."""
        before, self.boxes, self.fail_at = self.boxes, [], fail_at
        return before


def copy(source: Any, path: Path, **options: Any) -> oc.Array:
    given = {"memory": MEMORY, "chunks": CHUNKS, "progress": False} | options
    if isinstance(source, dict):
        given |= {key: value for key, value in source.items() if key != "source"}
        source = source["source"]
    return oc.from_array(source, path, **given)


def stopped(source: Any, path: Path, fetched: Fetched, at: int = 5, **options: Any) -> None:
    """Start a copy that fails after `at` reads."""
    fetched.anew(at)
    with pytest.raises(type(fetched.error)):
        copy(source, path, **options)
    fetched.fail_at = None


def noted(path: Path) -> int:
    return int(json.loads((path / "outcore.copy").read_text().splitlines()[-1])["blocks_done"])
