"""Warnings of solvers for systems that are singular to working precision, and for others."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, on_disk, one_thread, random_matrix
from tall import RATES

import outcore as oc
from outcore.linalg import lu_factor, lu_solve, open_factor, qr_factor, qr_solve, solve
from outcore.linalg._factors.sweeps import ring_bytes
from outcore.linalg._geometry.factor_plan import solve_bytes_read
from outcore.linalg._lu.solve import solve_and_report
from outcore.linalg._rhs.condition import PROBES, UNKNOWN, condition_of
from outcore.linalg._rhs.right_hand_side import RightHandSide

__all__ = ["one_thread"]  # a fixture for every test here

N, TINY = 200, 400_000
LOW = {"float64": "f4", "complex128": "c8"}
WAYS: dict[str, dict[str, Any]] = {
    "gen": {},
    "f4": {"factor_dtype": "f4"},
    "auto": {"assume_a": "auto"},
    "pos": {"assume_a": "pos"},
}


def of_condition(condition: float, dtype: Any = "f8", is_definite: bool = False) -> Matrix:
    """A matrix of this 2-norm condition."""
    q, r = (np.linalg.qr(random_matrix(N, dtype, seed))[0] for seed in (1, 2))
    made = (q * np.geomspace(1, 1 / condition, N)) @ (q.conj().T if is_definite else r)
    return ((made + made.conj().T) / 2 if is_definite else made).astype(dtype)


def exact_condition(a: Matrix) -> float:
    inverse = np.linalg.inv(a.astype(np.result_type(a.dtype, "f8")))
    return float(np.linalg.norm(a, 1) * np.linalg.norm(inverse))


def of_rank_5(is_definite: bool) -> Matrix:
    b, c = random_matrix(N, "f8")[:, :5], random_matrix(N, "f8", 1)[:5]
    return b @ (b.T if is_definite else c)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fits", [False, True])
def test_of_low_rank(tmp_path: Path, way: str, fits: bool) -> None:
    """Check also a right-hand side with solutions; the call finds any of them."""
    a = of_rank_5(is_definite=way in ("auto", "pos"))
    b = a @ np.ones(N) if fits else random_matrix(N, "f8", 3)[:, 0]
    with pytest.warns(scipy.linalg.LinAlgWarning, match="singular to the precision of float64"):
        _, report = solve(on_disk(tmp_path / "Z", a), b, memory=TINY, progress=False, **WAYS[way])
    assert report.probed_condition is not None
    assert report.probed_condition > 1e15
    assert report.condition is None
    assert "condition " not in str(report)
    assert not any(UNKNOWN in note for note in report.notes)


def test_least_squares_of_low_rank(tmp_path: Path) -> None:
    a = of_rank_5(is_definite=False)
    qr = qr_factor(on_disk(tmp_path / "Z", a), memory=TINY, progress=False)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="singular to the precision of float64"):
        qr_solve(qr, np.ones(N), memory=TINY, progress=False)
    report = oc.last_report()
    assert report is not None
    assert report.probed_condition is not None
    assert report.probed_condition > 1e15


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("condition", [1e1, 1e4, 1e9])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_the_estimate_is_near_the_truth(
    tmp_path: Path, dtype: str, way: str, condition: float
) -> None:
    eps = np.finfo(dtype).eps
    if condition * eps > 1e-2:
        condition = 1e-2 / eps
    options = WAYS[way]
    if "factor_dtype" in options:
        options = {"factor_dtype": LOW.get(np.dtype(dtype).name, dtype)}
    a = of_condition(condition, dtype, way in ("auto", "pos"))
    A, b = on_disk(tmp_path / "Z", a), random_matrix(N, dtype, 3)[:, 0]
    _, report = solve(A, b, memory=TINY, progress=False, **options)
    assert report.probed_condition is not None
    # In complex types ‖A‖₁ is known within √2. For systems that need GMRES, one vector detects it.
    assert exact_condition(a) / 20 < report.probed_condition < 5 * exact_condition(a)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_the_condition_number_that_is_asked_for(tmp_path: Path, dtype: str, way: str) -> None:
    """Compare with NumPy's 1-norm condition; it is exact for simple matrices."""
    options = WAYS[way]
    if "factor_dtype" in options:
        options = {"factor_dtype": LOW.get(np.dtype(dtype).name, dtype)}
    matrices: list[tuple[Matrix, float]] = [
        (np.eye(N, dtype=dtype), 1.0),
        (np.diag(np.linspace(1, 10, N)).astype(dtype), 10.0),
        (of_condition(1e3, dtype, way in ("auto", "pos")), 0.0),
    ]
    for number, (a, exact) in enumerate(matrices):
        A, b = on_disk(tmp_path / f"Z{number}", a), random_matrix(N, dtype, 3)[:, 0]
        _, report = solve(A, b, condition=True, memory=TINY, progress=False, **options)
        truth = exact or float(np.linalg.cond(a.astype(np.result_type(dtype, "f8")), 1))
        assert report.condition is not None
        # Complex types: ‖A‖₁ is known within √2. The estimate is rarely below a third of the truth.
        assert truth / 5 < report.condition < 1.5 * truth
        if exact and np.dtype(dtype).kind == "f":
            assert report.condition == pytest.approx(exact, rel=1e-5)
        assert f"condition       about {report.condition:.1e}" in str(report)
        assert report.bytes_read == report.planned_bytes_read
        assert report.backward_error is not None
        assert report.peak_memory_bytes <= TINY
        assert sum(note.startswith("condition number by") for note in report.notes) == 1


