"""How often an export decodes the chunks of its source, counted in zarr-python."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from strategies import values

import outcore as oc
from outcore.convert import export, rechunk_plan
from outcore.errors import InvalidError

SHAPE, FLAT, TALL = (48, 64, 64), (1, 64, 64), (48, 8, 8)
MEMORY = 1 << 20


class Counted:
    """An array that counts its decoded chunks, whose extents it states as dask does."""

    def __init__(self, array: Any, chunks: Any = None) -> None:
        self._array, self.decoded = array, 0
        self.shape, self.dtype = array.shape, array.dtype
        self.chunks = chunks or [
            (chunk,) * (n // chunk) for n, chunk in zip(array.shape, array.chunks, strict=True)
        ]

    def __getitem__(self, box: tuple[slice, ...]) -> Any:
        count = 1
        for s, chunks in zip(box, self.chunks, strict=True):
            ends = np.cumsum(chunks)
            count *= sum(
                s.start < end and end - n < s.stop for n, end in zip(chunks, ends, strict=True)
            )
        self.decoded += count
        return self._array[box]


@pytest.fixture(autouse=True)
def small_arrays_need_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechunk_plan, "WORTH_BYTES", 0)


@pytest.fixture
def source(tmp_path: Path) -> Counted:
    model = values(SHAPE, "f8")
    return Counted(zarr.create_array(tmp_path / "a.zarr", data=model, chunks=FLAT))


@pytest.mark.parametrize("name", ["b.zarr", "b.h5"])
def test_each_chunk_of_a_source_is_decoded_once(tmp_path: Path, source: Counted, name: str) -> None:
    report = oc.export_array(source, tmp_path / name, chunks=TALL, memory=MEMORY, progress=False)
    assert source.decoded == SHAPE[0], "every chunk once"
    assert report.times_read == 1.0
    assert report.peak_memory_bytes <= MEMORY
    with oc.from_array(tmp_path / name, tmp_path / "A", progress=False) as array:
        np.testing.assert_array_equal(array[...], values(SHAPE, "f8"))
    assert sorted(os.listdir(tmp_path)) == ["A", "a.zarr", name], "and nothing is left"


def test_chunks_of_several_heights_are_decoded_once(tmp_path: Path) -> None:
    model, heights = values(SHAPE, "f8"), (1, *(2,) * 23, 1)
    source = Counted(model, (heights, (64,), (64,)))
    report = oc.export_array(
        source, tmp_path / "b.zarr", chunks=TALL, memory=MEMORY, progress=False
    )
    assert source.decoded == len(heights)
    assert report.between, "the array does not fit into memory"
    np.testing.assert_array_equal(zarr.open_array(tmp_path / "b.zarr", mode="r")[...], model)


def test_without_room_for_an_array_between_it_is_decoded_more_often(
    tmp_path: Path, source: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    room = 2 * 8 * np.prod(SHAPE) - 1
    monkeypatch.setattr(export, "_free_bytes", lambda directory: room)
    report = oc.export_array(
        source, tmp_path / "b.zarr", chunks=TALL, memory=MEMORY, progress=False
    )
    assert source.decoded == report.times_read * SHAPE[0] > 2 * SHAPE[0]
    found = zarr.open_array(tmp_path / "b.zarr", mode="r")[...]
    np.testing.assert_array_equal(found, values(SHAPE, "f8"))


def test_with_more_memory_nothing_lies_between(
    tmp_path: Path, source: Counted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "copy_to_array", None)
    oc.export_array(source, tmp_path / "b.zarr", chunks=TALL, memory="32 MiB", progress=False)
    assert source.decoded == SHAPE[0]


def test_conversion_on_the_way(tmp_path: Path, source: Counted) -> None:
    oc.export_array(
        source, tmp_path / "b.zarr", chunks=TALL, memory=MEMORY, dtype="f4", progress=False
    )
    found = zarr.open_array(tmp_path / "b.zarr", mode="r")
    assert found.dtype == "f4"
    np.testing.assert_array_equal(found[...], values(SHAPE, "f8").astype("f4"))


def test_a_failure_leaves_nothing(tmp_path: Path) -> None:
    model = values(SHAPE, "f8")
    model[40, 3, 4] = 1e300
    array = zarr.create_array(tmp_path / "a.zarr", data=model, chunks=FLAT)
    with pytest.raises(InvalidError, match=r"at \(40, 3, 4\)"):
        oc.export_array(
            array, tmp_path / "b.zarr", chunks=TALL, memory=MEMORY, dtype="f4", progress=False
        )
    assert os.listdir(tmp_path) == ["a.zarr"]
