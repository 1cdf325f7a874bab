"""Methods that stream rows, by several processes of MPI, against NumPy and their own plans."""

import json
from pathlib import Path

from mpi_jobs import mpiexec

JOB = """
import json, os, signal, sys
from pathlib import Path
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore.errors import *
from outcore.linalg import gram

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


def counted(report):
    # Each process moves what it planned, and none of them much more than its share of the rows.
    assert len(report.processes) == (comm.size if comm.size > 1 else 0)
    for each in report.processes:
        for what in ("bytes_read", "bytes_written", "bytes_sent", "messages_sent"):
            assert each[what] == each["planned_" + what], (what, each)
        assert each["peak_memory_bytes"] <= report.memory_bytes
    assert len(set(comm.allgather(str(report)))) == 1


def same_bits(x):
    assert len(set(comm.allgather(np.asarray(x[...]).tobytes()))) == 1
    return x[...]


def raised(kind, call):
    try:
        call()
    except kind as error:
        return str(error)
    raise AssertionError(f"no {kind.__name__} on rank {rank}")
"""


def run(tmp_path: Path, size: int, job: str, **options: object) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB + job + '\nprint("well")\n')
    done = mpiexec(size, script, str(tmp_path), json.dumps(options))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "".join(done.stdout.split()) == "well" * size, done.stdout + done.stderr


GRAM = """
# Rows that do not divide, fewer blocks than processes, and a product that memory does not hold.
for dtype, m, n, side, layout, memory in (
    ("f8", 1003, 70, "left", {"order": "C", "chunks": (64, 70)}, [2_000_000, 600_000]),
    ("c8", 1003, 70, "left", {"order": "F", "chunks": (128, 16)}, [2_000_000]),
    ("c16", 60, 500, "right", {"order": "C", "chunks": (60, 64)}, [2_000_000]),
    ("f4", 90, 130, "left", {"order": "F", "chunks": (64, 64)}, [2_000_000]),
    ("c8", 300, 300, "left", {"order": "C"}, [450_000]),
):
    a = random((m, n), dtype)
    A = put(f"A{dtype}{m}{n}", a, **layout)
    wide = a.astype("c16")
    want = wide.conj().T @ wide if side == "left" else wide @ wide.conj().T
    same = SAME | {"side": side, "memory": memory[rank % len(memory)]}
    for out in (None, f"{home}/G{dtype}{m}{n}"):
        if out is None and memory[0] < 500_000:
            continue
        G, report = gram(A, alpha=0.5, shift=2.0, out=out, **same)
        counted(report)
        assert (report.m, report.n) == (m, n) or side == "right"
        found = same_bits(G)
        limit = 10 * max(m, n) * np.finfo(dtype).eps
        assert np.abs(found - 0.5 * want - 2 * np.eye(len(want))).max() < limit
        if out:
            assert set(os.listdir(out)) == {"c", "outcore.generation", "zarr.json"}
    if memory[0] < 500_000:
        assert "passes" in report.method or "a pass for each" in report.method, report.method
    again, _ = gram(A, alpha=0.5, shift=2.0, out=f"{home}/G", if_exists="overwrite", **same)
    assert (again[...] == found).all()
    comm.barrier()
"""


def test_a_sum_of_products(tmp_path: Path) -> None:
    run(tmp_path, 3, GRAM)
