"""One daemon of a pool on this machine: its process, whether it lives, how it is stopped."""

import contextlib
import os
import signal
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from outcore.processes import process_fields, started_ticks

_STOP_S = 60.0


@dataclass(frozen=True)
class DaemonProcess:
    """A daemon, as it was started.

    Attributes
    ----------
    role
        ``"manager"`` or ``"io"``.
    server
        Number of an I/O server; `None` for the manager.
    directory
        Where it keeps its files.
    pid, started_ticks
        Its process, and when that was started: another process may have the number by now.
    addresses
        Where it listens.
    metrics
        Where its metrics are; `None`: nowhere.
    """

    role: str
    server: int | None
    directory: str
    pid: int
    started_ticks: int
    addresses: tuple[str, ...]
    metrics: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process is still the one that was started."""
        return started_ticks(self.pid) == self.started_ticks

    @property
    def is_stopped(self) -> bool:
        """Whether somebody stopped the process (SIGSTOP), and it may go on (SIGCONT)."""
        fields = process_fields(self.pid)
        return self.is_alive and fields is not None and fields[0] in "Tt"

    @property
    def name(self) -> str:
        """What it is."""
        return "manager" if self.server is None else f"I/O server {self.server}"

    def to_dict(self) -> dict[str, Any]:
        """All of it as plain values, and whether it is alive."""
        return asdict(self) | {"is_alive": self.is_alive}


def process_with(config: Path) -> int | None:
    """Find the process of a daemon that was started with a file of settings, whoever started it."""
    wanted = os.fsencode(os.path.realpath(config))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            named = next((word for flag, word in pairwise(words) if flag == b"--config"), None)
            if named is None or not {b"manager", b"io"} & set(words):
                continue
            # A relative name counts from where the process was started; those of `up` are absolute.
            above = b"" if named.startswith(b"/") else os.readlink(os.fsencode(entry / "cwd"))
            if os.path.realpath(os.path.join(above, named)) == wanted:
                return int(entry.name)
    return None


def stop_one(daemon: DaemonProcess) -> None:
    """Ask a daemon to stop, and wait; end it if it does not."""
    until = time.monotonic() + _STOP_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(daemon.pid, signal.SIGTERM)
        # Who was stopped by a signal would not hear of it.
        os.kill(daemon.pid, signal.SIGCONT)
        while daemon.is_alive and time.monotonic() < until:
            reap(daemon.pid)
            time.sleep(0.01)
        if daemon.is_alive:
            os.kill(daemon.pid, signal.SIGKILL)
    reap(daemon.pid)


def reap(pid: int) -> None:
    """Take note that a child of this process has ended, if it is one."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
