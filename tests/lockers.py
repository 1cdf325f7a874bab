"""Processes that lock a file on request."""

import contextlib
import selectors
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

_CODE = """
import errno, fcntl, os, signal, struct, sys

fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
KINDS = {
    "s": fcntl.LOCK_SH | fcntl.LOCK_NB,
    "x": fcntl.LOCK_EX | fcntl.LOCK_NB,
    "u": fcntl.LOCK_UN,
}
TYPES = {"s": fcntl.F_RDLCK, "x": fcntl.F_WRLCK, "u": fcntl.F_UNLCK}


inherited = int(sys.argv[2])


def lock(call, kind, start, length):
    wanted = struct.pack("hhqqi4x", TYPES[kind], os.SEEK_SET, start, length, 0)
    return struct.unpack("hhqqi4x", fcntl.fcntl(fd, call, wanted))


def run(verb, start=0, length=0):
    if verb in KINDS:
        fcntl.lockf(fd, KINDS[verb], length, start)
    elif verb == "wait":
        fcntl.lockf(fd, fcntl.LOCK_EX, length, start)
    elif verb == "test":
        kind, _, start, length, _ = lock(fcntl.F_GETLK, "x", start, length)
        names = {number: name for name, number in TYPES.items()}
        return "free" if kind == fcntl.F_UNLCK else f"{names[kind]} {start} {length}"
    elif verb.startswith("flock"):
        fcntl.flock(fd, KINDS[verb[-1]])
    elif verb == "wait-flock":
        fcntl.flock(fd, fcntl.LOCK_EX)
    elif verb.startswith("ofd"):
        lock(fcntl.F_OFD_SETLK, verb[-1], start, length)
    elif verb == "inherited-close":
        os.close(inherited)
    elif verb.startswith("inherited-"):
        fcntl.lockf(inherited, KINDS[verb[-1]], length, start)
    elif verb == "reopen":
        os.close(os.open(sys.argv[1], os.O_RDONLY))
    elif verb == "close":
        os.close(fd)
    elif verb == "write":
        os.pwrite(fd, b"x", start)
    elif verb == "read":
        os.pread(fd, 1, start)
    elif verb == "sync":
        os.fsync(fd)
    elif verb == "truncate":
        os.ftruncate(fd, length)
    elif verb == "reserve":
        os.posix_fallocate(fd, start, length)
    return "done"


def interrupt(*_):
    if runs:
        raise KeyboardInterrupt


runs = False
signal.signal(signal.SIGINT, interrupt)
print("ready", flush=True)
for line in sys.stdin:
    verb, *numbers = line.split()
    try:
        runs = True
        answer = run(verb, *map(int, numbers))
    except KeyboardInterrupt:
        answer = "interrupted"
    except OSError as error:
        answer = errno.errorcode[error.errno]
    runs = False
    print(answer, flush=True)
"""


class Locker:
    """A process with one open file that executes lines such as ``x 0 10``.

    ``s``, ``x`` and ``u`` lock and unlock a range by fcntl, ``ofds`` and so on for the open file
    description, ``flocks`` and so on by flock; ``wait`` and ``wait-flock`` block. The answer is
    ``done``, the name of an error, or ``interrupted``. ``test`` answers ``free``, or the lock that
    excludes an exclusive one. ``inherited-x`` and so on use a descriptor of the caller.
    """

    def __init__(self, path: Path, inherited: int | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, path, str(-1 if inherited is None else inherited)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            pass_fds=[] if inherited is None else [inherited],
        )  # fmt: skip
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self._stdin, self.stdout = self.process.stdin, self.process.stdout
        assert self.answer() == "ready"

    def send(self, line: str) -> None:
        """Send a line."""
        print(line, file=self._stdin, flush=True)

    def answer(self) -> str:
        """Wait for the answer to a line."""
        return self.stdout.readline().strip()

    def ask(self, line: str) -> str:
        """Send a line, and wait for the answer."""
        self.send(line)
        return self.answer()

    def interrupt(self) -> str:
        """Send SIGINT until the process answers; return the answer."""
        while not answered([self], 0.1):
            self.process.send_signal(signal.SIGINT)
        return self.answer()

    def end(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()


@contextlib.contextmanager
def lockers(*paths: Path, inherited: int | None = None) -> Iterator[list[Locker]]:
    """Start a process for each path. They may inherit a descriptor."""
    found: list[Locker] = []
    try:
        for path in paths:
            found.append(Locker(path, inherited))
        yield found
    finally:
        for locker in found:
            locker.end()


def answered(of: list[Locker], seconds: float | None = None) -> list[Locker]:
    """Wait until some of these processes have an answer, or for some seconds; return those."""
    with selectors.DefaultSelector() as streams:
        for each in of:
            streams.register(each.stdout, selectors.EVENT_READ, each)
        return [key.data for key, _ in streams.select(seconds)]
