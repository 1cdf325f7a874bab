"""LU by block columns with partial pivoting: SciPy, closed forms, LAPACK's test ratios."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
from linpack import (
    hpl_residual,
    lapack_ratio,
    one_thread,
    packed,
    random_matrix,
    row_order,
)
from lu_by_method import RATES, assert_refused_for_temporary_files
from partial_cases import cut, factor

import outcore as oc
from outcore.errors import (
    BudgetError,
    GrowthWarning,
    InvalidError,
    NonFiniteError,
)
from outcore.linalg import lu_factor, lu_solve, open_factor
from outcore.linalg._geometry.factor_plan import lu_geometry
from outcore.linalg._lu import choice
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.plan import partial_geometry
from outcore.linalg._lu.block_columns.storage import PartialStorage
from outcore.linalg._output.factoring import Factoring
from outcore.linalg._tiles.cost import Cost, Phase
from outcore.machine.rates import Rates

__all__ = ["one_thread"]  # a fixture for every test here

CASES = [
    ("f4", 700, 200_000, "C", (64, 32)),
    ("f8", 700, 200_000, "C", (64, 32)),
    ("f8", 512, 200_000, "F", (64, 32)),
    ("c8", 640, 200_000, "C", (64, 64)),
    ("c16", 384, 250_000, "C", (64, 32)),
    ("c16", 512, 250_000, "F", (64, 32)),
    ("f4", 640, 250_000, "F", (37, 53)),
    ("f8", 512, 200_000, "C", (16, 48)),
]


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize(("dtype", "n", "memory", "order", "chunks"), CASES)
def test_types_and_layouts(
    tmp_path: Path, dtype: str, n: int, memory: int, order: str, chunks: tuple[int, int]
) -> None:
    g = cut(n, dtype, memory, order, chunks)
    assert len(g.widths) >= 2
    a = random_matrix(n, dtype)
    lu = factor(tmp_path / "Z", a, memory, order=order, chunks=chunks)
    theirs, piv = scipy.linalg.lu_factor(a)
    np.testing.assert_array_equal(lu.piv, piv)
    assert lapack_ratio(a, lu) < 30
    scale = np.abs(theirs).max() * np.finfo(dtype).eps * n
    np.testing.assert_allclose(packed(lu), theirs, rtol=0, atol=100 * scale)
    b = random_matrix(n, dtype, 1)[:, 0]
    assert hpl_residual(a, lu_solve(lu, b, progress=False), b) < 16
    norm1, slack = np.linalg.norm(a, 1), 2**0.5 if a.dtype.kind == "c" else 1
    assert norm1 / slack * (1 - 1e-5) <= lu.norm1 <= norm1 * (1 + 1e-5)
    growth = np.abs(np.triu(packed(lu))).max() / np.abs(a).max()
    assert growth / 1.5 < lu.growth < growth * 1.5
    assert sorted(p.name for p in lu.path.iterdir()) == ["lu", "piv", "zarr.json"]
    assert lu.report is not None
    assert lu.report.method == "block-columns"
    assert lu.report.peak_memory_bytes <= memory
    assert open_factor(lu.path).norm1 == lu.norm1


@pytest.mark.parametrize(
    ("dtype", "n", "memory", "order"),
    [("f8", 400, 300_000, "C"), ("c8", 400, 250_000, "C"), ("c16", 517, 300_000, "F")],
)
def test_the_last_block_column_ends_within_a_segment(
    tmp_path: Path, dtype: str, n: int, memory: int, order: str
) -> None:
    """Its spilled rows are as wide as its tiles, and narrower than in memory."""
    g = cut(n, dtype, memory, order, (64, 32))
    last = g.block_columns[-1]
    assert g.is_spilled(last)
    assert g.tile_columns(last) < g.wide(last)
    a = random_matrix(n, dtype)
    lu = factor(tmp_path / "Z", a, memory, order=order)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30
    assert lu.report is not None
    assert lu.report.peak_memory_bytes <= memory


def test_the_bits_are_those_of_slabs_where_arithmetic_is_exact(tmp_path: Path) -> None:
    """The first of equal candidates is the pivot, in panels and across block columns."""
    draw, n = np.random.default_rng(3), 384
    L = np.tril(draw.integers(-1, 2, (n, n)), -1) + np.eye(n)
    U = np.triu(draw.integers(-3, 4, (n, n)), 1) + np.diag(draw.choice([-4.0, 4.0], n))
    i, j = np.ogrid[:n, :n]
    # Consecutive ones in each row: totally unimodular, so elements stay 0 or 1 in magnitude.
    ones = ((i <= j) & (j <= i + draw.integers(0, n, (n, 1)))).astype(float)
    intervals = ones[draw.permutation(n)][:, draw.permutation(n)]
    for name, a in {"LU": L @ U, "intervals": intervals}.items():
        lu = factor(tmp_path / name, a, 160_000)
        theirs, piv = scipy.linalg.lu_factor(a)
        np.testing.assert_array_equal(lu.piv, piv)
        np.testing.assert_array_equal(packed(lu), theirs)
        swaps = np.count_nonzero(lu.piv != np.arange(n))
        assert swaps > 50 if name == "intervals" else swaps == 0, name


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("step", [-1, 0, 1])
def test_sizes_one_off_each_boundary(
    tmp_path: Path, order: str, step: int, all_lines: bool
) -> None:
    seen = set()
    for n in (416, 448, 480, 496, 512) if all_lines else (416, 480):
        n += step
        g = cut(n, "f8", 200_000, order, (64, 32))
        seen.add(len(g.widths))
        a = random_matrix(n, "f8", n)
        lu = factor(tmp_path / f"{n}", a, 200_000, order=order)
        np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
        assert lapack_ratio(a, lu) < 30
        assert lu.report is not None
        assert lu.report.peak_memory_bytes <= 200_000
    assert max(seen) >= 2


def test_kms_with_rows_permuted(tmp_path: Path) -> None:
    """r^|i-j| = L U with L = r^(i-j) and U = (1 - r²) r^(j-i), the first row without the factor."""
    n, rho = 700, 0.9
    order = np.random.default_rng(5).permutation(n)
    i, j = np.ogrid[:n, :n]
    power = rho ** np.abs(i - j)
    lu = factor(tmp_path / "Z", power[order], 250_000)
    np.testing.assert_array_equal(order[row_order(lu.piv)], np.arange(n))
    expected = np.where(i > j, power, np.where(i > 0, (1 - rho**2) * power, power))
    np.testing.assert_allclose(packed(lu), expected, rtol=0, atol=1e-13)
    assert lu.growth == pytest.approx(1)


def test_wilkinson_growth_is_told(tmp_path: Path) -> None:
    n = 400
    a = np.tril(-np.ones((n, n)), -1) + np.eye(n)
    a[:, -1] = 1
    with pytest.warns(GrowthWarning, match=re.escape(f"factor of {2.0 ** (n - 1):.3g}:")):
        lu = factor(tmp_path / "Z", a, 160_000)
    assert lu.growth == 2.0 ** (n - 1)
    np.testing.assert_array_equal(lu.piv, np.arange(n))


@pytest.mark.parametrize("order", ["C", "F"])
def test_singular_leading_block(tmp_path: Path, order: str) -> None:
    """The first block column lies in the singular block, which breaks pivoting within a block."""
    n = 512
    a = random_matrix(n, "f8")
    a[: n // 2, : n // 2] = 0
    assert cut(n, "f8", 200_000, order, (64, 32)).widths[0] < n // 2
    lu = factor(tmp_path / "Z", a, 200_000, order=order)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lu.info == 0
    assert lapack_ratio(a, lu) < 30
    assert min(lu.piv[: n // 2]) >= n // 2, "no row of the block is a pivot"


SINGULAR = [5, 100, 127, 128, 250, 383]


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize("at", SINGULAR)
def test_exact_singularity(tmp_path: Path, at: int) -> None:
    a = random_matrix(384, "f8")
    a[:, at] = 0
    assert set(SINGULAR) & set(itertools.accumulate(cut(384, "f8", 160_000, "C", (64, 32)).widths))
    with pytest.warns(scipy.linalg.LinAlgWarning, match=f"number {at + 1} is exactly zero"):
        lu = factor(tmp_path / "Z", a, 160_000)
    assert lu.info == at + 1
    assert lapack_ratio(a, lu) < 30


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("where", [(0, 0), (400, 20), (3, 200), (511, 511), (350, 96)])
def test_what_is_not_finite_is_named(
    tmp_path: Path, order: str, value: float, where: tuple[int, int]
) -> None:
    a = random_matrix(512, "f8")
    a[where] = value
    with pytest.raises(NonFiniteError, match=rf"A\[{where[0]}, {where[1]}\] is") as told:
        factor(tmp_path / "Z", a, 200_000, order=order)
    assert told.value.index == where
    assert not (tmp_path / "Z.lu").exists()


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize(
    ("dtype", "n", "memory", "order", "chunks"),
    [
        ("f8", 512, 200_000, "C", (64, 32)),
        ("f8", 512, 200_000, "F", (64, 16)),
        ("c8", 640, 200_000, "F", (64, 16)),
        ("f4", 640, 200_000, "C", (64, 32)),
        ("f8", 640, 250_000, "F", (32, 16)),
        ("c16", 512, 300_000, "F", (64, 16)),
    ],
)
def test_exact_bytes(
    tmp_path: Path, dtype: str, n: int, memory: int, order: str, chunks: tuple[int, int]
) -> None:
    g = cut(n, dtype, memory, order, chunks)
    assert len(g.widths) >= 2
    lu = factor(tmp_path / "Z", random_matrix(n, dtype), memory, order=order, chunks=chunks)
    report = lu.report
    assert report is not None
    assert (report.bytes_read, report.bytes_written) == g.bytes_moved()
    assert report.planned_bytes_read == report.bytes_read
    assert report.planned_bytes_written == report.bytes_written
    assert report.words_moved() == g.words_moved()
    assert report.peak_memory_bytes <= memory
    slabs = lu_geometry(n, np.dtype(dtype), memory).words_moved()
    assert report.words_moved() < slabs
    assert report.flops == pytest.approx((4 if dtype[0] == "c" else 1) * 2 * n**3 / 3)


def words(g: PartialGeometry) -> float:
    """Compute the words by the formula of docs/numerics-lu.md, without sums of the geometry."""
    n, total = g.n, 2.0 * g.n * (g.n - g.widths[0]) * g.is_copied
    for s in g.block_columns:
        m, w, o, rows = s.order, s.width, s.origin, g.block_rows(s)
        firsts = range(n - rows, 0, -rows) if o else range(0)
        total += 2 * n * w + n * o - o**2 / 2 + sum(min(first, o) for first in firsts) * w
        is_loaded = g.is_copied and not o
        if not is_loaded and m <= rows:
            total += m * w * (m > w)
            continue
        cuts = g.slabs_of(s)
        lefts = [slab.first * g.columns for slab in cuts.slabs()]
        total += 2 * m * w * (not is_loaded) + sum(m * left - left**2 / 2 for left in lefts)
        if m > w:
            kept = -(-lefts[-1] // g.segment) * g.segment
            total += m * w - w**2 / 2 + m * kept - kept**2 / 2
    return total


@pytest.mark.parametrize(
    ("order", "chunks"), [("C", (512, 512)), ("C", (256, 2048)), ("F", (2048, 256))]
)
def test_words_of_a_large_matrix(order: str, chunks: tuple[int, int]) -> None:
    """In C order at most 1.8 times the lower bound, at n = 16384 and a budget of 1/32."""
    n, memory = 16384, 64 << 20
    g = cut(n, "f8", memory, order, chunks)
    assert g.fits()
    assert g.memory_bytes <= memory
    if order == "C":
        assert g.words_moved() <= 1.8 * (2 * n**3 / (3 * (memory / 8) ** 0.5) + n**2)
    assert g.words_moved() == pytest.approx(words(g), rel=0.02)
    # Rows of chunks are whole pages, so that lists of rows need no bounce buffer.
    assert g.segment * 8 % 4096 == 0
    plan = oc.plan(
        "lu", n=n, memory=memory, method="block-columns", order=order, chunks=chunks, rates=RATES
    )
    assert (plan.bytes_read, plan.bytes_written) == g.bytes_moved()


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize(
    ("n", "share", "most"), [(8192, 16, 7.1), (32768, 32, 8.2), (131072, 32, 7.6)]
)
def test_words_over_sizes(n: int, share: int, most: float) -> None:
    g = cut(n, "f8", n * n * 8 // share, "C", (512, 512))
    assert g.words_moved() / n**2 < most


def test_a_budget_for_many_columns_needs_one_block_column(tmp_path: Path) -> None:
    a = random_matrix(200, "f8")
    lu = factor(tmp_path / "Z", a, 300_000)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert partial_geometry(200, np.dtype("f8"), 300_000, choice.Layout("C", (64, 32))).widths == ()


def test_a_budget_too_small_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BudgetError, match="for one panel"):
        factor(tmp_path / "Z", random_matrix(300, "f8"), 50_000)
    assert not (tmp_path / "Z.lu").exists()


def test_what_is_not_a_method_is_refused(tmp_path: Path) -> None:
    A = oc.from_array(random_matrix(64, "f8"), tmp_path / "Z", order="F")
    with pytest.raises(InvalidError, match="method must be one of"):
        lu_factor(A, method="three-level")  # type: ignore[arg-type]
    with pytest.raises(InvalidError, match="overwrite_a"):
        lu_factor(A, method="block-columns", overwrite_a=True)


def test_no_room_for_temporary_files(tmp_path: Path, small_disk: Path) -> None:
    a = random_matrix(1000, "f8")
    A = oc.from_array(a, tmp_path / "Z", order="C", chunks=(64, 64), progress=False)
    g = cut(1000, "f8", 400_000, "C", (64, 64))
    assert g.widths
    assert_refused_for_temporary_files(A, a, "block-columns", 400_000, g, small_disk)


@pytest.mark.parametrize("read_bytes_s", [1e8, 1e12])
def test_the_plan_chooses_by_time(read_bytes_s: float) -> None:
    rates = Rates(**RATES.__dict__ | {"read_bytes_s": read_bytes_s, "write_bytes_s": read_bytes_s})
    options = {"n": 16384, "memory": "64 MiB", "order": "C", "chunks": (512, 512), "rates": rates}
    auto, slabs, columns = (
        oc.plan("lu", method=method, **options) for method in ("auto", "slabs", "block-columns")
    )
    assert slabs.method.startswith("slabs")
    assert "block columns of at most" in columns.method
    assert auto.method == (columns.method if read_bytes_s == 1e8 else slabs.method)
    assert oc.plan("lu", overwrite_a=True, **options).method.startswith("slabs")
    # Where memory holds much of the matrix, there is no choice to make.
    large = oc.plan("lu", **options | {"memory": "512 MiB"})
    assert large.method.startswith("slabs")


@pytest.mark.parametrize("order", ["C", "F"])
def test_a_small_part_of_the_matrix_needs_no_rates(
    order: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slabs would move 121 (in C order) or 91 n² words, which takes longer on any disk."""
    n, memory = 16384, 16 << 20
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    A = oc.create_array(tmp_path / "Z", (n, n), order=order, reserve=False)
    found = choice.chosen("auto", Factoring(A, memory))
    plan = oc.plan("lu", n=n, memory=memory, order=order, rates=RATES)
    assert found.algorithm == "block-columns"
    assert "block columns" in plan.method
    words = (plan.bytes_read + plan.bytes_written) / 8 / n**2
    assert f"block columns {words:.3g}; {choice.UNMEASURED}" in found.why


