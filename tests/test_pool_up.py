"""``outcore pool up`` a second time: it keeps the settings, and starts the missing daemons."""

import contextlib
import json
import os
import random
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from command_line import outcore
from started_pools import connect, directories, kill, up

from outcore.errors import BusyError, NotFoundError
from outcore.pool import local_pool
from outcore.pool import state as pool_state

__all__ = ["directories"]


def free_port() -> int:
    """Return the first of several ports on which no process listens.

    The system assigns ports from 32768 on to any process, so this one is below.
    """
    for first in random.SystemRandom().sample(range(20_000, 32_000, 8), 1500):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(first, first + 8):
                stack.enter_context(socket.create_server(("127.0.0.1", port)))
            return first
    raise AssertionError("no port is free")


def down(directories: list[Path]) -> None:
    assert outcore("pool", "down", directories[0]).exit_code == 0


def started(*arguments: object) -> list[dict[str, Any]]:
    result = outcore("pool", "up", "--json", *arguments)
    assert result.exit_code == 0, result.output
    daemons: list[dict[str, Any]] = json.loads(result.stdout)["daemons"]
    return daemons


def test_the_first_directory_alone_starts_what_was(directories: list[Path]) -> None:
    port = free_port()
    options = "--listen", f"127.0.0.1:{port}", "--metrics", "0", "--tls"
    first = started(*options, "--dirs", *directories)
    with connect(directories) as pool:
        pool.mkdir("made")
    down(directories)
    found = started(directories[0])
    assert [each["addresses"] for each in found] == [each["addresses"] for each in first]
    assert f"tls:127.0.0.1:{port}" in found[0]["addresses"]
    assert all(each["metrics"] for each in found)
    with connect(directories) as pool:
        assert pool.ls() == ["made"]


def test_options_that_are_given_replace_those_of_the_last_start(directories: list[Path]) -> None:
    port = free_port()
    started("--listen", f"127.0.0.1:{port}", "--tls", "--dirs", directories[0])
    down(directories)
    found = started("--listen", "127.0.0.1:0", directories[0])
    assert found[0]["addresses"][1].startswith("tls:")
    assert f"tls:127.0.0.1:{port}" not in found[0]["addresses"]


def test_a_directory_where_no_pool_was_started_alone_is_refused(directories: list[Path]) -> None:
    result = outcore("pool", "up", directories[0])
    assert result.exit_code == 1
    assert "its disk may not be mounted" in result.stderr
    assert f"outcore pool up --dirs {directories[0]}" in result.stderr
    assert not directories[0].exists()


@pytest.mark.parametrize("is_made", [True, False])
def test_an_unmounted_disk_is_no_new_server(directories: list[Path], is_made: bool) -> None:
    up(directories)
    down(directories)
    disk = directories[1].rename(directories[1].with_name("disk"))
    if is_made:
        directories[1].mkdir()
    moved = directories[0].with_name("elsewhere")
    for arguments in (
        [directories[0]],
        ["--dirs", *directories],
        ["--dirs", directories[0], moved],
    ):
        result = outcore("pool", "up", *arguments)
        assert result.exit_code == 1
        assert "I/O server 1 is missing" in result.stderr
        assert f"which was in {directories[1]}" in result.stderr
        assert "--new" in result.stderr
        assert not any(daemon.is_alive for daemon in local_pool.running(directories[0]))
        assert directories[1].exists() == is_made
        assert not moved.exists()
    if is_made:
        directories[1].rmdir()
    disk.rename(directories[1])
    assert [each["server"] for each in started(directories[0])] == [None, 0, 1]


def test_a_new_server_instead_of_a_missing_one_is_asked_for(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_pool, "_LOOK_S", 0)
    up(directories)
    down(directories)
    shutil.rmtree(directories[1])
    found = started("--listen", "127.0.0.1:0", "--new", "--dirs", *directories)
    assert [each["server"] for each in found] == [None, 0, 2]
    with pytest.raises(NotFoundError, match="server 1 is missing"):
        list(local_pool.start([*directories, directories[0].with_name("c")]))


