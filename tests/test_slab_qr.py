"""QR by slabs of columns against SciPy, closed forms and LAPACK's test ratios."""

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
import zarr
from linpack import Matrix, on_disk, one_thread, unit_roundoff
from qr_factors import assert_factors, packed, q_and_r
from tall import tall
from test_lu import edges_of, factor_file_bytes

import outcore as oc
from outcore._core import Arena
from outcore.errors import BudgetError, ClosedError, ConsumedError
from outcore.linalg import QRFactor, open_factor, qr_factor
from outcore.linalg._geometry.factor_plan import DTYPES
from outcore.linalg._slab_qr.plan import SlabQrGeometry, slab_qr_geometry
from outcore.storage.volumes import bytes_on_disk

__all__ = ["one_thread"]  # a fixture for every test here

TINY = 400_000
SHAPES = [(500, 260), (380, 380), (170, 760)]


def factor(path: Path, a: Matrix, memory: int = TINY, **options: Any) -> QRFactor:
    return qr_factor(on_disk(path, a), memory=memory, progress=False, **options)


def assert_like_lapack(a: Matrix, qr: QRFactor) -> None:
    """Check LAPACK's ratios, and |diag R|, which is unique for a matrix of full rank."""
    R = scipy.linalg.qr(a, mode="r")[0]
    want = np.abs(np.diagonal(R))
    have = np.abs(np.diagonal(packed(qr)))
    tolerance = 1e3 * np.finfo(qr.dtype).eps * np.linalg.cond(a)
    np.testing.assert_allclose(have, want, rtol=tolerance)


def test_the_budgets_here_make_many_slabs() -> None:
    for dtype in DTYPES:
        for shape in SHAPES:
            g = slab_qr_geometry(shape, np.dtype(dtype), TINY)
            assert len(g.slabs()) >= 3
            assert g.tiles >= 2


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_four_types(tmp_path: Path, dtype: str, shape: tuple[int, int]) -> None:
    a = tall(*shape, dtype)
    qr = factor(tmp_path / "Z", a)
    assert_factors(a, qr)
    assert_like_lapack(a, qr)
    assert packed(qr).dtype == qr.tau.dtype == a.dtype
    assert (qr.shape, qr.info) == (shape, 0)
    # For complex types the norm is a lower bound within √2.
    norm1, slack = np.linalg.norm(a, 1), 2**0.5 if a.dtype.kind == "c" else 1
    assert norm1 / slack * (1 - 1e-5) <= qr.norm1 <= norm1 * (1 + 1e-5)
    assert qr.path == tmp_path / "Z.qr"
    assert sorted(p.name for p in qr.path.iterdir()) == ["qr", "tau", "zarr.json"]
    again = open_factor(qr.path)
    assert isinstance(again, QRFactor)
    assert (again.shape, again.dtype, again.tile) == (shape, a.dtype, qr.tile)
    assert (again.norm1, again.info, again.report) == (qr.norm1, 0, None)
    np.testing.assert_array_equal(again.tau, qr.tau)


def square(n: int, dtype: np.dtype[Any], memory: int) -> SlabQrGeometry:
    return slab_qr_geometry((n, n), dtype, memory)


def taller(n: int, dtype: np.dtype[Any], memory: int) -> SlabQrGeometry:
    return slab_qr_geometry((n + 90, n), dtype, memory)


def wider(m: int, dtype: np.dtype[Any], memory: int) -> SlabQrGeometry:
    return slab_qr_geometry((m, m + 70), dtype, memory)


@pytest.mark.parametrize(
    ("cut", "rows", "columns"), [(square, 0, 0), (taller, 90, 0), (wider, 0, 70)]
)
def test_sizes_one_off_each_boundary(tmp_path: Path, cut: Any, rows: int, columns: int) -> None:
    memory = 240_000
    for n in [1, 2, 3, *edges_of(cut, 130, memory)]:
        a = tall(n + rows, n + columns, "f8", n)
        qr = qr_factor(on_disk(tmp_path / f"Z{n}", a), memory=memory, progress=False)
        assert_factors(a, qr)
        assert_like_lapack(a, qr)


def test_a_single_row_and_a_single_column(tmp_path: Path) -> None:
    for number, shape in enumerate([(1, 300), (300, 1), (1, 1)]):
        for dtype in ("f4", "c16"):
            a = tall(*shape, dtype)
            assert_factors(a, factor(tmp_path / f"{number}{dtype}", a))


