"""Determinants: against NumPy, and against closed forms where memory is far below the matrix."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, names_below, on_disk, one_thread, random_matrix
from lu_by_method import CHOSEN, assert_chosen, factor_by, row_major, slow_disk
from stopping import DECISIVE, kill_at_line, stop_after

import outcore as oc
from outcore.errors import BudgetError, ExistsError, GrowthWarning, InvalidError, NonFiniteError
from outcore.linalg import cho_factor, cond_est, lu_factor, open_factor, slogdet
from outcore.linalg._geometry.factor_plan import DTYPES

__all__ = ["one_thread", "slow_disk"]  # fixtures

N, TINY = 333, 400_000
QUIET: dict[str, Any] = {"memory": TINY, "threads": 1, "progress": False}


def close(got: oc.linalg.Determinant, a: Matrix) -> None:
    """Compare with NumPy's result in double precision.

    Rounding changes A by E, of norm up to n ε ‖A‖, and log det A by tr(A⁻¹ E): up to n ε cond(A).
    """
    wide = a.astype(np.result_type(a.dtype, np.float64))
    sign, logabsdet = np.linalg.slogdet(wide)
    eps = float(np.finfo(a.dtype).eps)
    bound = len(a) * eps * max(100, float(np.linalg.cond(wide, 1)))
    assert got.sign == pytest.approx(complex(sign), abs=bound)
    assert got.logabsdet == pytest.approx(float(logabsdet), abs=bound)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", DTYPES)
def test_as_numpy(tmp_path: Path, dtype: str, seed: int) -> None:
    a = random_matrix(N, dtype, seed)
    if dtype.startswith("float"):
        a = a + (9 * np.eye(N)).astype(dtype)
        a[0] *= (-1) ** seed
    lu = lu_factor(on_disk(tmp_path / "Z", a), memory=TINY, progress=False)
    found = slogdet(lu, memory=TINY, progress=False)
    close(found, a)
    sign, logabsdet = found
    assert (sign, logabsdet) == (found.sign, found.logabsdet)
    assert isinstance(sign, complex if np.dtype(dtype).kind == "c" else float)
    assert abs(abs(sign) - 1) < 1e-15


@pytest.mark.parametrize("n", [1, 2, 31, 64, 65, 200])
def test_any_order_and_only_the_diagonal_is_read(tmp_path: Path, n: int) -> None:
    a = random_matrix(n, "f8", n)
    lu = lu_factor(on_disk(tmp_path / "Z", a), memory="1 MB", progress=False)
    found = slogdet(lu, memory="1 MB", progress=False)
    close(found, a)
    rows, columns = lu.tile
    tile_bytes = rows * columns * 8
    assert found.report.bytes_read == found.report.planned_bytes_read
    assert found.report.bytes_read == -(-n // columns) * tile_bytes
    assert found.report.bytes_written == 0
    assert found.report.verb == "slogdet"


def test_beyond_memory_in_closed_form(tmp_path: Path) -> None:
    """The matrix is 18 times the budget: det (D + u vᵀ) = det D (1 + vᵀ D⁻¹ u)."""
    n, memory = 1500, 1_000_000
    draw = np.random.default_rng(0)
    d, u, v = draw.uniform(1, 2, n) * draw.choice([-1, 1], n), *draw.standard_normal((2, n))

    def fill(rows: slice, cols: slice) -> Matrix:
        block: Matrix = np.outer(u[rows], v[cols])
        i, j = np.arange(rows.start, rows.stop), np.arange(cols.start, cols.stop)
        return block + d[rows][:, None] * (i[:, None] == j)

    A = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", fill=fill, progress=False)
    found = slogdet(A, memory=memory, progress=False)
    one_more = 1 + float(v @ (u / d))
    assert found.sign == np.sign(one_more) * np.prod(np.sign(d))
    expected = np.log(np.abs(d)).sum() + np.log(abs(one_more))
    assert found.logabsdet == pytest.approx(expected, rel=1e-10)
    assert found.report.peak_memory_bytes <= memory
    assert [p.name for p in tmp_path.iterdir()] == ["Z"], "the factors go"


def test_far_beyond_the_range_of_numbers(tmp_path: Path) -> None:
    a = np.diag(np.full(300, 1e200)) + 1j * np.diag(np.full(300, 1e200))
    found = slogdet(on_disk(tmp_path / "Z", a), memory=TINY, progress=False)
    assert found.logabsdet == pytest.approx(300 * (np.log(1e200) + np.log(2) / 2))
    assert found.sign == pytest.approx(np.exp(1j * np.pi / 4 * 300))


@pytest.mark.exhaustive(keep=2)
@CHOSEN
def test_of_a_matrix_by_the_method_that_is_chosen(
    tmp_path: Path, slow_disk: None, method: str, dtype: str, n: int, memory: int
) -> None:
    a = random_matrix(n, dtype)
    found = slogdet(row_major(tmp_path / "Z", a), memory=memory, progress=False)
    assert_chosen(method, found.report, memory)
    sign, logabsdet = np.linalg.slogdet(a)
    assert found.sign == pytest.approx(sign, abs=1e-9)
    assert found.logabsdet == pytest.approx(float(logabsdet), rel=1e-12)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"], "the factors go"


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["f8", "c16"])
@pytest.mark.parametrize("method", ["block-columns", "tournament"])
def test_of_factors_by_any_method(tmp_path: Path, method: str, dtype: str) -> None:
    """Compare signs: each swap of two rows changes the sign."""
    a = random_matrix(400, dtype)
    for name in "ZY":
        lu = factor_by(method, tmp_path / name, a, 300_000)
        found = slogdet(lu, memory=100_000, progress=False)
        close(found, a)
        assert found.report.bytes_read == found.report.planned_bytes_read
        assert found.report.peak_memory_bytes <= 100_000
        a[[17, 380]] = a[[380, 17]]
    a[:, 300] = 0
    with pytest.warns(scipy.linalg.LinAlgWarning, match="number 301 is exactly zero"):
        lu = factor_by(method, tmp_path / "X", a, 300_000)
    assert tuple(slogdet(lu, memory=100_000, progress=False)) == (0, -np.inf)


@pytest.mark.parametrize("dtype", DTYPES)
def test_singular(tmp_path: Path, dtype: str) -> None:
    a = random_matrix(100, dtype)
    a[:, 60] = 0
    found = slogdet(on_disk(tmp_path / "Z", a), memory=TINY, progress=False)
    assert tuple(found) == (0, -np.inf)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


@pytest.mark.parametrize("dtype", DTYPES)
def test_of_a_cholesky_factor(tmp_path: Path, dtype: str) -> None:
    a = random_matrix(200, dtype)
    a = a @ a.conj().T / 200 + np.eye(200, dtype=dtype)
    A = on_disk(tmp_path / "Z", a)
    found = slogdet(cho_factor(A, memory="1 MB", progress=False), memory="1 MB", progress=False)
    close(found, a)
    assert found.sign == 1.0


def test_ready_factors_are_used_and_kept(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    first = slogdet(A, memory=TINY, keep_factors=True, progress=False)
    assert first.report.bytes_written > 0
    assert open_factor(tmp_path / "Z.lu").n == N
    again = slogdet(A.path, memory=TINY, progress=False)
    assert again.report.bytes_written == 0
    assert any("used the factors" in note for note in again.report.notes)
    assert tuple(again) == tuple(first)
    assert (tmp_path / "Z.lu").exists()
    with oc.open_array(A.path, "r+") as array:
        array[0, 0] = 3
    with pytest.raises(ExistsError, match="as it was before"):
        slogdet(A, memory=TINY, progress=False)


def test_a_stopped_factorization_goes_on(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    stop_after(2, A, memory=TINY)
    found = slogdet(A, memory=TINY, progress=False)
    close(found, a)
    assert any("resumed" in note for note in found.report.notes)
    assert [p.name for p in tmp_path.iterdir()] == ["Z"]


def test_killed_anywhere(tmp_path: Path, all_lines: bool) -> None:
    """The next call resumes the factors that `slogdet` made for itself, and removes them."""
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    pages = (*DECISIVE, "_output/own.py", "_estimate/slogdet.py")
    line = 1
    while kill_at_line(line, lambda: slogdet(A.path, **QUIET), pages):
        close(slogdet(A, memory=TINY, progress=False), a)
        assert [path.name for path in tmp_path.iterdir()] == ["Z"]
        line += 61 if all_lines else 173
    assert line > 600, "few lines were stopped at"


def test_bad_input(tmp_path: Path) -> None:
    a = random_matrix(N, "f8")
    A = on_disk(tmp_path / "Z", a)
    lu = lu_factor(A, memory=TINY, progress=False)
    with pytest.raises(BudgetError, match="need") as refused:
        slogdet(lu, memory=1000, progress=False)
    least = int(str(refused.value).split()[1])
    close(slogdet(lu, memory=least, progress=False), a)
    with pytest.raises(BudgetError):
        slogdet(lu, memory=least - 1, progress=False)
    with pytest.raises(InvalidError, match="square"):
        slogdet(oc.from_array(np.ones((3, 4)), tmp_path / "B"), progress=False)
    a[5, 6] = np.nan
    before = names_below(tmp_path)
    C = on_disk(tmp_path / "C", a)
    with pytest.raises(NonFiniteError, match=r"A\[5, 6\]"):
        slogdet(C, memory=TINY, progress=False)
    assert {p for p in names_below(tmp_path) if not p.startswith("C")} == set(before)
    assert not (tmp_path / "C.lu").exists()


def test_numbers_that_overflow_are_refused(tmp_path: Path) -> None:
    a = np.diag(np.full(200, 3e38, "f4"))
    a[0, 1], a[1, 0] = 3e38, -3e38
    A = oc.from_array(a, tmp_path / "Z", order="F")
    with (
        pytest.warns(GrowthWarning),
        pytest.raises(InvalidError, match="overflow float32; scale it"),
    ):
        slogdet(A, progress=False)
    with pytest.warns(GrowthWarning):
        lu = lu_factor(A, progress=False)
    with pytest.raises(InvalidError, match="overflow float32; scale it"):
        slogdet(lu, progress=False)
    with pytest.raises(InvalidError, match="overflow float32; scale it"):
        cond_est(lu, progress=False)
