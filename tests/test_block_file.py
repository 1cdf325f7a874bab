"""The block interface of a plain file of records, with the paper's figure 4."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from block_cases import Case, box, cuts, every, small_file
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from strategies import values

import outcore as oc
from outcore.blocks.file import FileStore
from outcore.errors import (
    BudgetError,
    DiskFullError,
    ExistsError,
    InvalidError,
    IsDirectoryError,
    NotFoundError,
    TruncatedError,
)


def figure_4(path: Path) -> np.ndarray[Any, Any]:
    """Write 9 rows of 12 records of 500 bytes, 54,000 bytes in all."""
    model = np.random.default_rng(4).integers(0, 256, (9, 12, 500), np.uint8)
    path.write_bytes(model.tobytes())
    return model


def test_figure_4(tmp_path: Path) -> None:
    """Cettei et al. 1997, figure 4; their block (2, 0) is B[0, 2] in NumPy's order."""
    model = figure_4(tmp_path / "f")
    with oc.BlockInterface(
        tmp_path / "f", record_bytes=500, block=(3, 2), blocks=(3, 6), superblock=(1, 2)
    ) as B:
        assert B.counts == (3, 6)
        assert B.superblocks == (3, 3)
        assert (B.dtype, B.memory_bytes) == (np.dtype("V500"), 2 * 8192)
        first = B[0, 2]
        assert first.shape == (3, 2)
        assert first.tobytes() == model[0:3, 4:6].tobytes()
        assert B.stats.reads == 1
        # Their block (3, 0) is in the buffer with (2, 0), "as it resides in the same superblock".
        assert B.read(0, 3).tobytes() == model[0:3, 6:8].tobytes()
        stats = B.stats
        assert (stats.reads, stats.hits, stats.misses) == (1, 1, 1)
        assert stats.bytes_read == 3 * 4 * 500
    with oc.BlockInterface(
        tmp_path / "f", record_bytes=500, block=(3, 2), blocks=(3, 6), superblock=(1, 2)
    ) as B:
        for i, j in every(B):
            assert B[i, j].tobytes() == model[3 * i : 3 * i + 3, 2 * j : 2 * j + 2].tobytes()
        stats = B.stats
    assert stats.reads == 9, "one request a superblock"
    assert (stats.hits + stats.misses, stats.misses) == (18, 3 - 1 + 1)
    assert stats.bytes_read == 54_000
    assert stats.read_ahead == stats.read_ahead_hits == 6


def test_figure_4_written(tmp_path: Path) -> None:
    model = figure_4(tmp_path / "f")
    arguments: dict[str, Any] = {"block": (3, 2), "blocks": (3, 6), "superblock": (1, 2)}
    with oc.BlockInterface(tmp_path / "new", record_bytes=500, mode="x", **arguments) as B:
        for i, j in every(B):
            part = model[3 * i : 3 * i + 3, 2 * j : 2 * j + 2]
            B.write((i, j), np.ascontiguousarray(part).view("V500")[..., 0])
        assert B.stats.reads == 0, "nothing is read to be overwritten"
        B.flush()
        assert (B.stats.writes, B.stats.bytes_written) == (9, 54_000)
    assert (tmp_path / "new").read_bytes() == model.tobytes()


def test_a_block_that_is_written_leaves_the_rest_of_the_file_alone(tmp_path: Path) -> None:
    model = figure_4(tmp_path / "f")
    with (tmp_path / "f").open("ab") as file:
        file.write(b"a trailer")
    dtype = np.dtype([("key", "<u4"), ("rest", "V496")])
    with oc.BlockInterface(
        tmp_path / "f", block=(3, 2), blocks=(3, 6), superblock=(1, 3), dtype=dtype, mode="r+"
    ) as B:
        new = np.zeros((3, 2), dtype)
        new["key"] = [[1, 2], [3, 4], [5, 6]]
        B[1, 4] = new
    model[3:6, 8:10] = new[..., None].view(np.uint8)
    assert (tmp_path / "f").read_bytes() == model.tobytes() + b"a trailer"


@pytest.mark.parametrize("superblock", [(1, 1, 1), (2, 1, 2), (2, 2, 2), (1, 3, 5), (2, 3, 5)])
def test_three_dimensions_in_a_file(tmp_path: Path, superblock: tuple[int, ...]) -> None:
    """Whole rows and planes are contiguous runs; others are nested strides."""
    model = values((4, 9, 10), "f4")
    model.tofile(tmp_path / "f")
    with oc.BlockInterface(
        tmp_path / "f", block=(2, 3, 2), blocks=(2, 3, 5), superblock=superblock, dtype="f4",
        mode="r+", buffers=3,
    ) as B:  # fmt: skip
        for at in every(B):
            np.testing.assert_array_equal(B[at], model[box(B, at)])
        B[1, 2, 3] = model[2:4, 6:9, 6:8] = 7
        B[0, 1, 4] = model[0:2, 3:6, 8:10] = 8
    np.testing.assert_array_equal(np.fromfile(tmp_path / "f", "f4").reshape(model.shape), model)


