"""Cholesky, QR and triangular kernels against NumPy's and SciPy's."""

import numpy as np
import pytest
import scipy.linalg
from operands import DTYPES, assert_close, op, outside, random, view

from outcore.blas import blas
from outcore.blas.lapack import kernels

RNG_SEED = 3


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("trans", ["N", "C"])
@pytest.mark.parametrize("most", [8192, 9, 4, 1])
def test_herk(
    dtype: type, lower: bool, trans: str, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blas, "MOST_HERK", most)
    rng = np.random.default_rng(RNG_SEED)
    a = view(rng, dtype, 9, 5) if trans == "N" else view(rng, dtype, 5, 9)
    c = view(rng, dtype, 9, 9)
    np.fill_diagonal(c, c.diagonal().real)
    before, around = c.copy(), outside(c)
    kernels(dtype).herk(a, c, 2.0, -1.0, lower=lower, trans=trans)  # type: ignore[arg-type]
    whole = op(a, trans)
    part = np.tril if lower else np.triu
    assert_close(part(c), part(2 * whole @ whole.conj().T - before))
    rest = np.triu if lower else np.tril
    assert np.array_equal(rest(c, 1 if lower else -1), rest(before, 1 if lower else -1))
    assert np.array_equal(outside(c), around)


@pytest.mark.exhaustive(keep=0)
def test_herk_of_a_large_order() -> None:
    """OpenBLAS's own syrk crashes here, with two threads and AVX-512."""
    rng = np.random.default_rng(RNG_SEED)
    n, k = 16384, 384
    a = np.asfortranarray(rng.standard_normal((n, k)))
    c = np.zeros((n, n), order="F")  # the kernel never touches its upper triangle
    kernels(np.float64).herk(a, c, lower=True)
    rows = rng.integers(n, size=20)
    np.testing.assert_allclose(
        np.tril(c[np.ix_(np.sort(rows), np.sort(rows))]),
        np.tril(a[np.sort(rows)] @ a[np.sort(rows)].T),
        rtol=1e-10, atol=1e-10,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["L", "R"])
@pytest.mark.parametrize("trans", ["N", "T", "C"])
def test_trmm_undoes_trsm(dtype: type, side: str, trans: str) -> None:
    rng = np.random.default_rng(RNG_SEED)
    t, b = view(rng, dtype, 6, 6), view(rng, dtype, 6, 6)
    np.fill_diagonal(t, 4)
    before = b.copy()
    kernels(dtype).trmm(t, b, side, lower=True, trans=trans, unit=False)  # type: ignore[arg-type]
    triangle = op(np.tril(t), trans)
    assert_close(b, triangle @ before if side == "L" else before @ triangle)
    kernels(dtype).trsm(t, b, side, lower=True, trans=trans, unit=False)  # type: ignore[arg-type]
    assert_close(b, before, 1000)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_trtri(dtype: type, lower: bool, unit: bool) -> None:
    rng = np.random.default_rng(RNG_SEED)
    t = view(rng, dtype, 6, 6)
    np.fill_diagonal(t, 4)
    before = t.copy()
    assert kernels(dtype).trtri(t, lower=lower, unit=unit) == 0
    half = np.tril if lower else np.triu
    if unit:
        assert_close(np.diagonal(t), np.full(6, 4))
        np.fill_diagonal(t, 1)
        np.fill_diagonal(before, 1)
    assert_close(half(t) @ half(before), np.eye(6), 1000)
    other = np.triu if lower else np.tril
    np.testing.assert_array_equal(other(t, 1 if lower else -1), other(before, 1 if lower else -1))


def test_trtri_of_a_singular_triangle() -> None:
    t = np.asfortranarray(np.tril(np.ones((3, 3))))
    t[1, 1] = 0
    assert kernels(np.float64).trtri(t, lower=True, unit=False) == 2
    with pytest.raises(ValueError, match="not square"):
        kernels(np.float64).trtri(t[:, :2], lower=True, unit=False)


@pytest.mark.parametrize("dtype", DTYPES)
def test_trcon(dtype: type) -> None:
    t = view(np.random.default_rng(RNG_SEED), dtype, 30, 30)
    np.fill_diagonal(t, 4)
    before = t.copy()
    (want,) = scipy.linalg.get_lapack_funcs(("trcon",), (before,))
    found = kernels(dtype).trcon(t)
    assert found == pytest.approx(want(before, norm="1")[0], rel=1e-4)
    # At least the exact one, and seldom above its triple (Higham 2002, section 15.3).
    exact = 1 / np.linalg.cond(np.triu(before).astype("c16"), 1)
    assert 0.99 * exact <= found < 3 * exact
    np.testing.assert_array_equal(t, before)
    t[3, 3] = 0
    assert kernels(dtype).trcon(t) == 0
    with pytest.raises(ValueError, match="not square"):
        kernels(dtype).trcon(t[:5])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_potrf(dtype: type, lower: bool) -> None:
    rng = np.random.default_rng(RNG_SEED)
    g = random(rng, dtype, 12, 12)
    a = view(rng, dtype, 12, 12)
    a[...] = g @ g.conj().T + 12 * np.eye(12)
    want = scipy.linalg.cholesky(a, lower=lower)
    around = outside(a)
    assert kernels(dtype).potrf(a, lower=lower) == 0
    assert_close(np.tril(a) if lower else np.triu(a), want)
    assert np.array_equal(outside(a), around)
    a[...] = np.eye(12)
    a[7, 7] = -1
    assert kernels(dtype).potrf(a, lower=lower) == 8
    with pytest.raises(ValueError, match="square"):
        kernels(dtype).potrf(a[:5], lower=lower)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(20, 7), (7, 7), (9, 1)])
