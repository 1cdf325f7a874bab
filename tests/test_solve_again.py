"""`solve` called again: after it was stopped, after the matrix changed, over a solution."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import outcore as oc
from outcore import progress
from outcore.errors import ExistsError, InvalidError
from outcore.linalg.systems import direct as direct_solve

N = 200


@pytest.fixture
def matrix(tmp_path: Path) -> oc.Array:
    values = np.random.default_rng(0).standard_normal((N, N)) + 20 * np.eye(N)
    oc.from_array(values, tmp_path / "A", order="F").close()
    return oc.open_array(tmp_path / "A")


def stop_in_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*arguments: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(direct_solve, "check", stop)


def test_factors_of_a_stopped_call_are_used_and_removed(
    matrix: oc.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    factors = matrix.path.with_name("A.lu")
    with monkeypatch.context() as patched:
        stop_in_the_check(patched)
        with pytest.raises(KeyboardInterrupt):
            oc.linalg.solve(matrix, np.ones(N), progress=False)
    assert factors.exists()
    x, report = oc.linalg.solve(matrix, np.ones(N), progress=False)
    assert any("used the factors" in note for note in report.notes)
    assert np.allclose(matrix[...] @ x, 1)
    assert not factors.exists()


def test_progress_that_raises_leaves_what_the_next_call_uses_and_removes(
    matrix: oc.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever it raises: while factors are made, when they are whole, in the check."""
    ticks = itertools.count()
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))
    solve = functools.partial(oc.linalg.solve, matrix, np.ones(N), memory="300 kB")
    for raising in itertools.count(1):
        calls = itertools.count(1)

        def tell(
            fraction: float, left: float, raising: int = raising, calls: Iterator[int] = calls
        ) -> None:
            if next(calls) == raising:
                raise RuntimeError("no such window")

        notes: list[str] | None = None
        try:
            x, _ = solve(progress=tell)
        except RuntimeError as error:
            notes = error.__notes__
            x, _ = solve(progress=False)
        assert np.allclose(matrix[...] @ x, 1)
        assert not matrix.path.with_name("A.lu").exists(), raising
        if notes is None:
            break
        assert ["call again with the same arguments" in note for note in notes] == [True]
    assert raising > 40


def test_factors_that_the_user_made_stay(matrix: oc.Array) -> None:
    factors = oc.linalg.lu_factor(matrix, progress=False)
    oc.linalg.solve(matrix, np.ones(N), progress=False)
    assert factors.path.exists()


def test_keeping_factors_of_a_stopped_call_makes_them_the_users(
    matrix: oc.Array, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        stop_in_the_check(patched)
        with pytest.raises(KeyboardInterrupt):
            oc.linalg.solve(matrix, np.ones(N), progress=False)
    oc.linalg.solve(matrix, np.ones(N), keep_factors=True, progress=False)
    oc.linalg.solve(matrix, np.ones(N), progress=False)
    assert matrix.path.with_name("A.lu").exists()


def test_factors_of_a_matrix_that_changed_are_refused_with_a_fix_that_works(
    matrix: oc.Array,
) -> None:
    oc.linalg.lu_factor(matrix, progress=False)
    with oc.open_array(matrix.path, "r+") as changed:
        changed[0, 0] = 50
    with pytest.raises(ExistsError, match=r"overwrite=True, or another factors="):
        oc.linalg.solve(matrix, np.ones(N), progress=False)
    x, _ = oc.linalg.solve(matrix, np.ones(N), overwrite=True, progress=False)
    assert np.allclose(oc.open_array(matrix.path)[...] @ x, 1)


def test_a_solution_on_disk_is_replaced_only_when_told(matrix: oc.Array, tmp_path: Path) -> None:
    lu = oc.linalg.lu_factor(matrix, progress=False)
    b = oc.from_array(np.ones((N, 3)), tmp_path / "b")
    first = oc.linalg.lu_solve(lu, b, progress=False)
    with pytest.raises(ExistsError, match="overwrite=True"):
        oc.linalg.lu_solve(lu, b, progress=False)
    again = oc.linalg.lu_solve(lu, b, overwrite=True, progress=False)
    assert np.array_equal(again, np.asarray(oc.open_array(first.path)))
    with pytest.raises(InvalidError, match="the right-hand side itself"):
        oc.linalg.lu_solve(lu, b, out=b.path, overwrite=True, progress=False)
