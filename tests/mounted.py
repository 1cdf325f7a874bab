"""A served pool that is mounted for a test."""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
from command_line import outcore
from served import Served

from outcore.pool.mounting import mounted_at, unmount


class Mounted(NamedTuple):
    """A mounted pool: its directory, and the process that serves it."""

    place: Path
    pid: int

    def kill(self) -> None:
        """Kill the process, and wait for its end."""
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)


@contextmanager
def mounted(served: Served, place: Path, *options: str, name: str = "") -> Iterator[Mounted]:
    """Mount a directory of a pool at a new directory."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or not (
        os.geteuid() == 0 or shutil.which("fusermount3")
    ):
        pytest.skip("mounting needs /dev/fuse, and root or fusermount3")
    if mounted_at(place) is None:
        place.mkdir(exist_ok=True)
    result = outcore(
        "mount", "--json", "--key", served.key, *options, f"{served.url}/{name}", place
    )
    if "Operation not permitted" in result.output:
        pytest.skip(f"the system does not allow mounts: {result.output}")
    assert result.exit_code == 0, result.output
    try:
        yield Mounted(place, json.loads(result.output)["pid"])
    finally:
        if mounted_at(place) is not None:
            unmount(place, lazy=True)