def test_without_being_asked_no_condition_number_is_told(tmp_path: Path) -> None:
    """For an identity the random vectors yield √n, which must not be shown."""
    A = on_disk(tmp_path / "Z", np.eye(N))
    _, report = solve(A, np.ones(N), memory=TINY, progress=False)
    assert report.probed_condition == pytest.approx(np.sqrt(N), rel=0.5)
    assert report.condition is None
    assert "condition" not in str(report)
    assert "probed" not in report.to_json()
    qr = qr_factor(A, out=tmp_path / "qr", memory=TINY, progress=False)
    qr_solve(qr, np.ones(N), memory=TINY, progress=False)
    assert "condition" not in str(oc.last_report())


def test_factors_in_lower_precision_do_not_tell_what_they_cannot(tmp_path: Path) -> None:
    """Deflation removes the single slow direction, so that refinement converges."""
    A = on_disk(tmp_path / "Z", np.diag(np.where(np.arange(N) == 7, 1e-10, 1.0)))
    _, report = solve(
        A, np.ones(N), factor_dtype="f4", condition=True, memory=2 * TINY, progress=False
    )
    assert report.method is not None
    assert "refinement" in report.method
    assert report.condition is None
    assert any("is above 8e+06" in note for note in report.notes)


def test_the_plan_counts_the_solves_of_the_estimate() -> None:
    for options in ({}, {"assume_a": "pos"}, {"factor_dtype": "f4"}):
        plain, more = (
            oc.plan("solve", n=N, memory=TINY, rates=RATES, condition=condition, **options)
            for condition in (False, True)
        )
        kind = "f4" if "factor_dtype" in options else "f8"
        more_options = {"assume_a": "pos"} if "assume_a" in options else {}
        alone = oc.plan("cond_est", n=N, dtype=kind, memory=TINY, rates=RATES, **more_options)
        assert more.bytes_read - plain.bytes_read == alone.bytes_read


def test_no_pass_more_than_without(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A, b = on_disk(tmp_path / "Z", a), random_matrix(N, "f8", 1)[:, :3]
    lu = lu_factor(A, out=tmp_path / "lu", memory=TINY, progress=False)
    rhs = RightHandSide.read(N, lu.dtype, b, "N", None, if_exists="error")
    x, report = solve_and_report(lu, rhs, TINY, None, False, probes=PROBES)
    assert report.probed_condition is not None
    assert report.bytes_read == solve_bytes_read(N, lu.dtype, lu.tile)
    assert report.bytes_read == report.planned_bytes_read
    assert report.peak_memory_bytes <= TINY
    np.testing.assert_array_equal(x, lu_solve(lu, b, memory=TINY, progress=False))
    assert "condition" not in str(oc.last_report()), "other solvers have no vectors of their own"


@pytest.mark.parametrize("assume_a", ["gen", "pos"])
def test_right_hand_sides_on_disk_in_groups(tmp_path: Path, assume_a: Any) -> None:
    a = of_condition(1e4, is_definite=True)
    A, b = on_disk(tmp_path / "Z", a), random_matrix(N, "f8", 3)[:, :150]
    B = oc.from_array(b, tmp_path / "b", chunks=(100, 7))
    _, alone = solve(A, b[:, 0], assume_a=assume_a, memory=TINY, progress=False)
    x, report = solve(A, B, assume_a=assume_a, memory=TINY, progress=False)
    assert report.probed_condition == pytest.approx(alone.probed_condition, rel=1e-6)
    assert report.peak_memory_bytes <= TINY
    assert np.abs(a @ x[...] - b).max() < 1e-10 * np.abs(x[...]).max()


def test_memory_without_room_for_the_vectors(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "Z", random_matrix(N, "f8"))
    lu = lu_factor(A, out=tmp_path / "lu", memory=TINY, progress=False)
    least = ring_bytes(lu, 1)
    _, report = solve(A, np.ones(N), factors=tmp_path / "lu", memory=least, progress=False)
    assert report.probed_condition is None
    assert UNKNOWN in report.notes
    assert report.peak_memory_bytes <= least


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e290])
@pytest.mark.parametrize("way", ["gen", "pos", "qr"])
def test_scaled_matrices_have_the_same_condition(tmp_path: Path, scale: float, way: str) -> None:
    found = []
    for factor in (1.0, scale):
        a = of_condition(1e3, is_definite=True) * factor
        A, b = on_disk(tmp_path / f"Z{factor}", a), np.full(N, factor)
        if way == "qr":
            qr_solve(qr_factor(A, memory=TINY, progress=False), b, memory=TINY, progress=False)
            found.append(oc.last_report())
        else:
            options = {"assume_a": way, "memory": TINY, "progress": False}
            found.append(solve(A, b, **options)[1])
    assert found[1].probed_condition == pytest.approx(found[0].probed_condition, rel=1e-6)


def test_vectors_that_overflow() -> None:
    for bad in (np.inf, np.nan, 0.0):
        assert condition_of(1.0, np.full((3, 2), bad)) == np.inf
    assert condition_of(2.0, np.full((4, 1), 1e200)) == pytest.approx(4e200)


def test_factors_that_are_there_already(tmp_path: Path) -> None:
    a = of_rank_5(is_definite=False)
    A = on_disk(tmp_path / "Z", a + 1e-17 * np.eye(N))
    lu_factor(A, out=tmp_path / "lu", memory=TINY, progress=False)
    with pytest.warns(scipy.linalg.LinAlgWarning, match="singular to the precision"):
        solve(A, np.ones(N), factors=tmp_path / "lu", memory=TINY, progress=False)
    assert open_factor(tmp_path / "lu").n == N
