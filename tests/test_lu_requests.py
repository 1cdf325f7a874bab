"""The cost of requests in planned times, and the method that the plan chooses for each disk."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from lu_by_method import RATES
from partial_cases import cut

import outcore as oc
from outcore._core import Arena
from outcore.linalg._lu.block_columns.cost import lower_gathers, partial_cost, source_gathers
from outcore.linalg._lu.block_columns.partial_geometry import PartialGeometry
from outcore.linalg._lu.block_columns.row_moves import RowMoves
from outcore.linalg._tiles.cost import Phase
from outcore.machine.rates import Rates


def rates(**given: float) -> Rates:
    return dataclasses.replace(RATES, **given)  # type: ignore[arg-type]


def test_time_of_a_phase_with_requests() -> None:
    """The disk serves bytes and requests one after the other; both take processor time too."""
    phase = Phase(np.dtype("f8"), 2_000_000_000, 1_000_000_000, flops=1e12, requests=100_000)
    slow = rates(read_bytes_s=1e9, write_bytes_s=1e9, request_s=1e-4)
    assert phase.io_seconds(slow) == pytest.approx(3 + 10)
    assert phase.seconds(slow) == pytest.approx(13)
    fast = rates(read_bytes_s=1e12, write_bytes_s=1e12, request_s=1e-9)
    alone = dataclasses.replace(phase, requests=0)
    assert phase.seconds(fast) > alone.seconds(fast) > phase.compute_seconds(fast) == 1


def runs(rows: np.ndarray, tile: int, first: int) -> int:
    """Count the runs of consecutive rows in lists of a tile's rows each."""
    begins = np.diff(rows, prepend=-2) != 1
    begins[::tile] = True
    return int(begins[first:].sum())


def counted(g: PartialGeometry, k: int, moves: list[RowMoves]) -> tuple[int, int]:
    """Count the runs of L, and of a row of A, that the update of block column `k` gathers."""
    rows, lists = np.arange(g.n), [np.arange(g.n)]
    for moved in reversed(moves):
        rows = moved.before(rows)
        lists.append(rows)
    lower = sum(
        runs(lists[k - 1 - c], g.rows, first)
        for c, s in enumerate(g.block_columns[:k])
        for first in range(s.origin, s.origin + s.width, g.segment)
    )
    return lower, runs(lists[-1], g.rows, 0)


@pytest.mark.parametrize(("n", "share"), [(8192, 32), (16384, 32), (16384, 64)])
def test_gathers_of_a_random_matrix(n: int, share: int) -> None:
    g = cut(n, "f8", n * n * 8 // share, "C", (512, 512))
    draw, moves, total = np.random.default_rng(5), [], [0, 0]
    for k, s in enumerate(g.block_columns):
        lower, source = counted(g, k, moves)
        assert lower_gathers(g, k) == pytest.approx(lower, rel=0.05, abs=100)
        across = -(-(s.origin % 512 + s.width) // 512)
        assert source_gathers(g, k) == pytest.approx(source * across, rel=0.05, abs=100)
        total[0] += lower
        pivots = draw.integers(np.arange(s.origin, s.origin + s.width), n)
        moves.append(RowMoves.of(pivots.astype(np.int32), s.origin))
    assert sum(lower_gathers(g, k) for k in range(len(moves))) == pytest.approx(total[0], rel=0.01)
    assert sum(phase.requests for phase in partial_cost(g).phases) > total[0]


def test_rows_of_wide_chunks_are_gathered_one_by_one() -> None:
    """In a chunk wider than the read, no two rows are adjacent."""
    n = 8192
    g = cut(n, "f8", n * n * 8 // 32, "C", (256, 2048))
    for k, s in enumerate(g.block_columns):
        chunks = {left // 2048 for left in range(s.origin, s.origin + s.width, 64)}
        whole = sum(s.origin <= c * 2048 and (c + 1) * 2048 <= s.origin + s.width for c in chunks)
        assert source_gathers(g, k) >= n * (len(chunks) - whole)


def test_parts_of_rows_come_without_a_small_buffer(tmp_path: Path) -> None:
    """The reads go straight to memory: a buffer for two of them would serialize them."""
    model = np.arange(64 * 4096.0).reshape(64, 4096)
    with oc.from_array(model, tmp_path / "A", chunks=(64, 4096), progress=False) as array:
        arena = Arena(1 << 20)
        file = array.open_file(arena, 16 << 10)
        target = np.ndarray((64, 1024), np.float64, memoryview(arena.allocate(64 * 1024 * 8)))
        before = arena.peak_bytes
        file.submit_read_rows(np.arange(64), 1024, target).wait()
        np.testing.assert_array_equal(target, model[:, 1024:2048])
        assert arena.peak_bytes == before
        assert file.counters()[0] == target.nbytes


def test_the_method_depends_on_the_disk() -> None:
    """Choose slabs where bytes are cheap and block columns elsewhere; requests count too."""
    options = {"n": 16384, "memory": "64 MiB", "order": "C"}

    def method(bytes_s: float, request_s: float) -> str:
        found = rates(
            read_bytes_s=bytes_s, write_bytes_s=bytes_s, request_s=request_s,
            gemm_flops_s=dict.fromkeys(RATES.gemm_flops_s, 2e11),
        )  # fmt: skip
        verbs = {verb: oc.plan(verb, rates=found, **options) for verb in ("lu", "solve")}
        assert verbs["lu"].method == verbs["solve"].method
        return "block columns" if "block columns" in verbs["lu"].method else "slabs"

    assert method(3.5e9, 25e-6) == "slabs"
    assert method(2e8, 25e-6) == "block columns"
    assert method(2e8, 1e-3) == "slabs"
    assert method(2e8, 1e-9) == "block columns"


def test_slabs_take_as_long_as_was_measured() -> None:
    """Compare with medians of seven rounds in docs/performance.md, at the rates measured before."""
    found = rates(
        read_bytes_s=2.43e9, write_bytes_s=3.5e9, request_s=7e-6,
        gemm_flops_s=dict.fromkeys(RATES.gemm_flops_s, 1.64e11),
    )  # fmt: skip

    def seconds(memory: str, order: str, **options: str) -> float:
        return oc.plan("lu", n=16384, memory=memory, order=order, rates=found, **options).seconds

    assert seconds("256 MiB", "F") == pytest.approx(21.3, rel=0.05)
    assert seconds("64 MiB", "C", method="slabs") == pytest.approx(28.9, rel=0.1)
    chosen = oc.plan("lu", n=16384, memory="64 MiB", order="C", rates=found)
    assert "block columns" in chosen.method


def test_neither_disk_nor_arithmetic_is_hidden_for_nothing() -> None:
    phase = Phase(np.dtype("f8"), 1_000_000_000, flops=4e12, slowdown=0.25)
    alone = dataclasses.replace(phase, slowdown=0.0)
    slow, fast = rates(read_bytes_s=1e8), rates(read_bytes_s=1e9)
    assert phase.seconds(slow) == pytest.approx(
        alone.seconds(slow) + alone.compute_seconds(slow) / 4, rel=0.01
    )
    assert phase.seconds(fast) == pytest.approx(alone.seconds(fast) + alone.io_seconds(fast) / 4)
