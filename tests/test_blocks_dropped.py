"""Blocks that a program forgets to close: a warning, and all writes are on disk."""

import gc
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from stopping import in_a_fork
from timeouts import HANG_S

import outcore as oc

SHAPE = (24, 16)


def opened(tmp_path: Path, kind: str) -> tuple[oc.Blocks, Any]:
    """Return blocks of an array or a file of zeros, and a function that reads the disk."""
    if kind == "array":
        A = oc.create_array(tmp_path / "A", SHAPE, "f8", chunks=(8, 8))
        blocks = oc.open_array(A.path, "r+").blocks((4, 4), superblock=(2, 2))
        return blocks, lambda: oc.open_array(A.path)[...]
    new = oc.BlockInterface(
        tmp_path / "f", dtype="f8", block=(4, 4), blocks=(6, 4), superblock=(2, 2), mode="x"
    )
    return new, lambda: np.fromfile(tmp_path / "f").reshape(SHAPE)


@pytest.mark.parametrize("kind", ["array", "file"])
def test_what_was_written_is_written_back_with_a_warning(tmp_path: Path, kind: str) -> None:
    found = [opened(tmp_path, kind)]
    on_disk = found[0][1]
    found[0][0][1, 1] = 7
    want = np.zeros(SHAPE)
    want[4:8, 4:8] = 7
    with pytest.warns(ResourceWarning, match="were written to and not closed; call close"):
        found.clear()
    np.testing.assert_array_equal(on_disk(), want)


def test_nothing_is_said_where_nothing_is_lost(tmp_path: Path) -> None:
    blocks, on_disk = opened(tmp_path, "array")
    assert not blocks[1, 1].any()
    del blocks
    gc.collect()
    assert not on_disk().any()


@pytest.mark.parametrize("kind", ["array", "file"])
def test_a_fork_drops_its_copy_without_a_word(tmp_path: Path, kind: str) -> None:
    found = [opened(tmp_path, kind)]
    found[0][0][1, 1] = 7

    def drop() -> None:
        found.clear()
        gc.collect()

    assert in_a_fork(drop) == 0
    found[0][0].close()


@pytest.mark.parametrize("kind", ["array", "file"])
def test_the_end_of_a_program(tmp_path: Path, run_python: Any, kind: str) -> None:
    """At its end Python no longer starts threads."""
    opened(tmp_path, kind)[0].close()
    make = {
        "array": 'oc.open_array("A", "r+").blocks((4, 4), superblock=(2, 2))',
        "file": 'oc.BlockInterface("f", dtype="f8", block=(4, 4), blocks=(6, 4), mode="r+")',
    }[kind]
    run = run_python(f"import outcore as oc\nB = {make}\nB[1, 1] = 7\n")
    run.communicate(timeout=HANG_S)
    assert run.returncode == 0
    file = tmp_path / "f"
    data = oc.open_array(tmp_path / "A")[...] if kind == "array" else np.fromfile(file)
    assert data.sum() == 7 * 16


def test_a_flushed_new_file_has_a_durable_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[int] = []
    fsync = os.fsync

    def noting(handle: int) -> None:
        synced.append(os.fstat(handle).st_ino)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", noting)
    file, directory = tmp_path / "f", tmp_path.stat().st_ino
    options: dict[str, Any] = {"dtype": "f8", "block": (4, 4), "blocks": (6, 4)}
    with oc.BlockInterface(file, mode="x", **options) as blocks:
        blocks.flush()
        assert synced == [file.stat().st_ino, directory]
        blocks.flush()
        assert synced[2:] == [file.stat().st_ino]
    with oc.BlockInterface(file, mode="r+", **options) as blocks:
        blocks.flush()
    assert synced[3:] == [file.stat().st_ino]
