"""Ranks of a group that die or never arrive: the others get an error within a bounded time."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from communicators import NonblockingComm, Said
from mpi_jobs import all_say, mpiexec
from served_pools import in_memory, some_pool
from timeouts import HANG_S, TooBusyError, with_enough_time

import outcore as oc
from outcore._util.communicator import Communicator
from outcore.errors import DiskError, InvalidError, OutcoreError


@pytest.fixture(params=["plain", "embedded"])
def above(request: pytest.FixtureRequest) -> Iterator[Any]:
    with in_memory() if request.param == "plain" else some_pool("embedded") as found:
        yield found


SPECS = {"u": oc.ArraySpec((6, 5)), "v": oc.ArraySpec((4,), dims=("x",))}
SCHEMAS = {"u": oc.Schema("block,*"), "v": oc.Schema("block")}
SIZE, MOST_MESSAGES, LONG_S = 2, 40, 600


def state(rank: int, value: float) -> dict[str, Any]:
    return {"u": np.full((3, 5), value + rank), "v": np.full(2, value + rank)}


def whole(value: float) -> Any:
    return np.repeat([value, value + 1], 3)[:, None] * np.ones(5)


CALLS: dict[str, Callable[[oc.ArrayGroup, int], Any]] = {
    "timestep": lambda group, rank: group.timestep(state(rank, 7.0), schema=SCHEMAS),
    "checkpoint": lambda group, rank: group.checkpoint(state(rank, 7.0), schema=SCHEMAS),
    "background": lambda group, rank: group.checkpoint(
        state(rank, 7.0), schema=SCHEMAS, background=True, memory="64 MiB"
    ).wait(LONG_S),
    "restart": lambda group, rank: group.restart(schema=SCHEMAS),
}
CHECKPOINTS = ("checkpoint", "background")


def run(
    path: Any, call: str, who: int, dies_at: int | None, timeout_s: int
) -> tuple[list[Any], list[int]]:
    """Return the results of this call and the next one on each rank, and the message counts."""
    said: Said = {}
    comms = [
        NonblockingComm(rank, SIZE, said, dies_at if rank == who else None) for rank in range(SIZE)
    ]

    def work(rank: int) -> Any:
        found: list[Any] = []
        group: oc.ArrayGroup | None = None
        try:
            group = oc.ArrayGroup(path, SPECS, comm=comms[rank], timeout=timeout_s)
            found.append(CALLS[call](group, rank))
            if dies_at is not None:
                group.timestep(state(rank, 9.0), schema=SCHEMAS)
        except SystemExit as error:
            return error
        except Exception as error:
            found.append(error)
            # Where the machine is too busy, the other rank ends this one before its death.
            if group is not None and rank != who:
                with pytest.raises(OutcoreError):
                    group.timestep(state(rank, 9.0), schema=SCHEMAS)
        return found

    with ThreadPoolExecutor(SIZE) as threads:
        return list(threads.map(work, range(SIZE))), [comm.messages for comm in comms]


@pytest.mark.exhaustive
@pytest.mark.parametrize("who", range(SIZE))
@pytest.mark.parametrize("call", CALLS)
def test_a_rank_that_dies_at_any_message(above: Any, call: str, who: int) -> None:
    """The other ranks get an error in time; the data stay unchanged, or are whole."""

    def run_in(name: str, dies_at: int | None, timeout_s: int) -> tuple[list[Any], list[int]]:
        with oc.ArrayGroup(above / name, SPECS) as group:
            group.checkpoint({"u": whole(3.0), "v": np.arange(4.0)})
        return run(above / name, call, who, dies_at, timeout_s)

    _, messages = run_in("undisturbed", None, LONG_S)
    assert 4 < messages[who] < MOST_MESSAGES - 1

    def one(dies_at: int) -> tuple[str, Any]:
        def attempt(timeout_s: int) -> tuple[str, Any]:
            name, before = f"run{dies_at}-{timeout_s}", time.monotonic()
            found, _ = run_in(name, dies_at, timeout_s)
            if not isinstance(found[who], SystemExit):
                raise TooBusyError(found)
            assert time.monotonic() - before < LONG_S
            assert isinstance(found[1 - who][-1], OutcoreError), found
            return name, found[1 - who][0]

        return with_enough_time(attempt)

    with ThreadPoolExecutor(MOST_MESSAGES) as jobs:
        told = list(jobs.map(one, range(messages[who])))
    for name, said in told:
        with oc.ArrayGroup(above / name) as group:
            assert group.steps <= 2
            for step in range(group.steps):
                first = 7.0 if step == 0 and call == "timestep" else 9.0
                assert (group["u"][step] == whole(first)).all()
            saved = group.restart()
            assert (saved["u"] == whole(7.0 if saved.number else 3.0)).all()
            assert saved.number <= (call in CHECKPOINTS)
            if call in CHECKPOINTS and isinstance(said, int):
                assert said == saved.number
            elif isinstance(said, int):
                assert said < group.steps


RANK = """
import sys, time, types
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from communicators import NonblockingComm, SaidInFiles
import outcore as oc
from outcore._util import communicator

rank, where = int(sys.argv[2]), Path(sys.argv[3])
died_at = None


