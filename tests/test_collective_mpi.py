"""Collectives of real processes, by MPI."""

from pathlib import Path

import pytest
from mpi_jobs import all_say, mpiexec
from served_pools import in_memory

JOB = """
import math, os, sys
sys.path.insert(0, sys.argv[2])
import numpy as np
from direct_memory import WHERE, finds_nonce, hide
from mpi4py import MPI
import outcore as oc

comm = MPI.COMM_WORLD
if sys.argv[3] == "hidden":
    # Of the threads of the servers too, which begin later.
    hide()
content = np.arange(24 * 18 * 10.0).reshape(24, 18, 10)
mesh = tuple(MPI.Compute_dims(comm.size, 3))
cart = oc.distribute(content.shape, "block,block,block", mesh)
(box,) = cart.boxes(comm.rank)
messages = 0
with oc.Pool.from_comm(comm, sys.argv[1], timeout=60) as pool:
    if comm.rank == 0:
        u = oc.create_array(
            pool / "u", content.shape, chunks=(5, 18, 10), if_exists="overwrite"
        )
        u.close()
    comm.barrier()
    # The servers are in processes of the same machine and user. Number n runs in rank n.
    is_found = [finds_nonce(*where) for where in comm.allgather(WHERE)]
    reads_me = [found[comm.rank] for found in comm.allgather(is_found)]
    assert sys.argv[3] != "hidden" or not any(reads_me[: comm.rank] + reads_me[comm.rank + 1 :])
    with oc.open_array(pool / "u", "r+") as u:
        schema = oc.Schema("block,block,block", mesh=mesh)
        for step in range(3):
            report = u.write_all(content[box] + step, schema, comm, timeout=60)
            lines = u.read_all(None, "*,cyclic(2),*", comm, timeout=60)
            own = [j for j in range(18) if j // 2 % comm.size == comm.rank]
            assert (lines == content[:, own] + step).all()
        planned = oc.plan(
            "write_all", array=u, schema=schema, processes=comm.size,
            rates=type("Rates", (), {"write_bytes_s": 1.0}),
        )
        given, direct = planned.messages[comm.rank], planned.direct_messages[comm.rank]
        assert report.messages == {n: (direct if reads_me[n] else given)[n] for n in given}
        if all(reads_me):
            are_few = sum(report.messages.values()) == 6 * len(report.messages)
            assert are_few == (report.direct_bytes == report.bytes_moved == content[box].nbytes)
            assert are_few or comm.size == 8, "rows of 40 bytes on disk"
        assert report.direct_bytes == 0 or any(reads_me)
        os.environ["OUTCORE_DIRECT_MEMORY"] = "off"
        report = u.write_all(content[box] + 2, schema, comm, timeout=60)
        assert (report.messages, report.direct_bytes) == (planned.messages[comm.rank], 0)
        messages = sum(comm.allgather(sum(report.messages.values())))
        assert messages == planned.total_messages
        assert (u[...] == content + 2).all()
        # One of them has nothing.
        boxes = [[(slice(None),) * 3]] + [[]] * (comm.size - 1)
        found = u.read_all(None, oc.Schema.boxes(boxes), comm, timeout=60)
        assert len(found) == (comm.rank == 0)
print("well")
"""


@pytest.mark.exhaustive(keep=3)
@pytest.mark.parametrize(
    ("size", "how"),
    [(1, "open"), (3, "hidden"), (8, "open"), (2, "open"), (3, "open"), (4, "open")],
)
def test_mpi_jobs(tmp_path: Path, size: int, how: str) -> None:
    """If servers may not read the memory of other processes, these send their data."""
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with in_memory() as home:
        tests = str(Path(__file__).parent)
        done = mpiexec(size, script, str(home / "{rank}"), tests, how)
    assert done.returncode == 0, done.stdout + done.stderr
    all_say("well", size, done)
