"""Iterative methods with right-hand sides and solutions on disk."""

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import Matrix, one_thread, random_matrix

import outcore as oc
from outcore.errors import (
    BudgetError,
    ConvergenceWarning,
    DivergenceError,
    ExistsError,
    IncompleteError,
    Interrupted,
    InvalidError,
)
from outcore.linalg import cg, gauss_seidel, gmres, jacobi, lu_factor

__all__ = ["one_thread"]  # a fixture for every test here

N, MEMORY = 240, 800_000
METHODS = [gauss_seidel, jacobi, cg, gmres]


def stored(path: Path, a: Matrix) -> oc.Array:
    return oc.from_array(a, path, chunks=(40, 40))


def dominant(dtype: str = "f8") -> Matrix:
    a = random_matrix(N, dtype)
    return (a + a.conj().T) / 2 + N * np.eye(N, dtype=dtype)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("dtype", "b_dtype", "columns"),
    [("f8", "f8", 7), ("f8", "f8", None), ("f8", "c16", 3), ("f4", "f8", 3), ("c16", "f8", 3)],
)
def test_as_in_memory(
    tmp_path: Path, method: Any, dtype: str, b_dtype: str, columns: int | None
) -> None:
    a = dominant(dtype)
    A = stored(tmp_path / "A", a)
    b = random_matrix(N, b_dtype, 1)[:, 0 if columns is None else slice(columns)] * 1e30
    B = oc.from_array(b, tmp_path / "b")
    options: dict[str, Any] = {"memory": MEMORY, "progress": False}
    x, report = method(A, B, out=tmp_path / "x", **options)
    want, alike = method(A, b, **options)
    assert isinstance(x, oc.Array)
    assert isinstance(want, np.ndarray)
    assert (x.shape, x.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(x[...], want, rtol=1e-3, atol=1e-3 * np.abs(want).max())
    np.testing.assert_allclose(a @ oc.open_array(tmp_path / "x")[...], b, rtol=0, atol=3e-4 * 1e30)
    assert x.report is report
    assert report.peak_memory_bytes <= MEMORY
    assert report.planned_bytes_written == alike.planned_bytes_written + want.nbytes
    assert report.bytes_written >= report.planned_bytes_written
    assert {p.name for p in tmp_path.iterdir()} == {"A", "b", "x"}
    # Without out= the solution is in memory.
    assert isinstance(method(A, B, **options)[0], np.ndarray)


@pytest.mark.parametrize("method", METHODS)
def test_places_that_are_taken(tmp_path: Path, method: Any) -> None:
    A, b = stored(tmp_path / "A", dominant()), np.ones(N)
    B = oc.from_array(b, tmp_path / "b")
    oc.from_array(np.zeros(3), tmp_path / "x")
    with pytest.raises(ExistsError):
        method(A, b, out=tmp_path / "x", memory=MEMORY, progress=False)
    for place in ("A", "b"):
        with pytest.raises(InvalidError, match="out= "):
            method(A, B, out=tmp_path / place, if_exists="overwrite", memory=MEMORY, progress=False)
    x, _ = method(A, b, out=tmp_path / "x", if_exists="overwrite", memory=MEMORY, progress=False)
    with pytest.raises(InvalidError, match=r"out= would replace .*x, which the call needs"):
        method(A, b, x0=x, out=tmp_path / "x", if_exists="overwrite", memory=MEMORY, progress=False)
    if method is gmres:
        lu = lu_factor(A, out=tmp_path / "lu", progress=False)
        options: dict[str, Any] = {
            "preconditioner": lu,
            "if_exists": "overwrite",
            "progress": False,
        }
        with pytest.raises(InvalidError, match=r"out= would replace .*lu, which the call needs"):
            gmres(A, b, out=tmp_path / "lu", **options)
    assert x.shape == (N,)


@pytest.mark.parametrize("method", METHODS)
def test_ctrl_c_leaves_an_iterate_and_gives_it(
    tmp_path: Path, method: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    A, b = stored(tmp_path / "A", dominant()), random_matrix(N, "f8", 1)[:, :2] * 1e-30
    monkeypatch.setattr(
        "outcore._util.progress.Meter.advance",
        lambda self, work: signal.raise_signal(signal.SIGINT),
    )
    with pytest.raises(Interrupted, match="stopped after 1 steps") as found:
        method(A, b, out=tmp_path / "x", memory=MEMORY, progress=False)
    with pytest.raises(IncompleteError):
        oc.open_array(tmp_path / "x")
    x: Any = found.value.x
    assert isinstance(x, np.ndarray)
    assert x.shape == b.shape
    assert np.abs(x).max() < 1e-28, "of the scale of b"


def test_what_diverges_leaves_nothing(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", random_matrix(N, "f8"))
    with pytest.raises(DivergenceError):
        jacobi(A, np.ones(N), block=40, out=tmp_path / "x", memory=MEMORY, progress=False)
    assert [p.name for p in tmp_path.iterdir()] == ["A"]


def test_what_does_not_converge_is_there(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", dominant())
    with pytest.warns(ConvergenceWarning):
        x, _ = cg(
            A, np.ones(N), tol=1e-14, max_iterations=1, out=tmp_path / "x", memory=MEMORY,
            progress=False,
        )  # fmt: skip
    assert np.isfinite(x[...]).all()


def test_the_least_memory(tmp_path: Path) -> None:
    """Right-hand sides of another type pass through a small part of the budget."""
    A = stored(tmp_path / "A", dominant())
    B = oc.from_array(random_matrix(N, "f4", 1)[:, :40], tmp_path / "b")
    with pytest.raises(BudgetError, match="have 100000 ") as found:
        cg(A, B, out=tmp_path / "x", memory=100_000, progress=False)
    assert {p.name for p in tmp_path.iterdir()} == {"A", "b"}
    memory = int(str(found.value).split()[1])
    _, report = cg(A, B, out=tmp_path / "x", memory=memory, progress=False)
    assert report.peak_memory_bytes <= memory
