"""SIGINT in one process of an LU or of a solve: all stop together, and the same call resumes."""

from pathlib import Path

import pytest
from test_lu_processes import run

INTERRUPTED = """
from outcore.processes.blocks import BlocksOfAll

a = random(300, "f8")
A = put("A", a, order="F")
rank, last = comm.rank, comm.size - 1
same = SAME | {"memory": 300_000, "if_exists": "overwrite"}
whole = lu_factor(A, out=f"{home}/whole", **same)


def interrupt():
    if rank == last:
        os.kill(os.getpid(), signal.SIGINT)


def in_the_thread_of_messages(messages):
    # The signal finds the main thread wherever it is: in a wait or in the BLAS.
    count = BlocksOfAll._count
    def counted(self, nbytes):
        count(self, nbytes)
        if self._messages == messages * 2 // 3:
            BlocksOfAll._count = count
            interrupt()
    BlocksOfAll._count = counted


def stopped(out):
    text = raised(Interrupted, lambda: lu_factor(A, out=out, **same))
    assert "call lu_factor again" in text, text
    assert (f"because rank {last}" in text) == (rank != last), text
    assert Path(out, "journal").exists()


def resumed(out, is_mixed, **more):
    f = lu_factor(A, out=out, **same | more)
    check(f, a)
    assert f.report.notes[0].startswith("resumed at panel"), f.report.notes
    assert any("last bits may differ" in note for note in f.report.notes) == is_mixed
    assert files(f.path) == files(whole.path) or is_mixed


in_the_thread_of_messages(whole.report.processes[last]["messages_sent"])
stopped(f"{home}/message")
resumed(f"{home}/message", False)
before_late_panels(interrupt)
stopped(f"{home}/panel")
comm.barrier()
if rank == 0:
    shutil.copytree(f"{home}/panel", f"{home}/mixed")
comm.barrier()
resumed(f"{home}/panel", False)
resumed(f"{home}/mixed", True, memory=320_000 if rank == last else 300_000)
"""


@pytest.mark.exhaustive
@pytest.mark.parametrize(("size", "apart"), [(2, False), (3, True)])
def test_a_signal_to_one_process_stops_all(tmp_path: Path, size: int, apart: bool) -> None:
    run(tmp_path, size, "import shutil\n" + INTERRUPTED, apart=apart)


SOLVED = """
from outcore.processes.host_blocks import HostBlocks
from outcore.processes.sharing import Sharing

a = random(300, "f8")
f = lu_factor(put("A", a, order="F"), memory=300_000, **SAME)
B, out, there = put("B", a @ a[:, :4], order="F"), Path(home, "x"), []
tell, take = Sharing.tell, HostBlocks.take


def told(self, error):
    tell(self, error)
    there.append(out.exists())


def taken(self):
    # The other process waits for blocks of this one.
    HostBlocks.take = take
    if comm.rank == 0:
        os.kill(os.getpid(), signal.SIGINT)
    return take(self)


HostBlocks.take = taken
Sharing.tell = told
text = raised(Interrupted, lambda: lu_solve(f, B, out=str(out), memory=300_000, **SAME))
assert ("rank 0" in text) == (comm.rank != 0), text
# The others have stopped before the first process removes the solution.
assert there[0] or comm.rank, there
comm.barrier()
assert not out.exists()
"""


def test_a_solution_stays_until_all_have_stopped(tmp_path: Path) -> None:
    run(tmp_path, 2, SOLVED)
