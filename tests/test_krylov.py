"""Conjugate gradients and GMRES on disk: SciPy's iterates, exact words, refusals."""

import itertools
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse.linalg
from iterative_cases import (
    DTYPES,
    LAYOUTS,
    assert_as_planned,
    block_of,
    dominant,
    kms,
    least_budget,
    on_disk,
    poisson,
    random,
    residual,
)
from linpack import Matrix, names_below, one_thread
from tall import RATES

import outcore as oc
from outcore.errors import (
    BudgetError,
    ConvergenceWarning,
    Interrupted,
    InvalidError,
    NonFiniteError,
    NotPositiveDefiniteError,
    SingularMatrixError,
)
from outcore.linalg import cg, cho_factor, gmres, lu_factor

__all__ = ["one_thread"]  # a fixture for every test here

N = 150


def near_identity(n: int, dtype: str, shift: float = 1.5) -> Matrix:
    """Return a nonsymmetric matrix, well conditioned and not diagonally dominant."""
    a = random((n, n), dtype) / np.sqrt(n) + shift * np.eye(n)
    return np.asarray(a.astype(dtype))


def ssor(a: Matrix, block: int, omega: float, *, is_symmetric: bool) -> Matrix:
    """Return the inverse of the preconditioner, from its definition (Axelsson 1972)."""
    number = np.arange(len(a)) // block
    D = np.where(number[:, None] == number, a, 0)
    lower = np.where(number[:, None] > number, a, 0)
    forward = np.linalg.inv(D / omega + lower)
    if not is_symmetric:
        return np.asarray(forward)
    upper = a - D - lower
    return np.asarray((2 - omega) / omega * np.linalg.inv(D / omega + upper) @ D @ forward)


