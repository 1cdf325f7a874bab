"""Reports and timelines: figures add up, and pictures are drawn."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_cases import NO_ARRAY, spans

from outcore._core import Trace
from outcore.errors import InvalidError
from outcore.report.report import Report, io_and_wait_seconds
from outcore.report.spans import Spans, merged, spread
from outcore.timeline import draw_timeline


def report(**values: object) -> Report:
    base: dict[str, object] = {
        "verb": "lu", "n": 10, "dtype": "float64", "seconds": 2.0, "flops": 4e9,
        "bytes_read": 800, "bytes_written": 1600,
    }  # fmt: skip
    return Report(**(base | values))  # type: ignore[arg-type]


def test_derived_figures() -> None:
    r = report(io_seconds=4.0, wait_seconds=1.0, words_lower_bound=100.0)
    assert r.gflops_per_s == 2.0
    assert r.overlap == 0.75
    assert r.words_moved() == 300
    assert "3.00 times the least any algorithm must move (lower is better)" in str(r)
    assert "75% hidden" in str(r)


def test_a_call_without_measured_io_has_no_overlap(tmp_path: Path) -> None:
    r = report(wait_seconds=0.004)
    assert r.overlap is None
    assert r.to_dict()["overlap"] is None
    assert "hidden" not in str(r)
    r.save(tmp_path / "r")
    assert Report.load(tmp_path / "r").overlap is None


def test_io_that_took_no_millisecond_is_not_printed() -> None:
    assert "hidden" not in str(report(io_seconds=0.0004, wait_seconds=0.004))
    assert "busy 1 ms, waited for 0 ms: 100% hidden" in str(report(io_seconds=0.001))


def test_plan_and_run_side_by_side() -> None:
    text = str(report(planned_bytes_read=800, planned_bytes_written=1500))
    assert "800 B, as planned" in text
    assert "1.56 KiB, planned 1.46 KiB" in text


def test_json_has_every_figure_and_no_spans() -> None:
    values = json.loads(report(spans=np.zeros((1, 6), np.uint64)).to_json())
    assert values["bytes_read"] == 800
    assert values["overlap"] is None
    assert "spans" not in values


def test_reports_of_one_call_after_the_other_add_up() -> None:
    first = report(planned_bytes_read=800, planned_bytes_written=1600, growth=3.0, notes=["a"])
    second = report(planned_bytes_read=100, planned_bytes_written=0, bytes_read=100,
                    bytes_written=0, backward_error=1e-16, notes=["a", "b"])  # fmt: skip
    both = first.followed_by(second)
    assert (both.seconds, both.flops, both.bytes_read) == (4.0, 8e9, 900)
    assert (both.planned_bytes_read, both.planned_bytes_written) == (900, 1600)
    assert (both.growth, both.backward_error, both.notes) == (3.0, 1e-16, ["a", "b"])


def test_the_blas_is_that_of_the_first_part_that_has_one() -> None:
    first, second = report(), report(kernels="OpenBLAS", threads=2)
    for both in (
        first.followed_by(second),
        second.followed_by(first),
        second.followed_by(report(kernels="other", threads=1)),
    ):
        assert (both.kernels, both.threads) == ("OpenBLAS", 2)


def moved(array: int, offset: int = 0) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return spans(("read", array, 0, 1, offset, 4096), ("compute", NO_ARRAY, 0, 1, 0, 0))


def test_arrays_of_both_parts_are_told_apart_by_their_names() -> None:
    copying = report(arrays=["the matrix", "the copy"], spans=np.vstack([moved(0), moved(1)]))
    factoring = report(arrays=["the copy", "the factors"], spans=np.vstack([moved(0), moved(1)]))
    solving = report(spans=np.vstack([moved(k) for k in (0, 1, 8, 9)]))
    whole = copying.followed_by(factoring).followed_by(solving)
    assert whole.spans is not None
    names = [whole.array_name(int(k)) for k in whole.spans[::2, 1]]
    assert names == [
        "the matrix", "the copy",
        "the copy", "the factors",
        "the matrix", "the factors", "the right-hand sides", "the solutions",
    ]  # fmt: skip
    assert Spans.of(whole.spans).arrays() == list(range(5))
    assert set(whole.spans[1::2, 1]) == {NO_ARRAY}, "arithmetic is of none"
    assert np.array_equal(solving.spans, np.vstack([moved(k) for k in (0, 1, 8, 9)]))


@pytest.mark.parametrize("names", [[], ["the matrix", "the factors", "rest", "lower", "spill"]])
def test_workspaces_keep_their_names(names: list[str]) -> None:
    numbers = range(len(names) or 2)
    factoring = report(arrays=names, spans=np.vstack([moved(k) for k in numbers]))
    look = report(spans=moved(0))
    solving = report(spans=np.vstack([moved(1), moved(9)]))
    whole = look.followed_by(factoring).followed_by(solving)
    assert whole.spans is not None
    expected = [factoring.array_name(k) for k in numbers] + ["the solutions"]
    assert [whole.array_name(k) for k in Spans.of(whole.spans).arrays()] == expected


def test_parts_without_spans_keep_their_names() -> None:
    bare, seen = report(arrays=["A"]), report(arrays=["B"], spans=moved(0))
    for both in (bare.followed_by(seen), seen.followed_by(bare)):
        assert both.spans is not None
        assert both.array_name(int(both.spans[0, 1])) == "B"
    assert bare.followed_by(bare).spans is None


def test_an_array_gets_another_name() -> None:
    factoring = report(spans=np.vstack([moved(0), moved(1)])).with_name("the matrix", "the copy")
    assert [factoring.array_name(k) for k in (0, 1, 8)] == [
        "the copy", "the factors", "the right-hand sides",
    ]  # fmt: skip
    assert report(arrays=["A", "the matrix"]).with_name("the matrix", "M").arrays == ["A", "M"]


def test_the_least_of_two_parts_is_that_of_the_one_that_needs_more() -> None:
    factoring, solving = report(words_lower_bound=300.0), report(words_lower_bound=100.0)
    assert factoring.followed_by(solving).words_lower_bound == 300
    assert report().followed_by(solving).words_lower_bound == 100
    assert report().followed_by(report()).words_lower_bound is None
    other = report(dtype="float32", words_lower_bound=500.0)
    assert factoring.followed_by(other).words_lower_bound is None


def test_waits_and_compute_are_told_apart() -> None:
    trace = Trace()
    start = trace.now_ns()
    trace.record("wait", start)
    trace.record("compute", start)
    io_seconds, wait_seconds = io_and_wait_seconds(trace)
    assert io_seconds == 0.0
    assert 0 < wait_seconds < 60


def test_merging_counts_no_time_twice() -> None:
    intervals = np.array([[5.0, 6.0], [0.0, 2.0], [1.0, 3.0], [1.2, 1.3]])
    assert merged(intervals).tolist() == [[0.0, 3.0], [5.0, 6.0]]
    assert merged(np.zeros((0, 2))).shape == (0, 2)


def test_spreading_keeps_the_total() -> None:
    rng = np.random.default_rng(3)
    starts = rng.uniform(0, 9, 200)
    intervals = np.column_stack([starts, starts + rng.uniform(0, 1, 200)])
    heights = rng.uniform(1, 5, 200)
    edges = np.linspace(0, 10, 77)
    total = (heights * (intervals[:, 1] - intervals[:, 0])).sum()
    assert (spread(intervals, heights, edges) * np.diff(edges)).sum() == pytest.approx(total)
    assert spread(np.zeros((0, 2)), np.zeros(0), edges).tolist() == [0.0] * 76


def test_a_timeline_is_drawn(tmp_path: Path) -> None:
    kinds = Trace.kinds()
    rows = [
        (kinds.index(kind), 0, i * 1_000_000, i * 1_000_000 + 900_000, 0, 1 << 20)
        for i in range(50)
        for kind in ("read", "write", "compute", "wait")
    ]
    path = draw_timeline(report(spans=np.array(rows, np.uint64)), tmp_path / "t.png")
    assert path.read_bytes().startswith(b"\x89PNG")
    with pytest.raises(InvalidError, match="no spans"):
        draw_timeline(report(), tmp_path / "none.png")
