"""LU resumes: killed in its loops, with two threads, of every type, with another BLAS."""

import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import lapack_ratio, on_disk, one_thread, random_matrix
from lu_by_method import assert_finished, some_lines
from stopping import LEFT_LOOKING, bits, in_a_fork, killed_at_lines, stop_after

import outcore as oc
from outcore._core import Grid
from outcore.array_files.metadata import write_metadata
from outcore.blas import blas_choice
from outcore.layout.zarr_format import Metadata
from outcore.linalg import LUFactor, lu_factor
from outcore.linalg._factors import begin
from outcore.linalg._lu.block_columns import storage as block_columns_storage
from outcore.linalg._lu.block_columns.storage import make_workspace
from outcore.linalg._output.journal import read_journal
from outcore.storage.volumes import Place, place

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (64, 32), 200_000
LOOPS = ("_lu/slabs/factor_slabs.py", *LEFT_LOOKING)


@pytest.mark.exhaustive
@pytest.mark.parametrize("overwrite_a", [False, True], ids=["beside", "overwrite_a"])
def test_killed_at_lines_of_the_loops(tmp_path: Path, overwrite_a: bool, all_lines: bool) -> None:
    """kill -9 while slabs load, update, factor and write, and tiles are written behind them."""
    source, path = tmp_path / "A", tmp_path / "Z"
    on_disk(source, random_matrix(N, "f8"), CHUNKS).close()

    def start() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)

    def factor() -> LUFactor:
        return lu_factor(
            path, overwrite_a=overwrite_a, memory=MEMORY, threads=1, progress=False
        )  # fmt: skip

    start()
    expected = bits(factor())
    shutil.rmtree(tmp_path / "Z.lu")
    killed, times = 0, 40 if all_lines else 16
    for lu, where in killed_at_lines(start, factor, tmp_path / "Z.lu", LOOPS, some_lines(times)):
        assert_finished(lu, expected, where)
        killed += 1
    assert killed > 0.85 * times


@pytest.mark.parametrize("overwrite_a", [False, True], ids=["beside", "overwrite_a"])
def test_files_half_written_at_a_kill_are_gone_in_the_end(
    tmp_path: Path, overwrite_a: bool
) -> None:
    """Each replacement file has a temporary name until it is whole; a kill leaves such files."""
    a = random_matrix(N, "f8")
    on_disk(tmp_path / "Z", a, CHUNKS).close()
    stop_after(2, tmp_path / "Z", memory=MEMORY, overwrite_a=overwrite_a)
    half_written = ("zarr.json.77.new", "journal.78.new", "lu/zarr.json.79.new")
    for name in half_written:
        (tmp_path / "Z.lu" / name).write_text("{")
    lu = lu_factor(tmp_path / "Z", memory=MEMORY, overwrite_a=overwrite_a, progress=False)
    assert lapack_ratio(a, lu) < 30
    assert sorted(p.name for p in lu.path.iterdir()) == ["lu", "piv", "zarr.json"]
    assert not list(lu.path.rglob("*.new"))


