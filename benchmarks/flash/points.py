"""Measured points of FLASH's I/O, and the shares of a checkpoint's time."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.flash.programs import Written


class Contender(NamedTuple):
    """A way to write, and whether plain MPI-IO writes its files, not the servers of a pool."""

    way: str
    is_plain: bool

    @property
    def title(self) -> str:
        """Words for tables."""
        kinds = {
            "each": "(a) `ArrayGroup`", "joined": "(a) `ArrayGroup`, one array",
            "hdf5": "(b) HDF5", "pnetcdf": "(c) PnetCDF",
        }  # fmt: skip
        return kinds[self.way] + (", plain MPI-IO" if self.is_plain else "")


CONTENDERS = [
    Contender("each", False), Contender("joined", False),
    Contender("hdf5", False), Contender("hdf5", True),
    Contender("pnetcdf", False), Contender("pnetcdf", True),
]  # fmt: skip
PLACES = ("disks", "memory", "own disk")


@dataclass(frozen=True)
class Point:
    """The files that one contender wrote to one place, on a number of servers.

    `place` is one of `PLACES`, `checkpoint_bytes` the size of a checkpoint, and `limit_bytes_s` the
    rate of the disks, 0 without.
    """

    contender: Contender
    place: str
    servers: int
    processes: int
    checkpoint_bytes: int
    limit_bytes_s: float
    written: Sequence[Written]

    @property
    def key(self) -> tuple[Contender, str, int, int]:
        """Contender, place, servers and processes."""
        return self.contender, self.place, self.servers, self.processes

    def seconds(self, *, is_packed: bool, without_packing: bool = False) -> list[float]:
        """Return the times of the checkpoints, optionally without packing by the program."""
        return [
            each.seconds - (each.packing if without_packing else 0)
            for each in self.written
            if (each.content, each.is_packed) == ("checkpoint", is_packed)
        ]

    def rates(self, *, is_packed: bool) -> list[float]:
        """Return bytes per second of the checkpoints."""
        return [self.checkpoint_bytes / each for each in self.seconds(is_packed=is_packed)]

    def rate(self, *, is_packed: bool) -> float:
        """Return their median."""
        return statistics.median(self.rates(is_packed=is_packed))

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Point":
        """Create a point from a document of results."""
        written = [Written(**each) for each in values.pop("written")]
        return cls(Contender(*values.pop("contender")), written=written, **values)


class Split(NamedTuple):
    """Seconds of a checkpoint: processing of the type in memory, exchange, and disk."""

    types: float
    exchange: float
    disk: float


def split(on_disks: Point, in_memory: Point) -> Split:
    """Return the split of a checkpoint from memory with guard cells.

    Without disks, the same from packed memory has the exchange only, if its packing is left out. A
    time is at least 0: differences of two measurements may be below.
    """
    exchange = statistics.median(in_memory.seconds(is_packed=True, without_packing=True))
    without_disks = statistics.median(in_memory.seconds(is_packed=False))
    with_disks = statistics.median(on_disks.seconds(is_packed=False))
    return Split(max(without_disks - exchange, 0.0), exchange, max(with_disks - without_disks, 0.0))