def clock():
    global died_at
    now = time.monotonic()
    if died_at is None and (where / "dead").exists():
        died_at = now
    return now if died_at is None else now + 1000 * (now - died_at)


# While all ranks live, they have two minutes for each step. Afterwards, their time flies.
communicator.time = types.SimpleNamespace(monotonic=clock, sleep=time.sleep)
comm = NonblockingComm(rank, 3, SaidInFiles(where))
group = oc.ArrayGroup(where / "run", {"u": oc.ArraySpec((300, 40))}, comm=comm, timeout=120)
number = 0
try:
    while True:
        if number == 3:
            print("begun", flush=True)
        mine = {"u": np.full((100, 40), float(number))}
        assert group.checkpoint(mine, {"number": number}, schema="block,*") == number
        assert group.timestep(mine, schema="block,*") == number
        number += 1
except oc.errors.DiskError as error:
    print("told", error, flush=True)
"""


@pytest.mark.parametrize("who", [0, 2])
def test_a_rank_that_is_killed(
    who: int, run_python: Callable[..., subprocess.Popen[str]], tmp_path: Path
) -> None:
    tests = str(Path(__file__).parent)
    with in_memory() as where:
        ranks = [run_python(RANK, tests, str(rank), str(where)) for rank in range(3)]
        for rank in ranks:
            assert rank.stdout is not None
            assert rank.stdout.readline() == "begun\n"
        os.kill(ranks[who].pid, signal.SIGKILL)
        (where / "dead").touch()
        said = [rank.communicate(timeout=HANG_S)[0] for rank in ranks]
        for rank in {0, 1, 2} - {who}:
            assert "told" in said[rank], said
            assert "waited 120 s for the others without an answer" in said[rank], said
        with oc.ArrayGroup(where / "run") as group:
            saved = group.restart()
            assert (saved["u"] == saved.attributes["number"]).all()
            assert group.steps >= saved.number
            for step in range(group.steps):
                assert (group["u"][step] == step).all()


JOB = """
import sys, time, types
from pathlib import Path
import numpy as np
from mpi4py import MPI
import outcore as oc
from outcore._util import communicator

comm = MPI.COMM_WORLD
where, is_last = Path(sys.argv[1]).parent, comm.rank == comm.size - 1


def wait_for(count):
    while not all((where / f"told{rank}").exists() for rank in range(count)):
        time.sleep(0.01)


specs = {name: oc.ArraySpec((24, 4)) for name in ("u", *map(str, range(12)))}
group = oc.ArrayGroup(sys.argv[1], specs, comm=comm, timeout=60)
mine = {name: np.full((24 // comm.size, 4), float(comm.rank)) for name in specs}
group.checkpoint(mine, schema="block,*")
saved = group.restart(schema="block,*")
assert all((saved[name] == comm.rank).all() for name in specs)
comm.Barrier()
# A minute passes in a moment.
communicator.time = types.SimpleNamespace(
    monotonic=lambda: 1000 * time.monotonic(), sleep=time.sleep
)
try:
    if is_last:
        wait_for(comm.size - 1)
    group.timestep(mine, schema="block,*")
except oc.errors.DiskError as error:
    print("told" if "without an answer" in str(error) else error, flush=True)
(where / f"told{comm.rank}").touch()
wait_for(comm.size)
if not is_last:
    time.sleep(60)
MPI.COMM_WORLD.Abort(0)
"""


def test_a_rank_of_an_mpi_job_that_stays_away(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    done = mpiexec(3, script, str(tmp_path / "run"))
    all_say("told", 3, done)


def test_a_collective_of_which_the_first_rank_never_comes() -> None:
    with some_pool("embedded") as pool, oc.create_array(pool / "u", (6, 5)) as u:
        comm = NonblockingComm(1, 2, {})
        for call in (u.write_all, u.read_all):
            with pytest.raises(
                DiskError, match="rank 1 waited 1 s for the others without an answer"
            ):
                call(np.zeros((3, 5)), "block,*", comm, timeout=1)
        assert u.info().state == "whole"


def test_values_of_any_length_arrive() -> None:
    said: Said = {}
    comms = [Communicator(NonblockingComm(rank, 3, said), 5) for rank in range(3)]

    def work(rank: int) -> Any:
        own = [bytes([rank]) * length for length in (0, 1, 2000, 2048, 5000 * rank, 100_000)]
        return [comms[rank].allgather(each) for each in own], [
            comms[rank].bcast(each if rank == 1 else None, 1) for each in own
        ]

    with ThreadPoolExecutor(3) as threads:
        for gathered, broadcast in threads.map(work, range(3)):
            for length, each, one in zip(
                [0, 1, 2000, 2048, 5000, 100_000], gathered, broadcast, strict=True
            ):
                lengths = [0, 5000, 10_000] if length == 5000 else [length] * 3
                assert each == [bytes([rank]) * n for rank, n in enumerate(lengths)]
                assert one == b"\x01" * length


def test_a_timeout_that_is_none_is_told_to_all() -> None:
    with in_memory() as where:
        for wrong in (-1, "1", float("nan")):
            with pytest.raises(InvalidError, match="timeout is seconds"):
                oc.ArrayGroup(where / "run", SPECS, timeout=wrong)  # type: ignore[arg-type]
        assert not list(where.iterdir())
