"""AᴴA and A Aᴴ against NumPy's products."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from chosen_cases import examples
from hypothesis import given
from hypothesis import strategies as st
from linpack import one_thread
from stopping import interrupt
from tall import DTYPES, RATES, Counting, ragged, tall

import outcore as oc
from outcore.errors import (
    BudgetError,
    ExistsError,
    Interrupted,
    InvalidError,
    NonFiniteError,
)
from outcore.linalg import gram
from outcore.linalg._products import gram_plan
from outcore.linalg._products.gram_plan import GramProblem, gram_geometry, slabs, tiles
from outcore.linalg._rows.plan import RowLayout, RowPlan
from outcore.linalg._tiles.grains import Grains

__all__ = ["one_thread"]  # a fixture for every test here


def product(a: Any, side: str, dtype: Any = None) -> Any:
    wide = a.astype(np.result_type(a.dtype, np.float64))
    return wide.conj().T @ wide if side == "left" else wide @ wide.conj().T


def assert_product(G: Any, a: Any, side: str = "left", scale: float = 1) -> None:
    """Compare with bound m ε ‖A‖² (Higham 2002, section 3.5)."""
    want = product(a, side)
    length = a.shape[0 if side == "left" else 1]
    norm = np.linalg.norm(
        a.astype(np.result_type(a.dtype, np.float64)), axis=0 if side == "left" else 1
    )
    bound = scale * length * np.finfo(G.dtype).eps * np.outer(norm, norm)
    assert (np.abs(G - want) <= bound + 1e-300).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_in_memory(tmp_path: Path, dtype: str, order: str, side: Any) -> None:
    a = tall(900, 40, dtype) if side == "left" else tall(40, 900, dtype)
    chunks = (128, 40) if side == "left" else (40, 128)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=chunks)
    blocks = ragged(a, [1, 70, 0, 300])
    if side == "right":
        blocks = (block.T for block in ragged(a.T, [1, 70, 0, 300]))
    for given_a in (A, A.path, a, blocks):
        G, report = gram(given_a, side=side, memory="800 KiB", progress=False)
        assert G.dtype == a.dtype
        assert_product(G, a, side)
        assert np.array_equal(G, G.conj().T)
        assert (report.m, report.n) == a.shape if side == "left" else a.shape[::-1]
        assert report.bytes_read == report.planned_bytes_read
        assert report.peak_memory_bytes <= 800 << 10


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("triangle", ["both", "lower"])
def test_on_disk_in_one_pass(tmp_path: Path, dtype: str, side: Any, triangle: Any) -> None:
    a = tall(300, 130, dtype) if side == "left" else tall(130, 300, dtype)
    G, report = gram(
        a, side=side, triangle=triangle, out=tmp_path / "G", memory="2 MiB", progress=False
    )
    whole = G[...]
    assert_product(np.tril(whole) + np.tril(whole, -1).conj().T, a, side)
    above = np.tril(whole, -1).conj().T if triangle == "both" else 0
    assert np.array_equal(np.triu(whole, 1), above * np.ones_like(whole))
    assert report.method.startswith("one pass")
    assert report.bytes_written == report.planned_bytes_written
    assert np.array_equal(oc.open_array(tmp_path / "G")[...], whole)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("triangle", ["both", "lower"])
def test_on_disk_in_several_passes(
    tmp_path: Path, dtype: str, order: str, side: Any, triangle: Any
) -> None:
    """The result is at least three times as large as the budget."""
    n = 500
    a = tall(200, n, dtype) if side == "left" else tall(n, 200, dtype)
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(48, 48))
    memory = n * n * a.itemsize // 3
    G, report = gram(
        A, side=side, triangle=triangle, out=tmp_path / "G", memory=memory, progress=False
    )
    assert re.match(r"\d+ (slabs|tiles), a pass for each", report.method)
    whole = G[...]
    assert_product(np.tril(whole) + np.tril(whole, -1).conj().T, a, side)
    if triangle == "both":
        assert np.array_equal(whole, whole.conj().T)
    else:
        assert not np.triu(whole, 1).any()
    assert report.bytes_read == report.planned_bytes_read > A.nbytes
    assert report.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= memory


@examples(40)
@given(st.integers(1, 60), st.integers(1, 400), st.integers(1, 8), st.booleans(), st.data())
def test_parts_cover_the_triangle_once(
    n: int, words: int, unit: int, is_full: bool, data: st.DataObject
) -> None:
    """The boxes of the parts cover every chunk to write once."""
    across = data.draw(st.sampled_from([d for d in range(1, unit + 1) if unit % d == 0]))
    layout = RowLayout(7, n, np.dtype("f8"), True)
    for parts in (slabs(n, words, unit), tiles(n, words, unit)):
        if not parts:
            continue
        rows = RowPlan(layout, 4, layout.dtype, "C", 1)
        g = gram_plan.GramGeometry(n, layout.dtype, rows, (unit, across), parts, 1 << 20)
        assert len(parts) == len(list(parts))
        assert list(parts[1:3]) == list(parts)[1:3]
        assert parts[-1] == list(parts)[-1]
        assert g.part_words <= max(words, unit**2) or g.part_words <= words
        seen = np.zeros((n, n), int)
        chunks = np.zeros((n + unit, n + unit), int)
        for part in parts:
            seen[part.rows, part.columns] += 1
            for _, rows, columns in g.boxes(part, is_full=is_full):
                chunks[rows, columns] += 1
        assert (np.tril(seen) == np.tri(n)).all()
        assert chunks.max() == 1
        assert (chunks[:n, :n] >= (1 if is_full else np.tri(n))).all()
        assert g.bytes_written(is_full=is_full) == chunks.sum() * 8


def test_bytes_are_those_of_the_plan(tmp_path: Path) -> None:
    m, n = 2048, 256
    A = oc.from_array(tall(m, n, "f8"), tmp_path / "A", order="F", chunks=(256, 64))
    report = gram(A, memory="2 MiB", progress=False)[1]
    assert report.bytes_read == A.nbytes, "every byte once"
    A = oc.from_array(tall(m, n, "f8"), tmp_path / "B")
    for side, memory, out, triangle in [
        ("left", "3 MiB", None, "both"),
        ("left", "2 MiB", tmp_path / "G", "lower"),
        ("right", "9 MiB", tmp_path / "H", "both"),
    ]:
        options = {"side": side, "triangle": triangle}
        planned = oc.plan(
            "gram", m=m, n=n, memory=memory, out=out is not None, rates=RATES, **options
        )
        report = gram(A, memory=memory, out=out, progress=False, **options)[1]  # type: ignore[arg-type]
        assert report.bytes_read == planned.bytes_read
        assert report.bytes_written == planned.bytes_written
        # The arena keeps memory of one pass for the next, within the budget.
        assert max(planned.peak_memory_bytes, report.peak_memory_bytes) <= planned.memory_bytes
        assert report.flops == pytest.approx(planned.flops)
        assert report.words_lower_bound == planned.words_lower_bound
        assert report.words_moved() >= (report.words_lower_bound or 0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_no_more_than_blas_counts_at_once(
    tmp_path: Path, side: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["outcore.linalg._products.gram"], "_MOST_ELEMENTS", 5000)
    a, ways = tall(300, 300, "c16"), set()
    for memory in ("4 MiB", "900 KiB", "600 KiB", "300 KiB"):
        G, report = gram(
            oc.from_array(a, tmp_path / "A", chunks=(32, 32), if_exists="overwrite"),
            side=side, memory=memory, out=tmp_path / "G", if_exists="overwrite", progress=False,
        )  # fmt: skip
        assert_product(G[...], a, side)
        ways.add(report.method.split()[1].strip(","))
    assert ways == {"pass", "slabs", "tiles"}


def test_each_row_is_taken_once() -> None:
    rows = Counting(tall(5000, 10, "f8"))
    gram(rows, memory="300 KiB", progress=False)
    assert set(rows.times) == {1}


def test_more_memory_means_fewer_passes() -> None:
    grains = Grains.of((64, 64), "F", 8)
    problem = GramProblem(
        RowLayout(1024, 3072, np.dtype("f8"), False, grains), np.dtype("f8"), True
    )
    cuts = [gram_geometry(problem, memory << 20) for memory in (4, 8, 20, 40, 100)]
    read = [g.bytes_read() for g in cuts]
    assert read == sorted(read, reverse=True)
    assert read[-1] == 1024 * 3072 * 8
    for g in cuts:
        assert g.memory_bytes <= g.budget_bytes
        # Not far from the reads that any order needs.
        assert g.bytes_read() / 8 < 3 * (g.words_lower_bound(is_full=False) or 0)
    assert {g.method.split()[1] for g in cuts[:-1]} == {"tiles,", "slabs,"}


def test_alpha_and_shift(tmp_path: Path) -> None:
    a = tall(200, 60, "c16")
    want = 0.25 * product(a, "left") + 3 * np.eye(60)
    G, _ = gram(a, alpha=0.25, shift=3, progress=False)
    assert np.allclose(G, want)
    G, _ = gram(a, alpha=0.25, shift=3, out=tmp_path / "G", progress=False, memory="1 MiB")
    assert np.allclose(G[...], want)
    # Cholesky accepts the result.
    factor = oc.linalg.cho_factor(G, progress=False)
    x = oc.linalg.cho_solve(factor, np.ones(60), progress=False)
    assert np.allclose(want @ x, 1)


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    a = tall(20, 3, "f8")
    expected = gram(a, alpha=2.0, shift=0.5, progress=False)[0]
    numbers: Any = {"alpha": np.int64(2), "shift": np.float32(0.5)}
    np.testing.assert_array_equal(gram(a, progress=False, **numbers)[0], expected)
    G = gram(a, out=tmp_path / "G", progress=False, **numbers)[0]
    np.testing.assert_array_equal(G[...], expected)


@pytest.mark.parametrize("source", ["disk", "memory", "iterator"])
def test_relationship_matrix_of_genotypes(tmp_path: Path, source: str) -> None:
    """Z Zᵀ / p with columns centred and scaled (VanRaden 2008), from bytes with missing values."""
    draw = np.random.default_rng(0)
    genotypes = draw.binomial(2, 0.3, (30, 500)).astype("i1")
    genotypes[draw.random(genotypes.shape) < 0.02] = -1

    def standardize(block: Any) -> Any:
        assert block.dtype == np.int8
        assert block.shape[0] == 30
        known = np.ma.masked_less(block.astype("f8"), 0)
        frequency = known.mean(axis=0) / 2
        scaled = (known - 2 * frequency) / np.sqrt(2 * frequency * (1 - frequency))
        return scaled.filled(0)

    given_a: Any = genotypes
    if source == "disk":
        given_a = oc.from_array(genotypes, tmp_path / "A", chunks=(30, 64))
    elif source == "iterator":
        given_a = (genotypes[:, i : i + 33] for i in range(0, 500, 33))
    G, report = gram(
        given_a, side="right", transform=standardize, alpha=1 / 500, memory="400 KiB",
        progress=False,
    )  # fmt: skip
    Z = standardize(genotypes)
    assert np.allclose(G, Z @ Z.T / 500)
    assert (report.m, report.n) == (30, 500)


def test_dtype_of_the_result() -> None:
    a = np.arange(12).reshape(6, 2)
    assert gram(a, progress=False)[0].dtype == np.float64
    G, _ = gram(a, dtype="f4", progress=False)
    assert G.dtype == np.float32
    assert_product(G, a.astype("f4"))
    G, _ = gram(a, dtype="c8", transform=lambda block: block * 1j, progress=False)
    assert np.allclose(G, a.T @ a)


def test_one_row_and_one_column() -> None:
    assert gram(np.array([[3.0, 4.0]]), progress=False)[0].tolist() == [[9, 12], [12, 16]]
    assert gram(np.array([[3.0, 4.0]]), side="right", progress=False)[0].tolist() == [[25]]
    assert gram(np.array([3.0, 4.0]), progress=False)[0].tolist() == [[25]]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    a = tall(20, 3, "c16")
    bad: list[tuple[dict[str, Any], str]] = [
        ({"side": "both"}, "side must be"),
        ({"triangle": "upper"}, "triangle must be"),
        ({"alpha": 1j}, "alpha must be a real number"),
        ({"shift": np.nan}, "shift must be a real number"),
        ({"shift": 10**400}, "shift must be a real number"),
        ({"dtype": "nonsense"}, "'nonsense' is not a NumPy type"),
        ({"dtype": "f8"}, "cannot hold the elements of A, complex128"),
        ({"dtype": "i4"}, "dtype must be float32"),
        ({"transform": lambda block: block[:1]}, "must keep the shape"),
    ]
    for options, message in bad:
        with pytest.raises(InvalidError, match=message):
            gram(a, progress=False, **options)
    G = gram(a, out=tmp_path / "G", progress=False)[0]
    with pytest.raises(ExistsError, match="G exists"):
        gram(a, out=tmp_path / "G", progress=False)
    with pytest.raises(InvalidError, match="operand itself"):
        gram(G, out=tmp_path / "G", if_exists="overwrite", progress=False)
    gram(a, out=tmp_path / "G", if_exists="overwrite", progress=False)


@pytest.mark.parametrize("order", ["C", "F"])
def test_nan_is_refused_with_its_index(tmp_path: Path, order: str) -> None:
    a = tall(300, 400, "f8")
    a[123, 321] = np.nan
    A = oc.from_array(a, tmp_path / "A", order=order, chunks=(64, 16))
    for side in ("left", "right"):
        for options in ({"memory": "4 MiB"}, {"memory": "500 KiB", "out": tmp_path / "G"}):
            with pytest.raises(NonFiniteError, match=r"A\[123, 321\] is nan") as refused:
                gram(A, side=side, progress=False, **options)  # type: ignore[arg-type]
            assert refused.value.index == (123, 321)
    assert not (tmp_path / "G").exists()


def test_what_cannot_be_cut_says_why(tmp_path: Path) -> None:
    a = tall(100, 400, "f8")
    with pytest.raises(BudgetError, match="raise memory=, or give out= for a result on disk"):
        gram(a, memory="500 KiB", progress=False)
    for options, why in [
        ({}, "rows of an iterator pass only once"),
        ({"transform": lambda block: block}, "transform needs whole rows"),
    ]:
        rows = a if options else ragged(a, [9])
        with pytest.raises(BudgetError, match=why) as refused:
            gram(rows, memory="500 KiB", out=tmp_path / "G", progress=False, **options)  # type: ignore[arg-type]
        need = int(str(refused.value).split()[1])
        rows = a if options else ragged(a, [9])
        G, report = gram(rows, memory=need, out=tmp_path / "G", if_exists="overwrite", **options)  # type: ignore[arg-type]
        assert_product(G[...], a)
        assert report.peak_memory_bytes <= need


def test_the_least_budget_that_is_named_suffices(tmp_path: Path) -> None:
    a = tall(300, 400, "c16")
    A = oc.from_array(a, tmp_path / "A", order="F", chunks=(256, 16))
    with pytest.raises(BudgetError, match=r"need \d+ bytes") as refused:
        gram(A, memory=50_000, out=tmp_path / "G", progress=False)
    need = int(str(refused.value).split()[1])
    G, report = gram(A, memory=need, out=tmp_path / "G", progress=False)
    assert_product(G[...], a)
    assert report.peak_memory_bytes <= need
    assert need < 1 << 20


def test_a_stop_leaves_nothing(tmp_path: Path) -> None:
    def blocks() -> Iterator[Any]:
        yield tall(10, 3, "f8")
        interrupt()

    for options in ({}, {"out": tmp_path / "G"}):
        with pytest.raises(Interrupted, match="nothing is left of it; call gram again"):
            gram(blocks(), progress=False, **options)  # type: ignore[arg-type]
    assert list(tmp_path.iterdir()) == []
