"""Block Gauss-Seidel and Jacobi on disk: iterates of the definition, ends, refusals."""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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
    swept,
)
from linpack import names_below, one_thread

import outcore as oc
from outcore.errors import (
    BudgetError,
    ConvergenceWarning,
    DivergenceError,
    Interrupted,
    InvalidError,
    NonFiniteError,
    SingularMatrixError,
)
from outcore.linalg import cg, gauss_seidel, jacobi, lu_factor

__all__ = ["one_thread"]  # a fixture for every test here
N = 150
DIRECTIONS = ("symmetric", "alternating", "forward")


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
def test_the_iterates_are_those_of_the_definition(
    tmp_path: Path, order: str, chunks: tuple[int, int], direction: Any
) -> None:
    for dtype, omega, guess in (("f8", 1.0, False), ("c16", 1.3, True)):
        a, b = dominant(N, dtype), random((N, 2), dtype, 1)
        x0 = random((N, 2), dtype, 2) if guess else np.zeros_like(b)
        A = on_disk(tmp_path / "A", a, order, chunks)
        options: dict[str, Any] = {
            "x0": x0 if guess else None, "omega": omega, "direction": direction,
        }  # fmt: skip
        least = least_budget(gauss_seidel, A, b, **options)
        for memory in (least, least + 60_000, 1 << 21):
            x, report = gauss_seidel(
                A, b, tol=None, max_sweeps=5, memory=memory, progress=False, **options
            )
            expected, history = swept(a, b, x0, block_of(report), omega, direction, 5)
            np.testing.assert_allclose(x, expected, rtol=0, atol=1e-14 * np.abs(expected).max())
            np.testing.assert_allclose(
                report.history, history, rtol=1e-6, atol=1e-14 * max(history)
            )
            assert_as_planned(report, memory)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(N,), (N, 3)])
