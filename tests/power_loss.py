"""Programs that lose power: writes without a sync are reverted, whole or sector by sector.

A preloaded library (`power_loss.c`) records each write with the bytes that it replaces, and each
sync. Names are not reverted: a created or renamed file still exists afterwards.
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest
from timeouts import HANG_S

SECTOR_BYTES = 512


class Write(NamedTuple):
    """A write that is not durable: its offset, the old length of the file, and the old bytes."""

    path: str
    offset: int
    length: int
    size_before: int
    before: bytes


class Machine:
    """A machine for programs that write below a directory, until it loses power."""

    def __init__(self, directory: Path, root: Path) -> None:
        compiler = shutil.which("cc") or shutil.which("gcc")
        if compiler is None or not sys.platform.startswith("linux"):
            pytest.skip("noting writes and syncs needs a C compiler, and Linux")
        self.library, self.notes, self.root = directory / "power_loss.so", directory / "notes", root
        source = Path(__file__).with_name("power_loss.c")
        options = ["-O1", "-shared", "-fPIC", "-o", str(self.library)]
        subprocess.run([compiler, *options, str(source), "-ldl"], check=True)
        self.unsynced: dict[int, Write] = {}
        self.synced: list[tuple[int, str]] = []

    def run(self, script: str, *arguments: str, until: int = 0) -> int:
        """Run a script, cut its power after `until` records, and return the number of records.

        Direct writes that wait at the same time are joined, so the number of records may differ by
        a few between runs. The power of a script that makes fewer than `until` fails at its end.
        """
        self.notes.unlink(missing_ok=True)
        settings = {"ROOT": str(self.root), "NOTES": str(self.notes), "AFTER": str(until)}
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", script, *arguments],
            env=os.environ
            | {"LD_PRELOAD": str(self.library)}
            | {f"POWER_LOSS_{name}": value for name, value in settings.items()},
            capture_output=True,
            text=True,
            timeout=HANG_S,
            check=False,
        )
        assert done.returncode == (-signal.SIGKILL if until else 0), done.stderr
        return self._read()

    def _read(self) -> int:
        """Read from the records which writes are not durable, and when each file was synced."""
        self.unsynced, self.synced = {}, []
        done: set[int] = set()
        syncs: dict[int, tuple[str, set[int]]] = {}
        count = 0
        with self.notes.open("rb") as notes:
            while head := notes.readline():
                kind, *numbers, path = head.decode().rstrip("\n").split(" ", 6)
                about, offset, length, size_before, have = map(int, numbers)
                count += 1
                if kind == "W":
                    before = notes.read(have)
                    self.unsynced[about] = Write(path, offset, length, size_before, before)
                elif kind == "D":
                    done.add(about)
                elif kind == "S":
                    covered = {
                        n for n in done & set(self.unsynced) if self.unsynced[n].path == path
                    }
                    syncs[about] = path, covered
                elif kind == "E":
                    path, covered = syncs.pop(about)
                    self.synced.append((count, path))
                    for number in covered & set(self.unsynced):
                        del self.unsynced[number]
                elif kind == "R":
                    self._renamed(*path.split("\t"))
        return count

    def _renamed(self, old: str, new: str) -> None:
        for number, write in list(self.unsynced.items()):
            if write.path == new:
                del self.unsynced[number]
            elif f"{write.path}/".startswith(f"{old}/"):
                self.unsynced[number] = write._replace(path=new + write.path[len(old) :])

    def lose(self, draw: random.Random | None = None) -> int:
        """Revert writes that are not durable, or random sectors of them; return their number."""
        for _, write in sorted(self.unsynced.items(), reverse=True):
            if not os.path.exists(write.path):
                continue
            with open(write.path, "r+b") as file:
                _take_back(file.fileno(), write, draw)
        return len(self.unsynced)


def _take_back(file: int, write: Write, draw: random.Random | None) -> None:
    end, at, all_lost = write.offset + write.length, write.offset, True
    written = os.fstat(file).st_size
    while at < end:
        following = min((at // SECTOR_BYTES + 1) * SECTOR_BYTES, end) if draw else end
        if draw and draw.random() < 0.5:
            all_lost = False
        else:
            before = write.before[at - write.offset : following - write.offset]
            os.pwrite(file, before.ljust(min(following, written) - at, b"\0"), at)
        at = following
    if all_lost and end >= written:
        os.ftruncate(file, min(written, max(write.size_before, write.offset)))
