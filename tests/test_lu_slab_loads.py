"""Slabs load from a matrix in any layout as planned, and from a copy where that reads less."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.linalg
from linpack import lapack_ratio, one_thread, random_matrix
from lu_by_method import RATES, factor_by
from stopping import bits, kill_at_line, stop_after

import outcore as oc
from outcore.errors import NonFiniteError
from outcore.layout.disk_reads import DiskReads
from outcore.linalg import lu_factor
from outcore.linalg._geometry.factor_plan import lu_geometry
from outcore.linalg._geometry.segments import Layout
from outcore.linalg._lu.slabs.loads import SlabLoads

__all__ = ["one_thread"]  # a fixture for every test here

DIRECT = [
    (512, "f8", 200_000, "C", (64, 32)),
    (500, "f8", 200_000, "C", (64, 511)),
    (1024, "f8", 400_000, "C", (1, 1024)),
    (511, "f8", 300_000, "F", (100, 37)),
    (511, "f4", 300_000, "C", (100, 37)),
    (300, "c16", 500_000, "C", (256, 700)),
    (1000, "f8", 700_000, "F", (1000, 100)),
    (400, "f8", 300_000, "C", (3, 999)),
    (96, "f8", 500_000, "C", (16, 20_000)),
    (96, "c16", 500_000, "F", (20_000, 16)),
]
"""Runs of whole pages and of parts, gaps that are read and gaps that are not, padding."""

COPIED = [
    (1024, "f8", 700_000, "C", (128, 1024)),
    (640, "f8", 300_000, "C", (256, 768)),
    (500, "c8", 300_000, "C", (60, 512)),
    (300, "c16", 400_000, "C", (64, 320)),
    (512, "f8", 262_144, "C", (512, 512)),
]

IN_PARTS = [
    (1024, "f8", 300_000, "C", (16, 1024)),
    (500, "f8", 200_000, "C", (64, 512)),
    (700, "f4", 150_000, "C", (48, 1024)),
    (500, "c8", 200_000, "C", (500, 512)),
    (600, "c16", 400_000, "C", (7, 640)),
    (960, "f8", 300_000, "C", (16, 960)),
]
"""Rows of chunks too wide for a row of tiles in memory: whole rows are read more than once."""


@pytest.mark.exhaustive(every=2)
@pytest.mark.parametrize(("n", "dtype", "memory", "order", "chunks"), DIRECT + COPIED + IN_PARTS)
def test_moves_what_was_planned(
    tmp_path: Path, n: int, dtype: str, memory: int, order: str, chunks: tuple[int, int]
) -> None:
    is_copied = (n, dtype, memory, order, chunks) in COPIED + IN_PARTS
    a = random_matrix(n, dtype)
    lu = factor_by("slabs", tmp_path / "Z", a, memory, order=order, chunks=chunks)
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30
    report = lu.report
    assert report is not None
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written
    assert report.peak_memory_bytes <= memory
    g = lu_geometry(n, np.dtype(dtype), memory)
    loaded = report.bytes_read - g.factor_bytes_read()
    if is_copied:
        # The copy reads the matrix once, or once for each part of its columns, and the tiles once.
        wide = -(-n // chunks[1]) * chunks[1]
        passes = len(SlabLoads(g, Layout(order, chunks), DiskReads()).copy.parts(0))
        assert (passes > 1) == ((n, dtype, memory, order, chunks) in IN_PARTS)
        assert loaded <= (passes * n * wide + g.height * n) * a.itemsize * 1.01
        assert report.bytes_written == 2 * g.factor_bytes_written()
    else:
        assert report.bytes_written == g.factor_bytes_written()
    with oc.open_array(tmp_path / "Z") as A:
        np.testing.assert_array_equal(A[...], a)
        disk = DiskReads(*_granularity(A))
    loads = SlabLoads(g, Layout(order, chunks), disk)
    assert loads.is_copied == is_copied
    plan = oc.plan(
        "lu", n=n, dtype=dtype, memory=memory, order=order, chunks=chunks, method="slabs",
        rates=oc.Rates(**RATES.__dict__ | {"block_bytes": disk.block_bytes}),
    )  # fmt: skip
    assert (plan.bytes_read, plan.bytes_written) == (report.bytes_read, report.bytes_written)
    assert report.peak_memory_bytes <= plan.peak_memory_bytes <= memory
    assert ("copied to tiles" in plan.method) == is_copied


def _granularity(A: oc.Array) -> tuple[int, int]:
    file = A.open_file(oc._core.Arena(1 << 20), 1 << 16)
    return file.read_granularity


def test_narrow_slabs_of_a_large_matrix_read_a_copy() -> None:
    """In default chunks and C order: as many words as in F order, and 2 n² for the copy."""
    n, memory = 16384, 64 << 20
    plans = [
        oc.plan("lu", n=n, memory=memory, method="slabs", order=order, rates=RATES)
        for order in "CF"
    ]
    words = [(plan.bytes_read + plan.bytes_written) / 8 / n**2 for plan in plans]
    assert words[0] == words[1] + 2
    # With wide slabs of this matrix, a copy would cost more than it saves.
    wide = oc.plan("lu", n=n, memory=memory * 8, order="C", rates=RATES)
    assert "copied" not in wide.method


def test_rows_of_chunks_that_are_whole_rows_go_by_a_few_times() -> None:
    """A 32nd of the matrix as budget needs few passes; slabs would each read most of it."""
    for n in (4096, 8192, 16384):
        plan = oc.plan(
            "lu", n=n, memory=n * n * 8 // 32, method="slabs", order="C", chunks=(16, n),
            rates=RATES,
        )  # fmt: skip
        best = oc.plan("lu", n=n, memory=n * n * 8 // 32, method="slabs", rates=RATES)
        words = [(each.bytes_read + each.bytes_written) / 8 / n**2 for each in (plan, best)]
        assert words[0] <= words[1] + 6
        assert plan.peak_memory_bytes <= n * n * 8 // 32


@pytest.mark.exhaustive(keep=2)
@pytest.mark.parametrize("case", [COPIED[1], IN_PARTS[4], COPIED[0], IN_PARTS[0]])
def test_a_copy_is_made_again_of_what_is_left(tmp_path: Path, case: Any) -> None:
    n, dtype, memory, order, chunks = case
    a = random_matrix(n, dtype)
    whole = factor_by("slabs", tmp_path / "W", a, memory, order=order, chunks=chunks)
    path = tmp_path / "Z"
    oc.from_array(a, path, order=order, chunks=chunks, progress=False).close()

    stop_after(3, path, memory=memory, method="slabs", threads=1)
    lu = lu_factor(path, memory=memory, method="slabs", threads=1, progress=False)
    for have, want in zip(bits(lu), bits(whole), strict=True):
        np.testing.assert_array_equal(have, want)
    report = lu.report
    assert report is not None
    assert report.notes[0].startswith("resumed at panel")
    assert report.bytes_read == report.planned_bytes_read
    assert report.bytes_written == report.planned_bytes_written
    assert whole.report is not None
    assert report.bytes_written < whole.report.bytes_written


@pytest.mark.parametrize("case", [COPIED[1], IN_PARTS[0]])
def test_a_process_that_dies_while_it_copies(tmp_path: Path, case: Any) -> None:
    n, dtype, memory, order, chunks = case
    a = random_matrix(n, dtype)
    path = tmp_path / "Z"
    oc.from_array(a, path, order=order, chunks=chunks, progress=False).close()

    def run() -> oc.linalg.LUFactor:
        return lu_factor(path, memory=memory, method="slabs", threads=1, progress=False)

    assert kill_at_line(60, run, ("_geometry/tile_copy.py",))
    assert (tmp_path / "Z.lu").exists()
    lu = run()
    np.testing.assert_array_equal(lu.piv, scipy.linalg.lu_factor(a)[1])
    assert lapack_ratio(a, lu) < 30


@pytest.mark.parametrize("case", [COPIED[1], IN_PARTS[0]])
def test_what_is_not_finite_is_found_in_a_copy(tmp_path: Path, case: Any) -> None:
    n, dtype, memory, order, chunks = case
    a = random_matrix(n, dtype)
    a[n - 1, 5] = np.nan
    with pytest.raises(NonFiniteError) as refused:
        factor_by("slabs", tmp_path / "Z", a, memory, order=order, chunks=chunks)
    assert refused.value.index == (n - 1, 5)