def test_directories_of_retired_servers_are_left_out(directories: list[Path]) -> None:
    up(directories)
    down(directories)
    assert outcore("pool", "retire", directories[0], 1).exit_code == 0
    assert [each["server"] for each in started(directories[0])] == [None, 0]
    down(directories)
    shutil.rmtree(directories[1])
    assert [each["server"] for each in started(directories[0])] == [None, 0]
    with pytest.raises(BusyError, match="runs already"):
        list(local_pool.start_again(directories[0]))


def test_a_daemon_with_metrics_is_started_again_where_it_was(directories: list[Path]) -> None:
    first = started("--listen", "127.0.0.1:0", "--metrics", "0", "--dirs", *directories)
    kill(first[2]["pid"])
    (again,) = started("--metrics", "0", "--dirs", *directories)
    assert again["metrics"] == first[2]["metrics"]
    assert again["addresses"] == first[2]["addresses"]


def test_daemons_are_found_without_the_list_of_them(directories: list[Path]) -> None:
    first = started("--listen", "127.0.0.1:0", "--metrics", "0", "--dirs", *directories)
    url = local_pool.url_of(directories[0])
    known = directories[0] / pool_state.STATE / "running.json"
    for content in (b"", b"[{}]", None):
        known.unlink()
        if content is not None:
            known.write_bytes(content)
        status = outcore("pool", "status", "--json", directories[0])
        assert status.exit_code == 0, status.output
        found = json.loads(status.stdout)["daemons"]
        assert found == [each | {"is_retired": False} for each in first]
    assert local_pool.url_of(directories[0]) == url
    with pytest.raises(BusyError, match=r"runs already \(3 daemons\)"):
        list(local_pool.start(directories))
    kill(first[1]["pid"])
    assert [each["server"] for each in started(directories[0])] == [0]
    assert len(json.loads(outcore("pool", "down", "--json", directories[0]).stdout)["stopped"]) == 3


def test_a_list_that_is_damaged_is_said(directories: list[Path]) -> None:
    state = directories[0] / pool_state.STATE
    state.mkdir(parents=True)
    (state / "running.json").write_text("damaged")
    result = outcore("pool", "status", directories[0])
    assert result.exit_code == 1
    assert "running.json is damaged, and no daemon of the pool runs; remove it" in result.stderr
    (state / "running.json").unlink()


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the names of files and directories in the order in which they become durable."""
    names: list[str] = []
    sync = os.fsync

    def note(handle: int) -> None:
        names.append(os.readlink(f"/proc/self/fd/{handle}"))
        sync(handle)

    monkeypatch.setattr(os, "fsync", note)
    return names


def test_what_a_start_needs_is_durable(directories: list[Path], synced: list[str]) -> None:
    starting = local_pool.start(directories, "127.0.0.1:0")
    manager = next(starting)
    state = directories[0] / pool_state.STATE
    try:
        # Before the daemon starts that reads them: each file, then its directory and those above.
        for name in ("key", "manager.conf", "running.json"):
            (place,) = [
                number
                for number, each in enumerate(synced)
                if each.startswith(f"{state / name}.") and synced[number + 1] == str(state)
            ][:1]
            assert place
        assert str(directories[0]) in synced
        assert str(directories[0].parent) in synced
    finally:
        starting.close()
    assert not manager.is_alive


def test_a_start_that_is_killed_leaves_no_empty_key(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(handle: int) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", killed)
        with pytest.raises(KeyboardInterrupt):
            pool_state.make_key(directories[0].parent / "key")
    assert not (directories[0].parent / "key").exists()
    pool_state.make_key(directories[0].parent / "key")
    assert (directories[0].parent / "key").read_text().startswith("outcore-pool-key-1 ")
