"""Ranks that save checkpoints in a served pool, all killed at any moment, again and again.

Each state is a function of its number. A restart loads one of them, not older than the last one
that was reported done.
"""

import contextlib
import random
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from served_pools import in_memory
from test_collective_servers_killed import Daemons
from timeouts import HANG_S

import outcore as oc
from outcore.pool.fsck import fsck

ROUNDS = 8
SHAPE = (600, 240)
MOST_S = 0.4

RANK = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import numpy as np
from communicators import NonblockingComm, SaidInFiles
import outcore as oc

rank, size, where, url = int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]), sys.argv[5]
schema = oc.Schema(sys.argv[6])
comm = NonblockingComm(rank, size, SaidInFiles(where))
(shape,) = schema.local_shapes((600, 240), size, rank)
group = oc.ArrayGroup(oc.connect(url) / "run", comm=comm, timeout=60)
try:
    found = group.restart(schema=schema, progress=False)
    number = found.attributes["number"]
    assert (found["u"] == number).all()
except oc.errors.NotFoundError:
    number = -1
while True:
    number += 1
    mine, kept = {"u": np.full(shape, float(number))}, {"number": number}
    if number % 2:
        handle = group.checkpoint(mine, kept, schema=schema, background=True, memory="64 MiB")
        group.timestep(mine, schema=schema)
        handle.wait()
    else:
        group.checkpoint(mine, kept, schema=schema, progress=False)
    if rank == 0:
        print(number, flush=True)
"""


def until_killed(
    start: Callable[..., "subprocess.Popen[str]"], where: Path, url: str, draw: random.Random
) -> list[int]:
    """Start ranks, kill all some time after the first state, and return the reported numbers."""
    size, schema = draw.choice([2, 3]), draw.choice(["block,*", "*,cyclic(7)", "*,block"])
    where.mkdir()
    given = [str(size), str(where), url, schema]
    ranks = [start(RANK, str(Path(__file__).parent), str(rank), *given) for rank in range(size)]
    assert ranks[0].stdout is not None
    first = ranks[0].stdout.readline()
    time.sleep(draw.random() * MOST_S)
    for rank in draw.sample(ranks, size):
        rank.kill()
    said = [rank.communicate(timeout=HANG_S) for rank in ranks]
    assert all(rank.returncode == -9 for rank in ranks), said
    return [int(line) for line in (first + said[0][0]).splitlines()]


def test_all_ranks_are_killed(
    run_python: Callable[..., "subprocess.Popen[str]"],
    monkeypatch: pytest.MonkeyPatch,
    all_lines: bool,
) -> None:
    draw = random.Random(8)
    with in_memory() as home, contextlib.closing(Daemons(home)) as daemons:
        monkeypatch.setenv("OUTCORE_KEY", str(daemons.key))
        pool = daemons.connect()
        oc.ArrayGroup(pool / "run", {"u": oc.ArraySpec(SHAPE)}).close()
        newest = -1
        for number in range(ROUNDS if all_lines else 3):
            done = until_killed(run_python, home / f"said-{number}", daemons.url, draw)
            assert done == list(range(newest + 1, newest + 1 + len(done)))
            newest = loaded(pool)
            assert done[-1] <= newest <= done[-1] + 1
        with oc.ArrayGroup(pool / "run") as group:
            group.checkpoint({"u": np.zeros(SHAPE)}, progress=False)
            there = [f"{number:08}" for number in group.checkpoints()]
        assert {path.name for path in (pool / "run/checkpoints").iterdir()} == {"zarr.json", *there}
        assert fsck(pool).findings == ()
        pool.close()


def loaded(pool: oc.Pool) -> int:
    """Load the newest state, and all steps; return its number."""
    with oc.ArrayGroup(pool / "run") as group:
        found = group.restart(progress=False)
        assert found.damaged == {}
        # An older checkpoint stays beside the newest.
        assert len(group.checkpoints()) <= 3
        number = found.attributes["number"]
        assert (found["u"] == number).all()
        with group["u"] as steps:
            values = steps[: group.steps]
        assert (values == values[:, :1, :1]).all()
        # A lost checkpoint may have a step already; the next run then writes it again.
        assert (np.diff(values[:, 0, 0]) >= 0).all()
    return int(number)
