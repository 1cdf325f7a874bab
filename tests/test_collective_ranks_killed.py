"""Processes killed during a collective: the others raise, and no partial array is complete."""

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
import pytest
from communicators import ThreadComm, ThreadJob
from served import serve
from served_pools import in_memory
from timeouts import TooBusyError, with_enough_time

import outcore as oc
from outcore.errors import IncompleteError
from outcore.pool.fsck import fsck

SIZE = 3
SHAPE = (6144, 1536)
BEFORE, AFTER = 3.0, 8.0
PART = "0.15"
"""A process is killed after this share of the data has moved."""
INCOMPLETE = "write_all was stopped, or failed; write all of it again with allow_incomplete=True"
MOST_ATTEMPTS = 5
BOUND_S = 300.0
"""Far beyond the timeouts of all attempts, on a busy machine."""

RANK = """
import os, signal, sys, threading, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from communicators import NonblockingComm, SaidInFiles
import outcore as oc

rank, home, url, call, part = int(sys.argv[2]), Path(sys.argv[3]), *sys.argv[4:7]
timeout = int(sys.argv[7])
comm = NonblockingComm(rank, 3, SaidInFiles(home / "said"))
pool = oc.connect(url) if url else oc.Pool.from_comm(comm, home / "{rank}", timeout=timeout + 1)
mine = np.full((6144, 512), 8.0)


def written():
    return sum(server[4] for server in pool.core.servers())


def die(first):
    while written() - first < float(part) * 3 * mine.nbytes:
        time.sleep(0.0002)
    os.kill(os.getpid(), signal.SIGKILL)


comm.barrier()
if part:
    threading.Thread(target=die, args=(written(),), daemon=True).start()
began = time.monotonic()
try:
    if call == "checkpoint":
        group = oc.ArrayGroup(pool / "run", comm=comm, timeout=timeout)
        group.checkpoint({"u": mine}, schema="*,block", progress=False)
    else:
        with oc.open_array(pool / "u", "r+") as u:
            is_atomic = call == "atomic"
            u.write_all(mine, "*,block", comm, timeout=timeout, atomic=is_atomic, progress=False)
    print("never", time.monotonic() - began, flush=True)
except oc.OutcoreError as error:
    print("told", time.monotonic() - began, error, flush=True)
sys.stdout.flush()
os._exit(0)
"""


Start = Callable[..., subprocess.Popen[str]]
CHUNKS = (256, 1536)


@contextmanager
def pool_of(home: Path, way: str) -> Iterator[tuple[oc.Pool, str, Path | None]]:
    """A pool that others can connect to, or the ranks' own; its address, and its key."""
    if way == "own":
        with oc.Pool.embedded([home / str(rank) for rank in range(SIZE)]) as pool:
            yield pool, "", None
    else:
        with serve(home, way) as (url, key), oc.connect(url, key=key) as pool:
            yield pool, url, key


def prepare(pool: oc.Pool) -> None:
    with oc.create_array(pool / "u", SHAPE, chunks=CHUNKS) as u:
        u[...] = BEFORE
    with oc.ArrayGroup(pool / "run", {"u": oc.ArraySpec(SHAPE, chunks=CHUNKS)}) as group:
        group.checkpoint({"u": np.full(SHAPE, BEFORE)}, progress=False)


def killed(start: Start, home: Path, url: str, call: str, who: int, timeout_s: int) -> list[str]:
    """Run the ranks, one of which kills itself; return the output of the others."""
    (home / "said").mkdir()
    tests, given = str(Path(__file__).parent), [str(home), url, call]
    ranks = [
        start(RANK, tests, str(rank), *given, PART if rank == who else "", str(timeout_s))
        for rank in range(SIZE)
    ]
    said = [rank.communicate(timeout=2 * BOUND_S) for rank in ranks]
    if ranks[who].returncode != -signal.SIGKILL:
        raise TooBusyError(said)
    return [out for rank, (out, _) in enumerate(said) if rank != who]


