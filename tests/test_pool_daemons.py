"""The daemons of a pool on this machine: `outcore pool` and `outcore serve`."""

import contextlib
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import outcore
from started_pools import connect, directories, kill, up

import outcore as oc
from outcore import _core
from outcore.errors import BusyError, InvalidError, LostError, NotFoundError, OutcoreError
from outcore.pool import daemon_process, local_pool
from outcore.pool import state as pool_state
from outcore.pool.daemon_process import DaemonProcess

__all__ = ["directories"]

SERVE = "import sys; from outcore.cli import main; sys.exit(main())"


@contextlib.contextmanager
def started_again(directories: list[Path], server: int) -> Iterator[subprocess.Popen[str]]:
    """Restart a killed I/O server, and stop it at the end."""
    config = directories[0] / pool_state.STATE / f"io{server}.conf"
    command = [sys.executable, "-c", SERVE, "serve", "io", "--config", config]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as daemon:
        assert daemon.stdout is not None
        try:
            assert daemon.stdout.readline().startswith(f"I/O server {server} of pool")
            yield daemon
        finally:
            daemon.terminate()


def test_a_pool_is_started_used_stopped_and_started_again(directories: list[Path]) -> None:
    daemons = up(directories)
    assert [(d["role"], d["server"]) for d in daemons] == [("manager", None), ("io", 0), ("io", 1)]
    status = json.loads(outcore("pool", "status", directories[0], "--json").stdout)["daemons"]
    assert status == [each | {"is_retired": False} for each in daemons]
    assert all(daemon["is_alive"] for daemon in status)
    a = np.random.default_rng(0).random((150, 150))
    with connect(directories) as pool:
        oc.from_array(a, pool / "A", chunks=(32, 32), progress=False).close()
        lu = oc.linalg.lu_factor(pool / "A", memory=200_000, progress=False)
        x = oc.linalg.lu_solve(lu, np.ones(150), progress=False)
        np.testing.assert_allclose(a @ x, 1, atol=1e-10)

    result = outcore("pool", "down", directories[0])
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "stopped I/O server 1", "stopped I/O server 0", "stopped manager"
    ]  # fmt: skip
    assert not any(Path(f"/proc/{daemon['pid']}").exists() for daemon in daemons)
    with oc.Pool.embedded(directories) as pool, oc.open_array(pool / "A") as A:
        np.testing.assert_array_equal(A[...], a)
        with pytest.raises(OutcoreError):
            list(local_pool.start(directories, "127.0.0.1:0"))
    up(directories)
    with connect(directories) as pool, oc.open_array(pool / "A") as A:
        np.testing.assert_array_equal(A[...], a)
    with pytest.raises(BusyError):
        oc.Pool.embedded(directories)


def test_a_pool_whose_network_is_encrypted(directories: list[Path]) -> None:
    listen = ("--listen", "127.0.0.1:0")
    result = outcore("pool", "up", "--json", "--tls", *listen, "--dirs", *directories)
    assert result.exit_code == 0, result.output
    said = json.loads(result.stdout)
    url, key = said["url"], said["key"]
    assert url.startswith("outcore+tls://127.0.0.1:")
    assert url == local_pool.url_of(directories[0])
    for daemon in said["daemons"]:
        assert [address.partition(":")[0] for address in daemon["addresses"]] == ["unix", "tls"]
    a = np.random.default_rng(0).random((150, 150))
    with oc.connect(url, key=key) as pool:
        assert pool.url == url + "/"
        oc.from_array(a, pool / "A", chunks=(32, 32), progress=False).close()
        assert str(pool / "A") == url + "/A"
        with oc.open_array(url + "/A") as A:
            np.testing.assert_array_equal(A[...], a)
        x, _ = oc.linalg.solve(url + "/A", np.ones(150), memory=200_000, progress=False)
        np.testing.assert_allclose(a @ x, 1, atol=1e-10)
        with pytest.raises(InvalidError, match="is not open"):
            oc.open_array(url.replace("+tls", "") + "/A")
    for verb in (("pool", "scrub", url), ("ls", url + "/A")):
        result = outcore(*verb, "--key", key)
        assert result.exit_code == 0, result.output
    with pytest.raises(InvalidError, match=r"need TLS at this address.*outcore\+tls://"):
        oc.connect(url.replace("+tls", ""), key=key)
    assert outcore("pool", "down", directories[0]).exit_code == 0


