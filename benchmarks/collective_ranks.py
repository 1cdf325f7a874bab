"""Processes of a parallel program, which write and read an array together, and measure the time.

Rank 0 reads lines of JSON, each one command for all ranks. It answers each with the seconds from
the common start to the end of the last rank.
"""

import json
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import mpi4py
import numpy as np

import outcore as oc
from benchmarks.commanded import Commanded


class Ranks(Commanded):
    """The processes, as seen by their benchmark; use it as a context manager.

    Parameters
    ----------
    count
        Number of processes.
    url, key_file
        The pool.
    prefix
        Words before the command, which run it on a host of a testbed.
    preloaded
        Variables of the environment by which the processes use the library for MPI-IO.
    """

    def __init__(
        self,
        count: int,
        url: str,
        key_file: Path,
        prefix: Sequence[str] = (),
        preloaded: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        # The MPI of the package mpich.
        library = Path(mpi4py.__file__).parents[3]
        command = [
            *prefix, str(library.parent / "bin" / "mpiexec"), "-n", str(count),
            sys.executable, "-m", "benchmarks.collective_ranks", url, str(key_file),
        ]  # fmt: skip
        variables = {
            "UCX_TLS": "self,sm,tcp",
            "MPI4PY_LIBMPI": str(library / "libmpi.so.12"),
            **preloaded,
        }
        super().__init__(command, variables)

    def seconds(self, do: str, **what: Any) -> float:
        """Let all processes do something; return its duration."""
        self.begin(do, **what)
        return float(self.answer())


class Work:
    """The commands of the processes; all of them make the same call."""

    def __init__(self, pool: oc.Pool, comm: Any) -> None:
        self.pool, self.comm = pool, comm
        self.local = np.zeros(0)

    def hold(self, shape: Sequence[int]) -> None:
        """Allocate a part of an array in memory."""
        self.local = np.random.default_rng(self.comm.rank).random(tuple(shape))

    def make(
        self,
        name: str,
        shape: Sequence[int],
        disk: dict[str, Any],
        schema: str,
        mesh: Sequence[int],
    ) -> None:
        """Create an array, and write it, durably."""
        if self.comm.rank == 0:
            there = self.pool / name
            oc.create_array(there, tuple(shape), "f8", if_exists="overwrite", **disk).close()
        self.comm.barrier()
        self.write(name, schema, mesh)

    def open(self, name: str) -> None:
        """Open an array of the pool for reading."""
        oc.open_array(self.pool / name).close()

    def write(
        self, name: str, schema: str, mesh: Sequence[int], *, skip_disk: bool = False
    ) -> None:
        """Write an array of the pool, durably."""
        with oc.open_array(self.pool / name, "r+") as u:
            u.write_all(
                self.local, oc.Schema(schema, mesh=tuple(mesh)), self.comm, skip_disk=skip_disk
            )

    def read(self, name: str, schema: str, mesh: Sequence[int], *, skip_disk: bool = False) -> None:
        """Read an array of the pool."""
        with oc.open_array(self.pool / name) as u:
            u.read_all(
                self.local, oc.Schema(schema, mesh=tuple(mesh)), self.comm, skip_disk=skip_disk
            )

    def mpi_write(
        self, path: str, shape: Sequence[int], mesh: Sequence[int], *, anew: bool = False
    ) -> None:
        """Write a flat file by MPI-IO, through a view of each process's part, durably."""
        from mpi4py import MPI

        if anew and self.comm.rank == 0:
            Path(path).unlink(missing_ok=True)
        self.comm.barrier()
        file = MPI.File.Open(self.comm, path, MPI.MODE_CREATE | MPI.MODE_WRONLY)
        self._set_view(file, shape, mesh)
        file.Write_all(self.local)
        file.Sync()
        file.Close()

    def mpi_read(self, path: str, shape: Sequence[int], mesh: Sequence[int]) -> None:
        """Read the flat file by MPI-IO."""
        from mpi4py import MPI

        file = MPI.File.Open(self.comm, path, MPI.MODE_RDONLY)
        self._set_view(file, shape, mesh)
        file.Read_all(self.local)
        file.Close()

    def mpi_runs(self, path: str, count: int, step: int) -> None:
        """Write `count` numbers that lie `step` numbers apart in memory, each process its own."""
        from mpi4py import MPI

        memory = MPI.DOUBLE.Create_vector(count, 1, step)
        memory.Commit()
        file = MPI.File.Open(self.comm, path, MPI.MODE_CREATE | MPI.MODE_WRONLY)
        file.Write_at_all(self.comm.rank * 8 * count, [self.local, 1, memory])
        file.Close()
        memory.Free()

    def _set_view(self, file: Any, shape: Sequence[int], mesh: Sequence[int]) -> None:
        from mpi4py import MPI

        at = np.unravel_index(self.comm.rank, tuple(mesh))
        starts = [int(i) * n for i, n in zip(at, self.local.shape, strict=True)]
        part = MPI.DOUBLE.Create_subarray(list(shape), list(self.local.shape), starts)
        part.Commit()
        file.Set_view(0, MPI.DOUBLE, part)


def main() -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    url, key = sys.argv[1:]
    with oc.connect(url, key=key) as pool:
        work = Work(pool, comm)
        if comm.rank == 0:
            print("ready", flush=True)
        while call := told(comm, next_call() if comm.rank == 0 else None):
            run = getattr(work, call.pop("do"))
            comm.barrier()
            begin = time.monotonic()
            run(**call)
            if ends := comm.gather(time.monotonic()):
                print(json.dumps(max(ends) - begin), flush=True)


def told(comm: Any, call: dict[str, Any] | None) -> dict[str, Any] | None:
    """Broadcast rank 0's value. Ranks that wait for it leave the processors to others."""
    arrival = comm.Ibarrier()
    while not arrival.Test():
        time.sleep(0.005)
    found: dict[str, Any] | None = comm.bcast(call)
    return found


def next_call() -> dict[str, Any] | None:
    """Return the next command; `None` at the end."""
    line = sys.stdin.readline()
    return json.loads(line) if line else None


if __name__ == "__main__":
    main()
