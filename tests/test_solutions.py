"""Right-hand sides and solutions on disk: within the budget, counted, and resumed."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, hpl_residual, one_thread, random_matrix
from stopping import kill_at_line

import outcore as oc
from outcore.array_files.metadata import read_metadata
from outcore.errors import BusyError, IncompleteError, Interrupted
from outcore.linalg import (
    cho_factor,
    cho_solve,
    lu_factor,
    lu_solve,
    open_factor,
    qr_factor,
    qr_solve,
    solve,
)
from outcore.linalg._geometry.factor_plan import solve_bytes_read
from outcore.linalg._output.factor import Factor
from outcore.linalg._rhs import groups
from outcore.linalg._rhs.solutions import NOTE, Solution
from outcore.linalg._systems.refine import Refinement
from outcore.storage.volumes import place

__all__ = ["one_thread"]  # a fixture for every test here

N, COLUMNS, MEMORY = 512, 96, 500_000
DECISIVE = ("_rhs/solutions.py", "_rhs/groups.py")

Solver = Callable[..., Any]


def positive(n: int) -> Matrix:
    a = random_matrix(n, "f8")
    return a @ a.T + n * np.eye(n)


@pytest.fixture(scope="module", params=["lu", "cholesky", "qr"])
def system(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Matrix, Factor, Solver]:
    where = tmp_path_factory.mktemp("system")
    a = positive(N) if request.param == "cholesky" else random_matrix(N, "f8")
    A = oc.from_array(a, where / "Z", order="F")
    if request.param == "cholesky":
        return a, cho_factor(A, memory=MEMORY, threads=1, progress=False), cho_solve
    if request.param == "qr":
        return a, qr_factor(A, memory=MEMORY, threads=1, progress=False), qr_solve
    return a, lu_factor(A, memory=MEMORY, threads=1, progress=False), lu_solve


@pytest.fixture
def b(tmp_path: Path) -> oc.Array:
    """Return right-hand sides in chunks of whole pages."""
    return oc.from_array(
        random_matrix(N, "f8", 4)[:, :COLUMNS], tmp_path / "b", chunks=(N, 8), order="F"
    )


@contextmanager
def after_note(number: int, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` after this many notes of finished columns."""
    plain, count = Solution.note, [0]

    def note(self: Solution, done: int) -> None:
        plain(self, done)
        count[0] += 1
        if count[0] == number:
            act()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Solution, "note", note)
        yield


def interrupt() -> None:
    raise KeyboardInterrupt


def stop_after(number: int, work: Callable[[], object]) -> None:
    with after_note(number, interrupt), pytest.raises(Interrupted, match="same arguments"):
        work()


def test_columns_are_counted(
    system: tuple[Matrix, Factor, Solver], b: oc.Array, tmp_path: Path
) -> None:
    """With whole pages no byte is read twice, and all memory comes from the budget."""
    a, factor, solver = system
    x = solver(factor, b, memory=MEMORY, progress=False)
    report = x.report
    assert report is oc.last_report()
    assert report.planned_bytes_read is not None
    swept = report.planned_bytes_read - b.nbytes
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written == b.nbytes
    if solver is lu_solve:
        assert swept % solve_bytes_read(N, factor.dtype, factor.tile) == 0
    assert b.nbytes / 4 < report.peak_memory_bytes <= MEMORY
    # Bytes of the right-hand sides (8) and the solutions (9) in the trace of the disk.
    spans = report.spans
    moved = {number: int(spans[spans[:, 1] == number, 5].sum()) for number in (8, 9)}
    assert moved == {8: b.nbytes, 9: b.nbytes}
    assert hpl_residual(a, x[...], b[...]) < 16