def test_a_killed_daemon_is_seen_and_clients_go_on_when_it_is_back(directories: list[Path]) -> None:
    daemons = up(directories)
    with connect(directories) as pool:
        A = oc.from_array(np.arange(1000.0), pool / "A", progress=False)
        A.flush()
        kill(daemons[2]["pid"])
        result = outcore("pool", "status", directories[0])
        assert result.exit_code == 1
        assert "IS GONE" in result.stdout.splitlines()[2]
        with started_again(directories, 1) as again:
            np.testing.assert_array_equal(A[...], np.arange(1000.0))
            A.close()
        assert again.wait() == 0, "SIGTERM is how it ends"
    assert outcore("pool", "down", directories[0]).exit_code == 0


def test_what_is_missing_of_a_pool_is_started(directories: list[Path]) -> None:
    daemons = up(directories)
    with connect(directories) as pool:
        oc.from_array(np.arange(1000.0), pool / "A", chunks=(100,), progress=False).close()
        for gone in ([1], [0, 2]):
            for number in gone:
                kill(daemons[number]["pid"])
            # Pass the directories in another order, with a new one.
            directories.append(directories[0].with_name("c" * len(gone)))
            given = [directories[0], *reversed(directories[1:])]
            started = up(given)
            assert len(started) == len(gone) + 1
            for number in gone:
                old = daemons[number]
                (new,) = [
                    each
                    for each in started
                    if (each["role"], each["directory"]) == (old["role"], old["directory"])
                ]
                assert new["pid"] != old["pid"]
                for name in ("server", "addresses"):
                    assert new[name] == old[name]
                daemons[number] = new
            daemons += [each for each in started if each["directory"] == str(directories[-1])]
            known = [each.to_dict() for each in local_pool.running(directories[0])]
            assert json.loads(json.dumps(known)) == daemons
            assert all(each["is_alive"] for each in daemons)
        assert [each["server"] for each in daemons] == [None, 0, 1, 2, 3]
        with oc.open_array(pool / "A") as A:
            np.testing.assert_array_equal(A[...], np.arange(1000.0))
    with pytest.raises(BusyError, match=r"runs already \(5 daemons\)"):
        list(local_pool.start(directories))
    kill(daemons[2]["pid"])
    (directories[1] / "server.json").write_text("damaged\n")
    with pytest.raises(OutcoreError, match=f"{directories[1]}: server.json is damaged"):
        list(local_pool.start(directories))
    alive = [each.is_alive for each in local_pool.running(directories[0])]
    assert alive == [True, True, False, True, True], "the others go on"
    assert local_pool.left_out(directories[:1]) == directories[1:2]
    assert len(local_pool.stop(directories[0])) == 4


def test_a_daemon_that_was_stopped_by_a_signal_is_named(directories: list[Path]) -> None:
    daemons = up(directories)
    pid = daemons[0]["pid"]
    kill(daemons[1]["pid"])
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WNOWAIT)
    with pytest.raises(BusyError, match=rf"the manager in .* kill -CONT {pid}"):
        list(local_pool.start(directories))
    result = outcore("pool", "status", directories[0])
    assert result.exit_code == 1
    assert "IS STOPPED by a signal" in result.stdout.splitlines()[0]
    # It still ends cleanly.
    stopped = outcore("pool", "down", directories[0])
    assert stopped.stdout.splitlines() == ["stopped I/O server 1", "stopped manager"]


def test_a_daemon_ends_by_a_signal_that_any_of_its_threads_gets(directories: list[Path]) -> None:
    """The system chooses the thread that gets the signal, and it need not be the main thread."""
    for daemon in reversed(up(directories)):
        pid = daemon["pid"]
        others = [int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()]
        others.remove(pid)
        assert ctypes.CDLL(None).tgkill(pid, others[0], signal.SIGTERM) == 0
        # It exits by itself, not by the signal.
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert ended is not None
        assert (ended.si_code, ended.si_status) == (os.CLD_EXITED, 0)


