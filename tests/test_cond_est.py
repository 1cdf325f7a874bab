"""Condition estimates, against LAPACK's gecon and against the exact condition."""

import contextlib
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, names_below, on_disk, one_thread, random_matrix
from lu_by_method import factor_by
from stopping import interrupt, kill_at_line

import outcore as oc
from outcore.errors import BudgetError, Interrupted, InvalidError, NonFiniteError
from outcore.files import catalog
from outcore.linalg import LUFactor, cho_factor, cond_est, lu_factor, open_factor
from outcore.linalg._estimate.cond_est import norm1_estimate
from outcore.linalg._factors.sweeps import sweep_bytes_of
from outcore.linalg._geometry.factor_plan import DTYPES, solve_bytes_read
from outcore.linalg._output import kept_solves
from outcore.linalg._output.kept_solves import KeptSolves

__all__ = ["one_thread"]  # a fixture for every test here

N, TINY = 200, 300_000


def factored(path: Path, a: Matrix, order: str = "F") -> LUFactor:
    return lu_factor(oc.from_array(a, path, order=order), memory=TINY, progress=False)


def estimate(lu: LUFactor, norm: Any = 1, **more: Any) -> tuple[float, oc.Report]:
    return cond_est(lu, norm, **{"memory": TINY, "progress": False} | more)


def lapack_estimate(a: Matrix, norm: Any) -> float:
    factors = scipy.linalg.lu_factor(a)[0]
    (gecon,) = scipy.linalg.get_lapack_funcs(("gecon",), (factors,))
    rcond, _ = gecon(factors, np.linalg.norm(a, norm), norm="1" if norm == 1 else "I")
    return float(1 / rcond)


def with_singular_values(values: Matrix, dtype: str, seed: int) -> Matrix:
    n = len(values)
    q, r = (np.linalg.qr(random_matrix(n, dtype, seed + i))[0] for i in (0, 1))
    return ((q * values) @ r).astype(dtype)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("norm", [1, np.inf])