@pytest.mark.parametrize("preconditioner", [None, "jacobi", "ssor"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_cg_makes_the_steps_of_scipy(tmp_path: Path, dtype: str, preconditioner: Any) -> None:
    a = kms(N, 0.7 if dtype == "f8" else 0.5 + 0.4j)
    b = random(N, dtype, 1)
    for order, chunks in LAYOUTS[:2]:
        A = on_disk(tmp_path / "A", a, order, chunks)
        _, report = cg(
            A, b, preconditioner=preconditioner, omega=1.2, block=16, tol=1e-9, progress=False
        )
        M = None
        if preconditioner:
            M = ssor(a, 16, 1.2, is_symmetric=True)
        if preconditioner == "jacobi":
            number = np.arange(N) // 16
            M = np.linalg.inv(np.where(number[:, None] == number, a, 0))
        history: list[float] = []

        def note(x: Matrix) -> None:
            history.append(residual(a, x[:, None], b[:, None]))  # noqa: B023

        scipy.sparse.linalg.cg(a, b, M=M, rtol=1e-9, callback=note)
        assert abs(len(report.history) - len(history)) <= 1
        # Later the histories differ by rounding.
        np.testing.assert_allclose(report.history[:25], history[:25], rtol=1e-3, atol=1e-8)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("preconditioner", [None, "jacobi", "sweep", "ssor"])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_gmres_makes_the_steps_of_scipy(tmp_path: Path, dtype: str, preconditioner: Any) -> None:
    a, b = near_identity(N, dtype), random(N, dtype, 1)
    inverse = np.eye(N)
    if preconditioner in ("sweep", "ssor"):
        inverse = ssor(a, 16, 0.9, is_symmetric=preconditioner == "ssor")
    elif preconditioner == "jacobi":
        number = np.arange(N) // 16
        inverse = np.linalg.inv(np.where(number[:, None] == number, a, 0))
    for order, chunks in LAYOUTS[:2]:
        A = on_disk(tmp_path / "A", a, order, chunks)
        _, report = gmres(
            A, b, preconditioner=preconditioner, omega=0.9, block=16, restart=7, tol=1e-10,
            progress=False,
        )  # fmt: skip
        # With right preconditioning, the residual is that of the system A M⁻¹.
        history: list[float] = []
        scipy.sparse.linalg.gmres(
            a @ inverse, b, rtol=1e-10, restart=7, callback=history.append, callback_type="pr_norm"
        )
        assert abs(len(report.history) - len(history)) <= 1
        both = min(len(report.history), len(history)) - 1
        np.testing.assert_allclose(report.history[:both], history[:both], rtol=1e-4)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
def test_cg_to_precision_as_planned(
    tmp_path: Path, order: str, chunks: tuple[int, int], dtype: str
) -> None:
    a = (kms(N, 0.6 if dtype[0] == "f" else 0.5 + 0.3j)).astype(dtype)
    b, x0 = random((N, 3), dtype, 1), random((N, 3), dtype, 2)
    tol = 100 * float(np.finfo(dtype).eps)
    A = on_disk(tmp_path / "A", a, order, chunks)
    for preconditioner, guess in ((None, x0), ("jacobi", None), ("ssor", x0)):
        least = least_budget(cg, A, b, preconditioner=preconditioner)
        for memory in (least, 1 << 21):
            x, report = cg(
                A, b, x0=guess, preconditioner=preconditioner, tol=tol, memory=memory,
                progress=False,
            )  # fmt: skip
            assert (x.shape, x.dtype) == (b.shape, b.dtype)
            assert residual(a, x, b) < tol
            assert 0 < report.backward_error < tol
            assert_as_planned(report, memory)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS[:4])
def test_gmres_to_precision_as_planned(
    tmp_path: Path, order: str, chunks: tuple[int, int], dtype: str
) -> None:
    a, b = near_identity(100, dtype, 3), random((100, 2), dtype, 1)
    x0 = random((100, 2), dtype, 2)
    tol = 100 * float(np.finfo(dtype).eps)
    A = on_disk(tmp_path / "A", a, order, chunks)
    for preconditioner, guess, restart in (
        (None, x0, None), ("jacobi", None, 6), ("sweep", x0, 5), ("ssor", None, None),
    ):  # fmt: skip
        options: dict[str, Any] = {"preconditioner": preconditioner, "restart": restart}
        least = least_budget(gmres, A, b, **options)
        for memory in (least + 20_000, 1 << 20):
            x, report = gmres(A, b, x0=guess, tol=tol, memory=memory, progress=False, **options)
            assert (x.shape, x.dtype) == (b.shape, b.dtype)
            assert residual(a, x, b) < tol
            assert_as_planned(report, memory)


def test_the_least_budget_that_is_named_suffices(tmp_path: Path) -> None:
    a, b = kms(N), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    for method, options in (
        (cg, {"preconditioner": "ssor"}), (cg, {}), (gmres, {}), (gmres, {"restart": 9}),
        (gmres, {"preconditioner": "sweep"}),
    ):  # fmt: skip
        least = least_budget(method, A, b, **options)
        _, report = method(A, b, memory=least, progress=False, max_iterations=500, **options)
        assert_as_planned(report, least)
        with pytest.raises(BudgetError, match=f"need {least} bytes"):
            method(A, b, memory=least - 1, progress=False, **options)


def words(method: Any, A: Any, n: int, counts: tuple[int, int], **options: Any) -> float:
    """Return the words that an iteration reads, in units of n²."""
    moved = [
        method(A, np.ones(n), tol=None, max_iterations=count, progress=False, **options)[1]
        .words_moved()
        for count in counts
    ]  # fmt: skip
    return float((moved[1] - moved[0]) / (counts[1] - counts[0]) / n**2)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("order", "chunks"), [("C", (16, 64)), ("F", (64, 16))])