def test_a_stopped_solution_is_gone_on_with(
    system: tuple[Matrix, Factor, Solver], b: oc.Array, tmp_path: Path
) -> None:
    _, factor, solver = system
    whole = solver(factor, b, memory=MEMORY, out=tmp_path / "whole", progress=False)

    def again(**options: Any) -> Any:
        return solver(factor, b, **{"memory": MEMORY, "progress": False} | options)

    stop_after(1, again)
    with pytest.raises(IncompleteError, match="solve again"):
        oc.open_array(tmp_path / "b.x")
    x = again()
    (note,) = x.report.notes
    done = int(re.findall("resumed at column ([0-9]+) of 96", note)[0])
    assert 0 < done < COLUMNS
    assert x.report.bytes_written == N * (COLUMNS - done) * 8
    assert x.report.bytes_read < whole.report.bytes_read
    assert x.report.flops == whole.report.flops * (COLUMNS - done) / COLUMNS
    np.testing.assert_array_equal(x[...], whole[...])
    assert sorted(p.name for p in x.path.iterdir()) == sorted(p.name for p in whole.path.iterdir())
    # Another budget has other groups, and resumes too.
    x.close()
    stop_after(1, lambda: again(if_exists="overwrite"))
    again(memory=2 * MEMORY)
    np.testing.assert_allclose(oc.open_array(tmp_path / "b.x")[...], whole[...], rtol=1e-8)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("change", ["b", "trans", "resume", "in memory", "factors"])
def test_another_system_begins_anew(
    system: tuple[Matrix, Factor, Solver], b: oc.Array, tmp_path: Path, change: str
) -> None:
    a, factor, solver = system
    given: Any = b[...] if change == "in memory" else b
    options: dict[str, Any] = {"memory": MEMORY, "out": tmp_path / "x", "progress": False}
    stop_after(1, lambda: solver(factor, given, **options))
    right, matrix = b[...], a
    if change == "b":
        with oc.open_array(b.path, "r+") as array:
            array[0, 0] = right[0, 0] = 7
    elif change == "in memory":
        given[0, 0] = right[0, 0] = 7
    elif change == "trans":
        if solver is not lu_solve:
            pytest.skip("a Hermitian matrix has one system, and least squares are of the matrix")
        options["trans"], matrix = "T", a.T
    elif change == "resume":
        options["resume"] = False
    else:
        matrix = positive(N) * 2
        other = oc.from_array(matrix, tmp_path / "other", order="F")
        make = {lu_solve: lu_factor, cho_solve: cho_factor, qr_solve: qr_factor}[solver]
        factor = make(other, memory=MEMORY, progress=False)
    x = solver(factor, given, **options)
    assert x.report.notes == []
    assert hpl_residual(matrix, x[...], right) < 16


def test_in_memory_right_hand_sides_are_known_again(
    system: tuple[Matrix, Factor, Solver], b: oc.Array, tmp_path: Path
) -> None:
    a, factor, solver = system
    right = b[...]
    options: dict[str, Any] = {"memory": MEMORY, "out": tmp_path / "x", "progress": False}
    stop_after(1, lambda: solver(factor, right, **options))
    x = solver(factor, np.ascontiguousarray(right), **options)
    assert [note[:7] for note in x.report.notes] == ["resumed"]
    assert hpl_residual(a, x[...], right) < 16


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("first", range(0, 21, 7))
def test_killed_at_any_line(
    system: tuple[Matrix, Factor, Solver], b: oc.Array, tmp_path: Path, first: int
) -> None:
    """After kill -9 there is no solution, one marked incomplete, or a whole one."""
    a, factor, solver = system
    out = tmp_path / "b.x"

    def work() -> None:
        # Threads do not survive a fork, so the child opens everything again.
        again, given = open_factor(factor.path), oc.open_array(b.path)
        solver(again, given, memory=MEMORY, threads=1, if_exists="overwrite", progress=False)

    line = first + 1
    while kill_at_line(line, work, DECISIVE):
        state = "nothing"
        if (out / "zarr.json").exists():
            state = read_metadata(place(out)).state or "whole"
        x = solver(
            factor,
            b,
            memory=MEMORY,
            if_exists="overwrite" if state == "whole" else "error",
            progress=False,
        )
        assert hpl_residual(a, x[...], b[...]) < 16
        assert not (out / NOTE).exists()
        line += 21
    assert line > 100, "few lines were stopped at"


