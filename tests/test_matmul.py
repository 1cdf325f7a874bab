"""Products of matrices in memory and on disk, against NumPy and against closed forms."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from chosen_cases import examples
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from linpack import one_thread as one_thread
from operands import op
from reported import reported
from strategies import CHUNK_ORDERS

import outcore as oc
from outcore.linalg._products.matmul import matmul
from outcore.linalg._products.matmul_geometry import Product
from outcore.linalg._products.matmul_plan import matmul_geometry
from outcore.linalg._tiles.grains import Grains
from outcore.report.report import Report

DTYPES = ("float32", "float64", "complex64", "complex128")
PAGE = 4096
Matrix = np.ndarray[Any, np.dtype[Any]]


def random(shape: tuple[int, ...], dtype: Any = "f8", seed: int = 0) -> Matrix:
    draw = np.random.default_rng(seed)
    values = draw.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        values = values + 1j * draw.standard_normal(shape)
    return values.astype(dtype)


def stored(path: Path, a: Matrix, **layout: Any) -> oc.Array:
    layout = {"chunks": (64,) * a.ndim, "order": "F"} | layout
    array = oc.create_array(path, a.shape, a.dtype, if_exists="overwrite", **layout)
    array[...] = a
    return array


def assert_product(got: Any, a: Matrix, b: Matrix) -> None:
    """Check each element within the bound of the rounding errors of its sum (Higham 2002, 3.5)."""
    wide = np.result_type(a.dtype, np.float64)
    want = a.astype(wide) @ b.astype(wide)
    k = a.shape[-1]
    bound = 4 * (k + 2) * np.finfo(a.dtype).eps * (np.abs(a).astype("f8") @ np.abs(b).astype("f8"))
    if isinstance(got, oc.Array):
        got = oc.open_array(got.path)  # opening it would fail if it were marked incomplete
    whole = got[...]
    assert whole.dtype == a.dtype
    assert whole.shape == want.shape
    assert (np.abs(whole - want) <= bound + np.finfo(a.dtype).tiny).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("trans_a", "trans_b"), list(itertools.product("NTC", "NTC")))
def test_as_numpy(tmp_path: Path, dtype: str, trans_a: Any, trans_b: Any) -> None:
    """Out of core in both directions; the chunk orders alternate between the types."""
    m, n, k = 150, 130, 170
    a, b = random((m, k), dtype), random((k, n), dtype, 1)
    inverse = {"N": lambda x: x, "T": lambda x: x.T, "C": lambda x: x.conj().T}
    orders = ["CC", "FF"] if dtype in ("float32", "complex128") else ["CF", "FC"]
    for number, (order_a, order_b) in enumerate(orders):
        A = stored(tmp_path / "A", inverse[trans_a](a), order=order_a, chunks=(32, 64))
        B = stored(tmp_path / "B", inverse[trans_b](b), order=order_b, chunks=(64, 32))
        memory = 100_000 + 18 * 2048 * a.itemsize
        out = None if trans_a == trans_b and number else tmp_path / "C"
        C, report = reported(
            matmul, A, B, trans_a=trans_a, trans_b=trans_b, out=out, if_exists="overwrite",
            memory=memory, progress=False,
        )  # fmt: skip
        assert_product(C, a, b)
        assert isinstance(C, np.ndarray if out is None else oc.Array)
        assert report.peak_memory_bytes <= memory
        assert report.flops == (8 if a.dtype.kind == "c" else 2) * m * n * k


@pytest.mark.parametrize("kind_a", ["disk", "path", "C", "F", "strided", "reversed", "list"])
@pytest.mark.parametrize("kind_b", ["disk", "F", "C", "f4"])
@pytest.mark.parametrize("out", [False, True])
def test_operands_in_memory_and_on_disk(
    tmp_path: Path, kind_a: str, kind_b: str, out: bool
) -> None:
    a, b = random((90, 70)), random((70, 110), seed=1)

    def as_kind(kind: str, x: Matrix, name: str) -> Any:
        if kind in ("disk", "path"):
            array = stored(tmp_path / name, x, chunks=(32, 16))
            return array if kind == "disk" else tmp_path / name
        if kind == "strided":
            wide = np.zeros((2 * x.shape[0], 3 * x.shape[1]))
            wide[::2, ::3] = x
            return wide[::2, ::3]
        if kind == "reversed":
            return x[::-1, ::-1].copy()[::-1, ::-1]
        if kind == "list":
            return x.tolist()
        return x.astype("f4") if kind == "f4" else np.array(x, order=kind)

    if kind_b == "f4":
        b = b.astype("f4").astype("f8")
    A, B = as_kind(kind_a, a, "A"), as_kind(kind_b, b, "B")
    for trans in ("N", "T"):
        one, two = (A, B) if trans == "N" else (B, A)
        C, report = reported(
            matmul, one, two, trans_a=trans, trans_b=trans, memory=400_000, progress=False,
            out=tmp_path / trans if out else None,
        )  # fmt: skip
        left, right = (a, b) if trans == "N" else (b.T, a.T)
        assert_product(C, left, right)
        assert (C.__class__ is oc.Array) is out
        assert report.peak_memory_bytes <= 400_000


@pytest.mark.parametrize("n", [63, 64, 65, 127, 128, 129, 191, 193])
@pytest.mark.parametrize("order", ["C", "F"])
def test_sizes_one_off_each_boundary(tmp_path: Path, n: int, order: str) -> None:
    """Chunks, grains, pieces, slabs and blocks all end at multiples of 64 or less."""
    for m, k in ((n, 128), (128, n), (n, n)):
        a, b = random((m, k)), random((k, n), seed=1)
        A = stored(tmp_path / "A", a, order=order)
        B = stored(tmp_path / "B", b, order=order)
        C, report = reported(
            matmul, A, B, out=tmp_path / "C", if_exists="overwrite", memory=330_000, progress=False
        )
        assert_product(C, a, b)
        assert report.bytes_read == report.planned_bytes_read
        assert report.bytes_written == report.planned_bytes_written


@examples(60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.data(),
    sizes=st.tuples(*[st.integers(1, 40)] * 3),
    letters=st.tuples(st.sampled_from("NTC"), st.sampled_from("NTC")),
    dtype=st.sampled_from(DTYPES),
    out=st.booleans(),
)
def test_any_shape_and_layout(
    tmp_path: Path, data: st.DataObject, sizes: Any, letters: Any, dtype: str, out: bool
) -> None:
    m, n, k = sizes
    a, b = random((m, k), dtype), random((k, n), dtype, 1)
    arrays = {}
    for name, x, letter in (("A", a, letters[0]), ("B", b, letters[1])):
        x = op(x, letter)
        arrays[name] = x
        if data.draw(st.integers(0, 3), label=f"{name} on disk"):
            arrays[name] = stored(
                tmp_path / name, x,
                chunks=data.draw(st.tuples(*[st.integers(1, 30)] * 2), label=f"chunks of {name}"),
                order=data.draw(st.sampled_from("CF"), label=f"order of {name}"),
                chunk_order=data.draw(st.sampled_from(CHUNK_ORDERS), label=f"chunks of {name}"),
            )  # fmt: skip
    C, report = reported(
        matmul, arrays["A"], arrays["B"], trans_a=letters[0], trans_b=letters[1],
        out=tmp_path / "C" if out else None, if_exists="overwrite",
        memory=data.draw(st.integers(250_000, 500_000), label="memory"), progress=False,
    )  # fmt: skip
    assert_product(C, a, b)
    assert report.peak_memory_bytes <= report.memory_bytes


@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize("where", ["memory", "disk"])
@pytest.mark.parametrize("out", [False, True])
def test_vectors_as_in_numpy(tmp_path: Path, dtype: str, where: str, out: bool) -> None:
    """A vector is a row on the left and a column on the right, and its dimension is dropped."""
    a, x, y = random((90, 120), dtype), random((120,), dtype, 1), random((90,), dtype, 2)
    A: Any = stored(tmp_path / "A", a, chunks=(32, 16))
    X, Y = (x, y) if where == "memory" else (
        stored(tmp_path / "x", x, chunks=(50,)), stored(tmp_path / "y", y, chunks=(50,)),
    )  # fmt: skip
    for number, (one, two, left, right, options) in enumerate(
        [
            (A, X, a, x, {}),
            (A, X, a, x, {"trans_b": "T"}),
            (A, Y, a.conj().T, y, {"trans_a": "C"}),
            (Y, A, y, a, {}),
            (X, A, x, a.T, {"trans_a": "T", "trans_b": "T"}),
        ]
    ):
        target = tmp_path / f"C{number}" if out else None
        C = matmul(one, two, memory=300_000, out=target, progress=False, **options)
        assert_product(C, left, right)
    if not out:
        dot = matmul(X, X, memory=300_000, progress=False)
        assert np.isscalar(dot)
        assert dot == pytest.approx(x @ x, rel=1e-4)
    with pytest.raises(oc.OutcoreError, match=r"shape \(\) .* cannot be on disk"):
        matmul(X, X, memory=300_000, out=tmp_path / "dot", progress=False)


def test_matrices_of_one_row_or_column(tmp_path: Path) -> None:
    a, b = random((1, 300)), random((300, 1), seed=1)
    A, B = stored(tmp_path / "A", a), stored(tmp_path / "B", b)
    for one, two, left, right in ((A, B, a, b), (B, A, b, a)):
        for out in (None, tmp_path / "C"):
            C = matmul(one, two, memory=700_000, out=out, if_exists="overwrite", progress=False)
            assert_product(C, left, right)


def test_nothing_to_multiply() -> None:
    assert matmul(np.ones((3, 0)), np.ones((0, 4))).tolist() == [[0.0] * 4] * 3
    assert matmul(np.ones((0, 3)), np.ones((3, 4))).shape == (0, 4)
    assert matmul(np.ones(0), np.ones(0)) == 0


def test_alpha_is_a_factor(tmp_path: Path) -> None:
    a, b = random((70, 50), "c16"), random((50, 60), "c16", 1)
    A = stored(tmp_path / "A", a)
    C = matmul(A, b, alpha=2 - 3j, memory=300_000, progress=False)
    np.testing.assert_allclose(C, (2 - 3j) * (a @ b), rtol=0, atol=1e-12)
    with pytest.raises(oc.OutcoreError, match="alpha must be real"):
        matmul(np.ones((2, 2)), np.ones((2, 2)), alpha=1j)
    wrong: Any
    for wrong in ("x", "1", None, [2]):
        with pytest.raises(oc.errors.InvalidError, match="alpha must be a number"):
            matmul(np.ones((2, 2)), np.ones((2, 2)), alpha=wrong)


# Products larger than the budget with known results.


def test_the_fourier_matrix_times_its_conjugate_is_n(tmp_path: Path) -> None:
    n = 512

    def fourier(rows: slice, cols: slice) -> Matrix:
        exponent = np.outer(np.arange(rows.start, rows.stop), np.arange(cols.start, cols.stop))
        return np.exp(-2j * np.pi * (exponent % n) / n)

    F = oc.create_array(
        tmp_path / "F", (n, n), "c16", chunks=(64, 64), order="F", fill=fourier, progress=False
    )
    C, report = reported(
        matmul, F, F, trans_b="C", out=tmp_path / "C", memory=F.nbytes // 8, progress=False
    )
    assert np.abs(C[...] - n * np.eye(n)).max() < 1e-14 * n * n
    assert report.words_lower_bound is not None
    assert report.words_moved() / report.words_lower_bound < 2.2


def test_a_hadamard_matrix_exactly(tmp_path: Path) -> None:
    """Sylvester's matrices: H Hᵀ = n I, in integers."""
    n = 1024

    whole = scipy.linalg.hadamard(n)

    def hadamard(rows: slice, cols: slice) -> Matrix:
        return whole[rows, cols].astype("f4")

    H = oc.create_array(
        tmp_path / "H", (n, n), "f4", chunks=(64, 128), fill=hadamard, progress=False
    )
    C = matmul(H, H, trans_b="T", out=tmp_path / "C", memory=H.nbytes // 8, progress=False)
    assert (C[...] == n * np.eye(n)).all()


def test_circulants_exactly(tmp_path: Path) -> None:
    """The product of two circulants is the circulant of the cyclic convolution of their columns."""
    n = 700
    a, b = np.random.default_rng(3).integers(-9, 10, (2, n)).astype("f8")

    def circulant(column: Matrix) -> Any:
        return lambda rows, cols: column[
            (np.arange(rows.start, rows.stop)[:, None] - np.arange(cols.start, cols.stop)) % n
        ]

    A, B = (
        oc.create_array(
            tmp_path / name, (n, n), chunks=(96, 80), order="F", fill=circulant(column),
            progress=False,
        )
        for name, column in (("A", a), ("B", b))
    )  # fmt: skip
    C = matmul(A, B, out=tmp_path / "C", memory=A.nbytes // 6, progress=False)
    both = np.rint(np.fft.irfft(np.fft.rfft(a) * np.fft.rfft(b), n))
    assert (C[...] == circulant(both)(slice(0, n), slice(0, n))).all()


def test_what_is_not_finite_goes_through_as_in_numpy(tmp_path: Path) -> None:
    a, b = random((100, 120)), random((120, 90), seed=1)
    a[3, 4], a[50, 119], b[0, 7], b[60, 60] = np.nan, np.inf, -np.inf, np.nan
    A, B = stored(tmp_path / "A", a, chunks=(16, 32)), stored(tmp_path / "B", b)
    C = matmul(A, B, out=tmp_path / "C", memory=300_000, progress=False)
    with np.errstate(invalid="ignore"):
        want = a @ b
    np.testing.assert_array_equal(np.isnan(C[...]), np.isnan(want))
    np.testing.assert_array_equal(np.isposinf(C[...]), np.isposinf(want))
    finite = np.isfinite(want)
    np.testing.assert_allclose(C[...][finite], want[finite], atol=1e-12)


# Bytes and memory.


def page_chunks(itemsize: int) -> list[tuple[int, int]]:
    side = {4: 64, 8: 32, 16: 16}[itemsize]
    return [(side, 4 * side), (16 * side, 16)]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("shape", [(256, 192, 256), (500, 60, 333), (60, 500, 133), (300, 300, 9)])
def test_bytes_are_as_planned(tmp_path: Path, dtype: str, order: str, shape: Any) -> None:
    m, n, k = shape
    a, b = random((m, k), dtype), random((k, n), dtype, 1)
    for chunks in page_chunks(a.itemsize):
        A = stored(tmp_path / "A", a, chunks=chunks, order=order)
        B = stored(tmp_path / "B", b, chunks=chunks, order=order)
        for out, memory in itertools.product((None, tmp_path / "C"), (700_000, 5_000_000)):
            C, report = reported(
                matmul, A, B, out=out, if_exists="overwrite", memory=memory, progress=False
            )
            assert_product(C, a, b)
            assert report.bytes_read == report.planned_bytes_read
            assert report.bytes_written == report.planned_bytes_written
            assert report.peak_memory_bytes <= memory


@pytest.mark.parametrize(("trans_b", "axis"), [("N", 1), ("T", 0)])
def test_blocks_that_are_final_with_their_last_piece(
    tmp_path: Path, trans_b: Any, axis: int
) -> None:
    """Pieces as long as blocks of C, which are written in parts along the other axis."""
    n, memory = 512, 512 * 512 * 16 // 4
    a, b = random((n, n), "c16", 1), random((n, n), "c16", 2)
    chunks = (256, 8) if trans_b == "N" else (64, 16)
    A = stored(tmp_path / "a", a, chunks=chunks)
    B = stored(tmp_path / "b", b, chunks=chunks)
    g = Grains.of(chunks, "F", 16)
    right = g if trans_b == "N" else g.transposed()
    cut = matmul_geometry(Product(n, n, n, a.dtype, g, right, (n, n), True), memory)
    assert cut.is_one_piece
    assert cut.final_axis == axis
    block = next(cut.blocks())
    assert len(cut.parts(block, block[1 - axis])) > 1
    C, report = reported(matmul, A, B, trans_b=trans_b, memory=memory, out=tmp_path / "c")
    assert_product(C[...], a, op(b, trans_b))
    assert report.bytes_read == cut.bytes_read()
    assert report.bytes_written == cut.bytes_written()


def test_each_operand_is_read_once_if_the_result_is_in_memory(tmp_path: Path) -> None:
    a, b = random((512, 384)), random((384, 640), seed=1)
    A, B = stored(tmp_path / "A", a), stored(tmp_path / "B", b)
    _, report = reported(matmul, A, B, memory=1_500_000, progress=False)
    assert report.bytes_read == A.nbytes + B.nbytes
    assert report.bytes_written == 0
    # The call reads a slab that serves all blocks once: here the whole of B.
    C, report = reported(matmul, A, B[:, :64], memory=450_000, out=tmp_path / "C", progress=False)
    assert report.bytes_read == A.nbytes
    assert report.bytes_written == C.nbytes


def test_a_narrow_operand_on_disk_is_read_once(tmp_path: Path) -> None:
    """All blocks of C need the same slab."""
    a, b = random((2048, 64)), random((64, 192), seed=1)
    A, B = stored(tmp_path / "A", a), stored(tmp_path / "B", b)
    C, report = reported(matmul, A, B, memory=1_000_000, out=tmp_path / "C", progress=False)
    assert_product(C, a, b)
    assert C.nbytes > 1_000_000
    assert report.bytes_read == A.nbytes + B.nbytes


@pytest.mark.parametrize("dtype", ["f4", "f8", "c8", "c16"])
@pytest.mark.parametrize("options", [{}, {"trans_a": "T"}, {"trans_a": "T", "trans_b": "T"}])
def test_the_plan_is_what_the_run_does(tmp_path: Path, dtype: str, options: Any) -> None:
    m, n, k = 700, 600, 800
    a, b = random((m, k), dtype), random((k, n), dtype, 1)
    given = [op(x, options.get(name, "N")) for x, name in ((a, "trans_a"), (b, "trans_b"))]
    A, B = (stored(tmp_path / name, x, chunks=None) for name, x in zip("AB", given, strict=True))
    memory = 14 << 20
    planned = oc.plan("matmul", m=m, n=n, k=k, dtype=dtype, memory=memory, path=tmp_path, **options)
    C, report = reported(matmul, A, B, out=tmp_path / "C", memory=memory, progress=False, **options)
    assert_product(C, a, b)
    assert report.bytes_read == planned.bytes_read
    assert report.bytes_written == planned.bytes_written
    assert report.flops == planned.flops
    assert report.method == planned.method
    assert report.words_lower_bound == planned.words_lower_bound
    assert report.peak_memory_bytes <= planned.peak_memory_bytes <= memory
    assert planned.disk_bytes == sum(p.stat().st_size for p in C.path.glob("c/*/*"))


@pytest.mark.parametrize("order", ["C", "F"])
def test_the_plan_counts_the_memory_that_is_taken(tmp_path: Path, order: str) -> None:
    """The plan counts all memory but bounce buffers, and every transfer here is aligned."""
    n = 1024
    layout = {"chunks": (512, 512), "order": order}
    A = stored(tmp_path / "A", random((n, n)), **layout)
    B = stored(tmp_path / "B", random((n, n), seed=1), **layout)
    grains = Grains.of((512, 512), order, 8)
    product = Product(n, n, n, A.dtype, grains, grains, (n, n), is_stored=True)
    for memory in (A.nbytes // 2, A.nbytes):
        g = matmul_geometry(product, memory)
        C, report = reported(
            matmul, A, B, out=tmp_path / "C", if_exists="overwrite", memory=memory, progress=False
        )
        assert_product(C, A[...], B[...])
        assert report.method == g.method
        bounce_bytes = sum(g.bounce_bytes(name) for name in "ABC")
        assert report.peak_memory_bytes == g.memory_bytes - bounce_bytes
        assert g.bounce_bytes("A") == g.bounce_bytes("B") == 4 * PAGE
        assert g.memory_bytes <= memory


def test_chunks_of_the_operands_need_not_meet(tmp_path: Path) -> None:
    """Pieces may reach into the next slab; the call then holds both."""
    a, b = random((200, 500)), random((500, 180), seed=1)
    for chunks_a, chunks_b in (((64, 48), (80, 64)), ((32, 256), (96, 32)), ((64, 100), (64, 64))):
        for order in "CF":
            A = stored(tmp_path / "A", a, chunks=chunks_a, order=order)
            B = stored(tmp_path / "B", b, chunks=chunks_b, order=order)
            C = matmul(
                A, B, out=tmp_path / "C", if_exists="overwrite", memory=700_000, progress=False
            )
            assert_product(C, a, b)


def test_words_follow_the_model() -> None:
    """Blocks of p x q move (p + q + 1) n² words, not far above 2n³/√M + n²."""
    n = 16384
    for order, most in (("N", 10.0), ("T", 9.0)):
        planned = oc.plan("matmul", n=n, memory=n * n, trans_b=order)
        words = (planned.bytes_read + planned.bytes_written) / 8 / n**2
        p, q = (int(x) for x in planned.method.split(" blocks")[0].split(" x "))
        assert words == p + q + 1 <= most
        assert planned.words_lower_bound == pytest.approx(n**2 * (2 * 8**0.5 + 1))


def test_every_budget_from_the_least_on_suffices(tmp_path: Path) -> None:
    a, b = random((200, 130)), random((130, 170), seed=1)
    for order, chunks in (("F", (64, 64)), ("C", (50, 70))):
        A = stored(tmp_path / "A", a, order=order, chunks=chunks)
        B = stored(tmp_path / "B", b, order=order, chunks=chunks)
        for out in (None, tmp_path / "C"):
            with pytest.raises(oc.OutcoreError, match="need") as refused:
                matmul(A, B, memory=1000, out=out, progress=False)
            assert refused.value.kind == "budget"
            least = int(str(refused.value).split()[1])
            with pytest.raises(oc.OutcoreError, match=f"need {least} "):
                matmul(A, B, memory=least - 1, out=out, progress=False)
            assert not (tmp_path / "C").exists()
            for memory in (least, least + PAGE, least + 17 * PAGE, 3 * least):
                C, report = reported(
                    matmul, A, B, memory=memory, out=out, if_exists="overwrite", progress=False
                )
                assert_product(C, a, b)
                assert report.peak_memory_bytes <= memory
            if out:
                C.close()
                shutil.rmtree(out)


def test_the_report_prints(tmp_path: Path) -> None:
    A = stored(tmp_path / "A", random((100, 100)))
    _, report = reported(matmul, A, A, memory=400_000, progress=False)
    assert isinstance(report, Report)
    text = str(report)
    assert "matmul, m = 100, n = 100, float64" in text
    assert "as planned" in text
