"""A served pool on this machine: LU against a plain path. The wire shares the cores with the work.

The servers are processes of their own, reached over UNIX sockets.
"""

from pathlib import Path

import outcore as oc
from benchmarks.benchmark import Outcome, Setting, main
from benchmarks.figures import Target
from benchmarks.pool_embedded import PLAIN, POOL, factored
from outcore import local_pool


def measure(setting: Setting) -> Outcome:
    directories = [setting.scratch / "a", setting.scratch / "b"]
    rounds = 1 if setting.size == "tiny" else 3
    daemons = list(local_pool.start(directories, "127.0.0.1:0"))
    try:
        (address,) = (name for name in daemons[0].addresses if name.startswith("unix:"))
        with oc.connect(f"outcore:{address.removeprefix('unix:')}") as pool:
            places: dict[str, Path | oc.Pool] = {PLAIN: setting.scratch, POOL: pool}
            what = "time in a pool served on this machine over UNIX sockets, 2 directories,"
            return Outcome([factored(setting, places, rounds, what, Target("≤", 1.3))])
    finally:
        local_pool.stop(directories[0])


if __name__ == "__main__":
    main("pool_served", measure)
