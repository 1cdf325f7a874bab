"""Copies into other chunks: the elements, and their bytes and requests against the plan."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import outcore as oc
from outcore.convert import rechunk_plan
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
