"""Gauss-Seidel in several processes of which one fails or calls otherwise: all get an error."""

import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import NonblockingComm, Said, ThreadComm, ThreadJob, TorchComm
from iterative_cases import dominant, on_disk, random, residual, swept_by_several
from linpack import Matrix, names_below, one_thread
from timeouts import Clock

import outcore as oc
from outcore._util import signals
from outcore.errors import (
    BudgetError,
    BusyError,
    DiskError,
    ExistsError,
    Interrupted,
    InvalidError,
    NonFiniteError,
    OutcoreError,
    SingularMatrixError,
)
from outcore.linalg import gauss_seidel
from outcore.linalg._tiles import columns
from outcore.linalg.iterative.strips.diagonal_blocks import DiagonalBlocks
from outcore.processes.sharing import Sharing

__all__ = ["one_thread"]  # a fixture for every test here
N, SIZE = 150, 3
here = threading.local()


def run(call: Callable[[int, Any], Any], size: int = SIZE) -> list[Any]:
    """Run `call` with each rank and communicator; return results or errors, far below timeouts."""

    def work(comm: ThreadComm) -> Any:
        here.rank = comm.rank
        return call(comm.rank, comm)

    return ThreadJob(size, patience_s=60).run(work)


def assert_told(found: list[Any], who: int, kind: type[BaseException], message: str) -> None:
    """Check that one rank has the error, and the others one of the same kind that names it."""
    for rank, each in enumerate(found):
        assert type(each) is kind, found
        assert message in str(each)
        if kind is not Interrupted:
            assert str(each).startswith(f"rank {who}: ") == (rank != who)


@pytest.mark.parametrize("who", range(SIZE))
def test_a_number_that_is_none(tmp_path: Path, who: int) -> None:
    a = dominant(N, "f8")
    # Ten blocks of 16: the ranks have 3, 3 and 4.
    row = (10, 70, 140)[who]
    for column in (row, 0 if who else 149):
        bad = a.copy()
        bad[row, column] = np.nan
        A = on_disk(tmp_path / "A", bad)
        for storage in (None, "f4"):
            found = run(
                lambda rank, comm, A=A, storage=storage: gauss_seidel(  # type: ignore[misc]
                    A, np.ones(N), block=16, comm=comm, storage=storage, progress=False
                )
            )
            assert_told(found, who, NonFiniteError, f"A[{row}, {column}] is nan")
            assert [each.index for each in found] == [(row, column)] * SIZE
    assert list(tmp_path.iterdir()) == [tmp_path / "A"]


def test_a_singular_block(tmp_path: Path) -> None:
    a = dominant(N, "f8")
    a[64:80, 71] = 0
    A = on_disk(tmp_path / "A", a)
    found = run(lambda rank, comm: gauss_seidel(A, np.ones(N), block=16, comm=comm, progress=False))
    assert_told(found, 1, SingularMatrixError, "rows 64 to 79 is singular")
    assert [each.info for each in found] == [72] * SIZE


