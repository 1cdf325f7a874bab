"""Fields that the reports of all verbs share: lower bound of the plan, BLAS, arrays."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from linpack import one_thread, random_matrix
from lu_by_method import RATES
from report_cases import Page
from stopping import after_notes, interrupt
from verb_calls import MEMORY, VERBS, M, N, made, oblong, of, square

import outcore as oc
from outcore import linalg
from outcore.errors import Interrupted
from outcore.linalg._planners.planners import PLANNERS
from outcore.report.page import html_page
from outcore.report.report import Report
from outcore.report.spans import Spans

__all__ = ["one_thread"]  # a fixture for every test here

QUIET: dict[str, Any] = {"memory": MEMORY, "progress": False}

WITHOUT_BOUND = {"cond_est"}
"""Verbs without a bound: the number of their solves is not known in advance."""


def test_every_verb_with_a_plan_is_here() -> None:
    assert set(VERBS) == set(PLANNERS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_lower_bound_is_that_of_the_plan(verb: str, tmp_path: Path) -> None:
    report, planned = VERBS[verb].call(tmp_path, QUIET), VERBS[verb].plan(verb)
    assert report.words_lower_bound == planned.words_lower_bound
    assert (planned.words_lower_bound is None) == (verb in WITHOUT_BOUND)
    if planned.words_lower_bound is not None:
        assert report.words_moved() >= planned.words_lower_bound > 0


@pytest.mark.parametrize(
    ("verb", "call", "options"),
    [
        ("solve", lambda A: linalg.solve(A, np.ones(N), assume_a="pos", **QUIET),
         {"assume_a": "pos"}),
        ("solve", lambda A: linalg.solve(A, np.ones(N), factor_dtype="f4", **QUIET),
         {"factor_dtype": "f4"}),
        ("qr", lambda A: linalg.qr(A, mode="economic", **QUIET), {"m": N, "mode": "economic"}),
        ("svd", lambda A: linalg.svd(A, 5, out=f"{A.path}.u", **QUIET),
         {"m": N, "k": 5, "out": True}),
        ("gram", lambda A: linalg.gram(A, out=f"{A.path}.g", **QUIET), {"m": N, "out": True}),
    ],
)  # fmt: skip
def test_so_it_is_done_otherwise(
    verb: str, call: Any, options: dict[str, Any], tmp_path: Path
) -> None:
    report = of(call(made(tmp_path, square())))
    planned = oc.plan(verb, n=N, memory=MEMORY, order="F", rates=RATES, **options)
    assert report.words_lower_bound == planned.words_lower_bound


def test_of_wide_least_squares(tmp_path: Path) -> None:
    memory = 1_500_000
    A = made(tmp_path, oblong().T)
    _, report = linalg.lstsq(A, np.ones(N), memory=memory, progress=False)
    planned = oc.plan("lstsq", m=N, n=M, order="F", memory=memory, rates=RATES)
    assert report.method.startswith("solution of least norm")
    assert report.words_lower_bound == planned.words_lower_bound == M * N


def test_what_is_in_memory_need_not_be_read(tmp_path: Path) -> None:
    a = oblong()
    for report in (
        linalg.lstsq(a, np.ones(M), **QUIET)[1],
        linalg.qr(iter([a]), **QUIET)[1],
        linalg.svd(a, 5, **QUIET)[3],
    ):
        assert (report.bytes_read, report.words_lower_bound) == (0, None)
        assert "times the least" not in str(report)
    _, _, report = linalg.qr(a, mode="economic", out=tmp_path / "Q", **QUIET)
    assert report.words_lower_bound == M * N, "Q is written"


def test_a_run_that_went_on_knows_no_bound(tmp_path: Path) -> None:
    A, memory = made(tmp_path, square()), 200_000
    with after_notes(2, interrupt), pytest.raises(Interrupted):
        linalg.solve(A, np.ones(N), memory=memory, progress=False)
    _, report = linalg.solve(A, np.ones(N), memory=memory, progress=False)
    assert "resumed" in report.notes[0]
    assert report.words_lower_bound is None


# The BLAS


@pytest.mark.parametrize(
    "options", [{"factor_dtype": "f4"}, {"assume_a": "auto"}, {"assume_a": "pos"}, {}]
)
def test_the_blas_of_a_solve_is_told(options: dict[str, Any], tmp_path: Path) -> None:
    A = made(tmp_path, square())
    for _ in range(2):  # the second call uses the factors of the first
        _, report = linalg.solve(
            A, np.ones(N), threads=1, keep_factors=True, memory=MEMORY, progress=False, **options
        )
        assert report.kernels
        assert report.threads == 1
        assert "BLAS" in str(report)


# Arrays in the spans


def bytes_of(report: Report) -> dict[str, tuple[float, float]]:
    """Return the bytes read and written of each array, by name."""
    assert report.spans is not None
    spans = Spans.of(report.spans)
    names = [report.array_name(number) for number in spans.arrays()]
    assert len(set(names)) == len(names), "each is one row"
    return {
        name: (
            float(spans.chosen("read", number).bytes.sum()),
            float(spans.chosen("write", number).bytes.sum()),
        )
        for name, number in zip(names, spans.arrays(), strict=True)
    }


def test_arrays_of_a_mixed_solve(tmp_path: Path) -> None:
    A = made(tmp_path, square())
    B = made(tmp_path, np.ones((N, 2)), "B")
    _, report = linalg.solve(A, B, factor_dtype="f4", out=tmp_path / "x", **QUIET)
    found = bytes_of(report)
    # In order of first use: the call checks the right-hand sides first.
    assert list(found) == [
        "the right-hand sides", "the matrix", "its copy in lower precision", "the factors",
        "the solutions",
    ]  # fmt: skip
    read, written = found["the matrix"]
    assert written == 0
    assert read >= 2 * A.nbytes, "copied, and refined with"
    assert found["its copy in lower precision"] == (0, pytest.approx(A.nbytes / 2, rel=0.1))
    assert sum(read for read, _ in found.values()) == report.bytes_read
    assert sum(written for _, written in found.values()) == report.bytes_written


@pytest.mark.parametrize("options", [{}, {"assume_a": "auto"}])
def test_arrays_of_a_solve(options: dict[str, Any], tmp_path: Path) -> None:
    A = made(tmp_path, square())
    _, report = linalg.solve(A, np.ones(N), **QUIET, **options)
    assert list(bytes_of(report)) == ["the matrix", "the factors"]


def test_workspaces_of_a_solve_by_block_columns(tmp_path: Path) -> None:
    n, options = 512, {"memory": 200_000, "progress": False}
    A = oc.from_array(random_matrix(n, "f8"), tmp_path / "A", chunks=(64, 32), progress=False)
    lu = linalg.lu_factor(A, method="block-columns", **options)  # type: ignore[arg-type]
    assert lu.report is not None
    factored = set(bytes_of(lu.report))
    assert {"the matrix", "the factors", "lower", "spill"} <= factored
    linalg.lu_solve(lu, made(tmp_path, np.ones((n, 1)), "B"), out=tmp_path / "x", **QUIET)
    solved = oc.last_report()
    assert solved is not None
    assert list(bytes_of(solved)) == ["the factors", "the right-hand sides", "the solutions"]
    look = Report("look", n, "float64", 0, 0, 0, 0, spans=lu.report.spans[:1])  # type: ignore[index]
    whole = look.followed_by(lu.report).followed_by(solved)
    assert set(bytes_of(whole)) == factored | set(bytes_of(solved))


@pytest.mark.parametrize(
    ("verb", "names"),
    [
        ("matmul", ["A", "B", "the product"]),
        ("solve_triangular", ["T", "B", "X"]),
        ("form_q", ["the factors", "Q"]),
        ("export_lapack", ["L and U in one array", "the factors"]),
        ("gram", ["A"]),
    ],
)
def test_arrays_have_names(verb: str, names: list[str], tmp_path: Path) -> None:
    report = VERBS[verb].call(tmp_path, QUIET)
    assert list(bytes_of(report)) == names


def test_an_array_that_is_read_twice_at_once_is_one_map(tmp_path: Path) -> None:
    A = made(tmp_path, np.random.default_rng(0).standard_normal((64, 1200)), order="C")
    _, report = linalg.gram(A, memory="2 MiB", out=tmp_path / "G", progress=False)
    assert report.spans is not None
    assert Spans.of(report.spans).arrays() == [0, 1, 2]
    page = Page(html_page(report))
    heads = [w for w in page.words if w.startswith("Reads and writes of ")]
    assert list(dict.fromkeys(heads)) == ["Reads and writes of A", "Reads and writes of G"]
    assert [svg["id"] for svg in page.all("svg", role="img")][1:3] == ["heat-0", "heat-1"]
    assert any("several shard files" in words for words in page.words)