def test_of_two_calls_one_is_refused(
    system: tuple[Matrix, Factor, Solver], b: oc.Array, tmp_path: Path
) -> None:
    a, factor, solver = system

    def meanwhile() -> None:
        with pytest.raises(BusyError, match="solving"):
            solver(factor, b, memory=MEMORY, if_exists="overwrite", progress=False)

    with after_note(1, meanwhile):
        x = solver(factor, b, memory=MEMORY, progress=False)
    assert hpl_residual(a, x[...], b[...]) < 16


@pytest.mark.parametrize("low", [None, "f4"])
def test_solve_goes_on_with_the_solution(b: oc.Array, tmp_path: Path, low: str | None) -> None:
    a = random_matrix(N, "f8")
    A = oc.from_array(a, tmp_path / "Z", order="F")

    def call() -> Any:
        return solve(A, b, memory=MEMORY, out=tmp_path / "x", factor_dtype=low, progress=False)

    with after_note(1, interrupt), pytest.raises(Interrupted):
        call()
    x, report = call()
    assert any("resumed at column" in note for note in report.notes)
    assert any("used the factors" in note for note in report.notes)
    assert report.probed_condition is not None
    assert hpl_residual(a, x[...], b[...]) < 16
    assert sorted(p.name for p in tmp_path.iterdir()) == ["Z", "b", "x"]


def test_what_lower_precision_did_is_not_gone_on_with_in_full(b: oc.Array, tmp_path: Path) -> None:
    """Columns after the first group are too hard for lower precision."""
    a = random_matrix(N, "f8")
    A = oc.from_array(a, tmp_path / "Z", order="F")
    calls = iter(range(100))
    plain = Refinement.refine_by_gmres

    def stalls(self: Refinement, *rest: Any) -> bool:
        return False

    def refine(self: Refinement) -> Any:
        found = step(self)
        return np.arange(self.X.shape[1]) if next(calls) else found

    step = Refinement.refine
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Refinement, "refine_by_gmres", stalls)
        patch.setattr(Refinement, "refine", refine)
        x, report = solve(
            A, b, memory=MEMORY, out=tmp_path / "x", factor_dtype="f4", progress=False
        )
    assert Refinement.refine_by_gmres is plain
    assert report.method == "LU in float64, after one in float32"
    assert not any("resumed" in note for note in report.notes)
    assert hpl_residual(a, x[...], b[...]) < 16


def test_groups_are_minutes_of_work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Groups stay small however much memory there is, which bounds the work that a stop loses."""
    a = random_matrix(64, "f8")
    lu = lu_factor(oc.from_array(a, tmp_path / "Z", order="F"), progress=False)
    B = oc.from_array(random_matrix(64, "f8", 1), tmp_path / "b")
    monkeypatch.setattr(groups, "MOST_FLOPS", 2 * 64**2 * 10)
    monkeypatch.setattr(groups, "LEAST_COLUMNS", 4)
    notes: list[int] = []
    plain = Solution.note
    monkeypatch.setattr(
        Solution, "note", lambda self, done: (notes.append(done), plain(self, done))
    )
    x = lu_solve(lu, B, progress=False)
    assert notes == [10, 20, 30, 40, 50, 60, 64]
    assert hpl_residual(a, x[...], B[...]) < 16


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("chunks", [(512, 8), (100, 7), (3, 96), (64,)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_any_layout_and_type(
    tmp_path: Path, dtype: str, chunks: tuple[int, ...], order: str
) -> None:
    """Vectors too; solutions of least squares have fewer rows."""
    a, right = random_matrix(N, "f8")[:, :200], random_matrix(N, dtype, 3)[:, :96]
    if len(chunks) == 1:
        right = right[:, 0]
    b = oc.from_array(right, tmp_path / "b", chunks=chunks, order=order)
    qr = qr_factor(oc.from_array(a, tmp_path / "Z", order="F"), memory=700_000, progress=False)
    x = qr_solve(qr, b, memory=700_000, progress=False)
    expected = scipy.linalg.lstsq(a, right.astype(np.result_type(dtype, "f8")))[0]
    np.testing.assert_allclose(x[...], expected, rtol=1e-9, atol=1e-11)
    assert x.report.peak_memory_bytes <= 700_000