@pytest.mark.parametrize(
    ("seconds", "words", "room", "expected"),
    [
        (0.94, 0.9, 3, "block-columns"),
        (0.96, 0.9, 1, "slabs"),
        (1.24, 0.49, 1.9, "block-columns"),
        (1.26, 0.49, 1.9, "slabs"),
        (1.24, 0.51, 1.9, "slabs"),
        (1.24, 0.49, 2.1, "slabs"),
    ],
)
def test_what_the_choice_goes_by(seconds: float, words: float, room: float, expected: str) -> None:
    """Seconds, words and space of block columns, as multiples of those of slabs."""

    def cost(words: float, room: float) -> Cost:
        phase = Phase(np.dtype("f8"), round(1000 * words), 0)
        return Cost("", 0, round(1000 * room), None, (phase,))

    slabs, columns = cost(1, 1), cost(words, room)
    times = {slabs: 1.0, columns: seconds}
    assert choice.better(slabs, columns, times.__getitem__) == expected
    assert choice.better(slabs, None, times.__getitem__) == "slabs"


def test_a_call_chooses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a = random_matrix(700, "f8")
    A = oc.from_array(a, tmp_path / "Z", order="C", chunks=(64, 32), progress=False)
    monkeypatch.setattr(choice, "LEAST_BYTES", 1)
    monkeypatch.setattr(choice.rates, "stored", lambda where: None)

    def method(**options: object) -> str:
        lu = lu_factor(A, memory=200_000, if_exists="overwrite", progress=False, **options)  # type: ignore[arg-type]
        assert lu.report is not None
        return lu.report.method

    assert method() == "slabs", "no rates are kept"
    slow = Rates(**RATES.__dict__ | {"read_bytes_s": 1e6, "write_bytes_s": 1e6})
    with monkeypatch.context() as patch:
        patch.setattr(choice.rates, "NOMINAL", slow)
        report = lu_factor(A, memory=200_000, if_exists="overwrite", progress=False).report
    assert report is not None
    assert report.method == "block-columns"
    (why,) = (note for note in report.notes if "block columns" in note)
    assert choice.UNMEASURED in why
    assert method(method="block-columns") == "block-columns"
    for bytes_s, expected in ((1e6, "block-columns"), (1e12, "slabs")):
        found = Rates(**RATES.__dict__ | {"read_bytes_s": bytes_s, "write_bytes_s": bytes_s})
        monkeypatch.setattr(choice.rates, "stored", lambda where, found=found: found)
        assert method() == expected
    monkeypatch.setattr(choice, "LEAST_BYTES", 1 << 30)
    assert method() == "slabs"


def test_memory_of_one_phase_is_gone_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases = []
    open_factors = PartialStorage.open_factors

    def opening(self: PartialStorage, *arguments: int) -> object:
        if len(self._opened) <= 1:
            phases.append(self._call.arena.used_bytes)
        return open_factors(self, *arguments)

    monkeypatch.setattr(PartialStorage, "open_factors", opening)
    factor(tmp_path / "Z", random_matrix(640, "f8"), 250_000, chunks=(64, 64))
    assert len(phases) >= 4
    assert set(phases) == {0}
