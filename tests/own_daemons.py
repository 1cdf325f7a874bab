"""The daemons of a pool in the process of a test, where they start and stop fast."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from served import daemon, make_key

import outcore as oc
from outcore import _core


class OwnDaemons:
    """A manager in the first directory, and an I/O server in each, at any free ports."""

    def __init__(
        self,
        state: Path,
        directories: Sequence[Path],
        *,
        metrics: bool = False,
        **of_manager: str,
    ) -> None:
        self.key = state / "key"
        if not self.key.exists():
            make_key(self.key)
        self._state, self._metrics, self._directories = state, metrics, directories
        self._of_manager = of_manager
        self.daemons: list[_core.Daemon] = []
        try:
            self._start("manager", directories[0])
            for directory in directories:
                self._start("io", directory)
        except BaseException:
            self.stop()
            raise

    def _start(self, role: str, directory: Path) -> None:
        self.daemons.append(self._daemon(role, directory, len(self.daemons)))

    def _daemon(self, role: str, directory: Path, number: int) -> _core.Daemon:
        more = {"listen": f'"unix:{self._state}/{number}"'}
        if number:
            more["manager"] = f'"{self.daemons[0].addresses[0]}"'
        else:
            more |= {name: f'"{value}"' for name, value in self._of_manager.items()}
        if self._metrics:
            more["metrics"] = '"127.0.0.1:0"'
        return daemon(self._state, self.key, role, str(directory), **more)

    def stop_one(self, number: int) -> None:
        """Stop one daemon: 0 is the manager. Only `start_one` may follow."""
        self.daemons[number].stop()

    def start_one(self, number: int) -> None:
        """Start a stopped daemon again, at its address."""
        role = "io" if number else "manager"
        directory = self._directories[max(number - 1, 0)]
        self.daemons[number] = self._daemon(role, directory, number)

    @property
    def url(self) -> str:
        """Address of the pool."""
        return self.daemons[0].addresses[0].replace("unix:", "outcore:")

    def connect(self) -> oc.Pool:
        """Connect to the pool with its key."""
        return oc.connect(self.url, key=self.key)

    def stop(self) -> None:
        """Stop the servers, then the manager."""
        for each in reversed(self.daemons):
            each.stop()
        self.daemons.clear()


def without_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make calls fail at once if a server does not answer, instead of after 10 s."""
    connect = _core.Pool.connect

    def connect_at_once(*arguments: Any, **named: Any) -> _core.Pool:
        return connect(*arguments, **named | {"patience_s": 0})

    one = SimpleNamespace(connect=connect_at_once)
    monkeypatch.setattr("outcore.pool.connect._core.Pool", one)