@examples(60)
@given(
    data=st.data(),
    cut=st.lists(st.tuples(st.integers(1, 4), st.integers(1, 5)), min_size=1, max_size=3),
    dtype=st.sampled_from(["u1", "f4", "c16"]),
)
def test_a_file_behaves_as_in_memory(
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
    cut: list[tuple[int, int]],
    dtype: str,
) -> None:
    path = tmp_path_factory.mktemp("blocks") / "f"
    block, counts = zip(*cut, strict=True)
    model = values(tuple(b * n for b, n in cut), dtype, seed=99)
    model.tofile(path)
    how = data.draw(cuts(model.shape))
    with oc.BlockInterface(
        path, block=block, blocks=counts, dtype=dtype, mode="r+", **how
    ) as blocks:
        Case(model, data.draw, may_pin=how["buffers"] > 1).play(blocks)
    np.testing.assert_array_equal(np.fromfile(path, dtype).reshape(model.shape), model)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"record_bytes": 500, "blocks": (3, 7)}, TruncatedError),
        ({"record_bytes": 0}, InvalidError),
        ({"record_bytes": 1.5}, InvalidError),
        ({}, InvalidError),
        ({"record_bytes": 500, "dtype": "f8"}, InvalidError),
        ({"dtype": "O"}, InvalidError),
        ({"dtype": "V0"}, InvalidError),
        ({"dtype": "nonsense"}, InvalidError),
        ({"record_bytes": 500, "blocks": (3, 6, 1)}, InvalidError),
        ({"record_bytes": 500, "mode": "w"}, InvalidError),
        ({"record_bytes": 500, "mode": "x"}, ExistsError),
        ({"record_bytes": 500, "memory": 8191}, BudgetError),
        ({"record_bytes": 500, "pin": slice(0, 2)}, BudgetError),
        ({"record_bytes": 500, "file": "none"}, NotFoundError),
        ({"record_bytes": 500, "file": "."}, IsDirectoryError),
        ({"record_bytes": 500, "file": ".", "mode": "r"}, IsDirectoryError),
        ({"record_bytes": 1 << 40}, InvalidError),
        ({"record_bytes": 500, "block": [], "blocks": []}, InvalidError),
        ({"record_bytes": 500, "block": None}, InvalidError),
        ({"record_bytes": 500, "block": True, "blocks": 3}, InvalidError),
        ({"record_bytes": 500, "file": 3.5}, InvalidError),
    ],
    ids=str,
)
def test_wrong_files(tmp_path: Path, arguments: dict[str, Any], error: type[Exception]) -> None:
    figure_4(tmp_path / "f")
    given_ = {"file": "f", "block": (3, 2), "blocks": (3, 6), "mode": "r+"} | arguments
    file = given_.pop("file")
    with pytest.raises(error):
        oc.BlockInterface(tmp_path / file if isinstance(file, str) else file, **given_)
    assert (tmp_path / "f").stat().st_size == 54_000


def test_a_new_file_that_cannot_be_is_not_left(tmp_path: Path) -> None:
    with pytest.raises(BudgetError):
        oc.BlockInterface(
            tmp_path / "new", record_bytes=1, block=1, blocks=9, pin=slice(0, 3), mode="x"
        )
    with pytest.raises(DiskFullError, match=r"need \d{16} bytes on disk .*free some room"):
        oc.BlockInterface(tmp_path / "new", record_bytes=1 << 20, block=1, blocks=1 << 30, mode="x")
    assert os.listdir(tmp_path) == []


def test_what_is_whole_is_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Superblocks over whole trailing dimensions are contiguous in the file."""
    figure_4(tmp_path / "f")
    runs: list[int] = []
    whole = FileStore._read_run

    def count(store: FileStore, offset: int, run: memoryview) -> None:
        runs.append(len(run))
        whole(store, offset, run)

    monkeypatch.setattr(FileStore, "_read_run", count)
    for superblock, found in [((1, 6), [18_000]), ((2, 6), [36_000]), ((1, 2), [2000] * 3)]:
        with oc.BlockInterface(
            tmp_path / "f", record_bytes=500, block=(3, 2), blocks=(3, 6), superblock=superblock
        ) as B:
            B.read(0, 0)
        assert runs == found
        runs.clear()


def test_a_file_cut_short_meanwhile(tmp_path: Path) -> None:
    with small_file(tmp_path / "f", mode="r") as B:
        os.truncate(tmp_path / "f", 30)
        assert B.read(0).tolist() == [0, 1]
        with pytest.raises(TruncatedError, match="the file ends there"):
            B.read(23)


@pytest.mark.parametrize("mode", ["r", "r+"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, mode: Any) -> None:
    os.mkfifo(tmp_path / "f")
    with pytest.raises(InvalidError, match=r"f is a pipe.* name a plain file"):
        oc.BlockInterface(tmp_path / "f", record_bytes=1, block=2, blocks=2, mode=mode)
    with pytest.raises(InvalidError, match=r"/dev/zero is .*a device"):
        oc.BlockInterface("/dev/zero", record_bytes=1, block=2, blocks=2, mode=mode)
