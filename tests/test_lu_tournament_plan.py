"""LU with tournament pivoting: the planned words, and the cases in which it is chosen."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner
from linpack import one_thread, random_matrix
from lu_by_method import RATES
from tournament_cases import cut, factor, played

import outcore as oc
from outcore.cli import main
from outcore.errors import BudgetError
from outcore.linalg import lu_factor
from outcore.linalg._lu import choice
from outcore.linalg._output.factoring import Factoring

__all__ = ["one_thread"]  # a fixture for every test here

EXACT = [
    ("f8", 512, 200_000, "C", (64, 32)),
    ("f8", 512, 200_000, "F", (64, 32)),
    ("c8", 640, 200_000, "C", (64, 64)),
    ("f4", 640, 160_000, "C", (64, 32)),
    ("c16", 384, 250_000, "F", (64, 32)),
]


@pytest.mark.parametrize(("dtype", "n", "memory", "order", "chunks"), EXACT)
def test_exact_bytes(
    tmp_path: Path, dtype: str, n: int, memory: int, order: str, chunks: tuple[int, int]
) -> None:
    g = cut(n, dtype, memory, order, chunks)
    assert played(g) >= 3
    lu = factor(tmp_path / "Z", random_matrix(n, dtype), memory, order=order, chunks=chunks)
    report = lu.report
    assert report is not None
    assert (report.bytes_read, report.bytes_written) == g.bytes_moved()
    assert report.planned_bytes_read == report.bytes_read
    assert report.planned_bytes_written == report.bytes_written
    assert report.words_moved() == g.words_moved()
    assert g.memory_bytes <= memory


def words(n: int, memory: int, order: str, chunks: tuple[int, int]) -> float:
    """Compute the words by the formula of docs/numerics-lu.md, without sums of the geometry."""
    g = cut(n, "f8", memory, order, chunks)
    total = 2.0 * n**2 * g.is_copied
    for s in g.block_columns:
        rows, below = g.block_rows(s), s.order * s.width
        firsts = range(n - rows, 0, -rows)
        upper = sum(min(first, s.origin) for first in firsts) * s.width
        total += 2 * n * s.width + n * s.origin - s.origin**2 / 2 + upper
        total += (0 if s.order == s.width else below) + (3 * below + s.width**2) * (s.order > rows)
    return total


@pytest.mark.parametrize("chunks", [(512, 512), (256, 2048)])
def test_words_of_a_large_matrix(chunks: tuple[int, int]) -> None:
    """At most 1.8 times the lower bound, at n = 16384 and a budget of 1/32."""
    n, memory = 16384, 64 << 20
    g = cut(n, "f8", memory, "C", chunks)
    assert g.memory_bytes <= memory
    moved = g.words_moved()
    assert moved <= 1.8 * (2 * n**3 / (3 * (memory / 8) ** 0.5) + n**2)
    assert moved == pytest.approx(words(n, memory, "C", chunks), rel=0.02)
    # Rows of chunks are whole pages, so that lists of rows need no bounce buffer.
    assert g.segment * 8 % 4096 == 0
    plan = oc.plan(
        "lu", n=n, memory=memory, method="tournament", order="C", chunks=chunks, rates=RATES
    )
    assert (plan.bytes_read, plan.bytes_written) == g.bytes_moved()
    assert plan.method.startswith("tournament pivoting in 7 of ")


def test_words_over_sizes() -> None:
    for n, share, order in ((16384, 32, "F"), (32768, 32, "C")):
        moved = cut(n, "f8", n * n * 8 // share, order, (512, 512)).words_moved()
        assert moved == pytest.approx(words(n, n * n * 8 // share, order, (512, 512)), rel=0.03)


def test_the_plan_takes_it_where_nothing_else_fits() -> None:
    n, memory = 200_000, 64 << 20
    for method in ("slabs", "block-columns"):
        with pytest.raises(BudgetError, match="for one panel"):
            oc.plan("lu", n=n, memory=memory, method=method, rates=RATES)
    plan = oc.plan("lu", n=n, memory=memory, rates=RATES)
    assert plan.method.startswith("tournament pivoting")
    assert plan.method.endswith(
        "(memory does not hold one panel over all rows, which all other methods need)"
    )
    with pytest.raises(BudgetError, match="for one panel"):
        oc.plan("lu", n=n, memory=memory, overwrite_a=True, rates=RATES)
    # Where a panel fits in memory, LU keeps partial pivoting.
    assert "tournament" not in oc.plan("lu", n=n, memory="4 GiB", rates=RATES).method


def test_the_command_line_plans_it() -> None:
    words = ["plan", "lu", "-n", "16384", "--memory", "64MiB", "--option", "order=C"]
    shown = CliRunner().invoke(main, [*words, "--method", "tournament"])
    assert shown.exit_code == 0, shown.output
    assert re.search(r"tournament pivoting in \d+ of", shown.output)
    assert "1.74 times the least any algorithm must move (lower is better)" in shown.output
    shown = CliRunner().invoke(main, [*words, "--method", "three-level"])
    assert shown.exit_code != 0
    assert "method must be one of" in shown.output


def test_a_call_takes_it_where_nothing_else_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = random_matrix(384, "f8")
    A = oc.from_array(a, tmp_path / "Z", order="C", chunks=(64, 32), progress=False)

    def refusing(*arguments: object) -> None:
        raise BudgetError("need more memory for one panel")

    assert choice.chosen("auto", Factoring(A, 160_000)) == ("slabs", "")
    monkeypatch.setattr(choice, "lu_geometry", refusing)
    lu = lu_factor(A, memory=160_000, progress=False)
    assert lu.report is not None
    assert lu.report.method.startswith("tournament pivoting of")
    assert any("memory does not hold one panel over all rows" in note for note in lu.report.notes)
    assert choice.chosen("auto", Factoring(A, 160_000, overwrite_a=True)) == ("slabs", "")
    # If tournament pivoting does not fit either, the error is that of slabs.
    assert choice.chosen("auto", Factoring(A, 50_000)) == ("slabs", "")
    with pytest.raises(BudgetError, match="for one panel"):
        lu_factor(A, memory=50_000, if_exists="overwrite", progress=False)
