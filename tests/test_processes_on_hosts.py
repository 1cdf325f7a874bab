"""Calls on several processes, each on a host of its own: they talk by TCP only."""

import contextlib
import os
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.testbed import Testbed, why_not
from benchmarks.testbed.jobs import VARIABLES, job_on
from benchmarks.testbed.pool import BedPool

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))

HOSTS = 3

JOB = """
import sys
import numpy as np
import scipy.linalg
from mpi4py import MPI
import outcore as oc
from outcore.linalg import *
from outcore.processes import host_blocks

comm, found = MPI.COMM_WORLD, []
host_memory = host_blocks.host_memory
host_blocks.host_memory = lambda *given: found.append(host_memory(*given)) or found[-1]
DO = {"comm": comm, "timeout": 60, "threads": 1, "progress": False}
random = np.random.default_rng(1).standard_normal
n, k = 700, 5
a, b, tall = random((n, n)), random((n, k)), random((9 * n, 40))


def counted(report):
    assert len(report.processes) == comm.size
    for each in report.processes:
        for what in ("bytes_sent", "messages_sent"):
            assert each[what] == each["planned_" + what], (what, each)


with oc.connect(sys.argv[1], key=sys.argv[2]) as pool:
    def put(name, values):
        if comm.rank == 0:
            oc.from_array(values, pool / name, progress=False)
        comm.barrier()
        return pool / name

    A, B = put("a", a), put("b", b)
    factor = lu_factor(A, out=pool / "a.lu", memory="2MiB", method="slabs", **DO)
    assert (factor.piv == scipy.linalg.lu_factor(a)[1]).all()
    counted(factor.report)
    assert sum(each["bytes_sent"] for each in factor.report.processes) > a.nbytes / 4
    x = lu_solve(factor, b, **DO)
    assert np.abs(a @ x - b).max() < 1e-9 * np.abs(x).max()

    factor = cho_factor(put("s", a @ a.T + n * np.eye(n)), out=pool / "s.cho", memory="2MiB", **DO)
    counted(factor.report)
    x = cho_solve(factor, b, **DO)
    assert np.allclose(a @ (a.T @ x) + n * x, b, rtol=0, atol=1e-9)

    c = matmul(A, B, out=pool / "c", memory="2MiB", **DO)
    assert np.allclose(c[...], a @ b, rtol=0, atol=1e-10)
    x = lstsq(put("tall", tall), tall.sum(axis=1), memory="2MiB", **DO)[0]
    assert np.allclose(np.ravel(x), 1, rtol=0, atol=1e-10)
assert found and not any(found), found
print("well")
"""


LOST = """
import os, signal, subprocess, sys, time
from pathlib import Path

home = Path(sys.argv[3])
if sys.argv[-1] != "inner":
    # The launcher knows these processes only: it ends a job in which a process dies.
    subprocess.run([sys.executable, *sys.argv, "inner"], close_fds=False)
    while not (home / "told0").exists() or not (home / "told2").exists():
        time.sleep(0.05)
    sys.exit()

import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore.linalg import lu_factor
from outcore.linalg._lu.slabs.factor_slabs import SlabFactorization

comm, n = MPI.COMM_WORLD, 700
factor = SlabFactorization.factor


def dies(self, K, *given):
    if comm.rank == 1 and K >= 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return factor(self, K, *given)


SlabFactorization.factor, said = dies, "no error"
pool = oc.connect(sys.argv[1], key=sys.argv[2])
if comm.rank == 0:
    random = np.random.default_rng(1).standard_normal
    oc.from_array(random((n, n)), pool / "a", progress=False)
comm.barrier()
try:
    lu_factor(
        pool / "a", out=pool / "a.lu", memory="2MiB", method="slabs", comm=comm, timeout=600,
        threads=1, progress=False,
    )
except BaseException as error:
    said = f"{type(error).__name__}: {error}"
(home / f"told{comm.rank}").write_text(said)
os._exit(0)
"""


def run_on_hosts(tmp_path: Path, job: str) -> str:
    """Run a job of one process on each of several hosts with a pool, and return its output."""
    (tmp_path / "job_of_hosts.py").write_text(job)
    with Testbed(tmp_path, disks=HOSTS, disk_bytes=96 << 20, hosts=HOSTS) as bed:
        directories = [disk.path / "data" for disk in bed.disks]
        pool = BedPool(bed, tmp_path / "pool", directories, host=bed.hosts[0], hosts=bed.hosts)
        paths = os.pathsep.join([str(tmp_path), *sys.path])
        environment = [
            f"{name}={value}" for name, value in (VARIABLES | {"PYTHONPATH": paths}).items()
        ]
        words = [pool.url, pool.key_file, tmp_path]
        return bed.run(["env", *environment, *job_on(bed.hosts, "job_of_hosts", words)])


@pytest.mark.exhaustive(keep=0)
def test_processes_on_several_hosts(tmp_path: Path) -> None:
    assert "".join(run_on_hosts(tmp_path, JOB).split()) == "well" * HOSTS


@pytest.mark.exhaustive(keep=0)
def test_a_process_that_dies_on_another_host(tmp_path: Path) -> None:
    with contextlib.suppress(subprocess.CalledProcessError):  # the status of the dead process
        run_on_hosts(tmp_path, LOST)
    for rank in (0, 2):
        said = (tmp_path / f"told{rank}").read_text()
        assert said.startswith("DiskError: "), said
        assert "rank 1 died during the call" in said, said
