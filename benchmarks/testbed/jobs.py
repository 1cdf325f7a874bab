"""Jobs of MPI whose processes run on hosts of a testbed, and talk by TCP over its networks."""

import sys
from collections.abc import Sequence
from pathlib import Path

import mpi4py

from benchmarks.testbed.hosts import Host

VARIABLES = {
    "MPIR_CVAR_NOLOCAL": "1",  # no shared memory, although all processes are on this machine
    "UCX_TLS": "self,tcp",
    "UCX_NET_DEVICES": "eth0",
}
"""The environment of such a job."""

_APART = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc")
"""Runs a command whose processes no other host can see, nor use their memory."""


def job_on(hosts: Sequence[Host], module: str, words: Sequence[object]) -> list[str]:
    """Return the command of a job with one process of ``python -m module`` on each host.

    Processes of different hosts cannot see each other, nor use each other's memory.
    """
    mpiexec = Path(mpi4py.__file__).parents[4] / "bin" / "mpiexec"
    command = [str(mpiexec)]
    for host in hosts:
        process = host.command(*_APART, sys.executable, "-m", module, *words)
        command += [*([":"] if len(command) > 1 else []), "-n", "1", *process]
    return command
