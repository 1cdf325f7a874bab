"""The hosts of a testbed as the experiments use them: pairs that exchange tokens, and copies."""

import json
import os
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from benchmarks.beowulf.host import BLOCK_BYTES, FILE_BLOCKS
from benchmarks.commanded import Commanded
from benchmarks.testbed import Testbed

WARM_UP_S = 0.7
DISK_BYTES = 2 * FILE_BLOCKS * BLOCK_BYTES + (16 << 20)
"""Size of a disk for the files of `make_files`."""


def make_files(disks: Sequence[Path]) -> None:
    """Create a file to read and one to write on each disk, without its limit."""
    for disk in disks:
        for name in ("source", "target"):
            with (disk / name).open("wb") as file:
                file.write(os.urandom(FILE_BLOCKS * BLOCK_BYTES))
                os.fsync(file.fileno())


class Hosts:
    """One process on each of the first hosts of a testbed; use it as a context manager.

    Parameters
    ----------
    bed
        The testbed.
    disks
        The directories of each host, on disks of the testbed.
    """

    def __init__(self, bed: Testbed, disks: Sequence[Sequence[Path]]) -> None:
        self._end = ExitStack()
        self._addresses = [host.addresses for host in bed.hosts[: len(disks)]]
        self._each: list[Commanded] = []
        for host, own in zip(bed.hosts, disks, strict=False):
            given = json.dumps({"addresses": host.addresses, "disks": list(map(str, own))})
            command = [sys.executable, "-m", "benchmarks.beowulf.host", given]
            self._each.append(self._end.enter_context(Commanded(bed.limited(command, host))))
        self._ports: list[list[int]] = self._all("ports")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end.close()

    def _all(self, do: str, numbers: Sequence[int] | None = None, **given: Any) -> list[Any]:
        chosen = self._each if numbers is None else [self._each[number] for number in numbers]
        for one in chosen:
            one.begin(do, **given)
        return [one.answer() for one in chosen]

    def _connect(self, sources: Sequence[int], targets: Sequence[int], channels: int) -> None:
        for source, target in zip(sources, targets, strict=True):
            ways = zip(self._addresses[target], self._ports[target], strict=True)
            self._each[source].begin("connect", to=list(ways)[:channels])
        for source in sources:
            self._each[source].answer()
        self._all("accept", targets, channels=channels)

    def tokens(self, nbytes: int, pairs: int, channels: int, seconds: float) -> float:
        """Let pairs exchange tokens; return bytes per second of all of them."""
        senders, partners = range(0, 2 * pairs, 2), range(1, 2 * pairs, 2)
        self._connect(senders, partners, channels)
        for number in partners:
            self._each[number].begin("return_tokens", nbytes=nbytes)
        until = time.monotonic() + 0.05 + seconds
        found = self._all("begin_tokens", senders, nbytes=nbytes, until=until)
        for number in partners:
            self._each[number].answer()
        self._all("close", range(2 * pairs))
        begin, end = min(begin for _, begin, _ in found), max(end for *_, end in found)
        return float(sum(moved for moved, *_ in found) / (end - begin))

    def copies(self, remote: int, channels: int, seconds: float) -> float:
        """Let each host copy a file; return bytes per second of all copies.

        The first `remote` hosts form a ring, in which each copies to the next one. The others copy
        on their own disks.
        """
        ring = range(remote)
        self._connect(ring, [(number + 1) % remote for number in ring], channels)
        begin = time.monotonic() + WARM_UP_S
        for number, one in enumerate(self._each):
            is_remote = number < remote
            one.begin("copy", sends=is_remote, receives=is_remote, begin=begin, end=begin + seconds)
        written = sum(one.answer() for one in self._each)
        self._all("close", ring)
        return float(written / seconds)
