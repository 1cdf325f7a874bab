"""Pools whose daemons are processes of this machine, started by the command line."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import outcore

import outcore as oc
from outcore.pool import local_pool
from outcore.pool import state as pool_state


@pytest.fixture
def directories(tmp_path: Path) -> Iterator[list[Path]]:
    """Yield the directories of a pool, and kill its daemons at the end in any case."""
    places = [tmp_path / "a", tmp_path / "b"]
    yield places
    for daemon in local_pool.running(places[0]):
        if daemon.is_alive:
            os.kill(daemon.pid, signal.SIGKILL)


def up(directories: list[Path]) -> list[dict[str, Any]]:
    """Start the daemons with the command line, on free ports."""
    result = outcore("pool", "up", "--json", "--listen", "127.0.0.1:0", "--dirs", *directories)
    assert result.exit_code == 0, result.output
    daemons: list[dict[str, Any]] = json.loads(result.stdout)["daemons"]
    return daemons


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    # Wait until all threads of this child have ended; the child stays a zombie.
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def connect(directories: list[Path]) -> oc.Pool:
    return oc.connect(
        local_pool.url_of(directories[0]), key=directories[0] / pool_state.STATE / "key"
    )
