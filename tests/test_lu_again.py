"""LU goes on: killed in its loops, with two threads, of every type, with another BLAS."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import lapack_ratio, on_disk, one_thread, random_matrix
from lu_by_method import assert_finished, some_lines
from stopping import bits, killed_at_lines, stop_after

from outcore import blas_choice
from outcore.linalg import LUFactor, lu_factor
from outcore.linalg.factors.journal import read_journal
from outcore.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, CHUNKS, MEMORY = 200, (64, 32), 200_000
LOOPS = ("lu/slabs.py", "lu/conveyor.py")


@pytest.mark.parametrize("overwrite_a", [False, True], ids=["beside", "overwrite_a"])
def test_killed_at_lines_of_the_loops(tmp_path: Path, overwrite_a: bool) -> None:
    """kill -9 where slabs are loaded, updated, factored and written, and tiles leave meanwhile."""
    source, path = tmp_path / "A", tmp_path / "Z"
    on_disk(source, random_matrix(N, "f8"), CHUNKS).close()

    def begin() -> None:
        shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(source, path)

    def factor() -> LUFactor:
        return lu_factor(
            path, overwrite_a=overwrite_a, memory=MEMORY, threads=1, progress=False
        )  # fmt: skip

    begin()
    expected = bits(factor())
    shutil.rmtree(tmp_path / "Z.lu")
    killed = 0
    for lu, where in killed_at_lines(begin, factor, tmp_path / "Z.lu", LOOPS, some_lines(40)):
        assert_finished(lu, expected, where)
        killed += 1
    assert killed > 35


@pytest.mark.parametrize("overwrite_a", [False, True], ids=["beside", "overwrite_a"])
@pytest.mark.parametrize(
    ("dtype", "threads"), [("f4", 1), ("c8", 1), ("c16", 1), ("f8", 2), ("c16", 2)]
)
def test_the_same_bits_after_a_stop(
    tmp_path: Path, dtype: str, threads: int, overwrite_a: bool
) -> None:
    """With the same kernels and as many threads as before."""
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
    """The report says so, also where the last call has the kernels of the first again."""
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
    assert differs.startswith("budget, threads or BLAS changed since the run began")
    assert "last bits may differ" in differs
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30
