"""How a resumed copy recognizes its source, and sources whose copies restart."""

import io
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import zarr
from source_cases import in_hdf5, in_npy, in_zarr
from stopped_copies import (
    CHUNKS,
    MEMORY,
    MODEL,
    Fetched,
    Make,
    copy,
    hdf5_dataset,
    in_memmap,
    in_raw,
    stopped,
    stored,
)

import outcore as oc
from outcore.convert.copying import copy_to_array
from outcore.convert.open_source import open_source
from outcore.errors import JournalError


def test_a_source_that_was_written_to_is_refused(tmp_path: Path, fetched: Fetched) -> None:
    source = in_npy(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    changed = np.load(source, mmap_mode="r+")
    changed[0, 0] = -1
    changed.flush()
    with pytest.raises(JournalError, match="written to since; pass if_exists='overwrite'"):
        copy(source, tmp_path / "A")
    with copy(source, tmp_path / "A", if_exists="overwrite") as array:
        np.testing.assert_array_equal(array[...], changed)


def test_an_array_that_was_written_to_is_refused(tmp_path: Path, fetched: Fetched) -> None:
    stopped(stored(tmp_path), tmp_path / "A", fetched)
    with oc.open_array(tmp_path / "stored", "r+") as array:
        array[0, 0] = -1.0
    with pytest.raises(JournalError, match="written to since"):
        copy(tmp_path / "stored", tmp_path / "A")


def test_a_chunk_of_a_zarr_array_that_was_written_to_is_noticed(
    tmp_path: Path, fetched: Fetched
) -> None:
    source = in_zarr()(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    zarr.open(source, mode="r+")[-1, -1] = 0
    with pytest.raises(JournalError, match="written to since"):
        copy(source, tmp_path / "A")


def test_another_source_is_refused(tmp_path: Path, fetched: Fetched) -> None:
    stopped(in_npy(MODEL, tmp_path), tmp_path / "A", fetched)
    for other in (in_raw(tmp_path), in_memmap(tmp_path), MODEL):
        with pytest.raises(JournalError, match=r"half-made copy of \S*a\.npy, and this is "):
            copy(other, tmp_path / "A")


def unlinked(path: Path) -> Any:
    np.save(path / "u.npy", MODEL)
    found = np.load(path / "u.npy", mmap_mode="r")
    (path / "u.npy").unlink()
    return found


def in_memory_hdf5(path: Path) -> Any:
    file = h5py.File(io.BytesIO(), "w")
    return file.create_dataset("a", data=MODEL, chunks=(20, 13))


def virtual_hdf5(path: Path) -> str:
    name, _, dataset = in_hdf5(MODEL, path).partition("::")
    layout = h5py.VirtualLayout(MODEL.shape, MODEL.dtype)
    layout[...] = h5py.VirtualSource(name, dataset, MODEL.shape)
    with h5py.File(path / "virtual.h5", "w") as file:
        file.create_virtual_dataset("a", layout)
    return f"{path}/virtual.h5"


def linked_zarr(path: Path) -> Path:
    found = in_zarr()(MODEL, path)
    (found / "c").rename(path / "elsewhere")
    (found / "c").symlink_to(path / "elsewhere")
    return found


@pytest.mark.parametrize(
    "make", [in_memmap, hdf5_dataset, unlinked, in_memory_hdf5, virtual_hdf5, linked_zarr]
)
def test_what_may_change_unseen_begins_anew(tmp_path: Path, make: Make, fetched: Fetched) -> None:
    source = make(tmp_path)
    stopped(source, tmp_path / "A", fetched, at=1)
    with copy(source, tmp_path / "A") as array:
        np.testing.assert_array_equal(array[...], MODEL)
        assert array.report.blocks_before == 0


def test_a_chunk_of_the_same_size_and_an_older_time_is_noticed(
    tmp_path: Path, fetched: Fetched
) -> None:
    source = in_zarr(compressors=None)(MODEL, tmp_path)
    stopped(source, tmp_path / "A", fetched)
    file = max(path for path in source.rglob("c/*/*") if path.is_file())
    file.write_bytes(bytes(file.stat().st_size))
    os.utime(file, ns=(0, 0))
    with pytest.raises(JournalError, match="written to since"):
        copy(source, tmp_path / "A")


def test_a_file_that_took_the_place_of_another_is_noticed(tmp_path: Path, fetched: Fetched) -> None:
    """The version of an open file is its own, not that of the file now at its path."""
    source = in_npy(MODEL, tmp_path)
    with open_source(source) as opened:
        np.save(tmp_path / "new.npy", -MODEL)
        (tmp_path / "new.npy").rename(source)
        fetched.anew(5)
        with pytest.raises(ZeroDivisionError):
            copy_to_array(opened, tmp_path / "A", memory=MEMORY, chunks=CHUNKS, progress=False)
        fetched.anew()
    with pytest.raises(JournalError, match="written to since"):
        copy(source, tmp_path / "A")


def test_what_is_in_no_file_begins_anew(tmp_path: Path, fetched: Fetched) -> None:
    def rows(fail: bool = False) -> Any:
        for i in range(0, 60, 6):
            if fail and i == 30:
                raise ZeroDivisionError
            yield MODEL[i : i + 6]

    with pytest.raises(ZeroDivisionError):
        copy(rows(fail=True), tmp_path / "A", shape=60)
    with copy(rows(), tmp_path / "A", shape=60) as array:
        np.testing.assert_array_equal(array[...], MODEL)
        assert array.report.blocks_before == 0


def test_a_private_mapping_begins_anew(tmp_path: Path, fetched: Fetched) -> None:
    """Assignments to it are in no file."""
    np.save(tmp_path / "a.npy", MODEL)
    source = np.load(tmp_path / "a.npy", mmap_mode="c")
    stopped(source, tmp_path / "A", fetched)
    source[0, 0] = -1
    with copy(source, tmp_path / "A") as array:
        np.testing.assert_array_equal(array[...], source)
