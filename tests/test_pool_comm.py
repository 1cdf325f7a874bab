"""Pools of parallel jobs: of threads, of processes of which one dies, and of MPI."""

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob, TorchComm
from mpi_jobs import mpiexec
from timeouts import TooBusyError, with_enough_time

import outcore as oc
from outcore import _core
from outcore._util.communicator import Communicator
from outcore._util.launchers import check_launcher
from outcore._util.this_machine import own_host
from outcore.errors import BusyError, DiskError, InvalidError, OutcoreError, ReadOnlyError
from outcore.pool import comm as pool_comm


def whole(found: list[Any]) -> list[Any]:
    """Return the results of the ranks, or raise the first error among them."""
    for each in found:
        if isinstance(each, BaseException):
            raise each
    return found


def work_together(pool: oc.Pool, comm: ThreadComm) -> tuple[str, list[int]]:
    """Rank 0 makes an array, each rank writes its rows, all ranks read them."""
    if comm.rank == 0:
        oc.create_array(pool / "A", (30, 40), "f8", chunks=(4, 40), if_exists="overwrite").close()
    comm.barrier()
    with oc.open_array(pool / "A", "r+") as A:
        A[comm.rank :: comm.size] = comm.rank
    comm.barrier()
    with oc.open_array(pool / "A") as A:
        assert (A[...] == np.arange(30)[:, None] % comm.size).all()
    comm.barrier()
    return pool.id, [server.id for server in pool.servers()]


@pytest.mark.parametrize("size", [1, 2, 3])
def test_each_rank_has_a_server_and_the_pool_comes_back(tmp_path: Path, size: int) -> None:
    def job(comm: ThreadComm) -> Any:
        with oc.Pool.from_comm(comm, tmp_path / "{rank}", timeout=60) as pool:
            assert pool.url == f"outcore:{tmp_path / '0'}::"
            return work_together(pool, comm)

    first, again = whole(ThreadJob(size).run(job)), whole(ThreadJob(size).run(job))
    assert first == again == [(first[0][0], list(range(size)))] * size
    # It is an ordinary pool.
    directories = [tmp_path / str(rank) for rank in range(size)]
    with oc.Pool.embedded(directories) as pool:
        assert (pool.id, pool.ls()) == (first[0][0], ["A"])

        def refused(comm: ThreadComm) -> None:
            oc.Pool.from_comm(comm, tmp_path / "{rank}", timeout=60)

        assert all(isinstance(each, BusyError) for each in ThreadJob(size).run(refused))


def test_ranks_may_have_the_directories_in_another_order(tmp_path: Path) -> None:
    def job(comm: ThreadComm, names: str) -> Any:
        with oc.Pool.from_comm(comm, tmp_path / names[comm.rank], timeout=60) as pool:
            return work_together(pool, comm)

    first = whole(ThreadJob(3).run(lambda comm: job(comm, "abc")))
    assert whole(ThreadJob(3).run(lambda comm: job(comm, "cab"))) == first


def test_ranks_with_one_directory_share_a_server(tmp_path: Path) -> None:
    def job(comm: ThreadComm) -> Any:
        with oc.Pool.from_comm(TorchComm(comm), tmp_path / "d", timeout=60) as pool:
            return work_together(pool, comm)

    assert {tuple(ids) for _, ids in whole(ThreadJob(3).run(job))} == {(0,)}


def test_several_machines_talk_by_tcp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_comm, "_machine", lambda: threading.current_thread().name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def job(comm: ThreadComm) -> Any:
        with oc.Pool.from_comm(comm, tmp_path / "{rank}", host="127.0.0.1", timeout=60) as pool:
            assert not list(tmp_path.glob("outcore-*/io"))
            return work_together(pool, comm)

    assert {tuple(ids) for _, ids in whole(ThreadJob(2).run(job))} == {(0, 1)}
    address = own_host()
    assert address
    assert not address.startswith("127.")


def test_what_fails_on_one_rank_fails_on_all(tmp_path: Path) -> None:
    (tmp_path / "1").write_text("a file")
    before = set(threading.enumerate())

    def job(comm: ThreadComm) -> None:
        oc.Pool.from_comm(comm, tmp_path / "{rank}", timeout=60)

    found = ThreadJob(3).run(job)
    assert all(isinstance(each, ReadOnlyError) for each in found)
    assert [str(each).startswith("rank 1 of 3: cannot make") for each in found] == [
        True, False, True,
    ]  # fmt: skip
    assert set(threading.enumerate()) == before
    # No lock remains: the call works with another directory.
    (tmp_path / "1").unlink()
    whole(ThreadJob(3).run(lambda comm: oc.Pool.from_comm(comm, tmp_path / "{rank}").close()))