def test_a_daemon_that_hangs_when_it_starts_is_given_up(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(daemon_process, "_START_S", 0.0)
    with pytest.raises(
        OutcoreError, match=r"manager daemon .* within 0 s that it listens; see .*log"
    ):
        list(local_pool.start(directories, "127.0.0.1:0"))
    monkeypatch.undo()
    assert len(up(directories)) == 3


def test_a_daemon_is_there_until_its_last_thread_has_ended() -> None:
    # As after a kill: the first thread may end before another has closed the files.
    code = """
import ctypes, sys, threading
threading.Thread(target=sys.stdin.read).start()
print("ready", flush=True)
ctypes.CDLL(None).pthread_exit(None)
"""
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], **pipes, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        stat = Path(f"/proc/{process.pid}/stat")
        ticks = int(stat.read_text().rpartition(")")[2].split()[19])
        daemon = DaemonProcess("io", 0, "/", process.pid, ticks, ())
        while stat.read_text().rpartition(")")[2].split()[0] != "Z":
            time.sleep(0.01)
        assert daemon.is_alive
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert not daemon.is_alive


def test_who_wrote_to_a_killed_daemon_is_told(directories: list[Path]) -> None:
    pids = {daemon["server"]: daemon["pid"] for daemon in up(directories)}
    with connect(directories) as pool, contextlib.ExitStack() as daemons:

        def restart() -> None:
            kill(pids[server])
            pids[server] = daemons.enter_context(started_again(directories, server)).pid

        a = np.eye(100)
        A = oc.from_array(a, pool / "A", progress=False)
        server = pool.stat("A/c/0/0").servers[0]
        a *= 2
        A[:] = a
        restart()
        with pytest.raises(
            LostError, match=rf"server {server} was restarted .* write to A/.*sync again"
        ):
            A.flush()
        A[:] = a
        A.flush()
        restart()
        A.flush()
        np.testing.assert_array_equal(A[...], a)
        # A solver makes its matrix durable first, and raises rather than read lost writes.
        A[0, 0] = a[0, 0] = 3
        restart()
        with pytest.raises(LostError, match="A/"):
            oc.linalg.lu_factor(pool / "A", memory="1 MiB", progress=False)
        A[0, 0] = 3
        A.close()
        lu = oc.linalg.lu_factor(pool / "A", memory="1 MiB", progress=False)
        x = oc.linalg.lu_solve(lu, np.ones(100), progress=False)
        np.testing.assert_allclose(a @ x, 1)


def test_a_directory_that_is_left_out_is_told(directories: list[Path]) -> None:
    up(directories)
    outcore("pool", "down", directories[0])
    given = "--listen", "127.0.0.1:0", "--dirs", directories[0]
    result = outcore("pool", "up", *given)
    assert result.exit_code == 0, result.output
    assert f"warning: {directories[1]} belongs to this pool and was not named" in result.stderr
    outcore("pool", "down", directories[0])
    result = outcore("pool", "up", "--json", *given)
    assert json.loads(result.stdout)["left_out"] == [str(directories[1])]
    outcore("pool", "down", directories[0])
    result = outcore("pool", "up", *given, directories[1])
    assert "belongs" not in result.stderr


def test_a_new_disk_where_a_dead_one_was_has_a_number_of_its_own(directories: list[Path]) -> None:
    up(directories)
    dead = local_pool.running(directories[0])[2]
    kill(dead.pid)
    state = directories[0] / pool_state.STATE
    # Wait only briefly for the dead server.
    core = _core.Pool.connect(
        [f"unix:{state}/manager.sock"], key_file=str(state / pool_state.KEY), patience_s=0
    )
    core.retire(1)
    core.close()
    result = outcore("pool", "status", directories[0])
    assert result.exit_code == 0, result.output
    assert f"I/O server 1 in {directories[1]} was retired" in result.stdout
    shutil.rmtree(directories[1])
    up(directories)
    found = local_pool.running(directories[0])
    assert [each.server for each in found] == [None, 0, 2]
    for each in found[1:]:
        assert each.addresses[0] == f"unix:{directories[0]}/pool/io{each.server}.sock"
    local_pool.stop(directories[0])
    assert [each["server"] for each in up(directories)] == [None, 0, 2]


def test_a_retired_directory_is_refused_and_not_missed(directories: list[Path]) -> None:
    up(directories)
    outcore("pool", "down", directories[0])
    outcore("pool", "retire", directories[0], 1)
    given = "--listen", "127.0.0.1:0", "--dirs", directories[0]
    result = outcore("pool", "up", *given, directories[1])
    assert result.exit_code == 1
    assert "have I/O server 1, which is: its files count as gone" in result.stderr
    # Neither an address of files nor the rest of the pool needs the retired server.
    assert outcore("ls", f"outcore:{directories[0]}::").exit_code == 0
    result = outcore("pool", "up", *given, directories[0].parent / "new")
    assert result.exit_code == 0, result.output
    assert "belongs to this pool" not in result.stderr
    assert [each.server for each in local_pool.running(directories[0])] == [None, 0, 2]


