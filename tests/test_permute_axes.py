"""Permutations by axes of any extents: errors, reports and plans."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert.targets import ArrayTarget
from outcore.errors import IncompleteError

QUIET: dict[str, Any] = {"progress": False}
SHAPE = (128, 95, 80)


def stop_at(monkeypatch: pytest.MonkeyPatch, at: int | None) -> list[int]:
    """Note the bytes of each box that is written, and let one write fail."""
    sizes, write = list[int](), ArrayTarget.write

    def watched(target: ArrayTarget, box: Any, data: Any) -> Any:
        if len(sizes) == at:
            raise ZeroDivisionError
        sizes.append(data.nbytes)
        return write(target, box, data)

    monkeypatch.setattr(ArrayTarget, "write", watched)
    return sizes


@pytest.fixture
def stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[npt.NDArray[np.float64], Callable[[], oc.Array]]:
    """Stop a transpose; return its data, and the call."""
    data = np.random.default_rng(0).random(SHAPE)
    oc.from_array(data, tmp_path / "A", chunks=(1, 95, 80), **QUIET).close()
    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)

    def call() -> oc.Array:
        return oc.permute(
            tmp_path / "A", tmp_path / "B", "transpose", chunks=(8, 5, 64), memory="1 MB", **QUIET
        )

    with monkeypatch.context() as stopping:
        stop_at(stopping, 6)
        with pytest.raises(ZeroDivisionError):
            call()
    return data, call


def test_the_error_of_a_stopped_call_names_the_call_that_resumes(
    tmp_path: Path, stopped: tuple[npt.NDArray[np.float64], Callable[[], oc.Array]]
) -> None:
    data, call = stopped
    with pytest.raises(IncompleteError) as error:
        oc.open_array(tmp_path / "B")
    assert "call permute again with the same arguments" in str(error.value)
    assert "from_array" not in str(error.value)
    with call() as found:
        np.testing.assert_array_equal(found[...], data.T)
        assert found.report.requests_before > 0


def test_a_resumed_call_reports_its_own_bytes_and_requests(
    stopped: tuple[npt.NDArray[np.float64], Callable[[], oc.Array]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    data, call = stopped
    written = stop_at(monkeypatch, None)
    with call() as found:
        report = found.report
    assert isinstance(report, oc.PermuteReport)
    # Both sides move whole pages only where boxes end on them, so a request may have more bytes.
    assert sum(written) <= report.bytes_written < data.nbytes
    assert sum(written) <= report.bytes_read
    assert min(report.reads, report.writes) >= len(written)
    assert f"resumed after {report.requests_before} blocks" in str(report)


def test_a_copy_from_another_format_counts_the_boxes_that_it_reads(tmp_path: Path) -> None:
    data = np.random.default_rng(0).random((30, 50))
    np.save(tmp_path / "A.npy", data)
    with oc.permute(tmp_path / "A.npy", tmp_path / "B", "transpose", **QUIET) as found:
        report = found.report
    assert isinstance(report, oc.PermuteReport)
    assert report.bytes_read == data.nbytes
    assert report.reads >= 1
    assert report.writes >= 1
    assert report.bytes_written >= data.nbytes
