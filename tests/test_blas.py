"""The BLAS and LAPACK calls, and tests of matrices in memory, against NumPy's and SciPy's."""

import threading
import time
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from operands import DTYPES, TRANS, assert_close, op, outside, random, tolerance, view

from outcore._core import add_sums, column_extremes, swap_rows
from outcore.blas import lapack
from outcore.errors import InvalidError


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("trans_a", TRANS)
@pytest.mark.parametrize("trans_b", TRANS)
def test_gemm(dtype: Any, trans_a: Any, trans_b: Any) -> None:
    rng = np.random.default_rng(1)
    m, n, k = 37, 29, 23
    a = view(rng, dtype, *((m, k) if trans_a == "N" else (k, m)))
    b = view(rng, dtype, *((k, n) if trans_b == "N" else (n, k)))
    c = view(rng, dtype, m, n)
    alpha, beta = (-0.5, 2.0) if c.dtype.kind == "f" else (-0.5 + 1j, 2 - 0.25j)
    product = op(a, trans_a) @ op(b, trans_b)
    want, around = alpha * product + beta * c, outside(c)
    lapack.kernels(dtype).gemm(a, b, c, alpha, beta, trans_a, trans_b)
    assert_close(c, want)
    np.testing.assert_array_equal(outside(c), around)
    want = c - product
    lapack.kernels(dtype).gemm(a, b, c, -1, 1, trans_a, trans_b)
    assert_close(c, want)
    c[:] = np.nan
    lapack.kernels(dtype).gemm(a, b, c, beta=0, trans_a=trans_a, trans_b=trans_b)
    assert_close(c, product)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gemm_of_single_rows_and_columns(dtype: Any) -> None:
    rng = np.random.default_rng(2)
    gemm = lapack.kernels(dtype).gemm
    rows = np.ascontiguousarray(random(rng, dtype, 6, 9))
    column, row = view(rng, dtype, 9, 1), rows[3:4]
    c = np.zeros((1, 1), dtype)
    gemm(row, column, c)
    assert_close(c, row @ column)
    outer = np.zeros((9, 9), dtype, order="F")
    gemm(column, row, outer)
    assert_close(outer, column @ row)
    # a row of a column-major array: its elements are a column's length apart
    across = random(rng, dtype, 4, 9)[2:3]
    gemm(across, column, c, beta=0)
    assert_close(c, across @ column)
    # a column of a row-major array is not a column-major view
    with pytest.raises(ValueError, match="column-major"):
        gemm(row[:, :6], rows[:, 2:3], c)


@pytest.mark.parametrize("dtype", DTYPES)
def test_operands_without_elements(dtype: Any) -> None:
    k = lapack.kernels(dtype)

    def full(m: int, n: int) -> np.ndarray:
        return np.full((m, n), 3, dtype, order="F")

    order: Any
    for order in "CF":
        c = full(3, 4)
        k.gemm(np.empty((3, 0), dtype, order), np.empty((0, 4), dtype, order), c)
        np.testing.assert_array_equal(c, 3)
        # an empty product is zero, and beta still counts
        k.gemm(np.empty((3, 0), dtype, order), np.empty((0, 4), dtype, order), c, beta=2)
        np.testing.assert_array_equal(c, 6)
        k.gemm(np.empty((0, 2), dtype, order), full(2, 4), np.empty((0, 4), dtype, order))
        k.trsm(
            np.empty((0, 0), dtype),
            np.empty((0, 4), dtype, order),
            lower=True,
            unit=True,
        )
        k.trsm(full(3, 3), np.empty((3, 0), dtype, order), lower=True, unit=True)
        piv = np.empty(0, np.int32)
        assert k.getrf(np.empty((0, 4), dtype, order), piv) == 0
        assert k.getrf(np.empty((4, 0), dtype, order), piv) == 0
        k.laswp(np.empty((4, 0), dtype, order), np.array([3], np.int32), 0, 1)
        assert k.lange("M", np.empty((0, 4), dtype, order)) == 0
        assert k.lange("I", np.empty((4, 0), dtype, order)) == 0
    k.laswp(full(3, 4), np.empty(0, np.int32), 0, 0)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["L", "R"])
