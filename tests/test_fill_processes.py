"""Assembly by several processes of MPI, against one process."""

import functools
import json
import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from mpi_jobs import RAISED, run_job

import outcore as oc
from outcore.array.fill_shares import Shares, blocks_in, from_the_first
from outcore.errors import DiskError, InvalidError
from outcore.layout.zarr_format import Metadata
from outcore.processes.beats import Beats
from outcore.processes.sharing import Sharing
from outcore.storage.volumes import is_held

JOB = (
    """
import json, os, signal, sys, time
from pathlib import Path
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore.array_files import blocks_done
from outcore.errors import *

comm = MPI.COMM_WORLD
rank, last = comm.rank, comm.size - 1
home, options = sys.argv[1], json.loads(sys.argv[2])
calls, SAME = [], {"comm": comm, "timeout": 60}
blocks_done.NOTE_S = 0.0  # record each block


def element(*indices):
    return sum((k + 1) * i for k, i in enumerate(np.ogrid[indices])) + 1


def fill(*indices):
    calls.append(indices)
    return element(*indices)


def files(name):
    return [path.read_bytes() for path in sorted(Path(home, name).glob("c/**/*")) if path.is_file()]


def names(name):
    return sorted(path.name for path in Path(home, name).iterdir())
"""
    + RAISED
)


def run(tmp_path: Path, size: int, job: str, is_well: bool = True, **options: object) -> None:
    run_job(tmp_path, size, JOB + job, options, is_well=is_well)


FILLED = """
for number, (shape, dtype, more) in enumerate(options["cases"]):
    if rank == 0:
        one = oc.create_array(
            f"{home}/one{number}", shape, dtype, fill=element, progress=False, **more
        )
    comm.barrier()
    if rank == last and "threads" in more:
        more["threads"], more["memory"] = 1, more["memory"] // 2  # each process has its own
    told, before = [], len(calls)
    A = oc.create_array(
        f"{home}/A{number}", shape, dtype, fill=fill, fill_id=1, **more, **SAME,
        progress=lambda *each: told.append(each),
    )
    assert files(f"A{number}") == files(f"one{number}")
    assert names(f"A{number}") == ["c", "outcore.generation", "zarr.json"]
    assert A.info().state == "whole"
    for each in A.report.processes:
        assert each["bytes_written"] >= each["planned_bytes_written"]
        assert 0 <= each["peak_memory_bytes"] <= A.report.memory_bytes
    assert A.report.planned_bytes_written == A.nbytes
    assert len(A.report.processes) == (comm.size if comm.size > 1 else 0)
    assert A.report.bytes_written == one.report.bytes_written if rank == 0 else True
    blocks = len(list(A.chunk_boxes()))
    assert (len(calls) > before) == (rank < blocks), (blocks, calls[before:])
    assert told[-1] == (1.0, 0.0) and sorted(told) == told if rank == 0 else True
    assert len(set(comm.allgather(str(A.report)))) == 1
    done = len(calls)
    B = oc.create_array(
        f"{home}/A{number}", shape, dtype, fill=fill, fill_id=1, if_exists="open", **more, **SAME
    )
    assert (B[...] == A[...]).all() and len(calls) == done
def layers(rows, columns):
    return element(rows, columns), fill(rows, columns) % 7

for again in range(2):
    count = len(calls)
    S, K = oc.create_arrays(
        [f"{home}/S", f"{home}/K"], (70, 50), ["f8", "i2"], fill=layers, chunks=(8, 50),
        if_exists="open", progress=False, **SAME,
    )
    assert (S[...] == element(slice(70), slice(50))).all() and (K[...] == S[...] % 7).all()
    assert (len(calls) > count) == (not again)
    assert again or len(S.report.processes) == (comm.size if comm.size > 1 else 0)
Z = oc.create_array(f"{home}/Z", (5, 4), "f4", comm=comm)
Z[rank] = rank + 1
comm.barrier()
assert (Z[: comm.size, 0] == range(1, comm.size + 1)).all() and Z.mode == "r+"
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [3, 1, 2, 4])
def test_several_processes_make_the_array_of_one(tmp_path: Path, size: int) -> None:
    matrix = {"order": "F", "chunks": (16, 16), "memory": 100_000, "threads": 2}
    cases = [
        ((128, 96), "c16", matrix),
        ((127, 97), "f8", matrix),
        ((129, 95), "f4", {"chunks": (20, 100), "memory": 100_000}),
        ((33, 20, 7), "i4", {"chunks": (4, 4, 7), "memory": 60_000}),
        ((30, 30), "f8", {"chunks": (16, 30)}),  # fewer blocks than processes
        ((1,), "f8", {}),
    ]
    run(tmp_path, size, FILLED, cases=cases)


@pytest.mark.exhaustive(keep=0)
@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_arrays_of_lengths_by_a_boundary(tmp_path: Path, size: int) -> None:
    matrix = {"order": "F", "chunks": (32, 16), "memory": 100_000, "threads": 2}
    cases = [
        ((128 + m, 96 + n), dtype, matrix)
        for dtype in ("f4", "f8", "c8", "c16")
        for m, n in ((0, 0), (1, 1), (-1, -1), (1, -1), (-1, 0), (0, 1))
    ]
    run(tmp_path, size, FILLED, cases=cases)


REFUSED = """
def make(fill=fill, *, shape=(40, 30), **more):
    return oc.create_array(
        f"{home}/A", shape, fill=fill, chunks=(8, 30), progress=False, **{**SAME, **more}
    )

