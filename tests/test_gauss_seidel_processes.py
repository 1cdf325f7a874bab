"""Block Gauss-Seidel in several processes: each gets the iterates of the definition."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from iterative_cases import (
    DTYPES,
    assert_as_planned,
    block_of,
    dominant,
    on_disk,
    random,
    residual,
    swept_by_several,
)
from linpack import names_below, one_thread
from test_plan import RATES

import outcore as oc
from outcore._util import budget
from outcore.errors import DivergenceError, InvalidError
from outcore.linalg import gauss_seidel
from outcore.linalg.iterative.plan import Demands, MatrixLayout, Pass, iterative_geometry

__all__ = ["one_thread"]  # a fixture for every test here
N = 150


def solved(size: int, *arguments: Any, **options: Any) -> list[Any]:
    """Return the results of the call on each of several threads."""
    options = {"progress": False, **options}
    found = ThreadJob(size).run(lambda comm: gauss_seidel(*arguments, comm=comm, **options))
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def assert_alike(found: list[Any]) -> None:
    """Check that all have the same x and the same residuals."""
    x, report = found[0]
    for y, other in found[1:]:
        assert (x == y).all()
        assert report.history == other.history
        assert report.backward_error == other.backward_error
        assert report.notes == other.notes


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
@pytest.mark.parametrize("direction", ["forward", "alternating"])
def test_the_iterates_are_those_of_the_definition(
    tmp_path: Path, size: int, direction: Any
) -> None:
    """Ten blocks, the last one short, so that the processes have different numbers of them."""
    for dtype, omega, guess, order, chunks in (
        ("f8", 1.0, False, "C", (16, 64)),
        ("c16", 1.3, True, "F", (16, 64)),
        ("f8", 0.7, True, "C", (32, 32)),
    ):
        block = chunks[0]
        a, b = dominant(N, dtype), random((N, 2), dtype, 1)
        x0 = random((N, 2), dtype, 2)
        A = on_disk(tmp_path / "A", a, order, chunks)
        options: dict[str, Any] = {
            "x0": x0 if guess else None, "omega": omega, "direction": direction, "block": block,
            "tol": None, "max_sweeps": 4,
        }  # fmt: skip
        start = x0 if guess else np.zeros_like(b)
        expected, history = swept_by_several(a, b, start, block, omega, direction, 4, size)
        for pin, memory in ((None, 400_000), ("auto", 400_000), (0.5, 1 << 20), (1.0, 1 << 20)):
            found = solved(size, A, b, pin=pin, memory=memory, **options)
            assert_alike(found)
            for x, report in found:
                np.testing.assert_allclose(x, expected, rtol=0, atol=1e-14 * np.abs(expected).max())
                np.testing.assert_allclose(report.history, history, rtol=1e-6)
                assert_as_planned(report, memory)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(N,), (N, 3)])
def test_every_type_to_its_precision(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    a, b = dominant(N, dtype), random(shape, dtype, 1)
    A = on_disk(tmp_path / "A", a)
    tol = float(30 * np.finfo(dtype).eps)
    found = solved(3, A, b, tol=tol, memory=400_000)
    assert_alike(found)
    errors = np.abs(b - a @ found[0][0]).reshape(N, -1).sum(axis=0)
    sizes = np.abs(found[0][0]).reshape(N, -1).sum(axis=0)
    norms = np.abs(b).reshape(N, -1).sum(axis=0)
    # For complex numbers the norm of A is a lower bound within √2.
    backward = (errors / (np.linalg.norm(a, 1) * sizes + norms)).max()
    for x, report in found:
        assert (x.shape, x.dtype) == (b.shape, b.dtype)
        assert residual(a, x.reshape(N, -1), b.reshape(N, -1)) < tol
        assert backward / 10 < report.backward_error < tol
        assert report.notes[0] == "Gauss-Seidel inside each of 3 processes, Jacobi across"
        assert_as_planned(report, 400_000)


def test_the_norms_are_of_all_rows(tmp_path: Path) -> None:
    """Use an x far from the solution, so that rounding does not matter."""
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    a[3] *= 50
    A = on_disk(tmp_path / "A", a)
    x, _ = swept_by_several(a, b, np.zeros_like(b), 16, 1.0, "alternating", 1, 3)
    r = b - a @ x
    sizes = np.linalg.norm(a, 1) * np.abs(x).sum(axis=0) + np.abs(b).sum(axis=0)
    backward = (np.abs(r).sum(axis=0) / sizes).max()
    for _, report in solved(3, A, b, block=16, tol=None, max_sweeps=1):
        assert report.backward_error == pytest.approx(backward, rel=1e-9)
        assert f"‖b‖ = {residual(a, x, b):.2e}" in report.notes[-1]


def test_one_process_is_as_without_a_communicator(tmp_path: Path) -> None:
    a, b = dominant(N, "c16"), random((N, 2), "c16", 1)
    A = on_disk(tmp_path / "A", a)
    options: dict[str, Any] = {"memory": 400_000, "tol": 1e-10, "progress": False}
    x, report = gauss_seidel(A, b, **options)
    ((y, other),) = solved(1, A, b, **options)
    assert (x == y).all()
    assert report.history == other.history
    assert (report.method, report.notes) == (other.method, other.notes)
    assert (report.bytes_read, report.flops) == (other.bytes_read, other.flops)
    z, _ = gauss_seidel(A, b, direction="symmetric", **options)
    assert (x == z).all(), "the default"


@pytest.mark.parametrize(("size", "block"), [(4, 64), (5, 160), (3, 128)])
def test_more_processes_than_blocks(tmp_path: Path, size: int, block: int) -> None:
    a, b = dominant(N, "f8"), random(N, "f8", 1)
    A = on_disk(tmp_path / "A", a)
    options: dict[str, Any] = {"block": block, "tol": None, "max_sweeps": 3, "memory": 600_000}
    for pin, storage in (("auto", None), (0.5, None), (None, "f4")):
        found = solved(size, A, b, pin=pin, storage=storage, **options)
        assert_alike(found)
        expected, history = swept_by_several(
            a if storage is None else a.astype("f4").astype("f8"), b[:, None],
            np.zeros((N, 1)), block, 1.0, "alternating", 3, size,
        )  # fmt: skip
        for x, report in found:
            np.testing.assert_allclose(x, expected[:, 0], rtol=1e-12)
            np.testing.assert_allclose(report.history, history, rtol=1e-6, atol=1e-14)
            assert_as_planned(report, 600_000)
        idle = [report for _, report in found if report.bytes_read == 0]
        assert len(idle) == size - -(-N // block)
        assert list(tmp_path.iterdir()) == [tmp_path / "A"]


def test_without_a_block_each_process_has_one_at_least(tmp_path: Path) -> None:
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    for size in (2, 3, 4, 6):
        found = solved(size, A, b, tol=1e-12, memory=1 << 24)
        blocks = {block_of(report) for _, report in found}
        assert len(blocks) == 1
        assert -(-N // blocks.pop()) >= size
        assert all(report.bytes_read for _, report in found)
        assert residual(a, found[0][0], b) < 1e-12


def test_budgets_that_differ(tmp_path: Path) -> None:
    """The smallest budget sets the block size; each process keeps as many tiles as fit."""
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    budgets = [1 << 22, 160_000, 400_000]

    def work(comm: ThreadComm) -> Any:
        memory = budgets[comm.rank]
        return gauss_seidel(A, b, tol=1e-12, memory=memory, comm=comm, progress=False)

    found = ThreadJob(3).run(work)
    assert_alike(found)
    assert residual(a, found[0][0], b) < 1e-12
    assert len({block_of(report) for _, report in found}) == 1
    for (_, report), memory in zip(found, budgets, strict=True):
        assert_as_planned(report, memory)


def test_processes_of_a_machine_share_its_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(budget, "available_bytes", lambda: 12 << 20)
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    assert [r.memory_bytes for _, r in solved(3, A, np.ones(N))] == [2 << 20] * 3
    hosts = iter(["one", "other", "one"])
    monkeypatch.setattr("socket.gethostname", lambda: next(hosts))
    assert sorted(r.memory_bytes for _, r in solved(3, A, np.ones(N))) == [
        3 << 20,
        3 << 20,
        6 << 20,
    ]


def test_blocks_that_do_not_fit_go_to_files_and_these_go(tmp_path: Path) -> None:
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    before = names_below(tmp_path)
    refused = ThreadJob(2).run(
        lambda comm: gauss_seidel(A, b, block=16, memory=1, comm=comm, progress=False)
    )
    least = [int(str(each).split("need ")[1].split()[0]) for each in refused]
    memory = max(least)
    found = solved(2, A, b, block=16, memory=memory, tol=1e-12)
    for _, report in found:
        assert "diagonal blocks of 16 in a file" in report.method
        assert report.bytes_written > 0
        assert_as_planned(report, memory)
    assert residual(a, found[0][0], b) < 1e-12
    assert names_below(tmp_path) == before


@pytest.mark.parametrize("dtype", ["f8", "c16", "f4"])
def test_single_precision_storage(tmp_path: Path, dtype: str) -> None:
    """Each process copies its own rows; together they write as much as one process would."""
    n = 256
    a, b = dominant(n, dtype), random((n, 2), "f8" if dtype == "f4" else dtype, 1)
    A = on_disk(tmp_path / "A", a)
    narrow = a.astype("c8" if dtype == "c16" else "f4").astype("c16" if dtype == "c16" else "f8")
    expected, _ = swept_by_several(narrow, b, np.zeros_like(b), 32, 1.0, "alternating", 4, 3)
    for pin in (None, 0.25):
        found = solved(
            3, A, b, storage="f4", block=32, tol=None, max_sweeps=4, pin=pin, memory=1 << 20
        )
        assert_alike(found)
        for x, report in found:
            np.testing.assert_allclose(x, expected, rtol=0, atol=1e-13 * np.abs(expected).max())
            assert_as_planned(report, 1 << 20)
        written = sum(report.bytes_written for _, report in found)
        assert written == (0 if dtype == "f4" else a.nbytes // 2)
    assert list(tmp_path.iterdir()) == [tmp_path / "A"]


def test_together_they_keep_more_of_a_matrix(tmp_path: Path) -> None:
    """With a quarter of A in each budget, four processes read nothing during a sweep."""
    n = 512
    a, b = dominant(n, "f8"), random(n, "f8", 1)
    A = on_disk(tmp_path / "A", a)
    memory = 1_300_000

    def words_of_a_sweep(size: int) -> float:
        moved = [
            sum(
                report.bytes_read
                for _, report in solved(
                    size, A, b, block=16, memory=memory, tol=None, max_sweeps=sweeps,
                    direction="forward",
                )
            )
            for sweeps in (2, 3)
        ]  # fmt: skip
        return (moved[1] - moved[0]) / a.nbytes

    assert 0.4 < words_of_a_sweep(1) < 1
    assert words_of_a_sweep(4) == 0


@pytest.mark.parametrize("pin", [0.0, 0.25, 0.5])
def test_a_sweep_reads_what_is_not_pinned_of_its_rows(tmp_path: Path, pin: float) -> None:
    a, b = dominant(256, "f8"), random(256, "f8", 1)
    A = on_disk(tmp_path / "A", a)
    read = np.array([
        [report.bytes_read for _, report in solved(
            4, A, b, block=32, pin=pin, tol=None, max_sweeps=sweeps, memory=1 << 20
        )]
        for sweeps in (2, 3)
    ])  # fmt: skip
    assert (read[1] - read[0] == (1 - pin) * a.nbytes / 4).all()


def test_the_solution_on_disk(tmp_path: Path) -> None:
    a, b = dominant(N, "f8"), random((N, 2), "c16", 1)
    A, B = on_disk(tmp_path / "A", a), oc.from_array(b, tmp_path / "b", progress=False)
    found = solved(3, A, B, out=tmp_path / "x", tol=1e-12, memory=600_000)
    want = oc.open_array(tmp_path / "x")[...]
    assert residual(a, want, b) < 1e-12
    for x, report in found:
        assert isinstance(x, oc.Array)
        assert x.report is report
        assert (x[...] == want).all()
        assert report.peak_memory_bytes <= 600_000
    assert found[0][1].bytes_written >= want.nbytes
    assert [report.bytes_written for _, report in found[1:]] == [0, 0]
    assert {path.name for path in tmp_path.iterdir()} == {"A", "b", "x"}


def test_what_converges_by_one_process_may_diverge_by_several(tmp_path: Path) -> None:
    """Gauss-Seidel converges for a definite matrix. One block each is Jacobi, of radius 1.8."""
    a = np.kron(np.full((3, 3), 0.9) + 0.1 * np.eye(3), np.eye(32))
    A = on_disk(tmp_path / "A", a)
    _, report = gauss_seidel(A, np.ones(96), block=32, tol=1e-6, progress=False)
    assert report.history[-1] < 1e-6
    found = ThreadJob(3).run(
        lambda comm: gauss_seidel(A, np.ones(96), block=32, comm=comm, progress=False)
    )
    for each in found:
        assert isinstance(each, DivergenceError), each
        assert each.ratio == pytest.approx(1.8, rel=1e-6)
        assert "rank" not in str(each)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"direction": "forward", "pin": 0.25},
        {"pin": None, "block": 64},
        {"storage": "f4"},
        {"block": 256},
    ],
)
def test_the_plan_is_what_the_run_does(tmp_path: Path, options: dict[str, Any]) -> None:
    n = 300
    a, b = dominant(n, "f8"), random((n, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a, chunks=(16, 64))
    for size, memory in itertools.product((1, 2, 3), (1_300_000, 4 << 20)):
        known = {
            "n": n,
            "rhs": 2,
            "path": tmp_path,
            "rates": RATES,
            "chunks": (16, 64),
            "sweeps": 6,
        }
        if size == 1 and "direction" not in options:
            options = options | {"direction": "symmetric"}
        else:
            options = {k: v for k, v in options.items() if v != "symmetric"}
        plan = oc.plan("gauss_seidel", memory=memory, processes=size, **known, **options)
        reports = [
            report
            for _, report in solved(size, A, b, tol=None, max_sweeps=6, memory=memory, **options)
        ]
        assert plan.bytes_read == max(report.bytes_read for report in reports)
        assert plan.method in {report.method for report in reports}
        assert plan.processes == size
        # The largest part of x in six sweeps: more than its share, in whole strips.
        whole = 6 * n * 2 * 8
        assert plan.bytes_sent == 0 if size == 1 else whole / size <= plan.bytes_sent <= whole
        most = max(report.peak_memory_bytes for report in reports)
        assert most <= plan.peak_memory_bytes <= memory
        assert plan.flops == pytest.approx(
            max(reports, key=lambda report: report.bytes_read).flops, rel=0.05
        )


def test_plans_of_many_processes() -> None:
    one, many = (
        oc.plan("gauss_seidel", n=100_000, memory="8 GB", processes=p, rates=RATES) for p in (1, 16)
    )
    assert many.bytes_read < one.bytes_read / 16
    assert "100% of its" in many.method
    assert (many.processes, many.network_seconds) == (16, 0)
    slow = oc.plan(
        "gauss_seidel", n=100_000, memory="8 GB", processes=16, rates=RATES, link="1 kB/s"
    )
    assert slow.bound == "network"
    assert slow.network_seconds == pytest.approx(20 * 8 * 100_000 / 1000, rel=1e-3)
    assert many.peak_memory_bytes < 8e9
    with pytest.raises(InvalidError, match="processes must be an integer of at least 1"):
        oc.plan("gauss_seidel", n=1000, processes=0, rates=RATES)
    with pytest.raises(InvalidError, match="no option 'processes'"):
        oc.plan("jacobi", n=1000, processes=2, rates=RATES)


@pytest.mark.parametrize("memory", [300_000, 900_000])
@pytest.mark.parametrize("size", [2, 3, 7])
def test_the_shares_of_all_make_the_matrix(memory: int, size: int) -> None:
    kind = np.dtype("f8")
    layout = MatrixLayout(500, kind, kind, (16, 64), "C")
    kinds: tuple[Pass, ...] = ("setup", "sweep", "all")

    def share(rank: int, processes: int) -> Any:
        return iterative_geometry(
            layout, [Demands("x", 3, True)], memory, 1, block=32, rank=rank, processes=processes
        )

    whole, parts = share(0, 1), [share(rank, size) for rank in range(size)]
    for kind_of_pass in kinds:
        tiles = [tile for part in parts for tile in part.tiles_of(kind_of_pass)]
        assert tiles == whole.tiles_of(kind_of_pass)
        for part in parts:
            own = part.tiles_of(kind_of_pass)
            assert part.tiles_in(kind_of_pass) == len(own)
            assert part.unpinned(kind_of_pass) == sum(tile.chunk not in part.pins for tile in own)
    assert sum(part.elements("all") for part in parts) == 500**2
    assert [part.strips.count for part in parts] == [len(part.strips.tiles) for part in parts]
    assert max(part.strips.count for part in parts) == parts[0].strips.most