def test_a_matrix_that_is_given_up_at_a_kill_keeps_no_half_of_a_file(tmp_path: Path) -> None:
    """Kill the call while it marks the matrix as consumed."""
    a = random_matrix(N, "f8")
    path = on_disk(tmp_path / "Z", a, CHUNKS).path

    def killed(where: Place, metadata: Metadata) -> None:
        if metadata.state == "consumed":
            (path / "zarr.json.77.new").write_text("{")
            os.kill(os.getpid(), signal.SIGKILL)
        write_metadata(where, metadata)

    def factor() -> LUFactor:
        return lu_factor(path, overwrite_a=True, memory=MEMORY, progress=False)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(begin, "write_metadata", killed)
        assert in_a_fork(factor) == -signal.SIGKILL
    assert (path / "zarr.json.77.new").exists()
    assert lapack_ratio(a, factor()) < 30
    assert not list(tmp_path.rglob("*.new"))


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("method", "order", "n", "memory"),
    [
        ("block-columns", "C", 320, 160_000),
        ("block-columns", "F", 512, 200_000),
        ("tournament", "C", 320, 165_000),
        ("tournament", "F", 320, 165_000),
    ],
)
def test_killed_while_a_workspace_is_made(
    tmp_path: Path, method: str, order: str, n: int, memory: int
) -> None:
    """The kill leaves the directory without the file."""
    path, out = tmp_path / "Z", tmp_path / "F"
    a = random_matrix(n, "f8")
    oc.from_array(a, path, order=order, chunks=(64, 32), progress=False).close()
    made: list[str] = []

    def making(where: Place, grid: Grid, **options: Any) -> None:
        made.append(where.path.name)
        if len(made) == doomed:
            (tmp_path / "F" / made[-1] / "c" / "0").mkdir(parents=True, exist_ok=True)
            os.kill(os.getpid(), signal.SIGKILL)
        make_workspace(where, grid, **options)

    def factor() -> LUFactor:
        return lu_factor(
            path, out=out, memory=memory, method=method, threads=1, progress=False
        )  # fmt: skip

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_columns_storage, "make_workspace", making)
        doomed = 0
        expected = bits(factor())
        names, count = set(made), len(made)
        assert names == {"lower", "spill"} | ({"rest-0"} if order == "F" else set())
        for number in range(1, count + 1):
            shutil.rmtree(out)
            made.clear()
            doomed = number
            assert in_a_fork(factor) == -signal.SIGKILL
            doomed = 0
            assert_finished(factor(), expected, f"killed at {number} of {count}")


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("overwrite_a", [False, True], ids=["beside", "overwrite_a"])
@pytest.mark.parametrize(
    ("dtype", "threads"), [("f4", 1), ("c8", 1), ("c16", 1), ("f8", 2), ("c16", 2)]
)
def test_the_same_bits_after_a_stop(
    tmp_path: Path, dtype: str, threads: int, overwrite_a: bool
) -> None:
    """A resume with the same kernels and thread count gives the same bits."""
    n = 500
    memory = n * n * np.dtype(dtype).itemsize // 4
    source, path = tmp_path / "A", tmp_path / "Z"
    on_disk(source, random_matrix(n, dtype), CHUNKS).close()
    shutil.copytree(source, path)
    options: dict[str, Any] = {"memory": memory, "threads": threads, "overwrite_a": overwrite_a}
    stop_after(2, path, **options)
    lu = lu_factor(path, progress=False, **options)
    assert lu.report is not None
    assert ["resumed" in note for note in lu.report.notes] == [True]
    undisturbed = lu_factor(source, progress=False, **options)
    assert undisturbed.report is not None
    assert undisturbed.report.notes == []
    for have, want in zip(bits(lu), bits(undisturbed), strict=True):
        np.testing.assert_array_equal(have, want)


@pytest.mark.parametrize("overwrite_a", [False, True], ids=["beside", "overwrite_a"])
@pytest.mark.parametrize("last", ["other kernels", None])
def test_another_blas_goes_on(tmp_path: Path, overwrite_a: bool, last: str | None) -> None:
    """The report says so, even if the last call has the kernels of the first again."""
    a = random_matrix(N, "f8")
    path = on_disk(tmp_path / "Z", a, CHUNKS).path
    options: dict[str, Any] = {"memory": MEMORY, "threads": 1, "overwrite_a": overwrite_a}
    kernels, threads = blas_choice.in_use()
    with pytest.MonkeyPatch.context() as patch:
        stop_after(2, path, **options)
        patch.setattr(blas_choice, "in_use", lambda: ("other kernels", threads))
        stop_after(1, path, **options)
        patch.setattr(blas_choice, "in_use", lambda: (last or kernels, threads))
        journal = read_journal(place(tmp_path / "Z.lu"))
        lu = lu_factor(path, progress=False, **options)
    assert journal is not None
    assert lu.report is not None
    assert lu.report.kernels == (last or kernels)
    resumed, differs = lu.report.notes
    assert resumed.startswith(f"resumed at panel {journal.panels_done} of ")
    assert differs.startswith("budget, threads, processes or BLAS changed since the run began")
    assert "last bits may differ" in differs
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30
