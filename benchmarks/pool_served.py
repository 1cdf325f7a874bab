"""A served pool on this machine: LU against a plain path. The network shares the cores with LU.

The servers are separate processes, reached over UNIX sockets if the names of these are short
enough.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Target
from benchmarks.pool_embedded import PLAIN, POOL, factored
from outcore.pool import local_pool
from outcore.pool import state as pool_state


class ServedHere(NamedTuple):
    """A pool served on this machine: its address, the file of its key, and the way to it."""

    url: str
    key: Path
    way: str


@contextmanager
def served_here(setting: Setting) -> Iterator[ServedHere]:
    """Serve a pool in two directories of the scratch directory, by processes of their own."""
    directories = [setting.scratch / "a", setting.scratch / "b"]
    daemons = list(local_pool.start(directories, "127.0.0.1:0"))
    try:
        # The path of a socket must be short; below a long directory there is none.
        unix = [name for name in daemons[0].addresses if name.startswith("unix:")]
        url = (unix or [f"//{daemons[0].addresses[0].removeprefix('tcp:')}"])[0]
        key = directories[0] / pool_state.STATE / pool_state.KEY
        way = "UNIX sockets" if unix else "TCP"
        yield ServedHere(f"outcore:{url.removeprefix('unix:')}", key, way)
    finally:
        local_pool.stop(directories[0])


def measure(setting: Setting) -> Outcome:
    rounds = 1 if setting.size == "tiny" else 3
    with served_here(setting) as served, oc.connect(served.url, key=served.key) as pool:
        places: dict[str, Path | oc.Pool] = {PLAIN: setting.scratch, POOL: pool}
        what = f"time in a pool served on this machine over {served.way}, 2 directories,"
        return Outcome([factored(setting, places, rounds, what, Target("≤", 1.3))])


if __name__ == "__main__":
    main("pool_served", measure)
