"""The peak speed of the processors, and their use by other programs during a measurement.

Sources: proc(5) for ``/proc/cpuinfo`` and ``/proc/stat``; the vendors' optimization manuals for the
operations of a core per cycle.
"""

import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_STAT = Path("/proc/stat")
_FASTEST = "/sys/devices/system/cpu/cpu{}/cpufreq/cpuinfo_max_freq"

_UNITS = (
    ("avx512f", "AVX-512", 32),
    ("fma", "AVX2 and FMA", 16),
    ("asimd", "NEON", 8),
    ("avx", "AVX", 8),
    ("sse2", "SSE2", 4),
)
"""Flags of ``/proc/cpuinfo``, widest first, and float64 operations of a core per cycle.

The numbers assume two units for multiplications and additions in each core, as in most servers.
Some cores have one AVX-512 unit, and reach half of this.
"""

BUSY = 0.1
"""Share of the processors in use by others above which a measurement is unreliable."""


@dataclass(frozen=True)
class Peak:
    """Peak speed of the processors in float64.

    Attributes
    ----------
    cores
        Cores that the process may use.
    hertz
        The highest frequency that the system reports. Processors may run faster for a short time.
    per_cycle
        Operations of a core per cycle.
    units
        Name of the instruction set with this number of operations.
    """

    cores: int
    hertz: float
    per_cycle: int
    units: str

    @property
    def flops_s(self) -> float:
        """Operations per second."""
        return self.cores * self.hertz * self.per_cycle

    def __str__(self) -> str:
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return f"{cores} at {self.hertz / 1e9:.3g} GHz with {self.units}"


@dataclass(frozen=True)
class Use:
    """Use of the processors during a period.

    Attributes
    ----------
    processors
        Number of processors.
    others
        Number of processors that other programs used, on average.
    stolen
        Number of processors that the host of a virtual machine withheld, on average.
    """

    processors: int
    others: float = 0.0
    stolen: float = 0.0

    @property
    def is_busy(self) -> bool:
        """Whether others used so much that a measurement is unreliable."""
        return self.others + self.stolen > BUSY * self.processors


def peak(allowed: int) -> Peak | None:
    """Return the peak of `allowed` of the process's processors; `None` if unknown."""
    numbers = os.sched_getaffinity(0)
    fastest = 0
    for number in numbers:
        path = Path(_FASTEST.format(number))
        if path.exists():
            fastest = max(fastest, int(path.read_text()))
    return parse_peak(_CPUINFO.read_text(), numbers, allowed, fastest * 1e3)


def parse_peak(
    cpuinfo: str, numbers: Collection[int], allowed: int, hertz: float = 0.0
) -> Peak | None:
    """Compute the peak from the text of ``/proc/cpuinfo``.

    Parameters
    ----------
    cpuinfo
        The text.
    numbers
        Numbers of the processors to count. Two threads of one core count as one core.
    allowed
        Largest number of cores to use.
    hertz
        Another known frequency; the highest one counts.
    """
    cores, flags = set(), set[str]()
    for block in cpuinfo.split("\n\n"):
        values = dict(re.findall(r"^([^\t:\n]+?)\s*: ?(.*)$", block, re.MULTILINE))
        own = values.get("processor", "")
        if not own.isdigit() or int(own) not in numbers:
            continue
        cores.add((values.get("physical id", own), values.get("core id", own)))
        flags = set((values.get("flags") or values.get("Features", "")).split())
        named = re.search(r"@ ([0-9.]+) ?GHz", values.get("model name", ""))
        hertz = max(
            hertz,
            float(values.get("cpu MHz", 0)) * 1e6,
            float(named[1]) * 1e9 if named else 0.0,
        )
    for flag, units, per_cycle in _UNITS:
        if flag in flags and hertz:
            return Peak(min(len(cores), allowed), hertz, per_cycle, units)
    return None


@dataclass(frozen=True)
class Clocks:
    """Time stamps in seconds: wall clock, busy and stolen processor time, and own time."""

    wall_s: float
    busy_s: float
    stolen_s: float
    own_s: float

    def until(self, later: "Clocks", processors: int) -> Use:
        """Return the use of the processors until `later`."""
        wall_s = max(later.wall_s - self.wall_s, 1e-9)
        others_s = later.busy_s - self.busy_s - (later.own_s - self.own_s)
        return Use(
            processors, max(others_s, 0.0) / wall_s, (later.stolen_s - self.stolen_s) / wall_s
        )


def parse_stat(text: str, numbers: Collection[int]) -> tuple[int, int]:
    """Sum the busy and the stolen ticks of some processors in the text of ``/proc/stat``."""
    busy = stolen = 0
    for line in text.splitlines():
        name, *ticks = line.split()
        if not name.startswith("cpu") or not name[3:].isdigit() or int(name[3:]) not in numbers:
            continue
        user, nice, system, _, _, irq, softirq, *rest = map(int, ticks)
        busy += user + nice + system + irq + softirq
        stolen += rest[0] if rest else 0
    return busy, stolen


def _clocks(numbers: Collection[int]) -> Clocks:
    tick_s = 1 / os.sysconf("SC_CLK_TCK")
    busy, stolen = parse_stat(_STAT.read_text(), numbers)
    own = os.times()
    return Clocks(time.perf_counter(), busy * tick_s, stolen * tick_s, own.user + own.system)


@contextmanager
def watched() -> Iterator[list[Use]]:
    """Measure the use of this process's processors; yield a list that gets it at the end."""
    numbers = os.sched_getaffinity(0)
    found: list[Use] = []
    before = _clocks(numbers)
    yield found
    found.append(before.until(_clocks(numbers), len(numbers)))
