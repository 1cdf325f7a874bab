"""Atomic collectives with a killed process: the array is unchanged, or completely written."""

import json
import os
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from served import serve
from served_pools import in_memory
from timeouts import TooBusyError, with_enough_time

import outcore as oc
from outcore.array_files import atomic_write
from outcore.cli import main
from outcore.storage.volumes import AnyPath, place

SIZE = 3
BEFORE, AFTER = 3.0, 8.0

RANK = """
import os, signal, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from communicators import NonblockingComm, SaidInFiles
import outcore as oc
from outcore.array_files import atomic_write
from outcore.collective.call import Call

rank, url, where, moment = int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5]
comm = NonblockingComm(rank, 3, SaidInFiles(Path(where)))


def killed(owner, name, after):
    do = getattr(owner, name)
    def instead(*arguments):
        if after:
            do(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(owner, name, instead)


match moment, rank:
    case "made", 0:
        killed(atomic_write, "make", True)
    case "written", 0:
        killed(atomic_write, "take_place", False)
    case "counts", 0:
        killed(atomic_write, "take_place", True)
    case ("moved", (0 | 2)) if int(sys.argv[6]) == rank:
        killed(Call, "end", False)
pool = oc.connect(url)
with oc.open_array(pool / "u", "r+") as u:
    mine = np.full((u.shape[0] // 3, *u.shape[1:]), 8.0)
    schema = "block" + ",*" * (u.ndim - 1)
    if moment == "any" and rank == int(sys.argv[6]):
        print("begun", flush=True)
    try:
        while True:
            u.write_all(mine, schema, comm, timeout=int(sys.argv[7]), atomic=True)
            assert moment == "any"
    except oc.OutcoreError as error:
        print("told", error, flush=True)
"""


def make(pool: oc.Pool, steps: int) -> None:
    """Make an array in one shard file, or with one file per step."""
    if steps == 1:
        with oc.create_array(pool / "u", (1200, 1000), chunks=(100, 1000)) as u:
            u[...] = BEFORE
        return
    with oc.create_array(pool / "u", (0, 1200 // steps, 1000), growing=True) as u:
        u.append(np.full((steps, *u.shape[1:]), BEFORE))
        assert u.metadata.grid().shards == steps


@pytest.mark.exhaustive
@pytest.mark.parametrize("steps", [1, 30])
@pytest.mark.parametrize(
    ("moment", "who"),
    [
        ("made", 0),
        ("moved", 0),
        ("moved", 2),
        ("written", 0),
        ("counts", 0),
        ("any", 0),
        ("any", 2),
    ],
)
def test_a_process_that_is_killed(
    moment: str,
    who: int,
    steps: int,
    run_python: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_enough_time(
        lambda timeout_s: killed(moment, who, steps, timeout_s, run_python, monkeypatch)
    )


def killed(
    moment: str,
    who: int,
    steps: int,
    timeout_s: int,
    run_python: Callable[..., subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Kill a process at a moment, and check the array."""
    with in_memory() as home, serve(home, "unix") as (url, key), oc.connect(url, key=key) as pool:
        monkeypatch.setenv("OUTCORE_KEY", str(key))
        make(pool, steps)
        (home / "said").mkdir()
        given = [url, str(home / "said"), moment, str(who), str(timeout_s)]
        tests = str(Path(__file__).parent)
        ranks = [run_python(RANK, tests, str(rank), *given) for rank in range(SIZE)]
        if moment == "any":
            stdout = ranks[who].stdout
            assert stdout is not None
            assert stdout.readline() == "begun\n"
            os.kill(ranks[who].pid, signal.SIGKILL)
        said = [rank.communicate(timeout=600)[0] for rank in ranks]
        live = [rank for rank in range(SIZE) if rank != who]
        named = re.findall(r"heard of process(?:es)? ([\d, and]+) for", "".join(said))
        if said[who] or set(named) - {str(who)}:
            raise TooBusyError(said)
        assert ranks[who].returncode == -signal.SIGKILL
        assert all("told" in said[rank] for rank in live), said

        with oc.open_array(pool / "u") as u:
            assert u.info().state == "whole"
            found = set(np.unique(u[...]))
        # Process 0 commits once all data are there, even if other processes died after that.
        counts = moment == "counts" or (moment, who) == ("moved", 2)
        assert found == {AFTER if counts else BEFORE} or moment == "any"
        assert found in ({BEFORE}, {AFTER})
        left = atomic_write.left(place(pool / "u"))
        if moment != "any":
            # The first process removes the temporary file at the very end, unless it is killed.
            assert len(left) == (who == 0 and moment != "counts")
        assert [name for name in pool.ls() if name != "u"] == []
        for each in left:
            assert_is_said(pool, each.path)
        again(pool)
        assert atomic_write.left(place(pool / "u")) == []
        (entry,) = json.loads(outcore("info", "--json", str(pool / "u")))["entries"]
        assert "atomic_write_bytes" not in entry["details"]


def again(pool: oc.Pool) -> None:
    with oc.open_array(pool / "u", "r+") as u:
        u.write_all(np.ones(u.shape), ",".join("*" * u.ndim), atomic=True)
    with oc.open_array(pool / "u") as u:
        assert (u[...] == 1).all()


def assert_is_said(pool: oc.Pool, left: AnyPath) -> None:
    (entry,) = json.loads(outcore("info", "--json", str(pool / "u")))["entries"]
    assert entry["state"] == "whole"
    assert entry["details"]["atomic_write_bytes"] >= 1200 * 1000 * 8
    said = outcore("info", str(left))
    assert "the new files of an atomic write_all of u that runs or was killed" in said


def outcore(*words: str) -> str:
    done = CliRunner().invoke(main, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def test_what_is_left_is_removed_with_the_array_or_alone(tmp_path: Path) -> None:
    with in_memory() as home, serve(home, "unix") as (url, key), oc.connect(url, key=key) as pool:
        with oc.create_array(pool / "u", (40, 30)) as u:
            for _ in range(2):
                left = atomic_write.make(place(u.path), u.metadata)
            assert [each.path.name for each in atomic_write.left(u.place)] == [left.path.name]
            among = ("--key", str(key), "--yes")
            outcore("rm", *among, str(left.path))
            assert atomic_write.left(u.place) == []
            atomic_write.make(u.place, u.metadata)
            outcore("rm", *among, str(pool / "u"))
        assert pool.ls() == []