def test_a_sum_of_rows_of_all_that_overflows(tmp_path: Path) -> None:
    """Each process's part of the column sum is finite."""
    a = np.eye(48) * 3
    a[:, 3] = 1e307 * (np.arange(48)[::-1] / 48)
    A = on_disk(tmp_path / "A", a, chunks=(16, 48))
    found = run(
        lambda rank, comm: gauss_seidel(
            A, np.ones(48), tol=None, max_sweeps=1, comm=comm, progress=False
        )
    )
    for each in found:
        assert isinstance(each, InvalidError), found
        assert "overflow" in str(each)


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("who", range(SIZE))
@pytest.mark.parametrize("at", [0, 1, 2, 5])
def test_a_process_that_is_stopped(
    tmp_path: Path, who: int, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every process gets an x to resume from."""
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    solve, solved = DiagonalBlocks.solve, [0] * SIZE

    def stopping(self: DiagonalBlocks, number: int, Z: Matrix) -> None:
        solved[here.rank] += 1
        if here.rank == who and solved[who] > at:
            raise KeyboardInterrupt
        solve(self, number, Z)

    monkeypatch.setattr(DiagonalBlocks, "solve", stopping)
    options: dict[str, Any] = {"block": 16, "tol": 1e-12, "progress": False}
    found = run(lambda rank, comm: gauss_seidel(A, b, comm=comm, out=tmp_path / "x", **options))
    steps = at // (3 if who < 2 else 4)
    assert_told(found, who, Interrupted, f"Gauss-Seidel of A stopped after {steps} steps")
    for rank, each in enumerate(found):
        assert ("because rank" in str(each)) == (rank != who)
        assert each.x.shape == b.shape
    # The first process keeps the iterate of a step for a call with the same arguments.
    assert {path.name for path in tmp_path.iterdir()} == ({"A", "x"} if steps else {"A"})
    monkeypatch.undo()
    x, _ = gauss_seidel(A, b, x0=found[0].x, **options)
    assert residual(a, x, b) < 1e-12


def test_progress_that_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "outcore._util.progress.Meter.advance", lambda self, work: self._tell(0.5, 1.0)
    )
    A = on_disk(tmp_path / "A", dominant(N, "f8"))

    def progress(fraction: float, left: float) -> None:
        if here.rank == 2:
            raise ZeroDivisionError("of the user")

    found = run(lambda rank, comm: gauss_seidel(A, np.ones(N), comm=comm, progress=progress))
    assert isinstance(found[2], ZeroDivisionError)
    for each in found[:2]:
        assert type(each) is OutcoreError
        assert str(each).startswith("rank 2: ZeroDivisionError: of the user (Raised by progress=")


@pytest.mark.parametrize("who", range(SIZE))
def test_a_budget_that_is_too_small(tmp_path: Path, who: int) -> None:
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    found = run(
        lambda rank, comm: gauss_seidel(
            A, np.ones(N), comm=comm, memory=1000 if rank == who else "1 GiB", progress=False
        )
    )
    assert_told(found, who, BudgetError, "raise memory=")


def test_places_that_are_taken(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    oc.from_array(np.zeros(3), tmp_path / "x", progress=False)
    options: dict[str, Any] = {"progress": False, "out": tmp_path / "x"}
    found = run(lambda rank, comm: gauss_seidel(A, np.ones(N), comm=comm, **options))
    assert_told(found, 0, ExistsError, "exists")
    found = run(
        lambda rank, comm: gauss_seidel(A, np.ones(N), comm=comm, if_exists="overwrite", **options)
    )
    assert [x.shape for x, _ in found] == [(N,)] * SIZE
    with oc.storage.volumes.exclusive(
        oc.storage.volumes.place(tmp_path / ".A.f4.1.filling"), "test"
    ):
        found = run(
            lambda rank, comm: gauss_seidel(
                A, np.ones(N), comm=comm, storage="f4", block=16, progress=False
            )
        )
    assert_told(found, 1, BusyError, "another call on the same matrix")
    assert {path.name for path in tmp_path.iterdir()} <= {"A", "x", ".A.f4.1.filling"}


def test_a_solution_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Any, *arguments: Any) -> None:
        raise DiskError("the disk is gone")

    monkeypatch.setattr("outcore.linalg._rhs.columns.Columns.store", fail)
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    found = run(
        lambda rank, comm: gauss_seidel(
            A, np.ones(N), comm=comm, out=tmp_path / "x", progress=False
        )
    )
    assert_told(found, 0, DiskError, "the disk is gone")
    assert list(tmp_path.iterdir()) == [tmp_path / "A"]


@pytest.mark.exhaustive(each=True)
@pytest.mark.parametrize("at", [0, 1])
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"omega": 1.1}, "need the same omega= on every rank, have 1."),
        ({"block": 32}, "need the same block= on every rank"),
        ({"tol": 1e-6}, "need the same tol= on every rank"),
        ({"tol": None}, "need the same tol= on every rank"),
        ({"max_sweeps": 7}, "need the same number of sweeps on every rank"),
        ({"direction": "forward"}, "need the same direction= on every rank"),
        ({"storage": "f4"}, "need the same storage= on every rank"),
        ({"x0": np.ones(N)}, "need the same x0=, given or not on every rank"),
        ({"out": "elsewhere"}, "need the same out= on every rank"),
        ({"b": np.ones((N, 1))}, "need the same shape of the right-hand sides on every rank"),
        ({"b": np.ones(N) * 1j}, "need the same type of the solution on every rank"),
        ({"b": np.arange(N)}, "need the same right-hand sides on every rank, have another on rank"),
        ({"A": "other"}, "need the same shape of A on every rank"),
        ({"A": "written"}, "need the same generation of A on every rank, have "),
        ({"A": "columns"}, "need the same chunks of A on every rank"),
        ({"omega": 3}, "omega must be between 0 and 2"),
        ({"memory": "much"}, "cannot read 'much' as a size"),
        ({"threads": 0}, "threads must be"),
        ({"timeout": -1}, "timeout is seconds from 0 to"),
        ({"pin": 2}, "pin must be"),
        ({"A": "missing"}, "missing"),
        ({"b": np.full(N, np.nan)}, "in row 0"),
        ({"direction": "symmetric"}, "need direction='alternating' or 'forward', have 'symmetric'"),
        ({"assume_a": "pos"}, "need assume_a='gen', have 'pos'"),
    ],
)  # fmt: skip
def test_arguments_that_differ(
    tmp_path: Path, wrong: dict[str, Any], message: str, at: int
) -> None:
    a = dominant(N, "f8")
    A = on_disk(tmp_path / "A", a)
    on_disk(tmp_path / "other", dominant(N + 1, "f8"))
    on_disk(tmp_path / "columns", a, "F", (64, 16))
    with oc.open_array(on_disk(tmp_path / "written", a).path, "r+") as other:
        other[0, 0] = other[0, 0]
    before = names_below(tmp_path)

    def call(rank: int, comm: Any) -> Any:
        given: dict[str, Any] = {"A": A, "b": np.ones(N), "progress": False, "block": 16}
        given |= wrong if rank == at else {}
        if isinstance(given["A"], str):
            given["A"] = tmp_path / given["A"]
        if "out" in given:
            given["out"] = tmp_path / given["out"]
        return gauss_seidel(comm=comm, **given)

    found = run(call, 2)
    for each in found:
        assert isinstance(each, OutcoreError), found
        assert message in str(each)
    assert names_below(tmp_path) == before


def test_guesses_that_differ(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    found = run(
        lambda rank, comm: gauss_seidel(
            A, np.ones(N), x0=np.full(N, 1.0 + (rank == 1)), comm=comm, progress=False
        )
    )
    for each in found:
        assert "need the same x0= on every rank, have another on rank 1" in str(each)


def test_matrices_of_columns_are_refused(tmp_path: Path) -> None:
    A = on_disk(tmp_path / "A", dominant(N, "f8"), "F", (64, 16))
    found = run(lambda rank, comm: gauss_seidel(A, np.ones(N), comm=comm, progress=False))
    for each in found:
        assert isinstance(each, InvalidError)
        assert "need a matrix whose strips are rows, have chunks of 64 x 16" in str(each)
        assert "oc.from_array(A, path, order='C')" in str(each)
    C = oc.from_array(A, tmp_path / "C", order="C", progress=False)
    found = run(lambda rank, comm: gauss_seidel(C, np.ones(N), comm=comm, progress=False))
    assert all(len(each) == 2 for each in found)


MESSAGES = 30


@pytest.mark.parametrize("dies_at", range(0, MESSAGES, 3))
def test_a_process_that_dies(tmp_path: Path, dies_at: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its death at any message, the others raise an error at the timeout."""
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    said: Said = {}
    clock = Clock(monkeypatch)
    comms = [NonblockingComm(rank, 2, said, dies_at if rank else None) for rank in range(2)]

    def work(comm: NonblockingComm) -> Any:
        try:
            return gauss_seidel(
                A, np.ones(N), block=16, tol=None, max_sweeps=3, comm=comm, timeout=60,
                progress=False,
            )  # fmt: skip
        except SystemExit as error:
            clock.go()
            return error
        except Exception as error:
            return error

    with ThreadPoolExecutor(2) as ranks:
        found = list(ranks.map(work, comms))
    assert isinstance(found[1], SystemExit), found
    assert isinstance(found[0], DiskError), found
    assert "for the others without an answer" in str(found[0])


def test_other_communicators(tmp_path: Path) -> None:
    a, b = dominant(N, "f8"), random((N, 200), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    expected, _ = swept_by_several(a, b, np.zeros_like(b), 16, 1.0, "alternating", 3, 2)
    options: dict[str, Any] = {"block": 16, "tol": None, "max_sweeps": 3, "progress": False}
    found = run(lambda rank, comm: gauss_seidel(A, b, comm=TorchComm(comm), **options), 2)
    said: Said = {}
    with ThreadPoolExecutor(2) as ranks:
        found += ranks.map(
            lambda rank: gauss_seidel(A, b, comm=NonblockingComm(rank, 2, said), **options),
            range(2),
        )
    for x, _ in found:
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-14)
    with pytest.raises(InvalidError, match="need a communicator with"):
        gauss_seidel(A, b, comm=3)


def test_what_differs_from_machine_to_machine_is_decided_by_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rounding makes the norms differ slightly; the processes still stop at the same step."""
    A, b = on_disk(tmp_path / "A", dominant(N, "f8")), random((N, 2), "f8", 1)
    norms = columns.norms
    monkeypatch.setattr(columns, "norms", lambda X: norms(X) * (1 + 1e-3 * here.rank))
    found = run(lambda rank, comm: gauss_seidel(A, b, tol=1e-10, comm=comm, progress=False))
    assert len({tuple(report.history) for _, report in found}) == 1
    assert len({report.backward_error for _, report in found}) == 1


def test_a_stale_block_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference distinguishes exchanges after each block, after each sweep, and none."""
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    A = on_disk(tmp_path / "A", a)
    expected, _ = swept_by_several(a, b, np.zeros_like(b), 16, 1.0, "forward", 3, SIZE)
    exchange, count = Sharing.exchange_rows, [0] * SIZE

    def stale(self: Sharing, X: Matrix, rows: slice | None, more_s: float = 0.0) -> None:
        count[self.rank] += 1
        before = X.copy()
        exchange(self, X, rows, more_s)
        if count[self.rank] == 2:  # drops the second exchange
            own = X[rows].copy()
            X[:] = before
            X[rows] = own

    options: dict[str, Any] = {"block": 16, "tol": None, "max_sweeps": 3, "direction": "forward"}

    def worst() -> float:
        found = run(lambda rank, comm: gauss_seidel(A, b, comm=comm, progress=False, **options))
        return max(float(np.abs(x - expected).max()) for x, _ in found)

    assert worst() < 1e-14
    monkeypatch.setattr(Sharing, "exchange_rows", stale)
    assert worst() > 1e-9
    monkeypatch.setattr(Sharing, "exchange_rows", lambda *_: None)
    assert worst() > 1e-6


class Struck(ThreadComm):
    """The rank of the main thread, which gets Ctrl-C in the middle of a message."""

    at = messages = 0

    def bcast(self, value: Any, root: int = 0) -> Any:
        self.messages += 1
        if self.messages == self.at:
            signal.raise_signal(signal.SIGINT)
        return super().bcast(value, root)


@pytest.mark.parametrize("at", [1, 4, 21, 22, 35])
def test_ctrl_c_in_the_middle_of_a_message(tmp_path: Path, at: int) -> None:
    """The rank finishes the message, so that the next one finds the others in step."""
    A = on_disk(tmp_path / "A", dominant(N, "f8"))
    job = ThreadJob(2, patience_s=60)
    comms = [Struck(0, job), ThreadComm(1, job)]
    comms[0].at = at  # type: ignore[attr-defined]
    options: dict[str, Any] = {"block": 16, "tol": None, "max_sweeps": 5, "progress": False}

    def call(rank: int) -> Any:
        try:
            return gauss_seidel(A, np.ones(N), comm=comms[rank], **options)
        except BaseException as error:
            return error

    with ThreadPoolExecutor(1) as other:
        theirs = other.submit(call, 1)
        mine = call(0)
    assert isinstance(mine, KeyboardInterrupt)
    assert isinstance(theirs.result(), Interrupted), theirs.result()
    assert "rank 0 was stopped, as by Ctrl-C" in str(theirs.result())


def test_signals_are_kept_until_the_end_of_a_step() -> None:
    done: list[int] = []

    def step(number: int, times: int) -> None:
        with signals.stop_on_signals(), signals.signals_held():
            for _ in range(times):
                signal.raise_signal(number)
                done.append(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        done.clear()
        with pytest.raises(KeyboardInterrupt):
            step(number, 1)
        assert done == [number]
        with pytest.raises(KeyboardInterrupt):
            step(number, 2)
        assert done == [number] * 2, "a second one is not kept"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