def content(pool: oc.Pool, call: str) -> str:
    """Return "before" or "after" for complete values, or the message of the error on opening."""
    if call == "checkpoint":
        with oc.ArrayGroup(pool / "run") as group:
            saved = group.restart(progress=False)
        found, expected = saved["u"], BEFORE if saved.number == 0 else AFTER
    else:
        try:
            with oc.open_array(pool / "u") as u:
                found = u[...]
        except IncompleteError as error:
            return str(error)
        expected = float(found[0, 0])
    assert (found == expected).all()
    return {BEFORE: "before", AFTER: "after"}[expected]


def again(pool: oc.Pool, call: str, way: str) -> None:
    """Check that the next call succeeds, and leaves no extra files."""

    def work(comm: ThreadComm) -> None:
        mine = np.full((SHAPE[0], SHAPE[1] // SIZE), 1.0)
        if call == "checkpoint":
            with oc.ArrayGroup(pool / "run", comm=comm) as group:
                assert group.checkpoint({"u": mine}, schema="*,block", progress=False) == 1
        else:
            with oc.open_array(pool / "u", "r+", allow_incomplete=True) as u:
                u.write_all(mine, "*,block", comm, atomic=call == "atomic", progress=False)

    assert ThreadJob(SIZE).run(work) == [None] * SIZE
    with oc.ArrayGroup(pool / "run") as group, oc.open_array(pool / "u") as u:
        found = group.restart(progress=False)["u"] if call == "checkpoint" else u[...]
    assert (found == 1).all()
    names = {path.name for path in (pool / "run/checkpoints").iterdir()}
    assert names == {"zarr.json", "00000000", *["00000001"] * (call == "checkpoint")}
    names = {path.name for path in (pool / "u").iterdir()}
    assert names == {"zarr.json", "outcore.generation", "c"}
    if way == "own":
        # A server may end with its process, or be silent for the timeout of these pools. Then
        # `fsck` has to remove the files that it kept.
        assert {finding.kind for finding in fsck(pool).findings} <= {"unfinished removal"}
        fsck(pool, repair=True)
    assert fsck(pool).findings == ()


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("way", "who", "call"),
    [
        *(("unix", 2, call) for call in ("write", "atomic", "checkpoint")),
        *(("tcp", 0, call) for call in ("write", "atomic", "checkpoint")),
        ("own", 2, "write"),
        ("own", 0, "atomic"),
        ("own", 0, "checkpoint"),
    ],
)
def test_a_process_that_is_killed_amid_the_data(
    way: str, who: int, call: str, run_python: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the ranks' own pool the kill also ends a server, and perhaps the manager."""

    def attempt(timeout_s: int) -> None:
        for _ in range(MOST_ATTEMPTS):
            with in_memory() as home:
                if amid(way, who, call, run_python, home, monkeypatch, timeout_s):
                    return
        raise AssertionError("it was never killed before all was done")

    with_enough_time(attempt)


def amid(
    way: str,
    who: int,
    call: str,
    start: Start,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    timeout_s: int,
) -> bool:
    """Return whether the kill came in time; on a busy machine it may be too late."""
    with ExitStack() as stack:
        pool, url, key = stack.enter_context(pool_of(home, way))
        prepare(pool)
        if way == "own":
            stack.close()
        else:
            monkeypatch.setenv("OUTCORE_KEY", str(key))
        said = killed(start, home, url, call, who, timeout_s)
        if way == "own":
            pool, *_ = stack.enter_context(pool_of(home, way))
        found = content(pool, call)
        if found == "after":
            return False
        assert INCOMPLETE in found if call == "write" else found == "before"
        for each in said:
            told = re.match(r"told (\S+) .*(process|processes|rank|server) \d", each)
            assert told, said
            assert float(told[1]) < BOUND_S
        again(pool, call, way)
    return True