def test_a_retired_server_is_not_missed_and_its_number_is_not_given_again(tmp_path: Path) -> None:
    oc.Pool.embedded([tmp_path / "0", tmp_path / "1"]).close()
    _core.retire_server(str(tmp_path / "0"), 1)

    def job(comm: ThreadComm) -> list[int]:
        names = ["0", "new"]
        with oc.Pool.from_comm(comm, tmp_path / names[comm.rank], timeout=60) as pool:
            return [one.id for one in pool.servers()]

    assert whole(ThreadJob(1).run(job)) == [[0]]
    assert whole(ThreadJob(2).run(job)) == [[0, 2]] * 2


def test_directories_must_be_those_of_one_pool(tmp_path: Path) -> None:
    def start(names: list[str]) -> list[Any]:
        def job(comm: ThreadComm) -> None:
            oc.Pool.from_comm(comm, tmp_path / names[comm.rank], timeout=60).close()

        return ThreadJob(len(names)).run(job)

    whole(start(["a", "b", "c"]))
    whole(start(["x"]))
    for names, message in [
        (["a", "b"], "all 3 I/O servers of the pool, those of 2 are missing"),
        (["b", "c"], "a pool whose names are in none"),
        (["x", "b"], "another server, pool"),
        (["a", "b", "c", "x"], "a pool each"),
    ]:
        found = start(names)
        assert all(isinstance(each, OutcoreError) for each in found)
        assert all(message in str(each) for each in found), found
    subprocess.run(["cp", "-r", tmp_path / "b", tmp_path / "copy"], check=True)
    assert "is a copy" in str(start(["a", "b", "c", "copy"])[2])
    assert whole(start(["a", "b", "c"])) == [None] * 3
    # A fourth directory adds a new server.
    whole(start(["a", "b", "c", "d"]))
    with oc.Pool.embedded([tmp_path / name for name in "abcd"]) as pool:
        assert len(pool.servers()) == 4


def test_closing_waits_for_all(tmp_path: Path) -> None:
    closing = threading.Event()

    def job(comm: ThreadComm) -> Any:
        pool = oc.Pool.from_comm(comm, tmp_path / "{rank}", timeout=60)
        if comm.rank == 0:
            closing.set()
            pool.close()
            pool.close()
            return None
        closing.wait()
        time.sleep(0.1)
        # The other rank hosts the manager and a server, and is about to close.
        with oc.from_array(np.arange(1e5), pool / "A", chunks=9999, progress=False) as A:
            found = A[::-1]
        pool.close()
        return found

    assert (whole(ThreadJob(2).run(job))[1] == np.arange(1e5)[::-1]).all()


def test_a_rank_that_fails_does_not_wait_and_the_others_are_told(tmp_path: Path) -> None:
    def attempt(timeout_s: int) -> None:
        may_fail, where, written = threading.Event(), tmp_path / str(timeout_s), 0

        def job(comm: ThreadComm) -> None:
            nonlocal written
            with oc.Pool.from_comm(comm, where / "{rank}", timeout=timeout_s) as pool:
                if comm.rank == 1:
                    may_fail.wait()
                    raise RuntimeError("a rank fails")
                try:
                    with pool.open("f", "w", hints={"base": 1, "stripe_count": 1}) as file:
                        while True:
                            file.write(bytes(1 << 16))
                            written += 1
                            may_fail.set()
                            time.sleep(0.01)
                finally:
                    may_fail.set()

        # The server of rank 1 ends. Rank 0 does not hang on it, and does not wait for rank 1 to
        # close.
        found = ThreadJob(2).run(job)
        if not written:
            raise TooBusyError(found)
        assert isinstance(found[0], DiskError)
        assert isinstance(found[1], RuntimeError)
        with oc.Pool.embedded([where / "0", where / "1"]) as pool:
            assert pool.ls() == ["f"]

    with_enough_time(attempt)


RANK = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from communicators import FileComm
import outcore as oc

