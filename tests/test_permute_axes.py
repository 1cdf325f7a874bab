"""Permutations by axes of any extents: errors, reports and plans."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import outcore

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert.targets import ArrayTarget
from outcore.errors import IncompleteError, InvalidError
from outcore.machine.rates import NOMINAL

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
    """Stop a rotation; return its data, and the call."""
    data = np.random.default_rng(0).random(SHAPE)
    oc.from_array(data, tmp_path / "A", chunks=(1, 95, 80), **QUIET).close()
    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)

    def call() -> oc.Array:
        return oc.permute(
            tmp_path / "A", tmp_path / "B", "rotate", chunks=(5, 32, 16), memory="1 MB", **QUIET
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
        np.testing.assert_array_equal(found[...], np.rot90(data))
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


@pytest.mark.parametrize("kind", ["transpose", "reverse"])
def test_plans_of_copies_count_requests(tmp_path: Path, kind: str) -> None:
    data = np.random.default_rng(0).random((600, 601))
    oc.from_array(data, tmp_path / "A", chunks=(1, 601), **QUIET).close()
    options: dict[str, Any] = {"chunks": (1, 600), "memory": "1 MB"}
    source, target = tmp_path / "A", tmp_path / "B"
    if kind == "reverse":
        options["chunks"] = (1, 601)
    plan = oc.plan("permute", source=source, path=target, kind=kind, rates=NOMINAL, **options)
    with oc.permute(source, target, kind, **options, **QUIET) as found:
        expected = data.T if kind == "transpose" else data[::-1, ::-1]
        np.testing.assert_array_equal(found[...], expected)
        report = found.report
    assert isinstance(report, oc.PermuteReport)
    assert plan.is_exact == (kind == "transpose")
    assert min(plan.reads, plan.writes) >= 600
    if plan.is_exact:
        for name in ("passes", "bytes_read", "reads", "bytes_written", "writes"):
            assert getattr(plan, name) == getattr(report, name), name
    moved = plan.bytes_read / NOMINAL.read_bytes_s + plan.bytes_written / NOMINAL.write_bytes_s
    requests = (plan.reads + plan.writes) * NOMINAL.request_s
    assert plan.seconds == pytest.approx(moved + requests)


def test_a_transpose_takes_the_passes_of_rechunk(tmp_path: Path) -> None:
    oc.create_array(tmp_path / "A", (6000, 6001), "f8", chunks=(1, 6001)).close()
    options: dict[str, Any] = {"chunks": (1, 6000), "memory": "8 MB", "rates": NOMINAL}
    call: dict[str, Any] = {"source": tmp_path / "A", "path": tmp_path / "B", **options}
    plan = oc.plan("permute", kind="transpose", **call)
    other = oc.plan("rechunk", transpose=(1, 0), **call)
    assert plan.passes == other.passes > 1
    assert (plan.reads, plan.writes) == (other.reads, other.writes)
    assert plan.between_bytes >= 6000 * 6001 * 8


@pytest.mark.parametrize(("text", "complement"), [("0x3", 3), ("0b101", 5), ("6", 6)])
def test_the_command_takes_complements_with_a_base(
    tmp_path: Path, text: str, complement: int
) -> None:
    data = np.arange(16.0)
    oc.from_array(data, tmp_path / "A", chunks=4, **QUIET).close()
    call = ["permute", tmp_path / "A", tmp_path / "B", "--kind", "gray"]
    outcore(*call, "--complement", text, "--chunks", "4", "--chunk-order", "column-major")
    with oc.open_array(tmp_path / "B") as found:
        index = np.arange(16)
        np.testing.assert_array_equal(found[:][(index ^ index >> 1) ^ complement], data)
        assert found.metadata.chunk_order == "column-major"
    wrong = outcore(*call, "--complement", "0y1")
    assert wrong.exit_code == 2
    assert "need an integer such as 5, 0x5 or 0b101, have '0y1'; " in wrong.output


def test_a_raw_file_is_refused_with_a_way_to_copy_it(tmp_path: Path) -> None:
    data = np.arange(12.0)
    data.tofile(tmp_path / "raw.bin")
    for call in (oc.permute, lambda src, out, kind: oc.plan("permute", source=src, kind=kind)):
        with pytest.raises(InvalidError, match="raw file, copy it with from_array"):
            call(tmp_path / "raw.bin", tmp_path / "B", "transpose")
    with oc.from_array(tmp_path / "raw.bin", tmp_path / "A", shape=(3, 4), dtype="f8", **QUIET):
        pass
    with oc.permute(tmp_path / "A", tmp_path / "B", "transpose", **QUIET) as found:
        np.testing.assert_array_equal(found[...], data.reshape(3, 4).T)