text = raised(InvalidError, lambda: make(shape=(40, 30 + (rank == last))))
assert "need the same shape on every rank" in text, text
text = raised(InvalidError, lambda: make(fill_id={"k": rank}))
assert "need the same fill_id= on every rank" in text, text
other = (lambda *at: fill(*at)) if rank == last else fill
text = raised(InvalidError, lambda: make(other))
assert "need the same source text of fill on every rank" in text, text
text = raised(BudgetError, lambda: make(memory=1000 if rank == last else 300_000))
assert "need" in text, text
class Likeness:
    size, rank = comm.size, comm.rank
    bcast, barrier = comm.bcast, comm.barrier
text = raised(InvalidError, lambda: make(comm=Likeness()))
assert "give comm=MPI.COMM_WORLD" in text, text
assert not calls and not Path(home, "A").exists()

def fails(rows, columns):
    if rows.start == 24:
        raise ZeroDivisionError("no such triangle")
    return fill(rows, columns)

text = raised(Exception, lambda: make(fails))
failed = comm.allgather("rank " not in text).index(True)
if rank != failed:
    assert f"rank {failed}: ZeroDivisionError: no such triangle" in text, text
    assert "raised by fill((24, 32), (0, 30))" in text, text
assert comm.allreduce(1) == comm.size  # The communicator works on.
text = raised(Exception, lambda: make(lambda rows, columns: np.ones(3), if_exists="overwrite"))
assert "must return shape (8, 30)" in text, text
"""


def test_an_error_of_one_process_is_one_of_all(tmp_path: Path) -> None:
    run(tmp_path, 3, REFUSED)


STOPPED = """
def durable():
    line = json.loads(Path(home, "A/outcore.fill").read_text().splitlines()[-1])
    return line.get("blocks_done", 0) + sum(b - a for a, b in line.get("further", ()))


def stops(*indices):
    if rank == 1 and len(calls) == 3 and options["durable"]:
        while durable() < options["durable"]:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    return fill(*indices)

A = oc.create_array(
    f"{home}/A", (8, 480), fill=stops, chunks=(8, 8), memory=30_000, progress=False, **SAME
)
assert (A[...] == element(slice(8), slice(480))).all()
assert names("A") == ["c", "outcore.generation", "zarr.json"]
assert comm.allreduce(len(calls)) == options["pending"]
if rank == 0:
    assert f"resumed at block {60 - options['pending']} of 60" in A.report.notes[0], A.report.notes