rank, where, timeout = int(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
comm = FileComm(where, rank, 2)
is_too_busy = False
try:
    pool = oc.Pool.from_comm(comm, where / "disk{rank}", timeout=timeout)
    if rank == 0:
        pool.open("f", "w", hints={"base": 1, "stripe_count": 1}).write(b"abc")
except oc.errors.DiskError:
    is_too_busy = True
comm.barrier()
if rank == 1:
    os.kill(os.getpid(), signal.SIGKILL)
if is_too_busy:
    sys.exit("too busy")
while not (where / "dead").exists():
    time.sleep(0.01)
for call in (lambda: pool.open("f").read(), pool.close):
    try:
        call()
    except oc.errors.DiskError as error:
        print(error)
print(sorted(os.listdir(where / "disk0")))
"""


def test_a_rank_that_dies_is_noticed(
    tmp_path: Path, run_python: Callable[..., subprocess.Popen[str]]
) -> None:
    def attempt(timeout_s: int) -> None:
        where = tmp_path / str(timeout_s)
        where.mkdir()
        ranks = [
            run_python(RANK, str(Path(__file__).parent), str(rank), str(where), str(timeout_s))
            for rank in range(2)
        ]
        ranks[1].communicate(timeout=600)
        (where / "dead").touch()
        out, err = ranks[0].communicate(timeout=600)
        if err == "too busy\n":
            raise TooBusyError
        assert ranks[1].returncode == -9
        assert ranks[0].returncode == 0, err
        lines = out.splitlines()
        assert len(lines) == 3, out
        assert f"waited {timeout_s} s for the others without an answer" in lines[1]
        with oc.Pool.embedded([where / "disk0", where / "disk1"]) as pool:
            assert pool.ls() == ["f"]

    with_enough_time(attempt)


def test_what_is_no_communicator_is_refused(tmp_path: Path) -> None:
    class Alone:
        rank, size = 0, 1

        def barrier(self) -> None:
            pass

    for wrong, message in [(object(), "Get_rank"), (Alone(), "bcast"), (None, "NoneType")]:
        with pytest.raises(InvalidError, match=message):
            oc.Pool.from_comm(wrong, tmp_path)
    outside = ThreadComm(2, ThreadJob(2))
    with pytest.raises(InvalidError, match="rank 2 is none"):
        Communicator(outside)


def test_a_launcher_of_another_library_is_noticed() -> None:
    class World:
        def __init__(self, size: int) -> None:
            self.COMM_WORLD = self
            self.Get_size = lambda: size

    for variable in ("PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        for mpi in (None, World(1)):
            with pytest.raises(InvalidError, match=rf"started 4 processes \({variable}\)"):
                check_launcher(1, {variable: "4"}, mpi)
        check_launcher(2, {variable: "4"}, None)
        check_launcher(1, {variable: "1"}, World(1))
        check_launcher(1, {variable: "4"}, World(4))  # one rank of several, on its own
    check_launcher(1, {"PMI_SIZE": "many"}, None)


def test_solvers_notice_a_launcher_of_another_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMI_SIZE", "4")
    monkeypatch.delitem(sys.modules, "mpi4py.MPI", raising=False)
    with pytest.raises(InvalidError, match="started 4 processes"):
        oc.linalg.gram(np.ones((3, 2)), comm=ThreadComm(0, ThreadJob(1)))


MPI_JOB = """
import sys
import numpy as np
from mpi4py import MPI
import outcore as oc

comm = MPI.COMM_WORLD
with oc.Pool.from_comm(comm, sys.argv[1], timeout=60) as pool:
    if comm.rank == 0:
        oc.create_array(pool / "A", (60, 50), "c16", chunks=(7, 50), if_exists="overwrite").close()
    comm.barrier()
    with oc.open_array(pool / "A", "r+") as A:
        A[comm.rank :: comm.size] = 1j * comm.rank
        A.flush()
    comm.barrier()
    with oc.open_array(pool / "A") as A:
        assert (A[...] == 1j * (np.arange(60)[:, None] % comm.size)).all()
    assert len(pool.servers()) == int(sys.argv[2])
    with pool.logical_disk(comm.rank) as disk:
        mine = np.full(100, comm.rank)
        oc.from_array(mine, disk / "mine", if_exists="overwrite", progress=False).close()
    comm.barrier()
    with oc.open_array(pool / f".disks/{comm.size - 1}/mine") as last:
        assert (last[...] == comm.size - 1).all()
    ids = comm.allgather(pool.id)
alone = oc.Pool.from_comm(MPI.COMM_SELF, f"{sys.argv[1]}-alone-{comm.rank}")
alone.close()
print(ids[0] if len(set(ids)) == 1 else "different pools")
"""


@pytest.mark.parametrize("size", [2, 3])
def test_mpi_jobs(tmp_path: Path, size: int) -> None:
    script = tmp_path / "job.py"
    script.write_text(MPI_JOB)
    found = set()
    for _ in range(4 - size):
        done = mpiexec(size, script, str(tmp_path / "disk{rank}"), str(size))
        assert done.returncode == 0, done.stdout + done.stderr
        # The output of several ranks may share a line.
        ids = "".join(done.stdout.split())
        assert len(ids) == 32 * size, ids
        found |= {ids[at : at + 32] for at in range(0, len(ids), 32)}
    assert len(found) == 1, "the same pool again"
