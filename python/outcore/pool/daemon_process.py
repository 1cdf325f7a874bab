"""One daemon of a pool on this machine: how to start and stop its process, whether it is alive."""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from outcore._util.this_machine import process_fields, started_ticks
from outcore.errors import OutcoreError

_START_S = 120.0
_STOP_S = 60.0


@dataclass(frozen=True)
class DaemonProcess:
    """A daemon that `outcore pool up` started.

    Attributes
    ----------
    role
        ``"manager"`` or ``"io"``.
    server
        Number of an I/O server; `None` for the manager.
    directory
        Directory of its files.
    pid, started_ticks
        Its process, and the start time of that process, since another process may get the same
        number.
    addresses
        Addresses on which it listens.
    metrics
        URL of its metrics; `None` if it serves none.
    page
        URL of the manager's page for people; `None` if it serves none.
    """

    role: str
    server: int | None
    directory: str
    pid: int
    started_ticks: int
    addresses: tuple[str, ...]
    metrics: str | None = None
    page: str | None = None

    @property
    def is_alive(self) -> bool:
        """Whether the process is still the one that was started."""
        return started_ticks(self.pid) == self.started_ticks

    @property
    def is_stopped(self) -> bool:
        """Whether a signal (SIGSTOP) suspends the process, which SIGCONT would resume."""
        fields = process_fields(self.pid)
        return self.is_alive and fields is not None and fields[0] in "Tt"

    @property
    def name(self) -> str:
        """Its role, with the number of an I/O server."""
        return "manager" if self.server is None else f"I/O server {self.server}"

    def to_dict(self) -> dict[str, Any]:
        """Return all fields as plain values, and whether the process is alive."""
        return asdict(self) | {"is_alive": self.is_alive}


@contextlib.contextmanager
def started_verb(
    words: Sequence[str], log: Path | None = None, directory: str | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Start a verb of the command line in the background; kill it if the block raises an error.

    Parameters
    ----------
    words
        The verb and its arguments, without ``--json``.
    log
        File for its messages.
    directory
        Its working directory; by default this process's.

    Yields
    ------
    tuple
        Number of the process, and the JSON document that it prints once it runs, or if it cannot.
        The document is empty if the process ended without one.
    """
    main = "import sys; from outcore.cli import main; sys.exit(main())"
    with open(log or os.devnull, "ab", opener=lambda at, flags: os.open(at, flags, 0o600)) as file:
        process = subprocess.Popen(
            [sys.executable, "-c", main, words[0], "--json", *words[1:]], stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=file, start_new_session=True, cwd=directory,
        )  # fmt: skip
    assert process.stdout is not None
    try:
        yield process.pid, first_document(process, "" if log is None else f"; see {log}")
    except BaseException:
        # No record names this process, and it would keep its directory locked.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
        raise
    finally:
        process.stdout.close()
        # The process keeps running; this one does not wait for its end.
        process.returncode = 0


def first_document(process: "subprocess.Popen[bytes]", where: str) -> dict[str, Any]:
    """Read the first JSON document of a process; report one that prints none within two minutes."""
    assert process.stdout is not None
    text, until = b"", time.monotonic() + _START_S
    pipe = select.poll()
    pipe.register(process.stdout)
    while pipe.poll(max(until - time.monotonic(), 0.0) * 1e3):
        if not (part := os.read(process.stdout.fileno(), 1 << 16)):
            return {}
        text += part
        with contextlib.suppress(ValueError):
            document = json.loads(text)
            return document if isinstance(document, dict) else {}
    message = f"it did not say within {_START_S:g} s that it listens{where}"
    return {"error": {"kind": OutcoreError.kind, "message": message}}


def process_with(config: Path) -> int | None:
    """Find the daemon process that runs with this file of settings, started by any call."""
    wanted = os.fsencode(os.path.realpath(config))
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            named = next((word for flag, word in pairwise(words) if flag == b"--config"), None)
            if named is None or not {b"manager", b"io"} & set(words):
                continue
            # A relative name counts from the process's directory; `up` passes absolute names.
            above = b"" if named.startswith(b"/") else os.readlink(os.fsencode(entry / "cwd"))
            if os.path.realpath(os.path.join(above, named)) == wanted:
                return int(entry.name)
    return None


def stop_one(daemon: DaemonProcess) -> None:
    """Ask a daemon to stop, and wait; kill it after a minute."""
    until = time.monotonic() + _STOP_S
    with contextlib.suppress(ProcessLookupError):
        os.kill(daemon.pid, signal.SIGTERM)
        # A suspended process would not handle SIGTERM.
        os.kill(daemon.pid, signal.SIGCONT)
        while daemon.is_alive and time.monotonic() < until:
            reap(daemon.pid)
            time.sleep(0.01)
        if daemon.is_alive:
            os.kill(daemon.pid, signal.SIGKILL)
    reap(daemon.pid)


def reap(pid: int) -> None:
    """Reap a child of this process that has ended; ignore other processes."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
