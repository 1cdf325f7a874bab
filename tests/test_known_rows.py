"""Methods that stream rows, on matrices several times their memory with known results."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import Matrix, one_thread

import outcore as oc
from outcore.linalg import gram, lstsq, qr, svd
from outcore.report.report import Report

__all__ = ["one_thread"]  # a fixture for every test here

M, N = 16_384, 64
MEMORY = 1_300_000


def hadamard(m: int = M, n: int = N) -> Matrix:
    """Return the first columns of Sylvester's matrix: entries ±1, AᵀA = m I."""
    return np.tile(scipy.linalg.hadamard(n).astype(float), (m // n, 1))


def another_column(m: int = M, n: int = N) -> Matrix:
    """Return column n of it, which is orthogonal to those before."""
    return np.where(np.arange(m) // n % 2, -1.0, 1.0)


def fourier(m: int = M, n: int = N) -> Matrix:
    """Return the first columns of the discrete Fourier transform: AᴴA = m I."""
    i, j = np.ogrid[:m, :n]
    return np.exp(-2j * np.pi * (i * j % m) / m)


def stored(path: Path, a: Matrix, order: str = "C") -> oc.Array:
    chunks = None if order == "C" else (128, 16)[: a.ndim]
    return oc.from_array(a, path, order=order, chunks=chunks, progress=False)


def assert_small(report: Report, A: oc.Array, memory: int = MEMORY) -> None:
    """Check that the matrix is several times the memory, and that the reads are as planned."""
    assert report.peak_memory_bytes <= memory <= A.nbytes / 6
    assert report.bytes_read == report.planned_bytes_read


def test_the_matrices_are_what_they_are_said_to_be() -> None:
    np.testing.assert_array_equal(hadamard(256, 64), scipy.linalg.hadamard(256)[:, :64])
    np.testing.assert_array_equal(another_column(256, 64), scipy.linalg.hadamard(256)[:, 64])
    np.testing.assert_allclose(fourier(256, 64), scipy.linalg.dft(256)[:, :64], atol=1e-12)


@pytest.mark.parametrize("order", ["C", "F"])
def test_gram_of_hadamard_columns_is_exact(tmp_path: Path, order: str) -> None:
    A = stored(tmp_path / "A", hadamard(), order)
    G, report = gram(A, memory=MEMORY, progress=False)
    np.testing.assert_array_equal(G, M * np.eye(N))
    assert report.bytes_read == A.nbytes
    assert_small(report, A)


def test_gram_larger_than_memory_is_exact(tmp_path: Path) -> None:
    """G is as large as A: 8 MB each, with less than a third of that as memory."""
    n, memory = 1024, 2_400_000
    A = stored(tmp_path / "A", scipy.linalg.hadamard(n).astype(float))
    for side in ("left", "right"):
        G, report = gram(
            A, side=side, out=tmp_path / "G", if_exists="overwrite", memory=memory, progress=False
        )  # type: ignore[call-overload]
        np.testing.assert_array_equal(G[...], n * np.eye(n))
        assert "a pass for each" in report.method
        assert report.peak_memory_bytes <= memory <= A.nbytes / 3


def test_gram_of_fourier_columns(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", fourier())
    G, report = gram(A, memory=MEMORY, progress=False)
    np.testing.assert_allclose(G, M * np.eye(N), atol=1e-10 * M)
    assert_small(report, A)


@pytest.mark.parametrize("make", [hadamard, fourier])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("mode", ["r", "economic"])
def test_r_of_orthonormal_columns_is_one_up_to_signs(
    tmp_path: Path, make: Any, order: str, mode: Any
) -> None:
    a = make() / np.sqrt(M)
    A = stored(tmp_path / "A", a, order)
    *Q, R, report = qr(A, mode=mode, memory=MEMORY, progress=False)
    np.testing.assert_allclose(np.abs(R), np.eye(N), atol=1e-13)
    assert_small(report, A)
    if Q:
        np.testing.assert_allclose(Q[0][...] * np.diagonal(R), a, atol=1e-14)


@pytest.mark.parametrize("make", [hadamard, fourier])
@pytest.mark.parametrize("order", ["C", "F"])
def test_least_squares_with_a_known_residual(tmp_path: Path, make: Any, order: str) -> None:
    """b is A x plus a column orthogonal to A: check x, and the norm of that column."""
    a = make()
    A = stored(tmp_path / "A", a, order)
    x = np.random.default_rng(0).standard_normal((N, 3))
    if make is hadamard:
        rest = another_column()
    else:
        rest = np.exp(-2j * np.pi * (np.arange(M) * N % M) / M)
    b = a @ x + np.array([0.0, 1.0, 1e-3]) * rest[:, None]
    for given in (b, stored(tmp_path / "b", b)):
        found, report = lstsq(A, given, memory=MEMORY, progress=False)
        np.testing.assert_allclose(found, x, atol=1e-13)
        sizes = np.array(report.residual_norms)
        np.testing.assert_allclose(sizes[1:], [M**0.5, 1e-3 * M**0.5], rtol=1e-10)
        assert sizes[0] < 1e-10
        assert report.rank == N
        assert report.condition == pytest.approx(1, rel=0.5)
        assert report.method.startswith("QR of rows")
        assert_small(report, A)


@pytest.mark.parametrize("out", [False, True])
@pytest.mark.parametrize("order", ["C", "F"])
def test_singular_values_are_those_of_scaled_columns(tmp_path: Path, out: bool, order: str) -> None:
    """A = H D with orthogonal columns H of norm √m: the values are √m d, the vectors columns."""
    k, power = 5, 4
    d = 4.0 ** -np.arange(N // 2).repeat(2)[:N] * (1 - 0.25 * (np.arange(N) % 2))
    shuffled = np.random.default_rng(1).permutation(N)
    h, scale = hadamard(), d[shuffled]
    A = stored(tmp_path / "A", h * scale, order)
    memory = (2 if out else 3) * MEMORY
    U, s, Vh, report = svd(
        A,
        k,
        tol=None,
        power=power,
        out=tmp_path / "U" if out else None,
        memory=memory,
        progress=False,
    )
    first = np.argsort(-scale)[:k]
    np.testing.assert_allclose(s, np.sqrt(M) * scale[first], rtol=1e-12)
    expected = np.zeros((k, N))
    expected[np.arange(k), first] = 1
    np.testing.assert_allclose(np.abs(Vh), expected, atol=1e-9)
    signs = np.sign(Vh[np.arange(k), first])
    np.testing.assert_allclose(np.asarray(U[...]) * signs, h[:, first] / np.sqrt(M), atol=1e-9)
    assert report.bytes_read == pytest.approx(report.planned_bytes_read, rel=1e-3)
    assert report.peak_memory_bytes <= memory <= A.nbytes / 2
