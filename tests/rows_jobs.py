"""Jobs of MPI whose processes each read their own rows of a matrix."""

from pathlib import Path

from mpi_jobs import RAISED, run_job

JOB = (
    """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore.errors import *
from outcore.linalg import gram, lstsq, qr, svd
from outcore.linalg._output import steps_done
from outcore.processes.team import Team

comm = MPI.COMM_WORLD
home, options = sys.argv[1], json.loads(sys.argv[2])
rank, last = comm.rank, comm.size - 1
SAME = {"comm": comm, "timeout": 60, "threads": 1, "progress": False}


def put(name, a, **layout):
    where = f"{home}/{name}"
    if rank == 0:
        oc.from_array(a, where, progress=False, **layout)
    comm.barrier()
    return where


def random(shape, dtype, seed=1):
    draw = np.random.default_rng([*shape, seed])
    a = draw.standard_normal(shape)
    if np.dtype(dtype).kind == "c":
        a = a + 1j * draw.standard_normal(shape)
    return a.astype(dtype)


def counted(report, written=True):
    # Each process moves what it planned, and none of them much more than its share of the rows.
    assert len(report.processes) == (comm.size if comm.size > 1 else 0)
    for each in report.processes:
        exact = ("bytes_read", "bytes_sent", "messages_sent", *["bytes_written"] * written)
        for what in exact:
            assert each[what] == each["planned_" + what], (what, each)
        assert each["peak_memory_bytes"] <= report.memory_bytes
    assert len(set(comm.allgather(str(report)))) == 1


def same_bits(x):
    assert len(set(comm.allgather(np.asarray(x[...]).tobytes()))) == 1
    return x[...]


def at_block(number, do):
    # Before this process uses a block of rows.
    check, seen = Team.check, []
    names = "solve", "_compute", "_factored", "_reduce", "_rows", "passed"
    def counted(self):
        if sys._getframe(1).f_code.co_name in names:
            seen.append(1)
            if len(seen) == number:
                do()
        check(self)
    Team.check = counted


def stop():
    raise KeyboardInterrupt
"""
    + RAISED
)


def run(tmp_path: Path, size: int, job: str, **options: object) -> None:
    run_job(tmp_path, size, JOB + job, options)