"""


def test_another_number_of_processes_resumes(tmp_path: Path) -> None:
    """A process dies when all others have filled their blocks, which lie between its own."""
    pending = 60
    for size in (3, 2):
        own = pending // size
        run(tmp_path, size, STOPPED, is_well=False, durable=60 - own)
        line = json.loads((tmp_path / "A/outcore.fill").read_text().splitlines()[-1])
        pending = 60 - blocks_in([(0, line["blocks_done"]), *line["further"]])
        # It has filled three boxes of at most two blocks.
        assert own - 6 <= pending <= own
    run(tmp_path, 3, STOPPED, durable=None, pending=pending)


def test_the_record_names_blocks_between_pending_ones() -> None:
    m = Metadata((8, 480), np.dtype("f8"), (8, 8), "C", "row-major")
    for size in (1, 2, 5, 70):
        shares = Shares(m, [(0, 7), (11, 12)], 4, size)
        dealt = [number for boxes in shares.boxes for box in boxes for number in box]
        assert sorted(dealt) == [*range(7, 11), *range(12, 60)]
        own = [[number for box in boxes for number in box] for boxes in shares.boxes]
        counts = [min(2 * rank + 1, len(each)) for rank, each in enumerate(own)]
        expected = {*range(7), 11}.union(*(each[:k] for each, k in zip(own, counts, strict=True)))
        done, further = from_the_first(shares.durable(counts))
        assert {*range(done)}.union(*(range(*each) for each in further)) == expected
        whole = shares.durable([len(each) for each in own])
        assert from_the_first(whole) == (60, [])
    assert from_the_first([(3, 4)]) == (0, [(3, 4)])


class Silent:
    """Rank 0 of three; rank 1 sends its numbers once, rank 2 never."""

    rank, size, patience_s = 0, 3, 0.1

    def __init__(self) -> None:
        self.raw, self.failed, self.is_heard = self, threading.Event(), True
        self.cancelled: list[int] = []

    def Isend(self, memory: Any, rank: int) -> Any:  # noqa: N802
        return SimpleNamespace(Test=lambda: True)

    def Irecv(self, memory: Any, rank: int) -> Any:  # noqa: N802
        if rank == 1:
            memory[:] = 7, 8, 1
        cancel = functools.partial(self.cancelled.append, rank)
        return SimpleNamespace(Test=lambda: rank == 1, Cancel=cancel, Wait=lambda: None)

    def fail(self, error: BaseException) -> None:
        self.error = error
        self.failed.set()

    def check(self) -> None:
        if self.failed.is_set():
            raise self.error


def test_a_process_that_says_nothing_has_died() -> None:
    team, heard = Silent(), []
    with Beats(cast(Any, team), 2, lambda numbers: heard.append(numbers.copy())) as beats:
        beats.tell((1, 2), is_last=True)
        with pytest.raises(DiskError, match="has heard nothing of rank 2"):
            beats.wait(lambda: None)
    assert heard[-1].tolist() == [[1, 2], [7, 8], [0, 0]]


def test_one_process_hears_itself() -> None:
    heard: list[Any] = []
    team = SimpleNamespace(rank=0, size=1, check=lambda: None)
    with Beats(cast(Any, team), 1, lambda numbers: heard.append(numbers.tolist())) as beats:
        beats.tell([3])
        beats.tell([4], is_last=True)
        beats.wait(lambda: None)
    assert heard == [[[3]], [[4]]]


def test_ctrl_c_at_the_end_waits_for_the_thread_that_uses_the_requests() -> None:
    team = Silent()

    def heard(numbers: object) -> None:
        if beats._is_left:
            os.kill(os.getpid(), signal.SIGINT)

    beats = Beats(cast(Any, team), 2, heard)
    with pytest.raises(KeyboardInterrupt), beats:
        pass
    assert beats._thread is not None
    assert not beats._thread.is_alive()
    assert team.cancelled == [1, 2]


def test_a_failed_process_holds_the_array_until_the_others_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may still write a block. They have stopped when `tell` returns."""
    held = []
    monkeypatch.setattr(Sharing, "tell", lambda *_: held.append(is_held(tmp_path / ".A.filling")))
    with pytest.raises(InvalidError, match="must return shape"):
        oc.create_array(tmp_path / "A", (9, 8), fill=lambda *_: np.ones(3), progress=False)
    assert held[0]
    assert not held[-1]


def test_a_single_process_names_the_block(tmp_path: Path) -> None:
    def fill(rows: slice, columns: slice) -> Any:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as found:
        oc.create_array(tmp_path / "A", (9, 8), fill=fill, chunks=(3, 8), progress=False)
    assert found.value.__notes__ == ["raised by fill((0, 9), (0, 8))"]
