"""Copies into other chunks: the elements, and their bytes and requests against the plan."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import outcore as oc
from outcore.array_files import blocks_done
from outcore.convert import rechunk_plan, targets
from outcore.errors import ExistsError, IncompleteError, JournalError
from outcore.machine.rates import NOMINAL


def let_small_arrays_need_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rechunk_plan, "WORTH_BYTES", 0)
    monkeypatch.setattr(rechunk_plan, "_BLOCK_BYTES", 0)


def made(
    path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str, order: str
) -> tuple[Any, oc.Array]:
    model = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    return model, oc.from_array(model, path / "A", chunks=chunks, order=order, progress=False)


CASES = [
    # Planes to columns: long runs in one pass.
    ((64, 128, 128), (1, 128, 128), (32, 16, 16), "f4", "CC", 2_000_000, 1),
    ((61, 127, 129), (1, 127, 129), (61, 5, 129), "f8", "CC", 2_000_000, 1),
    ((64, 128, 128), (7, 30, 128), (20, 128, 11), "c16", "CF", 6_000_000, 2),
    # Rows to columns of a matrix: two passes, or more.
    ((1024, 1024), (1, 1024), (1024, 1), "f8", "CC", 2_000_000, 3),
    ((1000, 1030), (3, 1030), (1000, 7), "f4", "FC", 800_000, 2),
    ((1024, 1024), (1, 1024), (1024, 1), "f8", "CF", 500_000, 4),
    ((70_001,), (1000,), (3001,), "i2", "CC", 400_000, 1),
]


@pytest.mark.parametrize(("shape", "before", "after", "dtype", "orders", "memory", "passes"), CASES)
def test_bytes_and_requests_are_as_planned(
    tmp_path: Path, shape: Any, before: Any, after: Any, dtype: str, orders: str, memory: int,
    passes: int, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if passes > 1:
        let_small_arrays_need_passes(monkeypatch)
    model, A = made(tmp_path, shape, before, dtype, orders[0])
    options = {"chunks": after, "order": orders[1], "memory": memory}
    plan = oc.plan("rechunk", source=A, path=tmp_path / "B", rates=NOMINAL, **options)
    with oc.rechunk(A, tmp_path / "B", progress=False, **options) as B:
        np.testing.assert_array_equal(B[...], model)
        assert (B.chunks, B.order, B.dtype) == (after, orders[1], model.dtype)
        r = B.report
    assert isinstance(r, oc.CopyReport)
    assert plan.is_exact
    assert (r.bytes_read, r.reads, r.bytes_written, r.writes) == (
        plan.bytes_read, plan.reads, plan.bytes_written, plan.writes,
    )  # fmt: skip
    assert r.between == plan.between
    assert plan.passes == 1 + len(plan.between) == passes
    assert r.peak_memory_bytes <= plan.peak_memory_bytes <= memory
    assert sorted(p.name for p in (tmp_path / "B").iterdir()) == [
        "c", "outcore.generation", "zarr.json",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("axes", "orders"), [((2, 0, 1), "CC"), ((1, 2, 0), "FC"), ((2, 1, 0), "CF")]
)
def test_transposes_are_counted_too(tmp_path: Path, axes: Any, orders: str) -> None:
    model, A = made(tmp_path, (40, 70, 90), (7, 70, 30), "f4", orders[0])
    options = {
        "chunks": (30, 20, 16), "order": orders[1], "memory": 600_000, "transpose": axes,
    }  # fmt: skip
    plan = oc.plan("rechunk", source=A, path=tmp_path / "B", rates=NOMINAL, **options)
    with oc.rechunk(A, tmp_path / "B", progress=False, **options) as B:
        np.testing.assert_array_equal(B[...], model.transpose(axes))
        r = B.report
    assert isinstance(r, oc.CopyReport)
    assert plan.is_exact
    assert (r.bytes_read, r.reads, r.bytes_written, r.writes) == (
        plan.bytes_read, plan.reads, plan.bytes_written, plan.writes,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["zarr", "hdf5", "npy"])
def test_other_formats(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    let_small_arrays_need_passes(monkeypatch)
    model = np.arange(512 * 500, dtype="f8").reshape(512, 500)
    zarr.create_array(tmp_path / "rows.zarr", data=model, chunks=(1, 500))
    name = tmp_path / f"out.{kind}"
    given = {} if kind == "npy" else {"chunks": (512, 1)}
    report = oc.rechunk(
        tmp_path / "rows.zarr", name, format=kind, transpose=(1, 0) if kind == "npy" else None,
        memory=1_000_000, progress=False, **given,
    )  # fmt: skip
    assert report.times_read == 1.0, "each chunk is decoded once"
    assert report.between
    with oc.from_array(name, tmp_path / "back", progress=False) as back:
        np.testing.assert_array_equal(back[...], model.T if kind == "npy" else model)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["back", name.name, "rows.zarr"]
    with pytest.raises(ExistsError):
        oc.rechunk(model, name, format=kind, progress=False)


def many_passes(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return the arguments of a copy in three passes, which notes each block."""
    let_small_arrays_need_passes(monkeypatch)
    monkeypatch.setattr(blocks_done, "NOTE_S", 0.0)
    return {"chunks": (512, 1), "memory": 600_000, "progress": False}


