"""The disks of this machine: their rates one by one, and all at once."""

import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from outcore.errors import NotFoundError
from outcore.machine import machine
from outcore.machine.disk_rates import disk_rates

USES = ("read", "write", "copy")


class Speeds(NamedTuple):
    """Bytes per second of a disk; a copy reads and writes as many at the same time."""

    read: float
    write: float
    copy: float | None


@dataclass(frozen=True)
class Disk:
    """A measured directory.

    Attributes
    ----------
    place
        The directory, or the number of an I/O server.
    device
        Number of the disk; directories with equal numbers are on one disk.
    alone, at_once
        Its rates while the other disks of its host are idle, and while all of them work.
    """

    place: str
    device: int
    alone: Speeds
    at_once: Speeds

    def to_dict(self) -> dict[str, Any]:
        """Return plain values."""
        return {
            "place": self.place, "device": self.device,
            "alone": self.alone._asdict(), "at_once": self.at_once._asdict(),
        }  # fmt: skip

    @classmethod
    def from_dict(cls, found: dict[str, Any]) -> "Disk":
        """Return the disk that `to_dict` described."""
        alone, at_once = Speeds(**found["alone"]), Speeds(**found["at_once"])
        return cls(found["place"], found["device"], alone, at_once)


def measure_disks(directories: Sequence[Path], seconds: float) -> list[Disk]:
    """Measure reads, writes and copies in each directory, for about `seconds` each and at once.

    The temporary files have at most 512 MiB in each directory, and no names.

    Raises
    ------
    NotFoundError
        If a directory does not exist.
    ReadOnlyError
        If one is not writable.
    DiskFullError
        If a disk has too little free space for the files.
    """
    places = [Path(os.path.abspath(directory)) for directory in directories]
    for place in places:
        if not place.is_dir():
            raise NotFoundError(f"there is no directory {place}; give one that exists")
        machine.direct_io_works(place)
    alone = [_speeds(place, seconds) for place in places]
    at_once = _at_once(places, seconds) if len(places) > 1 else alone
    return [
        Disk(str(place), place.stat().st_dev, *speeds)
        for place, *speeds in zip(places, alone, at_once, strict=True)
    ]


def _speeds(place: Path, seconds: float, barrier: threading.Barrier | None = None) -> Speeds:
    meet = barrier.wait if barrier else int
    found = disk_rates(place, seconds, copies=True, meet=meet)
    return Speeds(found.read_bytes_s, found.write_bytes_s, found.copy_bytes_s)


def _at_once(places: Sequence[Path], seconds: float) -> list[Speeds]:
    barrier = threading.Barrier(len(places))

    def one(place: Path) -> Speeds:
        try:
            return _speeds(place, seconds, barrier)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(len(places)) as threads:
        running = [threads.submit(one, place) for place in places]
        try:
            errors = [each.exception() for each in running]
        except BaseException:
            barrier.abort()
            raise
    for error in errors:
        if error is not None and not isinstance(error, threading.BrokenBarrierError):
            raise error
    return [each.result() for each in running]
