"""Factors in LAPACK's order, as SciPy accepts them."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import (
    Matrix,
    hpl_residual,
    names_below,
    on_disk,
    one_thread,
    packed,
    random_matrix,
)
from stopping import in_a_fork

import outcore as oc
from outcore.errors import BudgetError, ExistsError, Interrupted
from outcore.linalg import LUFactor, export_lapack, lu_factor
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.linalg._lu import export as lu_export

__all__ = ["one_thread"]  # a fixture for every test here

TINY = 400_000


def factored(path: Path, a: Matrix, **more: Any) -> LUFactor:
    return lu_factor(on_disk(path, a), **{"memory": TINY, "progress": False} | more)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("n", [1, 2, 63, 65, 300, 333])
@pytest.mark.parametrize("dtype", DTYPES)
def test_scipy_solves_with_them(tmp_path: Path, dtype: str, n: int) -> None:
    a = random_matrix(n, dtype, n)
    lu = factored(tmp_path / "Z", a)
    array, piv, report = export_lapack(lu, memory=TINY, progress=False)
    assert array.path == tmp_path / "Z.lu.lapack"
    assert (array.shape, array.dtype, array.order) == ((n, n), a.dtype, "F")
    assert array.info().state == "whole"
    np.testing.assert_array_equal(array[...], packed(lu))
    b = random_matrix(n, dtype, 1)[:, :3]
    x = scipy.linalg.lu_solve((array[...], piv), b)
    assert hpl_residual(a, x, b) < 16
    theirs, their_piv = scipy.linalg.lu_factor(a)
    np.testing.assert_array_equal(piv, their_piv)
    tolerance = 1e3 * n * np.finfo(dtype).eps
    np.testing.assert_allclose(array[...], theirs, rtol=tolerance, atol=tolerance)
    assert report.verb == "export_lapack"
    assert report.peak_memory_bytes <= TINY


@pytest.mark.parametrize("overwrite_a", [False, True])
def test_one_pass_of_reading_and_one_of_writing(tmp_path: Path, overwrite_a: bool) -> None:
    n = 1024
    a = random_matrix(n, "f8")
    A = on_disk(tmp_path / "Z", a, chunks=(128, 64))
    lu = lu_factor(A, memory="1 MB", overwrite_a=overwrite_a, progress=False)
    array, _, report = export_lapack(lu, tmp_path / "out", memory="300 kB", progress=False)
    assert report.bytes_read == report.planned_bytes_read == n * n * 8
    assert report.bytes_written == report.planned_bytes_written == n * n * 8
    whole = array[...]
    assert np.abs(whole - scipy.linalg.lu_factor(a)[0]).max() < 1e-9


def test_any_memory_gives_the_same(tmp_path: Path) -> None:
    a = random_matrix(300, "f8")
    lu = factored(tmp_path / "Z", a)
    with pytest.raises(BudgetError, match="need") as refused:
        export_lapack(lu, memory=1000, progress=False)
    least = int(str(refused.value).split()[1])
    assert names_below(tmp_path / "Z.lu") == names_below(lu.path)
    for memory in (least, least + 10_000, 3 * least, 100 * least):
        array, _, report = export_lapack(lu, memory=memory, if_exists="overwrite", progress=False)
        np.testing.assert_array_equal(array[...], packed(lu))
        assert report.peak_memory_bytes <= memory


def test_singular_factors_too(tmp_path: Path) -> None:
    a = random_matrix(100, "f8")
    a[:, 60] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning):
        lu = factored(tmp_path / "Z", a)
    array, _, _ = export_lapack(lu, progress=False)
    assert array[60, 60] == 0
    np.testing.assert_array_equal(array[...], packed(lu))


def test_what_is_there_is_replaced_only_when_told(tmp_path: Path) -> None:
    lu = factored(tmp_path / "Z", random_matrix(100, "f8"))
    export_lapack(lu, tmp_path / "out", progress=False)
    with pytest.raises(ExistsError, match="if_exists='overwrite'"):
        export_lapack(lu, tmp_path / "out", progress=False)
    export_lapack(lu, tmp_path / "out", if_exists="overwrite", progress=False)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("kept")
    with pytest.raises(ExistsError):
        export_lapack(lu, tmp_path / "mine", if_exists="overwrite", progress=False)
    assert (tmp_path / "mine" / "notes").read_text() == "kept"


def stopping(monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    original = lu_export.WriteBehind.write
    count = [0]

    def write(self: Any, *arguments: Any) -> None:
        original(self, *arguments)
        count[0] += 1
        if count[0] == 3:
            os.kill(os.getpid(), number)

    monkeypatch.setattr(lu_export.WriteBehind, "write", write)


def test_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lu = factored(tmp_path / "Z", random_matrix(300, "f8"))
    before = names_below(tmp_path)
    stopping(monkeypatch, signal.SIGTERM)
    with pytest.raises(Interrupted, match=r"exporting Z\.lu was stopped, and nothing is left"):
        export_lapack(lu, memory=TINY, progress=False)
    assert names_below(tmp_path) == before


def test_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed export is marked incomplete, and the next call replaces it."""
    lu = factored(tmp_path / "Z", random_matrix(300, "f8"))
    with monkeypatch.context() as patched:
        stopping(patched, signal.SIGKILL)
        status = in_a_fork(lambda: export_lapack(lu, memory=TINY, progress=False))
    assert status == -signal.SIGKILL
    with pytest.raises(oc.OutcoreError, match="call export_lapack again"):
        oc.open_array(tmp_path / "Z.lu.lapack")
    array, _, _ = export_lapack(lu, memory=TINY, progress=False)
    np.testing.assert_array_equal(array[...], packed(lu))


def test_progress_goes_to_the_end(tmp_path: Path) -> None:
    told: list[float] = []
    lu = factored(tmp_path / "Z", random_matrix(300, "f8"))
    export_lapack(lu, progress=lambda done, left: told.append(done))
    assert told[-1] == 1
