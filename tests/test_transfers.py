"""How far transfers of blocks overlap with work: their report, intervals, and the trace."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpi_jobs import run_job

from outcore.processes.transfers import Transfers
from outcore.report.report import Report

# Some nanoseconds, each of which begins or ends an interval.
instants = st.sets(st.integers(0, 60), max_size=12).map(
    lambda found: sorted(found)[: len(found) // 2 * 2]
)


def covered(times: list[int]) -> set[int]:
    return {at for a, b in zip(times[::2], times[1::2], strict=True) for at in range(a, b)}


@given(instants, instants)
def test_the_hidden_part_is_outside_of_all_waits(moving: list[int], waiting: list[int]) -> None:
    clock, found = [0], Transfers()

    def now() -> int:
        return clock[0]

    for clock[0] in range(61):
        if clock[0] in waiting[::2]:
            wait = found.waiting(now)
            wait.__enter__()
        elif clock[0] in waiting:
            wait.__exit__(None, None, None)
        if clock[0] in moving[::2]:
            start = found.started(now)
        elif clock[0] in moving:
            found.ended(start, now, 1)
    busy, waited = covered(moving), covered(waiting)
    figures = [round(value * 1e9) for value in found.figures().values()]
    assert figures == [len(waited), len(busy), len(busy - waited)]
    assert not any(found.figures().values()), "a second report is of the time since the first"
    rows = found.spans()
    assert rows[:, 2:4].ravel().tolist() == moving
    assert rows[:, 5].tolist() == [1] * len(rows)
    assert not len(found.spans())


def test_a_long_call_has_few_spans() -> None:
    clock, found = [0], Transfers()
    for clock[0] in range(1 << 17):
        found.ended(found.started(lambda: clock[0]), lambda: clock[0] + 1, 3)
    rows = found.spans()
    assert 1 << 14 <= len(rows) < 1 << 15
    assert (rows[0, 2], rows[-1, 3]) == (0, 1 << 17)
    assert rows[:, 5].sum() == 3 << 17
    assert (rows[1:, 2] >= rows[:-1, 3]).all()


def test_the_row_of_a_report() -> None:
    sent = {"bytes_sent": 8, "planned_bytes_sent": 8, "messages_sent": 1}
    row = {"block_wait_seconds": 1.0, "transfer_seconds": 3.0, "hidden_transfer_seconds": 2.0}
    whole = Report("LU", 9, "float64", 1.0, 0.0, 0, 0, processes=[sent | row, sent | row])
    assert "blocks          in transfer 3.0 s, waited for 1.0 s: 67% hidden" in str(whole)
    whole.processes = [sent | row | {"transfer_seconds": 0.0}, sent]
    assert "blocks          waited for 1.0 s\n" in str(whole)
    whole.processes = [sent]
    assert "blocks" not in str(whole)


JOB = """
import json, sys, threading
from contextlib import contextmanager
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore._core import Trace
from outcore._util.streams import BlockStream
from outcore.linalg import *
from outcore.processes import host_blocks, team
from outcore.processes.transfers import Transfers
from outcore.report.page import html_page
from outcore.report.spans import KINDS

comm, home, apart = MPI.COMM_WORLD, sys.argv[1], json.loads(sys.argv[2])
if apart:
    host_blocks.host_memory = lambda *given: None
SAME = {"comm": comm, "timeout": 60, "threads": 1, "progress": False}
moving, waiting = [], []


class Noted(Transfers):
    # Intervals by the clock of the trace: of transfers, with the latest end, and inside of waits.
    @contextmanager
    def waiting(self, now):
        with super().waiting(now):
            start = now()
            yield
            waiting.append((start, now()))

    def ended(self, start, now, nbytes):
        end = now()
        super().ended(start, now, nbytes)
        moving.append((start[0], end, now()))


def outside(intervals, gaps):
    # The time of intervals without that of gaps, in seconds.
    total = sum(b - a for a, b in intervals)
    for a, b in intervals:
        for first, last in gaps:
            total -= max(min(b, last) - max(a, first), 0)
            a = max(a, min(b, last))
    return total / 1e9


def taken(self):
    # Waits of the thread that sends blocks are none of the call.
    assert self._trace is None or threading.current_thread() is threading.main_thread()
    return take(self)


team.Transfers, take, BlockStream.take = Noted, BlockStream.take, taken
a = np.random.default_rng(1).standard_normal((300, 300))
if comm.rank == 0:
    oc.from_array(a, f"{home}/A", order="F", progress=False)
comm.barrier()
for call in ("lu_factor", "lu_solve"):
    moving.clear(), waiting.clear()
    if call == "lu_factor":
        lu = lu_factor(f"{home}/A", memory=300_000, **SAME)
        report = lu.report
    else:
        lu_solve(lu, a, **SAME)
        report = oc.last_report()
    for each in report.processes:
        assert (each["transfer_seconds"] > 0) == apart, each
        assert each["hidden_transfer_seconds"] <= each["transfer_seconds"] <= each["seconds"], each
    # The trace of each process has the blocks that it has sent and received.
    rows = report.spans[report.spans[:, 0] == KINDS.index("transfer")]
    assert len(rows) == len(moving), (len(rows), len(moving))
    for row, (start, least, most) in zip(rows[:, 2:4].tolist(), moving):
        assert start == row[0] and least <= row[1] <= most
    assert sum(b - a for a, b in rows[:, 2:4].tolist()) == round(
        1e9 * report.processes[comm.rank]["transfer_seconds"]
    )
    if apart and call == "lu_factor":
        sent = sum(each["bytes_sent"] for each in report.processes)
        assert rows[:, 5].sum() == sent, "each block goes to all"
    page = html_page(report)
    assert ("blocks between hosts" in page) == apart
    own, nearly = report.processes[comm.rank], 1e-9
    rows = report.spans[report.spans[:, 0] == Trace.kinds().index("wait")]
    waits = sorted((int(a), int(b)) for a, b in rows[:, 2:4])
    assert 0 < own["block_wait_seconds"] <= outside(waits, []) + nearly
    # The trace has each wait for a block, and others.
    least = outside([(a, b) for a, b, _ in moving], waits)
    most = outside([(a, b) for a, _, b in moving], waiting)
    found = own["hidden_transfer_seconds"]
    assert least - nearly <= found <= most + nearly, (least, found, most)
    assert ("hidden" in str(report).partition("  blocks ")[2]) == apart
"""


@pytest.mark.parametrize("apart", [True, False])
def test_the_report_is_that_of_the_trace(tmp_path: Path, apart: bool) -> None:
    run_job(tmp_path, 2, JOB, apart)