def test_what_cannot_be_is_refused(directories: list[Path], tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no pool was started"):
        local_pool.stop(tmp_path)
    with pytest.raises(NotFoundError, match="pool up"):
        local_pool.url_of(tmp_path)
    for listen in ("host:port", ":1", "h:70000"):
        with pytest.raises(InvalidError, match="HOST"):
            list(local_pool.start(directories, listen))
    with pytest.raises(InvalidError, match="twice"):
        list(local_pool.start([directories[0]] * 2))
    (tmp_path / "file").touch()
    with pytest.raises(InvalidError, match="file is no directory"):
        list(local_pool.start([directories[0], tmp_path / "file"]))
    up(directories)
    with pytest.raises(BusyError, match="outcore pool down"):
        list(local_pool.start(directories))
    result = outcore("serve", "io", "--config", tmp_path / "none.conf")
    assert result.exit_code == 1
    assert "none.conf" in result.stderr
    (tmp_path / "bad.conf").write_text('directory = "x"\nlisten = ["tcp:127.0.0.1:0"]\nkee = 1\n')
    assert outcore("serve", "manager", "--config", tmp_path / "bad.conf").exit_code == 1
    os.mkfifo(tmp_path / "pipe")
    result = outcore("serve", "manager", "--config", tmp_path / "pipe")
    assert result.exit_code == 1
    assert "pipe: it is a pipe, and no file" in result.stderr


def test_a_daemon_that_cannot_start_takes_the_others_along(directories: list[Path]) -> None:
    directories[1].mkdir()
    (directories[1] / "server.json").write_text("damaged\n")
    with pytest.raises(OutcoreError, match=f"{directories[1]}: server.json is damaged"):
        list(local_pool.start(directories, "127.0.0.1:0"))
    assert not any(daemon.is_alive for daemon in local_pool.running(directories[0]))


def test_who_is_stopped_while_a_daemon_starts_leaves_none(
    directories: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = []

    def stopped(process: "subprocess.Popen[bytes]", where: str) -> None:
        begun.append(process.pid)
        raise KeyboardInterrupt

    monkeypatch.setattr(daemon_process, "first_document", stopped)
    with pytest.raises(KeyboardInterrupt):
        next(local_pool.start(directories, "127.0.0.1:0"))
    (pid,) = begun
    assert not Path(f"/proc/{pid}").exists()
    monkeypatch.undo()
    up(directories)


def test_what_was_started_so_far_can_be_stopped(directories: list[Path]) -> None:
    """Another process can stop the daemons if the starting process is killed."""
    starting = local_pool.start(directories, "127.0.0.1:0")
    manager = next(starting)
    assert local_pool.running(directories[0]) == [manager]
    with pytest.raises(BusyError, match="being started or stopped by another call"):
        local_pool.stop(directories[0])
    with pytest.raises(BusyError, match="being started or stopped by another call"):
        next(local_pool.start(directories, "127.0.0.1:0"))
    assert manager.is_alive
    starting.close()
    assert not manager.is_alive


def test_who_cannot_start_a_pool_leaves_the_sockets_of_one_that_runs(
    directories: list[Path],
) -> None:
    up(directories)
    state = directories[0] / pool_state.STATE
    # As after `mv`: no file says that the daemons run.
    state.rename(state.with_name("hidden"))
    with pytest.raises(OutcoreError, match="lock is locked"):
        list(local_pool.start(directories, "127.0.0.1:0"))
    shutil.rmtree(state)
    state.with_name("hidden").rename(state)
    with oc.connect(f"outcore:{state / 'manager.sock'}") as pool:
        assert pool.ls() == []


def test_only_the_owner_reads_the_key(directories: list[Path]) -> None:
    up(directories)
    key = directories[0] / pool_state.STATE / "key"
    assert key.stat().st_mode & 0o777 == 0o600
    assert key.parent.stat().st_mode & 0o777 == 0o700
    key.chmod(0o644)
    with pytest.raises(OutcoreError, match="chmod 600"):
        connect(directories)