@pytest.mark.parametrize("trans", TRANS)
@pytest.mark.parametrize("lower", [False, True])
@pytest.mark.parametrize("unit", [False, True])
def test_trsm(dtype: Any, side: Any, trans: Any, lower: bool, unit: bool) -> None:
    rng = np.random.default_rng(3)
    m, n = 21, 13
    order = m if side == "L" else n
    t, b = view(rng, dtype, order, order), view(rng, dtype, m, n)
    t *= 1 / order
    if not unit:
        t[np.diag_indices(order)] += 3
    triangle = np.tril(t) if lower else np.triu(t)
    if unit:
        np.fill_diagonal(triangle, 1)
        t[np.diag_indices(order)] = np.nan  # must not be read
    t[np.triu_indices(order, 1) if lower else np.tril_indices(order, -1)] = np.nan
    want, around = 2 * b, outside(b)
    lapack.kernels(dtype).trsm(t, b, side, lower=lower, trans=trans, unit=unit, alpha=2)
    again = op(triangle, trans) @ b if side == "L" else b @ op(triangle, trans)
    assert_close(again, want)
    np.testing.assert_array_equal(outside(b), around)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(40, 40), (60, 17), (17, 60), (1, 9), (9, 1), (200, 130)])
def test_getrf(dtype: Any, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(4)
    a = view(rng, dtype, *shape)
    original, around = a.copy(order="F"), outside(a)
    count = min(shape)
    piv = np.full(count + 2, -7, np.int32)
    assert lapack.kernels(dtype).getrf(a, piv) == 0
    np.testing.assert_array_equal(piv[count:], -7)
    np.testing.assert_array_equal(outside(a), around)
    getrf = scipy.linalg.get_lapack_funcs("getrf", (original,))
    _, want_piv, _ = getrf(original)
    np.testing.assert_array_equal(piv[:count], want_piv)
    lower = np.tril(a[:, :count], -1) + np.eye(shape[0], count, dtype=dtype)
    moved = original.copy(order="F")
    lapack.kernels(dtype).laswp(moved, piv, 0, count)
    assert_close(lower @ np.triu(a[:count]), moved)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("zero", [0, 5, 11])
@pytest.mark.parametrize("shape", [(12, 12), (20, 12), (12, 20)])
def test_getrf_info_of_singular_matrices(dtype: Any, zero: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(5)
    a = view(rng, dtype, *shape)
    a[:, zero] = 0
    getrf = scipy.linalg.get_lapack_funcs("getrf", (a,))
    want, want_piv, want_info = getrf(a)
    piv = np.empty(12, np.int32)
    assert lapack.kernels(dtype).getrf(a, piv) == want_info
    assert want_info == (zero + 1 if shape != (12, 20) or zero != 11 else 12)
    np.testing.assert_array_equal(piv, want_piv)
    assert_close(a, want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_laswp(dtype: Any) -> None:
    rng = np.random.default_rng(6)
    m, n, count = 50, 31, 30
    piv = np.array([rng.integers(i, m) for i in range(count)], np.int32)
    k = lapack.kernels(dtype)
    for first, last in [(0, count), (4, 19), (7, 8), (5, 5)]:
        a = view(rng, dtype, m, n)
        original, around = a.copy(), outside(a)
        want = original.copy()
        for i in range(first, last):
            want[[i, piv[i]]] = want[[piv[i], i]]
        k.laswp(a, piv, first, last)
        np.testing.assert_array_equal(a, want)
        k.laswp(a, piv, first, last, reverse=True)
        np.testing.assert_array_equal(a, original)
        np.testing.assert_array_equal(outside(a), around)
    # pivots at a stride, and rows above their own
    a = view(rng, dtype, m, n)
    want = a.copy()
    want[[3, 1]] = want[[1, 3]]
    spaced = np.zeros(12, np.int32)[::2]
    spaced[3] = 1
    k.laswp(a, spaced, 3, 4)
    np.testing.assert_array_equal(a, want)


def test_laswp_of_a_large_matrix() -> None:
    # Several threads, with prefetched elements.
    rng = np.random.default_rng(7)
    m, n, count = 3000, 301, 700
    a = np.asfortranarray(rng.random((m, n)))
    piv = np.array([rng.integers(i, m) for i in range(count)], np.int32)
    want = a.copy(order="F")
    dlaswp = scipy.linalg.get_lapack_funcs("laswp", (a,))
    want = dlaswp(want, piv)
    lapack.kernels(np.float64).laswp(a, piv, 0, count)
    np.testing.assert_array_equal(a, want)


def test_swaps_of_rows_that_cannot_be() -> None:
    a = np.zeros((4, 3), order="F")
    for row in (4, -1, np.iinfo(np.int32).min):
        with pytest.raises(InvalidError, match="cannot exchange rows"):
            swap_rows(a, np.array([1, row], np.int32), 0, False)
    with pytest.raises(InvalidError, match="cannot exchange rows"):
        swap_rows(a, np.array([1], np.int32), 4, False)
    with pytest.raises(InvalidError, match="column-major"):
        swap_rows(a.T, np.array([1], np.int32), 0, False)
    with pytest.raises(InvalidError, match="need float32"):
        swap_rows(a.astype(np.int64), np.array([1], np.int32), 0, False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(30, 20), (1, 7), (7, 1)])
def test_lange(dtype: Any, shape: tuple[int, int]) -> None:
    a = view(np.random.default_rng(7), dtype, *shape)
    k = lapack.kernels(dtype)
    size = np.abs(a)
    near = pytest.approx
    rel = tolerance(dtype)
    assert k.lange("M", a) == near(size.max(), rel=rel)
    assert k.lange("1", a) == near(size.sum(axis=0).max(), rel=rel)
    assert k.lange("I", a) == near(size.sum(axis=1).max(), rel=rel)
    assert k.lange("F", a) == near(np.sqrt((size**2).sum()), rel=rel)
    a[0, -1] = np.nan
    assert np.isnan(k.lange("M", a))


def test_kernels_are_cached_and_typed() -> None:
    assert lapack.kernels("float64") is lapack.kernels(np.float64)
    assert lapack.kernels(np.float32).dtype == np.float32
    for wrong in (np.int64, np.longdouble, np.float16, ">f8"):
        with pytest.raises(ValueError, match="no BLAS"):
            lapack.kernels(wrong)


def test_operands_that_do_not_fit() -> None:
    k = lapack.kernels(np.float64)
    good = np.zeros((8, 8), order="F")
    bad: dict[str, Any] = {
        "column-major": np.zeros((8, 9))[:, :8],
        "column-major view": good[::2].repeat(2, axis=0)[::-1],
        "dtype": good.astype(np.float32),
        "two dimensions": np.zeros(8),
        "is 7 x 8": np.zeros((7, 8), order="F"),
    }
    for message, a in bad.items():
        with pytest.raises(ValueError, match=message):
            k.gemm(a, good, good.copy(order="F"))
    for x in (
        good[:, ::-1],
        np.broadcast_to(np.zeros((8, 1)), (8, 8)),
        np.lib.stride_tricks.as_strided(good, (8, 7), (8, 32)),
        np.lib.stride_tricks.as_strided(good, (8, 6), (8, 68)),
    ):
        with pytest.raises(ValueError, match="column-major"):
            k.lange("M", x)
    with pytest.raises(ValueError, match="aligned"):
        k.lange("M", np.zeros(8 * 9 + 1, np.uint8)[1:73].view(np.float64).reshape(9, 1))
    with pytest.raises(ValueError, match="dtype"):
        k.lange("M", good.astype(">f8"))
    with pytest.raises(TypeError, match="NumPy array"):
        k.lange("M", [[1.0]])  # type: ignore[arg-type]
    fixed = good.copy(order="F")
    fixed.flags.writeable = False
    with pytest.raises(ValueError, match="writeable"):
        k.gemm(good, good, fixed)
    k.gemm(fixed, fixed, good.copy(order="F"))
    with pytest.raises(ValueError, match="trans_a"):
        k.gemm(good, good, good, trans_a="NT")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="side"):
        k.trsm(good, good, "U", lower=True, unit=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="does not fit"):
        k.trsm(good[:7, :7], good, lower=True, unit=True)
    with pytest.raises(ValueError, match="factor"):
        k.gemm(good, good, good, alpha=1j)


def test_pivots_that_do_not_fit() -> None:
    k = lapack.kernels(np.float64)
    a = np.eye(8, order="F")
    for piv in (
        np.zeros(7, np.int32),
        np.zeros(8, np.int64),
        np.zeros((1, 8), np.int32),
    ):
        with pytest.raises(ValueError, match="vector of at least 8"):
            k.getrf(a, piv)
    with pytest.raises(ValueError, match="contiguous"):
        k.getrf(a, np.zeros(16, np.int32)[::2])
    for row in (-1, 8, 2**31 - 1):
        with pytest.raises(ValueError, match="outside"):
            k.laswp(a, np.array([0, row], np.int32), 0, 2)
    for first, last in ((-1, 2), (3, 2), (0, 9)):
        with pytest.raises(ValueError, match="not within"):
            k.laswp(a, np.zeros(9, np.int32), first, last)
    np.testing.assert_array_equal(a, np.eye(8))


def test_dimensions_beyond_32_bits() -> None:
    # The call reads only shape and strides, never the elements.
    one = np.zeros((1, 1))
    wide = np.lib.stride_tricks.as_strided(one, (1, 2**31), (8, 8))
    long = np.lib.stride_tricks.as_strided(one, (2**31, 1), (8, 8))
    apart = np.lib.stride_tricks.as_strided(one, (1, 2), (8, 8 * 2**31))
    for x in (wide, long, apart):
        with pytest.raises(ValueError, match=r"2\*\*31"):
            lapack.kernels(np.float64).lange("M", x)


def test_other_threads_run_during_a_call() -> None:
    rng = np.random.default_rng(8)
    a = random(rng, np.float64, 1200, 1200)
    c = np.zeros_like(a)
    gemm = lapack.kernels(np.float64).gemm
    running, stamps = threading.Event(), []
    stop = False

    def count() -> None:
        running.set()
        while not stop:
            stamps.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    running.wait()
    try:
        seen = 0
        # A call takes some 20 ms or more; if it held the lock, no stamp would fall inside any of
        # them. On a busy machine the other thread may not run during each of them.
        for _ in range(200):
            if seen >= 5:
                break
            start = time.perf_counter()
            gemm(a, a, c)
            end = time.perf_counter()
            margin = 0.1 * (end - start)
            seen += sum(start + margin < t < end - margin for t in list(stamps))
    finally:
        stop = True
        thread.join()
    assert seen >= 5


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_extremes_of_whole_and_of_padded_matrices(dtype: str) -> None:
    rng = np.random.default_rng(5)
    parts = rng.standard_normal((2, 40, 30))
    a = np.asfortranarray((parts[0] + 1j * parts[1] if dtype[0] == "c" else parts[0]).astype(dtype))
    for part in (a, a[:33], a[3:, 2:], a[:, :1], a[:1], a[:0]):
        sizes = np.abs(part.real) + np.abs(part.imag)
        sums = sizes.sum(axis=0).max(initial=0)
        found = column_extremes(part, False)
        assert found == pytest.approx((sums, sizes.max(initial=0)), rel=1e-6)
    m, n = a.shape
    _, largest = column_extremes(a, True)
    upper = np.triu(np.abs(a.real) + np.abs(a.imag), n - m)
    assert largest == pytest.approx(upper.max(), rel=1e-6)
    for bad in (np.nan, np.inf):
        a[7, 8] = bad
        assert not np.isfinite(column_extremes(a, False)[0])


def test_extremes_of_what_is_no_column_major_matrix_are_refused() -> None:
    a = np.ones((6, 4), order="F")
    for wrong in (np.ascontiguousarray(a), a[::2], a[:, ::-1], a[:, 0], a.astype("i4")):
        with pytest.raises(InvalidError):
            column_extremes(wrong, False)
    with pytest.raises(InvalidError):
        column_extremes(a.T.copy(order="F"), True)


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
def test_sums_of_a_triangle_are_those_of_the_whole_matrix(dtype: str) -> None:
    rng = np.random.default_rng(6)
    parts = rng.standard_normal((2, 50, 50))
    a = np.asfortranarray((parts[0] + 1j * parts[1] if dtype[0] == "c" else parts[0]).astype(dtype))
    sizes = np.abs(np.tril(a).real) + np.abs(np.tril(a).imag)
    whole = sizes + np.tril(sizes, -1).T
    sums = np.zeros(50)
    for first in range(0, 50, 20):
        end = min(first + 20, 50)
        of_columns = np.zeros(end - first)
        middle = 40 if end <= 40 else 50
        add_sums(a[first:middle, first:end], sums[first:middle], of_columns, True)
        add_sums(a[middle:, first:end], sums[middle:], of_columns, False)
        sums[first:end] += of_columns
        np.testing.assert_allclose(sums[:end], whole.sum(axis=0)[:end], rtol=1e-5)


def test_sums_of_what_has_none_are_refused() -> None:
    a = np.ones((6, 4), order="F")
    for wrong in (np.ascontiguousarray(a), a[:, 0], a.astype("i4"), a.T.copy(order="F"), a[1:]):
        with pytest.raises(InvalidError):
            add_sums(wrong, np.zeros(6), np.zeros(4), False)
    with pytest.raises(InvalidError):
        add_sums(a[:3], np.zeros(3), np.zeros(4), True)
    with pytest.raises((InvalidError, TypeError)):
        add_sums(a, np.zeros(12)[::2], np.zeros(4), False)
