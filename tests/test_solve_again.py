"""`solve` called again: after a stop, after the matrix changed, over a solution."""

import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from linpack import random_matrix
from lu_by_method import CHOSEN, row_major, slow_disk
from stopping import DECISIVE, after_notes, at_line, interrupt, kill_at_line

import outcore as oc
from outcore._util import progress
from outcore.errors import ExistsError, Interrupted, InvalidError
from outcore.files import catalog
from outcore.linalg._systems import direct as direct_solve

__all__ = ["slow_disk"]  # a fixture

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
    matrix: oc.Array, monkeypatch: pytest.MonkeyPatch, all_lines: bool
) -> None:
    """Raise from `progress` during the factorization, after it, and in the check."""
    ticks = itertools.count()
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(ticks)))
    solve = functools.partial(oc.linalg.solve, matrix, np.ones(N), memory="300 kB")
    for raising in itertools.count(1, 1 if all_lines else 4):
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
        assert ["call it again with the same arguments" in note for note in notes] == [True]
    assert raising > 40


@pytest.mark.exhaustive
@pytest.mark.parametrize("assume_a", ["gen", "pos"])
def test_a_call_killed_at_any_line_leaves_what_the_next_one_removes(
    matrix: oc.Array, assume_a: str
) -> None:
    """Kill the call at any line, also between the last byte of the factors and the next line."""
    matrix.close()
    a = matrix_of(assume_a)
    oc.from_array(a, matrix.path, order="F", if_exists="overwrite").close()

    def solve() -> None:
        options = {"memory": "300 kB", "threads": 1, "assume_a": assume_a, "progress": False}
        x, _ = oc.linalg.solve(matrix.path, np.ones(N), **options)
        assert np.allclose(a @ x, 1)

    pages = (*DECISIVE, "_output/own.py", "_systems/direct.py")
    with at_line(-1, lambda: None, pages) as count:
        solve()
    total = int(count[0])
    assert total > 300
    killed = whole = 0
    # The number of lines varies slightly with the time that blocks take.
    for number in (*range(10, total, total // 12), *range(total - 60, total, 3)):
        killed += kill_at_line(number, solve, pages)
        left = [entry.state for entry in catalog.find(matrix.path.parent)[0]]
        whole += left.count("whole") > 1
        solve()
        assert [p.name for p in matrix.path.parent.iterdir()] == ["A"], number
    assert killed > 25
    assert whole, "some were killed when the factors were whole"


def matrix_of(assume_a: str) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal((N, N))
    return values @ values.T + np.eye(N) if assume_a == "pos" else values


def test_factors_of_a_stopped_call_that_the_user_makes_whole_stay(matrix: oc.Array) -> None:
    with after_notes(1, interrupt), pytest.raises(Interrupted):
        oc.linalg.solve(matrix, np.ones(N), memory="110 kB", progress=False)
    factors = oc.linalg.lu_factor(matrix, memory="110 kB", progress=False)
    assert factors.report
    assert any("resumed" in note for note in factors.report.notes), factors.report.notes
    oc.linalg.solve(matrix, np.ones(N), progress=False)
    assert factors.path.exists()


@pytest.mark.parametrize("method", ["block-columns", "tournament"])
def test_a_stopped_call_goes_on_by_its_method(
    tmp_path: Path, method: str, slow_disk: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With more memory and another disk's rates, a new call would choose slabs."""
    (dtype, n, memory), *_ = (case[1:] for case in CHOSEN.args[1] if case[0] == method)
    a = random_matrix(n, dtype)
    A = row_major(tmp_path / "Z", a)
    with after_notes(2, interrupt), pytest.raises(Interrupted, match="call solve again"):
        oc.linalg.solve(A, np.ones(n), memory=memory, progress=False)
    monkeypatch.undo()
    begun = Z_lu = tmp_path / "Z.lu"
    assert begun.exists()
    x, report = oc.linalg.solve(A, np.ones(n), memory=2 * memory, progress=False)
    np.testing.assert_allclose(x, np.linalg.solve(a, np.ones(n)), rtol=1e-9, atol=1e-10)
    assert any("resumed" in note for note in report.notes), report.notes
    assert not Z_lu.exists()


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
    with pytest.raises(ExistsError, match=r"if_exists='overwrite', or another factors="):
        oc.linalg.solve(matrix, np.ones(N), progress=False)
    x, _ = oc.linalg.solve(matrix, np.ones(N), if_exists="overwrite", progress=False)
    assert np.allclose(oc.open_array(matrix.path)[...] @ x, 1)


def test_a_solution_on_disk_is_replaced_only_when_told(matrix: oc.Array, tmp_path: Path) -> None:
    lu = oc.linalg.lu_factor(matrix, progress=False)
    b = oc.from_array(np.ones((N, 3)), tmp_path / "b")
    first = oc.linalg.lu_solve(lu, b, progress=False)
    with pytest.raises(ExistsError, match="if_exists='overwrite'"):
        oc.linalg.lu_solve(lu, b, progress=False)
    again = oc.linalg.lu_solve(lu, b, if_exists="overwrite", progress=False)
    assert np.array_equal(again, np.asarray(oc.open_array(first.path)))
    with pytest.raises(InvalidError, match="the right-hand side itself"):
        oc.linalg.lu_solve(lu, b, out=b.path, if_exists="overwrite", progress=False)
