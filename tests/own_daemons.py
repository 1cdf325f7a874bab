"""The daemons of a pool in the process of a test, where they start and stop fast."""

import secrets
from collections.abc import Sequence
from pathlib import Path

import outcore as oc
from outcore import _core


class OwnDaemons:
    """A manager in the first directory, and an I/O server in each, at any free ports."""

    def __init__(self, state: Path, directories: Sequence[Path], *, metrics: bool = False) -> None:
        self.key = state / "key"
        if not self.key.exists():
            self.key.touch(0o600)
            self.key.write_text(f"outcore-pool-key-1 {secrets.token_hex(32)}\n")
        self._state, self._metrics = state, metrics
        self.daemons: list[_core.Daemon] = []
        try:
            self._start("manager", directories[0])
            for directory in directories:
                self._start("io", directory)
        except BaseException:
            self.stop()
            raise

    def _start(self, role: str, directory: Path) -> None:
        directory.mkdir(exist_ok=True)
        settings = f'directory = "{directory}"\nlisten = "unix:{self._state}/{len(self.daemons)}"\n'
        settings += f'key_file = "{self.key}"\n'
        if self.daemons:
            settings += f'manager = "{self.daemons[0].addresses[0]}"\n'
        if self._metrics:
            settings += 'metrics = "127.0.0.1:0"\n'
        config = self._state / f"{len(self.daemons)}.conf"
        config.write_text(settings)
        self.daemons.append(_core.Daemon(role, str(config)))

    @property
    def url(self) -> str:
        """Where the pool is."""
        return self.daemons[0].addresses[0].replace("unix:", "outcore:")

    def connect(self) -> oc.Pool:
        """Connect to the pool with its key."""
        return oc.connect(self.url, key=self.key)

    def stop(self) -> None:
        """Stop the servers, then the manager."""
        for daemon in reversed(self.daemons):
            daemon.stop()
        self.daemons.clear()