def test_qr_as_reflections_and_as_a_block(dtype: type, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(RNG_SEED)
    k = kernels(dtype)
    m, n = shape
    a = view(rng, dtype, m, n)
    before = a.copy()
    tau, work = np.zeros(n, dtype), np.zeros(k.geqrf_work(m, n), dtype)
    k.geqrf(a, tau, work)
    (want, want_tau), _ = scipy.linalg.qr(before, mode="raw")
    assert_close(a, want)
    assert_close(tau, want_tau)

    c = view(rng, dtype, m, 4)
    was = c.copy()
    k.unmqr(a, tau, c, np.zeros(4 * 64, dtype), trans="C")
    q = scipy.linalg.qr(before)[0]
    assert_close(c, q.conj().T @ was)
    k.unmqr(a, tau, c, np.zeros(4, dtype))
    assert_close(c, was)

    t = np.zeros((n, n), dtype, order="F")
    k.larft(a, tau, t)
    v = np.tril(a, -1) + np.eye(m, n, dtype=dtype)
    assert_close(np.eye(m, dtype=dtype) - v @ t @ v.conj().T, q)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [13, 4, 1])
@pytest.mark.parametrize("block", [1, 2, 5])
def test_qr_of_a_triangle_with_rows_below(dtype: type, rows: int, block: int) -> None:
    rng = np.random.default_rng(RNG_SEED)
    k, n = kernels(dtype), 5
    r, b = view(rng, dtype, n, n), view(rng, dtype, rows, n)
    whole = np.vstack([np.triu(r), b])
    below, around = np.tril(r, -1), outside(b)
    t, work = np.zeros((block, n), dtype, order="F"), np.zeros(block * n, dtype)
    k.tpqrt(r, b, t, work)
    want = scipy.linalg.qr(whole, mode="r")[0][:n]
    assert_close(np.abs(np.triu(r)), np.abs(want))
    assert_close(np.triu(r).conj().T @ np.triu(r), whole.conj().T @ whole)
    assert np.array_equal(np.tril(r, -1), below)
    assert np.array_equal(outside(b), around)

    top, bottom = view(rng, dtype, n, 3), view(rng, dtype, rows, 3)
    was = np.vstack([top, bottom])
    room = np.zeros(3 * block, dtype)
    k.tpmqrt(b, t, top, bottom, room, trans="C")
    # qᴴ maps the matrix to the triangle, and keeps lengths.
    both = np.vstack([top, bottom])
    assert_close(both.conj().T @ both, was.conj().T @ was)
    left, right = whole[:n].copy(order="F"), whole[n:].copy(order="F")
    k.tpmqrt(b, t, left, right, work, trans="C")
    assert_close(np.vstack([left, right]), np.vstack([np.triu(r), np.zeros((rows, n))]))
    k.tpmqrt(b, t, top, bottom, room)
    assert_close(np.vstack([top, bottom]), was)


def test_operands_of_qr_that_do_not_fit_are_refused() -> None:
    k = kernels("f8")
    a, tau, work = np.ones((4, 3), order="F"), np.ones(3), np.ones(8)
    with pytest.raises(ValueError, match="tau must be a vector of at least 3"):
        k.geqrf(a, tau[:2], work)
    with pytest.raises(ValueError, match="work must be a vector of at least 3"):
        k.geqrf(a, tau, work[:2])
    with pytest.raises(ValueError, match="contiguous"):
        k.geqrf(a, np.ones(6)[::2], work)
    with pytest.raises(ValueError, match="does not fit"):
        k.unmqr(a, tau, np.ones((5, 2), order="F"), work)
    with pytest.raises(ValueError, match="t must be 3 x 3"):
        k.larft(a, tau, np.ones((2, 2), order="F"))
    with pytest.raises(ValueError, match="no 3 x 3"):
        k.herk(a, np.ones((3, 3), order="F"), lower=True)
    r, t = np.ones((3, 3), order="F"), np.ones((2, 3), order="F")
    with pytest.raises(ValueError, match="need an r of 3 x 3"):
        k.tpqrt(a, a, t, work)
    with pytest.raises(ValueError, match="need an r of 3 x 3"):
        k.tpqrt(r, a, np.ones((4, 3), order="F"), np.ones(12))
    with pytest.raises(ValueError, match="work must be a vector of at least 6"):
        k.tpqrt(r, a, t, work[:5])
    with pytest.raises(ValueError, match="need an a of 3 x 3"):
        k.tpmqrt(a, t, a, a, work)
    with pytest.raises(ValueError, match="N or C"):
        k.tpmqrt(a, t, r, a, work, trans="T")
