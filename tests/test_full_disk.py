"""Full disks: an error before any work where the need is known, and a clean stop midway."""

import ctypes
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import lapack_ratio, on_disk, random_matrix
from stopping import fill_up, stopped_by_a_full_disk

import outcore as oc
from outcore.errors import DiskFullError, IncompleteError
from outcore.linalg import lu_factor


@pytest.mark.parametrize("shape", [(1 << 20, 1 << 21), 1 << 41])
def test_disk_too_full_before_any_work(tmp_path: Path, shape: Any) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free > 8 << 40:
        pytest.skip("the disk is too large to be too small")
    called = []
    for fill in [None, lambda *box: called.append(box)]:
        with pytest.raises(DiskFullError, match=r"need \d{13,} bytes.* [\d]+ are free") as caught:
            oc.create_array(tmp_path / "A", shape, fill=fill)
        assert caught.value.kind == "disk_full"
        assert os.listdir(tmp_path) == []
    assert not called


def test_the_room_for_all_shard_files_is_asked_for(small_disk: Path) -> None:
    need = 2 * (65_536 * (4096 + 16) + 4)
    with pytest.raises(DiskFullError, match=f"need {need} bytes"):
        oc.create_array(small_disk / "A", (80_000,), "u1", chunks=(1,))
    assert sorted(p.name for p in small_disk.iterdir()) == ["lost+found"]


def test_disk_full_midway(small_disk: Path, tmp_path: Path) -> None:
    array = oc.create_array(
        small_disk / "A", (4096, 4096), chunks=(512, 512), reserve=False
    )  # 128 MB
    array[:512] = 1.0
    with pytest.raises(DiskFullError, match=r"cannot write .*free some room"):
        array[512:] = 2.0
    # The written elements are there, and the call works once space is free.
    assert (array[:512] == 1.0).all()
    array.close()
    with pytest.raises(DiskFullError):
        oc.create_array(small_disk / "B", (2048, 2048))
    assert not (small_disk / "B").exists()
    subprocess.run(["rm", "-r", small_disk / "A"], check=True)
    oc.create_array(small_disk / "B", (1024, 1024))[...] = 1.0


def test_disk_full_amid_short_runs(small_disk: Path) -> None:
    array = oc.create_array(small_disk / "A", (4096, 4096), chunks=(512, 512), reserve=False)
    array[:512] = 1.0

    def write() -> None:
        for first in range(0, 4096, 200):
            array[512:, first : first + 200] = 2.0

    with pytest.raises(DiskFullError, match=r"cannot write .*free some room"):
        write()
    assert (array[:512] == 1.0).all()
    assert set(np.unique(array[512:])) <= {0.0, 2.0}


def test_assembly_goes_on_when_there_is_room_again(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 40 << 20)
    calls: list[int] = []

    def fill(rows: slice, cols: slice) -> np.ndarray[Any, Any]:
        calls.append(rows.start)
        return np.full((rows.stop - rows.start, cols.stop - cols.start), float(rows.start))

    def assemble() -> oc.Array:
        return oc.create_array(
            small_disk / "A",
            (2048, 2048),
            chunks=(128, 2048),
            fill=fill,
            reserve=False,
            memory="8 MiB",
        )

    with pytest.raises(DiskFullError):
        assemble()
    with pytest.raises(IncompleteError):
        oc.open_array(small_disk / "A")
    ballast.unlink()
    before = len(calls)
    array = assemble()
    assert (array[:, ::512] == (np.arange(2048) // 128 * 128)[:, None]).all()
    assert 0 < len(calls) - before < 16, "blocks done are not asked for again"


def test_where_room_cannot_be_reserved(disk_without_reserving: Path) -> None:
    """Report a known lack of space before any work, and any other at the write that fails."""
    disk = disk_without_reserving
    with (disk / "f").open("wb") as file, pytest.raises(OSError, match="not supported"):
        _fallocate(file.fileno(), 1 << 20)
    (disk / "f").unlink()
    with pytest.raises(DiskFullError, match=r"need \d+ bytes.* \d+ are free"):
        oc.create_array(disk / "A", (4096, 4096))
    assert not (disk / "A").exists()

    filler = disk / "filler"
    made: list[int] = []

    def fill(rows: slice, cols: slice) -> np.ndarray[Any, Any]:
        made.append(rows.start)
        if len(made) == 3:
            fill_up(filler)
        return np.full((rows.stop - rows.start, cols.stop - cols.start), float(rows.start))

    def assemble() -> oc.Array:
        return oc.create_array(
            disk / "A", (2048, 2048), chunks=(128, 2048), fill=fill, memory="8 MiB"
        )

    with pytest.raises(DiskFullError, match=r"cannot write .*free some room"):
        assemble()
    with pytest.raises(IncompleteError):
        oc.open_array(disk / "A")
    filler.unlink()
    assert (assemble()[:, ::512] == (np.arange(2048) // 128 * 128)[:, None]).all()


def _fallocate(file: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(file, 0, ctypes.c_long(0), ctypes.c_long(length)):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_lu_where_room_cannot_be_reserved(disk_without_reserving: Path, overwrite_a: bool) -> None:
    """A slab finds no space: the factors resume from the slab before."""
    disk = disk_without_reserving
    a = random_matrix(1000, "f8")
    on_disk(disk / "Z", a, (64, 32)).close()
    lu = stopped_by_a_full_disk(
        lambda: lu_factor(disk / "Z", memory=600_000, overwrite_a=overwrite_a, progress=False),
        disk / "Z.lu",
        match="journal" if overwrite_a else "/lu/c/0/0: No space left",
    )
    assert lapack_ratio(a, lu) < 30