def test_every_type_to_its_precision(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    a, b = dominant(N, dtype), random(shape, dtype, 1)
    A = on_disk(tmp_path / "A", a)
    tol = float(30 * np.finfo(dtype).eps)
    for method in (gauss_seidel, jacobi):
        x, report = method(A, b, tol=tol, memory=400_000, progress=False)
        assert (x.shape, x.dtype) == (b.shape, b.dtype)
        found = residual(a, x.reshape(N, -1), b.reshape(N, -1))
        assert found < tol
        assert report.backward_error < tol
        noted = re.search(r"‖b‖ = (\S+),", report.notes[0])
        # Either sum has roundings of the same size as the residual.
        assert noted is not None
        assert 0.2 < float(noted[1]) / found < 5
        assert report.dtype == np.dtype(dtype).name
        assert report.flops > 2 * N**2
        assert_as_planned(report, 400_000)
        assert list(tmp_path.iterdir()) == [tmp_path / "A"]


def test_a_complex_right_hand_side_of_a_real_matrix(tmp_path: Path) -> None:
    a, b = dominant(N, "f4"), random((N, 2), "c16", 1)
    b[:, 1] = b[:, 1].real
    x, _ = gauss_seidel(on_disk(tmp_path / "A", a), b, tol=1e-6, progress=False)
    assert x.dtype == np.complex128
    assert residual(a, x, b) < 1e-6


def test_right_hand_sides_of_any_size_and_on_disk(tmp_path: Path) -> None:
    a, b = dominant(N, "f4"), random((N, 4), "f4", 1)
    A = on_disk(tmp_path / "A", a)
    b *= np.array([1e30, 1e-30, 0, 1], "f4")
    x, _ = gauss_seidel(A, oc.from_array(b, tmp_path / "b"), tol=1e-6, progress=False)
    assert residual(a, x[:, [0, 1, 3]] / b[0, [0, 1, 3]], b[:, [0, 1, 3]] / b[0, [0, 1, 3]]) < 2e-6
    assert not x[:, 2].any()


def test_one_element_and_one_block_are_direct(tmp_path: Path) -> None:
    for n in (1, 2, 16, 17, 64, 65):
        a, b = random((n, n), "f8") + np.eye(n), random(n, "f8", 1)
        for order, chunks in LAYOUTS:
            A = on_disk(tmp_path / "A", a, order, chunks)
            x, report = gauss_seidel(A, b, block=192, tol=1e-12, progress=False)
            assert block_of(report) == n
            assert len(report.history) <= 2
            np.testing.assert_allclose(a @ x, b, atol=1e-10)


def test_positive_definite_matrices_of_closed_form(tmp_path: Path) -> None:
    """x of ones is known; KMS has a tridiagonal inverse, which gives x."""
    a = poisson(13)
    A = on_disk(tmp_path / "A", a)
    x, _ = gauss_seidel(A, a.sum(axis=1), omega=1.5, tol=1e-12, progress=False)
    np.testing.assert_allclose(x, 1, rtol=1e-10)
    rho, n = 0.6, N
    a = kms(n, rho)
    inverse = (
        np.diag([1, *[1 + rho**2] * (n - 2), 1]) - rho * (np.eye(n, k=1) + np.eye(n, k=-1))
    ) / (1 - rho**2)
    b = random(n, "f8", 3)
    x, _ = gauss_seidel(on_disk(tmp_path / "K", a), b, tol=1e-13, progress=False)
    np.testing.assert_allclose(x, inverse @ b, rtol=1e-11, atol=1e-11)


def test_symmetric_sweeps_are_alternating_ones_for_half_of_the_reads(tmp_path: Path) -> None:
    a, b = dominant(512, "f8"), random(512, "f8", 1)
    A = on_disk(tmp_path / "A", a)
    both = {
        direction: gauss_seidel(
            A, b, direction=direction, pin=None, block=16, tol=None, max_sweeps=4, progress=False
        )
        for direction in ("symmetric", "alternating")
    }
    (x, half), (y, whole) = both["symmetric"], both["alternating"]
    np.testing.assert_allclose(x, y, rtol=1e-14)
    np.testing.assert_allclose(half.history, whole.history, rtol=1e-6)
    # The setup reads the diagonal tiles, the end all of A.
    words = {name: report.words_moved() / 512**2 for name, report in
             (("half", half), ("whole", whole))}  # fmt: skip
    setup = 64 / 512
    assert words["whole"] == setup + 4 + 1
    # Tiles of 64 columns with a block of 16: three of four lie on both sides of the diagonal.
    both_sides = 0.75 * 64 / 512
    assert words["half"] == pytest.approx(setup + 1 + 4 * (0.5 + both_sides / 2), abs=64 / 512)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("assume_a", ["her", "pos", "sym"])
@pytest.mark.parametrize(("order", "chunks"), LAYOUTS)
def test_one_triangle_is_enough(
    tmp_path: Path, order: str, chunks: tuple[int, int], assume_a: Any
) -> None:
    """The call never reads above the diagonal blocks, which are NaN here."""
    a = kms(N, 0.5 + 0.4j) + np.eye(N)
    if assume_a == "sym":
        a = np.tril(a) + np.tril(a, -1).T
    b, x0 = random((N, 2), "c16", 1), random((N, 2), "c16", 2)
    block = 48 if 16 in chunks else 32
    above = np.subtract.outer(np.arange(N) // block, np.arange(N) // block) < 0
    A = on_disk(tmp_path / "A", np.where(above, np.nan, a), order, chunks)
    whole = on_disk(tmp_path / "W", a, order, chunks)
    for guess in (None, x0):
        options: dict[str, Any] = {"x0": guess, "block": block, "omega": 1.2, "progress": False}
        x, report = gauss_seidel(A, b, assume_a=assume_a, tol=1e-10, memory=600_000, **options)
        assert residual(a, x, b) < 1e-10
        assert_as_planned(report, 600_000)
        _, reference = gauss_seidel(whole, b, tol=1e-10, **options)
        np.testing.assert_allclose(report.history, reference.history, rtol=1e-4)
        y, jacobi_report = jacobi(
            A, b, assume_a=assume_a, tol=1e-8, memory=600_000, **options | {"omega": 0.5}
        )
        assert residual(a, y, b) < 1e-8
        assert_as_planned(jacobi_report, 600_000)


def test_single_precision_storage_reads_half_and_has_a_floor(tmp_path: Path) -> None:
    n = 256
    for dtype, word in (("f8", 8), ("c16", 16)):
        a, b = dominant(n, dtype), random((n, 2), dtype, 1)
        for order, chunks in (("C", (16, 64)), ("F", (64, 16))):
            A = on_disk(tmp_path / "A", a, order, chunks)
            options: dict[str, Any] = {
                "storage": "f4", "pin": 0.25, "block": 32, "tol": None, "progress": False,
                "memory": 1 << 20, "direction": "forward",
            }  # fmt: skip
            reports = [gauss_seidel(A, b, max_sweeps=k, **options)[1] for k in (3, 4)]
            read = [report.bytes_read / (word * n**2) for report in reports]
            assert read[1] - read[0] == 0.75 / 2
            assert reports[0].bytes_written == word // 2 * n**2
            x, report = gauss_seidel(A, b, storage="f4", tol=1e-6, memory=1 << 20, progress=False)
            assert x.dtype == np.dtype(dtype)
            assert residual(a, x, b) < 1e-6
            assert "the residual cannot fall below about 6e-08" in report.notes[0]
            assert_as_planned(report, 1 << 20)
            with pytest.warns(ConvergenceWarning, match=r"ended after .* tol=1\.00e-12"):
                x, report = gauss_seidel(
                    A, b, storage="f4", tol=1e-12, memory=1 << 20, progress=False
                )
            assert 1e-12 < residual(a, x, b) < 1e-7
            # This is the best that rounding A allows: x solves the rounded system.
            narrow = a.astype("f4" if dtype == "f8" else "c8")
            assert residual(narrow, x, b) < 1e-11
            assert list(tmp_path.iterdir()) == [tmp_path / "A"]


def test_single_precision_storage_of_such_a_matrix_needs_no_copy(tmp_path: Path) -> None:
    a, b = dominant(N, "f4"), random((N, 2), "f8", 1)
    for order, chunks in LAYOUTS:
        A = on_disk(tmp_path / "A", a, order, chunks)
        x, report = gauss_seidel(A, b, storage="f4", tol=1e-13, progress=False)
        assert x.dtype == np.float64
        assert residual(a, x, b) < 1e-13
        assert report.bytes_written == 0
        assert len(report.notes) == 1


def test_numbers_too_large_for_single_precision(tmp_path: Path) -> None:
    a = dominant(N, "f8")
    a[77, 3] = 1e39
    with pytest.raises(InvalidError, match="in rows 64 to 79 that is too large for float32"):
        gauss_seidel(on_disk(tmp_path / "A", a), np.ones(N), storage="f4", progress=False)
    assert list(tmp_path.iterdir()) == [tmp_path / "A"]


@pytest.mark.parametrize("method", [gauss_seidel, cg])
def test_numbers_too_small_for_single_precision(tmp_path: Path, method: Any) -> None:
    a = random((N, N), "f8")
    a = a + a.T + 10 * N * np.eye(N)
    with pytest.raises(InvalidError, match="row 0 of A are too small for float32"):
        method(on_disk(tmp_path / "A", a * 1e-50), np.ones(N), storage="f4", progress=False)
    scales = np.ones(N)
    scales[7] = 1e-30
    lost = on_disk(tmp_path / "A", a * scales * scales[:, None] * 1e-20)
    with pytest.raises(InvalidError, match="row 7 of A are too small for float32"):
        method(lost, np.ones(N), storage="f4", progress=False)
    # A diagonal element that becomes zero is negligible beside the others of its row.
    a[3, 5] = a[5, 3] = 1e-60
    x, _ = method(on_disk(tmp_path / "A", a), np.ones(N), storage="f4", progress=False)
    assert residual(a, x, np.ones(N)) < 1e-4


@pytest.mark.parametrize("direction", DIRECTIONS)
def test_divergence_is_found_in_a_few_sweeps_with_its_ratio(tmp_path: Path, direction: Any) -> None:
    """x_1 <- b_1 - 1.2 x_2, x_2 <- b_2 - 1.2 x_1: a forward sweep grows the error by 1.44."""
    n = 96
    a = np.kron([[1, 1.2], [1.2, 1]], np.eye(n // 2))
    A = on_disk(tmp_path / "A", a, chunks=(1, 512))
    with pytest.raises(DivergenceError, match=r"diverges(.|\n)*gmres.*solve") as found:
        gauss_seidel(A, np.ones(n), direction=direction, block=1, progress=False)
    sweeps = re.search(r"of (\d+) steps", str(found.value))
    assert sweeps
    assert int(sweeps[1]) <= 12
    expected = 1.44 if direction == "forward" else 1.2
    assert found.value.ratio == pytest.approx(expected, rel=1e-2)
    assert f"factor of {found.value.ratio:.3g}" in str(found.value)
    with pytest.raises(DivergenceError):
        jacobi(A, np.ones(n), block=1, progress=False)


def test_infinite_growth_is_divergence(tmp_path: Path) -> None:
    a = np.eye(64) * 1e-30 + random((64, 64), "f8")
    a[np.diag_indices(64)] = 1e-30
    with pytest.raises(DivergenceError):
        gauss_seidel(
            on_disk(tmp_path / "A", a, chunks=(1, 512)), np.ones(64), block=1, progress=False
        )


def test_slow_convergence_is_no_divergence_and_said(tmp_path: Path) -> None:
    a = poisson(12)
    A = on_disk(tmp_path / "A", a)
    with pytest.warns(ConvergenceWarning, match="after 8 steps with a residual of"):
        _, report = gauss_seidel(A, np.ones(144), block=16, max_sweeps=8, tol=1e-9, progress=False)
    assert len(report.history) == 8
    assert "1.00e-09 was asked for" in report.notes[-1]


def test_a_tolerance_below_rounding_ends_with_a_warning(tmp_path: Path) -> None:
    a = dominant(N, "f4")
    with pytest.warns(ConvergenceWarning):
        _, report = gauss_seidel(
            on_disk(tmp_path / "A", a), np.ones(N, "f4"), tol=1e-12, progress=False
        )
    assert len(report.history) < 80


def test_a_good_guess_saves_sweeps(tmp_path: Path) -> None:
    a, b = poisson(12), random(144, "f8")
    A = on_disk(tmp_path / "A", a)
    x, first = gauss_seidel(A, b, tol=1e-6, block=16, progress=False)
    y, second = gauss_seidel(A, b, x0=x, tol=1e-10, block=16, progress=False)
    _, whole = gauss_seidel(A, b, tol=1e-10, block=16, progress=False)
    assert abs(len(first.history) + len(second.history) - len(whole.history)) <= 4
    assert residual(a, y[:, None], b[:, None]) < 1e-10


@pytest.mark.parametrize("direction", ["symmetric", "forward"])
@pytest.mark.parametrize("index", [(0, 0), (3, 100), (100, 3), (149, 149), (120, 121)])
def test_a_number_that_is_none_is_named(
    tmp_path: Path, direction: Any, index: tuple[int, int]
) -> None:
    for value, order in ((np.nan, "C"), (-np.inf, "F")):
        a = dominant(N, "f8")
        a[index] = value
        A = on_disk(tmp_path / "A", a, order, (16, 64) if order == "C" else (64, 16))
        for storage in (None, "f4"):
            with pytest.raises(NonFiniteError, match=rf"A\[{index[0]}, {index[1]}\] is ") as found:
                gauss_seidel(A, np.ones(N), direction=direction, storage=storage, progress=False)  # type: ignore[arg-type]
            assert found.value.index == index
    a = dominant(N, "c8")
    a[index] = complex(0, np.nan)
    with pytest.raises(NonFiniteError, match=rf"A\[{index[0]}, {index[1]}\] is nan|\(0\+nanj\)"):
        jacobi(on_disk(tmp_path / "A", a), np.ones(N), progress=False)


def test_a_singular_diagonal_block_is_named(tmp_path: Path) -> None:
    a = dominant(N, "f8")
    a[64:80, 71] = 0
    A = on_disk(tmp_path / "A", a)
    with pytest.raises(SingularMatrixError, match="rows 64 to 79 is singular") as found:
        gauss_seidel(A, np.ones(N), block=16, progress=False)
    assert found.value.info == 72


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"omega": 0}, "omega must be between 0 and 2"),
        ({"omega": 2.0}, "omega must be between 0 and 2"),
        ({"direction": "sideways"}, "direction must be"),
        ({"assume_a": "spd"}, "assume_a must be"),
        ({"assume_a": "her", "direction": "forward"}, "needs direction='symmetric'"),
        ({"block": 0}, "block must be an integer of at least 1"),
        ({"block": 20}, "multiple of 16, the rows of a chunk, have 20; try block=32"),
        ({"block": 2.5}, "block must be an integer"),
        ({"pin": -0.1}, "pin must be"),
        ({"pin": 1.5}, "pin must be"),
        ({"pin": "all"}, "pin must be"),
        ({"pin": True}, "pin must be"),
        ({"storage": "f2"}, "storage must be"),
        ({"tol": -1}, "tol must be"),
        ({"tol": "small"}, "tol must be"),
        ({"tol": np.nan}, "tol must be"),
        ({"max_sweeps": 0}, "at least 1"),
        ({"threads": 0}, "threads must be"),
        ({"x0": np.ones(N - 1)}, r"x0 must have the shape of b, \(150,\), have \(149,\)"),
        ({"x0": np.ones((N, 1))}, "x0 must have the shape of b"),
        ({"x0": np.full(N, np.nan)}, "x0 has a NaN"),
        ({"x0": np.ones(N) * 1j}, "x0 must be of a type that converts to float64"),
        ({"x0": ["a"] * N}, "x0 must be of a type"),
    ],
)
def test_arguments_that_cannot_be(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    before = names_below(tmp_path)
    with pytest.raises(InvalidError, match=message):
        gauss_seidel(A, np.ones(N), progress=False, **options)
    assert names_below(tmp_path) == before


@pytest.mark.parametrize("method", [gauss_seidel, jacobi])
def test_systems_that_are_none(tmp_path: Path, method: Any) -> None:
    with pytest.raises(InvalidError, match="need a square matrix, have shape"):
        method(oc.create_array(tmp_path / "R", (8, 9)), np.ones(8))
    with pytest.raises(InvalidError, match=r"work in float32, .* have int32; convert with"):
        method(oc.create_array(tmp_path / "I", (8, 8), "i4"), np.ones(8))
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    with pytest.raises(InvalidError, match="need a right-hand side of shape"):
        method(A, np.ones(N + 1))
    with pytest.raises(InvalidError, match="at least one right-hand side"):
        method(A, np.ones((N, 0)))
    with pytest.raises(InvalidError, match="in row 77"):
        method(A, np.where(np.arange(N) == 77, np.nan, 1))
    with pytest.raises(BudgetError, match=r"need .* with 50% of the matrix kept in memory, have"):
        method(A, np.ones(N), memory=100_000, pin=0.5)
    with pytest.raises(InvalidError):
        method(lu_factor(A, progress=False).path, np.ones(N))


def test_ctrl_c_gives_what_was_reached(tmp_path: Path) -> None:
    a, b = poisson(12), random((144, 2), "f8")
    A = on_disk(tmp_path / "A", a)
    memory = least_budget(gauss_seidel, A, b, block=64)
    sweeps = []

    def stop(fraction: float, left: float) -> None:
        sweeps.append(fraction)
        signal.raise_signal(signal.SIGINT)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outcore._util.progress.Meter.advance", lambda self, work: stop(work, 0))
        with pytest.raises(
            Interrupted, match="stopped after 1 steps; call again, with x0="
        ) as found:
            gauss_seidel(A, b, block=64, memory=memory, tol=1e-10, progress=False)
    expected, _ = swept(a, b, np.zeros_like(b), 64, 1, "symmetric", 1)
    np.testing.assert_allclose(found.value.x, expected, rtol=1e-12)
    assert list(tmp_path.iterdir()) == [tmp_path / "A"]
    x, _ = gauss_seidel(A, b, x0=found.value.x, tol=1e-10, progress=False)
    assert residual(a, x, b) < 1e-10


def test_progress_ends_at_one(tmp_path: Path) -> None:
    seen: list[float] = []
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    gauss_seidel(A, np.ones(N), progress=lambda fraction, _: seen.append(fraction))
    assert seen[-1] == 1
    assert seen == sorted(seen)


def test_the_trace_has_reads_and_arithmetic(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    _, report = gauss_seidel(A, np.ones(N), pin=None, memory=200_000, progress=False)
    assert report.spans is not None
    kinds = [oc._core.Trace.kinds()[int(kind)] for kind in report.spans[:, 0]]
    assert {"read", "compute", "wait"} <= set(kinds)
    read = sum(int(row[5]) for row, kind in zip(report.spans, kinds, strict=True) if kind == "read")
    assert read == report.bytes_read
