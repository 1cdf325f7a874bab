"""Two managers on one database: an acknowledged change stays, and none takes effect twice."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from browser import faults_of
from postgres_server import PostgresServer, postgres
from served import daemon, make_key
from test_pool_up import free_port

import outcore as oc
from outcore.errors import OutcoreError

__all__ = ["postgres"]  # a fixture

LONG_S = 60.0

SERVE = """
import signal, sys
from outcore import _core
manager = _core.Daemon("manager", sys.argv[1])
print("active", flush=True)
signal.pause()
"""


class Manager:
    """A manager that stands by, in a process of its own."""

    def __init__(self, home: Path, number: int, port: int, url: str) -> None:
        (home / f"m{number}").mkdir(exist_ok=True)
        self._config = home / f"m{number}.conf"
        self.address, self._page = f"tcp:127.0.0.1:{port}", f"127.0.0.1:{free_port()}"
        values = {
            "directory": str(home / f"m{number}"), "listen": [self.address],
            "key_file": str(home / "key"), "store": url, "stand_by": "on",
            "page": self._page,
        }  # fmt: skip
        self._config.write_text(
            "".join(f"{name} = {json.dumps(values[name])}\n" for name in values)
        )
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", SERVE, str(self._config)], stdout=subprocess.PIPE, text=True
        )

    def wait_until_active(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "active\n"

    def wait_for_page(self, text: str) -> str:
        """Wait until the page contains a text, and return the page."""
        end, page = time.monotonic() + LONG_S, ""
        while text not in page:
            assert time.monotonic() < end, page
            time.sleep(0.05)
            try:
                with urllib.request.urlopen(f"http://{self._page}/") as answer:
                    page = answer.read().decode()
            except (urllib.error.URLError, ConnectionError) as error:
                page = str(error)
        return page

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


class Makers:
    """Threads that make directories, and remember which were acknowledged."""

    def __init__(self, url: str, key: Path) -> None:
        self.made: list[str] = []
        self.errors: list[str] = []
        self.longest_s = 0.0
        self._is_over = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(url, key, number)) for number in range(3)
        ]
        for thread in self._threads:
            thread.start()

    def _work(self, url: str, key: Path, maker: int) -> None:
        with oc.connect(url, key=key) as pool:
            for number in range(1 << 20):
                if self._is_over.is_set():
                    break
                name, began = f"{maker}-{number}", time.monotonic()
                try:
                    pool.mkdir(name)
                except OutcoreError as error:
                    self.errors.append(str(error))
                    break
                self.made.append(name)
                self.longest_s = max(self.longest_s, time.monotonic() - began)

    def wait_for(self, count: int) -> None:
        """Wait until each thread has made so many more directories."""
        wanted = [count + made for made in self._counts()]
        while any(map(int.__lt__, self._counts(), wanted)) and not self.errors:
            time.sleep(0.01)

    def _counts(self) -> list[int]:
        made = list(self.made)
        return [sum(name.startswith(f"{maker}-") for name in made) for maker in range(3)]

    def stop(self) -> None:
        self._is_over.set()
        for thread in self._threads:
            thread.join()


@contextmanager
def two_managers(home: Path, url: str) -> Iterator[tuple[list[Manager], str]]:
    make_key(home / "key")
    port = free_port()
    managers = [Manager(home, number, port + number, url) for number in range(1)]
    try:
        managers[0].wait_until_active()
        managers.append(Manager(home, 1, port + 1, url))
        addresses = json.dumps([f"tcp:127.0.0.1:{port + number}" for number in range(2)])
        server = daemon(home, home / "key", "io", "io", manager=addresses)
        try:
            yield managers, f"outcore://127.0.0.1:{port},127.0.0.1:{port + 1}"
        finally:
            server.stop()
    finally:
        for manager in managers:
            manager.end()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_stand_by_takes_over(
    postgres: PostgresServer, tmp_path: Path, how: signal.Signals, all_lines: bool
) -> None:
    with (
        two_managers(tmp_path, postgres.database()) as (managers, url),
        oc.connect(url, key=tmp_path / "key") as pool,
    ):
        (pool / "file").write_bytes(b"content")
        makers = Makers(url, tmp_path / "key")
        try:
            for _ in range(5 if all_lines else 1):
                makers.wait_for(10)
                active, other = managers
                os.kill(active.process.pid, how)
                other.wait_until_active()
                makers.wait_for(10)
                if how == signal.SIGSTOP:
                    os.kill(active.process.pid, signal.SIGCONT)
                    assert active.process.wait() == 1, "it finds that it lost the lease, and exits"
                active.end()
                active.start()
                managers.reverse()
        finally:
            makers.stop()
        # A repeated request that was done already would have failed: the name exists.
        assert makers.errors == []
        assert sorted(pool.ls()) == sorted(["file", *makers.made])
        assert (pool / "file").read_bytes() == b"content"
        print(f"longest wait for an answer: {makers.longest_s:.1f} s")


def test_the_page_of_a_stand_by_names_the_active_manager(
    postgres: PostgresServer, tmp_path: Path
) -> None:
    with two_managers(tmp_path, postgres.database()) as (managers, _):
        active, other = managers
        host = socket.gethostname()
        found = other.wait_for_page(f"Active: {active.address} on host {host}.")
        assert f"Manager {other.address} stands by" in found
        assert "<table" not in found
        active.wait_for_page('class="text good">well</td>')
        active.end()
        other.wait_until_active()
        assert "stands by" not in other.wait_for_page('id="daemons"')
        active.start()
        active.wait_for_page(f"Active: {other.address} on host {host}.")
        assert postgres.tell("stop") == "done"
        missing = active.wait_for_page("It cannot ask which manager is active: ")
        assert postgres.tell("start") == "done"
        assert faults_of([found, missing], tmp_path) == []