def test_words_of_an_iteration(tmp_path: Path, order: str, chunks: tuple[int, int]) -> None:
    n = 256
    options: dict[str, Any] = {"pin": None, "block": 32, "memory": 1 << 20}
    A = on_disk(tmp_path / "A", near_identity(n, "f8"), order, chunks)
    # Both counts are below the first restart.
    krylov = {**options, "restart": 20}
    assert words(gmres, A, n, (3, 8), **krylov) == 1
    assert words(gmres, A, n, (3, 8), **krylov, preconditioner="jacobi") == 1
    # Separate passes over the triangles read tiles with parts of both twice.
    once = words(gmres, A, n, (3, 8), **krylov, preconditioner="sweep")
    assert once == (1 if order == "F" else pytest.approx(1, abs=64 / n))
    twice = words(gmres, A, n, (3, 8), **krylov, preconditioner="ssor")
    assert twice == pytest.approx(1.5, abs=1.5 * 64 / n)
    half = dict(options, pin=0.5)
    assert words(gmres, A, n, (3, 8), **half, restart=20) == 0.5
    H = on_disk(tmp_path / "H", kms(n, 0.3), order, chunks)
    triangle = words(cg, H, n, (3, 8), **options)
    assert 0.5 < triangle <= 0.5 + 64 / n
    assert words(cg, H, n, (3, 8), **half) <= triangle - 0.5 + 1e-9
    assert words(cg, H, n, (3, 8), **options, preconditioner="ssor") == pytest.approx(
        1.5, abs=3 * 64 / n
    )


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("preconditioner", [None, "sweep", "ssor"])
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
@pytest.mark.parametrize("assume_a", ["her", "sym"])
def test_gmres_of_one_triangle(
    tmp_path: Path, assume_a: Any, order: str, chunks: tuple[int, int], preconditioner: Any
) -> None:
    a = kms(N, 0.5 + 0.4j) + 0.3 * np.eye(N)
    if assume_a == "sym":
        a = np.tril(a) + np.tril(a, -1).T
    b = random((N, 2), "c16", 1)
    above = np.subtract.outer(np.arange(N) // 32, np.arange(N) // 32) < 0
    A = on_disk(tmp_path / "A", np.where(above, np.nan, a), order, chunks)
    x, report = gmres(
        A, b, assume_a=assume_a, preconditioner=preconditioner, block=32, tol=1e-10,
        memory=1 << 20, progress=False,
    )  # fmt: skip
    assert residual(a, x, b) < 1e-10
    assert_as_planned(report, 1 << 20)


def test_cg_does_not_read_above_the_diagonal_blocks(tmp_path: Path) -> None:
    a, b = kms(N, 0.5 + 0.4j), random(N, "c16", 1)
    above = np.subtract.outer(np.arange(N) // 16, np.arange(N) // 16) < 0
    A = on_disk(tmp_path / "A", np.where(above, np.nan, a))
    x, _ = cg(A, b, tol=1e-11, block=16, progress=False)
    assert residual(a, x[:, None], b[:, None]) < 1e-11


def test_saved_factors_precondition(tmp_path: Path) -> None:
    a, b = near_identity(N, "f8"), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    near = on_disk(tmp_path / "near", a + 1e-3 * random((N, N), "f8", 5), "F", (64, 16))
    lu = lu_factor(near, memory=150_000, progress=False)
    memory = least_budget(gmres, A, b, preconditioner=lu, restart=8)
    x, report = gmres(A, b, preconditioner=lu, restart=8, tol=1e-12, memory=memory, progress=False)
    assert residual(a, x, b) < 1e-12
    assert len(report.history) <= 8
    assert_as_planned(report, memory)
    narrow = on_disk(tmp_path / "narrow", a.astype("f4"), "F", (64, 16))
    low = lu_factor(narrow, memory=100_000, progress=False)
    x, report = gmres(A, b, preconditioner=low, tol=1e-13, memory=1 << 20, progress=False)
    assert residual(a, x, b) < 1e-13
    assert len(report.history) <= 3
    assert_as_planned(report, 1 << 20)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("method", [cg, gmres])
@pytest.mark.parametrize("dtype", ["f8", "c16"])
def test_saved_cholesky_factors_precondition(tmp_path: Path, method: Any, dtype: str) -> None:
    """Factors of a nearby matrix, and of A in single precision, against SciPy with the same."""
    a, b = kms(N, 0.5 + 0.4j if dtype == "c16" else 0.5), random((N, 2), dtype, 1)
    change = 1e-2 * random((N, N), dtype, 5)
    near = a + change @ change.conj().T / N
    A = on_disk(tmp_path / "A", a)
    c = cho_factor(on_disk(tmp_path / "near", near, "F", (64, 16)), memory=150_000, progress=False)
    more = {"restart": 8} if method is gmres else {}
    memory = least_budget(method, A, b, preconditioner=c, **more)
    x, report = method(A, b, preconditioner=c, tol=1e-12, memory=memory, progress=False, **more)
    assert residual(a, x, b) < 1e-12
    plain = method(A, b, tol=1e-12, memory=1 << 20, progress=False)[1]
    assert len(report.history) < len(plain.history) / 2
    assert "preconditioned by Cholesky factors" in report.method
    assert_as_planned(report, memory)
    applied = len(report.history) + (method is cg)
    counted = [0]

    def by_scipy(r: Matrix) -> Matrix:
        counted[0] += 1
        return scipy.linalg.cho_solve(scipy.linalg.cho_factor(near, lower=True), r)

    if method is cg:
        M = scipy.sparse.linalg.LinearOperator((N, N), matvec=by_scipy, dtype=a.dtype)
        y, info = scipy.sparse.linalg.cg(a, b[:, 0], M=M, rtol=1e-12, atol=0)
        assert info == 0
        assert abs(applied - counted[0]) <= 2
        np.testing.assert_allclose(x[:, 0], y, atol=1e-9)
    narrow = on_disk(
        tmp_path / "narrow", a.astype(f"{dtype[0]}{int(dtype[1:]) // 2}"), "F", (64, 16)
    )
    low = cho_factor(narrow, memory=150_000, progress=False)
    x, report = method(A, b, preconditioner=low, tol=1e-13, memory=1 << 20, progress=False)
    assert residual(a, x, b) < 1e-13
    assert len(report.history) <= 4
    assert_as_planned(report, 1 << 20)


def test_cholesky_factors_that_do_not_fit(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", kms(N, 0.5))
    small = cho_factor(on_disk(tmp_path / "B", kms(32, 0.5), "F"), progress=False)
    for method in (cg, gmres):
        with pytest.raises(InvalidError, match="need factors of order 150 for float64, have or"):
            method(A, np.ones(N), preconditioner=small, progress=False)
    with pytest.raises(InvalidError, match="plans know preconditioner=None"):
        oc.plan("cg", n=N, preconditioner=small, rates=RATES)
    lu = lu_factor(on_disk(tmp_path / "C", kms(N, 0.5), "F"), progress=False)
    with pytest.raises(InvalidError, match="Cholesky factors, have"):
        cg(A, np.ones(N), preconditioner=lu, progress=False)  # type: ignore[arg-type]


def test_factors_that_do_not_fit(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", near_identity(N, "f8"))
    small = lu_factor(on_disk(tmp_path / "B", near_identity(32, "f8"), "F"), progress=False)
    with pytest.raises(InvalidError, match="need factors of order 150 for float64, have order 32"):
        gmres(A, np.ones(N), preconditioner=small, progress=False)
    wide = lu_factor(on_disk(tmp_path / "C", near_identity(N, "c16"), "F"), progress=False)
    with pytest.raises(InvalidError, match="have order 150 in complex128"):
        gmres(A, np.ones(N), preconditioner=wide, progress=False)
    zeros = np.zeros((N, N))
    with pytest.warns(scipy.linalg.LinAlgWarning):
        singular = lu_factor(on_disk(tmp_path / "D", zeros, "F"), progress=False)
    with pytest.raises(SingularMatrixError):
        gmres(A, np.ones(N), preconditioner=singular, progress=False)


def test_a_function_preconditions_and_may_change(tmp_path: Path) -> None:
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    calls = []

    def function(R: Matrix) -> Matrix:
        calls.append(R.shape)
        return np.asarray(R / np.diag(a)[:, None] * (1 + 0.1 * (len(calls) % 2)))

    x, report = gmres(A, b, preconditioner=function, tol=1e-12, progress=False)
    assert residual(a, x, b) < 1e-12
    assert calls == [(N, 2)] * len(report.history)
    for wrong in (lambda R: R[:-1], lambda R: R * 1j, lambda R: R.astype(str)):
        with pytest.raises(InvalidError, match="the preconditioner must return float64 of shape"):
            gmres(A, b, preconditioner=wrong, progress=False)


@pytest.mark.parametrize("method", [cg, gmres])
def test_single_precision_storage_to_full_precision(tmp_path: Path, method: Any) -> None:
    """Restarts use the residual of A itself, so that rounding A costs steps, not digits."""
    n = 256
    for dtype, rho in (("f8", 0.6), ("c16", 0.5 + 0.3j)):
        a, b = kms(n, rho), random((n, 2), dtype, 1)
        A = on_disk(tmp_path / "A", a)
        x, report = method(A, b, storage="f4", tol=1e-12, memory=2 << 20, progress=False)
        assert residual(a, x, b) < 1e-12
        assert_as_planned(report, 2 << 20)
        assert report.bytes_written > 0
        assert list(tmp_path.iterdir()) == [tmp_path / "A"]


def test_right_hand_sides_are_independent(tmp_path: Path) -> None:
    """One column is zero, one converges in a step, one has another scale."""
    a = kms(N)
    b = random((N, 4), "f8", 1)
    b[:, 0] = 0
    b[:, 1] = np.linalg.eigh(a)[1][:, 3]
    b[:, 2] *= 1e200
    A = on_disk(tmp_path / "A", a)
    for method in (cg, gmres):
        x, _ = method(A, b, tol=1e-11, progress=False)
        assert not x[:, 0].any()
        assert residual(a, x[:, 1:] / b[0, 1:], b[:, 1:] / b[0, 1:]) < 1e-11


def test_a_complex_right_hand_side_of_a_real_matrix(tmp_path: Path) -> None:
    a, b = kms(N).astype("f4"), random(N, "c16", 1)
    A = on_disk(tmp_path / "A", a)
    for method in (cg, gmres):
        x, _ = method(A, b, x0=1j * b, tol=1e-5, progress=False)
        assert x.dtype == np.complex128
        assert residual(a, x[:, None], b[:, None]) < 1e-5


def test_the_space_is_exhausted_after_n_steps(tmp_path: Path) -> None:
    """A cyclic shift makes GMRES stagnate until the last step."""
    for n in (1, 2, 9, 24):
        a = np.roll(np.eye(n), 1, axis=0)
        b = np.eye(n)[0]
        x, report = gmres(on_disk(tmp_path / "A", a), b, tol=1e-12, progress=False)
        np.testing.assert_allclose(x, a.T @ b, atol=1e-12)
        assert len(report.history) == n


def test_a_singular_matrix_is_not_divided_by(tmp_path: Path) -> None:
    a = np.diag(np.arange(32.0))
    with pytest.warns(ConvergenceWarning):
        x, _ = gmres(
            on_disk(tmp_path / "A", a), np.ones(32), tol=1e-10, max_iterations=80, progress=False
        )
    assert np.isfinite(x).all()
    zero = on_disk(tmp_path / "Z", np.zeros((32, 32)))
    with pytest.warns(ConvergenceWarning):
        x, _ = gmres(zero, np.ones(32), tol=1e-10, max_iterations=5, progress=False)
    assert not x.any()


def test_cg_refuses_an_indefinite_matrix(tmp_path: Path) -> None:
    a = poisson(12) - 2 * np.eye(144)
    with pytest.raises(NotPositiveDefiniteError, match=r"in iteration \d+; use oc.linalg.gmres"):
        cg(on_disk(tmp_path / "A", a), random(144, "f8"), tol=1e-10, progress=False)


def test_too_few_iterations_are_said(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", poisson(12))
    for method in (cg, gmres):
        with pytest.warns(ConvergenceWarning, match="after 4 steps with a residual of"):
            _, report = method(A, random(144, "f8"), tol=1e-9, max_iterations=4, progress=False)
        assert len(report.history) == 4


def test_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    for index in ((70, 70), (100, 3)):
        a = kms(N)
        a[index] = np.nan
        A = on_disk(tmp_path / "A", a)
        for method in (cg, gmres):
            with pytest.raises(NonFiniteError) as found:
                method(A, np.ones(N), progress=False)
            assert found.value.index == index


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            cg,
            {"preconditioner": "ilu"},
            "preconditioner must be None, 'jacobi', 'ssor' or Cholesky",
        ),
        (
            cg,
            {"preconditioner": "sweep"},
            "preconditioner must be None, 'jacobi', 'ssor' or Cholesky",
        ),
        (cg, {"omega": 2}, "omega must be between 0 and 2"),
        (cg, {"max_iterations": 0}, "at least 1"),
        (gmres, {"preconditioner": "ilu"}, "preconditioner must be None, 'jacobi', 'sweep'"),
        (gmres, {"preconditioner": 3}, "preconditioner must be"),
        (gmres, {"restart": 0}, "restart must be an integer of at least 1"),
        (gmres, {"restart": 1.5}, "restart must be an integer of at least 1"),
        (gmres, {"omega": -1}, "omega must be between 0 and 2"),
        (gmres, {"assume_a": "pd"}, "assume_a must be"),
        (gmres, {"tol": -1.0}, "tol must be"),
        (gmres, {"x0": np.ones(3)}, "x0 must have the shape"),
    ],
)
def test_arguments_that_cannot_be(
    tmp_path: Path, method: Any, options: dict[str, Any], message: str
) -> None:
    A = on_disk(tmp_path / "A", kms(N))
    before = names_below(tmp_path)
    with pytest.raises(InvalidError, match=message):
        method(A, np.ones(N), progress=False, **options)
    assert names_below(tmp_path) == before


def test_ctrl_c_in_a_pass_gives_what_was_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = poisson(12), random(144, "f8")
    A = on_disk(tmp_path / "A", a)
    advanced = []

    def advance(self: Any, work: float) -> None:
        advanced.append(work)
        if len(advanced) == 12:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr("outcore._util.progress.Meter.advance", advance)
    with pytest.raises(Interrupted, match="stopped after 12 steps") as found:
        gmres(A, b, restart=5, tol=1e-10, storage="f4", progress=False)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [tmp_path / "A"]
    assert residual(a, found.value.x[:, None], b[:, None]) < 0.9
    x, _ = gmres(A, b, x0=found.value.x, tol=1e-10, progress=False)
    assert residual(a, x[:, None], b[:, None]) < 1e-10


def test_blocks_in_a_file_serve_preconditioners(tmp_path: Path) -> None:
    a, b = kms(N), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    for method, preconditioner in itertools.product((cg, gmres), ("jacobi", "ssor")):
        options: dict[str, Any] = {"preconditioner": preconditioner, "block": 64}
        memory = least_budget(method, A, b, **options)
        x, report = method(A, b, memory=memory, tol=1e-11, progress=False, **options)
        assert "in a file" in report.method
        assert block_of(report) == 64
        assert_as_planned(report, memory)
        assert residual(a, x, b) < 1e-11
        assert list(tmp_path.iterdir()) == [tmp_path / "A"]
