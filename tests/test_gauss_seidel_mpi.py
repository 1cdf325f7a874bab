"""Gauss-Seidel in real processes: under MPI with servers in them, and on a served pool."""

import multiprocessing
from pathlib import Path
from typing import Any

import numpy as np
from communicators import FileComm
from iterative_cases import dominant, random, residual, swept_by_several
from mpi_jobs import all_say, mpiexec
from served import serve
from served_pools import in_memory

import outcore as oc
from outcore.errors import Interrupted
from outcore.linalg import gauss_seidel

N, SIZE = 150, 3
SWEPT: dict[str, Any] = {"block": 16, "tol": None, "max_sweeps": 4, "memory": 600_000}

JOB = """
import sys
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore.linalg import gauss_seidel

comm = MPI.COMM_WORLD
a, b = np.load(sys.argv[1]), np.load(sys.argv[2])
with oc.Pool.from_comm(comm, sys.argv[4], timeout=60) as pool:
    if comm.rank == 0:
        oc.from_array(a, pool / "A", order="C", chunks=(16, 64), progress=False)
    comm.barrier()
    x, report = gauss_seidel(
        pool / "A", b, block=16, tol=None, max_sweeps=4, memory=600_000, comm=comm, timeout=60,
        threads=1, progress=False, out=pool / "x",
    )
    assert (np.load(sys.argv[3]) - x[...]).std() < 1e-13
    assert report.planned_bytes_read <= report.bytes_read
    assert np.abs(np.load(sys.argv[3]) - x[...]).max() < 1e-13
    assert "Jacobi across" in report.notes[0]
    # One fails: the others are told by it, and the communicator can be used again.
    try:
        gauss_seidel(pool / "A", b, omega=1.5 if comm.rank else 9, comm=comm, progress=False)
    except oc.errors.InvalidError as error:
        assert str(error).startswith("rank 0: omega must be") == (comm.rank > 0), error
    assert comm.allreduce(1) == comm.size
    x.close()
print("well")
"""


def test_a_job_of_mpi(tmp_path: Path) -> None:
    a, b = dominant(N, "c16"), random((N, 2), "c16", 1)
    expected, _ = swept_by_several(a, b, np.zeros_like(b), 16, 1.0, "alternating", 4, SIZE)
    files = []
    for name, content in (("a", a), ("b", b), ("x", expected)):
        files.append(str(tmp_path / f"{name}.npy"))
        np.save(files[-1], content)
    script = tmp_path / "job.py"
    script.write_text(JOB)
    with in_memory() as home:
        done = mpiexec(SIZE, script, *files, str(home / "{rank}"))
    assert done.returncode == 0, done.stdout + done.stderr
    all_say("well", SIZE, done)


def one_of(rank: int, directory: Path, url: str, key: str, b: Any) -> Any:
    with oc.connect(url, key=key) as pool:
        comm = FileComm(directory, rank, SIZE)
        x, report = gauss_seidel(pool / "A", b, comm=comm, timeout=60, progress=False, **SWEPT)

        def stop(fraction: float, left: float) -> None:
            if rank == 1 and fraction < 1:
                raise KeyboardInterrupt

        try:
            oc._util.progress.Meter.advance = lambda self, work: self._tell(0.5, 1.0)  # type: ignore[method-assign]
            gauss_seidel(pool / "A", b, comm=comm, timeout=60, progress=stop, **SWEPT)
        except Interrupted as error:
            return x, report.bytes_read, report.planned_bytes_read, str(error), error.x
    raise AssertionError


def test_processes_on_a_served_pool(tmp_path: Path) -> None:
    a, b = dominant(N, "f8"), random((N, 2), "f8", 1)
    expected, _ = swept_by_several(a, b, np.zeros_like(b), 16, 1.0, "alternating", 4, SIZE)
    with in_memory() as home, serve(home) as (url, key), oc.connect(url, key=key) as pool:
        oc.from_array(a, pool / "A", order="C", chunks=(16, 64), progress=False)
        with multiprocessing.get_context("spawn").Pool(SIZE) as processes:
            found = processes.starmap(
                one_of, [(rank, tmp_path, url, str(key), b) for rank in range(SIZE)], chunksize=1
            )
    for rank, (x, read, planned, stopped, reached) in enumerate(found):
        np.testing.assert_allclose(x, expected, rtol=0, atol=1e-14)
        assert read >= planned
        assert ("because rank 1 was stopped" in stopped) == (rank != 1)
        assert residual(a, reached, b) < 1
