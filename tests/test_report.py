"""Reports and timelines: figures add up, pictures are drawn."""

import json
from pathlib import Path

import numpy as np
import pytest

from outcore._core import Trace
from outcore.errors import InvalidError
from outcore.report import Report, io_and_wait_seconds
from outcore.reporting.spans import merged, spread
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
    assert "3.00 x the lower bound" in str(r)
    assert "75% hidden" in str(r)


def test_a_call_without_io_hides_all_of_it() -> None:
    assert report().overlap == 1.0


def test_plan_and_run_side_by_side() -> None:
    text = str(report(planned_bytes_read=800, planned_bytes_written=1500))
    assert "800 B, as planned" in text
    assert "1.56 KiB, planned 1.46 KiB" in text


def test_json_has_every_figure_and_no_spans() -> None:
    values = json.loads(report(spans=np.zeros((1, 6), np.uint64)).to_json())
    assert values["bytes_read"] == 800
    assert values["overlap"] == 1.0
    assert "spans" not in values


def test_reports_of_one_call_after_the_other_add_up() -> None:
    first = report(planned_bytes_read=800, planned_bytes_written=1600, growth=3.0, notes=["a"])
    second = report(planned_bytes_read=100, planned_bytes_written=0, bytes_read=100,
                    bytes_written=0, backward_error=1e-16, notes=["a", "b"])  # fmt: skip
    both = first.followed_by(second)
    assert (both.seconds, both.flops, both.bytes_read) == (4.0, 8e9, 900)
    assert (both.planned_bytes_read, both.planned_bytes_written) == (900, 1600)
    assert (both.growth, both.backward_error, both.notes) == (3.0, 1e-16, ["a", "b"])


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