def test_a_reflection_is_its_own_factorization(tmp_path: Path) -> None:
    """I - 2 v vᵀ has orthonormal columns: R is diagonal, with ±1."""
    n = 900
    v = np.sin(np.arange(n) + 1.0)
    v /= np.linalg.norm(v)

    def element(rows: slice, cols: slice) -> Matrix:
        i, j = np.arange(rows.start, rows.stop)[:, None], np.arange(cols.start, cols.stop)
        return (i == j) - 2 * v[rows, None] * v[cols]

    A = oc.create_array(tmp_path / "Z", (n, n), "f8", order="F", fill=element, progress=False)
    qr = qr_factor(A, memory="1 MiB", progress=False)
    assert qr.report is not None
    assert n * n * 8 > 6 * qr.report.peak_memory_bytes
    R = np.triu(packed(qr))
    np.testing.assert_allclose(np.abs(R), np.eye(n), rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", ["f8", "c8"])
def test_matrices_that_are_hard(tmp_path: Path, dtype: str) -> None:
    """Graded, low-rank, Kahan's and zero matrices: the ratios hold whatever the condition of A."""
    m, n = 300, 200
    a = tall(m, n, dtype)
    grades = 10.0 ** np.linspace(0, -30, n)
    sine, cosine = np.sin(1.2), np.cos(1.2)
    kahan = np.diag(sine ** np.arange(n)) @ (np.eye(n) - cosine * np.triu(np.ones((n, n)), 1))
    repeated = a.copy()
    repeated[:, 100:] = a[:, :100]
    early = a.copy()
    early[:, [0, 17, 150]] = 0
    cases = {
        "columns": a * grades,
        "rows": a * np.linspace(0, 20, m)[:, None] ** 9,
        "rank": a[:, :7] @ tall(7, n, dtype),
        "repeated": repeated,
        "kahan": kahan,
        "hilbert": scipy.linalg.hilbert(n),
        "zeros": np.zeros((m, n)),
        "some": early,
        "ones": np.ones((m, n)),
        "unit": np.eye(m, n),
        "tiny": a * np.finfo(dtype).tiny * 1e3,
        "large": a * 1e-3 * np.finfo(dtype).max ** 0.9,
    }
    for name, given in cases.items():
        b = given.astype(dtype)
        qr = factor(tmp_path / name, b)
        scaled = b / np.abs(b).max() if b.any() else b
        # In the type of the matrix, products of tiny or large numbers would underflow or overflow.
        Q, R = q_and_r(qr)
        R = R / np.abs(b).max() if b.any() else R
        eps, rows = unit_roundoff(dtype), len(b)
        wide = scaled.astype(Q.dtype)
        error = np.linalg.norm(R - Q.conj().T @ wide, 1) / max(np.linalg.norm(wide, 1), 1e-300)
        assert error < 30 * rows * eps, name
        lost = np.linalg.norm(np.eye(Q.shape[1]) - Q.conj().T @ Q, 1)
        assert lost < 30 * rows * eps, name


def test_exact_zeros_of_the_diagonal_are_told(tmp_path: Path) -> None:
    a = tall(300, 200, "f8")
    a[:, [77, 150]] = 0
    qr = factor(tmp_path / "Z", a)
    assert qr.info == 78
    assert qr.report is not None
    assert qr.report.notes == ["exactly singular: diagonal number 78 of R is zero"]
    assert open_factor(qr.path).info == 78  # type: ignore[union-attr]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(512, 256), (256, 512), (511, 300)])
def test_moves_what_was_planned(tmp_path: Path, dtype: str, shape: tuple[int, int]) -> None:
    g = slab_qr_geometry(shape, np.dtype(dtype), TINY)
    A = on_disk(tmp_path / "Z", tall(*shape, dtype), chunks=(g.rows, g.columns))
    report = qr_factor(A, memory=TINY, progress=False).report
    assert report is not None
    assert factor_file_bytes(report, "read") == g.factor_bytes_read()
    assert factor_file_bytes(report, "write") == g.factor_bytes_written()
    assert report.bytes_written == report.planned_bytes_written == g.factor_bytes_written()
    assert report.bytes_read == report.planned_bytes_read
    beyond = report.bytes_read - g.matrix_bytes_read() - g.factor_bytes_read()
    assert beyond == 0 if shape[0] % 256 == 0 else 0 <= beyond < 0.05 * A.nbytes
    assert report.words_lower_bound == 2 * shape[0] * shape[1]
    assert g.memory_bytes / 2 < report.peak_memory_bytes <= g.memory_bytes <= TINY
    assert (report.m, report.n, report.notes) == (*shape, [])
    assert report.flops == pytest.approx(flops_of(*shape) * (4 if A.dtype.kind == "c" else 1))


def flops_of(m: int, n: int) -> float:
    long, short = max(m, n), min(m, n)
    return 2 * short**2 * (long - short / 3)


@pytest.mark.parametrize(("dtype", "shape"), [("f4", (103, 90)), ("c16", (60, 140))])
def test_every_budget_from_the_least_on_suffices(
    tmp_path: Path, dtype: str, shape: tuple[int, int]
) -> None:
    """Every accepted budget suffices to the end."""
    a = tall(*shape, dtype)
    A = on_disk(tmp_path / "Z", a, chunks=(31, 17))
    with pytest.raises(BudgetError, match="need") as refused:
        qr_factor(A, memory=10_000, progress=False)
    least = int(str(refused.value).split()[1])
    with pytest.raises(BudgetError, match=f"need {least} "):
        qr_factor(A, memory=least - 1, progress=False)
    for memory in (least, least + 1, *(int(least * f) for f in (1.05, 1.2, 1.3, 1.5, 1.7, 4, 99))):
        qr = qr_factor(A, memory=memory, progress=False, if_exists="overwrite")
        assert qr.report is not None
        assert qr.report.peak_memory_bytes <= memory
        assert_factors(a, qr)


@pytest.mark.parametrize(
    ("shape", "dtype"), [((512, 256), "f8"), ((450, 300), "c8"), ((200, 333), "f4")]
)
def test_overwrite_a_gives_the_same_factors(
    tmp_path: Path, shape: tuple[int, int], dtype: str
) -> None:
    g = slab_qr_geometry(shape, np.dtype(dtype), TINY)
    a = tall(*shape, dtype)
    beside = factor(tmp_path / "Y", a)
    A = on_disk(tmp_path / "Z", a, chunks=(g.rows, g.columns))
    qr = qr_factor(A, memory=TINY, overwrite_a=True, progress=False)
    np.testing.assert_array_equal(packed(qr), packed(beside))
    np.testing.assert_array_equal(qr.tau, beside.tau)
    assert qr.places != tuple(range(g.panels))
    assert qr.report is not None
    assert qr.report.peak_memory_bytes <= TINY
    after = bytes_on_disk(tmp_path / "Z") + bytes_on_disk(qr.path)
    assert after < g.factor_bytes_written() * (1 + g.slab_panels / g.panels) + (64 << 10)
    with pytest.raises(ClosedError):
        A[0, 0]
    with pytest.raises(ConsumedError, match=r"Z\.qr"):
        oc.open_array(tmp_path / "Z")


def test_other_zarr_readers_see_what_lapack_gives(tmp_path: Path) -> None:
    """Other readers of Zarr get R and the reflections, which LAPACK's ormqr accepts."""
    a = tall(300, 200, "f8")
    A = on_disk(tmp_path / "Z", a, chunks=(64, 16))
    moved = qr_factor(A, memory=350_000, overwrite_a=True, progress=False)
    for qr in (factor(tmp_path / "Y", a), moved):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            group = zarr.open_group(qr.path, mode="r")
        whole, tau = np.asfortranarray(group["qr"][...]), group["tau"][...]
        b, _, info = scipy.linalg.lapack.dormqr("L", "T", whole, tau, np.asfortranarray(a), 20_000)
        assert info == 0
        np.testing.assert_allclose(b[:200], np.triu(whole[:200]), rtol=0, atol=1e-12)
        np.testing.assert_allclose(b[200:], 0, rtol=0, atol=1e-12)


def test_padding_is_zeros(tmp_path: Path) -> None:
    """Padding of tiles is zero, without old contents of memory."""
    for name, (m, n) in {"tall": (333, 210), "wide": (133, 210)}.items():
        qr = factor(tmp_path / name, tall(m, n, "f8"))
        rows, columns = (-(-n // size) * size for n, size in zip((m, n), qr.tile, strict=True))
        whole = np.full((rows, columns), np.nan, order="F")
        qr.open_tiles(Arena(1 << 20)).submit_read([0, 0], [1, 1], whole).wait()
        assert rows > m
        assert columns > n
        assert not whole[m:].any()
        assert not whole[:, n:].any()
        assert whole[:m, :n].all()


def test_factors_are_replaced_when_asked(tmp_path: Path) -> None:
    a, b = tall(200, 150, "f8", 1), tall(120, 130, "f4", 2)
    factor(tmp_path / "Y", a, out=tmp_path / "F")
    qr = factor(tmp_path / "Z", b, out=tmp_path / "F", if_exists="overwrite")
    assert (qr.shape, qr.dtype) == ((120, 130), np.float32)
    assert_factors(b, qr)