@pytest.mark.parametrize(
    ("dtype", "condition"),
    [(dtype, c) for dtype in DTYPES for c in (1e1, 1e4, 1e12) if c * np.finfo(dtype).eps < 1e-2],
)
def test_as_lapack_and_no_more_than_the_truth(
    tmp_path: Path, dtype: str, norm: Any, condition: float
) -> None:
    found_all = 0
    for seed in range(3):
        a = with_singular_values(np.geomspace(1, 1 / condition, N), dtype, 10 * seed)
        lu = factored(tmp_path / f"Z{seed}", a)
        norm_a = float(np.linalg.norm(a, norm))
        found, report = estimate(lu, norm, norm_a=norm_a)
        wide = a.astype(np.result_type(dtype, "f8"))
        exact = float(np.linalg.cond(wide, norm))
        slack = 1 + 10 * np.finfo(dtype).eps * condition
        assert found <= exact * slack
        assert found > exact / 3
        assert found > lapack_estimate(a, norm) * 0.99 / slack
        found_all += found < lapack_estimate(a, norm) * 1.01 * slack
        assert report.bytes_read == report.planned_bytes_read
        assert report.peak_memory_bytes <= TINY
    assert found_all >= 2, "the vectors are LAPACK's, but for the last one with other row numbers"


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("norm", [1, np.inf])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("method", ["block-columns", "tournament"])
def test_of_factors_by_any_method(tmp_path: Path, method: str, dtype: str, norm: Any) -> None:
    """A budget too small to make the factors suffices."""
    n, condition = 400, 1e6
    a = with_singular_values(np.geomspace(1, 1 / condition, n), dtype, 5)
    lu = factor_by(method, tmp_path / "Z", a, 300_000)
    assert lu.report is not None
    assert lu.report.method.startswith(method.replace("tournament", "tournament pivoting of"))
    norm_a = float(np.linalg.norm(a, norm))
    found, report = estimate(lu, norm, norm_a=norm_a, memory=150_000)
    exact, slack = float(np.linalg.cond(a, norm)), 1 + 1e-8
    assert exact / 3 < found <= exact * slack
    assert found == pytest.approx(lapack_estimate(a, norm), rel=0.01)
    assert report.bytes_read == report.planned_bytes_read
    assert report.peak_memory_bytes <= 150_000
    # The norm that the factors store is within √2 for complex types, otherwise that of A.
    known, _ = estimate(lu, norm, memory=200_000)
    assert found / (2**0.5 * slack) < known < found * slack
    a[:, 300] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match="number 301 is exactly zero"):
        lu = factor_by(method, tmp_path / "Y", a, 300_000)
    assert estimate(lu, norm, memory=200_000)[0] == np.inf


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("norm", [1, np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_of_a_cholesky_factor(tmp_path: Path, dtype: str, norm: Any) -> None:
    condition = 1e3
    q = np.linalg.qr(random_matrix(N, dtype, 7))[0]
    a = (q * np.geomspace(1, 1 / condition, N)) @ q.conj().T
    a = ((a + a.conj().T) / 2).astype(dtype)
    A = on_disk(tmp_path / "Z", a)
    c = cho_factor(A, out=tmp_path / "c", memory=TINY, progress=False)
    norm_a = float(np.linalg.norm(a, 1))
    found, report = cond_est(c, norm, norm_a=norm_a, memory=TINY, progress=False)
    (pocon,) = scipy.linalg.get_lapack_funcs(("pocon",), (a,))
    lapack = 1 / float(pocon(np.asfortranarray(np.linalg.cholesky(a).conj().T), norm_a)[0])
    exact = float(np.linalg.cond(a.astype(np.result_type(dtype, "f8")), 1))
    slack = 1 + 10 * np.finfo(dtype).eps * condition
    assert exact / 3 < found <= exact * slack
    assert found > lapack * 0.99 / slack
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_read % sweep_bytes_of(c) == 0
    assert report.peak_memory_bytes <= TINY
    assert "as many passes over L, and over Lᴴ" in report.notes[0]
    # The norm that the factor stores is within √2 for complex types.
    known, _ = cond_est(c, norm, memory=TINY, progress=False)
    assert found / 1.5 < known < found * 1.5


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_norms_of_the_matrix(tmp_path: Path, dtype: str, order: str) -> None:
    a = random_matrix(N, dtype)
    a[3] *= 50
    a[:, 8] *= 20
    lu = factored(tmp_path / "Z", a, order)
    for norm in (1, np.inf, "1", "inf", "I"):
        numeric: Any = 1 if norm in (1, "1") else np.inf
        given, _ = estimate(lu, norm, norm_a=float(np.linalg.norm(a, numeric)))
        found, report = estimate(lu, norm)
        if numeric == 1 and np.dtype(dtype).kind == "c":
            assert given / 2**0.5 * 0.999 <= found <= given * 1.001
        else:
            assert found == pytest.approx(given, rel=1e-5)
        assert report.bytes_read > 0


def test_passes_are_counted(tmp_path: Path) -> None:
    n = 512
    a = random_matrix(n, "f8")
    A = on_disk(tmp_path / "Z", a)
    lu = lu_factor(A, memory="1 MB", progress=False)
    _, report = estimate(lu, memory="1 MB")
    (note,) = report.notes
    solves = int(note.split()[0])
    assert 3 <= solves <= 11
    assert report.bytes_read == solves * solve_bytes_read(n, lu.dtype, lu.tile)
    _, with_a = estimate(lu, np.inf, memory="1 MB")
    assert "and one over A" in with_a.notes[0]
    solves = int(with_a.notes[0].split()[0])
    assert with_a.bytes_read == with_a.planned_bytes_read
    assert with_a.bytes_read == solves * solve_bytes_read(n, lu.dtype, lu.tile) + A.nbytes


@pytest.mark.parametrize("n", [1, 2, 3])
def test_small_orders(tmp_path: Path, n: int) -> None:
    a = random_matrix(n, "c16", 5)
    found, _ = estimate(factored(tmp_path / "Z", a), np.inf)
    exact = float(np.linalg.cond(a, np.inf))
    assert exact / 3 <= found <= exact * 1.0001


def test_matrices_with_a_condition_in_closed_form(tmp_path: Path) -> None:
    """The inverse of min(i, j) is tridiagonal: ‖A‖₁ = n (n + 1) / 2 and ‖A⁻¹‖₁ = 4."""
    i = np.arange(1.0, N + 1)
    found, _ = estimate(factored(tmp_path / "min", np.minimum.outer(i, i)))
    assert found == pytest.approx(4 * N * (N + 1) / 2, rel=1e-10)
    found, _ = estimate(factored(tmp_path / "I", np.eye(N)), np.inf)
    assert found == 1


def test_a_matrix_that_deceives_the_first_steps() -> None:
    """B = I + θ v vᵀ with v orthogonal to all first vectors: only the last one detects it."""
    n, theta = 51, 1e6
    v = (-1.0) ** np.arange(n)
    v[0] = 0

    def solve(X: Matrix, adjoint: bool) -> None:
        for j in range(X.shape[1]):
            X[:, j] += theta * v * math.fsum(v * X[:, j])

    room = np.empty((n, 2), order="F")
    assert norm1_estimate(solve, room) > theta * (n - 1) / 10


def test_singular_and_nearly_so(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    a[:, 60] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning):
        lu = factored(tmp_path / "Z", a)
    found, report = estimate(lu)
    assert found == np.inf
    assert report.bytes_read == 0
    a = np.diag(np.r_[np.ones(N - 1), 1e-310])
    found, _ = estimate(factored(tmp_path / "Y", a))
    assert found == np.inf, "1/10⁻³¹⁰ is beyond the range"


def test_the_infinity_norm_needs_the_matrix(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a, chunks=(64, 32))
    lu = lu_factor(A, memory="1 MB", progress=False)
    with oc.open_array(A.path, "r+") as array:
        array[0, 0] = 3
    with pytest.raises(InvalidError, match=r"has changed since .* give that norm as norm_a="):
        estimate(lu, np.inf)
    lu = lu_factor(A.path, memory="1 MB", if_exists="overwrite", overwrite_a=True, progress=False)
    with pytest.raises(InvalidError, match=r"needs A: .* was consumed.* or estimate in the 1-norm"):
        estimate(lu, np.inf, memory="1 MB")
    a[0, 0] = 3
    found, _ = estimate(lu, np.inf, norm_a=float(np.linalg.norm(a, np.inf)), memory="1 MB")
    assert found > np.linalg.cond(a, np.inf) / 3


@pytest.mark.parametrize("norm", [2, "fro", None, -np.inf, 0, [1], "2"])
def test_other_norms(tmp_path: Path, norm: Any) -> None:
    lu = factored(tmp_path / "Z", random_matrix(20, "f8"))
    with pytest.raises(InvalidError, match="norm must be 1 or"):
        estimate(lu, norm)


@pytest.mark.parametrize("norm_a", [-1.0, np.nan, np.inf])
def test_norms_that_are_none(tmp_path: Path, norm_a: float) -> None:
    lu = factored(tmp_path / "Z", random_matrix(20, "f8"))
    with pytest.raises(InvalidError, match="norm_a must be a norm"):
        estimate(lu, norm_a=norm_a)


def test_too_small_a_budget(tmp_path: Path) -> None:
    lu = factored(tmp_path / "Z", random_matrix(N, "f8"))
    with pytest.raises(BudgetError, match="need") as refused:
        estimate(lu, memory=1000)
    least = int(str(refused.value).split()[1])
    with pytest.raises(BudgetError):
        estimate(lu, memory=least - 1)
    for norm in (1, np.inf):
        _, report = estimate(lu, norm, memory=least)
        assert report.peak_memory_bytes <= least


@contextlib.contextmanager
def interrupted_after_solve(number: int) -> Iterator[None]:
    keep, kept = KeptSolves.keep, [0]

    def keeping(self: KeptSolves, *rest: Any) -> None:
        keep(self, *rest)
        kept[0] += 1
        if kept[0] == number:
            interrupt()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KeptSolves, "keep", keeping)
        yield


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("norm", [1, np.inf])
@pytest.mark.parametrize("kind", ["lu", "cholesky"])
def test_a_stopped_estimate_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: Any, kind: str
) -> None:
    """Stop after each solve; the completed estimate leaves no files."""
    monkeypatch.setattr(kept_solves, "LEAST_S", 0.0)
    a = random_matrix(N, "c16")
    if kind == "cholesky":
        a = a @ a.conj().T + np.eye(N)
    A = oc.from_array(a, tmp_path / "Z", order="F")
    factor: Any = (lu_factor if kind == "lu" else cho_factor)(A, memory=TINY, progress=False)
    before = names_below(tmp_path)
    whole, report = estimate(factor, norm)
    solves = int(report.notes[0].split()[0])
    assert solves >= 3
    for stop in range(1, solves):
        with interrupted_after_solve(stop), pytest.raises(Interrupted, match="again"):
            estimate(factor, norm)
        assert len(names_below(tmp_path)) == len(before) + stop
        told: list[float] = []
        found, again = estimate(
            factor, norm, progress=lambda done, left, told=told: told.append(done)
        )
        assert found == whole
        assert again.notes[1:] == [f"resumed after {stop} solves: bytes moved are of the rest"]
        assert again.bytes_read < (again.planned_bytes_read or 0) <= report.bytes_read
        assert told == sorted(told)
        assert names_below(tmp_path) == before