@contextmanager
def watched_writes(
    monkeypatch: pytest.MonkeyPatch, at: int | None
) -> Iterator[list[tuple[str, tuple[int, ...]]]]:
    """Yield the list of writes; let number `at` fail."""
    written: list[tuple[str, tuple[int, ...]]] = []
    write = targets.ArrayTarget.write

    def watched(target: Any, box: Any, data: Any) -> Any:
        if len(written) == at:
            raise ZeroDivisionError
        written.append((target._array.path.name, tuple(s.start for s in box)))
        return write(target, box, data)

    with monkeypatch.context() as patch:
        patch.setattr(targets.ArrayTarget, "write", watched)
        yield written


@pytest.mark.parametrize("share", [0.1, 0.4, 0.6, 0.95])
def test_it_resumes_in_each_pass(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = many_passes(monkeypatch)
    model, A = made(tmp_path, (512, 500), (1, 500), "f8", "C")
    with watched_writes(monkeypatch, None) as all_writes:
        oc.rechunk(A, tmp_path / "whole", **options).close()
    with (
        watched_writes(monkeypatch, int(share * len(all_writes))) as first,
        pytest.raises(ZeroDivisionError),
    ):
        oc.rechunk(A, tmp_path / "B", **options)
    with pytest.raises(IncompleteError, match="again with the same arguments"):
        oc.open_array(tmp_path / "B")
    # Another budget does not change the blocks that are done.
    with watched_writes(monkeypatch, None) as second:
        B = oc.rechunk(A, tmp_path / "B", **options | {"memory": 2_000_000})
    np.testing.assert_array_equal(B[...], model)
    assert set(first) | set(second) == {
        ("B" if name == "whole" else name, at) for name, at in all_writes
    }
    assert len(set(first) & set(second)) <= 8, "no more than the blocks in flight are repeated"
    assert isinstance(B.report, oc.CopyReport)
    assert len(B.report.between) == 2
    assert "in 3 passes" in str(B.report)
    assert sorted(p.name for p in (tmp_path / "B").iterdir()) == [
        "c", "outcore.generation", "zarr.json",
    ]  # fmt: skip


def test_a_source_that_changed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = many_passes(monkeypatch)
    model, A = made(tmp_path, (512, 500), (1, 500), "f8", "C")
    with watched_writes(monkeypatch, 5), pytest.raises(ZeroDivisionError):
        oc.rechunk(A, tmp_path / "B", **options)
    A[0, 0] = 7.0
    for changed in ({}, {"transpose": (0, 1)}):
        with pytest.raises(JournalError, match="if_exists='overwrite'"):
            oc.rechunk(A, tmp_path / "B", **options, **changed)
    with oc.rechunk(A, tmp_path / "B", **options, if_exists="overwrite") as B:
        assert B[0, 0] == 7.0
        np.testing.assert_array_equal(B[1:], model[1:])
    with watched_writes(monkeypatch, 5), pytest.raises(ZeroDivisionError):
        oc.rechunk(model, tmp_path / "C", **options)
    names = {p.name for p in (tmp_path / "C").iterdir()}
    assert not names & set(blocks_done.BETWEEN), "a copy from memory restarts, so it keeps nothing"
    with oc.rechunk(model, tmp_path / "C", **options) as C:
        np.testing.assert_array_equal(C[...], model)