def test_what_is_kept_of_other_factors_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_solves, "LEAST_S", 0.0)
    lu = factored(tmp_path / "Z", random_matrix(N, "f8"))
    whole, _ = estimate(lu)
    before = names_below(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(KeptSolves, "remove", lambda self: None)
        estimate(lu)
    files = sorted(path for path in Path(lu.path).iterdir() if "condition" in path.name)
    assert len(files) >= 3

    content = {path: path.read_bytes() for path in files}
    for change in (
        lambda data: data[:-8],
        lambda data: data[:10],
        lambda data: data.replace(b'"of"', b'"by"'),
        lambda data: data.replace(b"Z.lu", b"Y.lu"),
    ):
        for path, data in content.items():
            path.write_bytes(change(data))
        found, report = estimate(lu)
        assert (found, len(report.notes)) == (whole, 1)
        assert names_below(tmp_path) == before
    for path, data in content.items():
        path.write_bytes(data)
    found, report = estimate(lu, resume=False)
    assert (found, len(report.notes)) == (whole, 1)
    for path, data in content.items():
        path.write_bytes(data)
    found, report = estimate(lu)
    assert found == whole
    assert len(report.notes) == 2
    assert report.bytes_read == 0
    assert names_below(tmp_path) == before


def stopped(lu: LUFactor) -> None:
    with interrupted_after_solve(2), pytest.raises(Interrupted):
        estimate(lu)


def test_factors_with_a_stopped_estimate_are_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saved solves belong to the factors, and are removed with them, complete or not."""
    monkeypatch.setattr(kept_solves, "LEAST_S", 0.0)
    a = random_matrix(N, "f8")
    out = tmp_path / "Z.lu"
    stopped(factored(tmp_path / "Z", a))
    with oc.open_array(tmp_path / "Z", "r+") as A:
        A[150, 150] = np.nan
    with pytest.raises(NonFiniteError):
        lu_factor(tmp_path / "Z", memory=TINY, if_exists="overwrite", progress=False)
    assert not any("condition" in name for name in names_below(tmp_path))
    with oc.open_array(tmp_path / "Z", "r+") as A:
        A[150, 150] = a[150, 150]
    lu = lu_factor(tmp_path / "Z", memory=TINY, progress=False)
    whole, _ = estimate(lu)

    # State of a call that was killed while it removed the factors.
    stopped(lu)
    half = out / "outcore.condition.1.2.77.new"
    half.write_bytes((out / "outcore.condition.1.1").read_bytes()[:40])
    for name in ("zarr.json", "lu", "piv"):
        path = out / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        if name == "zarr.json":
            continue
        entry = catalog.recognise(out)
        assert entry is not None
        assert entry.kind == "left-over"
    lu = lu_factor(tmp_path / "Z", memory=TINY, progress=False)
    assert not any("condition" in name for name in names_below(tmp_path))
    assert estimate(lu)[0] == whole

    stopped(lu)
    entry = catalog.recognise(out)
    assert entry is not None
    catalog.remove(entry)
    assert not out.exists()


def test_killed_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, all_lines: bool) -> None:
    """The factors stay complete, and a later call resumes with the same result."""
    monkeypatch.setattr(kept_solves, "LEAST_S", 0.0)
    lu = factored(tmp_path / "Z", random_matrix(N, "f8"))
    whole, _ = estimate(lu, threads=1)
    before, left, line = names_below(tmp_path), set(), 1

    def work() -> None:
        # Threads do not survive a fork, so the call opens all files itself.
        estimate(open_factor(lu.path), threads=1)  # type: ignore[arg-type]

    while kill_at_line(line, work, ("_output/kept_solves.py", "_estimate/cond_est.py")):
        left.add(len(names_below(tmp_path)) - len(before))
        assert estimate(lu, threads=1)[0] == whole
        assert names_below(tmp_path) == before
        line += 9 if all_lines else 23
    assert left >= {0, 1, 2, 3}, "few solves were kept"


def test_short_solves_keep_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lu = factored(tmp_path / "Z", random_matrix(N, "f8"))
    monkeypatch.setattr(KeptSolves, "remove", lambda self: None)
    before = names_below(tmp_path)
    estimate(lu)
    assert names_below(tmp_path) == before


@pytest.mark.parametrize("wrong", ["x", [1.0], -1, np.inf, True])
def test_what_is_no_norm_is_refused(tmp_path: Path, wrong: Any) -> None:
    lu = factored(tmp_path / "Z", random_matrix(20, "f8"))
    with pytest.raises(InvalidError, match="norm_a must be a norm"):
        estimate(lu, norm_a=wrong)
